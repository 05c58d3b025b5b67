//! Running one op: checking its operands, then the definition of its row.

use memc_ir::ops::fused::{Arg, Step};
use memc_ir::{OpKind, TensorType};

use crate::error::EvalError;
use crate::random::{self, Source};
use crate::tensor::{Data, Results, Tensor64};
use crate::{elementwise as ew, index, linalg, loss, movement, norm, optim, reduce, window};

/// The results of `op` on `operands`.
///
/// Fails when the op's row rejects the operands' types or an index is out of range.
pub fn eval(op: &OpKind, operands: &[&Tensor64]) -> Result<Vec<Tensor64>, EvalError> {
    let types: Vec<&TensorType> = operands.iter().map(|t| &t.ty).collect();
    let results = op.infer(&types).map_err(|e| format!("{}: {e}", op.mnemonic()))?;
    let data = dispatch(op, operands, &results).map_err(|e| format!("{}: {e}", op.mnemonic()))?;
    Ok(results.into_iter().zip(data).map(|(ty, data)| Tensor64 { ty, data }).collect())
}

fn dispatch(op: &OpKind, x: &[&Tensor64], y: &[TensorType]) -> Results {
    match op {
        OpKind::Neg {} => ew::numeric(x[0], |v| -v, i64::wrapping_neg),
        OpKind::Abs {} => ew::numeric(x[0], f64::abs, i64::wrapping_abs),
        OpKind::Sign {} => ew::numeric(x[0], ew::sign, i64::signum),
        OpKind::Relu {} => ew::numeric(x[0], ew::relu, |v| v.max(0)),
        OpKind::Not {} => ew::integer(x[0], |v| i64::from(v == 0)),
        OpKind::Floor {} => ew::float(x[0], f64::floor),
        OpKind::StopGradient {} => ew::float(x[0], |x| x),
        OpKind::Ceil {} => ew::float(x[0], f64::ceil),
        OpKind::Round {} => ew::float(x[0], f64::round_ties_even),
        OpKind::Atan {} => ew::float(x[0], f64::atan),
        OpKind::Sin {} => ew::float(x[0], f64::sin),
        OpKind::Cos {} => ew::float(x[0], f64::cos),
        OpKind::Exp {} => ew::float(x[0], f64::exp),
        OpKind::Log {} => ew::float(x[0], f64::ln),
        OpKind::Sqrt {} => ew::float(x[0], f64::sqrt),
        OpKind::Reciprocal {} => ew::float(x[0], f64::recip),
        OpKind::Tanh {} => ew::float(x[0], f64::tanh),
        OpKind::Sigmoid {} => ew::float(x[0], ew::sigmoid),
        OpKind::Erf {} => ew::float(x[0], libm::erf),
        OpKind::Gelu { tanh } => ew::float(x[0], |v| ew::gelu(v, *tanh)),
        OpKind::Cast { to } => ew::cast(x[0], *to),

        OpKind::Add {} => ew::arithmetic(x, &y[0], |a, b| a + b, i64::wrapping_add),
        OpKind::Sub {} => ew::arithmetic(x, &y[0], |a, b| a - b, i64::wrapping_sub),
        OpKind::Mul {} => ew::arithmetic(x, &y[0], |a, b| a * b, i64::wrapping_mul),
        OpKind::Div {} => ew::arithmetic(x, &y[0], |a, b| a / b, ew::divide),
        OpKind::Pow {} => ew::arithmetic(x, &y[0], f64::powf, ew::power),
        OpKind::Min {} => ew::arithmetic(x, &y[0], ew::min, Ord::min),
        OpKind::Max {} => ew::arithmetic(x, &y[0], ew::max, Ord::max),
        OpKind::Equal {} => ew::compare(x, &y[0], |o| o.is_some_and(|o| o.is_eq())),
        OpKind::Less {} => ew::compare(x, &y[0], |o| o.is_some_and(|o| o.is_lt())),
        OpKind::LessEqual {} => ew::compare(x, &y[0], |o| o.is_some_and(|o| o.is_le())),
        OpKind::Greater {} => ew::compare(x, &y[0], |o| o.is_some_and(|o| o.is_gt())),
        OpKind::GreaterEqual {} => ew::compare(x, &y[0], |o| o.is_some_and(|o| o.is_ge())),
        OpKind::And {} => ew::arithmetic(x, &y[0], |_, _| f64::NAN, |a, b| a & b),
        OpKind::Or {} => ew::arithmetic(x, &y[0], |_, _| f64::NAN, |a, b| a | b),
        OpKind::Select {} => ew::select(x, &y[0]),

        OpKind::ReluGrad {} => ew::pair(x, |dy, y| if y > 0.0 { dy } else { 0.0 }),
        OpKind::TanhGrad {} => ew::pair(x, |dy, y| dy * (1.0 - y * y)),
        OpKind::SigmoidGrad {} => ew::pair(x, |dy, y| dy * y * (1.0 - y)),
        OpKind::GeluGrad { tanh } => ew::pair(x, |dy, x| dy * ew::gelu_slope(x, *tanh)),

        OpKind::MatMul { trans_a, trans_b, alpha } => linalg::matmul(x, &y[0], *trans_a, *trans_b, alpha.0),
        OpKind::Gemm { trans_a, trans_b, alpha, beta } => {
            linalg::gemm(x, &y[0], *trans_a, *trans_b, alpha.0, beta.0)
        }

        OpKind::MatMulBiasGrad { trans_a, trans_b, alpha, sum_b } => {
            linalg::matmul_bias_grad(x, &y[0], [*trans_a, *trans_b], alpha.0, *sum_b)
        }

        OpKind::Conv { strides, pads, dilations, groups } => {
            window::Conv { strides, pads, dilations, groups: *groups }.forward(x, &y[0])
        }
        OpKind::ConvGradInput { strides, pads, dilations, groups, size: _ } => {
            window::Conv { strides, pads, dilations, groups: *groups }.grad_input(x, &y[0])
        }
        OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel: _ } => {
            window::Conv { strides, pads, dilations, groups: *groups }.grad_weight(x, &y[0])
        }
        OpKind::MaxPool { kernel, strides, pads, dilations, ceil: _ } => {
            window::Pool { kernel, strides, pads, dilations }.max(x[0], &y[0])
        }
        OpKind::MaxPoolGrad { shape: _ } => window::max_grad(x, &y[0]),
        OpKind::MaxPoolGradInput { kernel, strides, pads, dilations, ceil: _ } => {
            window::Pool { kernel, strides, pads, dilations }.max_grad_input(x, &y[0])
        }
        OpKind::AveragePool { kernel, strides, pads, ceil: _, count_pad } => {
            window::Pool { kernel, strides, pads, dilations: &[1, 1] }.average(x[0], &y[0], *count_pad)
        }
        OpKind::AveragePoolGrad { kernel, strides, pads, ceil: _, count_pad, shape: _ } => {
            window::Pool { kernel, strides, pads, dilations: &[1, 1] }.average_grad(x[0], &y[0], *count_pad)
        }

        OpKind::BatchNormStats { epsilon } => norm::batch_norm_stats(x[0], epsilon.0),
        OpKind::BatchNorm {} => norm::batch_norm(x),
        OpKind::BatchNormGrad {} => norm::batch_norm_grad(x),
        OpKind::MovingAverage { momentum, scale } => {
            let (m, scale) = (f64::from(momentum.0), f64::from(scale.0));
            ew::pair(x, |running, batch| m * running + (1.0 - m) * scale * batch)
        }
        OpKind::LayerNorm { axis, epsilon } => norm::layer_norm(x, *axis, epsilon.0),
        OpKind::LayerNormGrad { axis } => norm::layer_norm_grad(x, *axis),
        OpKind::Softmax { axis } => norm::softmax(x[0], *axis),
        OpKind::LogSoftmax { axis } => norm::log_softmax(x[0], *axis),
        OpKind::SoftmaxGrad { axis } => norm::softmax_grad(x, *axis),

        OpKind::ReduceSum { axes, keepdims: _ } => reduce::sum(x[0], axes),
        OpKind::ReduceMean { axes, keepdims: _ } => reduce::mean(x[0], axes),
        OpKind::ReduceMax { axes, keepdims: _ } => reduce::max(x[0], axes),
        OpKind::SumSquares {} => Ok(vec![Data::Float(vec![x[0].f()?.iter().map(|v| v * v).sum()])]),

        OpKind::CrossEntropy { reduction, ignore_index } => loss::cross_entropy(x, *reduction, *ignore_index),
        OpKind::CrossEntropyGrad { reduction, ignore_index } => {
            loss::cross_entropy_grad(x, *reduction, *ignore_index)
        }

        OpKind::Copy {} | OpKind::Reshape { shape: _ } => Ok(vec![x[0].data.clone()]),
        OpKind::Transpose { perm } => movement::transpose(x[0], &y[0], perm),
        OpKind::Broadcast { shape: _ } => movement::broadcast(x[0], &y[0]),
        OpKind::Slice { starts, ends: _, steps } => movement::slice(x[0], &y[0], starts, steps),
        OpKind::Concat { axis } => movement::concat(x, &y[0], *axis),
        OpKind::Pad { before, after: _, value } => movement::pad(x[0], &y[0], before, *value),
        OpKind::Fill { dtype: _, shape: _, value } => movement::fill(&y[0], *value),

        OpKind::Gather { axis } => index::gather(x, &y[0], *axis),
        OpKind::GatherGrad { axis, dim: _ } => index::gather_grad(x, &y[0], *axis),
        OpKind::GatherElements { axis } => index::gather_elements(x, &y[0], *axis),
        OpKind::ScatterElements { axis, mode } => index::scatter_elements(x, *axis, *mode),
        OpKind::TopK { axis, k: _, smallest } => index::top_k(x[0], &y[0], *axis as usize, *smallest),
        OpKind::GatherNd { batch_dims } => index::gather_nd(x, &y[0], *batch_dims),
        OpKind::ScatterNd { mode, batch_dims } => index::scatter_nd(x, *mode, *batch_dims),

        OpKind::RandomMask { ratio, seed, stream, shape: _ } => {
            random::mask(&Source::new(*seed, *stream, x[0])?, &y[0], ratio.0)
        }
        OpKind::MaskScale { scale } => random::mask_scale(x, scale.0),
        OpKind::Dropout { ratio, seed, stream } => {
            random::dropout(&Source::new(*seed, *stream, x[1])?, x[0], ratio.0)
        }
        OpKind::RandomUniform { seed, stream, shape: _, low, high } => {
            random::uniform(&Source::new(*seed, *stream, x[0])?, &y[0], [low.0, high.0])
        }
        OpKind::RandomNormal { seed, stream, shape: _, mean, scale } => {
            random::normal(&Source::new(*seed, *stream, x[0])?, &y[0], [mean.0, scale.0])
        }

        OpKind::Sgd {} => optim::sgd(x),
        OpKind::Momentum { alpha, beta, l2, nesterov } => {
            optim::momentum(x, [alpha.0, beta.0, l2.0], *nesterov)
        }
        OpKind::Adagrad { epsilon, l2, decay } => optim::adagrad(x, [epsilon.0, l2.0, decay.0]),
        OpKind::AdamW { alpha, beta, epsilon, weight_decay, bias_correction, decay_first, l2 } => {
            let numbers = [alpha.0, beta.0, epsilon.0, weight_decay.0, l2.0];
            optim::adamw(x, numbers, *bias_correction, *decay_first)
        }
        OpKind::Fused { body, outs } | OpKind::FusedNorm { body, outs } => {
            let (mut steps, mut rest): (Vec<Tensor64>, Vec<Data>) = Default::default();
            for Step { op, args } in &body.0 {
                let arg = |a: &Arg| match *a {
                    Arg::Operand(i) => x[i as usize].clone(),
                    Arg::Step(t) => steps[t as usize].clone(),
                };
                let args: Vec<Tensor64> = args.iter().map(arg).collect();
                let mut made = eval(op, &args.iter().collect::<Vec<_>>())?.into_iter();
                steps.extend(made.next());
                rest.extend(made.map(|t| t.data));
            }
            Ok(outs.iter().map(|&t| steps[t as usize].data.clone()).chain(rest).collect())
        }
        OpKind::Increment { by } => {
            let one = |x: &&Tensor64| Ok(Data::Int(x.i()?.iter().map(|v| v.wrapping_add(*by)).collect()));
            x.iter().map(one).collect()
        }
    }
}
