//! 2-D convolution and its gradients, lowered by every device to im2col and matrix products in tiles.

use super::elementwise::{want_float, want_shape};
use super::{Cost, TypeError, Types, streaming};
use crate::types::TensorType;

/// Output extent of a sliding window: `floor((size + pad - dilation * (kernel - 1) - 1) / stride) + 1`.
///
/// `None` when the window does not fit or an extent is out of range.
pub fn conv_output_extent(size: u64, pad: u64, kernel: u64, stride: u64, dilation: u64) -> Option<u64> {
    if kernel == 0 || stride == 0 || dilation == 0 {
        return None;
    }
    let window = (kernel - 1).checked_mul(dilation)?.checked_add(1)?;
    Some(size.checked_add(pad)?.checked_sub(window)? / stride + 1)
}

/// Tiles of output pixels that the column matrix of a convolution is cut into.
///
/// The tiling depends on types only, never on the machine. So results and workspace are the same everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Im2colTiling {
    /// Rows of the column matrix of one group: `channels per group * kh * kw`.
    pub rows: u64,
    /// Output pixels of one image.
    pub pixels: u64,
    /// Output pixels per tile.
    pub tile: u64,
    /// Images processed side by side; image `i` belongs to lane `i % lanes`.
    pub lanes: u64,
}

/// Most images processed side by side.
pub const MAX_LANES: u64 = 4;
/// Bytes of columns that a tile has in each lane, unless that would be fewer than [`MIN_TILE`] pixels.
const LANE_BYTES: u64 = 64 << 10;
/// Fewest pixels of a tile: matrix products with fewer columns run at half the speed.
const MIN_TILE: u64 = 96;

/// The tiling for `batch` images of `pixels` output pixels and `rows` column-matrix rows.
pub fn im2col_tiling(batch: u64, rows: u64, pixels: u64) -> Im2colTiling {
    let fit = LANE_BYTES / 4 / rows.max(1);
    let tile = (fit / 16 * 16).max(MIN_TILE).min(pixels.max(1));
    Im2colTiling { rows, pixels, tile, lanes: batch.clamp(1, MAX_LANES) }
}

/// Attributes of a convolution; `pads` is top, left, bottom, right.
pub(super) struct Window<'a> {
    pub(super) strides: &'a [u64],
    pub(super) pads: &'a [u64],
    pub(super) dilations: &'a [u64],
    pub(super) groups: i64,
}

impl Window<'_> {
    fn check(&self) -> Result<u64, TypeError> {
        let positive = |xs: &[u64]| xs.len() == 2 && xs.iter().all(|&x| (1..=1 << 20).contains(&x));
        if !positive(self.strides) || !positive(self.dilations) {
            return Err("strides and dilations must be two positive numbers".into());
        }
        if self.pads.len() != 4 || self.pads.iter().any(|&p| p > 1 << 30) {
            return Err("pads must be four numbers: top, left, bottom, right".into());
        }
        u64::try_from(self.groups).ok().filter(|&g| g > 0).ok_or_else(|| "groups must be positive".into())
    }

    fn output(&self, size: &[u64], kernel: &[u64]) -> Result<[u64; 2], TypeError> {
        let axis = |i: usize| {
            let pad = self.pads[i] + self.pads[i + 2];
            conv_output_extent(size[i], pad, kernel[i], self.strides[i], self.dilations[i])
                .ok_or_else(|| format!("window {kernel:?} does not fit input extent {size:?}"))
        };
        Ok([axis(0)?, axis(1)?])
    }
}

fn four(ty: &TensorType, name: &str) -> Result<[u64; 4], TypeError> {
    want_float(ty, name)?;
    <[u64; 4]>::try_from(ty.shape.as_slice())
        .map_err(|_| format!("{name} must have four axes (2-D convolution), got {ty}").into())
}

