//! ONNX Runtime training artifacts: a training graph, an optimizer model and a checkpoint.
//!
//! The training graph becomes a step whose gradients are outputs; the optimizer model becomes a request to
//! passes.
//!
//! The training graph has the parameters as inputs and ends in one `InPlaceAccumulatorV2` per trained
//! parameter, which replaces (`lazy_reset_grad`) or adds to that parameter's gradient buffer. A step of `n`
//! micro-steps is therefore `n` copies of the graph, of which the first resets, and one optimizer update with
//! the summed gradients; the buffers themselves never outlive the step. Batch normalisation updates its
//! running statistics in place in every micro-step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memc_ir::attr::{F32, Reduction, Scalar};
use memc_ir::recipe::{Optimizer, Recipe};
use memc_ir::{DType, Def, Feed, Module, OpKind, Output, OutputRole, Role, StateId, TensorType, ValueId};

use crate::context::{Bound, Context};
use crate::error::ImportError;
use crate::initial::{Initial, made_up, read_file, synthetic};
use crate::model::{Graph, MS, Node};
use crate::source::Source;
use crate::{Import, ImportOptions, Pending, optimizer, proto, screen};

const BUFFER: &str = "_grad.accumulation.buffer";

/// Most nodes and inputs of all micro-steps together; the graph is imported once for each.
const MAX_ACCUMULATED: u64 = 4_000_000;

/// A trained parameter as the graph wires it.
#[derive(Clone, Copy, Debug)]
struct Accumulated<'a> {
    param: &'a str,
    gradient: &'a str,
    flag: &'a str,
}

/// Imports a training graph.
pub(crate) fn import(source: &Source<'_>, options: &ImportOptions) -> Result<Import, ImportError> {
    let graph = &source.model.graph;
    options.no_recipe("these are training artifacts, which contain their loss")?;
    if let Some((from, to)) = options.carry.first() {
        return Err(ImportError::Usage(format!(
            "--carry {from}={to} is for one-file training steps; these are training artifacts, whose state \
             is known"
        )));
    }
    limit(source, options)?;
    let accumulated = accumulators(graph)?;
    let mut notes = Vec::new();
    let optimizer = find_optimizer(source, options, &mut notes)?;
    let checkpoint = find_checkpoint(source, options, &mut notes)?;
    let mut step = Step {
        cx: source.context(options),
        source,
        params: BTreeMap::new(),
        data: Vec::new(),
        micro_steps: options.accumulate,
    };
    let mut warnings = Vec::new();
    step.declare(&accumulated, checkpoint.as_ref(), &mut warnings)?;
    let gradients = step.run(&accumulated)?;
    warnings.extend(step.cx.warnings());
    let gradients = match options.reduction() {
        Reduction::Mean if options.accumulate > 1 => step.mean(&accumulated, gradients)?,
        _ => gradients,
    };
    let mut module = step.finish(&accumulated)?;
    for (a, value) in accumulated.iter().zip(gradients) {
        let name = format!("{}_grad", a.param);
        module.outputs.push(Output { value, name, role: OutputRole::Gradient });
    }
    let checkpoint = checkpoint.unwrap_or_default();
    if optimizer.is_none() {
        warnings.extend(checkpoint.compare(&module, &options.allow_missing)?.warnings);
    }
    if options.accumulate > 1 {
        notes.push(crate::accumulated(options.accumulate, options.reduction()));
    }
    let recipe = optimizer.map(|optimizer| Recipe {
        kept: Vec::new(),
        is_evaluation: false,
        loss: None,
        reduction: options.reduction(),
        optimizer: Some(optimizer),
    });
    let pending = Pending {
        checkpoint,
        allow_missing: options.allow_missing.clone(),
        micro_steps: options.accumulate,
        declined: false,
        is_inference: false,
    };
    Ok(Import { module, recipe, notes, warnings, pending })
}

