//! Offsets for the slots of a trace.

use crate::place::{Slot, Space};

/// Gives every slot of an arena without an offset one: largest first, each in the tightest gap.
pub(crate) fn pack(slots: &mut [Slot], space: Space) -> Result<(), String> {
    let mut order: Vec<usize> =
        (0..slots.len()).filter(|&i| slots[i].space == space && !slots[i].live.is_empty()).collect();
    let (fixed, mut open): (Vec<usize>, Vec<usize>) =
        order.drain(..).partition(|&i| slots[i].offset.is_some());
    open.sort_by_key(|&i| (std::cmp::Reverse(slots[i].bytes), slots[i].live[0], i));
    let mut placed = fixed;
    placed.sort_by_key(|&i| slots[i].offset);
    for i in open {
        let mut top = 0;
        let mut best: Option<(u64, u64)> = None;
        for &j in &placed {
            let meets = slots[i].live.iter().any(|a| slots[j].live.iter().any(|b| a.0 < b.1 && b.0 < a.1));
            if !meets {
                continue;
            }
            let at = slots[j].offset.unwrap_or(0);
            if at >= top && at - top >= slots[i].bytes && best.is_none_or(|(s, _)| at - top < s) {
                best = Some((at - top, top));
            }
            top = top.max(at + slots[j].bytes);
        }
        let at = best.map_or(top, |b| b.1);
        slots[i].offset = Some(at);
        let k = placed.partition_point(|&j| slots[j].offset.unwrap_or(0) <= at);
        placed.insert(k, i);
    }
    Ok(())
}
