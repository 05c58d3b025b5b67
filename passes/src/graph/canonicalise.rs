//! Canonical forms: one spelling for ops that can be written in several ways, and no ops that do nothing.
//!
//! Later passes match and merge by spelling, so two spellings of one thing are a missed match. Each form here
//! is the cheaper or the shorter one, and depends on one op and the definitions of its operands only; choices
//! that need weighing are left to `simplify`.
//!
//! - Reshapes, broadcasts, transposes, casts, slices, pads, copies and concatenations that change nothing
//!   vanish.
//! - What only moves or adds axes of extent 1 is a reshape; reshapes, broadcasts and transposes of their like
//!   are one.
//! - A slice's `ends` are one past the last element taken, and its step is 1 where it takes at most one.
//! - `gemm` that ignores its addend is `matmul`. Reductions over no axes vanish where summing adds no zero.
//! - A constant operand is on the right where the op has a form for that.
//! - A state that ends the step as it began has no next value.

use memc_ir::{Code, Id, Module, OpKind, Phase, TensorType, ValueId};

use super::compact::compact;
use super::facts::{commutes, is_constant, keeps_places, sole_def};
use crate::{Options, PassCx, PassDef, PassError};

pub(crate) const PASS: PassDef = PassDef {
    name: "canonicalise",
    summary: "one spelling for every op, and no ops that change nothing",
    phases: (Phase::Graph, Phase::Graph),
    options: &[],
    run,
};

/// Replacement of an op with one result.
pub(super) enum Form {
    /// A value of the same type.
    Value(ValueId),
    /// Another op.
    Op(OpKind, Vec<ValueId>),
}