/// Refuses more micro-steps than a graph of this size may have.
pub(crate) fn limit(source: &Source<'_>, options: &ImportOptions) -> Result<(), ImportError> {
    let graph = &source.model.graph;
    let size = graph.nodes.len().saturating_add(graph.inputs.len()) as u64;
    if options.accumulate > 1 && size.saturating_mul(options.accumulate.into()) > MAX_ACCUMULATED {
        return Err(ImportError::Usage(format!(
            "{} micro-steps of a graph with {size} nodes and inputs are too many: together at most \
             {MAX_ACCUMULATED}; accumulate over at most {}",
            options.accumulate,
            (MAX_ACCUMULATED / size).max(1)
        )));
    }
    Ok(())
}

fn state_named(module: &Module, name: &str) -> Option<StateId> {
    match module.values[module.value_named(name)?].def {
        Def::State(s) => Some(s),
        _ => None,
    }
}

/// The trained parameters in the order of their buffers among the graph's inputs, which optimizer models
/// follow.
fn accumulators(graph: &Graph) -> Result<Vec<Accumulated<'_>>, ImportError> {
    let place: BTreeMap<&str, usize> =
        graph.inputs.iter().enumerate().map(|(i, x)| (x.name.as_str(), i)).collect();
    let mut out: BTreeMap<usize, Accumulated<'_>> = BTreeMap::new();
    for node in graph.nodes.iter().filter(|n| n.is_accumulator()) {
        let bad = |m: String| Err(ImportError::BadModel(format!("{}: {m}", node.label())));
        let ([buffer, gradient, _], Some(flag)) = (node.inputs.as_slice(), node.outputs.first()) else {
            return bad("it must have inputs buffer, gradient and reset, and an output".into());
        };
        let Some(param) = buffer.strip_suffix(BUFFER) else {
            return bad(format!("its buffer `{buffer}` is not called `<parameter>{BUFFER}`"));
        };
        let Some(&at) = place.get(param) else {
            return bad(format!("parameter `{param}` of buffer `{buffer}` is not an input of the graph"));
        };
        if out.insert(at, Accumulated { param, gradient, flag }).is_some() {
            return bad(format!("parameter `{param}` has two gradient buffers"));
        }
    }
    Ok(out.into_values().collect())
}

/// The file called `name` beside the model, if there is one.
fn beside(source: &Source<'_>, name: &str) -> Option<PathBuf> {
    let path = source.path?.with_file_name(name);
    path.is_file().then_some(path)
}

fn find_optimizer(
    source: &Source<'_>,
    options: &ImportOptions,
    notes: &mut Vec<String>,
) -> Result<Option<Optimizer>, ImportError> {
    if options.no_optimizer {
        if let Some(path) = &options.optimizer_model {
            return Err(ImportError::Usage(format!(
                "optimizer `{}` is given, but also that there is none",
                path.display()
            )));
        }
        notes.push("optimizer: none; gradients are outputs".into());
        return Ok(None);
    }
    let (path, how) = match &options.optimizer_model {
        Some(path) => (path.clone(), "given"),
        None => match beside(source, "optimizer_model.onnx") {
            Some(path) => (path, "found beside the model"),
            None => {
                notes.push("optimizer: none beside the model; gradients are outputs".into());
                return Ok(None);
            }
        },
    };
    let optimizer = read_optimizer(&path)?;
    notes.push(format!("optimizer: {} ({how}): {}", path.display(), optimizer.describe()));
    Ok(Some(optimizer))
}

fn read_optimizer(path: &Path) -> Result<Optimizer, ImportError> {
    let bytes = read_file(path, screen::MAX_FILE_BYTES)?;
    let read = proto::decode(&bytes).and_then(|model| optimizer::read(&model.graph));
    read.map_err(|e| e.within(&format!("optimizer model `{}`", path.display())))
}

fn find_checkpoint(
    source: &Source<'_>,
    options: &ImportOptions,
    notes: &mut Vec<String>,
) -> Result<Option<Initial>, ImportError> {
    let (path, how) = match &options.checkpoint {
        Some(path) => (path.clone(), "given"),
        None => match beside(source, "checkpoint") {
            Some(path) => (path, "found beside the model"),
            None => return Ok(None),
        },
    };
    let initial = Initial::read(&path)?;
    let step = if initial.step > 0 { format!(", from step {}", initial.step) } else { String::new() };
    notes.push(format!("checkpoint: {} ({how}{step})", path.display()));
    Ok(Some(initial))
}

