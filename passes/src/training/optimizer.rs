//! Update of every parameter from its gradient, with the optimizer's own state.

use std::collections::BTreeMap;

use memc_ir::attr::F32;
use memc_ir::recipe::{Optimizer, OptimizerSpec, UpdateRule};
use memc_ir::{
    DType, Def, Feed, Init, Module, OpKind, OutputRole, ParseError, Phase, Role, StateId, TensorType, Turn,
    ValueId,
};

use crate::{OptionDef, Options, PassCx, PassDef, PassError};

pub(super) const PASS: PassDef = PassDef {
    name: "add-optimizer",
    summary: "update every parameter from its gradient, which is an output no longer",
    phases: (Phase::Graph, Phase::Graph),
    options: OPTIONS,
    run,
};

const fn number(name: &'static str, doc: &'static str) -> OptionDef {
    OptionDef { name, default: "", doc }
}

const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "rule",
        default: "",
        doc: "optimizer; `memc list optimizers` has the options of each, with defaults",
    },
    number("lr", "learning rate"),
    number("momentum", "share of the momentum that stays"),
    number("dampening", "share of the gradient that the momentum leaves out"),
    number("nesterov", "whether the momentum is Nesterov's"),
    number("beta1", "share of the first moment that stays"),
    number("beta2", "share of the second moment that stays"),
    number("eps", "guard against division by zero"),
    number("weight_decay", "weight decay"),
    number("lr_decay", "decay of the learning rate with the step"),
    number("clip_norm", "largest norm of all gradients together"),
];

/// Guard against division by zero in the limit of the gradients' norm, as ONNX Runtime has it.
const NORM_EPSILON: f32 = 1e-6;

/// Origin of all ops of an update.
const ORIGIN: &str = "optimizer";

fn run(m: &mut Module, options: &Options, _: &mut PassCx<'_>) -> Result<(), PassError> {
    let rule = options.get(OPTIONS, "rule")?;
    let numbers = options.0.iter().filter(|(name, _)| name != "rule");
    let numbers: Vec<String> = numbers.map(|(name, value)| format!("{name}={value}")).collect();
    let spec: OptimizerSpec = format!("{rule}:{}", numbers.join(","))
        .parse()
        .map_err(|e: ParseError| PassError::Usage(e.to_string()))?;
    match Optimizer::of(&spec) {
        Some(optimizer) => add_optimizer(m, &optimizer),
        None => Ok(()),
    }
}

/// A trained parameter: its state and this step's gradient.
struct Trained {
    name: String,
    state: StateId,
    gradient: ValueId,
}

/// Appends the update of every parameter whose gradient is an output of `m`, and the optimizer's own state,
/// which starts at zero.
///
/// Gradients are outputs no longer. The output `X_grad` belongs to the parameter `X`.
///
/// # Errors
///
/// [`PassError::Usage`] where no gradient is an output, [`PassError::Unsupported`] where an update cannot be
/// computed in the parameter's type.
pub fn add_optimizer(m: &mut Module, optimizer: &Optimizer) -> Result<(), PassError> {
    let trained = trained(m)?;
    m.outputs.retain(|o| o.role != OutputRole::Gradient);
    let scalar = TensorType::scalar(DType::F32);
    let rate = m.add_input(
        "learning_rate",
        scalar,
        Feed::LearningRate { default: F32(optimizer.rate), turn: Turn::default() },
    );
    let mut emit = Emit { module: m };
    let factor = optimizer.max_norm.map(|n| emit.norm_factor(n, &trained)).transpose()?;
    let step = match optimizer.rule {
        UpdateRule::Op { counts: true, .. } => Some(emit.step()?),
        UpdateRule::Sgd { .. } | UpdateRule::Op { .. } => None,
    };
    let plain = optimizer.rule.without_decay();
    let mut rates: BTreeMap<F32, ValueId> = BTreeMap::new();
    for t in &trained {
        let rule = if optimizer.groups.no_decay.contains(&t.name) { &plain } else { &optimizer.rule };
        let rate = match optimizer.groups.rate_factors.get(&t.name) {
            None => rate,
            Some(&factor) => match rates.get(&factor) {
                Some(&known) => known,
                None => *rates.entry(factor).or_insert(emit.scaled_rate(rate, factor)?),
            },
        };
        let mut gradient = t.gradient;
        if let Some(factor) = factor {
            let factor = emit.cast(factor, emit.dtype(gradient))?;
            gradient = emit.one(OpKind::Mul {}, &[gradient, factor], &format!("{}_grad.clipped", t.name))?;
        }
        emit.update(rule, t, gradient, rate, step)?;
    }
    Ok(())
}

