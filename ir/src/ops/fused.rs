//! Chains of element-wise ops that one kernel evaluates, element by element.
//!
//! A *step* is an element-wise op on operands `x0`, `x1`, ... and on earlier steps `t0`, `t1`, ...; `outs`
//! lists the steps that are results. All steps have one shape, the *space*. Operands broadcast to it as they
//! do in the single op. The vectors of a `batch_norm` lie along axis 1, and the step number of a `dropout` or
//! `random_mask` is one element. A step rounds to its own element type. So the bits are those of the ops one
//! by one.
//!
//! The first step may instead be a matrix product or a convolution of `f32`, the *head*. Its result spans the
//! space, and the other steps are its epilogue. The head reads the first operands, in order, until it ends.
//! So no result may lie in the bytes of an operand.
//!
//! Bodies come from files: steps, operands and results are bounded, and type inference assumes nothing.

use std::fmt;

use super::{Cost, Fusion, OpKind, TypeError, Types, streaming};
use crate::types::{DType, TensorType};

/// Most steps of a body.
pub const MAX_STEPS: usize = 32;
/// Most operands of a fused op.
pub const MAX_OPERANDS: usize = 16;
/// Most results of a fused op.
pub const MAX_RESULTS: usize = 8;
/// Most operands of a step.
pub const MAX_ARGS: usize = 5;

/// An operand of a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Arg {
    /// The operand of this index, `x0`.
    Operand(u32),
    /// The earlier step of this index, `t0`.
    Step(u32),
}

/// Addressing of an operand's element for a position in the space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Along {
    /// By broadcasting to the space.
    Space,
    /// Along axis 1 of the space.
    Channel,
    /// There is one element.
    Single,
}

/// One op of a body.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Step {
    /// The op; see [`is_step`].
    pub op: OpKind,
    /// Its operands.
    pub args: Vec<Arg>,
}

/// The steps of a fused op, each reading operands and earlier steps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Body(pub Vec<Step>);

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arg::Operand(i) => write!(f, "x{i}"),
            Arg::Step(j) => write!(f, "t{j}"),
        }
    }
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            write!(f, "{}{}(", if i == 0 { "" } else { "; " }, step.op.mnemonic())?;
            for (k, arg) in step.args.iter().enumerate() {
                write!(f, "{}{arg}", if k == 0 { "" } else { ", " })?;
            }
            let attrs = step.op.attrs_text();
            write!(f, "){}{attrs}", if attrs.is_empty() { "" } else { " " })?;
        }
        Ok(())
    }
}

/// True for an op that may be a step; see [`Fusion::Step`].
pub fn is_step(op: &OpKind) -> bool {
    op.def().fusion == Fusion::Step
}

/// True for an op that may be the head of a body.
pub fn is_head(op: &OpKind) -> bool {
    op.def().fusion == Fusion::Head
}

/// Addressing of the step's operand `arg`.
pub fn along(op: &OpKind, arg: usize) -> Along {
    match op {
        OpKind::BatchNorm {} if arg > 0 => Along::Channel,
        OpKind::Dropout { .. } if arg > 0 => Along::Single,
        OpKind::RandomMask { .. } => Along::Single,
        _ => Along::Space,
    }
}

/// The element type of a step on operands of these types.
pub fn step_dtype(op: &OpKind, args: &[DType]) -> Option<DType> {
    use OpKind::{Cast, Equal, Greater, GreaterEqual, Less, LessEqual, RandomMask, Select};
    match op {
        Cast { to } => Some(*to),
        Equal {} | Less {} | LessEqual {} | Greater {} | GreaterEqual {} | RandomMask { .. } => {
            Some(DType::Bool)
        }
        Select {} => args.get(1).copied(),
        _ => args.first().copied(),
    }
}

impl Body {
    /// The product or convolution that the body begins with.
    pub fn head(&self) -> Option<&Step> {
        self.0.first().filter(|step| is_head(&step.op))
    }

