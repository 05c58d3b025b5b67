//! ONNX Runtime's optimizer models, and the ops of their update.
//!
//! Such a model is one node over sequences of tensors, with an optional node that limits the gradients' norm
//! in front. It names no parameters: its sequences follow the order of the training model's parameters.

use memc_ir::attr::F32;
use memc_ir::{Blob, DType, Feed, Init, Role, StateId, TensorType, ValueId};
use memc_ir::{Module, OpKind};

use crate::error::{ImportError, some_of};
use crate::initial::Initial;
use crate::model::{Attr, Graph, Node};
use crate::recipe::OptimizerSpec;
use crate::registry::MS;

/// The learning rate when neither checkpoint nor user gives one, as ONNX Runtime has it.
const DEFAULT_RATE: f32 = 0.001;
/// ONNX Runtime's guard against division by zero in the limit of the gradients' norm.
const NORM_EPSILON: f32 = 1e-6;

/// What an optimizer model does.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Optimizer {
    /// The largest norm of all gradients together.
    max_norm: Option<f32>,
    /// The learning rate when neither checkpoint nor user gives one.
    rate: f32,
    rule: Rule,
}

#[derive(Clone, PartialEq, Debug)]
enum Rule {
    /// Gradient descent on `g + decay * w`.
    Sgd { decay: f32 },
    /// An op with operands weight, gradient, `moments` moments, learning rate and, if `counts`, the step.
    Op { kind: OpKind, moments: u32, counts: bool, name: &'static str },
}

/// One trained parameter: its state and this step's gradient.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    /// The parameter's name.
    pub name: String,
    /// The parameter.
    pub state: StateId,
    /// Its gradient.
    pub gradient: ValueId,
}

impl Optimizer {
    /// Recognises an optimizer model.
    pub(crate) fn read(graph: &Graph) -> Result<Optimizer, ImportError> {
        let mut out: Option<Optimizer> = None;
        let mut max_norm = None;
        for node in &graph.nodes {
            let at = |m: String| ImportError::Unsupported(format!("{}: {m}", node.label()));
            match (node.domain.as_str(), node.op.as_str()) {
                (MS, "InplaceClipGradNorm") if max_norm.is_none() && out.is_none() => {
                    if !matches!(node.attrs.get("norm_type"), None | Some(Attr::Text(_))) {
                        return Err(at("attribute `norm_type` must be a string".into()));
                    }
                    if let Some(Attr::Text(t)) = node.attrs.get("norm_type")
                        && t != "fro"
                    {
                        return Err(at(format!("norm `{t}` is not supported; only `fro` is")));
                    }
                    max_norm = Some(float(node, "max_norm", 1.0)?);
                }
                (MS, "SGDOptimizerV2") if out.is_none() => {
                    inputs(node, 3)?;
                    out = Some(Optimizer { max_norm, rate: DEFAULT_RATE, rule: Rule::Sgd { decay: 0.0 } });
                }
                (MS, "AdamWOptimizer") if out.is_none() => {
                    inputs(node, 6)?;
                    out = Some(Optimizer { max_norm, rate: DEFAULT_RATE, rule: adamw(node)? });
                }
                _ => {
                    return Err(at(
                        "an optimizer model has one AdamWOptimizer or SGDOptimizerV2, optionally \
                                   with InplaceClipGradNorm in front"
                            .into(),
                    ));
                }
            }
        }
        out.ok_or_else(|| ImportError::BadModel("it has no AdamWOptimizer or SGDOptimizerV2 node".into()))
    }

    /// The optimizer that `spec` describes, with PyTorch's meaning; `None` for none.
    pub(crate) fn of(spec: &OptimizerSpec) -> Option<Optimizer> {
        let get = |option| F32(spec.get(option));
        let decay = get("weight_decay");
        let op = |kind, moments, counts, name| Rule::Op { kind, moments, counts, name };
        let adam = |weight_decay, l2, name| {
            let kind = OpKind::AdamW {
                alpha: get("beta1"),
                beta: get("beta2"),
                epsilon: get("eps"),
                weight_decay,
                bias_correction: true,
                decay_first: true,
                l2,
            };
            op(kind, 2, true, name)
        };
        let rule = match spec.name() {
            "sgd" => Rule::Sgd { decay: decay.0 },
            "momentum" => {
                let (alpha, dampening) = (get("momentum"), spec.get("dampening"));
                let nesterov = spec.get("nesterov") != 0.0;
                let kind = OpKind::Momentum { alpha, beta: F32(1.0 - dampening), l2: decay, nesterov };
                // Only the first step is without dampening.
                op(kind, 1, dampening != 0.0, "momentum")
            }
            "adam" => adam(F32(0.0), decay, "Adam"),
            "adamw" => adam(decay, F32(0.0), "AdamW"),
            "adagrad" => {
                let slower = get("lr_decay");
                let kind = OpKind::Adagrad { epsilon: get("eps"), l2: decay, decay: slower };
                op(kind, 1, slower.0 != 0.0, "Adagrad")
            }
            _ => return None,
        };
        let max_norm = Some(spec.get("clip_norm")).filter(|n| *n > 0.0);
        Some(Optimizer { max_norm, rate: spec.get("lr"), rule })
    }

