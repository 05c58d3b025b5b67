//! Times at which the one link between device and host is taken, in a step that repeats.

/// Disjoint busy intervals of a timeline with a period, ascending; times in ns.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    period: u64,
    busy: Vec<(u64, u64)>,
}

impl Link {
    /// A link that is free throughout a step of `period` ns.
    pub(super) fn new(period: u64) -> Link {
        Link { period, busy: Vec::new() }
    }

    /// The earliest start of a copy of `ns` within `[from, to)`, which may reach into the next step.
    pub(super) fn earliest(&self, from: u64, to: u64, ns: u64) -> Option<u64> {
        let mut at = from;
        for (a, b) in self.between(from, to) {
            if at + ns <= a {
                break;
            }
            at = at.max(b);
        }
        (ns <= self.period && at + ns <= to).then_some(at)
    }

    /// The latest start of a copy of `ns` within `[from, to)`.
    pub(super) fn latest(&self, from: u64, to: u64, ns: u64) -> Option<u64> {
        let mut end = to;
        for (a, b) in self.between(from, to).rev() {
            if b + ns <= end {
                break;
            }
            end = end.min(a);
        }
        (ns <= self.period && from + ns <= end).then(|| end - ns)
    }

    /// Takes the link for `ns` from `start`.
    pub(super) fn take(&mut self, start: u64, ns: u64) {
        if ns == 0 || self.period == 0 {
            return;
        }
        let start = start % self.period;
        let end = start + ns;
        for (a, b) in [(start, end.min(self.period)), (0, end.saturating_sub(self.period))] {
            if a < b {
                self.busy.insert(self.busy.partition_point(|i| i.0 < a), (a, b));
            }
        }
    }

    /// Busy intervals that meet `[from, to)`, of as many steps as it reaches into.
    fn between(&self, from: u64, to: u64) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let period = self.period.max(1);
        let steps = from / period..to / period + 1;
        steps
            .flat_map(move |k| self.busy.iter().map(move |&(a, b)| (a + k * period, b + k * period)))
            .filter(move |&(a, b)| a < to && from < b)
    }
}

#[cfg(test)]
mod tests {
    use super::Link;

    #[test]
    fn copies_take_the_first_or_the_last_free_region_and_never_overlap() {
        let mut link = Link::new(100);
        assert_eq!(link.earliest(10, 40, 30), Some(10));
        assert_eq!(link.earliest(10, 40, 31), None);
        link.take(20, 10);
        assert_eq!(link.earliest(10, 60, 15), Some(30));
        assert_eq!(link.latest(10, 60, 15), Some(45));
        assert_eq!(link.latest(10, 35, 10), Some(10));
        link.take(95, 10);
        // The copy wraps around: it holds the first 5 ns of the next step as well.
        assert_eq!(link.earliest(0, 20, 10), Some(5));
        assert_eq!(link.earliest(90, 130, 20), None);
        assert_eq!(link.earliest(90, 130, 15), Some(105));
        assert_eq!(link.latest(90, 130, 15), Some(105));
    }
}
