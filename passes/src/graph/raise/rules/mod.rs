//! The rules, by family.

mod activation;
mod conv;
mod index;
mod loss;
mod movement;
mod norm;
mod optim;

use super::rule::RaiseRule;

/// Every rule of the `raise` pass, sorted by name.
pub const RAISE_RULES: &[RaiseRule] = &[
    optim::ADAMW,
    conv::AVERAGE_POOL_GRAD,
    norm::BATCH_NORM,
    norm::BATCH_NORM_GRAD,
    norm::BATCH_NORM_STATS,
    conv::CONV_GRAD_WEIGHT,
    conv::CONV_GRAD_WEIGHT_OF_PART,
    loss::CROSS_ENTROPY,
    loss::CROSS_ENTROPY_GRAD,
    index::GATHER_GRAD,
    index::GATHER_GRAD_IN_ORDER,
    index::GATHER_GRAD_OF_ONE,
    index::GATHER_IN_ORDER,
    activation::GELU,
    activation::GELU_GRAD,
    activation::GELU_TANH_GRAD,
    movement::GEMM,
    index::INDEX_CLAMP,
    index::INDEX_COMPARE,
    norm::LAYER_NORM,
    norm::LAYER_NORM_GRAD,
    activation::MASK_SCALE,
    movement::MATMUL_OF_ROWS,
    movement::MATMUL_OF_STACKS,
    conv::MAX_POOL_GRAD,
    optim::MOMENTUM,
    norm::MOVING_AVERAGE,
    movement::PAD_PAST_TRANSPOSE,
    movement::REDUCE_DROPS_AXES,
    activation::RELU_GRAD,
    activation::SIGMOID_GRAD,
    norm::SOFTMAX_GRAD,
    movement::SUM_OF_ONE,
];
