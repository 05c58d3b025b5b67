//! Reads and writes of slices: bounds, order, contents.

use std::fmt::Write;
use std::ops::Range;

use memc_plan::{Slice, Space};

use crate::Checker;
use crate::clock::{Clock, Stamp};
use crate::error::{CheckError, RaceKind};
use crate::machine::Machine;
use crate::shadow::{Cell, Content};
use crate::sink::Execution;
use crate::symbolic::SymbolicId;

/// Alignment of every offset in bytes.
pub(crate) const ALIGN: u64 = 64;
/// Pieces of a torn read that are described.
const MAX_PIECES: usize = 3;

/// A running command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor {
    pub(crate) at: Execution,
    pub(crate) stamp: Stamp,
    pub(crate) clock: Clock,
}

/// Part of one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) value: SymbolicId,
    pub(crate) at: u64,
}

impl Part {
    const POISON: Part = Part { value: SymbolicId::POISON, at: 0 };
    const EMPTY: Part = Part { value: SymbolicId::EMPTY, at: 0 };

    /// The content that a range holding this part has.
    pub(crate) fn content(self) -> Content {
        Content::Part { value: self.value, at: self.at }
    }
}

impl Checker<'_> {
    /// The slice's bytes, after reporting a slice outside its arena or a bad offset. `None` where no such
    /// bytes exist.
    pub(crate) fn bytes(&mut self, at: Execution, slice: &Slice) -> Option<Range<u64>> {
        let arena_bytes = self.arena(slice.space);
        let detail = || slice.to_string();
        if !slice.offset.is_multiple_of(ALIGN) {
            self.sink.at_place(at, &detail(), |at| CheckError::Misaligned { at, slice: *slice });
        }
        let end = slice.end();
        if end.is_none_or(|end| end > arena_bytes) {
            self.sink.at_place(at, &detail(), |at| CheckError::OutOfBounds {
                at,
                slice: *slice,
                arena_bytes,
            });
        }
        end.map(|end| slice.offset..end)
    }

    /// Size of an arena in bytes.
    pub(crate) fn arena(&self, space: Space) -> u64 {
        match space {
            Space::Dev => self.plan.meta.dev_bytes,
            Space::Host => self.plan.meta.host_bytes,
        }
    }

    /// Reads a slice that must hold one value, whole.
    pub(crate) fn read_value(&mut self, m: &mut Machine, actor: Actor, slice: &Slice) -> SymbolicId {
        let part = self.read_part(m, actor, slice);
        let total = self.values.get(part.value).1;
        if part.value == SymbolicId::POISON || (part.at, slice.bytes) == (0, total) {
            return part.value;
        }
        self.torn(actor, slice, &[(0..slice.bytes, part.content())]);
        SymbolicId::POISON
    }

    /// Reads a slice that must hold one value or a part of one.
    pub(crate) fn read_part(&mut self, m: &mut Machine, actor: Actor, slice: &Slice) -> Part {
        let Some(range) = self.bytes(actor.at, slice) else { return Part::POISON };
        if range.is_empty() {
            return Part::EMPTY;
        }
        let mut pieces: Vec<(Range<u64>, Option<Cell>)> = Vec::new();
        m.shadow(slice.space).visit(range.clone(), |piece, cell| pieces.push((piece, cell)));
        self.note_live(slice.space, &pieces, actor.at);
        for (piece, cell) in &pieces {
            let Some(cell) = cell else { continue };
            let bytes = self.part_of(slice.space, piece);
            for (kind, first) in cell.conflicts(actor.clock, false) {
                self.race(m, kind, first, actor, bytes);
            }
            if let Some(writer) = m.which(cell.write) {
                self.lints.note_read(writer);
            }
        }
        m.shadow_mut(slice.space).read(range, actor.stamp);
        self.single_part(actor, slice, &pieces)
    }

    /// The one part that the pieces of a slice hold together.
    fn single_part(&mut self, actor: Actor, slice: &Slice, pieces: &[(Range<u64>, Option<Cell>)]) -> Part {
        let undef = |cell: &Option<Cell>| cell.is_none_or(|cell| cell.content == Content::Undef);
        if let Some((piece, _)) = pieces.iter().find(|(_, cell)| undef(cell)) {
            let bytes = self.part_of(slice.space, piece);
            self.sink.at(actor.at, &slice.to_string(), |at| CheckError::UndefRead { at, bytes });
            return Part::POISON;
        }
        let mut whole: Option<Part> = None;
        let mut torn = false;
        for (piece, cell) in pieces {
            let Some(Cell { content: Content::Part { value, at }, .. }) = *cell else { continue };
            if value == SymbolicId::POISON {
                return Part::POISON;
            }
            match whole {
                None => whole = Some(Part { value, at }),
                Some(first) => {
                    torn |=
                        first.value != value || first.at.checked_add(piece.start - slice.offset) != Some(at);
                }
            }
        }
        match whole {
            Some(part) if !torn => part,
            _ => {
                let held: Vec<(Range<u64>, Content)> = pieces
                    .iter()
                    .filter_map(|(piece, cell)| {
                        let (start, end) = (piece.start - slice.offset, piece.end - slice.offset);
                        cell.map(|cell| (start..end, cell.content))
                    })
                    .collect();
                self.torn(actor, slice, &held);
                Part::POISON
            }
        }
    }

    fn torn(&mut self, actor: Actor, slice: &Slice, held: &[(Range<u64>, Content)]) {
        if self.sink.is_full() {
            return;
        }
        let mut what = String::new();
        for (i, (piece, content)) in held.iter().enumerate() {
            if i == MAX_PIECES {
                let _ = write!(what, ", and {} more pieces", held.len() - MAX_PIECES);
                break;
            }
            let Content::Part { value, at } = *content else { continue };
            let total = self.values.get(value).1;
            let end = at.saturating_add(piece.end - piece.start);
            let comma = if what.is_empty() { "" } else { ", then " };
            let _ = write!(
                what,
                "{comma}bytes {at}..{end} of the {total} bytes of {}",
                self.shower().value(value)
            );
        }
        self.sink.at(actor.at, &slice.to_string(), |at| CheckError::TornRead { at, bytes: *slice, what });
    }

    /// Writes a slice.
    pub(crate) fn write(&mut self, m: &mut Machine, actor: Actor, slice: &Slice, content: Content) {
        let Some(range) = self.bytes(actor.at, slice) else { return };
        if range.is_empty() {
            return;
        }
        let mut pieces: Vec<(Range<u64>, Cell)> = Vec::new();
        m.shadow(slice.space)
            .visit(range.clone(), |piece, cell| pieces.extend(cell.map(|cell| (piece, cell))));
        for (piece, cell) in pieces {
            let bytes = self.part_of(slice.space, &piece);
            for (kind, first) in cell.conflicts(actor.clock, true) {
                self.race(m, kind, first, actor, bytes);
            }
        }
        m.shadow_mut(slice.space).write(range, content, actor.stamp);
    }

    fn part_of(&self, space: Space, piece: &Range<u64>) -> Slice {
        Slice { space, offset: piece.start, bytes: piece.end - piece.start }
    }

    fn race(&mut self, m: &Machine, kind: RaceKind, first: Stamp, second: Actor, bytes: Slice) {
        let Some(first) = m.which(first) else { return };
        let detail = format!("{} {:?}", kind.name(), first.command());
        let first = self.sink.site(first);
        self.sink.at(second.at, &detail, |second| CheckError::Race { kind, first, second, bytes });
    }

    /// Notes which bytes the body reads before it writes them.
    fn note_live(&mut self, space: Space, pieces: &[(Range<u64>, Option<Cell>)], at: Execution) {
        let Some(live) = &mut self.live else { return };
        for (piece, cell) in pieces {
            if cell.is_some_and(|cell| live.is_older(cell.write)) {
                live.claim(space, piece.clone(), at);
            }
        }
    }
}
