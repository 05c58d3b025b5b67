//! Allocation: offsets for the slots of a mem-phase module.
//!
//! Every slot is a buffer of `memc-alloc`: its bytes by its live range in order positions, and no two of one
//! arena may overlap. Slots that already have an offset stay where they are.

use memc_alloc::{Algorithm, Buffer, Instance, InstanceError, Options, Solution};
use memc_ir::{Code, Id, Module, SLOT_ALIGN, SlotId, Space};

use crate::Contradiction;

/// Steps of search for a lower allocation than the quick ones, per arena: some milliseconds.
const WORK: u64 = 1 << 18;

/// Sizes of an allocation in bytes: of the device arena and of the host arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaSizes {
    /// One past the last byte used.
    pub height: [u64; 2],
    /// The most bytes in use at once.
    pub load: [u64; 2],
}

/// Gives every slot without an offset one by one algorithm. Fails where slots with an offset overlap.
pub fn allocate(m: &mut Module, algorithm: Algorithm) -> Result<ArenaSizes, Contradiction> {
    both(m, &|instance| memc_alloc::place(instance, algorithm))
}

/// Gives every slot without an offset one, by whatever algorithm gives the lowest arenas, and a short search.
pub fn lowest(m: &mut Module) -> Result<ArenaSizes, Contradiction> {
    let options = Options { work: WORK, ..Options::effort(0) };
    both(m, &|instance| memc_alloc::solve(instance, &options, &|| false))
}

fn both(m: &mut Module, solve: &dyn Fn(&Instance) -> Solution) -> Result<ArenaSizes, Contradiction> {
    let ranges = live_ranges(m);
    let mut sizes = ArenaSizes { height: [0; 2], load: [0; 2] };
    for (i, space) in [Space::Dev, Space::Host].into_iter().enumerate() {
        let (slots, instance) = instance(m, space, &ranges)?;
        let solution = solve(&instance);
        for (slot, offset) in slots.into_iter().zip(solution.offsets) {
            m.slots[slot].offset = Some(offset);
        }
        (sizes.height[i], sizes.load[i]) = (solution.height, solution.load);
    }
    Ok(sizes)
}

/// The slots of an arena that are in use, and their buffers.
fn instance(
    m: &Module,
    space: Space,
    ranges: &[Option<(usize, usize)>],
) -> Result<(Vec<SlotId>, Instance), Contradiction> {
    let (mut slots, mut buffers) = (Vec::new(), Vec::new());
    for (slot, place) in m.slots.iter().filter(|(_, place)| place.space == space) {
        let Some((first, end)) = ranges[slot.index()] else { continue };
        let mut buffer = Buffer::new(first as u64, end as u64, memc_ir::aligned(place.bytes));
        (buffer.align, buffer.offset) = (SLOT_ALIGN, place.offset);
        slots.push(slot);
        buffers.push(buffer);
    }
    let name = |i: usize| slots.get(i).map_or(String::new(), |&slot| memc_ir::slot_name(m, slot));
    let instance = Instance::new(buffers).map_err(|e| match e {
        InstanceError::Overlap(i, j) => {
            format!("slots {} and {} share bytes while both are in use", name(i), name(j))
        }
        e => format!("slot {}: {e}", name(e.buffer())),
    })?;
    Ok((slots, instance))
}

/// For every slot the half-open range of order positions in which its bytes are in use.
fn live_ranges(m: &Module) -> Vec<Option<(usize, usize)>> {
    let end = m.order.len() + 1;
    let mut range: Vec<Option<(usize, usize)>> = vec![None; m.slots.len()];
    // A resident slot keeps its place while its tensor is away.
    let mut resident = vec![false; m.slots.len()];
    for slot in m.resident_slots().filter_map(|(_, slot)| slot) {
        range[slot.index()] = Some((0, end));
        resident[slot.index()] = true;
    }
    for (i, &op) in m.order.iter().enumerate() {
        match m.ops[op].code {
            Code::Alloc(s) | Code::Free(s) if resident[s.index()] => {}
            Code::Alloc(s) => range[s.index()] = Some((i, end)),
            Code::Free(s) => range[s.index()] = range[s.index()].map(|(first, _)| (first, i)),
            _ => {}
        }
    }
    range
}
