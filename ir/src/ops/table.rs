//! The op table: one row per op.

use super::fused::{self, Body};
use super::linalg::BiasGrad;
use super::{Class, Cost, Family, Fusion, OpDef, Types, streaming};
use super::{
    conv, elementwise as ew, fused_norm, index, linalg, loss, norm, optim, pool, random, reduce, shape,
};
use crate::attr::{Attr, AttrValue, F32, Reduction, Scalar, ScatterMode};
use crate::error::ParseError;
use crate::types::{DType, TensorType};

macro_rules! define_ops {
    ($($(#[doc = $doc:literal])+ $Op:ident $mnemonic:literal ($($operand:literal),*) -> ($($result:literal),*)
        {$($attr:ident: $ty:ty $(= $default:expr)?),*}
        $infer:path $([$($infer_arg:expr),*])?, $cost:path $([$($cost_arg:expr),*])?,
        [$($pair:expr),*] $class:ident $family:ident $fusion:ident;)*) => {
        /// A compute op with its attributes.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(missing_docs, reason = "attributes are explained by their row's documentation")]
        pub enum OpKind {
            $($(#[doc = $doc])+ $Op { $($attr: $ty),* },)*
        }

        /// Every row of the op table, in table order.
        pub static OP_DEFS: &[OpDef] = &[$(OpDef {
            mnemonic: $mnemonic,
            doc: concat!($($doc),+),
            operands: &[$($operand),*],
            results: &[$($result),*],
            attrs: &[$(stringify!($attr)),*],
            inplace: &[$($pair),*],
            class: Class::$class,
            family: Family::$family,
            fusion: Fusion::$fusion,
        }),*];

        #[derive(Clone, Copy)]
        enum Row { $($Op),* }

        impl OpKind {
            /// The op's row.
            pub fn def(&self) -> &'static OpDef {
                let row = match self { $(OpKind::$Op { .. } => Row::$Op),* };
                &OP_DEFS[row as usize]
            }

            /// Name in the text form.
            pub fn mnemonic(&self) -> &'static str {
                match self { $(OpKind::$Op { .. } => $mnemonic),* }
            }

            #[allow(unused_variables, reason = "few type rules depend on all attributes")]
            pub(super) fn infer_unchecked(&self, operands: &[&TensorType]) -> Types {
                match self { $(OpKind::$Op { $($attr),* } => $infer(operands $($(, $infer_arg)*)?)),* }
            }

            /// The row's cost, for types whose elements are not converted.
            #[allow(unused_variables, reason = "most costs depend on types alone")]
            pub(super) fn row_cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
                match self { $(OpKind::$Op { $($attr),* } => $cost(operands, results $($(, $cost_arg)*)?)),* }
            }

            /// The attributes in the text form, `{a = 1, b}`; empty when all have their defaults.
            pub fn attrs_text(&self) -> String {
                let mut parts: Vec<String> = Vec::new();
                match self { $(OpKind::$Op { $($attr),* } => {
                    $(
                        let is_default = false $(|| *$attr == $default)?;
                        if !is_default {
                            parts.push($attr.named(stringify!($attr)));
                        }
                    )*
                }),* }
                if parts.is_empty() { String::new() } else { format!("{{{}}}", parts.join(", ")) }
            }

            /// The op named `mnemonic` with the given attributes.
            ///
            /// Errors name the unknown op, or the attribute that is missing, unknown, repeated or ill-typed.
            pub fn from_parts(mnemonic: &str, attrs: &[(String, AttrValue)]) -> Result<OpKind, ParseError> {
                match mnemonic {
                    $($mnemonic => {
                        check_names(mnemonic, &[$(stringify!($attr)),*], attrs)?;
                        Ok(OpKind::$Op { $($attr: {
                            #[allow(unused_mut, unused_assignments, reason = "few attributes have defaults")]
                            let mut default: Option<$ty> = None;
                            $(default = Some($default);)?
                            read_attr::<$ty>(mnemonic, stringify!($attr), attrs, default)?
                        }),* })
                    })*
                    _ => Err(format!("unknown op `{mnemonic}`").into()),
                }
            }
        }
    };
}

