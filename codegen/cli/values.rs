//! Values on the command line: sizes, ranges, times, dimensions.

use std::time::Duration;

use memc::{CONV_WORKSPACE, Size};
use memc_frontend::MAX_ACCUMULATE;
use memc_ir::attr::F32;
use memc_ir::{Bytes, ParseError};
use memc_planner::Formulation;

/// Parses a size as [`Size`] does.
pub fn size(text: &str) -> Result<Size, ParseError> {
    text.parse()
}

/// Parses the name of a formulation.
pub fn formulation(text: &str) -> Result<Formulation, String> {
    let known = || Formulation::ALL.map(Formulation::name).join(", ");
    Formulation::named(text).ok_or_else(|| format!("the formulations are {}", known()))
}

/// Micro-steps of one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accumulate {
    /// Their number.
    pub micro_steps: u32,
    /// Whether gradients are summed instead of averaged.
    pub sum: bool,
}

/// Parses `N` or `N:sum`.
pub fn accumulate(text: &str) -> Result<Accumulate, ParseError> {
    let (number, sum) = match text.split_once(':') {
        Some((number, "sum")) => (number, true),
        Some((number, "mean")) => (number, false),
        Some((number, _)) => return Err(format!("write {number}, or {number}:sum").into()),
        None => (text, false),
    };
    match number.parse() {
        Ok(micro_steps) if (1..=MAX_ACCUMULATE).contains(&micro_steps) => Ok(Accumulate { micro_steps, sum }),
        _ => Err(format!("write a number from 1 to {MAX_ACCUMULATE}, such as 4, or 4:sum").into()),
    }
}

/// Budgets from one size to another.
#[derive(Clone, PartialEq, Debug)]
pub struct Range(Vec<Size>);

impl Range {
    /// The budgets, ascending.
    pub fn sizes(&self) -> impl Iterator<Item = Size> {
        self.0.iter().copied()
    }
}

/// Most budgets of a range.
const MOST_POINTS: u64 = 256;

/// Parses `FROM:TO:STEP`, such as `6G:24G:2G` or `40%:100%:10%`; both ends count.
pub fn range(text: &str) -> Result<Range, ParseError> {
    const RANGE: &str = "write FROM:TO:STEP, as 6G:24G:2G or 40%:100%:10%";
    let parts: Vec<&str> = text.split(':').collect();
    let [from, to, step] = parts.as_slice() else {
        return Err(format!("`{text}` is not a range of sizes: {RANGE}").into());
    };
    if step.trim_start_matches(['0', '.']).starts_with(|c: char| !c.is_ascii_digit()) && step.starts_with('0')
    {
        return Err(format!("a step of `{step}` never gets to {to}: {RANGE}").into());
    }
    let (from, to, step) = (size(from)?, size(to)?, size(step)?);
    let points = |from: f64, to: f64, step: f64| -> Result<_, ParseError> {
        if from > to {
            return Err(format!("`{text}` ends before it begins: write the smaller size first").into());
        }
        // A little more than the quotient: shares such as 0.1% have no exact form.
        let steps = ((to - from) / step + 1e-9).floor();
        if steps >= MOST_POINTS as f64 {
            return Err(format!("`{text}` has more than {MOST_POINTS} budgets: take a larger step").into());
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
        (Size::PeakPercent(from), Size::PeakPercent(to), Size::PeakPercent(step)) => {
            points(from, to, step)?.map(|i| Size::PeakPercent(from + i as f64 * step)).collect()
        }
        _ => return Err(format!("`{text}` mixes sizes and shares: {RANGE}").into()),
    };
    Ok(Range(sizes))
}

/// A size in bytes: one that is not a share of anything.
pub fn bytes(text: &str) -> Result<u64, ParseError> {
    Bytes::parse(text, "write a size such as 64G").map(|bytes| bytes.0)
}

/// Workspace of a convolution.
pub fn conv_workspace(text: &str) -> Result<u64, ParseError> {
    let bytes = bytes(text).ok().filter(|bytes| CONV_WORKSPACE.contains(bytes));
    bytes.ok_or_else(|| format!("`{text}` is no size from 32M to 512M: write one such as 256M").into())
}

/// A time such as `10s`, `1.5s`, `500ms` or `2m`. A bare number is refused.
pub fn duration(text: &str) -> Result<Duration, ParseError> {
    let example = "write a time such as 10s, 500ms or 2m";
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is not a time: {example}"))?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        "" => {
            return Err(format!(
                "`{text}` has no unit: write {text}s for seconds, {text}ms for milliseconds or {text}m for \
                 minutes"
            )
            .into());
        }
        _ => return Err(format!("`{unit}` is not a unit of time: {example}").into()),
    };
    let time = Some(seconds).filter(|s| *s <= LONGEST_S).and_then(|s| Duration::try_from_secs_f64(s).ok());
    time.ok_or_else(|| format!("`{text}` is not a time that fits: {example}").into())
}

/// Longest time that may be given, in seconds: sums and shares of such times cannot overflow.
const LONGEST_S: f64 = 1e9;