/// Parameters whose gradients are outputs, in the order of the outputs.
fn trained(m: &Module) -> Result<Vec<Trained>, PassError> {
    let mut out = Vec::new();
    for o in m.outputs.iter().filter(|o| o.role == OutputRole::Gradient) {
        let name = o.name.strip_suffix("_grad");
        let value = name.and_then(|name| m.value_named(name));
        match (name, value.map(|v| m.values[v].def)) {
            (Some(name), Some(Def::State(state))) => {
                out.push(Trained { name: name.to_string(), state, gradient: o.value });
            }
            _ => {
                let text =
                    format!("gradient `{}` is not called after a parameter, as X_grad after X", o.name);
                return Err(PassError::Usage(text));
            }
        }
    }
    if out.is_empty() {
        return Err(PassError::Usage("no gradient is an output; run `differentiate` before".into()));
    }
    Ok(out)
}

struct Emit<'m> {
    module: &'m mut Module,
}

impl Emit<'_> {
    fn all(&mut self, kind: OpKind, operands: &[ValueId], names: &[&str]) -> Result<Vec<ValueId>, PassError> {
        let results = self.module.add_op(kind, operands, names, ORIGIN);
        results.map_err(|e| PassError::Unsupported(format!("optimizer update: {e}")))
    }

    fn one(&mut self, kind: OpKind, operands: &[ValueId], name: &str) -> Result<ValueId, PassError> {
        let results = self.all(kind, operands, &[name])?;
        results.first().copied().ok_or_else(|| PassError::Unsupported("optimizer update: no result".into()))
    }

    fn scalar(&mut self, name: &str, value: f32) -> ValueId {
        self.module.add_const(name, TensorType::scalar(DType::F32), value.to_le_bytes())
    }

    fn dtype(&self, value: ValueId) -> DType {
        self.module.values[value].ty.dtype
    }

    /// `value` as `dtype`.
    fn cast(&mut self, value: ValueId, dtype: DType) -> Result<ValueId, PassError> {
        if self.dtype(value) == dtype {
            return Ok(value);
        }
        let name = format!("{}.{dtype}", self.module.values[value].name);
        self.one(OpKind::Cast { to: dtype }, &[value], &name)
    }

    /// `min(1, max_norm / (norm + epsilon))` of the norm of all gradients together.
    fn norm_factor(&mut self, max_norm: f32, trained: &[Trained]) -> Result<ValueId, PassError> {
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
        let sum = sum.ok_or_else(|| PassError::Unsupported("there is no trained parameter".into()))?;
        let norm = self.one(OpKind::Sqrt {}, &[sum], "grad_norm")?;
        let epsilon = self.scalar("grad_norm.epsilon", NORM_EPSILON);
        let limit = self.scalar("grad_norm.max", max_norm);
        let one = self.scalar("grad_norm.one", 1.0);
        let guarded = self.one(OpKind::Add {}, &[norm, epsilon], "grad_norm.guarded")?;
        let ratio = self.one(OpKind::Div {}, &[limit, guarded], "grad_norm.ratio")?;
        self.one(OpKind::Min {}, &[ratio, one], "grad_norm.factor")
    }

    /// The learning rate of parameters with a factor.
    fn scaled_rate(&mut self, rate: ValueId, factor: F32) -> Result<ValueId, PassError> {
        let name = format!("learning_rate.{:?}", factor.0);
        let scale = self.scalar(&format!("{name}.factor"), factor.0);
        self.one(OpKind::Mul {}, &[rate, scale], &name)
    }

    /// Number of this optimizer step, from 1. It is state, so that a resumed run counts on.
    fn step(&mut self) -> Result<ValueId, PassError> {
        let ty = TensorType::scalar(DType::I64);
        let state = self.module.add_state("step", ty.clone(), Role::Optimizer, Init::Zeros);
        let one = self.module.add_const("step.one", ty, 1i64.to_le_bytes());
        let before = self.module.states[state].value;
        let step = self.one(OpKind::Add {}, &[before, one], "step.next")?;
        self.module.states[state].next = Some(step);
        Ok(step)
    }

    fn update(
        &mut self,
        rule: &UpdateRule,
        t: &Trained,
        gradient: ValueId,
        rate: ValueId,
        step: Option<ValueId>,
    ) -> Result<(), PassError> {
        let weight = self.module.states[t.state].value;
        let new_name = format!("{}.next", t.name);
        let (kind, count) = match rule {
            UpdateRule::Sgd { decay } => {
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
            UpdateRule::Op { kind, moments, .. } => (kind.clone(), *moments),
        };
        let (mut states, mut names) = (vec![t.state], vec![new_name]);
        let mut operands = vec![weight, gradient];
        for index in 0..count {
            let state = self.moment(t, index);
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

    /// State of moment `index`, zero at first, called as in checkpoints.
    fn moment(&mut self, t: &Trained, index: u32) -> StateId {
        let ty = self.module.values[self.module.states[t.state].value].ty.clone();
        self.module.add_state(&format!("{}.momentum{index}", t.name), ty, Role::Optimizer, Init::Zeros)
    }
}
