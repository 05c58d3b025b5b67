//! Reading the tokens of one line.

use std::str::FromStr;

use super::lex::Token;
use crate::{PlanError, Slice, Space};

/// Rest of a line.
pub(super) struct Line<'t, 'a> {
    pub(super) rest: &'t [Token<'a>],
    /// Number of the line, from 1.
    pub(super) number: usize,
}

impl<'t, 'a> Line<'t, 'a> {
    /// An error of this line.
    pub(super) fn fail(&self, what: impl Into<String>) -> PlanError {
        PlanError::text(self.number, what)
    }

    fn next(&mut self, expected: &str) -> Result<&'t Token<'a>, PlanError> {
        let (first, rest) = self
            .rest
            .split_first()
            .ok_or_else(|| self.fail(format!("expected {expected}, found the end of the line")))?;
        self.rest = rest;
        Ok(first)
    }

    /// A bare word.
    pub(super) fn word(&mut self, expected: &str) -> Result<&'a str, PlanError> {
        match self.next(expected)? {
            Token::Word(word) => Ok(word),
            other => Err(self.fail(format!("expected {expected}, found `{other}`"))),
        }
    }

    /// A word or a quoted string.
    pub(super) fn text(&mut self, expected: &str) -> Result<String, PlanError> {
        match self.next(expected)? {
            Token::Word(word) => Ok((*word).to_owned()),
            Token::Quoted(text) => Ok(text.clone()),
            Token::Mark(mark) => Err(self.fail(format!("expected {expected}, found `{mark}`"))),
        }
    }

    /// This very word.
    pub(super) fn keyword(&mut self, keyword: &str) -> Result<(), PlanError> {
        match self.next(&format!("`{keyword}`"))? {
            Token::Word(word) if *word == keyword => Ok(()),
            other => Err(self.fail(format!("expected `{keyword}`, found `{other}`"))),
        }
    }

    /// Whether the next token is this word, which is then gone.
    pub(super) fn take(&mut self, keyword: &str) -> bool {
        let found = self.rest.first() == Some(&Token::Word(keyword));
        if found {
            self.rest = self.rest.get(1..).unwrap_or_default();
        }
        found
    }

    /// A number.
    pub(super) fn number<T: FromStr>(&mut self, expected: &str) -> Result<T, PlanError> {
        let word = self.word(expected)?;
        word.parse().map_err(|_| self.fail(format!("expected {expected}, found `{word}`")))
    }

    /// The index at the start of a command, where there is one.
    pub(super) fn index(&mut self, expected: usize) -> Result<(), PlanError> {
        match self.rest.first() {
            Some(Token::Word(word)) if word.bytes().all(|b| b.is_ascii_digit()) => {
                self.rest = self.rest.get(1..).unwrap_or_default();
                if word.parse() == Ok(expected) {
                    Ok(())
                } else {
                    Err(self.fail(format!(
                        "command {word} is number {expected} of its section; correct it or leave it out"
                    )))
                }
            }
            _ => Ok(()),
        }
    }

    /// A reference such as `k3`.
    pub(super) fn id(&mut self, prefix: &str) -> Result<u32, PlanError> {
        let expected = format!("a reference such as {prefix}0");
        let word = self.word(&expected)?;
        let number = word.strip_prefix(prefix).and_then(|number| number.parse().ok());
        number.ok_or_else(|| self.fail(format!("expected {expected}, found `{word}`")))
    }

    /// The reference that names the next entry of a table.
    pub(super) fn next_id(&mut self, prefix: &str, index: usize) -> Result<(), PlanError> {
        let id = self.id(prefix)?;
        if usize::try_from(id) == Ok(index) {
            Ok(())
        } else {
            Err(self
                .fail(format!("expected {prefix}{index}, found {prefix}{id}; tables are numbered in order")))
        }
    }

    /// A slice such as `dev+0:256`.
    pub(super) fn slice(&mut self) -> Result<Slice, PlanError> {
        let expected = "a slice such as dev+0:256";
        let word = self.word(expected)?;
        let slice = word.split_once('+').and_then(|(space, range)| {
            let space = match space {
                "dev" => Space::Dev,
                "host" => Space::Host,
                _ => return None,
            };
            let (offset, bytes) = pair(range, ":")?;
            Some(Slice { space, offset, bytes })
        });
        slice.ok_or_else(|| self.fail(format!("expected {expected}, found `{word}`")))
    }

    /// A hash such as `blake3:…`, 64 hexadecimal digits.
    pub(super) fn hash(&mut self) -> Result<[u8; 32], PlanError> {
        let expected = "a hash such as blake3:… with 64 hexadecimal digits";
        let word = self.word(expected)?;
        word.strip_prefix("blake3:")
            .and_then(parse_bytes)
            .ok_or_else(|| self.fail(format!("expected {expected}, found `{word}`")))
    }

    /// Bytes in hexadecimal digits.
    pub(super) fn bytes<const N: usize>(&mut self, expected: &str) -> Result<[u8; N], PlanError> {
        let word = self.word(expected)?;
        parse_bytes(word).ok_or_else(|| self.fail(format!("expected {expected}, found `{word}`")))
    }

    /// A list in parentheses.
    pub(super) fn list(&mut self) -> Result<Vec<String>, PlanError> {
        self.mark('(')?;
        let mut items = Vec::new();
        if self.rest.first() == Some(&Token::Mark(')')) {
            self.mark(')')?;
            return Ok(items);
        }
        loop {
            items.push(self.text("a type")?);
            match self.next("`,` or `)`")? {
                Token::Mark(',') => {}
                Token::Mark(')') => return Ok(items),
                other => return Err(self.fail(format!("expected `,` or `)`, found `{other}`"))),
            }
        }
    }

    fn mark(&mut self, mark: char) -> Result<(), PlanError> {
        match self.next(&format!("`{mark}`"))? {
            Token::Mark(found) if *found == mark => Ok(()),
            other => Err(self.fail(format!("expected `{mark}`, found `{other}`"))),
        }
    }

    /// The end of the line.
    pub(super) fn end(&self) -> Result<(), PlanError> {
        match self.rest.first() {
            None => Ok(()),
            Some(token) => Err(self.fail(format!("unexpected `{token}`"))),
        }
    }
}

/// Two numbers with a separator between them.
pub(super) fn pair<T: FromStr>(text: &str, separator: &str) -> Option<(T, T)> {
    let (a, b) = text.split_once(separator)?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

/// So many bytes in hexadecimal digits.
fn parse_bytes<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}
