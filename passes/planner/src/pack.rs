//! Offsets for the slots of a trace.

use memc_alloc::{Algorithm, Buffer, Instance, Options, Range, check, place, solve};

use memc_ir::Arena;

use crate::error::DecisionsError;
use crate::ids::{SlotIx, Tick};
use crate::place::{Slot, Space};
use crate::problem::ALIGN;

/// Gives every slot of an arena without an offset one.
///
/// When `stop` says so, the best layout so far is taken.
pub(crate) fn pack(
    slots: &mut Arena<SlotIx, Slot>,
    space: Space,
    options: &Options,
    stop: &dyn Fn() -> bool,
) -> Result<(), DecisionsError> {
    let split = split(slots, space);
    let capacity = options.capacity.map(|c| c.saturating_sub(split.base));
    let instance = instance(slots, &split.others)?;
    let solution = solve(&instance, &Options { capacity, ..*options }, stop);
    settle(slots, &split, &instance, &solution.offsets)
}

/// Gives every slot of an arena the offset that one algorithm chooses, and returns the height.
pub(crate) fn pack_by(
    slots: &mut Arena<SlotIx, Slot>,
    space: Space,
    algorithm: Algorithm,
) -> Result<u64, DecisionsError> {
    let split = split(slots, space);
    let instance = instance(slots, &split.others)?;
    let solution = place(&instance, algorithm);
    settle(slots, &split, &instance, &solution.offsets)?;
    Ok(split.base + solution.height)
}

/// The slots of an arena that are ever taken.
struct Split {
    /// Those that live throughout, which overlap with all: stacked at the bottom, they cost nobody a byte.
    throughout: Vec<SlotIx>,
    /// Bytes of these.
    base: u64,
    others: Vec<SlotIx>,
}

fn split(slots: &Arena<SlotIx, Slot>, space: Space) -> Split {
    let taken = |i: &SlotIx| slots[*i].space == space && !slots[*i].live.is_empty();
    let mut split = Split { throughout: Vec::new(), base: 0, others: slots.ids().filter(taken).collect() };
    if split.others.iter().any(|&i| slots[i].offset.is_some()) {
        return split;
    }
    let ends = || split.others.iter().flat_map(|&i| &slots[i].live).map(|r| r.1);
    let (first, last) = (ends().min().unwrap_or_default(), ends().max().unwrap_or_default());
    // Before anything ends, and until all ends.
    let throughout = |&&i: &&SlotIx| matches!(slots[i].live[..], [(from, to)] if from < first && to == last);
    let (throughout, others) = split.others.iter().partition(throughout);
    (split.throughout, split.others) = (throughout, others);
    split.base = split.throughout.iter().map(|&i| slots[i].bytes).sum();
    split
}

/// Slots as buffers.
fn instance(slots: &Arena<SlotIx, Slot>, mine: &[SlotIx]) -> Result<Instance, DecisionsError> {
    let buffer = |&i: &SlotIx| {
        let range = |&(from, to): &(Tick, Tick)| Range { start: from.0.into(), end: to.0.into() };
        let live = slots[i].live.iter().map(range).collect();
        Buffer { live, bytes: slots[i].bytes, align: ALIGN, offset: slots[i].offset }
    };
    let buffers: Vec<Buffer> = mine.iter().map(buffer).collect();
    Instance::new(buffers).map_err(|e| format!("the slots of the decisions: {e}").into())
}

fn settle(
    slots: &mut Arena<SlotIx, Slot>,
    split: &Split,
    instance: &Instance,
    offsets: &[u64],
) -> Result<(), DecisionsError> {
    check(instance, offsets).map_err(|e| format!("the offsets of the decisions: {e}"))?;
    let mut at = 0;
    for &i in &split.throughout {
        slots[i].offset = Some(at);
        at += slots[i].bytes;
    }
    for (&i, offset) in split.others.iter().zip(offsets) {
        slots[i].offset = Some(split.base + offset);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TensorId;
    use crate::place::Site;

    fn slot(bytes: u64, live: &[(u32, u32)]) -> Slot {
        Slot {
            space: Space::Dev,
            bytes,
            offset: None,
            live: live.iter().map(|&(from, to)| (Tick(from), Tick(to))).collect(),
            tensor: None,
            site: Site::Resident(TensorId(0)),
        }
    }

    fn offsets(slots: &Arena<SlotIx, Slot>) -> Vec<Option<u64>> {
        slots.values().map(|s| s.offset).collect()
    }

    /// Slots that live throughout are at the bottom, the others share the bytes above them.
    #[test]
    fn what_lives_throughout_is_below_the_others() {
        let mut slots =
            vec![slot(512, &[(2, 4)]), slot(256, &[(0, 9)]), slot(512, &[(4, 9)]), slot(256, &[(1, 9)])]
                .into();
        let height = pack_by(&mut slots, Space::Dev, Algorithm::BestFit).expect("it can be laid out");
        assert_eq!(height, 1024);
        assert_eq!(offsets(&slots), [Some(512), Some(0), Some(512), Some(256)]);
    }

    /// Offsets that are given stay.
    #[test]
    fn given_offsets_stay() {
        let mut slots: Arena<SlotIx, Slot> = vec![slot(256, &[(0, 9)]), slot(256, &[(0, 9)])].into();
        slots[SlotIx(0)].offset = Some(256);
        pack(&mut slots, Space::Dev, &Options::effort(0), &|| false).expect("it can be laid out");
        assert_eq!(offsets(&slots), [Some(256), Some(0)]);
    }
}
