//! State of the replay: clocks, events, and the contents of both arenas.

use std::collections::BTreeMap;

use memc_plan::{Queue, Space};

use crate::clock::{AXES, Clock, Stamp};
use crate::shadow::Shadow;
use crate::sink::Execution;

/// The state of the replay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    clocks: [Clock; AXES],
    /// Per axis, the commands that ran on it in order.
    logs: [Vec<Execution>; AXES],
    /// Clock of each event's most recent record; absent until it is recorded.
    events: BTreeMap<u32, Clock>,
    dev: Shadow,
    host: Shadow,
}

impl Machine {
    /// Begins a command: it runs after all that its queue ran before and all that the host completed before
    /// issuing it.
    pub(crate) fn begin(&mut self, queue: Queue, at: Execution) -> (Stamp, Clock) {
        let on = queue.index();
        let host = self.clock(Queue::Host.index());
        let mut clock = self.clock(on);
        clock.join(&host);
        let stamp = clock.tick(on);
        self.set_clock(on, clock);
        if let Some(log) = self.logs.get_mut(on) {
            log.push(at);
        }
        (stamp, clock)
    }

    fn clock(&self, on: usize) -> Clock {
        self.clocks.get(on).copied().unwrap_or_default()
    }

    fn set_clock(&mut self, on: usize, clock: Clock) {
        if let Some(slot) = self.clocks.get_mut(on) {
            *slot = clock;
        }
    }

    /// The event stands for all that `queue` ran so far.
    pub(crate) fn record(&mut self, queue: Queue, event: u32) {
        self.events.insert(event, self.clock(queue.index()));
    }

    /// Later commands of `queue` run after what the event stands for now. Returns whether that is new, or
    /// `None` where the event was never recorded.
    pub(crate) fn wait(&mut self, queue: Queue, event: u32) -> Option<bool> {
        let recorded = *self.events.get(&event)?;
        let mut clock = self.clock(queue.index());
        let new = !clock.includes(&recorded);
        clock.join(&recorded);
        self.set_clock(queue.index(), clock);
        Some(new)
    }

    /// The execution that a stamp names.
    pub(crate) fn which(&self, stamp: Stamp) -> Option<Execution> {
        let index = usize::try_from(stamp.time).ok()?.checked_sub(1)?;
        self.logs.get(stamp.axis)?.get(index).copied()
    }

    /// Number of commands that ran on each axis.
    pub(crate) fn now(&self) -> [u32; AXES] {
        std::array::from_fn(|on| self.clock(on).get(on))
    }

    /// The contents of one arena.
    pub(crate) fn shadow(&self, space: Space) -> &Shadow {
        match space {
            Space::Dev => &self.dev,
            Space::Host => &self.host,
        }
    }

    /// The contents of one arena, to be changed.
    pub(crate) fn shadow_mut(&mut self, space: Space) -> &mut Shadow {
        match space {
            Space::Dev => &mut self.dev,
            Space::Host => &mut self.host,
        }
    }
}
