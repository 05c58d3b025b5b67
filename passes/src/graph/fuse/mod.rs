//! Element-wise ops in one kernel, with the normalisation between them, or the product before them where a
//! library computes both; and a product with the sum of an operand.
//!
//! An element-wise op takes as long as its operands and results take to be read and written, and each is a
//! kernel of its own. A `fused` op reads outside values once, keeps the values between its steps in
//! registers, and writes the values that others need. This pass joins ops and joined ops pair by pair. In the
//! order of the module, each element-wise op is joined with the producers of its operands, the nearest first.
//! It is also joined with the last ops before it of the same shape, where both read the same value or are so
//! small that launches are all their time. A pair is joined where
//!
//! - the modelled time of the joined op is less than that of the two;
//! - the joined op can stand where one of the two stood: behind what defines its operands, before what reads
//!   its results, so that there is never a circle, and nothing is computed twice;
//! - no more bytes are live than before while this or any other op runs. Results in place of dying operands
//!   count as `bufferize` shares them. Values of less than a thousandth of the largest op, and scratch of
//!   less than a hundredth of the peak, do not count. So the operands of a forward op are not kept for a
//!   backward op that it is joined with, unless they are no larger than the result that was kept instead;
//! - its operands and results together take no more bytes than those of the largest op there was, as that is
//!   what a budget has to hold in any case, or next to nothing;
//! - a next state can still be written over the old one.
//!
//! Before that, ops that only reshapes separate get one shape. When all groups are made, each `layer_norm`
//! and `layer_norm_grad` is joined, under the same conditions, as `fused_norm`. It takes the group that makes
//! its first operand and those that read its first result (in the backward pass the sums of gradients on both
//! sides of it). Its operand must then not be a result: where the backward pass keeps that, a planner drops
//! the normalised value and recomputes it from that alone, which is worth more than the one read that joining
//! would save.
//!
//! At the end a product is joined with the op that follows it under the same conditions, where that is an
//! epilogue of the library that multiplies. This comes last, since a longer chain saves more. The product
//! that is the gradient of a linear layer's weight is joined with the sum that is the gradient of its bias.
//! Both read the gradient of the layer's result, the sum perhaps through a view with more leading axes. They
//! are one `matmul_bias_grad`, which reads it once.
//!
//! Contract: exact, since a step of a fused op gives the bits of the op alone. An epilogue does so on the
//! kernels of memc; a library's may differ in the rounding of GELU, in its ReLU of NaN, and in the order of a
//! sum.

mod align;
mod group;
mod item;
mod live;

use std::collections::BTreeMap;

use memc_ir::{Code, Def, Module, OpId, OpKind, Phase, ValueId};

use self::group::Groups;
use self::item::Item;
use super::compact::compact;
use crate::{Contradiction, Fired, Options, PassCx, PassDef, PassError};

pub(crate) const PASS: PassDef = PassDef {
    name: "fuse",
    summary: "compute chains of element-wise ops in one kernel, with normalisations and products among them",
    phases: (Phase::Graph, Phase::Graph),
    options: &[],
    run,
};

fn run(m: &mut Module, _options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    align::align(m)?;
    compact(m);
    let joined = {
        let mut groups = Groups::new(m, cx.profile);
        let mut recent: BTreeMap<&[u64], usize> = BTreeMap::new();
        for i in 0..m.order.len() {
            if let Some(shape) = groups.shape(i) {
                while groups.grow(i, recent.get(shape).copied()) {}
                recent.insert(shape, i);
            }
        }
        for i in 0..m.order.len() {
            if groups.is_norm(i) {
                groups.surround(i);
            }
        }
        groups.join_products();
        groups.join_sums();
        groups.finish()
    };
    let mut order = Vec::with_capacity(joined.len());
    let (mut fused, mut made) = (0, 0);
    for item in joined {
        match item {
            Item::Op(op) => order.push(op),
            Item::Fused { kind, operands, results, ops } => {
                let at = m.values[results[0]].name.clone();
                let count = ops.len() as u64;
                order.push(replace(m, kind, &operands, &results, &ops)?);
                cx.fired.push(Fired { pass: PASS.name, rule: "fuse", at, count });
                (fused, made) = (fused + count, made + 1);
            }
        }
    }
    m.order = order;
    align::drop_views(m);
    cx.stats.push((PASS.name, "ops fused".into(), fused));
    cx.stats.push((PASS.name, "kernels for them".into(), made));
    compact(m);
    Ok(())
}

/// Makes the fused op, whose results become those of the ops that it stands for.
fn replace(
    m: &mut Module,
    kind: OpKind,
    operands: &[ValueId],
    results: &[ValueId],
    ops: &[OpId],
) -> Result<OpId, Contradiction> {
    let origin = ops.last().map(|&op| m.ops[op].origin.clone()).unwrap_or_default();
    let types = kind.infer(&operands.iter().map(|&v| &m.values[v].ty).collect::<Vec<_>>())?;
    if !types.iter().eq(results.iter().map(|&v| &m.values[v].ty)) {
        return Err(format!("{kind:?} has other results than its steps").into());
    }
    let id = m.push_op(Code::Compute(kind), operands.to_vec(), results.to_vec(), &origin);
    for (j, &v) in results.iter().enumerate() {
        m.values[v].def = Def::Op(id, j as u32);
    }
    Ok(id)
}
