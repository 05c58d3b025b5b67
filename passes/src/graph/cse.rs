//! Common subexpression elimination by hash-consing: equal ops on equal operands and equal constants become
//! one.
//!
//! Exporters repeat themselves: every gradient function recomputes the transposes, masks and scales it needs.
//! All graph-phase ops are pure, so the first of equal ops can stand for all of them. In the mem phase a
//! repeated op may be a deliberate recomputation, which is why this is a graph-phase pass.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use memc_ir::{Code, Def, Id, Module, OpId, OpKind, Phase, TensorType, ValueId};

use super::compact::compact;
use super::facts::commutes;
use crate::{Options, PassCx, PassDef, PassError};

pub(crate) const PASS: PassDef = PassDef {
    name: "cse",
    summary: "merge equal ops and equal constants",
    phases: (Phase::Graph, Phase::Graph),
    options: &[],
    run,
};

fn run(m: &mut Module, _options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let mut first: Vec<ValueId> = m.values.ids().collect();
    let consts = merge_constants(m, &mut first);
    let mut seen: BTreeMap<(OpKind, Vec<ValueId>), OpId> = BTreeMap::new();
    let mut order = Vec::with_capacity(m.order.len());
    let mut merged = 0;
    for id in std::mem::take(&mut m.order) {
        let op = &m.ops[id];
        let Code::Compute(kind) = &op.code else { continue };
        let mut operands: Vec<ValueId> = op.operands.iter().map(|v| first[v.index()]).collect();
        if operands.first().is_some_and(|&a| commutes(kind, m.values[a].ty.dtype)) {
            operands.sort_unstable();
        }
        match seen.entry((kind.clone(), operands)) {
            Entry::Occupied(earlier) => {
                merged += 1;
                for (&v, &w) in op.results.iter().zip(&m.ops[*earlier.get()].results) {
                    first[v.index()] = w;
                }
            }
            Entry::Vacant(slot) => {
                slot.insert(id);
                order.push(id);
            }
        }
    }
    m.order = order;
    m.map_uses(|v| first[v.index()]);
    compact(m);
    cx.stats.push(("cse", "ops merged".into(), merged));
    cx.stats.push(("cse", "constants merged".into(), consts));
    Ok(())
}

/// Points every constant at the first one of its type and payload; returns how many were not first.
fn merge_constants(m: &Module, first: &mut [ValueId]) -> u64 {
    let mut seen: BTreeMap<(&TensorType, &[u8]), ValueId> = BTreeMap::new();
    let mut merged = 0;
    for (v, value) in m.values.iter() {
        let Def::Const(c) = value.def else { continue };
        let original = *seen.entry((&value.ty, &m.consts[c].data)).or_insert(v);
        merged += u64::from(original != v);
        first[v.index()] = original;
    }
    merged
}
