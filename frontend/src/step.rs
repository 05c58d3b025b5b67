//! One-file training steps: a standard ONNX graph with parameters and state as inputs and their new contents
//! as outputs.
//!
//! Input `X` is state when there is an output `X_new` of the same type, or when the user pairs it with an
//! output. A parameter that is only differentiated has an output `X_grad` instead.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::{Blob, DType, Feed, Init, Output, OutputRole, Role, TensorType, Turn};

use crate::context::Context;
use crate::error::{ImportError, some_of};
use crate::forward::lost;
use crate::initial::{Initial, made_up, synthetic};
use crate::source::Source;
use crate::{Import, ImportOptions, contents};

/// For every input that is state the output it becomes; itself when it does not change.
type Pairs<'a> = BTreeMap<&'a str, &'a str>;

/// Imports a one-file step.
pub(crate) fn import(source: &Source<'_>, options: &ImportOptions) -> Result<Import, ImportError> {
    usage(options)?;
    let pairs = pairs(source, options)?;
    let checkpoint = options.checkpoint.as_deref().map(Initial::read).transpose()?;
    let mut cx = source.context(options);
    let mut warnings = declare(source, &mut cx, &pairs, checkpoint.as_ref())?;
    for (name, literal) in &source.literals {
        if !cx.scope.contains_key(name) {
            cx.bind(name, literal.clone());
        }
    }
    cx.import_all()?;
    let ids: Vec<_> = cx.module.states.ids().collect();
    for id in ids {
        let name = cx.module.values[cx.module.states[id].value].name.clone();
        if let Some(&next) = pairs.get(name.as_str()).filter(|&&next| next != name) {
            let value = named(&mut cx, next)?;
            let (from, to) = (&cx.module.values[cx.module.states[id].value].ty, &cx.module.values[value].ty);
            if from != to {
                return Err(ImportError::BadModel(format!(
                    "state `{name}` is {from}, but output `{next}`, which it becomes, is {to}"
                )));
            }
            cx.module.states[id].next = Some(value);
        }
    }
    let carried: BTreeSet<&str> = pairs.values().copied().collect();
    add_outputs(source, &mut cx, &carried)?;
    warnings.extend(cx.warnings());
    let mut notes = vec![format!("one-file step: {}", contents(&cx.module))];
    let compared = checkpoint.unwrap_or_default().compare(&cx.module, &options.allow_missing)?;
    notes.extend(compared.said);
    warnings.extend(compared.warnings);
    Ok(Import::complete(cx.module, notes, warnings))
}

/// Adds the graph's inputs to the module, as inputs or as states, and returns warnings.
fn declare(
    source: &Source<'_>,
    cx: &mut Context<'_>,
    pairs: &Pairs<'_>,
    checkpoint: Option<&Initial>,
) -> Result<Vec<String>, ImportError> {
    let mut invented = 0;
    let outputs: BTreeSet<&str> = source.model.graph.outputs.iter().map(|o| o.name.as_str()).collect();
    for input in &source.model.graph.inputs {
        let name = input.name.as_str();
        let literal = source.literals.get(name);
        if !pairs.contains_key(name) && literal.is_some() {
            continue;
        }
        let ty = source.input_type(name)?;
        let Some(&next) = pairs.get(name) else {
            if name == "step" && ty.numel() == 1 && ty.dtype != DType::Bool {
                let value = cx.module.add_input(name, ty, Feed::Step { turn: Turn::default() });
                cx.bind(name, value);
            } else {
                cx.feed(name, ty, 0);
            }
            continue;
        };
        let differentiated = outputs.contains(format!("{name}_grad").as_str());
        let role = role(source, pairs, name, &ty, next != name, differentiated);
        let stored = checkpoint.map(|c| c.get(name, &ty)).transpose()?.flatten();
        let init = match (stored, literal, checkpoint) {
            (Some(init), ..) => init,
            (None, Some(literal), _) if literal.ty == ty => Init::Data(Blob::new(literal.data.clone())),
            (None, _, Some(c)) if role != Role::Optimizer => return Err(c.lacks(name, role.name())),
            (None, ..) => {
                invented += usize::from(role != Role::Optimizer);
                synthetic(name, &ty, role)
            }
        };
        cx.persist(name, ty, role, init);
    }
    Ok(if invented == 0 { Vec::new() } else { vec![made_up(invented)] })
}

/// Whether inputs and outputs are called as in a one-file step.
pub(crate) fn recognises(source: &Source<'_>) -> bool {
    let graph = &source.model.graph;
    let outputs: BTreeSet<&str> = graph.outputs.iter().map(|o| o.name.as_str()).collect();
    let carried =
        |name: &str| ["_new", "_grad"].iter().any(|s| outputs.contains(format!("{name}{s}").as_str()));
    graph.inputs.iter().any(|x| carried(&x.name))
}

