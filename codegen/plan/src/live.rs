//! Live ranges of bytes of the device arena, in commands of a steady step.
//!
//! The body is gone through three times with the contents of every range of bytes. The pass in the middle is
//! the steady step. Bytes live from the command that writes them to the last one that reads them before they
//! are written again. Resident slots live at the border of two steps. Workspace lives for its launch.

use std::collections::BTreeMap;

use crate::{Action, Plan, Slice, Space};

/// Bytes that live from the start of one command to the end of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    /// Number of bytes.
    pub(crate) bytes: u64,
    /// Command of the body; `None` for bytes that live when the step begins.
    pub(crate) from: Option<usize>,
    /// Command of the body; `None` for bytes that live when it ends.
    pub(crate) to: Option<usize>,
}

/// A command of a pass over the body.
type At = (u8, usize);

/// The pass that is recorded.
const STEADY: u8 = 1;
const PASSES: u8 = 3;

/// Bytes from the key on with one content.
#[derive(Clone, Copy)]
struct Cell {
    end: u64,
    /// The writer; `None` for the prologue.
    written: Option<At>,
    used: At,
}

/// Contents of the arena while the body is gone through.
#[derive(Default)]
struct Contents {
    cells: BTreeMap<u64, Cell>,
    periods: Vec<Period>,
}

/// The periods of a plan's body.
pub(crate) fn periods(plan: &Plan) -> Vec<Period> {
    let mut contents = Contents::default();
    let resident_slots =
        || plan.states.iter().map(|state| state.resident).filter(|resident| resident.space == Space::Dev);
    for resident in resident_slots() {
        contents.write(resident, None, (0, 0));
    }
    for number in 0..PASSES {
        for (index, command) in plan.body.iter().enumerate() {
            let at = (number, index);
            match &command.action {
                Action::Launch { reads, writes, workspace, .. } => {
                    reads.iter().for_each(|slice| contents.read(*slice, at));
                    writes.iter().for_each(|slice| contents.write(*slice, Some(at), at));
                    workspace.iter().for_each(|slice| contents.write(*slice, Some(at), at));
                }
                Action::Copy { src, dst } => {
                    contents.read(*src, at);
                    contents.write(*dst, Some(at), at);
                }
                Action::Free { slice } => contents.remove(*slice, at),
                _ => {}
            }
        }
        resident_slots().for_each(|resident| contents.read(resident, (number, plan.body.len())));
    }
    for (start, cell) in std::mem::take(&mut contents.cells) {
        contents.close(start, &cell);
    }
    let last = plan.body.len();
    contents.periods.iter_mut().for_each(|period| period.to = period.to.filter(|&to| to < last));
    contents.periods
}

impl Contents {
    /// Makes the ends of a slice borders of cells.
    fn split(&mut self, slice: Slice) {
        for at in [slice.offset, slice.offset.saturating_add(slice.bytes)] {
            let Some((_, cell)) = self.cells.range_mut(..at).next_back() else { continue };
            if cell.end > at {
                let tail = *cell;
                cell.end = at;
                self.cells.insert(at, tail);
            }
        }
    }

    fn read(&mut self, slice: Slice, at: At) {
        if slice.space != Space::Dev || slice.bytes == 0 {
            return;
        }
        self.split(slice);
        let within = slice.offset..slice.offset.saturating_add(slice.bytes);
        self.cells.range_mut(within).for_each(|(_, cell)| cell.used = at);
    }

    /// Bytes that the writing command has read live on.
    fn write(&mut self, slice: Slice, written: Option<At>, at: At) {
        if slice.space != Space::Dev || slice.bytes == 0 {
            return;
        }
        self.split(slice);
        let end = slice.offset.saturating_add(slice.bytes);
        let mut from = slice.offset;
        let before: Vec<(u64, Cell)> = self.cells.range(from..end).map(|(s, c)| (*s, *c)).collect();
        for (start, cell) in before {
            if from < start {
                self.cells.insert(from, Cell { end: start, written, used: at });
            }
            if written.is_none() || cell.used != at {
                self.close(start, &cell);
                self.cells.insert(start, Cell { end: cell.end, written, used: at });
            }
            from = cell.end;
        }
        if from < end {
            self.cells.insert(from, Cell { end, written, used: at });
        }
    }

    fn remove(&mut self, slice: Slice, at: At) {
        if slice.space != Space::Dev {
            return;
        }
        self.write(slice, Some(at), at);
        let end = slice.offset.saturating_add(slice.bytes);
        let within: Vec<u64> = self.cells.range(slice.offset..end).map(|(start, _)| *start).collect();
        for start in within {
            self.cells.remove(&start);
        }
    }

    /// Notes the life of a content where the steady step sees it.
    fn close(&mut self, start: u64, cell: &Cell) {
        let (written, used) = (cell.written, cell.used);
        if used.0 < STEADY || written.is_some_and(|(pass, _)| pass > STEADY) {
            return;
        }
        let from = written.filter(|(pass, _)| *pass == STEADY).map(|(_, index)| index);
        let to = (used.0 == STEADY).then_some(used.1);
        self.periods.push(Period { bytes: cell.end - start, from, to });
    }
}
