//! Forward models: parameters are states, everything else of training is left to passes.
//!
//! Parameters are the model's own initializers ([`params`]). Signs that the exporter lost what training needs
//! become warnings ([`lost`]). A step of several micro-steps is as many copies of the graph, each with its
//! own outputs.

mod groups;
mod init;
pub(crate) mod lost;
pub(crate) mod params;
mod roles;
mod statistics;
mod unmerge;

use std::collections::{BTreeMap, BTreeSet};

use glob::Pattern;
use memc_ir::recipe::{Loss, Optimizer, Recipe};
use memc_ir::{Module, Output, OutputRole, Role, StateId, TensorType, ValueId, counted};

use crate::context::{Bound, Context};
use crate::error::{ImportError, some_of};
use crate::initial::{Initial, made_up};
use crate::model::Node;
use crate::source::Source;
use crate::{Import, ImportOptions, Pending, Purpose, step, training};

/// Imports a forward model.
///
/// Tensors that the exporter merged are separated in `source` first.
pub(crate) fn import(source: &mut Source<'_>, options: &ImportOptions) -> Result<Import, ImportError> {
    statistics::chain(source);
    let mut notes: Vec<String> = unmerge::split(source).into_iter().collect();
    let source = &*source;
    let loss = wanted_loss(source, options)?.cloned();
    let kept = kept_outputs(source, options)?;
    training::limit(source, options)?;
    let checkpoint = options.checkpoint.as_deref().map(Initial::read).transpose()?;
    let inits = initialization(source, options)?;
    let mut found = params::find(source, options, checkpoint.as_ref(), &inits)?;
    let sizes: BTreeMap<&str, usize> =
        found.list.iter().filter(|p| p.role == Role::Param).map(|p| (p.name, p.ty.rank())).collect();
    notes.extend(lost::restored(source));
    let mut warnings = if options.is_evaluation() { Vec::new() } else { lost::warnings(source, &sizes) };
    if !options.is_inference() {
        warnings.extend(lost::constants(&found.constants));
    }
    warnings.append(&mut found.told.warnings);
    notes.append(&mut found.told.notes);
    if found.invented > 0 {
        warnings.push(made_up(found.invented));
    }
    let mut step = Step::new(source, options, found)?;
    notes.extend(unread(source, &step));
    for micro in 0..if options.is_evaluation() { 1 } else { options.accumulate } {
        step.micro_step(micro)?;
    }
    warnings.extend(step.cx.warnings());
    warnings.extend(random_evaluation(&step.cx, options));
    let optimizer = options.optimizer.as_ref().filter(|_| !options.no_optimizer && !options.is_evaluation());
    let mut optimizer = optimizer.and_then(Optimizer::of);
    if let Some(optimizer) = &mut optimizer {
        optimizer.groups = groups::find(&step.cx.module, options, &mut notes)?;
    }
    if options.is_inference() {
        step.keep(&kept)?;
    }
    let pending = Pending {
        checkpoint: checkpoint.unwrap_or_default(),
        allow_missing: options.allow_missing.clone(),
        micro_steps: options.accumulate,
        declined: options.no_optimizer || options.optimizer.is_some(),
        is_inference: options.is_inference(),
    };
    let (reduction, is_evaluation) = (options.reduction(), options.is_evaluation());
    let recipe = Some(Recipe { loss, kept, is_evaluation, reduction, optimizer });
    Ok(Import { module: step.finish(), recipe, notes, warnings, pending })
}

/// The loss, when the options fit a forward model. An evaluation need not have one, inference has none.
fn wanted_loss<'o>(source: &Source<'_>, options: &'o ImportOptions) -> Result<Option<&'o Loss>, ImportError> {
    if options.is_inference() {
        return Ok(None);
    }
    let no = |what: &str| {
        Err(ImportError::Usage(format!(
            "{what}, but the model is a forward model; give --optimizer adamw:lr=1e-3"
        )))
    };
    if let Some(path) = &options.optimizer_model {
        return no(&format!("optimizer model `{}` is given", path.display()));
    }
    if let Some((from, to)) = options.carry.first() {
        return no(&format!("--carry {from}={to} is given"));
    }
    if options.loss.is_some() || options.is_evaluation() {
        return Ok(options.loss.as_ref());
    }
    let outputs: Vec<&str> = source.model.graph.outputs.iter().map(|o| o.name.as_str()).collect();
    Err(ImportError::Usage(format!(
        "the model is a forward model with outputs {}; say what to train, as --loss cross-entropy, or \
         --loss output where the model computes its loss",
        some_of(&outputs)
    )))
}

