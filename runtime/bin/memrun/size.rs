//! Byte sizes on the command line, in the grammar of `memc`'s options.

const EXAMPLE: &str = "write a size such as 64G, 512MiB or 4096B";

/// Parses `16G`, `1.5GiB`, `4096B`. Suffixes are binary: `16G` is 16 * 2^30 bytes.
///
/// A bare number is refused, since tools disagree on its unit, and so are `KB`, `MB`, `GB`, since people do; a share of
/// the machine's memory is none of the command's business.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    if number.is_empty() {
        return Err(format!("`{text}` is not a size: {EXAMPLE}"));
    }
    let shift = match suffix {
        "" => {
            return Err(format!(
                "`{text}` has no unit: write {text}B for bytes, {text}M for MiB or {text}G for GiB"
            ));
        }
        "%" => return Err(format!("`{text}` is a share: {EXAMPLE}")),
        "B" => 0,
        "K" | "Ki" | "KiB" => 10,
        "M" | "Mi" | "MiB" => 20,
        "G" | "Gi" | "GiB" => 30,
        "T" | "Ti" | "TiB" => 40,
        "KB" | "MB" | "GB" | "TB" => {
            let unit = suffix.trim_end_matches('B');
            return Err(format!(
                "`{suffix}` is ambiguous: write {number}{unit} or {number}{unit}iB, both binary"
            ));
        }
        _ => return Err(format!("`{suffix}` is not a unit: {EXAMPLE}")),
    };
    scaled(number, shift).ok_or_else(|| format!("`{text}` is not a size that fits: {EXAMPLE}"))
}

/// `number * 2^shift`, rounded down, with exact decimal fractions.
fn scaled(number: &str, shift: u32) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 || (shift == 0 && !fraction.is_empty()) {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let power = u32::try_from(fraction.len()).ok()?;
    let bytes = digits.checked_mul(1 << shift)? / 10u128.pow(power);
    u64::try_from(bytes).ok().filter(|&b| b > 0 && b <= i64::MAX.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is a size here is one for `memc`, and the same one; what is none has a hint.
    #[test]
    fn sizes_are_those_of_memc() {
        let sizes =
            [("16G", 16 << 30), ("1.5GiB", 3 << 29), ("4096B", 4096), ("0.5K", 512), ("2Ti", 2 << 40)];
        for (text, bytes) in sizes {
            assert_eq!(super::bytes(text), Ok(bytes));
        }
        for (text, hint) in [
            ("16", "16G for GiB"),
            ("16GB", "write 16G or 16GiB"),
            ("50%", "share"),
            ("300k", "not a unit"),
            ("0G", "fits"),
            ("1.5B", "fits"),
            ("99999999999999G", "fits"),
            ("-1G", "not a size"),
            ("", "64G"),
        ] {
            let message = bytes(text).unwrap_err();
            assert!(message.contains(hint), "{text}: {message}");
        }
    }
}
