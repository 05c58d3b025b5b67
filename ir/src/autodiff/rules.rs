//! The rule of every row. A new row does not compile without a decision here.

use super::rule::{Done, Rule};
use super::{convolution as conv, elementwise as ew, index, linalg, movement, norm, reduce};
use crate::ops::OpKind;

/// Gradients whose own gradient has no row.
macro_rules! gradients {
    () => {
        OpKind::GeluGrad { .. }
            | OpKind::MaxPoolGradInput { .. }
            | OpKind::BatchNormGrad {}
            | OpKind::LayerNormGrad { .. }
            | OpKind::SoftmaxGrad { .. }
            | OpKind::CrossEntropyGrad { .. }
    };
}

/// Updates by an optimizer.
macro_rules! updates {
    () => {
        OpKind::Sgd {} | OpKind::Momentum { .. } | OpKind::Adagrad { .. } | OpKind::AdamW { .. }
    };
}

/// Ops that stand for several.
macro_rules! fused {
    () => {
        OpKind::Fused { .. } | OpKind::FusedNorm { .. } | OpKind::MatMulBiasGrad { .. }
    };
}

/// Whether [`super::differentiate`] has a rule for the op; it fails on others that the loss depends on.
pub fn is_differentiable(kind: &OpKind) -> bool {
    !matches!(kind, gradients!() | updates!() | fused!())
}