/// Names of the outputs that stay outputs of the step.
fn kept_outputs(source: &Source<'_>, options: &ImportOptions) -> Result<Vec<String>, ImportError> {
    let names: Vec<&str> = source.model.graph.outputs.iter().map(|o| o.name.as_str()).collect();
    if options.keep_outputs.is_empty() {
        let all = names.iter().filter(|_| options.is_evaluation());
        return Ok(all.map(ToString::to_string).collect());
    }
    let mut kept: BTreeSet<&str> = BTreeSet::new();
    for text in &options.keep_outputs {
        let pattern =
            Pattern::new(text).map_err(|e| ImportError::Usage(format!("--keep-output {text}: {e}")))?;
        let before = kept.len();
        kept.extend(names.iter().filter(|name| pattern.matches(name)));
        if kept.len() == before && !names.iter().any(|name| pattern.matches(name)) {
            return Err(ImportError::Usage(format!(
                "--keep-output {text} matches no output of the model; it has {}",
                some_of(&names)
            )));
        }
    }
    Ok(names.into_iter().filter(|name| kept.contains(name)).map(str::to_string).collect())
}

/// Note on inputs that no node reads, which take no data.
fn unread(source: &Source<'_>, step: &Step<'_>) -> Option<String> {
    let inputs = source.model.graph.inputs.iter().map(|input| input.name.as_str());
    // A loss that is added feeds labels of its own.
    let is_unread = |name: &&str| !step.cx.used.contains(name) && *name != "labels";
    let unread: Vec<&str> = inputs.filter(is_unread).collect();
    let inputs = counted(unread.len(), "input");
    (!unread.is_empty())
        .then(|| format!("{inputs} that nothing reads, and that takes no data: {}", some_of(&unread)))
}

/// Warning about an evaluation that draws random numbers otherwise than by dropout.
fn random_evaluation(cx: &Context<'_>, options: &ImportOptions) -> Option<String> {
    let (what, flag) = match options.purpose {
        Purpose::Inference => ("inference", "--inference"),
        _ => ("evaluation", "--evaluation"),
    };
    (cx.is_evaluation && cx.streams > 0).then(|| {
        format!(
            "the {what} draws random tensors ({} in the graph), as of stochastic depth; to evaluate \
             without them, export model.eval() and compile that with {flag}",
            cx.streams
        )
    })
}

/// Tensors whose gradients stop: results of `detach`, and those that `--stop-gradient` names.
fn stops<'a>(source: &'a Source<'_>, options: &ImportOptions) -> Result<BTreeSet<&'a str>, ImportError> {
    let nodes = &source.model.graph.nodes;
    let outputs = |node: &'a Node| node.outputs.iter().map(String::as_str).filter(|name| !name.is_empty());
    let mut out: BTreeSet<&str> = nodes.iter().filter(|n| n.detached).flat_map(outputs).collect();
    for text in &options.stop_gradient {
        let pattern =
            Pattern::new(text).map_err(|e| ImportError::Usage(format!("--stop-gradient {text}: {e}")))?;
        let matched: Vec<&str> =
            nodes.iter().flat_map(outputs).filter(|name| pattern.matches(name)).collect();
        if matched.is_empty() {
            let names: Vec<&str> = nodes.iter().flat_map(outputs).collect();
            let what = match () {
                () if source.literals.keys().any(|name| pattern.matches(name)) => {
                    "matches stored tensors alone; freeze parameters with --freeze".to_string()
                }
                () if source.types.keys().any(|name| pattern.matches(name)) => {
                    "matches inputs alone, which have no gradient".to_string()
                }
                () => format!("matches no tensor that a node computes; there are {}", some_of(&names)),
            };
            return Err(ImportError::Usage(format!("--stop-gradient {text} {what}")));
        }
        out.extend(matched);
    }
    Ok(out)
}

/// Contents that the initialization graph gives, by name.
pub(crate) fn initialization(
    source: &Source<'_>,
    options: &ImportOptions,
) -> Result<BTreeMap<String, memc_ir::Init>, ImportError> {
    let Some(training) = &source.model.training else { return Ok(BTreeMap::new()) };
    let mut types: BTreeMap<&str, TensorType> =
        source.types.iter().map(|(name, ty)| (name.as_str(), ty.clone())).collect();
    types.extend(source.literals.iter().map(|(name, l)| (name.as_str(), l.ty.clone())));
    init::contents(source, &training.initialization, &training.initialization_binding, &types, options.seed)
}

