//! The argument for any number of steps.
//!
//! A body is a function of the bytes that it reads before it writes them. Replaying it once, on symbolic
//! values, says what it computes for any values; so if those bytes hold, afterwards, what they held before
//! with every state replaced by its next value and every input by that of the next step, then by induction
//! every step computes what the source says.
//!
//! For the order of accesses a second replay suffices. Queues run in order and events are recorded by the
//! same commands each time, so a path of "happens before" between neighbouring steps exists between all
//! neighbouring steps; and a command precedes its own later executions, so accesses further apart are ordered
//! through them.

use std::ops::Range;

use memc_plan::{Slice, Space};

use crate::Checker;
use crate::clock::{AXES, Stamp};
use crate::error::CheckError;
use crate::machine::Machine;
use crate::shadow::{Cell, Content, Ranges};
use crate::sink::Execution;
use crate::symbolic::SymbolicId;

/// The bytes that a body reads before it writes them, with their first reader.
#[derive(Debug)]
pub(crate) struct Live {
    start: [u32; AXES],
    dev: Ranges<Execution>,
    host: Ranges<Execution>,
}

impl Live {
    /// Starts with no bytes, at the beginning of a body.
    pub(crate) fn new(m: &Machine) -> Live {
        Live { start: m.now(), dev: Ranges::default(), host: Ranges::default() }
    }

    /// Whether the stamped execution was before the body.
    pub(crate) fn is_older(&self, stamp: Stamp) -> bool {
        self.start.get(stamp.axis).is_some_and(|&start| stamp.time <= start)
    }

    /// Adds bytes read by `reader`.
    pub(crate) fn claim(&mut self, space: Space, range: Range<u64>, reader: Execution) {
        match space {
            Space::Dev => self.dev.claim(range, reader),
            Space::Host => self.host.claim(range, reader),
        }
    }
}

impl Checker<'_> {
    /// Compares the live bytes before and after a body; `advance` maps each symbolic value to its meaning one
    /// step later.
    pub(crate) fn check_steady(
        &mut self,
        live: &Live,
        before: &Machine,
        after: &Machine,
        advance: &[SymbolicId],
    ) {
        for (space, ranges) in [(Space::Dev, &live.dev), (Space::Host, &live.host)] {
            for (range, reader) in ranges.iter() {
                let mut pairs: Vec<(Range<u64>, Content, Option<Cell>)> = Vec::new();
                before.shadow(space).visit(range, |piece, cell| {
                    let Some(old) = cell else { return };
                    after.shadow(space).visit(piece.clone(), |part, new| {
                        pairs.push((part.clone(), old.content.skip(part.start - piece.start), new));
                    });
                });
                for (piece, old, new) in pairs {
                    self.compare(live, after, reader, space, piece, old, new, advance);
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one comparison, called from one place")]
    fn compare(
        &mut self,
        live: &Live,
        after: &Machine,
        reader: Execution,
        space: Space,
        piece: Range<u64>,
        old: Content,
        new: Option<Cell>,
        advance: &[SymbolicId],
    ) {
        // Reading undefined bytes is reported where it happens.
        let Content::Part { value, at } = old else { return };
        let expected = value.image(advance).expect("invariant: values are mapped after the body made them");
        let actual = match new.map_or(Content::Undef, |cell| cell.content) {
            Content::Part { value, at: new_at } => {
                if expected == SymbolicId::POISON
                    || value == SymbolicId::POISON
                    || (value, new_at) == (expected, at)
                {
                    return;
                }
                Some(value)
            }
            Content::Undef => None,
        };
        let (expected, actual) = match actual {
            Some(actual) if actual == expected => {
                (self.shower().value(expected), "other bytes of the same value".to_owned())
            }
            Some(actual) => self.shower().difference(expected, actual),
            None => (self.shower().value(expected), "no value".to_owned()),
        };
        let writer = new.filter(|cell| !live.is_older(cell.write)).and_then(|cell| after.which(cell.write));
        let bytes = Slice { space, offset: piece.start, bytes: piece.end - piece.start };
        let detail = format!("{writer:?} {expected} {actual}");
        let writer = writer.map(|writer| self.sink.site(writer));
        self.sink.at(reader, &detail, |reader| CheckError::NotSteady {
            reader,
            writer,
            bytes,
            expected,
            actual,
        });
    }
}
