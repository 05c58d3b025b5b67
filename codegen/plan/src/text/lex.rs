//! Tokens of one line of the text form.
//!
//! A string is written bare where it reads back as one word, and quoted otherwise. A word is a run of
//! printable ASCII without blanks, quotes, parentheses, commas and semicolons, except that within balanced
//! brackets or braces all but quotes and semicolons may appear: `f32[64, 4096]` and `{axis = 1}` are words.

use std::fmt;

use crate::PlanError;

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A bare word.
    Word(&'a str),
    /// The contents of a quoted string.
    Quoted(String),
    /// `(`, `)` or `,`.
    Mark(char),
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(word) => f.write_str(word),
            Token::Quoted(text) => write!(f, "\"{}\"", text.escape_debug()),
            Token::Mark(mark) => write!(f, "{mark}"),
        }
    }
}

/// A string, bare or quoted.
pub(super) struct Text<'a>(pub(super) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_empty() && word_len(self.0) == Some(self.0.len()) {
            f.write_str(self.0)
        } else {
            write!(f, "\"{}\"", self.0.escape_debug())
        }
    }
}

/// The comment that ends a command: nothing where it is empty, bare where it is plain.
pub(super) struct Label<'a>(pub(super) &'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.0;
        let plain = label.bytes().all(|b| (b' '..=b'~').contains(&b));
        if label.is_empty() {
            Ok(())
        } else if plain && label.trim() == label && !label.starts_with('"') {
            write!(f, " ; {label}")
        } else {
            write!(f, " ; \"{}\"", label.escape_debug())
        }
    }
}

/// The tokens of a line, and the text after its first semicolon.
pub(super) fn tokens(line: &str, number: usize) -> Result<(Vec<Token<'_>>, Option<&str>), PlanError> {
    let mut tokens = Vec::new();
    let mut rest = line.trim();
    while let Some(first) = rest.chars().next() {
        let after = rest.get(first.len_utf8()..).unwrap_or_default();
        rest = match first {
            ';' => return Ok((tokens, Some(after.trim()))),
            '(' | ')' | ',' => {
                tokens.push(Token::Mark(first));
                after
            }
            '"' => {
                let (text, after) = quoted(after, number)?;
                tokens.push(Token::Quoted(text));
                after
            }
            _ => {
                let length =
                    word_len(rest).ok_or_else(|| PlanError::text(number, "a bracket is not closed"))?;
                let (word, after) = rest.split_at(length);
                if word.is_empty() {
                    return Err(PlanError::text(number, format!("unexpected `{}`", first.escape_debug())));
                }
                tokens.push(Token::Word(word));
                after
            }
        }
        .trim_start();
    }
    Ok((tokens, None))
}

/// The text of a label, as it follows the semicolon.
pub(super) fn label(text: &str, number: usize) -> Result<String, PlanError> {
    match text.strip_prefix('"') {
        None => Ok(text.to_owned()),
        Some(rest) => match quoted(rest, number)? {
            (label, "") => Ok(label),
            (_, extra) => Err(PlanError::text(number, format!("unexpected `{extra}` after the label"))),
        },
    }
}

/// Length of the word that `text` begins with, or `None` where a bracket is not closed.
fn word_len(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' if depth > 0 => depth -= 1,
            b'"' | b';' => return (depth == 0).then_some(at),
            b' ' | b'(' | b')' | b',' | b']' | b'}' if depth == 0 => return Some(at),
            b' '..=b'~' => {}
            _ => return (depth == 0).then_some(at),
        }
    }
    (depth == 0).then_some(text.len())
}

/// The contents of a quoted string whose opening quote is gone, and what follows the closing one.
fn quoted(text: &str, number: usize) -> Result<(String, &str), PlanError> {
    let fail = |what| PlanError::text(number, what);
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        let plain = match c {
            '"' => return Ok((out, text.get(at + 1..).unwrap_or_default())),
            '\\' => match chars.next().map(|(_, escaped)| escaped) {
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some('0') => '\0',
                Some(same @ ('"' | '\'' | '\\')) => same,
                Some('u') => unicode(&mut chars)
                    .ok_or_else(|| fail("`\\u` must be followed by a code point such as {1f}"))?,
                _ => return Err(fail("unknown escape in a quoted string")),
            },
            other => other,
        };
        out.push(plain);
    }
    Err(fail("a quoted string is not closed"))
}

fn unicode(chars: &mut impl Iterator<Item = (usize, char)>) -> Option<char> {
    chars.next().filter(|&(_, c)| c == '{')?;
    let mut code = 0u32;
    for _ in 0..=6 {
        match chars.next()?.1 {
            '}' => return char::from_u32(code),
            digit => code = code.checked_mul(16)?.checked_add(digit.to_digit(16)?)?,
        }
    }
    None
}
