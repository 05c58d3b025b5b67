//! The standard's own training form: a `TrainingInfoProto` with an algorithm.
//!
//! A step runs the inference graph with the algorithm behind it ([`Source::read_step`] joins them), and then
//! every initializer that `update_binding` names takes the output bound to it. Such initializers are states,
//! and so are the model's other parameters; the initialization graph says how they start, else their contents
//! do. The learning rate of the standard's optimizers becomes the run's when it is one number that nothing
//! changes, and a count of updates that is a graph input is fed with the number of steps done.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::attr::F32;
use memc_ir::{
    Blob, DType, Feed, Init, OpKind, Output, OutputRole, Role, TensorType, Turn, ValueId, counted,
};

use crate::context::Context;
use crate::error::{ImportError, some_of};
use crate::forward::{initialization, lost, params};
use crate::initial::{Initial, made_up, synthetic};
use crate::model::{Attr, Node, PREVIEW};
use crate::ops::gradient::shuffled;
use crate::source::Source;
use crate::{Import, ImportOptions, contents};

/// The learning rate of an algorithm that has it as an input without a value.
const DEFAULT_RATE: f32 = 1e-3;

/// Imports a model with a training algorithm.
pub(crate) fn import(source: &Source<'_>, options: &ImportOptions) -> Result<Import, ImportError> {
    usage(options)?;
    let checkpoint = options.checkpoint.as_deref().map(Initial::read).transpose()?.unwrap_or_default();
    let plan = Plan::of(source)?;
    let inits = initialization(source, options)?;
    let mut step = Step { cx: source.context(options), source, plan, invented: 0 };
    step.declare(&checkpoint, &inits)?;
    step.cx.import_all()?;
    step.carry()?;
    let loss = step.outputs()?;
    let m = &step.cx.module;
    let name = |v: ValueId| m.values[v].name.as_str();
    let ranks: BTreeMap<&str, usize> = (m.states.values().filter(|s| s.role == Role::Param))
        .map(|s| (name(s.value), m.values[s.value].ty.rank()))
        .collect();
    let mut warnings = lost::warnings(source, &ranks);
    warnings.extend(step.cx.warnings());
    let gradients = source.model.graph.nodes.iter().filter(|n| n.domain == PREVIEW && n.op == "Gradient");
    let shuffled: Vec<String> = gradients.filter(|n| shuffled(n)).map(Node::label).collect();
    if !shuffled.is_empty() {
        warnings.push(format!(
            "the inputs of {} are not in the order of `xs` and `zs`; they are taken as the tensors of those \
             names",
            some_of(&shuffled)
        ));
    }
    if step.invented > 0 {
        warnings.push(made_up(step.invented));
    }
    let compared = checkpoint.compare(m, &options.allow_missing)?;
    warnings.extend(compared.warnings);
    let mut notes = vec![describe(&step, loss, &inits)];
    notes.extend(compared.said);
    Ok(Import::complete(step.cx.module, notes, warnings))
}

fn usage(options: &ImportOptions) -> Result<(), ImportError> {
    let what = "the model's TrainingInfoProto says how it is trained";
    options.no_recipe(what)?;
    let given = match options {
        ImportOptions { optimizer_model: Some(path), .. } => {
            format!("optimizer model `{}` is given", path.display())
        }
        ImportOptions { carry, .. } if !carry.is_empty() => {
            format!("--carry {}={} is given", carry[0].0, carry[0].1)
        }
        ImportOptions { no_optimizer: true, .. } => "leaving out the optimizer is asked for".to_string(),
        ImportOptions { accumulate, .. } if *accumulate > 1 => {
            "gradient accumulation is asked for".to_string()
        }
        _ => return Ok(()),
    };
    Err(ImportError::Usage(format!("{given}, but {what}")))
}

/// Meaning of names in the joined graph.
struct Plan<'a> {
    /// For every initializer that changes, the output it becomes.
    updates: BTreeMap<&'a str, &'a str>,
    /// Tensors that the algorithm differentiates against.
    variables: BTreeSet<&'a str>,
    /// The tensor that is differentiated, of the first `Gradient`.
    loss: Option<&'a str>,
    /// The learning rate of all optimizers, when they have the same.
    rate: Option<&'a str>,
    /// Tensors that optimizers take as the count of updates.
    counts: BTreeSet<&'a str>,
}

