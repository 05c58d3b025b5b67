//! Pools of blocks of one size: the simplest reuse, as in allocators with size classes.

use crate::compact::Compact;

/// Smallest block in bytes.
const SMALLEST: u64 = 64;

/// Rounds sizes up to powers of two and reuses blocks of the same class that are free. Holes in live ranges
/// are not used.
pub(crate) fn size_classes(c: &Compact) -> Vec<u64> {
    let mut offsets: Vec<u64> = c.fixed.iter().map(|at| at.unwrap_or(0)).collect();
    let fixed = c.fixed.iter().zip(&c.size).filter_map(|(at, size)| at.map(|at| at + size));
    let mut top = fixed.max().unwrap_or(0);
    let mut order: Vec<usize> = (0..c.len()).filter(|&b| c.fixed[b].is_none()).collect();
    order.sort_by_key(|&b| (c.hull(b).0, b));
    // For every class: free from this section on, offset. Blocks are reused in order of their making.
    let mut blocks: std::collections::BTreeMap<u64, Vec<(u32, u64)>> = std::collections::BTreeMap::new();
    for b in order {
        let (first, end) = c.hull(b);
        let class = c.size[b].max(c.align[b]).next_power_of_two().max(SMALLEST);
        let pool = blocks.entry(class).or_default();
        let free = pool.iter_mut().find(|block| block.0 <= first && block.1 % c.align[b] == 0);
        offsets[b] = match free {
            Some(block) => {
                block.0 = end;
                block.1
            }
            None => {
                let at = top.div_ceil(c.align[b]) * c.align[b];
                pool.push((end, at));
                top = at + class;
                at
            }
        };
    }
    offsets
}
