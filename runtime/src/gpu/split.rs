//! A body as host commands around one graph, and what crosses the graph's border.
//!
//! Two graphs of the same commands, the halves, are launched in turn, so that a step may begin while the one
//! before it ends, as it may when commands are issued one by one. What orders them crosses the border: each
//! half records, for the other, the end of every queue and the events that a body waits for before it records
//! them. The host's waits, and those of the epilogue, are for events that cross it too. For each of them a
//! half has an event of its own.

use std::ops::Range;
use std::sync::Arc;

use memc_gpu::{Graph, Stream};
use memc_plan::{Queue, Section};

use crate::Program;
use crate::program::Action;

/// Graphs that are launched in turn.
pub(super) const HALVES: usize = 2;

/// Cut of a body; see the module.
pub(super) struct Split {
    /// The commands between those of the host.
    pub(super) device: Range<usize>,
    /// Events of the program.
    events: usize,
    /// For each of them its number among those that cross the border, if it does.
    crossing: Vec<Option<usize>>,
    /// Number of events that cross it.
    count: usize,
}

impl Split {
    /// Of a program's body; `None` where host commands lie between those of the device.
    pub(super) fn of(program: &Program) -> Option<Split> {
        let body = program.section(Section::Body);
        let on_device = |i: &usize| body.get(*i).is_some_and(|c| c.queue != Queue::Host);
        let mut all = (0..body.len()).filter(on_device);
        let device = match (all.next(), all.next_back()) {
            (None, _) => 0..0,
            (Some(first), last) => first..last.unwrap_or(first).saturating_add(1),
        };
        if !device.clone().all(|i| on_device(&i)) {
            return None;
        }
        let mut recorded = vec![false; program.events];
        let mut waited = vec![false; program.events];
        let note = |events: &mut Vec<bool>, event: usize| {
            events.get_mut(event).into_iter().for_each(|seen| *seen = true);
        };
        for (i, command) in body.iter().enumerate() {
            match command.action {
                Action::Record(event) => note(&mut recorded, event),
                Action::Wait(event) if !device.contains(&i) || recorded.get(event) != Some(&true) => {
                    note(&mut waited, event);
                }
                _ => {}
            }
        }
        for command in program.section(Section::Epilogue) {
            if let Action::Wait(event) = command.action {
                note(&mut waited, event);
            }
        }
        let mut count = 0;
        let crossing = recorded.iter().zip(&waited).map(|(recorded, waited)| {
            (*recorded && *waited).then(|| {
                count += 1;
                count - 1
            })
        });
        let crossing = crossing.collect();
        Some(Split { device, events: program.events, crossing, count })
    }

    /// Events of the program and of the halves.
    pub(super) fn all_events(&self) -> usize {
        self.first(HALVES)
    }

    fn first(&self, half: usize) -> usize {
        self.events + half * (self.count + Stream::ALL.len())
    }

    /// The event by which a half records the end of a queue.
    pub(super) fn end(&self, half: usize, queue: Stream) -> usize {
        self.first(half) + self.count + queue as usize
    }

    /// The event by which a half records an event of the program, if that crosses the border.
    pub(super) fn outside(&self, half: usize, event: usize) -> Option<usize> {
        let number = self.crossing.get(event).copied().flatten()?;
        Some(self.first(half) + number)
    }
}

/// The graphs of both halves, once they are captured.
pub(super) struct Captured {
    pub(super) split: Arc<Split>,
    pub(super) graphs: Vec<Graph>,
    /// Whether queues have commands that no graph is ordered after.
    pub(super) behind: bool,
}

impl Captured {
    pub(super) fn new(split: Arc<Split>) -> Captured {
        Captured { split, graphs: Vec::with_capacity(HALVES), behind: true }
    }

    /// Whether the graphs are there.
    pub(super) fn ready(&self) -> bool {
        self.graphs.len() == HALVES
    }
}