/// Name of a form, and the function that finds it.
type Rule = (&'static str, fn(&Module, &OpKind, &[ValueId], &TensorType) -> Option<Form>);

const RULES: &[Rule] = &[
    ("identity ops removed", identity),
    ("ops turned into reshapes", to_reshape),
    ("movements merged", merge),
    ("slices normalised", slice),
    ("concatenations trimmed", concat),
    ("gemm without addend", gemm),
    ("constants moved right", constant_right),
];

fn run(m: &mut Module, _options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let mut counts = vec![0; RULES.len()];
    let mut now: Vec<ValueId> = m.values.ids().collect();
    for id in std::mem::take(&mut m.order) {
        for v in &mut m.ops[id].operands {
            *v = now[v.index()];
        }
        // Every form is smaller or strictly more canonical than what it replaces, so this ends.
        let gone = loop {
            let op = &m.ops[id];
            let (Code::Compute(kind), [result]) = (&op.code, op.results.as_slice()) else { break None };
            match form(m, kind, &op.operands, &m.values[*result].ty) {
                None => break None,
                Some((i, Form::Value(v))) => {
                    counts[i] += 1;
                    break Some((*result, v));
                }
                Some((i, Form::Op(kind, operands))) => {
                    counts[i] += 1;
                    m.ops[id].code = Code::Compute(kind);
                    m.ops[id].operands = operands;
                }
            }
        };
        match gone {
            Some((result, v)) => now[result.index()] = v,
            None => m.order.push(id),
        }
    }
    m.map_uses(|v| now[v.index()]);
    let mut unchanged = 0;
    for (_, s) in m.states.iter_mut().filter(|(_, s)| s.next == Some(s.value)) {
        s.next = None;
        unchanged += 1;
    }
    compact(m);
    for ((name, _), n) in RULES.iter().zip(counts) {
        cx.stats.push(("canonicalise", (*name).into(), n));
    }
    cx.stats.push(("canonicalise", "unchanged states".into(), unchanged));
    Ok(())
}

/// The first rule that has a better form for an op with one result of type `ty`, and that form.
pub(super) fn form(
    m: &Module,
    kind: &OpKind,
    operands: &[ValueId],
    ty: &TensorType,
) -> Option<(usize, Form)> {
    RULES.iter().enumerate().find_map(|(i, (_, rule))| Some((i, rule(m, kind, operands, ty)?)))
}

fn identity(m: &Module, kind: &OpKind, operands: &[ValueId], result: &TensorType) -> Option<Form> {
    let x = *operands.first()?;
    let ty = &m.values[x].ty;
    let same = match kind {
        OpKind::Copy {} => true,
        OpKind::Cast { .. } | OpKind::Reshape { .. } | OpKind::Broadcast { .. } => ty == result,
        OpKind::Transpose { perm } => perm.is_sorted(),
        OpKind::Slice { steps, .. } => ty == result && steps.iter().all(|&s| s == 1),
        OpKind::Pad { .. } => ty == result,
        OpKind::Concat { .. } => operands.len() == 1,
        OpKind::ReduceMax { axes, .. } => axes.is_empty(),
        // A float sum starts at +0, which turns the element -0 into +0.
        OpKind::ReduceSum { axes, .. } => axes.is_empty() && ty.dtype.is_int(),
        _ => false,
    };
    same.then_some(Form::Value(x))
}

fn to_reshape(m: &Module, kind: &OpKind, operands: &[ValueId], result: &TensorType) -> Option<Form> {
    let x = *operands.first()?;
    let ty = &m.values[x].ty;
    let moves_nothing = match kind {
        OpKind::Transpose { perm } => keeps_places(ty, perm),
        OpKind::Broadcast { .. } => ty.numel() == result.numel(),
        // The only element of every reduced axis.
        OpKind::ReduceMax { axes, .. } => axes.iter().all(|&a| ty.shape.get(a as usize) == Some(&1)),
        OpKind::ReduceSum { axes, .. } => {
            ty.dtype.is_int() && axes.iter().all(|&a| ty.shape.get(a as usize) == Some(&1))
        }
        _ => false,
    };
    moves_nothing.then(|| Form::Op(OpKind::Reshape { shape: result.shape.clone() }, vec![x]))
}

fn merge(m: &Module, kind: &OpKind, operands: &[ValueId], _result: &TensorType) -> Option<Form> {
    let (inner, from) = sole_def(m, *operands.first()?)?;
    match (kind, inner) {
        (OpKind::Reshape { .. }, OpKind::Reshape { .. })
        | (OpKind::Broadcast { .. }, OpKind::Broadcast { .. }) => Some(Form::Op(kind.clone(), from.to_vec())),
        (OpKind::Transpose { perm }, OpKind::Transpose { perm: first }) => {
            let both = perm.iter().map(|&p| first.get(usize::try_from(p).ok()?).copied());
            let perm = both.collect::<Option<Vec<u64>>>()?;
            Some(Form::Op(OpKind::Transpose { perm }, from.to_vec()))
        }
        _ => None,
    }
}

fn slice(m: &Module, kind: &OpKind, operands: &[ValueId], result: &TensorType) -> Option<Form> {
    let OpKind::Slice { starts, ends, steps } = kind else { return None };
    if result.numel() == 0 || m.values[*operands.first()?].ty.numel() == 0 {
        return None;
    }
    let (mut new_ends, mut new_steps) = (ends.clone(), steps.clone());
    for (i, &n) in result.shape.iter().enumerate() {
        let step = if n == 1 { 1 } else { steps[i] };
        let last = starts[i].checked_add(step.checked_mul(i64::try_from(n - 1).ok()?)?)?;
        (new_steps[i], new_ends[i]) = (step, last + step.signum());
    }
    let changed = (&new_ends, &new_steps) != (ends, steps);
    let kind = OpKind::Slice { starts: starts.clone(), ends: new_ends, steps: new_steps };
    changed.then(|| Form::Op(kind, operands.to_vec()))
}

fn concat(m: &Module, kind: &OpKind, operands: &[ValueId], result: &TensorType) -> Option<Form> {
    let OpKind::Concat { axis } = kind else { return None };
    let axis = usize::try_from(*axis).ok()?;
    if result.shape.get(axis) == Some(&0) {
        return (operands.len() > 1).then(|| Form::Op(kind.clone(), operands[..1].to_vec()));
    }
    let kept = operands.iter().copied().filter(|&v| m.values[v].ty.shape.get(axis) != Some(&0));
    let kept: Vec<ValueId> = kept.collect();
    (kept.len() < operands.len()).then(|| Form::Op(kind.clone(), kept))
}

fn gemm(_m: &Module, kind: &OpKind, operands: &[ValueId], _result: &TensorType) -> Option<Form> {
    match *kind {
        // The addend is not read when beta is zero, of either sign.
        OpKind::Gemm { trans_a, trans_b, alpha, beta } if beta.0 == 0.0 => {
            Some(Form::Op(OpKind::MatMul { trans_a, trans_b, alpha }, operands[..2].to_vec()))
        }
        _ => None,
    }
}

fn constant_right(m: &Module, kind: &OpKind, operands: &[ValueId], _result: &TensorType) -> Option<Form> {
    let &[a, b] = operands else { return None };
    if !is_constant(m, a) || is_constant(m, b) {
        return None;
    }
    let mirrored = match kind {
        OpKind::Less {} => OpKind::Greater {},
        OpKind::LessEqual {} => OpKind::GreaterEqual {},
        OpKind::Greater {} => OpKind::Less {},
        OpKind::GreaterEqual {} => OpKind::LessEqual {},
        _ if commutes(kind, m.values[a].ty.dtype) => kind.clone(),
        _ => return None,
    };
    Some(Form::Op(mirrored, vec![b, a]))
}
