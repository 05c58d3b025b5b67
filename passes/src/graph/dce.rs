//! Dead code elimination: ops that no output and no next state depends on, and constants that no op reads.
//!
//! Producers export far more than a step needs (masks, statistics, shape arithmetic). A dead op would be
//! computed and a dead constant uploaded in every step, and both would count towards the peak.

use memc_ir::{Id, Module, OpId, Phase, ValueId};

use super::compact::compact;
use crate::{Options, PassCx, PassDef, PassError};

pub(crate) const PASS: PassDef = PassDef {
    name: "dce",
    summary: "drop ops and constants that no output or next state depends on",
    phases: (Phase::Graph, Phase::Graph),
    options: &[],
    run,
};

fn run(m: &mut Module, _options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let consts = m.consts.len();
    let dropped = sweep(m);
    compact(m);
    cx.stats.push(("dce", "ops dropped".into(), dropped));
    cx.stats.push(("dce", "constants dropped".into(), (consts - m.consts.len()) as u64));
    Ok(())
}

/// Takes ops without a live result out of the order, and returns how many there were.
pub(super) fn sweep(m: &mut Module) -> u64 {
    let mut live = vec![false; m.values.len()];
    let roots: Vec<ValueId> = m.roots().collect();
    for v in roots {
        live[v.index()] = true;
    }
    let mut kept: Vec<OpId> = Vec::with_capacity(m.order.len());
    for &id in m.order.iter().rev() {
        let op = &m.ops[id];
        if op.results.iter().any(|v| live[v.index()]) {
            for v in &op.operands {
                live[v.index()] = true;
            }
            kept.push(id);
        }
    }
    kept.reverse();
    let dropped = m.order.len() - kept.len();
    m.order = kept;
    dropped as u64
}
