//! Normalisations and softmax. Batch and layer normalisation are ops, the others compositions of them.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{OpKind, TensorType, ValueId};

use crate::context::{Done, NodeCx};
use crate::error::{Fault, unsupported};

/// The ops of batch normalisation with the batch's own statistics. Binds the result; returns mean, inverse
/// standard deviation, and the new running mean and variance.
///
/// The running variance follows the population variance, as the ONNX specification and ONNX Runtime define
/// it, unless the model comes from PyTorch, where it follows the sample variance.
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
    let scale = if n.cx.sample_variance { sample_scale(n.ty(x)) } else { 1.0 };
    let new_var = n.temp(OpKind::MovingAverage { momentum, scale: F32(scale) }, &[running_var, var])?;
    Ok([mean, inv_std, new_mean, new_var])
}

/// Sample variance by population variance of the elements of a channel.
fn sample_scale(ty: &TensorType) -> f32 {
    let count = ty.numel() / ty.shape.get(1).copied().unwrap_or(1).max(1);
    if count > 1 { (count as f64 / (count - 1) as f64) as f32 } else { 1.0 }
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

/// `BatchNormalization`: training mode from opset 14 on, else and in evaluations inference mode.
pub(crate) fn batch_normalization(n: &mut NodeCx<'_, '_>) -> Done {
    let trains = n.version >= 14 && n.flag("training_mode", false)?;
    if trains && !n.cx.is_evaluation {
        let [_, _, new_mean, new_var] = train(n)?;
        n.bind(1, new_mean);
        n.bind(2, new_var);
        return Ok(());
    }
    if trains {
        // The running statistics stay as they are.
        for i in [1, 2] {
            let running = n.operand(i + 2)?;
            n.bind(i, running);
        }
    } else if (1..n.node.outputs.len()).any(|i| n.output(i).is_some()) {
        return unsupported(if n.version >= 14 {
            "it has results of training mode without its attribute `training_mode`, as of InstanceNorm with \
             running statistics"
        } else {
            "training mode is supported from opset 14 on, with attribute `training_mode`"
        });
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
        let x = n.matrix(x, axis)?;
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

/// `InstanceNormalization`: group normalisation with a group per channel.
pub(crate) fn instance(n: &mut NodeCx<'_, '_>) -> Done {
    let channels = n.operand_type(0)?.shape.get(1).copied().unwrap_or(0);
    grouped(n, channels, 1e-5)
}

/// `GroupNormalization`; scale and bias are per channel, before opset 21 per group.
pub(crate) fn group(n: &mut NodeCx<'_, '_>) -> Done {
    let groups = n.int("num_groups", 0)?;
    match u64::try_from(groups) {
        Ok(groups) => grouped(n, groups, 1e-5),
        Err(_) => Err(format!("there is no number of groups {groups}").into()),
    }
}

/// Layer normalisation of every group of channels of every sample, then scale and bias.
fn grouped(n: &mut NodeCx<'_, '_>, groups: u64, epsilon: f32) -> Done {
    let (x, scale, bias) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let ty = n.ty(x).clone();
    let &[batch, channels, ..] = ty.shape.as_slice() else {
        return Err(format!("{ty} has no channels").into());
    };
    if groups == 0 || !channels.is_multiple_of(groups) || ty.numel() == 0 {
        return Err(format!("{ty} cannot be cut into {groups} groups of channels").into());
    }
    let epsilon = F32(n.float("epsilon", epsilon)?);
    let length = ty.numel() / (batch * groups);
    let rows = n.reshaped(x, &[batch, groups, length])?;
    let one = OpKind::Fill { dtype: ty.dtype, shape: vec![length], value: Scalar::Float(F32(1.0)) };
    let one = n.temp(one, &[])?;
    let y = n.temp(OpKind::LayerNorm { axis: 2, epsilon }, &[rows, one])?;
    let by_group = n.node.op == "GroupNormalization" && n.version < 21;
    let y = if by_group { y } else { n.reshaped(y, &ty.shape)? };
    let mut column = vec![1; n.ty(y).rank()];
    column[1] = if by_group { groups } else { channels };
    let (scale, bias) = (n.reshaped(scale, &column)?, n.reshaped(bias, &column)?);
    let y = n.mul(y, scale)?;
    let y = n.add(y, bias)?;
    let y = n.reshaped(y, &ty.shape)?;
    n.yields(0, y);
    Ok(())
}

/// `RMSNormalization`: `x / sqrt(mean(x^2) + epsilon) * scale` over the axes from `axis` on.
pub(crate) fn rms(n: &mut NodeCx<'_, '_>) -> Done {
    let (x, scale) = (n.operand(0)?, n.operand(1)?);
    let rank = n.ty(x).rank();
    let axis = n.axis(n.int("axis", -1)?, rank)?;
    if n.int("stash_type", 1)? != 1 {
        return unsupported("statistics in another type than float are not supported");
    }
    let epsilon = n.float("epsilon", 1e-5)?;
    let axes: Vec<u64> = (axis as u64..rank as u64).collect();
    let square = n.mul(x, x)?;
    let mean = n.mean(square, &axes)?;
    let mean = n.shifted(mean, "epsilon", epsilon)?;
    let root = n.temp(OpKind::Sqrt {}, &[mean])?;
    let y = n.div(x, root)?;
    n.finish(OpKind::Mul {}, &[y, scale])
}

/// `LpNormalization`: divided by the 1- or 2-norm along one axis; zero where that is zero.
pub(crate) fn lp(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let axes = [n.axis(n.int("axis", -1)?, n.ty(x).rank())? as u64];
    let p = n.int("p", 2)?;
    let sum = match p {
        1 => super::reduce::l1(n, x, &axes, true)?,
        2 => super::reduce::sum_square(n, x, &axes, true)?,
        p => return unsupported(format!("the {p}-norm is not supported; supported are 1 and 2")),
    };
    let (zero, one) = (n.number(x, "zero", 0.0)?, n.number(x, "one", 1.0)?);
    let empty = n.temp(OpKind::Equal {}, &[sum, zero])?;
    // Before the root, whose gradient has no value at zero.
    let sum = n.pick(empty, one, sum)?;
    let norm = if p == 2 { n.temp(OpKind::Sqrt {}, &[sum])? } else { sum };
    n.finish(OpKind::Div {}, &[x, norm])
}

/// `MeanVarianceNormalization`: `(x - mean) / (sqrt(variance) + 1e-9)`.
pub(crate) fn mean_variance(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let axes = n.axes(n.ints("axes")?.unwrap_or(&[0, 2, 3]), n.ty(x).rank())?;
    let mean = n.mean(x, &axes)?;
    let centred = n.sub(x, mean)?;
    let square = n.mul(centred, centred)?;
    let variance = n.mean(square, &axes)?;
    let deviation = n.norm(variance, 2)?;
    let deviation = n.shifted(deviation, "epsilon", 1e-9)?;
    n.finish(OpKind::Div {}, &[centred, deviation])
}

/// `LRN`: `x / (bias + alpha * mean(x^2))^beta`, where the mean is over `size` neighbouring channels, those
/// outside counting as zero: average pooling with the channels as rows.
pub(crate) fn local_response(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let ty = n.ty(x).clone();
    let &[batch, channels, ..] = ty.shape.as_slice() else {
        return Err(format!("{ty} has no channels").into());
    };
    let (alpha, beta, bias) = (n.float("alpha", 1e-4)?, n.float("beta", 0.75)?, n.float("bias", 1.0)?);
    let size = n.int("size", 0)?;
    let Some(size) = u64::try_from(size).ok().filter(|&s| s > 0) else {
        return Err(format!("there is no number of channels {size}").into());
    };
    let pixels = ty.shape.iter().skip(2).product();
    let square = n.mul(x, x)?;
    let square = n.reshaped(square, &[batch, 1, channels, pixels])?;
    let mean = OpKind::AveragePool {
        kernel: vec![size, 1],
        strides: vec![1, 1],
        pads: vec![(size - 1) / 2, 0, size / 2, 0],
        ceil: false,
        count_pad: true,
    };
    let mean = n.temp(mean, &[square])?;
    let mean = n.reshaped(mean, &ty.shape)?;
    let mean = n.scaled(mean, "alpha", alpha)?;
    let mean = n.shifted(mean, "bias", bias)?;
    let beta = n.number(x, "beta", beta)?;
    let divisor = n.temp(OpKind::Pow {}, &[mean, beta])?;
    n.finish(OpKind::Div {}, &[x, divisor])
}
