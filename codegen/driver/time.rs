//! Times on the command line, and the one clock: it limits searches and says how long they took; no pass sees it.

use std::time::{Duration, Instant};

/// A time such as `10s`, `1.5s`, `500ms` or `2m`. A bare number is refused.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
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
                "`{text}` has no unit: write {text}s for seconds, {text}ms for milliseconds or {text}m for minutes"
            ));
        }
        _ => return Err(format!("`{unit}` is not a unit of time: {example}")),
    };
    let time = Some(seconds).filter(|s| *s <= LONGEST_S).and_then(|s| Duration::try_from_secs_f64(s).ok());
    time.ok_or_else(|| format!("`{text}` is not a time that fits: {example}"))
}

/// Longest time that may be given, in seconds: sums and shares of such times cannot overflow.
const LONGEST_S: f64 = 1e9;

/// The present.
#[allow(clippy::disallowed_methods, reason = "the driver keeps time limits; searches count their steps")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Time passed since then in ns.
pub(crate) fn since(then: Instant) -> u64 {
    u64::try_from(then.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for (text, hint) in
            [("10", "write 10s"), ("10x", "not a unit"), ("s", "not a time"), ("-1s", "not a time")]
        {
            let message = duration(text).err().unwrap_or_default();
            assert!(message.contains(hint), "{text}: {message}");
        }
        let endless = format!("{}h", "9".repeat(40));
        assert!(duration(&endless).err().is_some_and(|m| m.contains("fits")));
    }
}
