//! The modelled timeline of a mem-phase module: three streams, each in order, and the awaits between them.

use std::collections::BTreeMap;

use memc_ir::{Code, Id, Module, OpId, OpKind, Stream};

use super::storage::is_view;
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
    /// Recomputed kernels, copies not counted.
    pub recompute_ops: u64,
    /// Bytes copied to the host, except outputs.
    pub swap_out_bytes: u64,
    /// Bytes copied to the device, except inputs.
    pub swap_in_bytes: u64,
    /// Kernels.
    pub ops: u64,
}

/// Steps simulated before the one that counts.
const WARM_UP: usize = 2;

/// Simulates a synchronised module on a device.
///
/// The host waits for the outputs at the end of every step, as the lowered plan does.
pub fn evaluate(m: &Module, profile: &DeviceProfile) -> Evaluation {
    let mut e = Evaluation::default();
    let times: Vec<u64> = m.order.iter().map(|&op| account(m, profile, op, &mut e)).collect();
    let output = |op: OpId| m.outputs.iter().any(|o| m.def_op(o.value) == Some(op));
    let mut free: BTreeMap<Stream, u64> = BTreeMap::new();
    let mut done = vec![0u64; m.ops.len()];
    let mut ends = Vec::new();
    let mut issued = 0;
    for _ in 0..=WARM_UP {
        let previous = done.clone();
        let mut outputs = issued;
        for (&op, &time) in m.order.iter().zip(&times) {
            let Some(stream) = m.ops[op].stream().filter(|_| !is_view(m, op)) else { continue };
            let ready = m.ops[op]
                .awaits
                .iter()
                .map(|a| if a.previous { previous[a.op.index()] } else { done[a.op.index()] });
            let start = ready.max().unwrap_or(0).max(issued).max(free.get(&stream).copied().unwrap_or(0));
            done[op.index()] = start + time;
            free.insert(stream, start + time);
            if output(op) {
                outputs = outputs.max(start + time);
            }
        }
        issued = outputs;
        ends.push(free.values().copied().max().unwrap_or(0).max(outputs));
    }
    e.step_ns = ends[WARM_UP] - ends[WARM_UP - 1];
    e
}

fn account(m: &Module, profile: &DeviceProfile, id: OpId, e: &mut Evaluation) -> u64 {
    let op = &m.ops[id];
    let bytes: u64 = m.result_types(id).iter().map(|t| t.bytes()).sum();
    match &op.code {
        Code::Compute(_) if is_view(m, id) => 0,
        Code::Compute(kind) => {
            let time = profile.kernel_ns(&kind.cost(&m.operand_types(id), &m.result_types(id)));
            e.ops += 1;
            e.compute_ns += time;
            let copy = *kind == OpKind::Copy {};
            if op.clone_of.is_some() && !copy {
                e.recompute_ns += time;
                e.recompute_ops += 1;
            }
            time
        }
        Code::SwapOut => {
            if !op.results.iter().any(|r| m.outputs.iter().any(|o| o.value == *r)) {
                e.swap_out_bytes += bytes;
            }
            profile.d2h_ns(bytes)
        }
        Code::SwapIn => {
            if !op.operands.iter().any(|&v| matches!(m.values[v].def, memc_ir::Def::Input(_))) {
                e.swap_in_bytes += bytes;
            }
            profile.h2d_ns(bytes)
        }
        Code::Alloc(_) | Code::Free(_) => 0,
    }
}
