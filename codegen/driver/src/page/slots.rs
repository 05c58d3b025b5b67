//! Slots of the device arena in a steady step: which bytes hold which tensors, from which command to which.
//!
//! The body is gone through three times with the contents of both arenas; the pass in the middle is the
//! steady step. A slot lives from the command that writes its bytes to the last one that reads them. Ops in
//! place give a slot another tensor, and go on with it.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::OpId;
use memc_plan::{Action, Command, Plan, Queue, Slice, Space};

use super::tensors::{Part, Tensors};

/// Cause of a tensor's bytes on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// They were there before the first step.
    Resident,
    Copied,
    Computed,
    Recomputed,
}

/// Bytes that hold one tensor. Commands are indices of the body.
#[derive(Clone, Debug)]
pub(super) struct Stay {
    pub(super) tensor: usize,
    pub(super) came: Came,
    /// `None`: it is there when the step begins.
    pub(super) from: Option<usize>,
    /// The command of the step before that it comes from.
    pub(super) before: Option<usize>,
    /// `None`: it is there when the step ends.
    pub(super) to: Option<usize>,
    /// First and last launch of the step that reads it.
    pub(super) uses: Option<(usize, usize)>,
    /// The last copy to the host.
    pub(super) out: Option<usize>,
}

/// A range of bytes with the tensors that follow one another in it.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) stays: Vec<Stay>,
}

/// The slots of a step, and the tensors that ops on the host write.
pub(super) struct Slots {
    pub(super) slots: Vec<Slot>,
    pub(super) hosted: BTreeSet<usize>,
}

/// A command of a pass.
type At = (u8, usize);

/// The pass that is recorded.
const STEADY: u8 = 1;
const PASSES: u8 = 3;
/// Before the first pass, and no command of it.
const BEFORE: At = (0, usize::MAX);

struct Open {
    tensor: usize,
    came: Came,
    from: Option<At>,
    used: At,
    uses: Option<(usize, usize)>,
    out: Option<usize>,
}

struct Range {
    bytes: u64,
    stays: Vec<Open>,
}

impl Range {
    fn steady(&self, last: usize) -> Vec<Stay> {
        let seen = |s: &&Open| s.used.0 >= STEADY && s.from.is_none_or(|(pass, _)| pass <= STEADY);
        let stay = |s: &Open| Stay {
            tensor: s.tensor,
            came: s.came,
            from: s.from.filter(|(pass, _)| *pass == STEADY).map(|(_, index)| index),
            before: s.from.filter(|(pass, _)| *pass < STEADY).map(|(_, index)| index),
            to: Some(s.used).filter(|(pass, index)| *pass == STEADY && *index < last).map(|(_, index)| index),
            uses: s.uses,
            out: s.out,
        };
        self.stays.iter().filter(seen).map(stay).collect()
    }
}

/// Contents of the arenas while the body is gone through.
struct Walk<'a, 'm> {
    plan: &'a Plan,
    tensors: &'a mut Tensors<'m>,
    /// The device arena: ranges by offset, which do not overlap.
    ranges: BTreeMap<u64, Range>,
    /// The host arena: tensors by offset.
    host: BTreeMap<u64, usize>,
    done: BTreeSet<OpId>,
    found: Slots,
}

/// The slots of a plan's body, by the time of their first command and by offset.
pub(super) fn slots(plan: &Plan, tensors: &mut Tensors<'_>) -> Slots {
    let found = Slots { slots: Vec::new(), hosted: BTreeSet::new() };
    let (ranges, host, done) = Default::default();
    let mut walk = Walk { plan, tensors, ranges, host, done, found };
    walk.prologue();
    for pass in 0..PASSES {
        walk.done.clear();
        for (index, command) in plan.body.iter().enumerate() {
            walk.command(command, (pass, index));
        }
        let on_device = plan.states.iter().map(|s| s.resident).filter(|slice| slice.space == Space::Dev);
        on_device.for_each(|slice| walk.read(slice, (pass, plan.body.len()), None));
    }
    for (offset, range) in std::mem::take(&mut walk.ranges) {
        walk.close(offset, &range);
    }
    let mut found = walk.found;
    let key = |slot: &Slot| (slot.stays.first().and_then(|stay| stay.from), slot.offset);
    found.slots.sort_by_key(key);
    found
}

impl Walk<'_, '_> {
    fn prologue(&mut self) {
        let plan = self.plan;
        for state in &plan.states {
            let tensor = self.tensors.named(&state.name, Part::Other);
            self.place(state.resident, tensor, Came::Resident, BEFORE, true);
        }
        for command in &plan.prologue {
            if let Action::Copy { src, dst } = command.action {
                let tensor = self.held(src);
                self.place(dst, tensor, Came::Resident, BEFORE, true);
            }
        }
    }

