//! Constant folding: ops whose operands are all known are evaluated once, at compile time, with the CPU
//! kernels.
//!
//! Exporters leave the arithmetic of shapes, masks, learning-rate factors and bias corrections in the graph.
//! Folded, it costs nothing per step, and shapes become constants that other passes can read.
//!
//! Known tensors have one canonical form. It is a constant with at most [`DENSE_ELEMENTS`] elements, or with
//! elements that differ; otherwise a `fill`. A constant takes memory for the whole step and is uploaded,
//! which is waste for a large tensor of equal elements. A `fill` is a kernel to launch, which is waste for a
//! handful of elements.
//!
//! Not folded: results larger than the option `limit`, and ops whose kernel reports an error, as an index out
//! of range. That error then appears in the run with its op's name.

use memc_ir::attr::Scalar;
use memc_ir::{Code, Const, ConstId, Def, Id, Module, OpId, OpKind, Phase, TensorType, ValueId};
use memc_kernels::interp::{Tensor, eval};

use super::compact::compact;
use super::facts::{POINTWISE, is_constant, is_rearrangement, scalar_bytes, splat, uniform};
use crate::{OptionDef, Options, PassCx, PassDef, PassError};

pub(crate) const PASS: PassDef = PassDef {
    name: "fold",
    summary: "evaluate ops on constants",
    phases: (Phase::Graph, Phase::Graph),
    options: OPTIONS,
    run,
};

const OPTIONS: &[OptionDef] = &[OptionDef {
    name: "limit",
    default: "65536",
    doc: "largest result, in bytes, that is evaluated into a constant",
}];

/// Tensors of more equal elements than this are spelled as `fill`.
pub(super) const DENSE_ELEMENTS: u64 = 16;

/// Operands may be this many times the result limit, as for a reduction or a lookup in a table.
const OPERAND_FACTOR: u64 = 64;

/// A tensor known at compile time.
enum Known {
    /// Every element is the same.
    Splat(Scalar),
    /// Dense payload.
    Dense(Vec<u8>),
}

fn run(m: &mut Module, options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let limit = options.number(OPTIONS, "limit")?;
    let mut folded = 0;
    let mut respelled = constants_to_fills(m);
    for id in std::mem::take(&mut m.order) {
        let op = &m.ops[id];
        let Some(known) = evaluate(m, id, limit) else {
            m.order.push(id);
            continue;
        };
        let is_fill = matches!(op.kind(), Some(OpKind::Fill { .. }));
        let results = op.results.clone();
        for (v, known) in results.into_iter().zip(known) {
            let fills = define(m, v, known);
            m.order.extend(fills);
        }
        *(if is_fill { &mut respelled } else { &mut folded }) += 1;
    }
    compact(m);
    cx.stats.push(("fold", "ops folded".into(), folded));
    cx.stats.push(("fold", "constants and fills respelled".into(), respelled));
    Ok(())
}

/// The results of an op, when they are known and the op does not have its canonical form already.
fn evaluate(m: &Module, id: OpId, limit: u64) -> Option<Vec<Known>> {
    let op = &m.ops[id];
    let kind = op.kind()?;
    let types = m.result_types(id);
    if let OpKind::Fill { value, .. } = kind {
        return types.iter().all(|t| t.numel() <= DENSE_ELEMENTS).then(|| vec![Known::Splat(*value)]);
    }
    if !op.operands.iter().all(|&v| is_constant(m, v)) {
        return None;
    }
    if let Some(value) = splat_of_splats(m, kind, &op.operands) {
        return Some(vec![Known::Splat(value)]);
    }
    let bytes = |v: &ValueId| m.values[*v].ty.bytes();
    let total = op.operands.iter().map(bytes).try_fold(0u64, u64::checked_add)?;
    if types.iter().any(|t| t.bytes() > limit) || total > limit.saturating_mul(OPERAND_FACTOR) {
        return None;
    }
    let operands = op.operands.iter().map(|&v| tensor(m, v)).collect::<Option<Vec<Tensor>>>()?;
    let results = eval(kind, &operands.iter().collect::<Vec<_>>()).ok()?;
    Some(results.into_iter().map(|t| Known::Dense(t.data.bytes().to_vec())).collect())
}

