//! Attributes of sliding windows: kernel, strides, pads, dilations, automatic padding.

use memc_ir::ops::pool_output_extent;

use crate::error::{Fault, unsupported};
use crate::node::NodeCx;

/// A 2-D window as ops want it.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub kernel: Vec<u64>,
    pub strides: Vec<u64>,
    /// Top, left, bottom, right.
    pub pads: Vec<u64>,
    pub dilations: Vec<u64>,
}

impl Window {
    /// The node's window over two spatial axes. `weight` is the kernel's extent where the weight determines it.
    pub(super) fn read(n: &NodeCx<'_, '_>, weight: Option<&[u64]>) -> Result<Window, Fault> {
        let stated = n.sizes("kernel_shape")?;
        let kernel = match (stated, weight) {
            (Some(k), Some(w)) if k != w => {
                return Err(format!("kernel_shape {k:?} differs from the weight's {w:?}").into());
            }
            (Some(k), _) => k,
            (None, Some(w)) => w.to_vec(),
            (None, None) => return Err("attribute `kernel_shape` is missing".into()),
        };
        if kernel.len() != 2 {
            return unsupported(format!(
                "a window over {} axes is not supported; only 2-D ones are",
                kernel.len()
            ));
        }
        let list = |name: &str, len: usize, default: u64| match n.sizes(name)? {
            Some(v) if v.len() == len => Ok(v),
            Some(v) => Err(Fault::Bad(format!("attribute `{name}` = {v:?} must have {len} numbers"))),
            None => Ok(vec![default; len]),
        };
        Ok(Window {
            kernel,
            strides: list("strides", 2, 1)?,
            pads: list("pads", 4, 0)?,
            dilations: list("dilations", 2, 1)?,
        })
    }

    /// Replaces `pads` as attribute `auto_pad` asks for, for an input of spatial extent `size`.
    pub(super) fn pad_automatically(&mut self, n: &NodeCx<'_, '_>, size: &[u64]) -> Result<(), Fault> {
        let upper = match n.text("auto_pad", "NOTSET")? {
            "NOTSET" => return Ok(()),
            "VALID" => {
                self.pads = vec![0; 4];
                return Ok(());
            }
            "SAME_UPPER" => true,
            "SAME_LOWER" => false,
            other => return Err(format!("there is no auto_pad `{other}`").into()),
        };
        for axis in 0..2 {
            let pad = self.same_padding(axis, size.get(axis).copied().unwrap_or(0));
            let pad = pad.ok_or("the window is out of range")?;
            let small = pad / 2;
            let (before, after) = if upper { (small, pad - small) } else { (pad - small, small) };
            self.pads[axis] = before;
            self.pads[axis + 2] = after;
        }
        Ok(())
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

    /// Whether pooling by this window with rounding up gives another extent than with rounding down.
    pub(super) fn rounding_matters(&self, size: &[u64]) -> bool {
        (0..2).any(|i| {
            let pads = [self.pads[i], self.pads[i + 2]];
            let size = size.get(i).copied().unwrap_or(0);
            let extent = |ceil| {
                pool_output_extent(size, pads, self.kernel[i], self.strides[i], self.dilations[i], ceil)
            };
            extent(true) != extent(false)
        })
    }
}

/// The spatial extents of a four-axis shape.
pub(super) fn spatial(shape: &[u64]) -> Result<&[u64], Fault> {
    match shape {
        [_, _, _, _] => Ok(&shape[2..]),
        _ => unsupported(format!(
            "a tensor of shape {shape:?} is not supported here; only batch, channel and two spatial axes are"
        )),
    }
}