    fn command(&mut self, command: &Command, at: At) {
        match &command.action {
            Action::Launch { kernel, reads, writes, workspace } => {
                for slice in reads {
                    self.read(*slice, at, Some(at.1));
                }
                let op = self.plan.kernels.get(super::index(*kernel)).map_or("op", |k| k.op.mnemonic());
                let label = if command.label.is_empty() { op } else { &command.label };
                let (results, id) = self.tensors.results(label, writes.len());
                let again = id.is_some_and(|id| !self.done.insert(id));
                let came = if again { Came::Recomputed } else { Came::Computed };
                for (slice, tensor) in writes.iter().zip(results) {
                    self.place(*slice, tensor, came, at, false);
                    if command.queue == Queue::CPU {
                        self.found.hosted.insert(tensor);
                    }
                }
                if let Some(slice) = workspace {
                    let tensor = self.tensors.named(&format!("workspace of {label}"), Part::Workspace);
                    self.place(*slice, tensor, came, at, false);
                }
            }
            Action::Copy { src, dst } => {
                let tensor = self.held(*src);
                self.read(*src, at, None);
                self.place(*dst, tensor, Came::Copied, at, false);
            }
            Action::Free { slice } if slice.space == Space::Dev => self.clear(*slice),
            Action::HostWrite { input } => {
                if let Some(input) = self.plan.inputs.get(super::index(*input)) {
                    let tensor = self.tensors.named(&input.name, Part::Inputs);
                    self.place(input.slot, tensor, Came::Resident, at, false);
                }
            }
            _ => {}
        }
    }

    /// Offsets of the ranges that a slice overlaps.
    fn within(&self, slice: Slice) -> Vec<u64> {
        let end = slice.offset.saturating_add(slice.bytes);
        let before = self.ranges.range(..end).rev();
        let overlaps = |(offset, range): &(&u64, &Range)| offset.saturating_add(range.bytes) > slice.offset;
        before.take_while(overlaps).map(|(offset, _)| *offset).collect()
    }

    /// The tensor in a slice.
    fn held(&mut self, slice: Slice) -> usize {
        let known = match slice.space {
            Space::Host => self.host.get(&slice.offset).copied(),
            Space::Dev => {
                let offset = self.within(slice).first().copied();
                let range = offset.and_then(|offset| self.ranges.get(&offset));
                range.and_then(|range| range.stays.last()).map(|stay| stay.tensor)
            }
        };
        known.unwrap_or_else(|| self.tensors.named(&slice.to_string(), Part::Other))
    }

    fn read(&mut self, slice: Slice, at: At, launch: Option<usize>) {
        if slice.space != Space::Dev || slice.bytes == 0 {
            return;
        }
        for offset in self.within(slice) {
            let Some(stay) = self.ranges.get_mut(&offset).and_then(|range| range.stays.last_mut()) else {
                continue;
            };
            stay.used = at;
            if at.0 == STEADY && at.1 < self.plan.body.len() {
                match launch {
                    Some(index) => stay.uses = Some((stay.uses.map_or(index, |uses| uses.0), index)),
                    None => stay.out = Some(at.1),
                }
            }
        }
    }

    /// Puts a tensor into a slice; `first`: before the first step.
    fn place(&mut self, slice: Slice, tensor: usize, came: Came, at: At, first: bool) {
        if slice.bytes == 0 {
            return;
        }
        if slice.space == Space::Host {
            self.host.insert(slice.offset, tensor);
            return;
        }
        let from = (!first).then_some(at);
        let new = Open { tensor, came, from, used: at, uses: None, out: None };
        if let Some(range) = self.ranges.get_mut(&slice.offset).filter(|range| range.bytes == slice.bytes)
            && let Some(stay) = range.stays.last_mut().filter(|stay| stay.used == at)
        {
            // The op read these bytes, too: it works in place.
            if stay.tensor != tensor {
                range.stays.push(new);
            }
            return;
        }
        self.clear(slice);
        self.ranges.insert(slice.offset, Range { bytes: slice.bytes, stays: vec![new] });
    }

    fn clear(&mut self, slice: Slice) {
        for offset in self.within(slice) {
            if let Some(range) = self.ranges.remove(&offset) {
                self.close(offset, &range);
            }
        }
    }

    /// Notes a range where the steady step sees it.
    fn close(&mut self, offset: u64, range: &Range) {
        let stays = range.steady(self.plan.body.len());
        if !stays.is_empty() {
            self.found.slots.push(Slot { offset, bytes: range.bytes, stays });
        }
    }
}
