//! Tensors that may be swapped where host memory is short: the dearest to recompute, as many as have room.

use std::collections::BTreeSet;

use memc_planner::{CommandKind, Problem, Schedule, Tensor, TensorId, TensorKind};

/// The tensors that a plan swaps.
fn swapped(p: &Problem, plan: &Schedule) -> BTreeSet<TensorId> {
    let moved = plan.trace.commands.values().filter_map(|c| match c.kind {
        CommandKind::In(t) | CommandKind::Out(t) => Some(t),
        _ => None,
    });
    moved.filter(|&t| !p.tensors[t].kind.arrives()).collect()
}

/// Bytes of all tensors that a plan swaps.
pub(crate) fn swapped_bytes(p: &Problem, plan: &Schedule) -> u64 {
    swapped(p, plan).into_iter().map(|t| p.tensors[t].bytes).sum()
}

/// The largest tensor that a plan swaps.
pub(crate) fn largest<'a>(p: &'a Problem, plan: &Schedule) -> Option<&'a Tensor> {
    swapped(p, plan).into_iter().map(|t| &p.tensors[t]).max_by_key(|t| t.bytes)
}

/// Names of the tensors that a plan swaps, the dearest first, whose bytes together are at most `room`. States
/// come before what can be recomputed, and that by the time that it takes for its bytes.
pub(crate) fn dearest(p: &Problem, plan: &Schedule, room: u64) -> BTreeSet<String> {
    // Time of recomputing a KiB, in ns; none for what cannot be.
    let again_ns = |t: TensorId| {
        let tensor = &p.tensors[t];
        let maker = tensor.writes.last().filter(|_| tensor.kind == TensorKind::Transient)?;
        let op = &p.ops[*maker];
        op.repeatable.then(|| op.time_ns.saturating_mul(1024) / tensor.bytes.max(1))
    };
    let mut moved: Vec<TensorId> = swapped(p, plan).into_iter().collect();
    moved.sort_by_key(|&t| std::cmp::Reverse(again_ns(t).unwrap_or(u64::MAX)));
    let mut left = room;
    let mut names = BTreeSet::new();
    for t in moved {
        let tensor = &p.tensors[t];
        if tensor.bytes <= left {
            left -= tensor.bytes;
            names.insert(tensor.name.clone());
        }
    }
    names
}
