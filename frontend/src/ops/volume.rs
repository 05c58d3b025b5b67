//! Convolution over three spatial axes, and `Col2Im`.
//!
//! A convolution over depth, height and width is one over height and width whose channels are the input's
//! channels at every depth of the window. The weight needs no copy for that: its axes are in that order.

use memc_ir::{DType, OpKind, ValueId};

use super::window::{Window, spatial};
use crate::context::{Done, Made, NodeCx};
use crate::error::Fault;
use crate::tensor::Literal;

/// Positions along an axis that each window covers: `[windows, taps]`, as `i64`.
fn places(n: &mut NodeCx<'_, '_>, windows: u64, taps: u64, stride: u64, dilation: u64) -> Made {
    n.small(windows.saturating_mul(taps))?;
    let at = |w: u64, t: u64| Some(w.checked_mul(stride)?.checked_add(t.checked_mul(dilation)?)? as i64);
    let list: Option<Vec<i64>> = (0..windows).flat_map(|w| (0..taps).map(move |t| at(w, t))).collect();
    let list = list.ok_or("the window is out of range")?;
    n.constant_value("places", &Literal::from_ints(DType::I64, &[windows, taps], &list)?)
}

/// Extent of an axis that `windows` windows cover.
fn covered(windows: u64, taps: u64, stride: u64, dilation: u64) -> Option<u64> {
    let span = windows.checked_sub(1)?.checked_mul(stride)?;
    span.checked_add(taps.checked_sub(1)?.checked_mul(dilation)?)?.checked_add(1)
}

fn product(list: &[u64]) -> u64 {
    list.iter().fold(1, |p, &d| p.saturating_mul(d))
}

fn five(n: &NodeCx<'_, '_>, value: ValueId) -> Result<[u64; 5], Fault> {
    let shape = n.ty(value).shape.as_slice();
    <[u64; 5]>::try_from(shape).map_err(|_| Fault::Bad(format!("{} must have five axes", n.ty(value))))
}

/// `Conv` over three spatial axes.
pub(super) fn conv(n: &mut NodeCx<'_, '_>, x: ValueId, w: ValueId, bias: Option<ValueId>) -> Done {
    let [out, inner, taps, ..] = five(n, w)?;
    let mut window = Window::read(n, 3, Some(spatial(&n.ty(w).shape)))?;
    window.pad_automatically(n, spatial(&n.ty(x).shape))?;
    let groups = n.int("group", 1)?;
    let depth = n.ty(x).shape.get(2).copied().unwrap_or(0);
    let windows = window.pooled(0, depth, false).ok_or("the window does not fit the input's depth")?;
    let (before, after) = (window.pads.first().copied(), window.pads.get(3).copied());
    let x = n.padded(x, 2, [before.unwrap_or(0), after.unwrap_or(0)], 0.0)?;
    let [batch, channels, _, height, width] = five(n, x)?;
    let (stride, dilation) = (window.strides.first().copied(), window.dilations.first().copied());
    let at = places(n, windows, taps, stride.unwrap_or(1), dilation.unwrap_or(1))?;
    let x = n.temp(OpKind::Gather { axis: 2 }, &[x, at])?;
    let x = n.turned(x, &[0, 2, 1, 3, 4, 5])?;
    let x = n.reshaped(x, &[batch.saturating_mul(windows), channels.saturating_mul(taps), height, width])?;
    let plane = window.over(1, Some(2));
    let kernel = plane.kernel.clone();
    let w = n.reshaped(w, &[&[out, inner.saturating_mul(taps)], kernel.as_slice()].concat())?;
    let Window { strides, pads, dilations, .. } = plane;
    let mut operands = vec![x, w];
    operands.extend(bias);
    let y = n.temp(OpKind::Conv { strides, pads, dilations, groups }, &operands)?;
    let image = spatial(&n.ty(y).shape).to_vec();
    let y = n.reshaped(y, &[&[batch, windows, out], image.as_slice()].concat())?;
    let y = n.turned(y, &[0, 2, 1, 3, 4])?;
    n.yields(0, y);
    Ok(())
}

