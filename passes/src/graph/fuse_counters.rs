//! Counters of a step in one op.
//!
//! Every batch normalisation of a model trained with PyTorch counts the batches it has seen, in an integer
//! state of its own that nothing else in the step reads. Each is a kernel that takes longer to start than to
//! run, and in a network of normalised convolutions they are one op in fifteen. Integer additions of one
//! constant to small states become one `increment`, in place in all of them, at the place of the first.
//!
//! Contract: exact, since an integer addition is. A state whose old or new value has another reader is left
//! alone: that reader needs it at its own place.

use std::collections::BTreeMap;

use memc_ir::attr::Scalar;
use memc_ir::{DType, Def, Id, Module, OpId, OpKind, Phase, StateId, ValueId};

use super::compact::compact;
use super::facts::{sole_def, splat};
use crate::{Contradiction, Fired, Options, PassCx, PassDef, PassError};

pub(crate) const PASS: PassDef = PassDef {
    name: "fuse-counters",
    summary: "add to many counters in one op (horizontal fusion)",
    phases: (Phase::Graph, Phase::Graph),
    options: &[],
    run,
};

/// Most elements of a counter.
const MOST_ELEMENTS: u64 = 16;
/// Most counters of one op: all its operands are in memory together, and tools compare them pair by pair.
const MOST_OPERANDS: usize = 256;

fn run(m: &mut Module, _options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let mut groups: BTreeMap<i64, Vec<(OpId, StateId)>> = BTreeMap::new();
    for (op, state, by) in counters(m) {
        groups.entry(by).or_default().push((op, state));
    }
    let mut made: BTreeMap<OpId, OpId> = BTreeMap::new();
    let mut gone = vec![false; m.ops.len()];
    let mut fused = 0;
    for (&by, all) in &groups {
        for part in all.chunks(MOST_OPERANDS).filter(|part| part.len() > 1) {
            let (first, _) = part[0];
            let id = increment(m, part, by)?;
            made.insert(first, id);
            part.iter().for_each(|(op, _)| gone[op.index()] = true);
            fused += part.len() as u64;
            let at = m.ops[id].results.first().map(|&v| m.values[v].name.clone()).unwrap_or_default();
            cx.fired.push(Fired { pass: PASS.name, rule: "increment", at, count: part.len() as u64 });
        }
    }
    cx.stats.push((PASS.name, "counters fused".into(), fused));
    if made.is_empty() {
        return Ok(());
    }
    let order = std::mem::take(&mut m.order);
    m.order = order
        .into_iter()
        .filter_map(|op| match made.get(&op) {
            Some(&fused) => Some(fused),
            None => (!gone[op.index()]).then_some(op),
        })
        .collect();
    compact(m);
    Ok(())
}

/// Additions of a constant to a counter, in order: the op, the counter, and the constant.
fn counters(m: &Module) -> Vec<(OpId, StateId, i64)> {
    let users = m.users();
    let mut roots = vec![0u32; m.values.len()];
    m.roots().for_each(|v| roots[v.index()] += 1);
    let counter = |&op: &OpId| {
        let &[next] = m.ops[op].results.as_slice() else { return None };
        let (OpKind::Add {}, &[x, c]) = sole_def(m, next)? else { return None };
        let Def::State(state) = m.values[x].def else { return None };
        let (ty, i) = (&m.values[x].ty, next.index());
        let sole = users[x.index()].len() == 1 && users[i].is_empty() && roots[i] == 1;
        let small = matches!(ty.dtype, DType::I32 | DType::I64) && ty.numel() <= MOST_ELEMENTS;
        let fits = m.states[state].next == Some(next) && m.values[next].ty == *ty && roots[x.index()] == 0;
        let Some(Scalar::Int(by)) = splat(m, c) else { return None };
        (sole && small && fits).then_some((op, state, by))
    };
    m.order.iter().filter_map(counter).collect()
}

/// One op for the additions of `part`; their results take its results' place.
fn increment(m: &mut Module, part: &[(OpId, StateId)], by: i64) -> Result<OpId, Contradiction> {
    let operands: Vec<ValueId> = part.iter().map(|&(_, s)| m.states[s].value).collect();
    let origin = part.first().map(|&(op, _)| m.ops[op].origin.clone()).unwrap_or_default();
    let id = m.new_op(OpKind::Increment { by }, &operands, &[], &origin)?;
    for (&(op, state), next) in part.iter().zip(m.ops[id].results.clone()) {
        if let Some(&old) = m.ops[op].results.first() {
            m.swap_names(old, next);
        }
        m.states[state].next = Some(next);
    }
    Ok(id)
}
