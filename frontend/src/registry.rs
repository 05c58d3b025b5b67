//! The supported operators: `(domain, operator, since version, import function)`.
//!
//! A node uses the row with the largest version that is not above its operator set's. Rows are sorted, which
//! a test checks; a row's version is the first whose meaning its function implements.

use memc_ir::OpKind;

use crate::advice;
use crate::context::Handler;
use crate::error::Fault;
use crate::model::{MS, PREVIEW};
use crate::ops::{
    activation as act, attention, block, conv, einsum, elementwise as ew, fourier, gradient, index, linalg,
    loss, movement as mv, norm, pool, random, recurrent, reduce, resize, sample, sequence, shape, update,
    volume,
};

type Row = (&'static str, &'static str, i64, Handler);

const ROWS: &[Row] = &[
    ("", "Abs", 6, |n| ew::unary(n, OpKind::Abs {})),
    ("", "Acos", 7, |n| act::of(n, act::acos)),
    ("", "Acosh", 9, |n| act::of(n, act::acosh)),
    ("", "Add", 7, |n| ew::binary(n, OpKind::Add {})),
    ("", "AffineGrid", 20, sample::affine_grid),
    ("", "And", 7, |n| ew::binary(n, OpKind::And {})),
    ("", "ArgMax", 1, |n| reduce::extreme(n, false)),
    ("", "ArgMin", 1, |n| reduce::extreme(n, true)),
    ("", "Asin", 7, |n| act::of(n, act::asin)),
    ("", "Asinh", 9, |n| act::of(n, act::asinh)),
    ("", "Atan", 7, |n| ew::unary(n, OpKind::Atan {})),
    ("", "Atanh", 9, |n| act::of(n, act::atanh)),
    ("", "Attention", 23, attention::attention),
    ("", "AveragePool", 7, pool::average_pool),
    ("", "AveragePoolGrad", 1, pool::average_pool_grad),
    ("", "BatchNormalization", 9, norm::batch_normalization),
    ("", "Bernoulli", 15, random::bernoulli),
    ("", "BlackmanWindow", 17, |n| fourier::window(n, [0.42, 0.5, 0.08])),
    ("", "Cast", 6, ew::cast),
    ("", "CastLike", 15, ew::cast_like),
    ("", "Ceil", 6, |n| ew::unary(n, OpKind::Ceil {})),
    ("", "Celu", 12, |n| act::of(n, act::celu)),
    ("", "CenterCropPad", 18, mv::center_crop_pad),
    ("", "Clip", 6, ew::clip),
    ("", "Col2Im", 18, volume::col2im),
    ("", "Concat", 4, mv::concat),
    ("", "ConcatFromSequence", 11, sequence::concat),
    ("", "Constant", 1, shape::constant),
    ("", "ConstantOfShape", 9, shape::constant_of_shape),
    ("", "Conv", 1, conv::conv),
    ("", "ConvTranspose", 1, conv::conv_transpose),
    ("", "Cos", 7, |n| ew::unary(n, OpKind::Cos {})),
    ("", "Cosh", 9, |n| act::of(n, act::cosh)),
    ("", "CumProd", 26, |n| block::running(n, OpKind::Mul {}, 1.0)),
    ("", "CumSum", 11, |n| block::running(n, OpKind::Add {}, 0.0)),
    ("", "DFT", 17, fourier::dft),
    ("", "DepthToSpace", 1, block::depth_to_space),
    ("", "Div", 7, |n| ew::binary(n, OpKind::Div {})),
    ("", "Dropout", 7, random::dropout),
    ("", "Einsum", 12, einsum::einsum),
    ("", "Elu", 6, |n| act::of(n, act::elu)),
    ("", "Equal", 7, |n| ew::binary(n, OpKind::Equal {})),
    ("", "Erf", 9, |n| ew::unary(n, OpKind::Erf {})),
    ("", "Exp", 6, |n| ew::unary(n, OpKind::Exp {})),
    ("", "Expand", 8, mv::expand),
    ("", "EyeLike", 9, block::eye_like),
    ("", "Flatten", 1, shape::flatten),
    ("", "Floor", 6, |n| ew::unary(n, OpKind::Floor {})),
    ("", "GRU", 7, recurrent::gru),
    ("", "Gather", 1, index::gather),
    ("", "GatherElements", 11, index::gather_elements),
    ("", "GatherND", 11, index::gather_nd),
    ("", "Gelu", 20, ew::gelu),
    ("", "Gemm", 7, linalg::gemm),
    ("", "GlobalAveragePool", 1, reduce::global_average_pool),
    ("", "GlobalMaxPool", 1, reduce::global_max_pool),
    ("", "Greater", 7, |n| ew::binary(n, OpKind::Greater {})),
    ("", "GreaterOrEqual", 12, |n| ew::binary(n, OpKind::GreaterEqual {})),
    ("", "GridSample", 16, sample::grid_sample),
    ("", "GroupNormalization", 18, norm::group),
    ("", "HammingWindow", 17, |n| fourier::window(n, [25.0 / 46.0, 21.0 / 46.0, 0.0])),
    ("", "HannWindow", 17, |n| fourier::window(n, [0.5, 0.5, 0.0])),
    ("", "HardSigmoid", 6, |n| act::of(n, act::hard_sigmoid)),
    ("", "HardSwish", 14, |n| act::of(n, act::hard_swish)),
    ("", "Hardmax", 1, reduce::hardmax),
    ("", "Identity", 1, shape::identity),
    ("", "InstanceNormalization", 6, norm::instance),
    ("", "IsInf", 10, |n| act::of(n, act::is_inf)),
    ("", "IsNaN", 9, |n| act::of(n, act::is_nan)),
    ("", "LRN", 1, norm::local_response),
    ("", "LSTM", 7, recurrent::lstm),
    ("", "LayerNormalization", 1, norm::layer_normalization),
    ("", "LeakyRelu", 6, |n| act::of(n, act::leaky_relu)),
    ("", "Less", 7, |n| ew::binary(n, OpKind::Less {})),
    ("", "LessOrEqual", 12, |n| ew::binary(n, OpKind::LessEqual {})),
    ("", "Log", 6, |n| ew::unary(n, OpKind::Log {})),
    ("", "LogSoftmax", 1, |n| norm::softmax(n, |axis| OpKind::LogSoftmax { axis })),
    ("", "LpNormalization", 1, norm::lp),
    ("", "LpPool", 2, pool::lp_pool),
    ("", "MatMul", 1, linalg::matmul),
    ("", "Max", 8, |n| ew::variadic(n, OpKind::Max {})),
    ("", "MaxPool", 1, pool::max_pool),
    ("", "MaxPoolGrad", 1, pool::max_pool_grad),
    ("", "MaxUnpool", 9, pool::max_unpool),
    ("", "Mean", 8, ew::mean),
    ("", "MeanVarianceNormalization", 9, norm::mean_variance),
    ("", "Min", 8, |n| ew::variadic(n, OpKind::Min {})),
    ("", "Mish", 18, |n| act::of(n, act::mish)),
    ("", "Mod", 10, ew::modulo),
    ("", "Mul", 7, |n| ew::binary(n, OpKind::Mul {})),
    ("", "Neg", 6, |n| ew::unary(n, OpKind::Neg {})),
    ("", "NegativeLogLikelihoodLoss", 12, loss::negative_log_likelihood),
    ("", "NonZero", 9, index::nonzero),
    ("", "Not", 1, |n| ew::unary(n, OpKind::Not {})),
    ("", "OneHot", 9, block::one_hot),
    ("", "Or", 7, |n| ew::binary(n, OpKind::Or {})),
    ("", "PRelu", 7, |n| act::of(n, act::prelu)),
    ("", "Pad", 2, mv::pad),
    ("", "Pow", 7, ew::pow),
    ("", "RMSNormalization", 23, norm::rms),
    ("", "RNN", 7, recurrent::rnn),
    ("", "RandomNormal", 1, |n| random::normal(n, false)),
    ("", "RandomNormalLike", 1, |n| random::normal(n, true)),
    ("", "RandomUniform", 1, |n| random::uniform(n, false)),
    ("", "RandomUniformLike", 1, |n| random::uniform(n, true)),
    ("", "Range", 11, shape::range),
    ("", "Reciprocal", 6, |n| ew::unary(n, OpKind::Reciprocal {})),
    ("", "ReduceL1", 1, |n| reduce::composed(n, reduce::l1)),
    ("", "ReduceL2", 1, |n| reduce::composed(n, reduce::l2)),
    ("", "ReduceLogSum", 1, |n| reduce::composed(n, reduce::log_sum)),
    ("", "ReduceLogSumExp", 1, |n| reduce::composed(n, reduce::log_sum_exp)),
    ("", "ReduceMax", 1, |n| reduce::reduce(n, 18, |axes, keepdims| OpKind::ReduceMax { axes, keepdims })),
    ("", "ReduceMean", 1, |n| reduce::reduce(n, 18, |axes, keepdims| OpKind::ReduceMean { axes, keepdims })),
    ("", "ReduceMin", 1, |n| reduce::composed(n, reduce::min)),
    ("", "ReduceProd", 1, |n| reduce::composed(n, reduce::product)),
    ("", "ReduceSum", 1, |n| reduce::reduce(n, 13, |axes, keepdims| OpKind::ReduceSum { axes, keepdims })),
    ("", "ReduceSumSquare", 1, |n| reduce::composed(n, reduce::sum_square)),
    ("", "Relu", 6, |n| ew::unary(n, OpKind::Relu {})),
    ("", "Reshape", 5, shape::reshape),
    ("", "Resize", 10, resize::resize),
    ("", "RotaryEmbedding", 23, attention::rotary),
    ("", "Round", 11, |n| ew::unary(n, OpKind::Round {})),
    ("", "STFT", 17, fourier::stft),
    ("", "Scatter", 9, index::scatter_elements),
    ("", "ScatterElements", 11, index::scatter_elements),
    ("", "ScatterND", 11, index::scatter_nd),
    ("", "Selu", 6, |n| act::of(n, act::selu)),
    ("", "SequenceAt", 11, sequence::at),
    ("", "SequenceConstruct", 11, sequence::construct),
    ("", "SequenceEmpty", 11, sequence::construct),
    ("", "SequenceErase", 11, sequence::erase),
    ("", "SequenceInsert", 11, sequence::insert),
    ("", "SequenceLength", 11, sequence::length),
    ("", "Shape", 1, shape::shape),
    ("", "Shrink", 9, |n| act::of(n, act::shrink)),
    ("", "Sigmoid", 6, |n| ew::unary(n, OpKind::Sigmoid {})),
    ("", "Sign", 9, |n| ew::unary(n, OpKind::Sign {})),
    ("", "Sin", 7, |n| ew::unary(n, OpKind::Sin {})),
    ("", "Sinh", 9, |n| act::of(n, act::sinh)),
    ("", "Size", 1, shape::size),
    ("", "Slice", 1, mv::slice),
    ("", "Softmax", 1, |n| norm::softmax(n, |axis| OpKind::Softmax { axis })),
    ("", "SoftmaxCrossEntropyLoss", 12, loss::cross_entropy),
    ("", "Softplus", 1, |n| act::of(n, act::softplus)),
    ("", "Softsign", 1, |n| act::of(n, act::softsign)),
    ("", "SpaceToDepth", 1, block::space_to_depth),
    ("", "Split", 2, mv::split),
    ("", "SplitToSequence", 11, sequence::split),
    ("", "Sqrt", 6, |n| ew::unary(n, OpKind::Sqrt {})),
    ("", "Squeeze", 1, shape::squeeze),
    ("", "Sub", 7, |n| ew::binary(n, OpKind::Sub {})),
    ("", "Sum", 8, |n| ew::variadic(n, OpKind::Add {})),
    ("", "SwiGLU", 28, act::swiglu),
    ("", "Swish", 24, |n| act::of(n, act::swish)),
    ("", "Tan", 7, |n| act::of(n, act::tan)),
    ("", "Tanh", 6, |n| ew::unary(n, OpKind::Tanh {})),
    ("", "ThresholdedRelu", 10, |n| act::of(n, act::thresholded_relu)),
    ("", "Tile", 6, block::tile),
    ("", "TopK", 1, index::top_k),
    ("", "Transpose", 1, mv::transpose),
    ("", "Trilu", 14, block::trilu),
    ("", "Unsqueeze", 1, shape::unsqueeze),
    ("", "Upsample", 7, resize::resize),
    ("", "Where", 9, ew::select),
    ("", "Xor", 7, ew::xor),
    (PREVIEW, "Adagrad", 1, update::adagrad),
    (PREVIEW, "Adam", 1, update::adam),
    (PREVIEW, "Gradient", 1, gradient::gradient),
    (PREVIEW, "Momentum", 1, update::momentum),
    (MS, "BatchNormInternal", 1, norm::batch_norm_internal),
    (MS, "BatchNormalizationGrad", 1, norm::batch_norm_grad),
    (MS, "ConcatTraining", 1, mv::concat),
    (MS, "ConvGrad", 1, conv::conv_grad),
    (MS, "DropoutGrad", 1, random::dropout_grad),
    (MS, "FastGelu", 1, ew::fast_gelu),
    (MS, "FastGeluGrad", 1, ew::fast_gelu_grad),
    (MS, "FusedMatMul", 1, linalg::fused_matmul),
    (MS, "GatherGrad", 1, index::gather_grad),
    (MS, "Gelu", 1, |n| ew::unary(n, OpKind::Gelu { tanh: false })),
    (MS, "GeluGrad", 1, |n| ew::pair(n, OpKind::GeluGrad { tanh: false })),
    (MS, "LSTMGrad", 1, recurrent::lstm_grad),
    (MS, "LSTMTraining", 1, recurrent::lstm_training),
    (MS, "LayerNormalizationGrad", 1, norm::layer_norm_grad),
    (MS, "ReluGrad", 1, |n| ew::pair(n, OpKind::ReluGrad {})),
    (MS, "Scale", 1, ew::scale),
    (MS, "SigmoidGrad", 1, |n| ew::pair(n, OpKind::SigmoidGrad {})),
    (MS, "SliceGrad", 1, mv::slice_grad),
    (MS, "SoftmaxCrossEntropyLossGrad", 1, loss::cross_entropy_grad),
    (MS, "SoftmaxGrad_13", 1, norm::softmax_grad),
    (MS, "SplitTraining", 1, mv::split),
    (MS, "TanhGrad", 1, |n| ew::pair(n, OpKind::TanhGrad {})),
];

