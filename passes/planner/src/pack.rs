//! Offsets for the slots of a trace.

use memc_layout::{Buffer, Instance, Options, Range, check, solve};

use crate::place::{Slot, Space};
use crate::problem::ALIGN;

/// Gives every slot of an arena without an offset one; `room`: a height that is low enough, and the work to spend on
/// reaching it.
pub(crate) fn pack(slots: &mut [Slot], space: Space, room: (Option<u64>, u64)) -> Result<(), String> {
    let mine: Vec<usize> =
        (0..slots.len()).filter(|&i| slots[i].space == space && !slots[i].live.is_empty()).collect();
    let buffer = |&i: &usize| {
        let range = |&(start, end): &(u32, u32)| Range { start: start.into(), end: end.into() };
        let live = slots[i].live.iter().map(range).collect();
        Buffer { live, bytes: slots[i].bytes, align: ALIGN, offset: slots[i].offset }
    };
    let buffers: Vec<Buffer> = mine.iter().map(buffer).collect();
    let instance = Instance::new(buffers).map_err(|e| format!("the slots of the script: {e}"))?;
    let options = Options { capacity: room.0, work: room.1, seed: 0 };
    let solution = solve(&instance, &options, &|| false);
    check(&instance, &solution.offsets).map_err(|e| format!("the offsets of the script: {e}"))?;
    for (&i, offset) in mine.iter().zip(solution.offsets) {
        slots[i].offset = Some(offset);
    }
    Ok(())
}
