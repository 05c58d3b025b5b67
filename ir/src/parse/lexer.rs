//! Tokens of the text form.

use crate::diag::{Anchor, Diag};

/// A token of one line.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token {
    /// A bare word: keyword, mnemonic, attribute name, slot.
    Word(String),
    /// `%name` or `@name`, with its sigil.
    Name(char, String),
    /// `!3`.
    Event(u32),
    /// An integer literal.
    Int(i64),
    /// A float literal.
    Float(f32),
    /// A string literal.
    Text(String),
    /// Punctuation, `->` and `<-` included.
    Punct(&'static str),
}

const PUNCT: [&str; 12] = ["->", "<-", "{", "}", "[", "]", "(", ")", ",", "=", ":", "@"];

/// Splits one line; a `;` starts a comment.
pub(super) fn tokens(line: &str, number: usize) -> Result<Vec<Token>, Diag> {
    let mut lexer = Lexer { rest: line, number };
    let mut out = Vec::new();
    while let Some(token) = lexer.next()? {
        out.push(token);
    }
    Ok(out)
}

struct Lexer<'a> {
    rest: &'a str,
    number: usize,
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_./:$-".contains(c)
}

impl Lexer<'_> {
    fn fail<T>(&self, message: impl Into<String>) -> Result<T, Diag> {
        Err(Diag::new("P1", Anchor::Line(self.number), message))
    }

    fn take(&mut self, accept: impl Fn(char) -> bool) -> String {
        let end = self.rest.find(|c| !accept(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_string()
    }

    fn next(&mut self) -> Result<Option<Token>, Diag> {
        self.rest = self.rest.trim_start();
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        if first == ';' {
            self.rest = "";
            return Ok(None);
        }
        if first == '%' || (first == '@' && self.rest[1..].starts_with(|c| c == '"' || (is_name(c)))) {
            return self.name(first).map(Some);
        }
        if first == '"' {
            return self.text().map(|t| Some(Token::Text(t)));
        }
        if first == '!' {
            self.rest = &self.rest[1..];
            let digits = self.take(|c| c.is_ascii_digit());
            return match digits.parse() {
                Ok(n) => Ok(Some(Token::Event(n))),
                Err(_) => self.fail("an event is `!` and a number"),
            };
        }
        if let Some(p) = PUNCT.iter().find(|p| self.rest.starts_with(**p)) {
            self.rest = &self.rest[p.len()..];
            return Ok(Some(Token::Punct(p)));
        }
        if first.is_ascii_digit() || first == '-' {
            return self.number().map(Some);
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let word = self.take(|c| c.is_ascii_alphanumeric() || c == '_');
            return self.word(word).map(Some);
        }
        self.fail(format!("unexpected character `{first}`"))
    }

    fn name(&mut self, sigil: char) -> Result<Token, Diag> {
        self.rest = &self.rest[1..];
        let name = if self.rest.starts_with('"') { self.text()? } else { self.take(is_name) };
        if name.is_empty() {
            return self.fail(format!("a name must follow `{sigil}`"));
        }
        Ok(Token::Name(sigil, name))
    }

    fn word(&mut self, word: String) -> Result<Token, Diag> {
        match word.as_str() {
            "inf" => Ok(Token::Float(f32::INFINITY)),
            "nan" => {
                let bits = self.rest.strip_prefix("(0x").and_then(|r| r.split_once(')'));
                let Some((digits, rest)) = bits else { return self.fail("write `nan(0x7fc00000)`") };
                let value = u32::from_str_radix(digits, 16).map(f32::from_bits);
                match value {
                    Ok(v) if v.is_nan() => {
                        self.rest = rest;
                        Ok(Token::Float(v))
                    }
                    _ => self.fail(format!("0x{digits} are not the bits of a NaN")),
                }
            }
            _ => Ok(Token::Word(word)),
        }
    }

    fn number(&mut self) -> Result<Token, Diag> {
        if self.rest.starts_with("-inf") {
            self.rest = &self.rest[4..];
            return Ok(Token::Float(f32::NEG_INFINITY));
        }
        let bytes = self.rest.as_bytes();
        let mut end = usize::from(bytes[0] == b'-');
        while let Some(&b) = bytes.get(end) {
            let exponent_sign = (b == b'-' || b == b'+') && matches!(bytes[end - 1], b'e' | b'E');
            if !(b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E') || exponent_sign) {
                break;
            }
            end += 1;
        }
        let (text, rest) = self.rest.split_at(end);
        let float = text.contains(['.', 'e', 'E']);
        let token = if float {
            text.parse().ok().filter(|v: &f32| v.is_finite()).map(Token::Float)
        } else {
            text.parse().ok().map(Token::Int)
        };
        match token {
            Some(t) => {
                self.rest = rest;
                Ok(t)
            }
            None => self.fail(format!("`{text}` is not a number that fits")),
        }
    }

    fn text(&mut self) -> Result<String, Diag> {
        let mut out = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[i + 1..];
                    return Ok(out);
                }
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some('u') => {
                        let digits: String =
                            chars.by_ref().map(|(_, c)| c).skip(1).take_while(|&c| c != '}').collect();
                        match u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32) {
                            Some(c) => out.push(c),
                            None => return self.fail("bad \\u{..} escape"),
                        }
                    }
                    Some(c @ ('"' | '\\')) => out.push(c),
                    _ => return self.fail("bad escape in a string"),
                },
                c => out.push(c),
            }
        }
        self.fail("a string is not closed")
    }
}
