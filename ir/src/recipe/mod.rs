//! Request for training construction, carried beside a module: loss and optimizer that passes are to add.
//!
//! A front end fills the request from its options and files; `add-loss`, `differentiate` and `add-optimizer`
//! of memc-passes fulfil it. Nothing here touches a module.

mod loss;
mod optimizer;

use crate::attr::Reduction;

pub use loss::{ClassAxis, Loss, LossKind, losses};
pub use optimizer::{Groups, Optimizer, OptimizerSpec, UpdateRule, optimizers};

/// Parts of a training step that a module lacks.
#[derive(Clone, PartialEq, Debug)]
pub struct Recipe {
    /// Loss of a forward graph; `None` where the module has its gradients as outputs.
    pub loss: Option<Loss>,
    /// Names of outputs of the forward graph that stay outputs beside the loss.
    pub kept: Vec<String>,
    /// Whether the step evaluates a forward graph: without gradients and optimizer.
    pub is_evaluation: bool,
    /// Gradient of several losses, one a micro-step.
    pub reduction: Reduction,
    /// Optimizer; without one, gradients stay outputs.
    pub optimizer: Option<Optimizer>,
}
