//! The modelled timeline of a mem-phase module: three streams, each in order, and the awaits between them.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::{Code, Id, Module, OpId, Stream, Traffic};

use crate::device::DeviceProfile;

/// What a steady-state step costs, by the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evaluation {
    /// Time from one step to the next in ns.
    pub step_ns: u64,
    /// Busy time of the kernels in ns, recomputation included.
    pub compute_ns: u64,
    /// Time of the recomputed kernels in ns.
    pub recompute_ns: u64,
    /// Kernels and copies.
    pub traffic: Traffic,
}

/// Steps simulated before the one that counts.
const WARM_UP: usize = 2;

/// Simulates a synchronised module on a device.
///
/// The host waits for the outputs at the end of every step, as the lowered plan does.
pub fn evaluate(m: &Module, profile: &DeviceProfile) -> Evaluation {
    let times: Vec<u64> = m.order.iter().map(|&op| time(m, profile, op)).collect();
    let of = |wanted: &dyn Fn(OpId) -> bool| {
        m.order.iter().zip(&times).filter(|(op, _)| wanted(**op)).map(|(_, ns)| ns).sum()
    };
    let compute = |op: OpId| m.ops[op].stream() == Some(Stream::Compute);
    let outputs: BTreeSet<OpId> = m.outputs.iter().filter_map(|o| m.def_op(o.value)).collect();
    let mut free: BTreeMap<Stream, u64> = BTreeMap::new();
    let mut done = vec![0u64; m.ops.len()];
    let mut ends = Vec::new();
    let mut issued = 0;
    for _ in 0..=WARM_UP {
        let previous = done.clone();
        let mut arrived = issued;
        for (&op, &time) in m.order.iter().zip(&times) {
            let Some(stream) = m.ops[op].stream().filter(|_| !m.ops[op].is_view()) else { continue };
            let ready = m.ops[op]
                .awaits
                .iter()
                .map(|a| if a.previous { previous[a.op.index()] } else { done[a.op.index()] });
            let start = ready.max().unwrap_or(0).max(issued).max(free.get(&stream).copied().unwrap_or(0));
            done[op.index()] = start + time;
            free.insert(stream, start + time);
            if outputs.contains(&op) {
                arrived = arrived.max(start + time);
            }
        }
        issued = arrived;
        ends.push(free.values().copied().max().unwrap_or(0).max(arrived));
    }
    Evaluation {
        step_ns: ends[WARM_UP] - ends[WARM_UP - 1],
        compute_ns: of(&compute),
        recompute_ns: of(&|op| m.is_recompute(op)),
        traffic: m.traffic(),
    }
}

/// Modelled time of an op in ns.
fn time(m: &Module, profile: &DeviceProfile, id: OpId) -> u64 {
    let op = &m.ops[id];
    let bytes = || op.results.iter().map(|&v| m.values[v].ty.bytes()).sum();
    match &op.code {
        Code::Compute(_) if op.is_view() => 0,
        Code::Compute(kind) => profile.op_ns(kind, &m.operand_types(id), &m.result_types(id)),
        Code::SwapOut => profile.d2h_ns(bytes()).unwrap_or(0),
        Code::SwapIn => profile.h2d_ns(bytes()).unwrap_or(0),
        Code::Alloc(_) | Code::Free(_) => 0,
    }
}
