//! 2-D pooling.

use super::elementwise::{want, want_float};
use super::{Cost, TypeError, Types, streaming};
use crate::types::{DType, TensorType};

/// Output extent of a pooling window. With `ceil` the division rounds up, but no window starts in the end
/// padding.
///
/// Source: ONNX `MaxPool`/`AveragePool` specification.
pub fn pool_output_extent(
    size: u64,
    pads: [u64; 2],
    kernel: u64,
    stride: u64,
    dilation: u64,
    ceil: bool,
) -> Option<u64> {
    if kernel == 0 || stride == 0 || dilation == 0 {
        return None;
    }
    let window = (kernel - 1).checked_mul(dilation)?.checked_add(1)?;
    let room = size.checked_add(pads[0])?.checked_add(pads[1])?.checked_sub(window)?;
    if !ceil {
        return Some(room / stride + 1);
    }
    let out = room.div_ceil(stride) + 1;
    Some(if (out - 1).checked_mul(stride)? >= size + pads[0] { out - 1 } else { out })
}

/// Attributes of a pooling; `pads` is top, left, bottom, right.
pub(super) struct Window<'a> {
    pub(super) kernel: &'a [u64],
    pub(super) strides: &'a [u64],
    pub(super) pads: &'a [u64],
    pub(super) dilations: &'a [u64],
    pub(super) ceil: bool,
}

impl<'a> Window<'a> {
    pub(super) fn undilated(kernel: &'a [u64], strides: &'a [u64], pads: &'a [u64], ceil: bool) -> Self {
        Window { kernel, strides, pads, dilations: &[1, 1], ceil }
    }

    /// Shape of the pooled `x`.
    fn output(&self, x: &TensorType) -> Result<Vec<u64>, TypeError> {
        let Window { kernel: k, strides: s, pads: p, dilations: d, ceil } = *self;
        want_float(x, "x")?;
        let &[n, c, h, w] = x.shape.as_slice() else {
            return Err(format!("x must have four axes (2-D pooling), got {x}").into());
        };
        let positive = |xs: &[u64]| xs.len() == 2 && xs.iter().all(|&v| (1..=1 << 20).contains(&v));
        if !positive(k) || !positive(s) || !positive(d) || p.len() != 4 || p.iter().any(|&v| v > 1 << 30) {
            return Err("kernel, strides and dilations need two positive numbers, pads four".into());
        }
        if (0..4).any(|i| p[i] >= k[i % 2].saturating_mul(d[i % 2])) {
            return Err(format!("pads {p:?} are not smaller than the window {k:?}").into());
        }
        let axis = |i: usize, size| {
            pool_output_extent(size, [p[i], p[i + 2]], k[i], s[i], d[i], ceil)
                .ok_or_else(|| format!("window {k:?} does not fit {x}"))
        };
        Ok(vec![n, c, axis(0, h)?, axis(1, w)?])
    }
}

pub(super) fn max_pool(ops: &[&TensorType], window: &Window) -> Types {
    let shape = window.output(ops[0])?;
    Ok(vec![TensorType::new(ops[0].dtype, shape.clone()), TensorType::new(DType::I64, shape)])
}
pub(super) fn max_pool_grad(ops: &[&TensorType], shape: &[u64]) -> Types {
    want_float(ops[0], "dy")?;
    want(ops[1], DType::I64, "indices")?;
    if ops[0].shape != ops[1].shape {
        return Err(format!("dy = {} and indices = {} differ in shape", ops[0], ops[1]).into());
    }
    Ok(vec![TensorType::new(ops[0].dtype, shape)])
}

pub(super) fn max_pool_grad_input(ops: &[&TensorType], window: &Window) -> Types {
    let shape = window.output(ops[1])?;
    if ops[0].dtype != ops[1].dtype || ops[0].shape != shape {
        return Err(
            format!("dy = {} does not match the pooled shape {shape:?} of x = {}", ops[0], ops[1]).into()
        );
    }
    Ok(vec![ops[1].clone()])
}
/// Every window is searched once more, then its gradient is added.
pub(super) fn max_grad_cost(ops: &[&TensorType], res: &[&TensorType], k: &[u64]) -> Cost {
    let flops = ops[0].numel().saturating_mul((k[0] * k[1]).saturating_add(1));
    Cost { flops, ..streaming(ops, res, 0) }
}

pub(super) fn average_pool(ops: &[&TensorType], window: &Window) -> Types {
    Ok(vec![TensorType::new(ops[0].dtype, window.output(ops[0])?)])
}

pub(super) fn average_pool_grad(ops: &[&TensorType], window: &Window, shape: &[u64]) -> Types {
    let x = TensorType::new(ops[0].dtype, shape);
    let want = window.output(&x)?;
    if ops[0].shape != want {
        return Err(format!("dy = {} does not match the pooled shape {want:?}", ops[0]).into());
    }
    Ok(vec![x])
}