    /// The type of every step, or the fault of one.
    fn types(&self, operands: &[&TensorType]) -> Types {
        let mut types: Vec<TensorType> = Vec::with_capacity(self.0.len());
        for (i, step) in self.0.iter().enumerate() {
            let fail = |why: TypeError| TypeError::from(format!("step t{i}, {}: {why}", step.op.mnemonic()));
            if !(is_step(&step.op) || i == 0 && is_head(&step.op)) {
                return Err(fail("the op is not element-wise".into()));
            }
            let args = self.arguments(i, operands, &types).map_err(fail)?;
            let [ty] = step
                .op
                .infer(&args)
                .map_err(fail)?
                .try_into()
                .map_err(|_| fail("has several results".into()))?;
            if is_head(&step.op) && ty.dtype != DType::F32 {
                return Err(fail(format!("a head is computed in f32, not in {}", ty.dtype).into()));
            }
            let in_order = |(k, &arg): (usize, &Arg)| arg == Arg::Operand(k as u32);
            if is_head(&step.op) && !step.args.iter().enumerate().all(in_order) {
                return Err(fail("a head reads x0, x1 and so on, in order".into()));
            }
            types.push(ty);
        }
        Ok(types)
    }

    /// Types of the operands of step `i`.
    fn arguments<'t>(
        &self,
        i: usize,
        operands: &[&'t TensorType],
        steps: &'t [TensorType],
    ) -> Result<Vec<&'t TensorType>, TypeError> {
        let Step { op, args } = &self.0[i];
        let ty = |(k, arg): (usize, &Arg)| match *arg {
            Arg::Operand(x) => operands.get(x as usize).copied().ok_or(format!("there is no operand {arg}")),
            Arg::Step(_) if along(op, k) != Along::Space => Err(format!("{arg} must be an operand here")),
            Arg::Step(t) => steps
                .get(t as usize)
                .filter(|_| (t as usize) < i)
                .ok_or(format!("{arg} is not an earlier step")),
        };
        Ok(args.iter().enumerate().map(ty).collect::<Result<_, _>>()?)
    }
}

pub(super) fn infer(operands: &[&TensorType], body: &Body, outs: &[u64]) -> Types {
    let bounded = |what: &str, n: usize, most: usize| -> Result<(), TypeError> {
        match n {
            0 => Err(format!("a fused op needs {what}").into()),
            n if n > most => Err(format!("a fused op has at most {most} {what}, this one has {n}").into()),
            _ => Ok(()),
        }
    };
    bounded("steps", body.0.len(), MAX_STEPS)?;
    bounded("operands", operands.len(), MAX_OPERANDS)?;
    bounded("results", outs.len(), MAX_RESULTS)?;
    let types = body.types(operands)?;
    let space = &types[0].shape;
    if let Some((i, ty)) = types.iter().enumerate().find(|(_, ty)| ty.shape != *space) {
        return Err(format!("all steps must have the shape of the first, {space:?}; t{i} is {ty}").into());
    }
    if !outs.is_sorted_by(|a, b| a < b) || outs.iter().any(|&t| t >= types.len() as u64) {
        return Err(format!("outs must name steps in ascending order, got {outs:?}").into());
    }
    let mut read = (vec![false; operands.len()], vec![false; types.len()]);
    outs.iter().for_each(|&t| read.1[t as usize] = true);
    for arg in body.0.iter().flat_map(|s| &s.args) {
        match *arg {
            Arg::Operand(x) => read.0[x as usize] = true,
            Arg::Step(t) => read.1[t as usize] = true,
        }
    }
    if let Some(x) = read.0.iter().position(|&r| !r) {
        return Err(format!("no step reads x{x}").into());
    }
    if let Some(t) = read.1.iter().position(|&r| !r) {
        return Err(format!("t{t} is neither read nor a result").into());
    }
    let results: Vec<TensorType> = outs.iter().map(|&t| types[t as usize].clone()).collect();
    // The result of the head is held there until the other steps read it.
    if body.head().is_some() && results.iter().all(|ty| ty.dtype != DType::F32) {
        return Err("a head needs a result of f32".into());
    }
    Ok(results)
}

/// The arithmetic of all steps, the workspace of a head, and the traffic of operands and results alone.
pub(super) fn cost(operands: &[&TensorType], results: &[&TensorType], body: &Body) -> Cost {
    let types = body.types(operands).unwrap_or_default();
    let mut total = streaming(operands, results, 0);
    for (i, ty) in types.iter().enumerate() {
        let args = body.arguments(i, operands, &types).unwrap_or_default();
        let step = body.0[i].op.row_cost(&args, &[ty]);
        total.flops = total.flops.saturating_add(step.flops);
        // Only a head has any.
        total.workspace = total.workspace.max(step.workspace);
    }
    total
}