impl<'a> Plan<'a> {
    fn of(source: &'a Source<'_>) -> Result<Plan<'a>, ImportError> {
        let graph = &source.model.graph;
        let outputs: BTreeSet<&str> = graph.outputs.iter().map(|o| o.name.as_str()).collect();
        let bound = source.model.training.as_ref().map_or(&[][..], |t| &t.update_binding);
        let mut updates = BTreeMap::new();
        for (key, value) in bound {
            let bad = |m: String| Err(ImportError::BadModel(format!("update of `{key}`: {m}")));
            if !source.literals.contains_key(key) && !source.types.contains_key(key) {
                return bad("it is no initializer of the model or of its training algorithm".into());
            }
            if !outputs.contains(value.as_str()) {
                return bad(format!("`{value}` is no output of the training algorithm or of the model"));
            }
            if updates.insert(key.as_str(), value.as_str()).is_some() {
                return bad("it is bound twice".into());
            }
        }
        let preview = |op: &'static [&str]| {
            let is = move |n: &&Node| n.domain == PREVIEW && op.contains(&n.op.as_str());
            graph.nodes.iter().filter(is)
        };
        let texts = |n: &'a Node, name: &str| match n.attrs.get(name) {
            Some(Attr::Texts(list)) => list.as_slice(),
            Some(Attr::Text(one)) => std::slice::from_ref(one),
            _ => &[],
        };
        let operand = |i: usize| -> BTreeSet<&'a str> {
            let nodes = preview(&["Adagrad", "Adam", "Momentum"]);
            nodes.filter_map(|n| n.inputs.get(i).map(String::as_str)).filter(|x| !x.is_empty()).collect()
        };
        let rates = operand(0);
        let gradients = || preview(&["Gradient"]);
        Ok(Plan {
            rate: rates.first().copied().filter(|r| rates.len() == 1 && !updates.contains_key(r)),
            counts: operand(1),
            variables: gradients().flat_map(|n| texts(n, "xs")).map(String::as_str).collect(),
            loss: gradients().flat_map(|n| texts(n, "y")).map(String::as_str).next(),
            updates,
        })
    }
}

struct Step<'a> {
    cx: Context<'a>,
    source: &'a Source<'a>,
    plan: Plan<'a>,
    /// States that start with invented values.
    invented: usize,
}

impl<'a> Step<'a> {
    /// Adds what is fed and what persists to the module, and binds constants.
    fn declare(&mut self, checkpoint: &Initial, inits: &BTreeMap<String, Init>) -> Result<(), ImportError> {
        let source = self.source;
        let uses = params::Uses::of(source);
        for input in &source.model.graph.inputs {
            let name = input.name.as_str();
            if source.literals.contains_key(name) {
                continue;
            }
            let ty = source.input_type(name)?;
            if self.plan.updates.contains_key(name) || inits.contains_key(name) || checkpoint.has(name) {
                self.state(name, ty, checkpoint, inits)?;
            } else {
                self.input(name, ty)?;
            }
        }
        for (name, literal) in &source.literals {
            let (name, ty) = (name.as_str(), &literal.ty);
            let plan = &self.plan;
            let persists = plan.updates.contains_key(name)
                || inits.contains_key(name)
                || (ty.dtype.is_float() && plan.variables.contains(name))
                || (ty.dtype == DType::F32 && !self.added(name) && uses.parameter(source, name, ty));
            if plan.rate == Some(name)
                && ty.dtype == DType::F32
                && ty.numel() == 1
                && !inits.contains_key(name)
            {
                let default = F32(literal.floats().and_then(|v| v.first().copied()).unwrap_or(DEFAULT_RATE));
                let value = self.cx.module.add_input(
                    name,
                    ty.clone(),
                    Feed::LearningRate { default, turn: Turn::default() },
                );
                self.cx.bind(name, value);
            } else if persists {
                self.state(name, ty.clone(), checkpoint, inits)?;
            } else {
                self.cx.bind(name, literal.clone());
            }
        }
        Ok(())
    }

    /// Whether `name` is an initializer of the algorithm.
    fn added(&self, name: &str) -> bool {
        self.source.algorithm.as_ref().is_some_and(|a| a.initializers.contains(name))
    }

    fn input(&mut self, name: &str, ty: TensorType) -> Result<(), ImportError> {
        let single = ty.numel() == 1;
        let module = &mut self.cx.module;
        if self.plan.rate == Some(name) && single && ty.dtype == DType::F32 {
            let value = module.add_input(
                name,
                ty,
                Feed::LearningRate { default: F32(DEFAULT_RATE), turn: Turn::default() },
            );
            self.cx.bind(name, value);
        } else if self.plan.counts.contains(name) && single && ty.dtype == DType::I64 {
            // Steps are numbered from 1; the standard counts the updates done.
            let step =
                module.add_input(&format!("{name}.step"), ty.clone(), Feed::Step { turn: Turn::default() });
            let one = module.add_const(&format!("{name}.one"), ty, 1i64.to_le_bytes());
            let done = self.cx.emit(OpKind::Sub {}, &[step, one], name, "").map_err(|e| e.of(name))?;
            self.cx.bind(name, done);
        } else {
            self.cx.feed(name, ty, 0);
        }
        Ok(())
    }

