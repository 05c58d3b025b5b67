//! Optimizers: the command line's spelling (`adamw:lr=1e-3,weight_decay=0.01`), and the update that it stands
//! for.
//!
//! Defaults are PyTorch's. Printed text parses back to the same specification.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::attr::F32;
use crate::error::ParseError;
use crate::ops::OpKind;

/// Optimizer of a forward model, as the user spells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptimizerSpec {
    rule: usize,
    /// Values in the order of the rule's options.
    values: Vec<F32>,
}

/// Name, options with their defaults, and meaning of a rule.
type RuleRow = (&'static str, &'static [(&'static str, f32)], &'static str);

/// Option that limits the norm of all gradients together; zero stands for no limit.
const CLIP: (&str, f32) = ("clip_norm", 0.0);

const RULES: [RuleRow; 6] = [
    ("none", &[], "gradients become outputs, nothing is trained"),
    ("sgd", &[("lr", 1e-3), ("weight_decay", 0.0), CLIP], "gradient descent"),
    (
        "momentum",
        &[
            ("lr", 1e-3),
            ("momentum", 0.9),
            ("dampening", 0.0),
            ("weight_decay", 0.0),
            ("nesterov", 0.0),
            CLIP,
        ],
        "gradient descent with momentum",
    ),
    (
        "adam",
        &[("lr", 1e-3), ("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8), ("weight_decay", 0.0), CLIP],
        "Adam; weight decay is added to the gradient",
    ),
    (
        "adamw",
        &[("lr", 1e-3), ("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8), ("weight_decay", 0.01), CLIP],
        "Adam with weight decay of its own",
    ),
    ("adagrad", &[("lr", 1e-2), ("eps", 1e-10), ("weight_decay", 0.0), ("lr_decay", 0.0), CLIP], "Adagrad"),
];

/// Name, options with defaults, and meaning of every optimizer that [`OptimizerSpec`] parses.
pub fn optimizers() -> Vec<[String; 3]> {
    let default = |o: &(&str, f32)| format!("{}={}", o.0, spelled(o.0, o.1));
    let options = |r: &RuleRow| r.1.iter().map(default).collect::<Vec<_>>().join(", ");
    RULES.iter().map(|r| [r.0.to_string(), options(r), r.2.to_string()]).collect()
}

/// Value of option `key` in the spelling of the command line.
fn spelled(key: &str, value: f32) -> String {
    match key {
        "nesterov" => (value != 0.0).to_string(),
        _ => format!("{value:?}"),
    }
}

/// Hint for an option that rule `name` lacks and another library has.
fn instead(name: &str, key: &str) -> &'static str {
    match (name, key) {
        ("sgd", "momentum" | "dampening" | "nesterov") => {
            "; write momentum:momentum=0.9 for SGD with momentum"
        }
        ("adam" | "adamw", "betas") => "; write beta1=0.9,beta2=0.999",
        ("adam" | "adamw", "beta") => "; write beta1=0.9 or beta2=0.999",
        (_, "learning_rate") => "; write lr",
        (_, "epsilon") => "; write eps",
        (_, "max_norm" | "max_grad_norm") => "; write clip_norm",
        _ => "",
    }
}

impl OptimizerSpec {
    /// Name of the rule: none, sgd, momentum, adam, adamw or adagrad.
    pub fn name(&self) -> &'static str {
        RULES[self.rule].0
    }

    /// Value of an option; zero for one that the rule lacks.
    fn get(&self, option: &str) -> f32 {
        let at = RULES[self.rule].1.iter().position(|o| o.0 == option);
        at.and_then(|i| self.values.get(i)).map_or(0.0, |v| v.0)
    }
}

impl FromStr for OptimizerSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let Some(rule) = RULES.iter().position(|r| r.0 == name) else {
            let known: Vec<&str> = RULES.iter().map(|r| r.0).collect();
            return Err(format!(
                "there is no optimizer `{name}`; write one of {}, as adamw:lr=1e-3,weight_decay=0.01 (for an \
                 optimizer model of training artifacts use --optimizer-model)",
                known.join(", ")
            )
            .into());
        };
        let options = RULES[rule].1;
        let mut values: Vec<F32> = options.iter().map(|o| F32(o.1)).collect();
        let mut seen = BTreeMap::new();
        for part in rest.split(',').filter(|p| !p.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| {
                format!(
                    "`{part}` must be NAME=NUMBER; several options are separated by commas, without brackets"
                )
            })?;
            let Some(at) = options.iter().position(|o| o.0 == key) else {
                let known: Vec<&str> = options.iter().map(|o| o.0).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                let instead = instead(name, key);
                return Err(format!("{name} has no option `{key}`; it has {known}{instead}").into());
            };
            if seen.insert(at, ()).is_some() {
                return Err(format!("`{key}` is given twice").into());
            }
            values[at] = F32(number(key, value)?);
        }
        let spec = OptimizerSpec { rule, values };
        let nesterov = spec.get("nesterov") != 0.0;
        if nesterov && (spec.get("momentum") <= 0.0 || spec.get("dampening") != 0.0) {
            return Err("nesterov needs a momentum and no dampening".into());
        }
        Ok(spec)
    }
}

/// Value of option `key`, checked against the option's range.
fn number(key: &str, text: &str) -> Result<f32, ParseError> {
    if key == "nesterov" {
        return match text {
            "true" | "1" => Ok(1.0),
            "false" | "0" => Ok(0.0),
            _ => Err(format!("nesterov={text} must be true or false").into()),
        };
    }
    let value: f32 = text.parse().map_err(|_| format!("{key}={text} must be a number"))?;
    let share = matches!(key, "beta1" | "beta2");
    if !value.is_finite() || value < 0.0 || (share && value >= 1.0) {
        let range = if share { "in [0, 1)" } else { "finite and not negative" };
        return Err(format!("{key}={text} must be {range}").into());
    }
    Ok(value)
}

impl fmt::Display for OptimizerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, options, _) = RULES[self.rule];
        f.write_str(name)?;
        for (i, ((key, _), value)) in options.iter().zip(&self.values).enumerate() {
            let separator = if i == 0 { ':' } else { ',' };
            write!(f, "{separator}{key}={}", spelled(key, value.0))?;
        }
        Ok(())
    }
}

