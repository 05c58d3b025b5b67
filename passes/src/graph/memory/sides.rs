//! The two halves of a step, and the values that the first saves for the second.

use memc_ir::{Def, Id, Module, OpId, OutputRole, Role, ValueId, aligned};

use crate::plan::storage::base;

/// The ops of the backward pass.
///
/// The backward pass is the ops on which gradients, parameters and optimizer states depend and the losses do
/// not, and all ops that depend on them. All other ops are forward: they can run before the first gradient. A
/// module without an output of role `loss` is forward throughout.
pub(super) struct Sides {
    backward: Vec<bool>,
}

impl Sides {
    pub(super) fn new(m: &Module) -> Self {
        let outputs = |role| m.outputs.iter().filter(move |o| o.role == role).map(|o| o.value);
        let trained = |role| matches!(role, Role::Param | Role::Optimizer | Role::Gradient);
        let states = m.states.values().filter(|s| trained(s.role)).filter_map(|s| s.next);
        let mut backward = vec![false; m.ops.len()];
        if outputs(OutputRole::Loss).next().is_none() {
            return Self { backward };
        }
        let forward = ancestors(m, outputs(OutputRole::Loss));
        let updates = ancestors(m, outputs(OutputRole::Gradient).chain(states));
        for &op in &m.order {
            let i = op.index();
            let follows =
                m.ops[op].operands.iter().any(|&v| m.def_op(v).is_some_and(|d| backward[d.index()]));
            backward[i] = !forward[i] && (updates[i] || follows);
        }
        Self { backward }
    }

    /// The halves of `m` with ops that were added since: backward but for those `early`.
    pub(super) fn extended(mut self, m: &Module, early: &[OpId]) -> Self {
        if self.backward.contains(&true) {
            self.backward.resize(m.ops.len(), true);
        }
        for op in early {
            self.backward[op.index()] = false;
        }
        self
    }

    /// Whether the op belongs to the backward pass.
    pub(super) fn is_backward(&self, op: OpId) -> bool {
        self.backward.get(op.index()).copied().unwrap_or(false)
    }
}

/// By op, whether one of `roots` depends on it.
fn ancestors(m: &Module, roots: impl Iterator<Item = ValueId>) -> Vec<bool> {
    let mut live = vec![false; m.ops.len()];
    for op in roots.filter_map(|v| m.def_op(v)) {
        live[op.index()] = true;
    }
    for &op in m.order.iter().rev() {
        if live[op.index()] {
            for def in m.ops[op].operands.iter().filter_map(|&v| m.def_op(v)) {
                live[def.index()] = true;
            }
        }
    }
    live
}

/// Bytes of the forward results that ops of the backward pass read, each rounded up to the slot alignment.
///
/// A view counts as its operand. Inputs, states and constants are available anyway and do not count.
pub(super) fn kept_bytes(m: &Module, sides: &Sides) -> u64 {
    let mut kept = vec![false; m.values.len()];
    for &op in m.order.iter().filter(|&&op| sides.is_backward(op) && !m.ops[op].is_view()) {
        for &v in &m.ops[op].operands {
            let root = base(m, v);
            if let Def::Op(def, _) = m.values[root].def {
                kept[root.index()] |= !sides.is_backward(def);
            }
        }
    }
    let bytes = m.values.iter().filter(|(v, _)| kept[v.index()]).map(|(_, x)| aligned(x.ty.bytes()));
    bytes.fold(0u64, u64::saturating_add)
}

/// Bytes that a graph-phase module keeps from its forward for its backward pass.
///
/// The backward pass is the ops that depend on no loss but lead to a gradient or an update.
pub fn saved_bytes(m: &Module) -> u64 {
    kept_bytes(m, &Sides::new(m))
}
