//! Values that share bytes: views, in-place results, and the resident slots of states.
//!
//! A *tensor* of the planning problem is one such group. In-place sharing is decided here once, greedily in
//! execution order: a result takes over an operand's bytes when the row allows it and the operand is read for
//! the last time. The resident slot of a state is only ever shared by the state's value and its next value,
//! so that a step ends where the next one begins.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::{Arena, ConstId, Def, Id, InputId, Module, OpId, OpKind, StateId, ValueId};
use memc_planner::TensorId;

use crate::Contradiction;

/// Kind of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorKind {
    /// Lives from step to step.
    State(StateId),
    /// The same in every step.
    Const(ConstId),
    /// Arrives in host memory at the start of a step.
    Input(InputId),
    /// Computed and consumed within a step.
    Transient,
}

/// Marks a value that is in no tensor because nothing defines or uses it.
pub(crate) const NONE: TensorId = TensorId(u32::MAX);

/// The grouping of a module's values into tensors.
pub(crate) struct Storages {
    /// Tensor of every value.
    pub(crate) of: Arena<ValueId, TensorId>,
    /// The value that named each tensor, and what it is.
    pub(crate) tensors: Arena<TensorId, (ValueId, TensorKind)>,
}

/// The value whose bytes `v` shows: the operand at the end of a chain of views, or `v` itself.
pub(crate) fn base(m: &Module, mut v: ValueId) -> ValueId {
    while let Some(op) = m.def_op(v).filter(|&op| m.ops[op].is_view()) {
        v = m.ops[op].operands[0];
    }
    v
}

/// Rewrites the module so that every output is an op's result and every next state can be in its resident
/// slot. Inserts `copy` ops where values are passed through, carried twice, or finished before the old state
/// is dead.
pub(crate) fn legalise(m: &mut Module) -> Result<(), Contradiction> {
    for i in 0..m.outputs.len() {
        let v = m.outputs[i].value;
        if m.def_op(base(m, v)).is_none() {
            m.outputs[i].value = copy_in_front(m, v)?;
        }
    }
    for s in m.states.ids().collect::<Vec<_>>() {
        let Some(next) = m.states[s].next else { continue };
        let root = base(m, next);
        if root == m.states[s].value {
            m.states[s].next = None;
        } else if matches!(m.values[root].def, Def::State(_)) {
            // Another state's old value, which that state may lose before this one may take it over.
            m.states[s].next = Some(copy_in_front(m, next)?);
        }
    }
    let (last, place) = (last_reads(m), positions(m));
    let mut claimed: BTreeSet<ValueId> = BTreeSet::new();
    for s in m.states.ids().collect::<Vec<_>>() {
        let Some(next) = m.states[s].next else { continue };
        let (root, old) = (base(m, next), m.states[s].value);
        if claimed.contains(&root) || !fits_resident(m, root, old, &last, &place) {
            let name = m.values[next].name.clone();
            let op = m.new_op(OpKind::Copy {}, &[next], &[&name], "")?;
            m.order.push(op);
            m.states[s].next = Some(m.ops[op].results[0]);
        }
        claimed.extend(m.states[s].next.map(|v| base(m, v)));
    }
    Ok(())
}

/// A copy of a value that no op computes, before every op, so that it shows states as they are before the
/// step.
fn copy_in_front(m: &mut Module, v: ValueId) -> Result<ValueId, Contradiction> {
    let name = m.values[v].name.clone();
    let op = m.new_op(OpKind::Copy {}, &[v], &[&name], "")?;
    let mut front = view_chain(m, v);
    m.order.retain(|o| !front.contains(o));
    front.push(op);
    m.order.splice(0..0, front);
    Ok(m.ops[op].results[0])
}

/// The view ops between `v` and its base, base first.
fn view_chain(m: &Module, mut v: ValueId) -> Vec<OpId> {
    let mut chain = Vec::new();
    while let Some(op) = m.def_op(v).filter(|&op| m.ops[op].is_view()) {
        chain.push(op);
        v = m.ops[op].operands[0];
    }
    chain.reverse();
    chain
}