/// `ConvTranspose` over three spatial axes, without the bias; `size` is the output's spatial extent.
pub(super) fn conv_transpose(
    n: &mut NodeCx<'_, '_>,
    x: ValueId,
    w: ValueId,
    window: &Window,
    size: &[u64],
) -> Made {
    let ([batch, channels, depth, height, width], [_, inner, taps, ..]) = (five(n, x)?, five(n, w)?);
    let groups = n.int("group", 1)?;
    let out = inner.saturating_mul(u64::try_from(groups).unwrap_or(0));
    let plane = window.over(1, Some(2));
    let kernel = plane.kernel.clone();
    let x = n.turned(x, &[0, 2, 1, 3, 4])?;
    let x = n.reshaped(x, &[batch.saturating_mul(depth), channels, height, width])?;
    let w = n.reshaped(w, &[&[channels, inner.saturating_mul(taps)], kernel.as_slice()].concat())?;
    let Window { strides, pads, dilations, .. } = plane;
    let image = size.get(1..).unwrap_or_default().to_vec();
    let kind = OpKind::ConvGradInput { strides, pads, dilations, groups, size: image.clone() };
    let y = n.temp(kind, &[x, w])?;
    let y = n.reshaped(y, &[&[batch, depth, out, taps], image.as_slice()].concat())?;
    let y = n.turned(y, &[0, 2, 1, 3, 4, 5])?;
    let along = Along {
        windows: depth,
        taps,
        stride: window.strides.first().copied().unwrap_or(1),
        dilation: window.dilations.first().copied().unwrap_or(1),
        before: window.pads.first().copied().unwrap_or(0),
        size: size.first().copied().unwrap_or(0),
    };
    along.fold(n, y, 2)
}

/// Windows along an axis.
struct Along {
    windows: u64,
    taps: u64,
    stride: u64,
    dilation: u64,
    /// Padding before the axis.
    before: u64,
    /// Extent of the axis without padding.
    size: u64,
}

impl Along {
    /// Adds up what windows have at each position: axes `axis` (windows) and `axis + 1` (taps) become one.
    fn fold(&self, n: &mut NodeCx<'_, '_>, x: ValueId, axis: usize) -> Made {
        let covered = covered(self.windows, self.taps, self.stride, self.dilation);
        let end = self.before.checked_add(self.size);
        let (Some(covered), Some(end)) = (covered, end) else {
            return Err("the window is out of range".into());
        };
        let at = places(n, self.windows, self.taps, self.stride, self.dilation)?;
        let dim = i64::try_from(covered.max(end)).map_err(|_| "an extent is too large")?;
        let y = n.temp(OpKind::GatherGrad { axis: axis as i64, dim }, &[at, x])?;
        if n.ty(y).shape.get(axis) == Some(&self.size) {
            return Ok(y);
        }
        n.cut(y, axis, self.before, end, 1)
    }
}

/// `Col2Im(input [batch, channels * block, windows], image_shape, block_shape)`: the sum of overlapping
/// blocks.
pub(crate) fn col2im(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let sizes = |n: &NodeCx<'_, '_>, i: usize, what: &str| -> Result<Vec<u64>, Fault> {
        let list = n.const_ints(i, what)?.ok_or("an input is missing")?;
        let list: Option<Vec<u64>> = list.iter().map(|&v| u64::try_from(v).ok()).collect();
        list.ok_or_else(|| Fault::Bad(format!("its {what} is negative")))
    };
    let (image, block) = (sizes(n, 1, "image_shape")?, sizes(n, 2, "block_shape")?);
    let axes = image.len();
    let list = |n: &NodeCx<'_, '_>, name: &str, len: usize, default: u64| match n.sizes(name)? {
        Some(v) if v.len() == len => Ok(v),
        Some(v) => Err(Fault::Bad(format!("attribute `{name}` = {v:?} must have {len} numbers"))),
        None => Ok(vec![default; len]),
    };
    let strides = list(n, "strides", axes, 1)?;
    let dilations = list(n, "dilations", axes, 1)?;
    let pads = list(n, "pads", 2 * axes, 0)?;
    let ty = n.ty(x).clone();
    let &[batch, rows, _] = ty.shape.as_slice() else {
        return Err(format!("{ty} must have three axes").into());
    };
    let taps = product(&block);
    if block.len() != axes || taps == 0 || rows % taps != 0 {
        return Err(format!("blocks {block:?} do not fit {ty} and an image {image:?}").into());
    }
    let window = Window {
        kernel: block.clone(),
        strides: strides.clone(),
        pads: pads.clone(),
        dilations: dilations.clone(),
    };
    let count = |i: usize| window.pooled(i, image.get(i).copied().unwrap_or(0), false);
    let windows: Option<Vec<u64>> = (0..axes).map(count).collect();
    let windows = windows.ok_or("the blocks do not fit the image")?;
    let x = n.reshaped(x, &[&[batch, rows / taps], block.as_slice(), windows.as_slice()].concat())?;
    let spread = (0..axes).flat_map(|i| [(2 + axes + i) as u64, (2 + i) as u64]);
    let perm: Vec<u64> = [0, 1].into_iter().chain(spread).collect();
    let mut y = n.turned(x, &perm)?;
    for i in 0..axes {
        let along = Along {
            windows: windows[i],
            taps: block[i],
            stride: strides[i],
            dilation: dilations[i],
            before: pads[i],
            size: image[i],
        };
        y = along.fold(n, y, 2 + i)?;
    }
    n.yields(0, y);
    Ok(())
}
