//! The rules, by family. Every one is exact in the sense of [`crate::graph`]; its `doc` says why.
//!
//! Rules offer only terms that recomputing forward ops does not give anyway. So there is none for gradients
//! of tanh, sigmoid and softmax from their inputs, for log-probabilities from logits, or for statistics of a
//! normalisation. Nor is there one that takes the input of a batch or layer normalisation from its output:
//! where the output is needed, recomputing it from a saved input keeps as many bytes, rounds nothing and
//! holds where a scale is 0. `gelu_grad` reads gelu's input only, and the gradients of sums and biases read
//! nothing.

mod activation;
mod dropout;
mod pool;

use super::rule::RuleDef;

/// Every rule of the `memory-rewrite` pass, sorted by name.
pub const RULES: &[RuleDef] = &[
    dropout::DROPOUT_FROM_KEY,
    pool::INDICES_AS_I32,
    pool::MAX_POOL_GRAD_INPUT,
    dropout::RELU_GRAD_FROM_DROPOUT,
    activation::RELU_GRAD_FROM_INPUT,
    activation::RELU_GRAD_FROM_MASK,
    activation::RELU_GRAD_FROM_OUTPUT,
    activation::RELU_GRAD_PAST_MAX_POOL,
];