    /// What it does, in words.
    pub(crate) fn describe(&self) -> String {
        let rule = match &self.rule {
            Rule::Sgd { decay } if *decay != 0.0 => format!("SGD with weight decay {decay}"),
            Rule::Sgd { .. } => "SGD".to_string(),
            Rule::Op { kind: OpKind::AdamW { weight_decay, .. }, name, .. } if weight_decay.0 != 0.0 => {
                format!("{name} with weight decay {}", weight_decay.0)
            }
            Rule::Op { name, .. } => name.to_string(),
        };
        match self.max_norm {
            Some(n) => format!("{rule}, gradient norm at most {n}"),
            None => rule,
        }
    }

    /// Appends the update of all `trained` parameters and the optimizer's own state.
    pub(crate) fn apply(
        &self,
        module: &mut Module,
        trained: &[Trained],
        initial: &Initial,
    ) -> Result<(), ImportError> {
        let default = F32(initial.learning_rate.unwrap_or(self.rate));
        let scalar = TensorType::scalar(DType::F32);
        let rate = module.add_input("learning_rate", scalar, Feed::LearningRate { default });
        let mut emit = Emit { module, origin: "optimizer" };
        let factor = self.max_norm.map(|n| emit.norm_factor(n, trained)).transpose()?;
        let step = match self.rule {
            Rule::Op { counts: true, .. } => Some(emit.step(initial.step)?),
            Rule::Sgd { .. } | Rule::Op { .. } => None,
        };
        for t in trained {
            let mut gradient = t.gradient;
            if let Some(factor) = factor {
                let factor = emit.cast(factor, emit.dtype(gradient))?;
                gradient =
                    emit.one(OpKind::Mul {}, &[gradient, factor], &format!("{}_grad.clipped", t.name))?;
            }
            emit.update(&self.rule, t, gradient, rate, step, initial)?;
        }
        Ok(())
    }
}

fn adamw(node: &Node) -> Result<Rule, ImportError> {
    let mode = int(node, "adam_mode", 0)?;
    if mode != 0 && mode != 1 {
        return Err(ImportError::BadModel(format!("{}: there is no adam_mode {mode}", node.label())));
    }
    let kind = OpKind::AdamW {
        alpha: F32(float(node, "alpha", 0.9)?),
        beta: F32(float(node, "beta", 0.999)?),
        epsilon: F32(float(node, "epsilon", 1e-8)?),
        weight_decay: F32(float(node, "weight_decay", 0.01)?),
        bias_correction: int(node, "correct_bias", 1)? != 0,
        decay_first: mode == 0,
        l2: F32(0.0),
    };
    Ok(Rule::Op { kind, moments: 2, counts: true, name: "AdamW" })
}

/// An update that may be skipped by a further input is not supported.
fn inputs(node: &Node, count: usize) -> Result<(), ImportError> {
    let given: Vec<&String> = node.inputs.iter().filter(|n| !n.is_empty()).collect();
    if given.len() == count {
        return Ok(());
    }
    Err(ImportError::Unsupported(format!(
        "{}: it has inputs {}, supported are exactly {count}",
        node.label(),
        some_of(&given)
    )))
}

fn float(node: &Node, name: &str, default: f32) -> Result<f32, ImportError> {
    match node.attrs.get(name) {
        None => Ok(default),
        Some(Attr::Float(v)) => Ok(*v),
        Some(other) => Err(ImportError::BadModel(format!(
            "{}: attribute `{name}` must be a float, not {}",
            node.label(),
            other.kind()
        ))),
    }
}

fn int(node: &Node, name: &str, default: i64) -> Result<i64, ImportError> {
    match node.attrs.get(name) {
        None => Ok(default),
        Some(Attr::Int(v)) => Ok(*v),
        Some(other) => Err(ImportError::BadModel(format!(
            "{}: attribute `{name}` must be an integer, not {}",
            node.label(),
            other.kind()
        ))),
    }
}

struct Emit<'m> {
    module: &'m mut Module,
    origin: &'static str,
}

