//! Normalisations without a row of their own, as compositions.

use memc_ir::OpKind;
use memc_ir::attr::{F32, Scalar};

use crate::context::{Done, NodeCx};
use crate::error::unsupported;

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
