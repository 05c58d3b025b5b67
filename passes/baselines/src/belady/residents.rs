//! The persistent tensors that live on the device: SwapAdvisor's double pass (section 4.2).
//!
//! Belady's rule over two consecutive steps in bytes alone. A parameter that the second pass evicts is
//! swapped every step; the others never leave.

use std::collections::BTreeSet;

use memc_planner::Problem;

/// Tensors that a byte-only Belady pass over two steps never evicts in the second: they stay on the device.
pub(super) fn residents(p: &Problem, capacity: u64) -> BTreeSet<u32> {
    let n = p.ops.len() as u64;
    let tensor = |t: u32| &p.tensors[t as usize];
    // Positions count on through the second step, so that the wrap-around gap of a persistent tensor counts.
    let next = |t: u32, pass: u64, at: u32| match tensor(t).next_touch(at) {
        Some(i) => pass * n + u64::from(i),
        None if tensor(t).persistent() => {
            tensor(t).touches.first().map_or(u64::MAX, |&i| (pass + 1) * n + u64::from(i))
        }
        None => u64::MAX,
    };
    // What is on the device, by next touch: a key changes only when its tensor is touched.
    let mut key: Vec<Option<u64>> = vec![None; p.tensors.len()];
    let mut on: BTreeSet<(u64, u64, u32)> = BTreeSet::new();
    let mut used = 0u64;
    let mut evicted: BTreeSet<u32> = BTreeSet::new();
    for pass in 0..2 {
        evicted.clear();
        for i in 0..p.ops.len() {
            let set = p.working_set(i);
            for &t in &set {
                match key[t as usize].take() {
                    Some(k) => drop(on.remove(&(k, tensor(t).bytes, t))),
                    None => used += tensor(t).bytes,
                }
            }
            while used + p.ops[i].workspace > capacity {
                let Some((_, bytes, victim)) = on.pop_last() else { break };
                key[victim as usize] = None;
                used -= bytes;
                evicted.insert(victim);
            }
            for &t in &set {
                let k = next(t, pass, i as u32);
                if k == u64::MAX {
                    used -= tensor(t).bytes;
                } else {
                    key[t as usize] = Some(k);
                    on.insert((k, tensor(t).bytes, t));
                }
            }
        }
    }
    let persistent = (0..p.tensors.len() as u32).filter(|&t| tensor(t).persistent());
    persistent.filter(|t| key[*t as usize].is_some() && !evicted.contains(t)).collect()
}
