//! Training construction: a forward graph becomes a training step.
//!
//! `add-loss` appends a loss and its labels, `differentiate` the gradients of all parameters as outputs,
//! `add-optimizer` the updates that consume them. Gradient rules are those of [`memc_ir::autodiff`].

mod differentiate;
mod loss;
mod optimizer;

use memc_ir::Module;
use memc_ir::recipe::Recipe;

use crate::{FORWARD_PIPELINE, PassCx, PassDef, PassError, Pipeline};

pub use differentiate::differentiate;
pub use loss::add_loss;
pub use optimizer::add_optimizer;

pub(crate) const ADD_LOSS: PassDef = loss::PASS;
pub(crate) const ADD_OPTIMIZER: PassDef = optimizer::PASS;
pub(crate) const DIFFERENTIATE: PassDef = differentiate::PASS;

/// Adds the parts that `recipe` names to `module`. [`PassCx::warnings`] gets effects that the user may not
/// have wanted.
///
/// A forward part goes through [`FORWARD_PIPELINE`] before it is differentiated, so that gradients are taken
/// of normalisations and activations, not of the small ops that exporters write for them.
///
/// # Errors
///
/// [`PassError::Usage`] where loss and model do not fit, [`PassError::Unsupported`] where an op has no
/// gradient.
pub fn fulfil(module: &mut Module, recipe: &Recipe, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    if let Some(loss) = &recipe.loss {
        add_loss(module, loss, &recipe.kept)?;
    }
    if recipe.is_evaluation {
        return Pipeline::parse(FORWARD_PIPELINE)?.run(module, cx);
    }
    if recipe.loss.is_some() {
        Pipeline::parse(FORWARD_PIPELINE)?.run(module, cx)?;
        cx.warnings.extend(differentiate(module, recipe.reduction)?);
    }
    match &recipe.optimizer {
        Some(optimizer) => add_optimizer(module, optimizer),
        None => Ok(()),
    }
}