/// A symbolic dimension on the command line.
#[derive(Clone)]
pub struct Dim {
    /// Its name in the model.
    pub name: String,
    /// Its sizes, one for each bucket; none where the command is to find one.
    pub sizes: Vec<u64>,
}

/// Parses `IN=OUT`.
pub fn pair(text: &str) -> Result<(String, String), ParseError> {
    let (a, b) = text.split_once('=').ok_or("write IN=OUT")?;
    Ok((a.to_string(), b.to_string()))
}

/// Parses `NAME=N[,N..]`.
pub fn sized_dim(text: &str) -> Result<Dim, ParseError> {
    let (name, value) = pair(text).map_err(|_| "write NAME=N, or NAME=N,N,.. for a bucket of each size")?;
    let mut sizes: Vec<u64> = Vec::new();
    for part in value.split(',') {
        let size = part.parse().map_err(|_| format!("`{part}` is not a non-negative integer"))?;
        if sizes.contains(&size) {
            return Err(format!("the size {size} is given twice").into());
        }
        sizes.push(size);
    }
    Ok(Dim { name, sizes })
}

/// Parses `GLOB=FACTOR`.
pub fn factor(text: &str) -> Result<(String, F32), ParseError> {
    let (pattern, factor) = text.rsplit_once('=').ok_or("write GLOB=FACTOR, as 'layers.0.*=0.1'")?;
    let factor: Option<f32> = factor.parse().ok().filter(|f: &f32| f.is_finite() && *f >= 0.0);
    let factor =
        factor.ok_or_else(|| format!("`{text}`: the factor must be a number that is not negative"))?;
    Ok((pattern.to_string(), F32(factor)))
}

/// A dimension with or without a size.
pub fn any_dim(text: &str) -> Result<Dim, ParseError> {
    if text.contains('=') {
        return sized_dim(text);
    }
    if text.is_empty() {
        return Err("write the name of a symbolic dimension, or NAME=N".into());
    }
    Ok(Dim { name: text.to_string(), sizes: Vec::new() })
}

/// Parses a share above 0 and at most 1: `0.5`, `50%` or `1/2`.
pub fn share(text: &str) -> Result<f64, ParseError> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let share = match (text.strip_suffix('%'), text.split_once('/')) {
        (Some(percent), _) => number(percent).map(|percent| percent / 100.0),
        (_, Some((a, b))) => number(a).zip(number(b)).map(|(a, b)| a / b),
        _ => number(text),
    };
    let share = share.filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| format!("`{text}` is not a share: write 0.5, 50% or 1/2").into())
}

/// Parses a ratio of at least 1.
pub fn ratio(text: &str) -> Result<f64, ParseError> {
    let ratio: Option<f64> = text.parse().ok().filter(|r: &f64| r.is_finite() && *r >= 1.0);
    ratio.ok_or_else(|| format!("`{text}` is not a ratio: write a number of at least 1, such as 1.3").into())
}

/// Parses a height: an instance does not say what its units are, so there is none to write.
pub fn height(text: &str) -> Result<u64, ParseError> {
    let plain = "write a number in the units of the instance's sizes";
    match (text.trim().parse(), size(text)) {
        (Ok(height), _) => Ok(height),
        (_, Ok(Size::Bytes(bytes))) => {
            Err(format!("`{text}` has a unit: {plain}, {bytes} where they are bytes").into())
        }
        (_, Ok(Size::Percent(_) | Size::PeakPercent(_))) => {
            Err(format!("`{text}` is a share, but of what is not known: {plain}").into())
        }
        _ => Err(format!("`{text}` is not a height: {plain}, such as 1048576").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_shares() {
        assert_eq!(size("1.5GiB"), Ok(Size::Bytes(3 << 29)));
        assert_eq!(size("90%"), Ok(Size::Percent(90.0)));
        assert_eq!(size("peak*60%"), Ok(Size::PeakPercent(60.0)));
        assert!(size("peak*6G").is_err_and(|e| e.to_string().contains("peak*60%")));
        for (text, hint) in
            [("16", "16G"), ("200%", "100%"), ("0%", "100%"), ("x%", "not a number"), ("", "90%")]
        {
            let message = size(text).unwrap_err().to_string();
            assert!(message.contains(hint), "{text}: {message}");
        }
    }

    #[test]
    fn shares_are_no_bytes() {
        assert_eq!(bytes("64G"), Ok(64 << 30));
        assert!(bytes("50%").is_err_and(|e| e.to_string().contains("64G")));
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
            let message = range(text).unwrap_err().to_string();
            assert!(message.contains(hint), "{text}: {message}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for (text, hint) in
            [("10", "write 10s"), ("10x", "not a unit"), ("s", "not a time"), ("-1s", "not a time")]
        {
            let message = duration(text).unwrap_err().to_string();
            assert!(message.contains(hint), "{text}: {message}");
        }
        let endless = format!("{}h", "9".repeat(40));
        assert!(duration(&endless).err().is_some_and(|m| m.to_string().contains("fits")));
    }
}
