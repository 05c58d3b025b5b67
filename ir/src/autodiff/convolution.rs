//! Gradient rules of convolution and pooling.
//!
//! Convolution and its two gradients are bilinear and close under differentiation. Max pooling sends the
//! gradient to the position that its indices name.

use super::rule::{Done, Rule};
use crate::ops::OpKind;

/// The attributes that a convolution shares with its gradients.
pub(super) struct Window<'a> {
    pub(super) strides: &'a [u64],
    pub(super) pads: &'a [u64],
    pub(super) dilations: &'a [u64],
    pub(super) groups: i64,
}

impl Window<'_> {
    fn parts(&self) -> (Vec<u64>, Vec<u64>, Vec<u64>, i64) {
        (self.strides.to_vec(), self.pads.to_vec(), self.dilations.to_vec(), self.groups)
    }

    fn forward_kind(&self) -> OpKind {
        let (strides, pads, dilations, groups) = self.parts();
        OpKind::Conv { strides, pads, dilations, groups }
    }

    /// The gradient of an input of shape `x`.
    fn input_kind(&self, x: &[u64]) -> OpKind {
        let (strides, pads, dilations, groups) = self.parts();
        OpKind::ConvGradInput { strides, pads, dilations, groups, size: x[2..].to_vec() }
    }

    /// The gradient of a weight of shape `w`.
    fn weight_kind(&self, w: &[u64]) -> OpKind {
        let (strides, pads, dilations, groups) = self.parts();
        OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel: w[2..].to_vec() }
    }

    pub(super) fn conv(&self, r: &mut Rule<'_>) -> Done {
        let (dy, x, w) = (r.dy()?, r.x(0), r.x(1));
        if r.wants(0) {
            let dx = r.op(self.input_kind(&r.shape(x)), &[dy, w])?;
            r.give(0, dx)?;
        }
        if r.wants(1) {
            let dw = r.op(self.weight_kind(&r.shape(w)), &[dy, x])?;
            r.give(1, dw)?;
        }
        if r.wants(2) {
            let axes: Vec<u64> = (0..r.ty(dy).rank() as u64).filter(|&a| a != 1).collect();
            let dbias = r.sum(dy, &axes, false)?;
            r.give(2, dbias)?;
        }
        Ok(())
    }

    /// Of `conv_grad_input(dy, w)`, the transposed convolution.
    pub(super) fn grad_input(&self, r: &mut Rule<'_>) -> Done {
        let (g, dy, w) = (r.dy()?, r.x(0), r.x(1));
        if r.wants(0) {
            let ddy = r.op(self.forward_kind(), &[g, w])?;
            r.give(0, ddy)?;
        }
        if r.wants(1) {
            let dw = r.op(self.weight_kind(&r.shape(w)), &[dy, g])?;
            r.give(1, dw)?;
        }
        Ok(())
    }

    /// Of `conv_grad_weight(dy, x)`.
    pub(super) fn grad_weight(&self, r: &mut Rule<'_>) -> Done {
        let (g, dy, x) = (r.dy()?, r.x(0), r.x(1));
        if r.wants(0) {
            let ddy = r.op(self.forward_kind(), &[x, g])?;
            r.give(0, ddy)?;
        }
        if r.wants(1) {
            let dx = r.op(self.input_kind(&r.shape(x)), &[dy, g])?;
            r.give(1, dx)?;
        }
        Ok(())
    }
}

pub(super) fn max_pool(r: &mut Rule<'_>) -> Done {
    let shape = r.shape(r.x(0));
    let dx = r.op(OpKind::MaxPoolGrad { shape }, &[r.dy()?, r.y(1)])?;
    r.give(0, dx)
}

/// Of the scatter to flat positions: their gather.
pub(super) fn max_pool_grad(r: &mut Rule<'_>) -> Done {
    let (g, indices) = (r.dy()?, r.x(1));
    let flat = r.reshaped(g, &[r.ty(g).numel()])?;
    let ddy = r.op(OpKind::Gather { axis: 0 }, &[flat, indices])?;
    r.give(0, ddy)
}
