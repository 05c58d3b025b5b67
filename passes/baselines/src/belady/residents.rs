//! The persistent tensors that live on the device: SwapAdvisor's double pass (section 4.2).
//!
//! Belady's rule over two consecutive steps in bytes alone. A parameter that the second pass evicts is
//! swapped every step; the others never leave.

use std::collections::BTreeSet;

use memc_ir::Arena;
use memc_planner::{OpPos, Problem, TensorId};

/// Tensors that a byte-only Belady pass over two steps never evicts in the second: they stay on the device.
pub(super) fn residents(p: &Problem, capacity: u64) -> BTreeSet<TensorId> {
    let n = p.ops.len() as u64;
    let tensor = |t: TensorId| &p.tensors[t];
    // Positions count on through the second step, so that the wrap-around gap of a persistent tensor counts.
    let next = |t: TensorId, pass: u64, at: OpPos| match tensor(t).next_touch(at) {
        Some(i) => pass * n + u64::from(i.0),
        None if tensor(t).persistent() => {
            tensor(t).touches.first().map_or(u64::MAX, |&i| (pass + 1) * n + u64::from(i.0))
        }
        None => u64::MAX,
    };
    // Tensors on the device, by next touch: a key changes only when its tensor is touched.
    let mut key: Arena<TensorId, Option<u64>> = Arena::filled(None, p.tensors.len());
    let mut on: BTreeSet<(u64, u64, TensorId)> = BTreeSet::new();
    let mut used = 0u64;
    let mut evicted: BTreeSet<TensorId> = BTreeSet::new();
    for pass in 0..2 {
        evicted.clear();
        for i in p.ops.ids() {
            let set = p.working_set(i);
            for &t in &set {
                match key[t].take() {
                    Some(k) => drop(on.remove(&(k, tensor(t).bytes, t))),
                    None => used += tensor(t).bytes,
                }
            }
            while used + p.ops[i].workspace > capacity {
                let Some((_, bytes, victim)) = on.pop_last() else { break };
                key[victim] = None;
                used -= bytes;
                evicted.insert(victim);
            }
            for &t in &set {
                let k = next(t, pass, i);
                if k == u64::MAX {
                    used -= tensor(t).bytes;
                } else {
                    key[t] = Some(k);
                    on.insert((k, tensor(t).bytes, t));
                }
            }
        }
    }
    let persistent = p.tensors.ids().filter(|&t| tensor(t).persistent());
    persistent.filter(|t| key[*t].is_some() && !evicted.contains(t)).collect()
}
