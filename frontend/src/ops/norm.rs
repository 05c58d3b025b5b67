//! Batch and layer normalisation, and softmax.

use memc_ir::attr::F32;
use memc_ir::{OpKind, ValueId};

use crate::context::{Done, NodeCx};
use crate::error::{Fault, unsupported};

/// The ops of batch normalisation with the batch's own statistics. Binds the result; returns mean, inverse
/// standard deviation, and the new running mean and variance.
///
/// The running variance follows the population variance, as the ONNX specification and ONNX Runtime define
/// it.
fn train(n: &mut NodeCx<'_, '_>) -> Result<[ValueId; 4], Fault> {
    let (x, scale, bias) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let (running_mean, running_var) = (n.operand(3)?, n.operand(4)?);
    let epsilon = F32(n.float("epsilon", 1e-5)?);
    let momentum = F32(n.float("momentum", 0.9)?);
    let base = n.output(0).unwrap_or_default();
    let names = ["mean", "var", "inv_std"].map(|s| format!("{base}/{s}"));
    let names = [
        n.output(3).unwrap_or(&names[0]).to_string(),
        names[1].clone(),
        n.output(4).unwrap_or(&names[2]).to_string(),
    ];
    let hints: Vec<&str> = names.iter().map(String::as_str).collect();
    let stats = n.cx.module.add_op(OpKind::BatchNormStats { epsilon }, &[x], &hints, &n.node.name)?;
    let &[mean, var, inv_std] = stats.as_slice() else {
        return Err("statistics are incomplete".into());
    };
    n.finish_at(0, OpKind::BatchNorm {}, &[x, scale, bias, mean, inv_std])?;
    let new_mean = n.temp(OpKind::MovingAverage { momentum, scale: F32(1.0) }, &[running_mean, mean])?;
    let new_var = n.temp(OpKind::MovingAverage { momentum, scale: F32(1.0) }, &[running_var, var])?;
    Ok([mean, inv_std, new_mean, new_var])
}

/// Microsoft's `BatchNormInternal`, which also updates the running statistics (inputs 3 and 4) in place.
pub(crate) fn batch_norm_internal(n: &mut NodeCx<'_, '_>) -> Done {
    if !n.flag("training_mode", true)? {
        return unsupported("inference mode is not supported");
    }
    let [mean, inv_std, new_mean, new_var] = train(n)?;
    n.bind(1, new_mean);
    n.bind(2, new_var);
    n.bind(3, mean);
    n.bind(4, inv_std);
    for (i, new) in [(3, new_mean), (4, new_var)] {
        if let Some(name) = n.input(i) {
            n.cx.bind(name, new);
        }
    }
    Ok(())
}

/// `BatchNormalization`: training mode from opset 14 on, else inference mode.
pub(crate) fn batch_normalization(n: &mut NodeCx<'_, '_>) -> Done {
    if n.version >= 14 && n.flag("training_mode", false)? {
        let [_, _, new_mean, new_var] = train(n)?;
        n.bind(1, new_mean);
        n.bind(2, new_var);
        return Ok(());
    }
    if (1..n.node.outputs.len()).any(|i| n.output(i).is_some()) {
        return unsupported("training mode is supported from opset 14 on, with attribute `training_mode`");
    }
    let (x, scale, bias) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let (mean, var) = (n.operand(3)?, n.operand(4)?);
    let epsilon = n.float("epsilon", 1e-5)?;
    let epsilon = n.scalar("epsilon", epsilon)?;
    let shifted = n.temp(OpKind::Add {}, &[var, epsilon])?;
    let std = n.temp(OpKind::Sqrt {}, &[shifted])?;
    let inv_std = n.temp(OpKind::Reciprocal {}, &[std])?;
    n.finish(OpKind::BatchNorm {}, &[x, scale, bias, mean, inv_std])
}

/// Microsoft's `BatchNormalizationGrad(dY, X, scale, mean, inv_std) -> (dX, dscale, dbias)`.
pub(crate) fn batch_norm_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let operands = five(n)?;
    n.finish(OpKind::BatchNormGrad {}, &operands)
}

fn five(n: &mut NodeCx<'_, '_>) -> Result<[ValueId; 5], Fault> {
    Ok([n.operand(0)?, n.operand(1)?, n.operand(2)?, n.operand(3)?, n.operand(4)?])
}

/// `LayerNormalization`, which ONNX Runtime puts into the default domain at any opset.
pub(crate) fn layer_normalization(n: &mut NodeCx<'_, '_>) -> Done {
    let (x, scale, bias) = (n.operand(0)?, n.operand(1)?, n.optional(2)?);
    let axis = n.axis(n.int("axis", -1)?, n.ty(x).rank())? as i64;
    let epsilon = F32(n.float("epsilon", 1e-5)?);
    if n.int("stash_type", 1)? != 1 {
        return unsupported("statistics in another type than float are not supported");
    }
    let mut operands = vec![x, scale];
    operands.extend(bias);
    n.finish(OpKind::LayerNorm { axis, epsilon }, &operands)
}

/// Microsoft's `LayerNormalizationGrad(dY, X, scale, mean, inv_std) -> (dX, dscale, dbias)`.
pub(crate) fn layer_norm_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let operands = five(n)?;
    let axis = n.axis(n.int("axis", -1)?, n.ty(operands[1]).rank())? as i64;
    n.finish(OpKind::LayerNormGrad { axis }, &operands)
}

/// `Softmax` and `LogSoftmax` along one axis; before opset 13 along all axes from one on together.
pub(crate) fn softmax(n: &mut NodeCx<'_, '_>, kind: impl FnOnce(i64) -> OpKind) -> Done {
    let x = n.operand(0)?;
    if n.version < 13 {
        let shape = n.ty(x).shape.clone();
        let axis = n.axis(n.int("axis", 1)?, shape.len())?;
        let (rows, columns) = shape.split_at(axis);
        let x = n.reshaped(x, &[rows.iter().product(), columns.iter().product()])?;
        let y = n.temp(kind(1), &[x])?;
        let y = n.reshaped(y, &shape)?;
        n.yields(0, y);
        return Ok(());
    }
    let axis = n.axis(n.int("axis", -1)?, n.ty(x).rank())?;
    n.finish(kind(axis as i64), &[x])
}

/// Microsoft's `SoftmaxGrad_13(dY, Y)`.
pub(crate) fn softmax_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let operands = [n.operand(0)?, n.operand(1)?];
    let axis = n.axis(n.int("axis", -1)?, n.ty(operands[1]).rank())?;
    n.finish(OpKind::SoftmaxGrad { axis: axis as i64 }, &operands)
}