/// Update that an optimizer makes of a parameter and its gradient.
#[derive(Clone, PartialEq, Debug)]
pub struct Optimizer {
    /// Largest norm of all gradients together.
    pub max_norm: Option<f32>,
    /// Learning rate when neither checkpoint nor user gives one.
    pub rate: f32,
    /// Update of one parameter.
    pub rule: UpdateRule,
    /// Parameters that the update treats otherwise.
    pub groups: Groups,
}

/// Parameters, by name, whose update is not that of the others (PyTorch: parameter groups).
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Groups {
    /// Parameters without weight decay.
    pub no_decay: BTreeSet<String>,
    /// Factors of the learning rate.
    pub rate_factors: BTreeMap<String, F32>,
}

/// Update of one parameter.
#[derive(Clone, PartialEq, Debug)]
pub enum UpdateRule {
    /// Gradient descent on `g + decay * w`.
    Sgd {
        /// Weight decay.
        decay: f32,
    },
    /// One op with operands weight, gradient, moments, learning rate and, if `counts`, the number of the
    /// step.
    Op {
        /// The op.
        kind: OpKind,
        /// Number of moments, each a state of the parameter's type.
        moments: u32,
        /// Whether the op reads the number of the step.
        counts: bool,
        /// Name for users.
        name: &'static str,
    },
}

impl UpdateRule {
    /// The same update without weight decay.
    pub fn without_decay(&self) -> UpdateRule {
        let zero = F32(0.0);
        let mut rule = self.clone();
        match &mut rule {
            UpdateRule::Sgd { decay } => *decay = 0.0,
            UpdateRule::Op { kind, .. } => match kind {
                OpKind::AdamW { weight_decay, l2, .. } => (*weight_decay, *l2) = (zero, zero),
                OpKind::Momentum { l2, .. } | OpKind::Adagrad { l2, .. } => *l2 = zero,
                _ => {}
            },
        }
        rule
    }
}

impl Optimizer {
    /// Optimizer that `spec` describes, with PyTorch's meaning; `None` for none.
    pub fn of(spec: &OptimizerSpec) -> Option<Optimizer> {
        let get = |option| F32(spec.get(option));
        let decay = get("weight_decay");
        let op = |kind, moments, counts, name| UpdateRule::Op { kind, moments, counts, name };
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
            "sgd" => UpdateRule::Sgd { decay: decay.0 },
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
        Some(Optimizer { max_norm, rate: spec.get("lr"), rule, groups: Groups::default() })
    }

    /// Rule and gradient limit in words, for notes.
    pub fn describe(&self) -> String {
        let rule = match &self.rule {
            UpdateRule::Sgd { decay } if *decay != 0.0 => format!("SGD with weight decay {decay}"),
            UpdateRule::Sgd { .. } => "SGD".to_string(),
            UpdateRule::Op { kind: OpKind::AdamW { weight_decay, .. }, name, .. }
                if weight_decay.0 != 0.0 =>
            {
                format!("{name} with weight decay {}", weight_decay.0)
            }
            UpdateRule::Op { name, .. } => name.to_string(),
        };
        match self.max_norm {
            Some(n) => format!("{rule}, gradient norm at most {n}"),
            None => rule,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed optimizers parse to the same.
    #[test]
    fn optimizers_read_back() {
        for text in ["none", "sgd:lr=0.5", "momentum:nesterov=true", "adam:eps=1e-9", "adamw", "adagrad:lr=1"]
        {
            let spec: OptimizerSpec = text.parse().expect(text);
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
        let adamw: OptimizerSpec = "adamw:lr=1e-3,beta2=0.99".parse().expect("adamw");
        assert_eq!(
            adamw.to_string(),
            "adamw:lr=0.001,beta1=0.9,beta2=0.99,eps=1e-8,weight_decay=0.01,clip_norm=0.0"
        );
    }

    /// Listed optimizers parse, and their options are those that parse to the defaults.
    #[test]
    fn lists_are_what_parses() {
        for [name, options, _] in optimizers() {
            let listed: OptimizerSpec = format!("{name}:{}", options.replace(' ', "")).parse().expect(&name);
            assert_eq!(name.parse(), Ok(listed));
        }
    }

    /// Unknown names, options and impossible numbers are refused with what is possible.
    #[test]
    fn impossible_optimizers_are_refused() {
        let refused = |text: &str, part: &str| {
            let error = text.parse::<OptimizerSpec>().expect_err(text);
            assert!(error.to_string().contains(part), "{text}: {error}");
        };
        refused("lion", "adamw:lr=1e-3");
        refused("sgd:momentum=0.9", "sgd has no option `momentum`; it has lr, weight_decay, clip_norm");
        refused("sgd:momentum=0.9", "write momentum:momentum=0.9");
        refused("adamw:betas=0.9", "write beta1=0.9,beta2=0.999");
        refused("none:lr=1", "it has none");
        refused("sgd:lr", "NAME=NUMBER");
        refused("sgd:lr=fast", "must be a number");
        refused("sgd:lr=-1", "not negative");
        refused("adam:beta1=1", "[0, 1)");
        refused("sgd:lr=1,lr=2", "twice");
        refused("momentum:momentum=0,nesterov=true", "needs a momentum");
    }
}