/// Hands out the gradients of the op's operands.
pub(super) fn apply(r: &mut Rule<'_>, kind: &OpKind) -> Done {
    match kind {
        OpKind::Neg {} => ew::neg(r),
        OpKind::Abs {} => ew::abs(r),
        OpKind::Exp {} => ew::exp(r),
        OpKind::Log {} => ew::log(r),
        OpKind::Sqrt {} => ew::sqrt(r),
        OpKind::Atan {} => ew::atan(r),
        OpKind::Sin {} => ew::sin(r),
        OpKind::Cos {} => ew::cos(r),
        OpKind::Reciprocal {} => ew::reciprocal(r),
        OpKind::Tanh {} => ew::from_result(r, OpKind::TanhGrad {}),
        OpKind::Sigmoid {} => ew::from_result(r, OpKind::SigmoidGrad {}),
        OpKind::Erf {} => ew::erf(r),
        OpKind::Relu {} => ew::from_result(r, OpKind::ReluGrad {}),
        OpKind::Gelu { tanh } => ew::from_operand(r, OpKind::GeluGrad { tanh: *tanh }),
        OpKind::Cast { to: _ } => ew::cast(r),

        OpKind::Add {} => ew::add(r),
        OpKind::Sub {} => ew::sub(r),
        OpKind::Mul {} => ew::mul(r),
        OpKind::Div {} => ew::div(r),
        OpKind::Pow {} => ew::pow(r),
        OpKind::Min {} => ew::extremum(r, OpKind::LessEqual {}),
        OpKind::Max {} => ew::extremum(r, OpKind::GreaterEqual {}),
        OpKind::Select {} => ew::select(r),

        // Steps: the derivative is zero wherever there is one.
        OpKind::Sign {} | OpKind::Floor {} | OpKind::Ceil {} | OpKind::Round {} => Ok(()),
        OpKind::StopGradient {} => Ok(()),
        // Results that are no floating-point tensors never have a gradient.
        OpKind::Not {}
        | OpKind::Equal {}
        | OpKind::Less {}
        | OpKind::LessEqual {}
        | OpKind::Greater {}
        | OpKind::GreaterEqual {}
        | OpKind::And {}
        | OpKind::Or {}
        | OpKind::TopK { .. }
        | OpKind::Increment { .. } => Ok(()),
        // No operands.
        OpKind::Fill { .. } => Ok(()),

        OpKind::ReluGrad {} => ew::relu_grad(r),
        OpKind::TanhGrad {} => ew::tanh_grad(r),
        OpKind::SigmoidGrad {} => ew::sigmoid_grad(r),

        OpKind::MatMul { trans_a, trans_b, alpha } => linalg::matmul(r, *trans_a, *trans_b, *alpha),
        OpKind::Gemm { trans_a, trans_b, alpha, beta } => linalg::gemm(r, *trans_a, *trans_b, *alpha, *beta),

        OpKind::Conv { strides, pads, dilations, groups } => {
            conv::Window { strides, pads, dilations, groups: *groups }.conv(r)
        }
        OpKind::ConvGradInput { strides, pads, dilations, groups, size: _ } => {
            conv::Window { strides, pads, dilations, groups: *groups }.grad_input(r)
        }
        OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel: _ } => {
            conv::Window { strides, pads, dilations, groups: *groups }.grad_weight(r)
        }
        OpKind::MaxPool { .. } => conv::max_pool(r),
        OpKind::MaxPoolGrad { shape: _ } => conv::max_pool_grad(r),
        OpKind::AveragePool { kernel, strides, pads, ceil, count_pad } => {
            let (kernel, strides, pads) = (kernel.clone(), strides.clone(), pads.clone());
            let (ceil, count_pad, shape) = (*ceil, *count_pad, r.shape(r.x(0)));
            let kind = OpKind::AveragePoolGrad { kernel, strides, pads, ceil, count_pad, shape };
            ew::linear(r, kind)
        }
        OpKind::AveragePoolGrad { kernel, strides, pads, ceil, count_pad, shape: _ } => {
            let (kernel, strides, pads) = (kernel.clone(), strides.clone(), pads.clone());
            let kind = OpKind::AveragePool { kernel, strides, pads, ceil: *ceil, count_pad: *count_pad };
            ew::linear(r, kind)
        }

        OpKind::BatchNormStats { epsilon: _ } => norm::batch_norm_stats(r),
        OpKind::BatchNorm {} => norm::batch_norm(r),
        OpKind::MovingAverage { momentum, scale } => norm::moving_average(r, momentum.0, scale.0),
        OpKind::LayerNorm { axis, epsilon: _ } => norm::layer_norm(r, *axis),
        OpKind::Softmax { axis } => ew::from_result(r, OpKind::SoftmaxGrad { axis: *axis }),
        OpKind::LogSoftmax { axis } => norm::log_softmax(r, *axis),
        OpKind::CrossEntropy { reduction, ignore_index } => norm::cross_entropy(r, *reduction, *ignore_index),

        OpKind::ReduceSum { axes, keepdims: _ } => reduce::sum(r, axes),
        OpKind::ReduceMean { axes, keepdims: _ } => reduce::mean(r, axes),
        OpKind::ReduceMax { axes, keepdims: _ } => reduce::max(r, axes),
        OpKind::SumSquares {} => reduce::sum_squares(r),

        OpKind::Copy {} => movement::copy(r),
        OpKind::Reshape { shape: _ } => movement::reshape(r),
        OpKind::Transpose { perm } => movement::transpose(r, perm),
        OpKind::Broadcast { shape: _ } => movement::broadcast(r),
        OpKind::Slice { starts, ends: _, steps } => movement::slice(r, starts, steps),
        OpKind::Concat { axis } => movement::concat(r, *axis),
        OpKind::Pad { before, after: _, value: _ } => movement::pad(r, before),

        OpKind::Gather { axis } => index::gather(r, *axis),
        OpKind::GatherGrad { axis, dim: _ } => index::gather_grad(r, *axis),
        OpKind::GatherElements { axis } => index::gather_elements(r, *axis),
        OpKind::ScatterElements { axis, mode } => index::scatter_elements(r, *axis, *mode),
        OpKind::GatherNd { batch_dims } => index::gather_nd(r, *batch_dims),
        OpKind::ScatterNd { mode, batch_dims } => index::scatter_nd(r, *mode, *batch_dims),

        // They depend on the number of the step alone.
        OpKind::RandomMask { .. } | OpKind::RandomUniform { .. } | OpKind::RandomNormal { .. } => Ok(()),
        OpKind::MaskScale { .. } | OpKind::Dropout { .. } => ew::dropped(r, kind.clone()),

        fused!() => Err("ops are fused after gradients are taken".into()),
        gradients!() => Err("it is itself a gradient, and second derivatives are not supported".into()),
        updates!() => {
            Err("it is an optimizer's update; the loss must not depend on updated parameters".into())
        }
    }
}
