//! Text of files that nobody vouches for, made fit for a terminal.

use std::borrow::Cow;

/// `text` with control characters written out, except line breaks and tabs: an escape sequence in a name
/// could otherwise command the terminal (CWE-150).
pub fn printable(text: &str) -> Cow<'_, str> {
    // C1 controls are of two bytes, and direction marks reorder what is read.
    let is_bad = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.chars().any(is_bad) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_bad(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Controls of both sets and direction marks are written out; everything else stays.
    #[test]
    fn controls_are_written_out() {
        assert!(matches!(printable("größe\t1\n²"), Cow::Borrowed(_)));
        assert_eq!(printable("a\x1b[2Jb\r\u{9b}c\u{202e}"), "a\\u{1b}[2Jb\\u{d}\\u{9b}c\\u{202e}");
    }
}
