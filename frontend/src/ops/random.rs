//! Dropout and random tensors.
//!
//! Random bits are a function of a seed, the number of the random node in the graph (its stream) and the
//! number of the training step, so that computing a tensor again gives the same bits. The seed is the node's
//! own or the import's; every micro-step of an accumulated step counts on.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, OpKind, ValueId};

use crate::context::{Done, NodeCx};
use crate::error::{Fault, unsupported};
use crate::tensor;

/// The ratio of a dropout node with ratio input `ratio` and mode input `mode`; `None` where it changes
/// nothing.
fn active(n: &NodeCx<'_, '_>, ratio: usize, mode: usize) -> Result<Option<f32>, Fault> {
    if n.cx.is_evaluation {
        return Ok(None);
    }
    let attr = n.node.domain.is_empty() && n.version < 12;
    let ratio = match n.input(ratio) {
        Some(_) => n.constant(ratio, "ratio")?.and_then(|l| l.single()),
        None => Some(Scalar::Float(F32(if attr { n.float("ratio", 0.5)? } else { 0.5 }))),
    };
    let mode = match n.input(mode) {
        Some(_) => n.constant(mode, "training_mode")?.and_then(|l| l.single()),
        None => Some(Scalar::Int(0)),
    };
    match (ratio, mode) {
        (_, Some(Scalar::Int(0))) => Ok(None),
        (Some(Scalar::Float(r)), _) if r.0 == 0.0 => Ok(None),
        (Some(Scalar::Float(r)), Some(_)) if (0.0..1.0).contains(&r.0) => Ok(Some(r.0)),
        (Some(Scalar::Float(r)), Some(_)) => {
            unsupported(format!("ratio {} is not supported; it must be in [0, 1)", r.0))
        }
        _ => Err("ratio and training_mode must be one number and one boolean".into()),
    }
}

/// `Dropout`: a random mask, and the operand scaled where the mask is true.
pub(crate) fn dropout(n: &mut NodeCx<'_, '_>) -> Done {
    let Some(ratio) = active(n, 1, 2)? else {
        if n.wants(1) {
            let shape = n.operand_type(0)?.shape;
            n.finish_at(1, OpKind::Fill { dtype: DType::Bool, shape, value: Scalar::Int(1) }, &[])?;
        }
        return super::shape::identity(n);
    };
    let x = n.operand(0)?;
    let shape = n.ty(x).shape.clone();
    let key = Key::new(n, n.node.attrs.contains_key("seed").then(|| n.int("seed", 0)).transpose()?)?;
    let Key { seed, stream, step } = key;
    let kind = OpKind::RandomMask { ratio: F32(ratio), seed, stream, shape };
    let mask = match n.output(1) {
        Some(_) => {
            n.finish_at(1, kind, &[step])?;
            n.cx.value(n.output(1).unwrap_or_default())?
        }
        None => n.temp(kind, &[step])?,
    };
    n.finish_at(0, OpKind::MaskScale { scale: F32(1.0 / (1.0 - ratio)) }, &[x, mask])
}

/// Microsoft's `DropoutGrad(dY, mask, ratio, training_mode)`.
pub(crate) fn dropout_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let Some(ratio) = active(n, 2, 3)? else { return super::shape::identity(n) };
    let operands = [n.operand(0)?, n.operand(1)?];
    n.finish(OpKind::MaskScale { scale: F32(1.0 / (1.0 - ratio)) }, &operands)
}

/// Inputs of the generator for one random node.
struct Key {
    seed: i64,
    stream: i64,
    step: ValueId,
}

impl Key {
    /// The key of this node, which may have a seed of its own.
    fn new(n: &mut NodeCx<'_, '_>, own: Option<i64>) -> Result<Key, Fault> {
        let stream = n.cx.streams;
        n.cx.streams = stream.checked_add(1).ok_or("there are too many random nodes")?;
        Ok(Key { seed: own.unwrap_or(n.cx.seed), stream: stream.into(), step: n.cx.step() })
    }
}

/// The seed attribute of a random node, which is a float.
fn float_seed(n: &NodeCx<'_, '_>) -> Result<Option<i64>, Fault> {
    if !n.node.attrs.contains_key("seed") {
        return Ok(None);
    }
    Ok(Some(seed_bits(n.float("seed", 0.0)?)))
}

/// The integer that a seed given as a float stands for: itself when it is one, else its bits.
pub(crate) fn seed_bits(seed: f32) -> i64 {
    if seed.fract() == 0.0 && seed.abs() < 16_777_216.0 { seed as i64 } else { seed.to_bits().into() }
}

/// The shape of a random tensor: attribute `shape`, or that of input 0.
fn shape_of(n: &NodeCx<'_, '_>, like: bool) -> Result<Vec<u64>, Fault> {
    if n.int("dtype", 1)? != 1 {
        return unsupported("only random tensors of floats are supported");
    }
    if like {
        return Ok(n.operand_type(0)?.shape);
    }
    let dims = n.ints("shape")?.ok_or("attribute `shape` is missing")?;
    Ok(tensor::tensor_type(DType::F32, dims)?.shape)
}

/// `RandomUniform` and, with `like`, `RandomUniformLike`.
pub(crate) fn uniform(n: &mut NodeCx<'_, '_>, like: bool) -> Done {
    let shape = shape_of(n, like)?;
    let (low, high) = (F32(n.float("low", 0.0)?), F32(n.float("high", 1.0)?));
    let own = float_seed(n)?;
    let Key { seed, stream, step } = Key::new(n, own)?;
    n.finish(OpKind::RandomUniform { seed, stream, shape, low, high }, &[step])
}

/// `RandomNormal` and, with `like`, `RandomNormalLike`.
pub(crate) fn normal(n: &mut NodeCx<'_, '_>, like: bool) -> Done {
    let shape = shape_of(n, like)?;
    let (mean, scale) = (F32(n.float("mean", 0.0)?), F32(n.float("scale", 1.0)?));
    let own = float_seed(n)?;
    let Key { seed, stream, step } = Key::new(n, own)?;
    n.finish(OpKind::RandomNormal { seed, stream, shape, mean, scale }, &[step])
}

/// `Bernoulli`: true with the probability in the operand.
pub(crate) fn bernoulli(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let own = float_seed(n)?;
    let Key { seed, stream, step } = Key::new(n, own)?;
    let shape = n.ty(x).shape.clone();
    let code = i32::try_from(n.int("dtype", 1)?).map_err(|_| "attribute `dtype` is no element type")?;
    let to = tensor::dtype(code)?;
    let drawn = OpKind::RandomUniform { seed, stream, shape, low: F32(0.0), high: F32(1.0) };
    let drawn = n.temp(drawn, &[step])?;
    if to == DType::Bool {
        return n.finish(OpKind::Less {}, &[drawn, x]);
    }
    let hit = n.temp(OpKind::Less {}, &[drawn, x])?;
    n.finish(OpKind::Cast { to }, &[hit])
}
