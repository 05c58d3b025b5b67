//! Running one op: checking the call, then dispatching to the family that implements it.

use memc_ir::{OpKind, TensorType};

use crate::columns::ConvAttrs;
use crate::elementwise::{Arith, Order};
use crate::error::KernelError;
use crate::num::special;
use crate::view::{Ctx, Operand};
use crate::{
    bias_grad, conv, convert, elementwise as ew, fused, fused_norm, index, loss, matmul, norm, optim, pool,
    random, reduce, shape, softmax, widen,
};

/// Alignment of every non-empty byte slice of a call, in bytes.
pub const ALIGN: usize = 64;

/// An op with the types of its operands and results, which satisfy [`OpKind::infer`] (see [`Call::check`]).
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The op.
    pub op: &'a OpKind,
    /// One type for each operand.
    pub operand_types: &'a [TensorType],
    /// One type for each result.
    pub result_types: &'a [TensorType],
}

impl Call<'_> {
    fn fail(&self, reason: String) -> KernelError {
        KernelError::Call { op: self.op.mnemonic(), reason }
    }

    /// Checks that the types satisfy the op's type rule, and returns the bytes of workspace it needs.
    ///
    /// Do this once for calls that come from a file; [`execute`] relies on it and does not repeat it.
    pub fn check(&self) -> Result<u64, KernelError> {
        let operands: Vec<&TensorType> = self.operand_types.iter().collect();
        let results = self.op.infer(&operands).map_err(|e| self.fail(e.to_string()))?;
        if results != self.result_types {
            return Err(self.fail(format!(
                "result types are {}, not {}",
                types_text(&results),
                types_text(self.result_types)
            )));
        }
        Ok(self.op.cost(&operands, &results.iter().collect::<Vec<_>>()).workspace)
    }
}

fn types_text(types: &[TensorType]) -> String {
    types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
}

/// Runs `call.op` on `operands`, writing every byte of `results`.
///
/// Slices are [`ALIGN`]-aligned (empty ones excepted) and exactly as long as their type says; `workspace` has
/// at least [`Cost::workspace`](memc_ir::Cost) bytes, with any contents. The call must pass [`Call::check`];
/// otherwise this may panic, but never touches bytes outside the slices.
///
/// # Errors
///
/// [`KernelError::Call`] for a wrong number of operands or results, wrong lengths, alignment or in-place
/// pairs; [`KernelError::Index`] when the values of an index operand are out of range.
pub fn execute(
    call: &Call,
    operands: &[Operand],
    results: &mut [&mut [u8]],
    workspace: &mut [u8],
) -> Result<(), KernelError> {
    check_slices(call, operands, results, workspace)?;
    let c = Ctx {
        op: call.op,
        types: call.operand_types,
        results: call.result_types,
        operands,
        first: 0,
        flat: None,
    };
    widen::any(&c, results, workspace)
}

fn check_slices(
    call: &Call,
    operands: &[Operand],
    results: &[&mut [u8]],
    workspace: &[u8],
) -> Result<(), KernelError> {
    let def = call.op.def();
    let (low, high) = def.arity();
    let n = operands.len();
    if n < low || n > high || n != call.operand_types.len() {
        let types = call.operand_types.len();
        return Err(call.fail(format!("got {n} operands of {types} types, wants {}", def.operands.len())));
    }
    let wanted = call.op.result_count(n);
    if results.len() != wanted || call.result_types.len() != wanted {
        let (r, t) = (results.len(), call.result_types.len());
        return Err(call.fail(format!("got {r} results of {t} types, wants {wanted}")));
    }
    for (i, (operand, ty)) in operands.iter().zip(call.operand_types).enumerate() {
        match *operand {
            Operand::Bytes(b) => check_slice(call, "operand", i, b, ty.bytes())?,
            Operand::Result(j) => {
                let result = call.result_types.get(j);
                let same = result.is_some_and(|r| r.dtype == ty.dtype && r.numel() == ty.numel());
                let may_share = match call.op {
                    // The pairs that may share bytes depend on the types.
                    OpKind::FusedNorm { .. } => {
                        let types: Vec<&TensorType> = call.operand_types.iter().collect();
                        let results: Vec<&TensorType> = call.result_types.iter().collect();
                        call.op.inplace_pairs(&types, &results).contains(&(i, j))
                    }
                    op => op.may_share((i, j)),
                };
                if !same || !may_share {
                    return Err(call.fail(format!("operand {i} may not share bytes with result {j}")));
                }
            }
        }
    }
    for (j, (bytes, ty)) in results.iter().zip(call.result_types).enumerate() {
        check_slice(call, "result", j, bytes, ty.bytes())?;
    }
    check_slice(call, "workspace", 0, workspace, workspace.len() as u64)
}

