//! Attributes of sliding windows: kernel, strides, pads, dilations, automatic padding.

use memc_ir::ValueId;
use memc_ir::ops::pool_output_extent;

use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};

/// A window over two or more spatial axes; ops want two.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub kernel: Vec<u64>,
    pub strides: Vec<u64>,
    /// Before every axis, then after every axis: top, left, bottom, right.
    pub pads: Vec<u64>,
    pub dilations: Vec<u64>,
}

impl Window {
    /// The node's window over `axes` spatial axes; over one axis it becomes a window over two, the first of
    /// extent one. `weight` is the kernel's extent where the weight determines it.
    pub(super) fn read(n: &NodeCx<'_, '_>, axes: usize, weight: Option<&[u64]>) -> Result<Window, Fault> {
        let stated = n.sizes("kernel_shape")?;
        let kernel = match (stated, weight) {
            (Some(k), Some(w)) if k != w => {
                return Err(format!("kernel_shape {k:?} differs from the weight's {w:?}").into());
            }
            (Some(k), _) => k,
            (None, Some(w)) => w.to_vec(),
            (None, None) => return Err("attribute `kernel_shape` is missing".into()),
        };
        let list = |name: &str, len: usize, default: u64| match n.sizes(name)? {
            Some(v) if v.len() == len => Ok(v),
            Some(v) => Err(Fault::Bad(format!("attribute `{name}` = {v:?} must have {len} numbers"))),
            None => Ok(vec![default; len]),
        };
        if kernel.len() != axes {
            return Err(format!("a window {kernel:?} does not fit a tensor of {axes} spatial axes").into());
        }
        let mut window = Window {
            kernel,
            strides: list("strides", axes, 1)?,
            pads: list("pads", 2 * axes, 0)?,
            dilations: list("dilations", axes, 1)?,
        };
        if axes == 1 {
            for list in [&mut window.kernel, &mut window.strides, &mut window.dilations] {
                list.insert(0, 1);
            }
            window.pads = vec![0, window.pads[0], 0, window.pads[1]];
        }
        Ok(window)
    }

    /// Replaces `pads` as attribute `auto_pad` asks for, for an input of spatial extent `size`.
    pub(super) fn pad_automatically(&mut self, n: &NodeCx<'_, '_>, size: &[u64]) -> Done {
        let upper = match n.text("auto_pad", "NOTSET")? {
            "NOTSET" => return Ok(()),
            "VALID" => {
                self.pads.fill(0);
                return Ok(());
            }
            "SAME_UPPER" => true,
            "SAME_LOWER" => false,
            other => return Err(format!("there is no auto_pad `{other}`").into()),
        };
        for axis in 0..self.axes() {
            let pad = self.same_padding(axis, size.get(axis).copied().unwrap_or(0));
            let pad = pad.ok_or("the window is out of range")?;
            self.pad(axis, pad, upper);
        }
        Ok(())
    }

    /// Number of spatial axes.
    pub(super) fn axes(&self) -> usize {
        self.kernel.len()
    }

    /// Sets the padding of one axis to `pad` in all; the odd one goes to the end if `upper`.
    pub(super) fn pad(&mut self, axis: usize, pad: u64, upper: bool) {
        let small = pad / 2;
        let (before, after) = if upper { (small, pad - small) } else { (pad - small, small) };
        let axes = self.axes();
        self.pads[axis] = before;
        self.pads[axis + axes] = after;
    }

    /// The window over two of the axes: `first`, and `second` or else an axis of extent one.
    pub(super) fn over(&self, first: usize, second: Option<usize>) -> Window {
        let part = |list: &[u64], default| vec![list[first], second.map_or(default, |i| list[i])];
        let (before, after) = self.pads.split_at(self.axes());
        Window {
            kernel: part(&self.kernel, 1),
            strides: part(&self.strides, 1),
            pads: [part(before, 0), part(after, 0)].concat(),
            dilations: part(&self.dilations, 1),
        }
    }

    /// The padding of one axis with which the output has `ceil(size / stride)` elements.
    fn same_padding(&self, axis: usize, size: u64) -> Option<u64> {
        let stride = self.strides[axis];
        if stride == 0 {
            return None;
        }
        let window = self.kernel[axis].checked_sub(1)?.checked_mul(self.dilations[axis])?.checked_add(1)?;
        let covered = (size.div_ceil(stride).max(1) - 1).checked_mul(stride)?.checked_add(window)?;
        Some(covered.saturating_sub(size))
    }

    /// The output extent of pooling along one axis of extent `size`.
    pub(super) fn pooled(&self, axis: usize, size: u64, ceil: bool) -> Option<u64> {
        let pads = [self.pads[axis], self.pads[axis + self.axes()]];
        pool_output_extent(size, pads, self.kernel[axis], self.strides[axis], self.dilations[axis], ceil)
    }

    /// Whether pooling by this window with rounding up gives another extent than with rounding down.
    pub(super) fn rounding_matters(&self, size: &[u64]) -> bool {
        (0..self.axes()).any(|i| {
            let size = size.get(i).copied().unwrap_or(0);
            self.pooled(i, size, true) != self.pooled(i, size, false)
        })
    }
}

/// The number of spatial axes of `x`, one to `most`, and `x` with at least two of them: a single one gets
/// another of extent one before it.
pub(super) fn image(n: &mut NodeCx<'_, '_>, x: ValueId, most: usize) -> Result<(usize, ValueId), Fault> {
    let shape = n.ty(x).shape.clone();
    match shape.as_slice() {
        &[batch, channels, width] => Ok((1, n.reshaped(x, &[batch, channels, 1, width])?)),
        [_, _, spatial @ ..] if (2..=most).contains(&spatial.len()) => Ok((spatial.len(), x)),
        _ => unsupported(format!(
            "a window over {} spatial axes is not supported; supported are 1 to {most}",
            shape.len().saturating_sub(2)
        )),
    }
}

/// `y` without the axis that [`image`] has added to an operand with one spatial axis.
pub(super) fn line(n: &mut NodeCx<'_, '_>, y: ValueId, axes: usize) -> Made {
    let mut shape = n.ty(y).shape.clone();
    if axes == 1 && shape.len() == 4 {
        shape.remove(2);
    }
    n.reshaped(y, &shape)
}

/// The spatial extents of a tensor with batch and channel axes before them.
pub(super) fn spatial(shape: &[u64]) -> &[u64] {
    shape.get(2..).unwrap_or_default()
}