struct Step<'a> {
    cx: Context<'a>,
    source: &'a Source<'a>,
    /// Current value of every parameter and statistic, by name.
    params: BTreeMap<&'a str, ValueId>,
    /// Data inputs by name, one value per micro-step.
    data: Vec<(&'a str, Vec<ValueId>)>,
    micro_steps: u32,
}

impl<'a> Step<'a> {
    /// Adds inputs and states to the module.
    fn declare(
        &mut self,
        accumulated: &[Accumulated<'a>],
        checkpoint: Option<&Initial>,
        warnings: &mut Vec<String>,
    ) -> Result<(), ImportError> {
        let graph = &self.source.model.graph;
        let trained: BTreeSet<&str> = accumulated.iter().map(|a| a.param).collect();
        let roles = roles(graph, &trained, checkpoint);
        let mut data: Vec<(&'a str, TensorType)> = Vec::new();
        let mut random = 0;
        for (name, role) in roles {
            let ty = self.source.input_type(name)?;
            let Some(role) = role else {
                data.push((name, ty));
                continue;
            };
            let init = match checkpoint {
                Some(c) => c.get(name, &ty)?.ok_or_else(|| c.lacks(name, "parameter"))?,
                None => {
                    random += 1;
                    synthetic(name, &ty, role)
                }
            };
            let state = self.cx.module.add_state(name, ty, role, init);
            self.params.insert(name, self.cx.module.states[state].value);
        }
        if random > 0 {
            warnings.push(made_up(random));
        }
        let mut values = vec![Vec::new(); data.len()];
        for micro in 0..self.micro_steps {
            for ((name, ty), list) in data.iter().zip(&mut values) {
                let feed = Feed::Data { source: name.to_string(), micro, range: None };
                list.push(self.cx.module.add_input(name, ty.clone(), feed));
            }
        }
        self.data = data.into_iter().map(|(name, _)| name).zip(values).collect();
        Ok(())
    }

    /// Imports every micro-step and returns the summed gradients.
    fn run(&mut self, accumulated: &[Accumulated<'a>]) -> Result<Vec<ValueId>, ImportError> {
        let mut sums: Vec<ValueId> = Vec::new();
        let mut constants: BTreeMap<String, Bound> =
            self.source.literals.iter().map(|(name, l)| (name.clone(), Bound::from(l.clone()))).collect();
        for micro in 0..self.micro_steps {
            self.cx.scope = constants.clone();
            for (name, values) in &self.data {
                if let Some(&v) = values.get(micro as usize) {
                    self.cx.bind(name, v);
                }
            }
            for (name, &v) in &self.params {
                self.cx.bind(name, v);
            }
            for &i in &self.source.order {
                let node = &self.source.model.graph.nodes[i];
                if !node.is_accumulator() {
                    self.cx.import(node)?;
                }
            }
            self.outputs(accumulated, micro)?;
            self.cx.share(&mut constants);
            let names: Vec<&str> = self.params.keys().copied().collect();
            for name in names {
                let now = self.value(name)?;
                self.params.insert(name, now);
            }
            for (i, a) in accumulated.iter().enumerate() {
                let gradient = self.value(a.gradient)?;
                match sums.get_mut(i) {
                    None => sums.push(gradient),
                    Some(sum) => {
                        let name = format!("{}{BUFFER}", a.param);
                        let added = self.cx.emit(OpKind::Add {}, &[*sum, gradient], &name, "");
                        *sum = added.map_err(|e| e.of(a.param))?;
                    }
                }
            }
        }
        Ok(sums)
    }

    /// The sums of gradients, each divided by the number of micro-steps.
    fn mean(
        &mut self,
        accumulated: &[Accumulated<'a>],
        sums: Vec<ValueId>,
    ) -> Result<Vec<ValueId>, ImportError> {
        let mut means = Vec::with_capacity(sums.len());
        for (a, sum) in accumulated.iter().zip(sums) {
            let dtype = self.cx.module.values[sum].ty.dtype;
            let value = Scalar::Float(F32(1.0 / self.micro_steps as f32));
            let fill = OpKind::Fill { dtype, shape: Vec::new(), value };
            let name = format!("{}_grad.mean", a.param);
            let factor = self.cx.emit(fill, &[], &format!("{name}/factor"), "");
            let factor = factor.map_err(|e| e.of(a.param))?;
            let mean = self.cx.emit(OpKind::Mul {}, &[sum, factor], &name, "");
            means.push(mean.map_err(|e| e.of(a.param))?);
        }
        Ok(means)
    }

    fn value(&mut self, name: &str) -> Result<ValueId, ImportError> {
        self.cx.value(name).map_err(|e| e.of(name))
    }

    /// Adds the outputs of one micro-step: the loss is the first scalar float.
    fn outputs(&mut self, accumulated: &[Accumulated<'a>], micro: u32) -> Result<(), ImportError> {
        let flags: BTreeSet<&str> = accumulated.iter().map(|a| a.flag).collect();
        let mut loss = false;
        for out in &self.source.model.graph.outputs {
            if flags.contains(out.name.as_str()) {
                continue;
            }
            let value = self.value(&out.name)?;
            let ty = &self.cx.module.values[value].ty;
            let is_loss = !loss && ty.dtype == DType::F32 && ty.numel() == 1;
            loss |= is_loss;
            let role = if is_loss { OutputRole::Loss } else { OutputRole::Other };
            let name = if micro == 0 { out.name.clone() } else { format!("{}.{micro}", out.name) };
            self.cx.module.outputs.push(Output { value, name, role });
        }
        if loss {
            Ok(())
        } else {
            Err(ImportError::BadModel("no output of the graph is a scalar loss".into()))
        }
    }

    /// The module with the changed statistics carried to the next step.
    fn finish(mut self, accumulated: &[Accumulated<'a>]) -> Result<Module, ImportError> {
        let trained: BTreeSet<&str> = accumulated.iter().map(|a| a.param).collect();
        for (name, &value) in self.params.iter().filter(|(name, _)| !trained.contains(*name)) {
            if let Some(state) = state_named(&self.cx.module, name) {
                let s = &mut self.cx.module.states[state];
                s.next = (value != s.value).then_some(value);
            }
        }
        Ok(self.cx.module)
    }
}

/// Role of every input of the graph as a state; `None` for data. Gradient buffers and the reset flag are left
/// out.
///
/// Names in the checkpoint decide. Without one, statistics are what batch normalisation updates, and the
/// producer's order helps: data first, the target of the loss last among it, then the parameters.
fn roles<'a>(
    graph: &'a Graph,
    trained: &BTreeSet<&str>,
    checkpoint: Option<&Initial>,
) -> Vec<(&'a str, Option<Role>)> {
    let plumbing: BTreeSet<&str> = graph
        .nodes
        .iter()
        .filter(|n| n.is_accumulator())
        .flat_map(|n| [n.inputs.first(), n.inputs.get(2)])
        .flatten()
        .map(String::as_str)
        .collect();
    let running = |n: &&Node| (n.domain.as_str(), n.op.as_str()) == (MS, "BatchNormInternal");
    let statistics: BTreeSet<&str> = graph
        .nodes
        .iter()
        .filter(running)
        .flat_map(|n| [n.inputs.get(3), n.inputs.get(4)])
        .flatten()
        .map(String::as_str)
        .collect();
    let names = || graph.inputs.iter().map(|x| x.name.as_str()).filter(|n| !plumbing.contains(n));
    let target = names().position(|n| n == "labels" || n == "target");
    let first = names().position(|n| trained.contains(n) || statistics.contains(n));
    let data_end = target.map_or(first.unwrap_or(usize::MAX), |t| t + 1);
    names()
        .enumerate()
        .map(|(i, name)| {
            let known = checkpoint.filter(|c| !c.trained.is_empty() || !c.frozen.is_empty());
            let frozen = match known {
                Some(c) => c.frozen.contains(name) || c.trained.contains(name),
                None => i >= data_end,
            };
            let role = match () {
                () if statistics.contains(name) => Some(Role::Buffer),
                () if trained.contains(name) => Some(Role::Param),
                () if frozen => Some(Role::Frozen),
                () => None,
            };
            (name, role)
        })
        .collect()
}