/// The element that every element of the result equals, found without materialising anything large.
fn splat_of_splats(m: &Module, kind: &OpKind, operands: &[ValueId]) -> Option<Scalar> {
    let splats = operands.iter().map(|&v| splat(m, v)).collect::<Option<Vec<Scalar>>>()?;
    if is_rearrangement(kind) || matches!(kind, OpKind::Slice { .. } | OpKind::Concat { .. }) {
        return splats.first().copied().filter(|first| splats.iter().all(|s| s == first));
    }
    if !POINTWISE.contains(&kind.mnemonic()) {
        return None;
    }
    let one = |(&v, &s): (&ValueId, &Scalar)| {
        let dtype = m.values[v].ty.dtype;
        filled(&TensorType::scalar(dtype), s)
    };
    let ones = operands.iter().zip(&splats).map(one).collect::<Option<Vec<Tensor>>>()?;
    let results = eval(kind, &ones.iter().collect::<Vec<_>>()).ok()?;
    let [result] = results.as_slice() else { return None };
    uniform(result.ty.dtype, result.data.bytes())
}

fn filled(ty: &TensorType, value: Scalar) -> Option<Tensor> {
    let mut t = Tensor::zeros(ty.clone()).ok()?;
    let element = scalar_bytes(value, ty.dtype);
    t.data.bytes_mut().chunks_mut(element.len()).for_each(|e| e.copy_from_slice(&element));
    Some(t)
}

fn tensor(m: &Module, v: ValueId) -> Option<Tensor> {
    let ty = &m.values[v].ty;
    match (m.const_data(v), splat(m, v)) {
        (Some(data), _) => {
            let mut t = Tensor::zeros(ty.clone()).ok()?;
            t.data.bytes_mut().copy_from_slice(data);
            Some(t)
        }
        (None, Some(value)) => filled(ty, value),
        (None, None) => None,
    }
}

/// Makes `v` the known tensor in its canonical form; returns the op to place where that is a `fill`.
fn define(m: &mut Module, v: ValueId, known: Known) -> Option<OpId> {
    let ty = m.values[v].ty.clone();
    let value = match &known {
        Known::Splat(s) => Some(*s),
        Known::Dense(data) => uniform(ty.dtype, data),
    };
    if let Some(value) = value.filter(|_| ty.numel() > DENSE_ELEMENTS) {
        let kind = OpKind::Fill { dtype: ty.dtype, shape: ty.shape, value };
        m.values[v].def = Def::Op(OpId::new(m.ops.len()), 0);
        return Some(m.push_op(Code::Compute(kind), Vec::new(), vec![v], ""));
    }
    let data = match known {
        Known::Dense(data) => data,
        // At most DENSE_ELEMENTS, or the fill above would have been taken.
        Known::Splat(s) => scalar_bytes(s, ty.dtype).repeat(ty.numel() as usize),
    };
    m.values[v].def = Def::Const(ConstId::new(m.consts.len()));
    m.consts.push(Const { value: v, data: data.into(), slot: None });
    None
}

/// Gives constants that repeat one element the form of a `fill`, placed before the first use; returns how
/// many.
fn constants_to_fills(m: &mut Module) -> u64 {
    let mut fills = 0;
    let mut order = Vec::with_capacity(m.order.len());
    let mut place = |m: &mut Module, order: &mut Vec<OpId>, v: ValueId| {
        let Def::Const(c) = m.values[v].def else { return };
        let ty = &m.values[v].ty;
        if ty.numel() > DENSE_ELEMENTS
            && let Some(value) = uniform(ty.dtype, &m.consts[c].data)
        {
            order.extend(define(m, v, Known::Splat(value)));
            fills += 1;
        }
    };
    for id in std::mem::take(&mut m.order) {
        for v in m.ops[id].operands.clone() {
            place(m, &mut order, v);
        }
        order.push(id);
    }
    let roots: Vec<ValueId> = m.roots().collect();
    for v in roots {
        place(m, &mut order, v);
    }
    m.order = order;
    fills
}
