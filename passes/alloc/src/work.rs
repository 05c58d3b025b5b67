//! Limit of a search: a count of elementary steps, and the caller's wish to end it.
//!
//! A result depends on the count alone unless the caller stops the search.

/// Remaining work.
pub(crate) struct Work<'a> {
    left: u64,
    /// Units until the caller is asked again.
    unasked: u64,
    stopped: bool,
    stop: &'a dyn Fn() -> bool,
}

/// Units between two questions to the caller: about a millisecond.
const ASK: u64 = 1 << 15;

impl<'a> Work<'a> {
    /// `units` of work, each about the time it takes to look at one buffer.
    pub(crate) fn new(units: u64, stop: &'a dyn Fn() -> bool) -> Work<'a> {
        Work { left: units, unasked: ASK, stopped: false, stop }
    }

    /// Spends some units; returns whether the search may continue.
    pub(crate) fn spend(&mut self, units: u64) -> bool {
        self.left = self.left.saturating_sub(units);
        self.unasked = self.unasked.saturating_sub(units);
        if self.unasked == 0 {
            self.unasked = ASK;
            self.stopped |= (self.stop)();
        }
        self.left > 0 && !self.stopped
    }

    /// Asks the caller whether to end the search.
    pub(crate) fn stopped(&mut self) -> bool {
        self.stopped |= (self.stop)();
        self.stopped
    }

    /// Units left; none after the caller has stopped the search.
    pub(crate) fn left(&self) -> u64 {
        if self.stopped { 0 } else { self.left }
    }

    /// A part of the remaining work, to be spent on one attempt; [`Work::settle`] pays for it.
    pub(crate) fn part(&self, units: u64) -> Work<'a> {
        Work { left: units.min(self.left()), unasked: self.unasked, stopped: self.stopped, stop: self.stop }
    }

    /// Pays for an attempt that was given `units`.
    pub(crate) fn settle(&mut self, part: &Work<'_>, units: u64) {
        self.stopped |= part.stopped;
        self.unasked = part.unasked;
        self.left = self.left.saturating_sub(units.min(self.left).saturating_sub(part.left));
    }
}
