//! The host's clock. Nothing that a run computes depends on it.

use std::time::Instant;

use memc_plan::Span;

#[allow(clippy::disallowed_methods, reason = "steps and commands are timed; no result depends on it")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Whole ns since `start`.
pub(crate) fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Spans counted from the first start, in order of commands. `times` has command, start and end, in ns of any
/// origin.
pub(crate) fn from_first(times: &[(usize, i64, i64)]) -> Vec<Span> {
    let first = times.iter().map(|(_, start, _)| *start).min().unwrap_or(0);
    let from = |ns: i64| u64::try_from(ns.saturating_sub(first)).unwrap_or(0);
    let span = |&(command, start, end): &(usize, i64, i64)| Span {
        command,
        start_ns: from(start),
        end_ns: from(end.max(start)),
    };
    let mut spans: Vec<Span> = times.iter().map(span).collect();
    spans.sort_by_key(|span| span.command);
    spans
}