fn check_names(op: &str, known: &[&str], attrs: &[(String, AttrValue)]) -> Result<(), ParseError> {
    for (i, (name, _)) in attrs.iter().enumerate() {
        if !known.contains(&name.as_str()) {
            return Err(format!("{op} has no attribute `{name}`").into());
        }
        if attrs[..i].iter().any(|(other, _)| other == name) {
            return Err(format!("attribute `{name}` is given twice").into());
        }
    }
    Ok(())
}

fn read_attr<T: Attr>(
    op: &str,
    name: &str,
    attrs: &[(String, AttrValue)],
    default: Option<T>,
) -> Result<T, ParseError> {
    match attrs.iter().find(|(n, _)| n == name) {
        Some((_, value)) => {
            let wrong = || T::wrong(value).unwrap_or_else(|| format!("must be {}", T::KIND));
            T::read(value).ok_or_else(|| format!("attribute `{name}` of {op} {}", wrong()).into())
        }
        None => default.ok_or_else(|| format!("{op} needs attribute `{name}`: {}", T::KIND).into()),
    }
}

const ZERO: F32 = F32(0.0);
const ONE: F32 = F32(1.0);
/// `ignore_index` when no label is ignored.
pub(crate) const NO_IGNORE: i64 = i64::MIN;

define_ops! {
    /// Negation.
    Neg "neg" ("x") -> ("y") {} ew::numeric_unary, streaming[1], [(0, 0)] Pure ElementWise Step;
    /// Absolute value.
    Abs "abs" ("x") -> ("y") {} ew::numeric_unary, streaming[1], [(0, 0)] Pure ElementWise Step;
    /// Sign: -1, 0 or 1.
    Sign "sign" ("x") -> ("y") {} ew::numeric_unary, streaming[1], [(0, 0)] Pure ElementWise Step;
    /// Logical negation.
    Not "not" ("x") -> ("y") {} ew::bool_unary, streaming[1], [(0, 0)] Pure ElementWise Step;
    /// Largest integer that is not larger.
    Floor "floor" ("x") -> ("y") {} ew::float_unary, streaming[1], [(0, 0)] Pure ElementWise Step;
    /// Smallest integer that is not smaller.
    Ceil "ceil" ("x") -> ("y") {} ew::float_unary, streaming[1], [(0, 0)] Pure ElementWise Step;
    /// Nearest integer; halves go to the even one.
    Round "round" ("x") -> ("y") {} ew::float_unary, streaming[1], [(0, 0)] Pure ElementWise Step;
    /// The operand, without its gradient.
    StopGradient "stop_gradient" ("x") -> ("y")
        {} ew::float_unary, streaming[1], [(0, 0)] Pure ElementWise Step;
    /// Angle whose tangent is `x`, from -pi/2 to pi/2.
    Atan "atan" ("x") -> ("y") {} ew::float_unary, streaming[8], [(0, 0)] Pure ElementWise Step;
    /// Sine.
    Sin "sin" ("x") -> ("y") {} ew::float_unary, streaming[8], [(0, 0)] Pure ElementWise Step;
    /// Cosine.
    Cos "cos" ("x") -> ("y") {} ew::float_unary, streaming[8], [(0, 0)] Pure ElementWise Step;
    /// Exponential.
    Exp "exp" ("x") -> ("y") {} ew::float_unary, streaming[8], [(0, 0)] Pure ElementWise Step;
    /// Natural logarithm.
    Log "log" ("x") -> ("y") {} ew::float_unary, streaming[8], [(0, 0)] Pure ElementWise Step;
    /// Square root.
    Sqrt "sqrt" ("x") -> ("y") {} ew::float_unary, streaming[4], [(0, 0)] Pure ElementWise Step;
    /// `1 / x`.
    Reciprocal "reciprocal" ("x") -> ("y") {} ew::float_unary, streaming[4], [(0, 0)] Pure ElementWise Step;
    /// Hyperbolic tangent.
    Tanh "tanh" ("x") -> ("y") {} ew::float_unary, streaming[8], [(0, 0)] Pure ElementWise Step;
    /// Logistic function `1 / (1 + exp(-x))`.
    Sigmoid "sigmoid" ("x") -> ("y") {} ew::float_unary, streaming[8], [(0, 0)] Pure ElementWise Step;
    /// Error function.
    Erf "erf" ("x") -> ("y") {} ew::float_unary, streaming[8], [(0, 0)] Pure ElementWise Step;
    /// `max(x, 0)`; NaN stays NaN.
    Relu "relu" ("x") -> ("y") {} ew::numeric_unary, streaming[1], [(0, 0)] Pure ElementWise Step;
    /// Gaussian error linear unit; `tanh` selects the tanh approximation.
    Gelu "gelu" ("x") -> ("y") {tanh: bool = false}
        ew::float_unary, streaming[8], [(0, 0)] Pure ElementWise Step;
    /// Conversion to element type `to`. Float to integer truncates and saturates, NaN gives 0; integers wrap;
    /// floats round to the nearest, ties to even, and overflow to infinity; to bool tests for non-zero.
    Cast "cast" ("x") -> ("y") {to: DType} ew::cast[*to], streaming[1], [] Pure ElementWise Step;

    /// Sum, broadcasting.
    Add "add" ("a", "b") -> ("y") {} ew::numeric_binary, streaming[1], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// Difference, broadcasting.
    Sub "sub" ("a", "b") -> ("y") {} ew::numeric_binary, streaming[1], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// Product, broadcasting.
    Mul "mul" ("a", "b") -> ("y") {} ew::numeric_binary, streaming[1], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// Quotient, broadcasting. Integer division truncates; by zero gives zero.
    Div "div" ("a", "b") -> ("y") {} ew::numeric_binary, streaming[4], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// Power `a^b`, broadcasting.
    Pow "pow" ("a", "b") -> ("y") {} ew::numeric_binary, streaming[8], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// Smaller of the two, broadcasting; NaN wins.
    Min "min" ("a", "b") -> ("y") {} ew::numeric_binary, streaming[1], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// Larger of the two, broadcasting; NaN wins.
    Max "max" ("a", "b") -> ("y") {} ew::numeric_binary, streaming[1], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// `a == b`, broadcasting.
    Equal "equal" ("a", "b") -> ("y") {} ew::compare, streaming[1], [] Pure ElementWise Step;
    /// `a < b`, broadcasting.
    Less "less" ("a", "b") -> ("y") {} ew::compare, streaming[1], [] Pure ElementWise Step;
    /// `a <= b`, broadcasting.
    LessEqual "less_equal" ("a", "b") -> ("y") {} ew::compare, streaming[1], [] Pure ElementWise Step;
    /// `a > b`, broadcasting.
    Greater "greater" ("a", "b") -> ("y") {} ew::compare, streaming[1], [] Pure ElementWise Step;
    /// `a >= b`, broadcasting.
    GreaterEqual "greater_equal" ("a", "b") -> ("y") {} ew::compare, streaming[1], [] Pure ElementWise Step;
    /// Logical and, broadcasting.
    And "and" ("a", "b") -> ("y") {} ew::bool_binary, streaming[1], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// Logical or, broadcasting.
    Or "or" ("a", "b") -> ("y") {} ew::bool_binary, streaming[1], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// `cond ? a : b`, broadcasting.
    Select "select" ("cond", "a", "b") -> ("y") {}
        ew::select, streaming[1], [(1, 0), (2, 0)] Pure ElementWise Step;

    /// Gradient of relu from its output: `dy` where `y > 0`, else 0.
    ReluGrad "relu_grad" ("dy", "y") -> ("dx") {}
        ew::float_pair, streaming[1], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// Gradient of tanh from its output: `dy * (1 - y^2)`.
    TanhGrad "tanh_grad" ("dy", "y") -> ("dx") {}
        ew::float_pair, streaming[4], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// Gradient of sigmoid from its output: `dy * y * (1 - y)`.
    SigmoidGrad "sigmoid_grad" ("dy", "y") -> ("dx") {}
        ew::float_pair, streaming[4], [(0, 0), (1, 0)] Pure ElementWise Step;
    /// Gradient of gelu from its input.
    GeluGrad "gelu_grad" ("dy", "x") -> ("dx") {tanh: bool = false}
        ew::float_pair, streaming[16], [(0, 0), (1, 0)] Pure ElementWise Step;

    /// `alpha * a * b` over the two innermost axes; leading axes broadcast. `trans_*` swap the two innermost
    /// axes first.
    MatMul "matmul" ("a", "b") -> ("y") {trans_a: bool = false, trans_b: bool = false, alpha: F32 = ONE}
        linalg::matmul[*trans_a, *trans_b], linalg::matmul_cost[*trans_a], [] Pure MatMul Head;
    /// `alpha * a * b + beta * c` on matrices; `c` broadcasts to the result.
    Gemm "gemm" ("a", "b", "c") -> ("y")
        {trans_a: bool = false, trans_b: bool = false, alpha: F32 = ONE, beta: F32 = ONE}
        linalg::gemm[*trans_a, *trans_b], linalg::gemm_cost[*trans_a], [(2, 0)] Pure MatMul Head;
    /// matmul of matrices, and the reduce_sum of `a`, or with `sum_b` of `b`, over the axis that the product
    /// sums over: the gradients of a linear layer's weight and bias. The bits are those of the two ops.
    MatMulBiasGrad "matmul_bias_grad" ("a", "b") -> ("y", "sum")
        {trans_a: bool = false, trans_b: bool = false, alpha: F32 = ONE, sum_b: bool = false}
        linalg::bias_grad[*trans_a, *trans_b, *sum_b],
        linalg::bias_grad_cost[&BiasGrad::new(*trans_a, *trans_b, *alpha, *sum_b)], [] Pure MatMul Alone;

    /// 2-D convolution (cross-correlation) of `x` `[n, c, h, w]` with `w` `[m, c / groups, kh, kw]` and
    /// optional bias `[m]`. `pads` is top, left, bottom, right.
    Conv "conv" ("x", "w", "bias?") -> ("y")
        {strides: Vec<u64>, pads: Vec<u64>, dilations: Vec<u64>, groups: i64 = 1}
        conv::conv[&conv::Window { strides, pads, dilations, groups: *groups }],
        conv::conv_cost[strides, pads], [] Pure Conv Head;
    /// Gradient of conv with respect to its input of spatial extent `size`; also the transposed convolution.
    ConvGradInput "conv_grad_input" ("dy", "w") -> ("dx")
        {strides: Vec<u64>, pads: Vec<u64>, dilations: Vec<u64>, groups: i64 = 1, size: Vec<u64>}
        conv::grad_input[&conv::Window { strides, pads, dilations, groups: *groups }, size],
        conv::grad_input_cost[strides, pads], [] Pure ConvGradInput Alone;
    /// Gradient of conv with respect to its weight of spatial extent `kernel`.
    ConvGradWeight "conv_grad_weight" ("dy", "x") -> ("dw")
        {strides: Vec<u64>, pads: Vec<u64>, dilations: Vec<u64>, groups: i64 = 1, kernel: Vec<u64>}
        conv::grad_weight[&conv::Window { strides, pads, dilations, groups: *groups }, kernel],
        conv::grad_weight_cost[strides, pads], [] Pure ConvGradWeight Alone;

    /// 2-D max pooling; `indices` are flat positions in the whole input tensor. Padding never wins.
    MaxPool "max_pool" ("x") -> ("y", "indices")
        {kernel: Vec<u64>, strides: Vec<u64>, pads: Vec<u64>, dilations: Vec<u64>, ceil: bool = false}
        pool::max_pool[&pool::Window { kernel, strides, pads, dilations, ceil: *ceil }],
        streaming[kernel[0] * kernel[1]], [] Pure Pool Alone;
    /// Scatters `dy` to `indices` of a zero tensor of shape `shape`, adding where windows overlap.
    MaxPoolGrad "max_pool_grad" ("dy", "indices") -> ("dx") {shape: Vec<u64>}
        pool::max_pool_grad[shape], streaming[1], [] Pure Pool Alone;
    /// Gradient of max_pool from its input: what max_pool_grad makes of the indices that max_pool finds in
    /// `x`.
    MaxPoolGradInput "max_pool_grad_input" ("dy", "x") -> ("dx")
        {kernel: Vec<u64>, strides: Vec<u64>, pads: Vec<u64>, dilations: Vec<u64>, ceil: bool = false}
        pool::max_pool_grad_input[&pool::Window { kernel, strides, pads, dilations, ceil: *ceil }],
        pool::max_grad_cost[kernel], [] Pure Pool Alone;
    /// 2-D average pooling; `count_pad` counts padding as elements, so that only what hangs over the padded
    /// input is left out.
    AveragePool "average_pool" ("x") -> ("y")
        {kernel: Vec<u64>, strides: Vec<u64>, pads: Vec<u64>, ceil: bool = false, count_pad: bool = false}
        pool::average_pool[&pool::Window::undilated(kernel, strides, pads, *ceil)],
        streaming[kernel[0] * kernel[1]], [] Pure Pool Alone;
    /// Gradient of average_pool for an input of shape `shape`.
    AveragePoolGrad "average_pool_grad" ("dy") -> ("dx")
        {kernel: Vec<u64>, strides: Vec<u64>, pads: Vec<u64>, ceil: bool = false, count_pad: bool = false,
            shape: Vec<u64>}
        pool::average_pool_grad[&pool::Window::undilated(kernel, strides, pads, *ceil), shape],
        streaming[kernel[0] * kernel[1]], [] Pure Pool Alone;

    /// Per-channel mean, population variance and `1 / sqrt(var + epsilon)` of `x` `[n, c, ...]`, in f32.
    BatchNormStats "batch_norm_stats" ("x") -> ("mean", "var", "inv_std") {epsilon: F32}
        norm::batch_norm_stats, norm::batch_norm_stats_cost, [] Pure Norm Alone;
    /// `(x - mean) * inv_std * scale + bias` per channel.
    BatchNorm "batch_norm" ("x", "scale", "bias", "mean", "inv_std") -> ("y") {}
        norm::batch_norm, streaming[4], [(0, 0)] Pure Norm Step;
    /// Gradient of training-mode batch normalisation with respect to input, scale and bias.
    BatchNormGrad "batch_norm_grad" ("dy", "x", "scale", "mean", "inv_std") -> ("dx", "dscale", "dbias") {}
        norm::batch_norm_grad, streaming[10], [(0, 0), (1, 0)] Pure Norm Alone;
    /// `momentum * running + (1 - momentum) * scale * batch`. A `scale` of `n / (n - 1)` takes a variance of
    /// n elements for the unbiased one.
    MovingAverage "moving_average" ("running", "batch") -> ("y") {momentum: F32, scale: F32 = ONE}
        norm::moving_average, streaming[4], [(0, 0)] Pure ElementWise Step;
    /// Layer normalisation over the axes from `axis` on, with per-row mean and inverse standard deviation in
    /// f32.
    LayerNorm "layer_norm" ("x", "scale", "bias?") -> ("y", "mean", "inv_std") {axis: i64, epsilon: F32}
        norm::layer_norm[*axis], streaming[8], [(0, 0)] Pure Norm Alone;
    /// Gradient of layer_norm with respect to input, scale and bias.
    LayerNormGrad "layer_norm_grad" ("dy", "x", "scale", "mean", "inv_std") -> ("dx", "dscale", "dbias")
        {axis: i64}
        norm::layer_norm_grad[*axis], streaming[16], [(0, 0), (1, 0)] Pure Norm Alone;
    /// Softmax along `axis`.
    Softmax "softmax" ("x") -> ("y") {axis: i64}
        norm::softmax[*axis], streaming[12], [(0, 0)] Pure Softmax Alone;
    /// Logarithm of softmax along `axis`.
    LogSoftmax "log_softmax" ("x") -> ("y") {axis: i64}
        norm::softmax[*axis], streaming[12], [(0, 0)] Pure Softmax Alone;
    /// Gradient of softmax from its output: `(dy - sum(dy * y)) * y` along `axis`.
    SoftmaxGrad "softmax_grad" ("dy", "y") -> ("dx") {axis: i64}
        norm::softmax_grad[*axis], streaming[12], [(0, 0), (1, 0)] Pure Softmax Alone;

    /// Sum over `axes`; reduced axes disappear unless `keepdims`.
    ReduceSum "reduce_sum" ("x") -> ("y") {axes: Vec<u64>, keepdims: bool = false}
        reduce::reduce[axes, *keepdims], reduce::cost, [] Pure Reduce Alone;
    /// Mean over `axes`.
    ReduceMean "reduce_mean" ("x") -> ("y") {axes: Vec<u64>, keepdims: bool = false}
        reduce::reduce[axes, *keepdims], reduce::cost, [] Pure Reduce Alone;
    /// Maximum over `axes`.
    ReduceMax "reduce_max" ("x") -> ("y") {axes: Vec<u64>, keepdims: bool = false}
        reduce::reduce[axes, *keepdims], reduce::cost, [] Pure Reduce Alone;
    /// Sum of the squares of all elements, as an f32 scalar.
    SumSquares "sum_squares" ("x") -> ("y") {}
        reduce::sum_squares, reduce::sum_squares_cost, [] Pure Reduce Alone;

    /// Softmax cross-entropy of `logits` `[n, c, ...]` and integer `labels` `[n, ...]`, with the
    /// log-probabilities. Labels equal to `ignore_index` do not count.
    CrossEntropy "cross_entropy" ("logits", "labels") -> ("loss", "log_prob")
        {reduction: Reduction = Reduction::Mean, ignore_index: i64 = NO_IGNORE}
        loss::cross_entropy[*reduction], loss::cost, [(0, 1)] Pure Softmax Alone;
    /// Gradient of cross_entropy with respect to the logits.
    CrossEntropyGrad "cross_entropy_grad" ("dloss", "log_prob", "labels") -> ("dlogits")
        {reduction: Reduction = Reduction::Mean, ignore_index: i64 = NO_IGNORE}
        loss::cross_entropy_grad[*reduction], loss::cost, [(1, 0)] Pure Softmax Alone;

    /// A second place with the same bytes.
    Copy "copy" ("x") -> ("y") {} shape::copy, streaming[1], [] Pure Movement Alone;
    /// The same elements under `shape`.
    Reshape "reshape" ("x") -> ("y") {shape: Vec<u64>}
        shape::reshape[shape], shape::no_cost, [(0, 0)] View Movement Alone;
    /// Axis `i` of the result is axis `perm[i]` of the operand.
    Transpose "transpose" ("x") -> ("y") {perm: Vec<u64>}
        shape::transpose[perm], streaming[0], [] Pure Movement Alone;
    /// Numpy broadcasting to `shape`.
    Broadcast "broadcast" ("x") -> ("y") {shape: Vec<u64>}
        shape::broadcast[shape], streaming[0], [] Pure Movement Alone;
    /// For every axis the elements `starts`, `starts + steps`, ... before (`steps > 0`) or after (`steps <
    /// 0`) `ends`.
    Slice "slice" ("x") -> ("y") {starts: Vec<i64>, ends: Vec<i64>, steps: Vec<i64>}
        shape::slice[starts, ends, steps], shape::slice_cost, [] Pure Movement Alone;
    /// Concatenation along `axis`.
    Concat "concat" ("xs*") -> ("y") {axis: i64} shape::concat[*axis], streaming[0], [] Pure Movement Alone;
    /// Adds `before` and `after` elements of `value` around every axis.
    Pad "pad" ("x") -> ("y") {before: Vec<u64>, after: Vec<u64>, value: Scalar}
        shape::pad[before, after, *value], streaming[0], [] Pure Movement Alone;
    /// A tensor of `shape` with every element `value`.
    Fill "fill" () -> ("y") {dtype: DType, shape: Vec<u64>, value: Scalar}
        shape::fill[*dtype, shape, *value], streaming[0], [] Pure Movement Alone;

    /// Slices of `data` along `axis` at `indices`; negative indices count from the end.
    Gather "gather" ("data", "indices") -> ("y") {axis: i64}
        index::gather[*axis], index::gather_cost, [] Pure Gather Alone;
    /// Adds the slices of `dy` at `indices` into zeros whose extent along `axis` is `dim`.
    GatherGrad "gather_grad" ("indices", "dy") -> ("ddata") {axis: i64, dim: i64}
        index::gather_grad[*axis, *dim], index::gather_grad_cost, [] Pure Scatter Alone;
    /// `y[.., i, ..] = data[.., indices[.., i, ..], ..]` along `axis`.
    GatherElements "gather_elements" ("data", "indices") -> ("y") {axis: i64}
        index::gather_elements[*axis], index::gather_cost, [] Pure Gather Alone;
    /// Writes `updates` into a copy of `data` at `indices` along `axis`.
    ScatterElements "scatter_elements" ("data", "indices", "updates") -> ("y")
        {axis: i64, mode: ScatterMode = ScatterMode::Replace}
        index::scatter_elements[*axis, *mode], index::scatter_elements_cost, [(0, 0)] Pure Scatter Alone;
    /// Slices of `data` at the index tuples in the last axis of `indices`. The first `batch_dims` axes of
    /// both are the same and indices address what is behind them.
    GatherNd "gather_nd" ("data", "indices") -> ("y") {batch_dims: i64 = 0}
        index::gather_nd[*batch_dims], index::gather_cost, [] Pure Gather Alone;
    /// Writes slices of `updates` into a copy of `data` at the index tuples in the last axis of `indices`,
    /// which address `data` as in gather_nd.
    ScatterNd "scatter_nd" ("data", "indices", "updates") -> ("y")
        {mode: ScatterMode = ScatterMode::Replace, batch_dims: i64 = 0}
        index::scatter_nd[*mode, *batch_dims], index::scatter_nd_cost, [(0, 0)] Pure Scatter Alone;

    /// Positions of the `k` largest elements along `axis`, or smallest if `smallest`, the foremost element
    /// first. Equal elements keep their order; NaN counts as larger than any number.
    TopK "top_k" ("x") -> ("indices") {axis: i64, k: i64, smallest: bool = false}
        index::top_k[*axis, *k], index::top_k_cost[*axis], [] Pure Gather Alone;

    /// Random booleans, true with probability `1 - ratio`. Element `i` depends on `i`, `seed`, `stream` and
    /// `step` alone.
    RandomMask "random_mask" ("step") -> ("mask") {ratio: F32, seed: i64, stream: i64, shape: Vec<u64>}
        random::mask[ratio.0, *stream, shape], streaming[16], [] Pure Random Step;
    /// `mask ? x * scale : 0`.
    MaskScale "mask_scale" ("x", "mask") -> ("y") {scale: F32}
        random::mask_scale, streaming[1], [(0, 0)] Pure ElementWise Step;
    /// mask_scale of `x` and the random_mask of the same attributes, with scale `1 / (1 - ratio)`. It is its
    /// own gradient.
    Dropout "dropout" ("x", "step") -> ("y") {ratio: F32, seed: i64, stream: i64}
        random::dropout[ratio.0, *stream], streaming[16], [(0, 0)] Pure Random Step;
    /// Random floats, uniform in `[low, high)`.
    RandomUniform "random_uniform" ("step") -> ("y")
        {seed: i64, stream: i64, shape: Vec<u64>, low: F32, high: F32}
        random::uniform[*stream, shape, low.0, high.0], streaming[16], [] Pure Random Alone;
    /// Random floats, normal with the given mean and standard deviation `scale`.
    RandomNormal "random_normal" ("step") -> ("y")
        {seed: i64, stream: i64, shape: Vec<u64>, mean: F32, scale: F32}
        random::normal[*stream, shape, mean.0, scale.0], streaming[16], [] Pure Random Alone;

    /// `w - lr * g`.
    Sgd "sgd" ("w", "g", "lr") -> ("w_new") {} optim::sgd, streaming[2], [(0, 0)] Pure Optimizer Alone;
    /// Gradient descent with momentum, `g' = g + l2 * w`, `v_new = alpha * v + beta * g'`: the weight moves
    /// by `-lr * v_new`, with `nesterov` by `-lr * (g' + alpha * v_new)`. With `step`, which counts from 1,
    /// the first step takes `beta` as 1. ONNX's Momentum, and PyTorch's SGD with `beta` one minus its
    /// dampening.
    Momentum "momentum" ("w", "g", "v", "lr", "step?") -> ("w_new", "v_new")
        {alpha: F32, beta: F32 = ONE, l2: F32 = ZERO, nesterov: bool = false}
        optim::momentum, streaming[8], [(0, 0), (2, 1)] Pure Optimizer Alone;
    /// Adagrad, `g' = g + l2 * w`, `h_new = h + g'^2`: the weight moves by `-rate * g' / (sqrt(h_new) +
    /// epsilon)`, where `rate` is `lr`, or `lr / (1 + (step - 1) * decay)` with `step`, which counts from 1.
    Adagrad "adagrad" ("w", "g", "h", "lr", "step?") -> ("w_new", "h_new")
        {epsilon: F32, l2: F32 = ZERO, decay: F32 = ZERO}
        optim::adagrad, streaming[8], [(0, 0), (2, 1)] Pure Optimizer Alone;
    /// Adam with decoupled weight decay, as ONNX Runtime's AdamWOptimizer. `decay_first` is its adam_mode 0
    /// (decay before the update, bias-corrected denominator); otherwise adam_mode 1 (decay after the update).
    /// The moments are those of `g + l2 * w`. Bias correction leaves out step 0.
    AdamW "adamw" ("w", "g", "m", "v", "lr", "step") -> ("w_new", "m_new", "v_new")
        {alpha: F32, beta: F32, epsilon: F32, weight_decay: F32, bias_correction: bool = false,
            decay_first: bool = false, l2: F32 = ZERO}
        optim::adamw, streaming[16], [(0, 0), (2, 1), (3, 2)] Pure Optimizer Alone;
    /// `x + by` for every operand, integers that wrap: the counters of a step in one kernel.
    Increment "increment" ("xs*") -> ("ys*") {by: i64}
        optim::increment[*by], optim::increment_cost, [(0, 0)] Pure Optimizer Alone;

    /// Element-wise ops in one kernel, with the matrix product or convolution of `f32` that the first step
    /// may be: then no operand shares bytes with a result. `body` is a list of steps, such as `add(x0, x1);
    /// relu(t0)`, on operands `x0`, `x1`, ... and earlier steps `t0`, `t1`, ...; `outs` are the steps that
    /// are results. All steps have one shape, to which operands broadcast as in the single op. The bits are
    /// those of the ops one by one.
    Fused "fused" ("xs*") -> ("ys+") {body: Body, outs: Vec<u64>}
        fused::infer[body, outs], fused::cost[body], [] Pure ElementWise Alone;

    /// A layer_norm or layer_norm_grad in one kernel with the element-wise ops that make its first operand
    /// and that read its first result. `body` and `outs` are those of fused, with one of the two as one of
    /// the steps; results are the steps of `outs`, then the second and third one of the normalisation. The
    /// bits are those of the ops one by one.
    FusedNorm "fused_norm" ("xs*") -> ("ys+") {body: Body, outs: Vec<u64>}
        fused_norm::infer[body, outs], fused_norm::cost[body, outs], [] Pure Norm Alone;
}