    fn state(
        &mut self,
        name: &'a str,
        ty: TensorType,
        checkpoint: &Initial,
        inits: &BTreeMap<String, Init>,
    ) -> Result<(), ImportError> {
        let updated = self.plan.updates.contains_key(name);
        let role = match () {
            () if updated && self.added(name) => Role::Optimizer,
            () if updated && (!ty.dtype.is_float() || lost::statistic(name)) => Role::Buffer,
            () if updated => Role::Param,
            () => Role::Frozen,
        };
        let init = match (checkpoint.get(name, &ty)?, inits.get(name), self.source.literals.get(name)) {
            (Some(init), ..) => init,
            (None, Some(init), _) => init.clone(),
            (None, None, Some(literal)) if literal.data.iter().all(|&b| b == 0) => Init::Zeros,
            (None, None, Some(literal)) => Init::Data(Blob::new(literal.data.clone())),
            (None, None, None) => {
                self.invented += 1;
                synthetic(name, &ty, role)
            }
        };
        self.cx.persist(name, ty, role, init);
        Ok(())
    }

    /// Says what each state becomes.
    fn carry(&mut self) -> Result<(), ImportError> {
        let ids: Vec<_> = self.cx.module.states.ids().collect();
        for id in ids {
            let value = self.cx.module.states[id].value;
            let name = self.cx.module.values[value].name.clone();
            let Some(&output) = self.plan.updates.get(name.as_str()) else { continue };
            let next = self.cx.value(output).map_err(|e| e.of(output))?;
            let (from, to) = (&self.cx.module.values[value].ty, &self.cx.module.values[next].ty);
            if from != to {
                return Err(ImportError::BadModel(format!(
                    "update of `{name}`: it is {from}, but `{output}`, which it becomes, is {to}"
                )));
            }
            self.cx.module.states[id].next = Some(next);
        }
        Ok(())
    }

    /// Adds the outputs that no state becomes, and the loss, which is returned.
    fn outputs(&mut self) -> Result<Option<&'a str>, ImportError> {
        let carried: BTreeSet<&str> = self.plan.updates.values().copied().collect();
        let graph = &self.source.model.graph;
        let mut names: Vec<&str> = graph.outputs.iter().map(|o| o.name.as_str()).collect();
        names.retain(|o| !carried.contains(o));
        let number = |name: &str, cx: &Context<'_>| {
            cx.type_of(name).is_ok_and(|ty| ty.dtype == DType::F32 && ty.numel() == 1)
        };
        let first = || {
            let found = names.iter().find(|n| **n == "loss").filter(|n| number(n, &self.cx));
            found.or_else(|| names.iter().find(|n| number(n, &self.cx))).copied()
        };
        let loss = self.plan.loss.filter(|l| number(l, &self.cx)).or_else(first);
        if let Some(loss) = loss.filter(|l| !names.contains(l)) {
            names.push(loss);
        }
        for name in names {
            let value = self.cx.value(name).map_err(|e| e.of(name))?;
            let role = if Some(name) == loss { OutputRole::Loss } else { OutputRole::Other };
            self.cx.module.outputs.push(Output { value, name: name.to_string(), role });
        }
        Ok(loss)
    }
}

/// Summary of the model as it was understood, for the user to check.
fn describe(step: &Step<'_>, loss: Option<&str>, inits: &BTreeMap<String, Init>) -> String {
    let mut rules: Vec<&str> = (step.source.model.graph.nodes.iter())
        .filter(|n| n.domain == PREVIEW && n.op != "Gradient")
        .map(|n| n.op.as_str())
        .collect();
    rules.sort_unstable();
    rules.dedup();
    let rules = if rules.is_empty() { "as operators".to_string() } else { rules.join(", ") };
    format!(
        "TrainingInfoProto: {}; {} start as the model's initialization graph says; loss: {}; optimizer: \
         {rules}",
        contents(&step.cx.module),
        counted(inits.len(), "state"),
        loss.map_or("none".to_string(), |l| format!("`{l}`"))
    )
}
