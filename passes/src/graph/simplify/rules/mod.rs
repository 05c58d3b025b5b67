//! The rules, by family. Every one is exact in the sense of [`crate::graph`]; its `doc` says why.

mod logic;
mod movement;
mod scalar;
mod training;

use super::rule::RuleDef;

/// Every rule of the `simplify` pass, sorted by name.
pub const RULES: &[RuleDef] = &[
    scalar::ADD_NEG,
    movement::BROADCAST_IN_POINTWISE,
    scalar::CAST_OF_CAST,
    scalar::DIV_BY_POWER_OF_TWO,
    scalar::IDEMPOTENT,
    logic::LOGIC_WITH_CONSTANT,
    movement::MATMUL_TAKES_TRANSPOSE,
    scalar::MUL_OF_NEGS,
    scalar::NEG_INTO_CONSTANT,
    scalar::NEG_OF_NEG,
    scalar::NEUTRAL_ELEMENT,
    logic::NOT_OF_COMPARE,
    logic::NOT_OF_NOT,
    scalar::POW_TO_MUL,
    training::RELU_GRAD,
    movement::RESHAPE_OF_RESHAPE,
    movement::RESHAPE_PAST_TRANSPOSE,
    logic::SELECT_BY_CONSTANT,
    logic::SELECT_OF_NOT,
    logic::SELECT_OF_SAME,
    training::SGD,
    movement::SLICE_OF_CONCAT,
    training::TANH_GRAD,
    movement::TRANSPOSE_OF_MATMUL,
    movement::TRANSPOSE_OF_TRANSPOSE,
    movement::TRANSPOSE_PAST_POINTWISE,
];