/// The rows of `domain::op`, oldest version first.
fn rows(domain: &str, op: &str) -> &'static [Row] {
    let start = ROWS.partition_point(|r| (r.0, r.1) < (domain, op));
    let rows = &ROWS[start..];
    &rows[..rows.partition_point(|r| (r.0, r.1) == (domain, op))]
}

/// The function that imports `domain::op` at `version`. The fault says what is supported instead.
pub(crate) fn find(domain: &str, op: &str, version: i64) -> Result<Handler, Fault> {
    let found = rows(domain, op).iter().rfind(|r| r.2 <= version).map(|r| r.3);
    found.ok_or_else(|| Fault::Unsupported(refusal(domain, op, version)))
}

fn refusal(domain: &str, op: &str, version: i64) -> String {
    match rows(domain, op).first() {
        Some(first) => format!(
            "the operator is supported from opset {0} on, the model has {version}; convert it with \
             onnx.version_converter.convert_version(model, {0}) or export it with a newer opset",
            first.2
        ),
        None => format!("the operator is not supported; {}", nearest(domain, op)),
    }
}

/// Advice for an operator that is not supported.
fn nearest(domain: &str, op: &str) -> String {
    if let Some(advice) = advice::of(domain, op) {
        return advice.to_string();
    }
    if let Some(elsewhere) = ROWS.iter().find(|r| r.1 == op) {
        let there = if elsewhere.0.is_empty() { "ai.onnx" } else { elsewhere.0 };
        return format!("domain {there} has a supported operator of this name");
    }
    let scored = ROWS.iter().filter(|r| r.0 == domain || r.0.is_empty());
    let scored = scored.map(|r| (strsim::jaro_winkler(op, r.1), r.1));
    let close = scored.filter(|s| s.0 >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)));
    match close {
        Some((_, name)) => format!("the nearest that is supported is `{name}`"),
        None => {
            "compose it of standard operators; tests/conformance/README.md lists those that are supported"
                .into()
        }
    }
}

/// Names at least so similar may have been meant.
const ALIKE: f64 = 0.85;

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are sorted by domain, operator and version, without repetition.
    #[test]
    fn rows_are_sorted() {
        for w in ROWS.windows(2) {
            assert!((w[0].0, w[0].1, w[0].2) < (w[1].0, w[1].1, w[1].2), "{} {}", w[0].1, w[1].1);
        }
    }

    /// An operator is found from its first version on; older versions and unknown names say what there is.
    #[test]
    fn versions_select_rows() {
        assert!(find("", "Where", 9).is_ok() && find("", "Where", 21).is_ok());
        assert!(find("", "Where", 8).is_err() && find("", "Nonsense", 13).is_err());
        assert!(refusal("", "Where", 8).contains("from opset 9 on, the model has 8; convert it"));
        assert!(refusal("", "Loop", 13).contains("depends on data"));
        assert!(refusal("", "FusedMatMul", 13).contains("domain com.microsoft has"));
        assert!(refusal("", "LeakyReLU", 13).contains("nearest that is supported is `LeakyRelu`"));
        assert!(refusal("", "Nonsense", 13).contains("not supported; compose it"));
        assert!(refusal("", &"x".repeat(4096), 13).contains("compose it"));
    }
}
