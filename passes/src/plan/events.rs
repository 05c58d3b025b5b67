//! Events: the completions on other streams that every op has to wait for, from the bytes that ops touch
//! after allocation.

use std::fmt;

use memc_ir::{Arena, ByteRange, Id, Module, OpId, SlotId, Stream, Wait};
use memc_planner::{Access, CommandIx, waits};

/// A slot that has no offset yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoOffset(SlotId);

impl fmt::Display for NoOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} has no offset\nhint: run `alloc` first", self.0.index())
    }
}

/// Replaces all waits by those that the allocation needs.
///
/// Fails when a slot has no offset.
pub(crate) fn place_waits(m: &mut Module) -> Result<(), NoOffset> {
    let runs = |&op: &OpId| m.ops[op].stream().is_some() && !m.ops[op].is_view();
    let commands: Arena<CommandIx, OpId> = m.order.iter().copied().filter(runs).collect();
    let accesses = commands.values().map(|&op| access(m, op)).collect::<Result<_, NoOffset>>()?;
    for (&op, list) in commands.values().zip(waits(&accesses).into_values()) {
        let mut list: Vec<Wait> =
            list.into_iter().map(|a| Wait { op: commands[a.command], previous: a.previous }).collect();
        list.sort_unstable();
        m.ops[op].waits = list;
    }
    Ok(())
}

fn access(m: &Module, id: OpId) -> Result<Access, NoOffset> {
    let op = &m.ops[id];
    let ranges = |slots: &mut dyn Iterator<Item = SlotId>| -> Result<Vec<ByteRange>, NoOffset> {
        slots.map(|slot| range(m, slot)).collect()
    };
    Ok(Access {
        stream: op.stream().unwrap_or(Stream::Compute),
        reads: ranges(&mut op.operands.iter().filter_map(|&v| m.slot_of(v)))?,
        writes: ranges(&mut op.slots.iter().copied().chain(op.workspace))?,
        // The results of a module are written by the ops that hand them out.
        after: None,
    })
}

fn range(m: &Module, slot: SlotId) -> Result<ByteRange, NoOffset> {
    let place = &m.slots[slot];
    let start = place.offset.ok_or(NoOffset(slot))?;
    Ok(ByteRange { space: place.space, start, end: start + place.bytes })
}
