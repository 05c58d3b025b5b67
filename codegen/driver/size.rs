//! Byte sizes on the command line.

use memc_ir::Bytes;

/// A memory size as the user gives it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Size {
    /// So many bytes.
    Bytes(u64),
    /// This share of the device's memory, in percent.
    Percent(f64),
}

const EXAMPLE: &str = "write a size such as 16G, 512MiB, 4096B or 90%";

/// Parses a size as [`Bytes::parse`] does, or a share such as `90%`.
pub(crate) fn parse(text: &str) -> Result<Size, String> {
    let Some(number) = text.trim().strip_suffix('%') else {
        return Bytes::parse(text, EXAMPLE).map(|bytes| Size::Bytes(bytes.0));
    };
    let percent: f64 = number.parse().map_err(|_| format!("`{number}` is not a number: {EXAMPLE}"))?;
    if !(percent > 0.0 && percent <= 100.0) {
        return Err(format!("`{}` is not between 0% and 100%", text.trim()));
    }
    Ok(Size::Percent(percent))
}

/// Budgets from one size to another.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Range(Vec<Size>);

impl Range {
    /// The budgets, ascending.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = Size> {
        self.0.iter().copied()
    }
}

/// Most budgets of a range.
const MOST_POINTS: u64 = 256;

/// Parses `FROM:TO:STEP`, such as `6G:24G:2G` or `40%:100%:10%`; both ends count.
pub(crate) fn range(text: &str) -> Result<Range, String> {
    const RANGE: &str = "write FROM:TO:STEP, as 6G:24G:2G or 40%:100%:10%";
    let parts: Vec<&str> = text.split(':').collect();
    let [from, to, step] = parts.as_slice() else {
        return Err(format!("`{text}` is not a range of sizes: {RANGE}"));
    };
    if step.trim_start_matches(['0', '.']).starts_with(|c: char| !c.is_ascii_digit()) && step.starts_with('0')
    {
        return Err(format!("a step of `{step}` never gets to {to}: {RANGE}"));
    }
    let (from, to, step) = (parse(from)?, parse(to)?, parse(step)?);
    let points = |from: f64, to: f64, step: f64| {
        if from > to {
            return Err(format!("`{text}` ends before it begins: write the smaller size first"));
        }
        // A little more than the quotient: shares such as 0.1% have no exact form.
        let steps = ((to - from) / step + 1e-9).floor();
        if steps >= MOST_POINTS as f64 {
            return Err(format!("`{text}` has more than {MOST_POINTS} budgets: take a larger step"));
        }
        Ok(0..=steps as u64)
    };
    let sizes = match (from, to, step) {
        (Size::Bytes(from), Size::Bytes(to), Size::Bytes(step)) => {
            let points = points(from as f64, to as f64, step as f64)?;
            points.map(|i| Size::Bytes(from + i * step)).collect()
        }
        (Size::Percent(from), Size::Percent(to), Size::Percent(step)) => {
            points(from, to, step)?.map(|i| Size::Percent(from + i as f64 * step)).collect()
        }
        _ => return Err(format!("`{text}` mixes sizes and shares: {RANGE}")),
    };
    Ok(Range(sizes))
}

/// A size in bytes: one that is not a share of anything.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    Bytes::parse(text, "write a size such as 64G").map(|bytes| bytes.0)
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
    fn sizes_are_bytes_or_shares() {
        assert_eq!(parse("1.5GiB"), Ok(Size::Bytes(3 << 29)));
        assert_eq!(parse("90%"), Ok(Size::Percent(90.0)));
        for (text, hint) in
            [("16", "16G"), ("200%", "100%"), ("0%", "100%"), ("x%", "not a number"), ("", "90%")]
        {
            let message = parse(text).unwrap_err();
            assert!(message.contains(hint), "{text}: {message}");
        }
    }

    #[test]
    fn shares_are_no_bytes() {
        assert_eq!(bytes("64G"), Ok(64 << 30));
        assert!(bytes("50%").is_err_and(|e| e.contains("64G")));
        assert!(bytes("64").is_err());
    }

    #[test]
    fn ranges_have_both_ends_and_units() {
        let sizes = |text| range(text).map(|r| r.sizes().collect::<Vec<_>>());
        let g = |n: u64| Size::Bytes(n << 30);
        assert_eq!(sizes("6G:12G:2G"), Ok(vec![g(6), g(8), g(10), g(12)]));
        assert_eq!(sizes("6G:9G:2G"), Ok(vec![g(6), g(8)]));
        assert_eq!(sizes("6G:6G:2G"), Ok(vec![g(6)]));
        let shares = sizes("99.8%:100%:0.1%").unwrap_or_default();
        assert_eq!((shares.len(), shares.first()), (3, Some(&Size::Percent(99.8))));
        for (text, hint) in [
            ("6G", "FROM:TO:STEP"),
            ("6G:24G", "FROM:TO:STEP"),
            ("6:24G:2G", "6G"),
            ("6G:24:2G", "no unit"),
            ("6G:24G:2", "2G"),
            ("24G:6G:2G", "smaller size first"),
            ("6G:24G:0G", "never gets"),
            ("6G:24G:0.0G", "never gets"),
            ("6G:24G:0%", "never gets"),
            ("6G:24G:10%", "mixes"),
            ("1B:1T:1B", "larger step"),
            ("6G:24G:-2G", "not a size"),
        ] {
            let message = range(text).err().unwrap_or_default();
            assert!(message.contains(hint), "{text}: {message}");
        }
    }
}
