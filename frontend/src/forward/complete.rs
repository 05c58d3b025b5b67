//! The second step of a forward model: gradients and the optimizer are appended to its forward part.
//!
//! Gradients come from [`memc_ir::autodiff`], updates are PyTorch's. Between the two steps the forward part may be
//! rewritten, as long as names of states and outputs stay: all that is said here of parameters and losses is in the
//! module itself. The gradients of several micro-steps are summed, and each micro-step's come right behind it, so that
//! what they need of it can be freed before the next one.

use memc_ir::autodiff::differentiate;
use memc_ir::{Id, Module, OpId, OpKind, Output, OutputRole, Role, StateId, ValueId, counted};

use crate::error::{ImportError, some_of};
use crate::initial::Initial;
use crate::optimizer::{Optimizer, Trained};
use crate::recipe::Loss;
use crate::{Draft, Import, NOTHING_TRAINED, contents};

/// What is left to do for a forward model.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(super) loss: Loss,
    /// Without one, gradients become outputs.
    pub(super) optimizer: Option<Optimizer>,
    /// Initial values of the optimizer's state.
    pub(super) initial: Initial,
    pub(super) micro_steps: u32,
    /// Whether the user said that there is to be no optimizer.
    pub(super) declined: bool,
}

/// Appends gradients and optimizer to the forward part of a model.
pub(crate) fn complete(draft: Draft, recipe: Recipe) -> Result<Import, ImportError> {
    let Draft { mut module, mut notes, mut warnings, .. } = draft;
    let trained = trained(&mut module, &mut warnings)?;
    let described = match &recipe.optimizer {
        Some(o) => o.describe(),
        None => "none; gradients are outputs".into(),
    };
    match &recipe.optimizer {
        Some(optimizer) => optimizer.apply(&mut module, &trained, &recipe.initial)?,
        None => {
            if !recipe.declined {
                warnings.push(format!("{NOTHING_TRAINED}; give one, as --optimizer adamw:lr=1e-3"));
            }
            for t in &trained {
                let name = format!("{}_grad", t.name);
                module.outputs.push(Output { value: t.gradient, name, role: OutputRole::Gradient });
            }
        }
    }
    let compared = recipe.initial.compare(&module)?;
    warnings.extend(compared.warning);
    notes.push(format!(
        "forward model: {}; loss: {}; optimizer: {described}",
        contents(&module),
        recipe.loss
    ));
    notes.extend(compared.said);
    if recipe.micro_steps > 1 {
        notes.push(format!("{} micro-steps per step, gradients summed", recipe.micro_steps));
    }
    Ok(Import { module, notes, warnings })
}

/// The parameters with their gradients; those without one are frozen.
fn trained(module: &mut Module, warnings: &mut Vec<String>) -> Result<Vec<Trained>, ImportError> {
    let params: Vec<StateId> =
        module.states.iter().filter(|(_, s)| s.role == Role::Param).map(|(id, _)| id).collect();
    let gradients = gradients(module, &params)?;
    let (mut trained, mut idle) = (Vec::new(), Vec::new());
    for (state, gradient) in params.into_iter().zip(gradients) {
        let name = module.values[module.states[state].value].name.clone();
        match gradient {
            Some(gradient) => trained.push(Trained { name, state, gradient }),
            None => {
                module.states[state].role = Role::Frozen;
                idle.push(format!("`{name}`"));
            }
        }
    }
    if !idle.is_empty() {
        warnings.push(format!(
            "the loss does not depend on {}, which {}: {}",
            counted(idle.len(), "parameter"),
            if idle.len() == 1 { "stays as it is" } else { "stay as they are" },
            some_of(&idle)
        ));
    }
    if trained.is_empty() {
        return Err(ImportError::Usage(
            "the loss depends on no parameter; choose another with --loss".into(),
        ));
    }
    Ok(trained)
}

/// Sums of the gradients of all losses, where there are any.
fn gradients(module: &mut Module, params: &[StateId]) -> Result<Vec<Option<ValueId>>, ImportError> {
    let wrt: Vec<ValueId> = params.iter().map(|&s| module.states[s].value).collect();
    let losses: Vec<ValueId> =
        module.outputs.iter().filter(|o| o.role == OutputRole::Loss).map(|o| o.value).collect();
    let mut forward = std::mem::take(&mut module.order).into_iter().peekable();
    let mut sums = vec![None; params.len()];
    let mut done = vec![false; module.ops.len()];
    let ready = |done: &[bool], op: Option<OpId>| op.is_none_or(|op| done[op.index()]);
    for (i, &loss) in losses.iter().enumerate() {
        let last = i + 1 == losses.len();
        let def = module.def_op(loss);
        while let Some(op) = forward.next_if(|_| last || !ready(&done, def)) {
            done[op.index()] = true;
            module.order.push(op);
        }
        let gradients = differentiate(module, loss, &wrt).map_err(|e| {
            ImportError::Unsupported(format!("{e}; exclude what is not to be trained with --freeze"))
        })?;
        for ((sum, gradient), w) in sums.iter_mut().zip(gradients).zip(&wrt) {
            *sum = match (*sum, gradient) {
                (Some(sum), Some(more)) => {
                    let name = format!("{}_grad.sum", module.values[*w].name);
                    let added = module.add_op(OpKind::Add {}, &[sum, more], &[&name], "");
                    added.map_err(ImportError::BadModel)?.first().copied()
                }
                (sum, more) => sum.or(more),
            };
        }
    }
    Ok(sums)
}
