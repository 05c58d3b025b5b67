//! S rules: ids, order, names.

use indexmap::IndexSet;

use super::Sink;
use crate::diag::Anchor;
use crate::entity::{Id, ValueId};
use crate::module::{Code, Def, Module};
use crate::print::value_name;

pub(super) fn check(m: &Module, sink: &mut Sink) {
    ids(m, sink);
    if !sink.diags.is_empty() {
        return;
    }
    order(m, sink);
    names(m, sink);
}

fn ids(m: &Module, sink: &mut Sink) {
    let value_ok = |v: ValueId| v.index() < m.values.len();
    for (v, value) in m.values.iter() {
        let points_back = match value.def {
            Def::Input(i) => m.inputs.get(i).map(|x| x.value),
            Def::State(s) => m.states.get(s).map(|x| x.value),
            Def::Const(c) => m.consts.get(c).map(|x| x.value),
            Def::HostShadow(i) => m.host_shadows.get(i).map(|x| x.value),
            Def::Op(op, i) => m.ops.get(op).and_then(|op| op.results.get(i as usize)).copied(),
        };
        if points_back != Some(v) {
            sink.report(
                "S1",
                Anchor::Value(v),
                format!("the definition of %{} does not define it", value.name),
            );
        }
    }
    for &id in &m.order {
        let Some(op) = m.ops.get(id) else {
            sink.report("S1", Anchor::Module, format!("the order names op {} of {}", id.0, m.ops.len()));
            continue;
        };
        let values = op.operands.iter().chain(&op.results).all(|&v| value_ok(v));
        let target = match op.code {
            Code::Alloc(s) | Code::Free(s) => Some(s),
            _ => None,
        };
        let slots = op.slots.iter().chain(&op.workspace).chain(&target).all(|&s| s.index() < m.slots.len());
        let ops = op.waits.iter().map(|a| a.op).chain(op.clone_of).all(|o| o.index() < m.ops.len());
        if !(values && slots && ops) {
            sink.report("S1", Anchor::Op(id), "an id is out of range");
        }
    }
    for (i, o) in m.outputs.iter().enumerate() {
        if !value_ok(o.value) {
            sink.report("S1", Anchor::Output(i), "the output's value is out of range");
        }
    }
    for (v, slot) in m.resident_slots() {
        if slot.is_some_and(|s| s.index() >= m.slots.len()) {
            sink.report("S1", Anchor::Value(v), "the slot is out of range");
        }
    }
    for host_shadow in m.host_shadows.values() {
        let of = m.values.get(host_shadow.of).map(|x| x.def);
        if !matches!(of, Some(Def::State(_) | Def::Const(_))) {
            sink.report(
                "S1",
                Anchor::Value(host_shadow.value),
                "only a state or a constant has a host shadow",
            );
        }
    }
    for (id, s) in m.states.iter() {
        if s.next.is_some_and(|v| !value_ok(v)) {
            sink.report("S1", Anchor::Carry(id), "the next value is out of range");
        }
    }
}

fn order(m: &Module, sink: &mut Sink) {
    let mut placed = vec![false; m.ops.len()];
    let mut defined = vec![false; m.values.len()];
    for (v, value) in m.values.iter() {
        defined[v.index()] = !matches!(value.def, Def::Op(..));
    }
    for &id in &m.order {
        if std::mem::replace(&mut placed[id.index()], true) {
            sink.report("S2", Anchor::Op(id), "the op is in the order twice");
        }
        let op = &m.ops[id];
        for &v in &op.operands {
            if !defined[v.index()] {
                sink.report(
                    "S3",
                    Anchor::Op(id),
                    format!("{} is used before it is defined", value_name(m, v)),
                );
            }
        }
        for &v in &op.results {
            defined[v.index()] = true;
        }
    }
    for (i, o) in m.outputs.iter().enumerate() {
        if !defined[o.value.index()] {
            sink.report("S5", Anchor::Output(i), format!("{} is not computed", value_name(m, o.value)));
        }
    }
    for (id, s) in m.states.iter() {
        if let Some(v) = s.next.filter(|v| !defined[v.index()]) {
            sink.report("S5", Anchor::Carry(id), format!("{} is not computed", value_name(m, v)));
        }
    }
}

fn names(m: &Module, sink: &mut Sink) {
    let mut seen: IndexSet<&str> = IndexSet::with_capacity(m.values.len());
    for (v, value) in m.values.iter() {
        if value.name.is_empty() || !seen.insert(&value.name) {
            sink.report("S4", Anchor::Value(v), format!("the name `{}` is empty or taken", value.name));
        }
    }
}