struct Step<'a> {
    cx: Context<'a>,
    source: &'a Source<'a>,
    /// Current values of what persists.
    current: BTreeMap<&'a str, ValueId>,
    statistics: Vec<(&'a str, &'a str, StateId)>,
    /// Meaning of the names that every micro-step shares.
    constants: BTreeMap<String, Bound>,
    /// Inputs that are fed.
    data: Vec<(&'a str, TensorType)>,
}

impl<'a> Step<'a> {
    fn new(
        source: &'a Source<'a>,
        options: &ImportOptions,
        found: params::Persistents<'a>,
    ) -> Result<Step<'a>, ImportError> {
        let mut cx = source.context(options);
        let stops = stops(source, options)?;
        if !options.is_evaluation() {
            cx.stops = stops;
        }
        cx.sample_variance = source.model.producer.starts_with("pytorch");
        let (mut current, mut trained, mut statistics) = (BTreeMap::new(), false, Vec::new());
        for p in found.list {
            let state = cx.module.add_state(p.name, p.ty, p.role, p.init);
            current.insert(p.name, cx.module.states[state].value);
            match (p.role, found.updates.get(p.name)) {
                (Role::Param, _) => trained = true,
                (_, Some(next)) if !options.is_evaluation() => statistics.push((p.name, *next, state)),
                _ => {}
            }
        }
        let chosen = options.freeze.first().map(|f| format!("--freeze {f}"));
        let chosen = chosen.or_else(|| options.trainable.first().map(|t| format!("--trainable {t}")));
        if let Some(flag) = chosen.filter(|_| !trained && !options.is_evaluation()) {
            return Err(ImportError::Usage(format!(
                "{flag} leaves no parameter to train; the model has {}",
                some_of(&current.keys().collect::<Vec<_>>())
            )));
        }
        if !trained && !options.is_evaluation() {
            if step::recognises(source) {
                options.no_recipe(
                    "the model has no parameter of its own and looks like a one-file training step, which \
                     contains its loss and optimizer",
                )?;
            }
            return Err(ImportError::Unsupported(
                "the model has no parameter to train: no float initializer is used as a value, and no graph \
                 input is bound by an initialization graph or found in the checkpoint"
                    .into(),
            ));
        }
        let mut data = Vec::new();
        for input in source.model.graph.inputs.iter().filter(|input| cx.used.contains(input.name.as_str())) {
            let name = input.name.as_str();
            if !source.literals.contains_key(name) && !current.contains_key(name) {
                data.push((name, source.input_type(name)?));
            }
        }
        let constants = source.literals.iter().filter(|(name, _)| !current.contains_key(name.as_str()));
        let doubles = source.doubles.iter().map(|(name, d)| (name.clone(), Bound::from(d.clone())));
        let constants = constants.map(|(name, l)| (name.clone(), Bound::from(l.clone())));
        let constants = constants.chain(doubles).collect();
        Ok(Step { cx, source, current, statistics, constants, data })
    }

    /// Imports the graph once.
    fn micro_step(&mut self, micro: u32) -> Result<(), ImportError> {
        self.cx.scope = self.constants.clone();
        for (name, ty) in &self.data {
            self.cx.feed(name, ty.clone(), micro);
        }
        for (name, &value) in &self.current {
            self.cx.bind(name, value);
        }
        self.cx.import_all()?;
        for output in &self.source.model.graph.outputs {
            // A sequence is no output of a step.
            let Ok(value) = self.cx.value(&output.name) else { continue };
            let name = if micro == 0 { output.name.clone() } else { format!("{}.{micro}", output.name) };
            self.cx.module.outputs.push(Output { value, name, role: OutputRole::Other });
        }
        for (name, next, _) in &self.statistics {
            let value = self.cx.value(next).map_err(|e| e.of(next))?;
            self.current.insert(name, value);
        }
        self.cx.share(&mut self.constants);
        Ok(())
    }

    /// Leaves the outputs of these names alone.
    fn keep(&mut self, kept: &[String]) -> Result<(), ImportError> {
        let outputs = &mut self.cx.module.outputs;
        outputs.retain(|output| kept.contains(&output.name));
        if outputs.is_empty() {
            let text = "the model has no output that is a tensor, so that there is nothing to compute";
            return Err(ImportError::Unsupported(text.into()));
        }
        Ok(())
    }

    /// The module; statistics get their next values.
    fn finish(mut self) -> Module {
        for &(name, _, state) in &self.statistics {
            self.cx.module.states[state].next = self.current.get(name).copied();
        }
        self.cx.module
    }
}
