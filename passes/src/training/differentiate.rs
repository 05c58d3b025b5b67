//! Gradients of all parameters, as outputs.
//!
//! The gradients of several micro-steps are averaged, or summed. Those of a micro-step stand right behind its
//! loss, so that their operands can be freed before the next micro-step.

use memc_ir::attr::Reduction;
use memc_ir::{
    Code, Id, Module, OpId, OpKind, Output, OutputRole, Phase, Role, StateId, ValueId, autodiff, counted,
    some_of,
};

use crate::{OptionDef, Options, PassCx, PassDef, PassError};

pub(super) const PASS: PassDef = PassDef {
    name: "differentiate",
    summary: "append the gradients of all parameters, of the mean of all losses, as outputs",
    phases: (Phase::Graph, Phase::Graph),
    options: OPTIONS,
    run,
};

const OPTIONS: &[OptionDef] =
    &[OptionDef { name: "reduction", default: "mean", doc: "of several losses: mean or sum" }];

fn run(m: &mut Module, options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let reduction = match options.get(OPTIONS, "reduction")? {
        "mean" => Reduction::Mean,
        "sum" => Reduction::Sum,
        other => return Err(PassError::Usage(format!("reduction `{other}`: write mean or sum"))),
    };
    cx.warnings.extend(differentiate(m, reduction)?);
    Ok(())
}

/// Appends the gradients of the mean, or the sum, of the losses of `m` by all its parameters and makes them
/// outputs, `X_grad` for parameter `X`.
///
/// A parameter that no loss depends on becomes frozen; the returned warning names all of them.
///
/// # Errors
///
/// [`PassError::Usage`] where the losses depend on no parameter, [`PassError::Unsupported`] where an op has
/// no gradient.
pub fn differentiate(m: &mut Module, reduction: Reduction) -> Result<Option<String>, PassError> {
    let params: Vec<StateId> =
        m.states.iter().filter(|(_, s)| s.role == Role::Param).map(|(id, _)| id).collect();
    let gradients = gradients(m, &params, reduction)?;
    // Their work is done: passes behind this one remove copies.
    for op in m.order.clone() {
        if let Code::Compute(kind @ OpKind::StopGradient {}) = &mut m.ops[op].code {
            *kind = OpKind::Copy {};
        }
    }
    let mut idle = Vec::new();
    for (&state, gradient) in params.iter().zip(gradients) {
        let name = &m.values[m.states[state].value].name;
        match gradient {
            Some(value) => {
                let name = format!("{name}_grad");
                m.outputs.push(Output { value, name, role: OutputRole::Gradient });
            }
            None => {
                idle.push(format!("`{name}`"));
                m.states[state].role = Role::Frozen;
            }
        }
    }
    if idle.len() == params.len() {
        return Err(PassError::Usage("the loss depends on no parameter; choose another with --loss".into()));
    }
    Ok((!idle.is_empty()).then(|| {
        format!(
            "the loss does not depend on {}, which {}: {}",
            counted(idle.len(), "parameter"),
            if idle.len() == 1 { "stays as it is" } else { "stay as they are" },
            some_of(&idle)
        )
    }))
}

/// Gradient of all losses for every parameter; `None` where no loss depends on it.
fn gradients(
    module: &mut Module,
    params: &[StateId],
    reduction: Reduction,
) -> Result<Vec<Option<ValueId>>, PassError> {
    let wrt: Vec<ValueId> = params.iter().map(|&s| module.states[s].value).collect();
    let losses: Vec<ValueId> =
        module.outputs.iter().filter(|o| o.role == OutputRole::Loss).map(|o| o.value).collect();
    let scale = if reduction == Reduction::Mean { 1.0 / losses.len().max(1) as f32 } else { 1.0 };
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
        let gradients = autodiff::differentiate_scaled(module, loss, &wrt, scale).map_err(|e| {
            PassError::Unsupported(format!("{e}; exclude what is not to be trained with --freeze"))
        })?;
        for ((sum, gradient), w) in sums.iter_mut().zip(gradients).zip(&wrt) {
            *sum = match (*sum, gradient) {
                (Some(sum), Some(more)) => {
                    let name = format!("{}_grad.sum", module.values[*w].name);
                    let added = module.add_op(OpKind::Add {}, &[sum, more], &[&name], "");
                    added.map_err(|e| PassError::Failed(e.to_string()))?.first().copied()
                }
                (sum, more) => sum.or(more),
            };
        }
    }
    Ok(sums)
}
