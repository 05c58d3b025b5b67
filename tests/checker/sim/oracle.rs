//! The direct evaluation of the source on hashes.

use memc_ir::ops::{Class, OpKind};
use memc_ir::{Def, Id, Module, TensorType};

use super::EMPTY;
use crate::random::{digest, mix};

pub(super) fn operator(kind: &OpKind, operands: &[&TensorType]) -> u64 {
    let types: Vec<String> = operands.iter().map(ToString::to_string).collect();
    digest(format!("{}{}({})", kind.mnemonic(), kind.attrs_text(), types.join(",")).as_bytes())
}

pub(super) fn is_identity(kind: &OpKind) -> bool {
    kind.def().class == Class::View || kind.mnemonic() == "copy"
}

pub(super) fn constant(payload: &[u8]) -> u64 {
    mix(digest(payload), 0xc0)
}

/// Outputs of every step, and the states after all of them, each as [`whole`] values.
pub(super) struct Expected {
    pub(super) outputs: Vec<Vec<u64>>,
    pub(super) states: Vec<u64>,
}

/// A tensor as an operand: its value with its length.
pub(super) fn whole(value: u64, bytes: u64) -> u64 {
    if bytes == 0 { EMPTY } else { mix(value, bytes) }
}

/// Steps of modules with the same states, in this order; `last` has the states that are delivered.
pub(super) fn evaluate<'a>(steps: impl Iterator<Item = &'a Module>, last: &Module) -> Expected {
    let initial = |s: &memc_ir::State| digest(last.values[s.value].name.as_bytes());
    let mut states: Vec<u64> = last.states.values().map(initial).collect();
    let mut outputs = Vec::new();
    for (step, source) in steps.enumerate() {
        let name = |v: memc_ir::ValueId| digest(source.values[v].name.as_bytes());
        let bytes = |v: memc_ir::ValueId| source.values[v].ty.bytes();
        let mut values = vec![0u64; source.values.len()];
        for (v, value) in source.values.iter() {
            values[v.index()] = match value.def {
                Def::Input(_) => mix(name(v), step as u64),
                Def::State(s) => states[s.index()],
                Def::Const(c) => constant(&source.consts[c].data),
                Def::HostShadow(_) | Def::Op(..) => 0,
            };
        }
        for &id in &source.order {
            let op = &source.ops[id];
            let kind = op.kind().expect("a graph-phase op");
            let first = op.operands.first().map_or(0, |v| values[v.index()]);
            let args = op.operands.iter().map(|&v| whole(values[v.index()], bytes(v)));
            let hash = args.fold(operator(kind, &source.operand_types(id)), mix);
            for (i, v) in op.results.iter().enumerate() {
                values[v.index()] = if is_identity(kind) { first } else { mix(hash, i as u64) };
            }
        }
        outputs.push(source.outputs.iter().map(|o| whole(values[o.value.index()], bytes(o.value))).collect());
        let next = |s: &memc_ir::State| values[s.next.unwrap_or(s.value).index()];
        states = source.states.values().map(next).collect();
    }
    let lengths = last.states.values().map(|s| last.values[s.value].ty.bytes());
    Expected { outputs, states: states.into_iter().zip(lengths).map(|(v, n)| whole(v, n)).collect() }
}
