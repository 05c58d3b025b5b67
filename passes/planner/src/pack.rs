//! Offsets for the slots of a trace.

use memc_layout::{Algorithm, Buffer, Instance, Options, Range, check, place, solve};

use crate::place::{Slot, Space};
use crate::problem::ALIGN;

/// Gives every slot of an arena without an offset one.
pub(crate) fn pack(slots: &mut [Slot], space: Space, options: &Options) -> Result<(), String> {
    let (mine, instance) = instance(slots, space)?;
    let solution = solve(&instance, options, &|| false);
    settle(slots, &mine, &instance, solution.offsets)
}

/// Gives every slot of an arena the offset that one algorithm chooses, and returns the height.
pub(crate) fn pack_by(slots: &mut [Slot], space: Space, algorithm: Algorithm) -> Result<u64, String> {
    let (mine, instance) = instance(slots, space)?;
    let solution = place(&instance, algorithm);
    settle(slots, &mine, &instance, solution.offsets)?;
    Ok(solution.height)
}

/// The slots of an arena that are ever taken, as buffers.
fn instance(slots: &[Slot], space: Space) -> Result<(Vec<usize>, Instance), String> {
    let mine: Vec<usize> =
        (0..slots.len()).filter(|&i| slots[i].space == space && !slots[i].live.is_empty()).collect();
    let buffer = |&i: &usize| {
        let range = |&(start, end): &(u32, u32)| Range { start: start.into(), end: end.into() };
        let live = slots[i].live.iter().map(range).collect();
        Buffer { live, bytes: slots[i].bytes, align: ALIGN, offset: slots[i].offset }
    };
    let buffers: Vec<Buffer> = mine.iter().map(buffer).collect();
    let instance = Instance::new(buffers).map_err(|e| format!("the slots of the script: {e}"))?;
    Ok((mine, instance))
}

fn settle(slots: &mut [Slot], mine: &[usize], instance: &Instance, offsets: Vec<u64>) -> Result<(), String> {
    check(instance, &offsets).map_err(|e| format!("the offsets of the script: {e}"))?;
    for (&i, offset) in mine.iter().zip(offsets) {
        slots[i].offset = Some(offset);
    }
    Ok(())
}