fn usage(options: &ImportOptions) -> Result<(), ImportError> {
    let no = |what: &str| {
        Err(ImportError::Usage(format!(
            "{what}, but the model is a one-file training step, which contains its optimizer"
        )))
    };
    options.no_recipe("the model is a one-file training step, which contains its loss and optimizer")?;
    match &options.optimizer_model {
        Some(path) => no(&format!("optimizer model `{}` is given", path.display())),
        None if options.no_optimizer => no("leaving out the optimizer is asked for"),
        None if options.accumulate > 1 => no("gradient accumulation is asked for"),
        None => Ok(()),
    }
}

fn pairs<'a>(source: &'a Source<'a>, options: &'a ImportOptions) -> Result<Pairs<'a>, ImportError> {
    let graph = &source.model.graph;
    let inputs: BTreeSet<&str> = graph.inputs.iter().map(|x| x.name.as_str()).collect();
    let outputs: BTreeSet<&str> = graph.outputs.iter().map(|x| x.name.as_str()).collect();
    let mut pairs: Pairs<'a> = BTreeMap::new();
    for (from, to) in &options.carry {
        let unknown = |kind: &str, name: &str, known: &BTreeSet<&str>| {
            let known: Vec<&str> = known.iter().copied().collect();
            Err(ImportError::Usage(format!(
                "--carry {from}={to}: the model has no {kind} `{name}`; it has {}",
                some_of(&known)
            )))
        };
        if !inputs.contains(from.as_str()) {
            return unknown("input", from, &inputs);
        }
        if from != to && !outputs.contains(to.as_str()) {
            return unknown("output", to, &outputs);
        }
        if pairs.insert(from, to).is_some() {
            return Err(ImportError::Usage(format!("--carry names input `{from}` twice")));
        }
    }
    let taken: BTreeSet<&str> = pairs.values().copied().collect();
    for input in &graph.inputs {
        let name = input.name.as_str();
        if pairs.contains_key(name) {
            continue;
        }
        let output = |suffix: &str| outputs.get(format!("{name}{suffix}").as_str()).copied();
        if let Some(next) = output("_new").filter(|o| !taken.contains(o)) {
            pairs.insert(name, next);
        } else if output("_grad").is_some() {
            pairs.insert(name, name);
        }
    }
    if pairs.is_empty() {
        return Err(ImportError::Unsupported(
            "this is not a training step: no output `X_new` or `X_grad` belongs to an input `X`, and there \
             is no InPlaceAccumulatorV2 node; train a forward model with --loss cross-entropy --optimizer \
             adamw:lr=1e-3, generate training artifacts with `onnxruntime.training.artifacts`, export a full \
             training step, or pair state with --carry X=Y"
                .into(),
        ));
    }
    Ok(pairs)
}

/// Role of state `name`: optimizer state is called `<prefix>.<other state>` and has that state's type.
fn role(
    source: &Source<'_>,
    pairs: &Pairs<'_>,
    name: &str,
    ty: &TensorType,
    changes: bool,
    differentiated: bool,
) -> Role {
    let same = |other: &str| pairs.contains_key(other) && source.types.get(other) == Some(ty);
    if name == "step" || name.match_indices('.').any(|(i, _)| same(&name[i + 1..])) {
        return Role::Optimizer;
    }
    if lost::statistic(name) || !ty.dtype.is_float() {
        Role::Buffer
    } else if changes || differentiated {
        Role::Param
    } else {
        Role::Frozen
    }
}

fn named(cx: &mut Context<'_>, name: &str) -> Result<memc_ir::ValueId, ImportError> {
    cx.value(name).map_err(|fault| fault.damage(&format!("output `{name}`")))
}

/// Adds the outputs that are not carried: loss, gradients, others.
fn add_outputs(
    source: &Source<'_>,
    cx: &mut Context<'_>,
    carried: &BTreeSet<&str>,
) -> Result<(), ImportError> {
    let graph = &source.model.graph;
    let rest: Vec<&str> =
        graph.outputs.iter().map(|o| o.name.as_str()).filter(|o| !carried.contains(o)).collect();
    let mut values = Vec::new();
    for name in &rest {
        values.push(named(cx, name)?);
    }
    let scalar = |i: &usize| {
        let ty = &cx.module.values[values[*i]].ty;
        ty.dtype == DType::F32 && ty.numel() == 1
    };
    let loss = (0..rest.len()).find(|&i| rest[i] == "loss").or_else(|| (0..rest.len()).find(scalar));
    for (i, (name, &value)) in rest.iter().zip(&values).enumerate() {
        let gradient = name.strip_suffix("_grad").is_some_and(|p| source.types.contains_key(p));
        let role = match () {
            () if Some(i) == loss => OutputRole::Loss,
            () if gradient => OutputRole::Gradient,
            () => OutputRole::Other,
        };
        cx.module.outputs.push(Output { value, name: name.to_string(), role });
    }
    Ok(())
}