/// For every base value, the position of the last op that reads it.
fn last_reads(m: &Module) -> Vec<Option<usize>> {
    let mut last = vec![None; m.values.len()];
    for (i, &op) in m.order.iter().enumerate().filter(|&(_, &op)| !m.ops[op].is_view()) {
        for &v in &m.ops[op].operands {
            last[base(m, v).index()] = Some(i);
        }
    }
    last
}

/// For every op, its position in the order.
fn positions(m: &Module) -> Vec<usize> {
    let mut place = vec![usize::MAX; m.ops.len()];
    for (i, &op) in m.order.iter().enumerate() {
        place[op.index()] = i;
    }
    place
}

/// Whether `root` may be written where the state's value `old` lies.
fn fits_resident(m: &Module, root: ValueId, old: ValueId, last: &[Option<usize>], place: &[usize]) -> bool {
    let Some(def) = m.def_op(root) else { return false };
    match last[old.index()] {
        None => true,
        Some(last) if last < place[def.index()] => true,
        Some(last) if last == place[def.index()] => may_take(m, def, root, |v| base(m, v) == old),
        _ => false,
    }
}

/// Whether the row lets result `result` of `op` take the bytes of every operand that `shares` selects.
fn may_take(m: &Module, op: OpId, result: ValueId, shares: impl Fn(ValueId) -> bool) -> bool {
    let Some(kind) = m.ops[op].kind() else { return false };
    let Some(j) = m.ops[op].results.iter().position(|&r| r == result) else { return false };
    let pairs = kind.inplace_pairs(&m.operand_types(op), &m.result_types(op));
    let mut shared = m.ops[op].operands.iter().enumerate().filter(|&(_, &v)| shares(v)).peekable();
    shared.peek().is_some() && shared.all(|(i, _)| pairs.contains(&(i, j)))
}

/// Groups the values of a legalised module.
pub(crate) fn assign(m: &Module) -> Storages {
    let mut s = Storages { of: Arena::filled(NONE, m.values.len()), tensors: Arena::default() };
    let add = |s: &mut Storages, v: ValueId, kind| {
        s.of[v] = s.tensors.push((v, kind));
    };
    for (id, x) in m.states.iter() {
        add(&mut s, x.value, TensorKind::State(id));
        if let Some(next) = x.next {
            s.of[base(m, next)] = s.of[x.value];
        }
    }
    for (id, x) in m.consts.iter() {
        add(&mut s, x.value, TensorKind::Const(id));
    }
    for (id, x) in m.inputs.iter() {
        add(&mut s, x.value, TensorKind::Input(id));
    }
    let last = last_reads(m);
    for (i, &op) in m.order.iter().enumerate() {
        if m.ops[op].is_view() {
            s.of[m.ops[op].results[0]] = s.of[m.ops[op].operands[0]];
            continue;
        }
        let mut taken: Vec<TensorId> =
            m.ops[op].results.iter().map(|&r| s.of[r]).filter(|&t| t != NONE).collect();
        for &r in &m.ops[op].results {
            if s.of[r] != NONE {
                continue;
            }
            let dying = m.ops[op].operands.iter().map(|&v| base(m, v)).find(|&b| {
                let t = s.of[b];
                let free = matches!(s.tensors[t].1, TensorKind::Transient | TensorKind::Input(_))
                    && !taken.contains(&t);
                free && last[b.index()] == Some(i) && may_take(m, op, r, |v| s.of[v] == t)
            });
            match dying {
                Some(b) => s.of[r] = s.of[b],
                None => add(&mut s, r, TensorKind::Transient),
            }
            taken.push(s.of[r]);
        }
    }
    s
}

/// For every op that completes outputs, their indices.
pub(crate) fn outputs_by_op(m: &Module) -> BTreeMap<OpId, Vec<usize>> {
    let mut by_op: BTreeMap<OpId, Vec<usize>> = BTreeMap::new();
    for (i, output) in m.outputs.iter().enumerate() {
        if let Some(op) = m.def_op(base(m, output.value)) {
            by_op.entry(op).or_default().push(i);
        }
    }
    by_op
}
