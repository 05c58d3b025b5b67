//! T rules: types, attributes, payload sizes.

use super::Sink;
use crate::diag::Anchor;
use crate::entity::OpId;
use crate::module::{Code, Feed, Module};

pub(super) fn check(m: &Module, sink: &mut Sink) {
    for (v, value) in m.values.iter() {
        if value.ty.checked_numel().is_none() {
            let at = m.def_op(v).map_or(Anchor::Value(v), Anchor::Op);
            sink.report("T3", at, format!("%{} has a type that is too large: {}", value.name, value.ty));
        }
    }
    for &id in &m.order {
        op(m, id, sink);
    }
    for input in m.inputs.values() {
        if let Feed::Data { range: Some((low, high)), .. } = input.feed
            && low >= high
            && (low, high) != (0, 0)
        {
            sink.report("T6", Anchor::Value(input.value), format!("the range {low} to {high} is empty"));
        }
    }
    for c in m.consts.values() {
        let ty = &m.values[c.value].ty;
        if ty.checked_numel().is_some() && ty.bytes() != c.data.len() as u64 {
            let message = format!("the payload has {} bytes, {ty} has {}", c.data.len(), ty.bytes());
            sink.report("T4", Anchor::Value(c.value), message);
        }
    }
    for (id, s) in m.states.iter() {
        if let Err(message) = s.init.check(&m.values[s.value].ty) {
            sink.report("T6", Anchor::Value(s.value), message);
        }
        if let Some(next) = s.next {
            let (have, want) = (&m.values[next].ty, &m.values[s.value].ty);
            if have != want {
                sink.report("T5", Anchor::Carry(id), format!("a state of type {want} cannot become {have}"));
            }
        }
    }
}

fn op(m: &Module, id: OpId, sink: &mut Sink) {
    let op = &m.ops[id];
    let inferred = match &op.code {
        Code::Compute(kind) => kind.infer(&m.operand_types(id)),
        Code::SwapIn | Code::SwapOut => match op.operands.as_slice() {
            [x] => Ok(vec![m.values[*x].ty.clone()]),
            _ => Err("a swap has one operand".into()),
        },
        Code::Alloc(_) | Code::Free(_) => Ok(Vec::new()),
    };
    match inferred {
        Err(message) => sink.report("T1", Anchor::Op(id), message),
        Ok(types) => {
            let stored = m.result_types(id);
            if types.len() != stored.len() || types.iter().zip(&stored).any(|(a, b)| a != *b) {
                let list: Vec<String> = types.iter().map(ToString::to_string).collect();
                sink.report("T2", Anchor::Op(id), format!("the results have types {}", list.join(", ")));
            }
        }
    }
}
