//! Byte counts as people read and write them, and numbers of things.

use std::fmt;

use crate::error::ParseError;

/// A number of things, as "1 op", "2 ops" or "2 launches".
pub fn counted(n: impl fmt::Display + PartialEq + From<u8>, noun: &str) -> String {
    let plural = match (n == 1.into(), noun.ends_with("ch")) {
        (true, _) => "",
        (false, true) => "es",
        (false, false) => "s",
    };
    format!("{n} {noun}{plural}")
}

/// At most ten of `items`, separated by commas, and how many more there are.
pub fn some_of<T: fmt::Display>(items: &[T]) -> String {
    const SHOWN: usize = 10;
    let mut text = String::new();
    for (i, item) in items.iter().take(SHOWN).enumerate() {
        let separator = if i == 0 { "" } else { ", " };
        text.push_str(&format!("{separator}{item}"));
    }
    if items.len() > SHOWN {
        text.push_str(&format!(" and {} more", items.len() - SHOWN));
    }
    text
}

/// A byte count that prints as `16.00 GiB (17,179,869,184 B)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Parses `16G`, `1.5GiB`, `4096B`. Suffixes are binary: `16G` is 16 * 2^30 bytes.
    ///
    /// # Errors
    /// The error describes the fault and ends with `example`, a legal spelling. A bare number is refused,
    /// since tools disagree on its unit. So are `KB`, `MB` and `GB`, since people do.
    pub fn parse(text: &str, example: &str) -> Result<Bytes, ParseError> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(split);
        if number.is_empty() {
            return Err(format!("`{text}` is not a size: {example}").into());
        }
        let shift = match suffix {
            "" => {
                return Err(format!(
                    "`{text}` has no unit: write {text}B for bytes, {text}M for MiB or {text}G for GiB"
                )
                .into());
            }
            "%" => return Err(format!("`{text}` is a share: {example}").into()),
            "B" => 0,
            "K" | "Ki" | "KiB" => 10,
            "M" | "Mi" | "MiB" => 20,
            "G" | "Gi" | "GiB" => 30,
            "T" | "Ti" | "TiB" => 40,
            "KB" | "MB" | "GB" | "TB" => {
                let unit = suffix.trim_end_matches('B');
                return Err(format!(
                    "`{suffix}` is ambiguous: write {number}{unit} or {number}{unit}iB, both binary"
                )
                .into());
            }
            _ => {
                let unit = suffix.trim().to_ascii_uppercase();
                let unit = unit.strip_suffix("IB").or(unit.strip_suffix('I')).unwrap_or(&unit);
                let unit = if unit.len() == 2 { unit.strip_suffix('B').unwrap_or(unit) } else { unit };
                if matches!(unit, "B" | "K" | "M" | "G" | "T") {
                    return Err(format!("`{text}` is not a size: did you mean {number}{unit}?").into());
                }
                return Err(format!("`{suffix}` is not a unit: {example}").into());
            }
        };
        let bytes = scaled(number, shift);
        bytes.map(Bytes).ok_or_else(|| format!("`{text}` is not a size that fits: {example}").into())
    }

    /// Only the rounded binary-unit part, as `16.00 GiB`.
    pub fn short(self) -> String {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut unit = 0;
        while unit + 1 < UNITS.len() && self.0 >> (10 * (unit + 1)) > 0 {
            unit += 1;
        }
        if unit == 0 {
            return format!("{} B", self.0);
        }
        format!("{:.2} {}", self.0 as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit])
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let digits = self.0.to_string();
        write!(f, "{} (", self.short())?;
        for (i, c) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{c}")?;
        }
        f.write_str(" B)")
    }
}

/// `number * 2^shift`, rounded down, with exact decimal fractions.
fn scaled(number: &str, shift: u32) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 || (shift == 0 && !fraction.is_empty()) {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let bytes = digits.checked_mul(1 << shift)? / 10u128.pow(fraction.len() as u32);
    u64::try_from(bytes).ok().filter(|&b| b > 0 && b <= i64::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_things_are_plural_but_for_one() {
        let launches = [0, 1, 2].map(|n: u64| counted(n, "launch"));
        assert_eq!(launches, ["0 launches", "1 launch", "2 launches"]);
        assert_eq!(counted(3usize, "op"), "3 ops");
    }

    #[test]
    fn bytes_print_rounded_and_exact() {
        assert_eq!(Bytes(16 << 30).to_string(), "16.00 GiB (17,179,869,184 B)");
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1 << 20).to_string(), "1.00 MiB (1,048,576 B)");
    }

    #[test]
    fn suffixes_are_binary_and_exact() {
        let sizes =
            [("16G", 16 << 30), ("1.5GiB", 3 << 29), ("4096B", 4096), ("0.5K", 512), ("2Ti", 2 << 40)];
        for (text, bytes) in sizes {
            assert_eq!(Bytes::parse(text, ""), Ok(Bytes(bytes)));
        }
    }

    #[test]
    fn bare_decimal_and_absurd_sizes_are_refused_with_a_hint() {
        for (text, hint) in [
            ("16", "16G for GiB"),
            ("300k", "did you mean 300K?"),
            ("300 KiB", "did you mean 300K?"),
            ("1gb", "did you mean 1G?"),
            ("1 furlong", "not a unit"),
            ("16GB", "write 16G or 16GiB"),
            ("50%", "share: write a size"),
            ("0G", "fits"),
            ("99999999999999G", "fits"),
            ("-1G", "not a size"),
            ("", "write a size"),
            ("1.5B", "fits"),
        ] {
            let message = Bytes::parse(text, "write a size").unwrap_err();
            assert!(message.to_string().contains(hint), "{text}: {message}");
        }
    }

    /// Long lists show ten items and count the rest.
    #[test]
    fn lists_are_cut() {
        assert_eq!(some_of(&[1, 2]), "1, 2");
        let many: Vec<u32> = (0..12).collect();
        assert_eq!(some_of(&many), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }
}