pub(super) fn conv(ops: &[&TensorType], win: &Window) -> Types {
    let g = win.check()?;
    let [n, c, h, w] = four(ops[0], "x")?;
    let [m, cg, kh, kw] = four(ops[1], "w")?;
    if cg.checked_mul(g) != Some(c) || m % g != 0 {
        return Err(format!("x = {} and w = {} do not match with {g} groups", ops[0], ops[1]).into());
    }
    if let Some(bias) = ops.get(2) {
        want_float(bias, "bias")?;
        want_shape(bias, &[m], "bias")?;
    }
    let [oh, ow] = win.output(&[h, w], &[kh, kw])?;
    Ok(vec![TensorType::new(ops[0].dtype, [n, m, oh, ow])])
}

pub(super) fn grad_input(ops: &[&TensorType], win: &Window, size: &[u64]) -> Types {
    let g = win.check()?;
    let [n, m, oh, ow] = four(ops[0], "dy")?;
    let [m2, cg, kh, kw] = four(ops[1], "w")?;
    let c = cg.checked_mul(g).ok_or("channel count overflows")?;
    if size.len() != 2 || m != m2 || m % g != 0 || win.output(size, &[kh, kw])? != [oh, ow] {
        return Err(format!("dy = {}, w = {} and size {size:?} do not match", ops[0], ops[1]).into());
    }
    Ok(vec![TensorType::new(ops[0].dtype, [n, c, size[0], size[1]])])
}

pub(super) fn grad_weight(ops: &[&TensorType], win: &Window, kernel: &[u64]) -> Types {
    let g = win.check()?;
    let [n, m, oh, ow] = four(ops[0], "dy")?;
    let [n2, c, h, w] = four(ops[1], "x")?;
    if kernel.len() != 2 || n != n2 || m % g != 0 || c % g != 0 || win.output(&[h, w], kernel)? != [oh, ow] {
        return Err(format!("dy = {}, x = {} and kernel {kernel:?} do not match", ops[0], ops[1]).into());
    }
    Ok(vec![TensorType::new(ops[0].dtype, [m, c / g, kernel[0], kernel[1]])])
}

/// Whether the column matrix is the image itself.
fn is_pointwise(kernel: &[u64], strides: &[u64], pads: &[u64]) -> bool {
    kernel == [1, 1] && strides == [1, 1] && pads.iter().all(|&p| p == 0)
}

/// Whether every one of several input channels is a group of its own; `w` is the weight's shape.
///
/// Such a convolution sums over kernel positions only, plane by plane, and needs no columns.
pub fn is_depthwise(w: &[u64], channels: u64) -> bool {
    channels > 1 && w.get(1) == Some(&1)
}

fn columns(x: &[u64], w: &[u64], out: &[u64], strides: &[u64], pads: &[u64]) -> (u64, Im2colTiling) {
    let t = im2col_tiling(x[0], w[1] * w[2] * w[3], out[0] * out[1]);
    let none = is_depthwise(w, x[1]) || is_pointwise(&w[2..], strides, pads);
    (if none { 0 } else { t.lanes * t.rows * t.tile * 4 }, t)
}

pub(super) fn conv_cost(ops: &[&TensorType], res: &[&TensorType], s: &[u64], p: &[u64]) -> Cost {
    let w = &ops[1].shape;
    let (workspace, t) = columns(&ops[0].shape, w, &res[0].shape[2..], s, p);
    Cost { workspace, ..streaming(ops, res, 2 * t.rows) }
}

pub(super) fn grad_input_cost(ops: &[&TensorType], res: &[&TensorType], s: &[u64], p: &[u64]) -> Cost {
    let (workspace, t) = columns(&res[0].shape, &ops[1].shape, &ops[0].shape[2..], s, p);
    Cost { workspace, flops: ops[0].numel().saturating_mul(2 * t.rows), ..streaming(ops, res, 0) }
}

pub(super) fn grad_weight_cost(ops: &[&TensorType], res: &[&TensorType], s: &[u64], p: &[u64]) -> Cost {
    let (columns, t) = columns(&ops[1].shape, &res[0].shape, &ops[0].shape[2..], s, p);
    // Every lane but the first sums into a copy of the result of its own.
    let copies = if is_depthwise(&res[0].shape, ops[1].shape[1]) { 0 } else { t.lanes - 1 };
    let workspace = columns + copies * res[0].bytes();
    Cost { workspace, flops: ops[0].numel().saturating_mul(2 * t.rows), ..streaming(ops, res, 0) }
}