impl Emit<'_> {
    fn all(
        &mut self,
        kind: OpKind,
        operands: &[ValueId],
        names: &[&str],
    ) -> Result<Vec<ValueId>, ImportError> {
        let results = self.module.add_op(kind, operands, names, self.origin);
        results.map_err(|e| ImportError::BadModel(format!("optimizer update: {e}")))
    }

    fn one(&mut self, kind: OpKind, operands: &[ValueId], name: &str) -> Result<ValueId, ImportError> {
        let results = self.all(kind, operands, &[name])?;
        results.first().copied().ok_or_else(|| ImportError::BadModel("optimizer update: no result".into()))
    }

    fn scalar(&mut self, name: &str, value: f32) -> ValueId {
        self.module.add_const(name, TensorType::scalar(DType::F32), value.to_le_bytes())
    }

    fn dtype(&self, value: ValueId) -> DType {
        self.module.values[value].ty.dtype
    }

    /// `value` as `dtype`.
    fn cast(&mut self, value: ValueId, dtype: DType) -> Result<ValueId, ImportError> {
        if self.dtype(value) == dtype {
            return Ok(value);
        }
        let name = format!("{}.{dtype}", self.module.values[value].name);
        self.one(OpKind::Cast { to: dtype }, &[value], &name)
    }

    /// `min(1, max_norm / (norm + epsilon))` of the norm of all gradients together.
    fn norm_factor(&mut self, max_norm: f32, trained: &[Trained]) -> Result<ValueId, ImportError> {
        let mut sum = None;
        for t in trained {
            let gradient = self.cast(t.gradient, DType::F32)?;
            let squares =
                self.one(OpKind::SumSquares {}, &[gradient], &format!("{}_grad.sum_squares", t.name))?;
            sum = Some(match sum {
                None => squares,
                Some(sum) => self.one(OpKind::Add {}, &[sum, squares], "grad_norm.sum")?,
            });
        }
        let sum = sum.ok_or_else(|| ImportError::BadModel("there is no trained parameter".into()))?;
        let norm = self.one(OpKind::Sqrt {}, &[sum], "grad_norm")?;
        let epsilon = self.scalar("grad_norm.epsilon", NORM_EPSILON);
        let limit = self.scalar("grad_norm.max", max_norm);
        let one = self.scalar("grad_norm.one", 1.0);
        let guarded = self.one(OpKind::Add {}, &[norm, epsilon], "grad_norm.guarded")?;
        let ratio = self.one(OpKind::Div {}, &[limit, guarded], "grad_norm.ratio")?;
        self.one(OpKind::Min {}, &[ratio, one], "grad_norm.factor")
    }

    /// The number of this optimizer step, from 1. It is state, so that a resumed run counts on.
    fn step(&mut self, done: i64) -> Result<ValueId, ImportError> {
        let ty = TensorType::scalar(DType::I64);
        let init = if done == 0 { Init::Zeros } else { Init::Data(Blob::new(done.to_le_bytes())) };
        let state = self.module.add_state("step", ty.clone(), Role::Optimizer, init);
        let one = self.module.add_const("step.one", ty, 1i64.to_le_bytes());
        let before = self.module.states[state].value;
        let step = self.one(OpKind::Add {}, &[before, one], "step.next")?;
        self.module.states[state].next = Some(step);
        Ok(step)
    }

    fn update(
        &mut self,
        rule: &Rule,
        t: &Trained,
        gradient: ValueId,
        rate: ValueId,
        step: Option<ValueId>,
        initial: &Initial,
    ) -> Result<(), ImportError> {
        let weight = self.module.states[t.state].value;
        let new_name = format!("{}.next", t.name);
        let (kind, count) = match rule {
            Rule::Sgd { decay } => {
                let mut gradient = gradient;
                if *decay != 0.0 {
                    let factor = self.scalar("weight_decay", *decay);
                    let factor = self.cast(factor, self.dtype(weight))?;
                    let pull =
                        self.one(OpKind::Mul {}, &[weight, factor], &format!("{}.weight_decay", t.name))?;
                    let name = format!("{}_grad.decayed", t.name);
                    gradient = self.one(OpKind::Add {}, &[gradient, pull], &name)?;
                }
                let new = self.one(OpKind::Sgd {}, &[weight, gradient, rate], &new_name)?;
                self.module.states[t.state].next = Some(new);
                return Ok(());
            }
            Rule::Op { kind, moments, .. } => (kind.clone(), *moments),
        };
        let (mut states, mut names) = (vec![t.state], vec![new_name]);
        let mut operands = vec![weight, gradient];
        for index in 0..count {
            let state = self.moment(t, index, initial)?;
            states.push(state);
            operands.push(self.module.states[state].value);
            names.push(format!("{}.momentum{index}.next", t.name));
        }
        operands.push(rate);
        operands.extend(step);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let results = self.all(kind, &operands, &names)?;
        for (state, next) in states.into_iter().zip(results) {
            self.module.states[state].next = Some(next);
        }
        Ok(())
    }

    /// The state of moment `index`, called as in checkpoints.
    fn moment(&mut self, t: &Trained, index: u32, initial: &Initial) -> Result<StateId, ImportError> {
        let ty = self.module.values[self.module.states[t.state].value].ty.clone();
        let name = format!("{}.momentum{index}", t.name);
        let init = match initial.get(&name, &ty)? {
            Some(init) => init,
            None if initial.step == 0 => Init::Zeros,
            None => {
                return Err(ImportError::BadModel(format!(
                    "the checkpoint is from step {} but has no `{name}`",
                    initial.step
                )));
            }
        };
        Ok(self.module.add_state(&name, ty, Role::Optimizer, init))
    }
}
