//! Vector clocks over the streams and the host.
//!
//! Every command ticks its own axis, so a stamp names one execution of one command, and `clock.covers(stamp)`
//! says that this execution happens before whatever the clock belongs to (C. Fidge, "Timestamps in
//! message-passing systems that preserve the partial ordering", 1988).

use memc_plan::Queue;

/// Number of axes: one for each queue, by its index.
pub(crate) const AXES: usize = Queue::ALL.len();

/// One execution of one command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    /// Axis it ran on; below [`AXES`].
    pub(crate) axis: usize,
    /// Its number on that axis, from 1.
    pub(crate) time: u32,
}

/// For every axis, how many of its commands are known to have completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Clock([u32; AXES]);

impl Clock {
    /// Commands of `axis` that have completed; 0 for an axis that does not exist.
    pub(crate) fn get(&self, axis: usize) -> u32 {
        self.0.get(axis).copied().unwrap_or(0)
    }

    /// Adds what `other` knows.
    pub(crate) fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Counts one more command on `axis`.
    pub(crate) fn tick(&mut self, axis: usize) -> Stamp {
        let mut time = 0;
        if let Some(mine) = self.0.get_mut(axis) {
            *mine = mine.saturating_add(1);
            time = *mine;
        }
        Stamp { axis, time }
    }

    /// Whether the stamped execution has completed.
    pub(crate) fn covers(&self, stamp: Stamp) -> bool {
        self.get(stamp.axis) >= stamp.time
    }

    /// Whether this clock knows all that `other` knows.
    pub(crate) fn includes(&self, other: &Clock) -> bool {
        self.0.iter().zip(&other.0).all(|(mine, theirs)| mine >= theirs)
    }
}