fn check_slice(call: &Call, what: &str, i: usize, bytes: &[u8], want: u64) -> Result<(), KernelError> {
    if bytes.len() as u64 != want {
        return Err(call.fail(format!("{what} {i} has {} bytes, its type has {want}", bytes.len())));
    }
    if !bytes.is_empty() && !bytes.as_ptr().addr().is_multiple_of(ALIGN) {
        return Err(call.fail(format!("{what} {i} is not aligned to {ALIGN} bytes")));
    }
    Ok(())
}

/// Runs an op on types that its kernel takes as they are.
pub(crate) fn dispatch(c: &Ctx, results: &mut [&mut [u8]], workspace: &mut [u8]) -> Result<(), KernelError> {
    // Every op has a result; ops with several take `results` whole.
    let Some(y) = results.first_mut().map(|r| &mut **r) else {
        return Err(c.fail("has no result"));
    };
    match c.op {
        OpKind::Neg {} => ew::arith(c, y, Arith::Neg),
        OpKind::Abs {} => ew::arith(c, y, Arith::Abs),
        OpKind::Sign {} => ew::arith(c, y, Arith::Sign),
        OpKind::Relu {} => ew::arith(c, y, Arith::Relu),
        OpKind::Not {} => ew::unary::<u8>(c, y, |x| u8::from(x == 0)),
        OpKind::Floor {} => ew::unary(c, y, f32::floor),
        OpKind::StopGradient {} => ew::unary(c, y, |x: f32| x),
        OpKind::Ceil {} => ew::unary(c, y, f32::ceil),
        OpKind::Round {} => ew::unary(c, y, f32::round_ties_even),
        OpKind::Atan {} => ew::unary(c, y, libm::atanf),
        OpKind::Sin {} => ew::unary(c, y, libm::sinf),
        OpKind::Cos {} => ew::unary(c, y, libm::cosf),
        OpKind::Exp {} => ew::unary(c, y, special::exp),
        OpKind::Log {} => ew::unary(c, y, libm::logf),
        OpKind::Sqrt {} => ew::unary(c, y, f32::sqrt),
        OpKind::Reciprocal {} => ew::unary(c, y, |x: f32| 1.0 / x),
        OpKind::Tanh {} => ew::unary(c, y, special::tanh),
        OpKind::Sigmoid {} => ew::unary(c, y, special::sigmoid),
        OpKind::Erf {} => ew::unary(c, y, special::erf),
        OpKind::Gelu { tanh: false } => ew::unary(c, y, special::gelu),
        OpKind::Gelu { tanh: true } => ew::unary(c, y, special::gelu_tanh),
        OpKind::Cast { to: _ } => convert::cast(c, y),

        OpKind::Add {} => ew::arith(c, y, Arith::Add),
        OpKind::Sub {} => ew::arith(c, y, Arith::Sub),
        OpKind::Mul {} => ew::arith(c, y, Arith::Mul),
        OpKind::Div {} => ew::arith(c, y, Arith::Div),
        OpKind::Pow {} => ew::arith(c, y, Arith::Pow),
        OpKind::Min {} => ew::arith(c, y, Arith::Min),
        OpKind::Max {} => ew::arith(c, y, Arith::Max),
        OpKind::Equal {} => ew::comparison(c, y, Order::Equal),
        OpKind::Less {} => ew::comparison(c, y, Order::Less),
        OpKind::LessEqual {} => ew::comparison(c, y, Order::LessEqual),
        OpKind::Greater {} => ew::comparison(c, y, Order::Greater),
        OpKind::GreaterEqual {} => ew::comparison(c, y, Order::GreaterEqual),
        OpKind::And {} => ew::logic(c, y, |a, b| a && b),
        OpKind::Or {} => ew::logic(c, y, |a, b| a || b),
        OpKind::Select {} => ew::select(c, y),

        OpKind::ReluGrad {} => ew::binary(c, y, |dy: f32, y: f32| if y > 0.0 { dy } else { 0.0 }),
        OpKind::TanhGrad {} => ew::binary(c, y, |dy: f32, y: f32| dy * (1.0 - y * y)),
        OpKind::SigmoidGrad {} => ew::binary(c, y, |dy: f32, y: f32| dy * y * (1.0 - y)),
        OpKind::GeluGrad { tanh: false } => ew::chain(c, y, special::gelu_slope),
        OpKind::GeluGrad { tanh: true } => ew::chain(c, y, special::gelu_tanh_slope),

        OpKind::MatMul { trans_a, trans_b, alpha } => matmul::matmul(c, y, *trans_a, *trans_b, alpha.0),
        OpKind::Gemm { trans_a, trans_b, alpha, beta } => {
            matmul::gemm(c, y, *trans_a, *trans_b, alpha.0, beta.0)
        }

        OpKind::MatMulBiasGrad { .. } => bias_grad::bias_grad(c, results, workspace),

        OpKind::Conv { strides, pads, dilations, groups } => {
            conv::forward(c, y, workspace, &ConvAttrs { strides, pads, dilations, groups: *groups })
        }
        OpKind::ConvGradInput { strides, pads, dilations, groups, size: _ } => {
            conv::grad_input(c, y, workspace, &ConvAttrs { strides, pads, dilations, groups: *groups })
        }
        OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel: _ } => {
            conv::grad_weight(c, y, workspace, &ConvAttrs { strides, pads, dilations, groups: *groups })
        }

        OpKind::MaxPool { kernel, strides, pads, dilations, ceil: _ } => {
            pool::max_pool(c, results, &pool::Window { kernel, strides, pads, dilations })
        }
        OpKind::MaxPoolGrad { shape: _ } => pool::max_pool_grad(c, y),
        OpKind::MaxPoolGradInput { kernel, strides, pads, dilations, ceil: _ } => {
            pool::max_pool_grad_input(c, y, &pool::Window { kernel, strides, pads, dilations })
        }
        OpKind::AveragePool { kernel, strides, pads, ceil: _, count_pad } => {
            let dilations = &[1, 1];
            pool::average_pool(c, y, &pool::Window { kernel, strides, pads, dilations }, *count_pad)
        }
        OpKind::AveragePoolGrad { kernel, strides, pads, ceil: _, count_pad, shape: _ } => {
            let dilations = &[1, 1];
            pool::average_pool_grad(c, y, &pool::Window { kernel, strides, pads, dilations }, *count_pad)
        }

        OpKind::BatchNormStats { epsilon } => norm::batch_norm_stats(c, results, epsilon.0),
        OpKind::BatchNorm {} => norm::batch_norm(c, y),
        OpKind::BatchNormGrad {} => norm::batch_norm_grad(c, results),
        OpKind::MovingAverage { momentum, scale } => {
            let (old, new) = (momentum.0, (1.0 - momentum.0) * scale.0);
            ew::binary(c, y, move |r: f32, b: f32| old * r + new * b)
        }
        OpKind::LayerNorm { axis, epsilon } => norm::layer_norm(c, results, *axis, epsilon.0),
        OpKind::LayerNormGrad { axis } => norm::layer_norm_grad(c, results, *axis),
        OpKind::Softmax { axis } => softmax::softmax(c, y, *axis, false),
        OpKind::LogSoftmax { axis } => softmax::softmax(c, y, *axis, true),
        OpKind::SoftmaxGrad { axis } => softmax::softmax_grad(c, y, *axis),

        OpKind::ReduceSum { axes, keepdims: _ } => reduce::reduce(c, y, axes, reduce::Reducer::Sum),
        OpKind::ReduceMean { axes, keepdims: _ } => reduce::reduce(c, y, axes, reduce::Reducer::Mean),
        OpKind::ReduceMax { axes, keepdims: _ } => reduce::reduce(c, y, axes, reduce::Reducer::Max),
        OpKind::SumSquares {} => reduce::sum_squares(c, y),

        OpKind::CrossEntropy { reduction, ignore_index } => {
            loss::cross_entropy(c, results, *reduction, *ignore_index)
        }
        OpKind::CrossEntropyGrad { reduction, ignore_index } => {
            loss::cross_entropy_grad(c, y, *reduction, *ignore_index)
        }

        OpKind::Reshape { shape: _ } | OpKind::Copy {} => shape::reshape(c, y),
        OpKind::Transpose { perm } => shape::transpose(c, y, perm),
        OpKind::Broadcast { shape: _ } => shape::broadcast(c, y),
        OpKind::Slice { starts, ends: _, steps } => shape::slice(c, y, starts, steps),
        OpKind::Concat { axis } => shape::concat(c, y, *axis),
        OpKind::Pad { before, after: _, value } => shape::pad(c, y, before, *value),
        OpKind::Fill { dtype: _, shape: _, value } => shape::fill(c, y, *value),

        OpKind::Gather { axis } => index::gather(c, y, *axis),
        OpKind::GatherGrad { axis, dim: _ } => index::gather_grad(c, y, *axis),
        OpKind::GatherElements { axis } => index::gather_elements(c, y, *axis),
        OpKind::ScatterElements { axis, mode } => index::scatter_elements(c, y, *axis, *mode),
        OpKind::TopK { axis, k: _, smallest } => index::top_k(c, y, *axis, *smallest),
        OpKind::GatherNd { batch_dims } => index::gather_nd(c, y, *batch_dims),
        OpKind::ScatterNd { mode, batch_dims } => index::scatter_nd(c, y, *mode, *batch_dims),

        OpKind::RandomMask { ratio, seed, stream, shape: _ } => {
            random::mask(c, y, random::Key { seed: *seed, stream: *stream }, ratio.0)
        }
        OpKind::MaskScale { scale } => random::mask_scale(c, y, scale.0),
        OpKind::Dropout { ratio, seed, stream } => {
            random::dropout(c, y, random::Key { seed: *seed, stream: *stream }, ratio.0)
        }
        OpKind::RandomUniform { seed, stream, shape: _, low, high } => {
            random::uniform(c, y, random::Key { seed: *seed, stream: *stream }, low.0, high.0)
        }
        OpKind::RandomNormal { seed, stream, shape: _, mean, scale } => {
            random::normal(c, y, random::Key { seed: *seed, stream: *stream }, mean.0, scale.0)
        }

        OpKind::Sgd {} => optim::sgd(c, y),
        OpKind::Momentum { alpha, beta, l2, nesterov } => {
            let rule = optim::Momentum { alpha: alpha.0, beta: beta.0, l2: l2.0, nesterov: *nesterov };
            optim::momentum(c, results, &rule)
        }
        OpKind::Adagrad { epsilon, l2, decay } => {
            let rule = optim::Adagrad { epsilon: epsilon.0, l2: l2.0, decay: decay.0 };
            optim::adagrad(c, results, &rule)
        }
        OpKind::AdamW { alpha, beta, epsilon, weight_decay, bias_correction, decay_first, l2 } => {
            let rule = optim::AdamW {
                alpha: alpha.0,
                beta: beta.0,
                epsilon: epsilon.0,
                weight_decay: weight_decay.0,
                bias_correction: *bias_correction,
                decay_first: *decay_first,
                l2: l2.0,
            };
            optim::adamw(c, results, &rule)
        }
        OpKind::Fused { body, outs } => fused::fused(c, results, workspace, body, outs),
        OpKind::FusedNorm { body, outs } => fused_norm::fused_norm(c, results, workspace, body, outs),
        OpKind::Increment { by } => optim::increment(c, results, *by),
    }
}
