//! Rebuilding a module without what nothing uses.

use memc_ir::{Code, Def, Id, Module, Phase, ValueId};

/// Rids the graph-phase module `m` of ops outside the order, their values, and constants that nothing reads.
///
/// Names, the order, inputs and states stay, used or not: inputs and states are what the user sees. Arenas
/// never shrink, so this is the only way to be rid of entries; ids change to follow the order. `m` must pass
/// the verifier.
pub fn compact(m: &mut Module) {
    debug_assert_eq!(m.phase, Phase::Graph);
    let mut used = vec![false; m.values.len()];
    for v in m.order.iter().flat_map(|&op| &m.ops[op].operands).copied().chain(m.roots()) {
        used[v.index()] = true;
    }
    let ordered = m.order.len() == m.ops.len() && m.order.iter().enumerate().all(|(i, op)| op.index() == i);
    if !ordered || m.consts.values().any(|c| !used[c.value.index()]) {
        *m = rebuilt(m, &used);
    }
}

fn rebuilt(m: &Module, used: &[bool]) -> Module {
    let mut out = Module::new(m.name.clone());
    let mut new: Vec<Option<ValueId>> = vec![None; m.values.len()];
    for (v, value) in m.values.iter() {
        let ty = value.ty.clone();
        new[v.index()] = match value.def {
            Def::Input(i) => Some(out.add_input(&value.name, ty, m.inputs[i].feed.clone())),
            Def::State(s) => {
                let state = &m.states[s];
                let id = out.add_state(&value.name, ty, state.role, state.init.clone());
                Some(out.states[id].value)
            }
            Def::Const(c) if used[v.index()] => {
                Some(out.add_const(&value.name, ty, m.consts[c].data.clone()))
            }
            Def::Const(_) | Def::HostShadow(_) | Def::Op(..) => None,
        };
    }
    let find = |new: &[Option<ValueId>], v: ValueId| {
        new[v.index()].expect("invariant: a verified module defines what it uses")
    };
    for &id in &m.order {
        let op = &m.ops[id];
        let operands = op.operands.iter().map(|&v| find(&new, v)).collect();
        let next = Id::new(out.ops.len());
        let mut results = Vec::with_capacity(op.results.len());
        for (i, &v) in op.results.iter().enumerate() {
            let value = &m.values[v];
            let copy = out.add_value(&value.name, value.ty.clone(), Def::Op(next, i as u32));
            new[v.index()] = Some(copy);
            results.push(copy);
        }
        let Code::Compute(kind) = &op.code else { continue };
        let id = out.push_op(Code::Compute(kind.clone()), operands, results, &op.origin);
        out.order.push(id);
    }
    for o in &m.outputs {
        out.outputs.push(memc_ir::Output { value: find(&new, o.value), ..o.clone() });
    }
    let nexts: Vec<(ValueId, ValueId)> =
        m.states.values().filter_map(|s| Some((find(&new, s.value), find(&new, s.next?)))).collect();
    for (state, next) in nexts {
        if let Def::State(s) = out.values[state].def {
            out.states[s].next = Some(next);
        }
    }
    out
}
