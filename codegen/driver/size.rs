//! Byte sizes on the command line.

/// A memory size as the user gives it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Size {
    /// So many bytes.
    Bytes(u64),
    /// This share of the device's memory, in percent.
    Percent(f64),
}

const EXAMPLE: &str = "write a size such as 16G, 512MiB, 4096B or 90%";

/// Parses `16G`, `1.5GiB`, `4096B`, `90%`. Suffixes are binary: `16G` is 16 * 2^30 bytes.
///
/// A bare number is refused, since tools disagree on its unit, and so are `KB`, `MB`, `GB`, since people do.
pub(crate) fn parse(text: &str) -> Result<Size, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    if number.is_empty() {
        return Err(format!("`{text}` is not a size: {EXAMPLE}"));
    }
    if suffix == "%" {
        let percent: f64 = number.parse().map_err(|_| format!("`{number}` is not a number: {EXAMPLE}"))?;
        if !(percent > 0.0 && percent <= 100.0) {
            return Err(format!("`{text}` is not between 0% and 100%"));
        }
        return Ok(Size::Percent(percent));
    }
    let shift = match suffix {
        "" => {
            return Err(format!(
                "`{text}` has no unit: write {text}B for bytes, {text}M for MiB or {text}G for GiB"
            ));
        }
        "B" => 0,
        "K" | "Ki" | "KiB" => 10,
        "M" | "Mi" | "MiB" => 20,
        "G" | "Gi" | "GiB" => 30,
        "T" | "Ti" | "TiB" => 40,
        "KB" | "MB" | "GB" | "TB" => {
            let unit = &suffix[..1];
            return Err(format!(
                "`{suffix}` is ambiguous: write {number}{unit} or {number}{unit}iB, both binary"
            ));
        }
        _ => {
            let unit = suffix.trim().to_ascii_uppercase();
            let unit = unit.strip_suffix("IB").or(unit.strip_suffix('I')).unwrap_or(&unit);
            let unit = if unit.len() == 2 { unit.strip_suffix('B').unwrap_or(unit) } else { unit };
            if matches!(unit, "B" | "K" | "M" | "G" | "T") {
                return Err(format!("`{text}` is not a size: did you mean {number}{unit}?"));
            }
            return Err(format!("`{suffix}` is not a unit: {EXAMPLE}"));
        }
    };
    scaled(number, shift)
        .map(Size::Bytes)
        .ok_or_else(|| format!("`{text}` is not a size that fits: {EXAMPLE}"))
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

/// Memory of this machine in bytes that the embedded CPU device may use: the least of what is available and what the
/// control group allows.
pub(crate) fn host_memory() -> Option<u64> {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?.trim().to_string();
        line.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group =
        limits.iter().filter_map(|f| std::fs::read_to_string(f).ok()?.trim().parse::<u64>().ok()).min();
    available.into_iter().chain(group).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary_and_exact() {
        assert_eq!(parse("16G"), Ok(Size::Bytes(16 << 30)));
        assert_eq!(parse("1.5GiB"), Ok(Size::Bytes(3 << 29)));
        assert_eq!(parse("4096B"), Ok(Size::Bytes(4096)));
        assert_eq!(parse("90%"), Ok(Size::Percent(90.0)));
    }

    #[test]
    fn bare_decimal_and_absurd_sizes_are_refused_with_a_hint() {
        for (text, hint) in [
            ("16", "16G"),
            ("300k", "did you mean 300K?"),
            ("300 KiB", "did you mean 300K?"),
            ("1gb", "did you mean 1G?"),
            ("1 furlong", "not a unit"),
            ("16GB", "16G"),
            ("0G", "fits"),
            ("99999999999999G", "fits"),
            ("-1G", "size"),
            ("200%", "100%"),
            ("", "16G"),
            ("1.5B", "fits"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(hint), "{text}: {message}");
        }
    }
}
