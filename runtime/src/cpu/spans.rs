//! Times at which commands ran, measured by the threads of the streams.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use memc_plan::Span;

use crate::clock::{from_first, now};

/// Start and end of every command of the body, by index.
#[derive(Default)]
pub(super) struct Spans(Mutex<Vec<Option<(Instant, Instant)>>>);

impl Spans {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<(Instant, Instant)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all times and makes room for so many commands.
    pub(super) fn prepare(&self, commands: usize) {
        *self.lock() = vec![None; commands];
    }

    /// Runs a command and keeps its start and end.
    pub(super) fn time<T>(&self, index: usize, run: impl FnOnce() -> T) -> T {
        let start = now();
        let result = run();
        let end = now();
        self.lock().get_mut(index).into_iter().for_each(|span| *span = Some((start, end)));
        result
    }

    /// Spans of the commands that take time.
    pub(super) fn take(&self, takes_time: impl Iterator<Item = bool>) -> Vec<Span> {
        let spans = self.lock();
        let timed = spans.iter().zip(takes_time).enumerate().filter(|(_, (_, takes_time))| *takes_time);
        let timed: Vec<_> = timed.filter_map(|(index, (span, _))| Some((index, (*span)?))).collect();
        let Some(first) = timed.iter().map(|(_, (start, _))| *start).min() else { return Vec::new() };
        let ns = |at: Instant| i64::try_from(at.duration_since(first).as_nanos()).unwrap_or(i64::MAX);
        let times: Vec<_> = timed.iter().map(|&(index, (start, end))| (index, ns(start), ns(end))).collect();
        from_first(&times)
    }
}
