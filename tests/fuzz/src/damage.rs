//! Damage to bytes and texts.

use arbtest::arbitrary::{Result, Unstructured};

use crate::wire::NUMBERS;

/// Most bytes of an input that grew by damage.
const MAX_BYTES: usize = 1 << 17;

/// Changes, removes, repeats or inserts bytes in one to four places.
pub(crate) fn bytes(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    for _ in 0..u.int_in_range(1..=4)? {
        if bytes.is_empty() || bytes.len() > MAX_BYTES {
            bytes.truncate(MAX_BYTES);
            bytes.push(u.arbitrary()?);
            continue;
        }
        let at = u.choose_index(bytes.len())?;
        let to = |n: usize| (at + n).min(bytes.len());
        match u.int_in_range(0..=6)? {
            0 => bytes[at] = u.arbitrary()?,
            1 => bytes[at] ^= 1 << u.int_in_range(0..=7)?,
            2 => drop(bytes.drain(at..to(u.int_in_range(1..=16)?))),
            3 => {
                let stretch = bytes[at..to(u.int_in_range(1..=64)?)].to_vec();
                bytes.splice(at..at, stretch);
            }
            4 => {
                // A number where the format has one.
                let number = u.choose(&NUMBERS)?.to_le_bytes();
                let width = *u.choose(&[2, 4, 8])?;
                let width = width.min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            5 => bytes.truncate(at),
            _ => bytes.insert(at, *u.choose(&[0, 1, 0x7f, 0x80, 0xff, b'\n', 0x1b, b'0'])?),
        }
    }
    Ok(())
}

/// Texts that stand where numbers or names do.
const WORDS: [&str; 26] = [
    "0",
    "1",
    "-1",
    "2",
    "1e38",
    "1e999",
    "-0.0",
    "0.5",
    "nan",
    "inf",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "4294967296",
    "1048576",
    "",
    "null",
    "[]",
    "{}",
    "\"\"",
    "true",
    "\u{1b}[31m",
    "é",
    "%x",
    "f32[0]",
    "i64[9223372036854775807,2]",
];

/// Changes a text: its lines, its words, its numbers, or single bytes.
pub(crate) fn text(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    let Ok(text) = std::str::from_utf8(bytes) else { return self::bytes(u, bytes) };
    let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let known: Vec<&str> = text.split(|c: char| !is_word(c)).filter(|w| !w.is_empty()).collect();
    for _ in 0..u.int_in_range(1..=4)? {
        let (i, j) = (u.choose_index(lines.len())?, u.choose_index(lines.len())?);
        match u.int_in_range(0..=9)? {
            0 => lines.swap(i, j),
            1 => lines[i] = lines[j].clone(),
            2 if lines.len() > 1 => drop(lines.remove(i)),
            3 => lines.insert(i, lines[j].clone()),
            4 => {
                let mut damaged = std::mem::take(&mut lines[i]).into_bytes();
                self::bytes(u, &mut damaged)?;
                lines[i] = String::from_utf8_lossy(&damaged).into_owned();
            }
            _ => {
                let word =
                    if u.arbitrary()? && !known.is_empty() { *u.choose(&known)? } else { *u.choose(&WORDS)? };
                replace_word(u, &mut lines[i], word)?;
            }
        }
    }
    *bytes = lines.join("\n").into_bytes();
    bytes.truncate(MAX_BYTES);
    Ok(())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || "_.-+%".contains(c)
}

/// Puts `word` in the place of one word of the line.
fn replace_word(u: &mut Unstructured<'_>, line: &mut String, word: &str) -> Result<()> {
    let mut starts: Vec<(usize, usize)> = Vec::new();
    let mut open = None;
    for (at, c) in line.char_indices().chain([(line.len(), ' ')]) {
        match (is_word(c), open) {
            (true, None) => open = Some(at),
            (false, Some(from)) => {
                starts.push((from, at));
                open = None;
            }
            _ => {}
        }
    }
    if starts.is_empty() {
        line.push_str(word);
        return Ok(());
    }
    let (from, to) = *u.choose(&starts)?;
    line.replace_range(from..to, word);
    Ok(())
}
