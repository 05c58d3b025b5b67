//! How a forward model is to be trained, as the command line spells it: the loss and the optimizer.
//!
//! `cross-entropy:axis=-1,output=logits`, `adamw:lr=1e-3,weight_decay=0.01`. Defaults are PyTorch's. What is printed parses
//! back to the same.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use memc_ir::attr::F32;

/// What the loss compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossKind {
    /// Softmax cross-entropy of scores and integer labels, whose shape is that of the scores without the classes' axis;
    /// the mean.
    CrossEntropy,
    /// Mean of the squared differences from labels of the output's shape.
    Mse,
    /// Mean of the absolute differences.
    L1,
    /// Mean binary cross-entropy of scores and labels in [0, 1].
    BceWithLogits,
    /// The output is the loss.
    Output,
}

/// Names, what they stand for, options, and what they are.
const LOSSES: [(&str, LossKind, &str, &str); 5] = [
    (
        "cross-entropy",
        LossKind::CrossEntropy,
        "axis=1 or axis=-1, output=NAME",
        "mean softmax cross-entropy of scores and integer labels; classes along axis",
    ),
    ("mse", LossKind::Mse, "output=NAME", "mean squared difference from labels"),
    ("l1", LossKind::L1, "output=NAME", "mean absolute difference from labels"),
    (
        "bce-with-logits",
        LossKind::BceWithLogits,
        "output=NAME",
        "mean binary cross-entropy of scores and labels in [0, 1]",
    ),
    ("output", LossKind::Output, "NAME", "the model computes its loss: its only output, or the one named"),
];

/// For every loss that [`Loss`] parses its name, its options, and what it is.
pub fn losses() -> Vec<[String; 3]> {
    LOSSES.iter().map(|l| [l.0, l.2, l.3].map(String::from)).collect()
}

/// The loss of a forward model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// What it compares.
    pub kind: LossKind,
    /// The output that it is computed from; may be absent when there is only one that fits.
    pub output: Option<String>,
    /// Where the scores of a cross-entropy have their classes; may be absent when they have two axes.
    pub classes: Option<ClassAxis>,
}

/// The axis of a cross-entropy's scores that its classes are along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClassAxis {
    /// Scores `[n, classes, ...]`, as PyTorch and ONNX have them.
    Second,
    /// Scores `[n, ..., classes]`, as language models have them.
    Last,
}

const CLASS_AXES: [(&str, ClassAxis); 2] = [("1", ClassAxis::Second), ("-1", ClassAxis::Last)];

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
        let Some(&(_, kind, ..)) = LOSSES.iter().find(|l| l.0 == name) else {
            let known: Vec<&str> = LOSSES.iter().map(|l| l.0).collect();
            return Err(format!("there is no loss `{name}`; write one of {}", known.join(", ")));
        };
        let (classes, rest) = match rest.and_then(|r| r.strip_prefix("axis=")) {
            Some(axis) if kind == LossKind::CrossEntropy => {
                let (axis, rest) = axis.split_once(',').map_or((axis, None), |(a, b)| (a, Some(b)));
                let Some(found) = CLASS_AXES.iter().find(|a| a.0 == axis) else {
                    return Err(format!(
                        "classes cannot be along axis `{axis}`; write {name}:axis=-1 for scores [n, ..., classes] or \
                         {name}:axis=1 for scores [n, classes, ...]"
                    ));
                };
                (Some(found.1), rest)
            }
            _ => (None, rest),
        };
        let output = match rest {
            None => None,
            Some(rest) if kind == LossKind::Output && !rest.is_empty() => Some(rest.to_string()),
            Some(rest) => match rest.strip_prefix("output=").filter(|o| !o.is_empty()) {
                Some(o) => Some(o.to_string()),
                None if kind == LossKind::CrossEntropy => {
                    return Err(format!("`{rest}` is no option; write {name}:axis=-1,output=NAME"));
                }
                None => return Err(format!("`{rest}` is no option; write {name}:output=NAME")),
            },
        };
        Ok(Loss { kind, output, classes })
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = LOSSES.iter().find(|l| l.1 == self.kind).map_or("", |l| l.0);
        f.write_str(name)?;
        let axis = CLASS_AXES.iter().find(|a| Some(a.1) == self.classes);
        if let Some((axis, _)) = axis {
            write!(f, ":axis={axis}")?;
        }
        let separator = if axis.is_some() { ',' } else { ':' };
        match &self.output {
            None => Ok(()),
            Some(output) if self.kind == LossKind::Output => write!(f, ":{output}"),
            Some(output) => write!(f, "{separator}output={output}"),
        }
    }
}

/// The optimizer of a forward model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptimizerSpec {
    rule: usize,
    /// Values in the order of the rule's options.
    values: Vec<F32>,
}

/// A rule's name, its options with their defaults, and what it is.
type Rule = (&'static str, &'static [(&'static str, f32)], &'static str);

/// Largest norm of all gradients together, zero for any.
const CLIP: (&str, f32) = ("clip_norm", 0.0);

const RULES: [Rule; 6] = [
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

/// For every optimizer that [`OptimizerSpec`] parses its name, its options with their defaults, and what it is.
pub fn optimizers() -> Vec<[String; 3]> {
    let default = |o: &(&str, f32)| format!("{}={}", o.0, spelled(o.0, o.1));
    let options = |r: &Rule| r.1.iter().map(default).collect::<Vec<_>>().join(", ");
    RULES.iter().map(|r| [r.0.to_string(), options(r), r.2.to_string()]).collect()
}

/// The value of option `key` as the command line has it.
fn spelled(key: &str, value: f32) -> String {
    match key {
        "nesterov" => (value != 0.0).to_string(),
        _ => format!("{value:?}"),
    }
}

/// What to write instead of an option that rule `name` does not have, where another library would have it.
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
    /// The rule's name: none, sgd, momentum, adam, adamw or adagrad.
    pub fn name(&self) -> &'static str {
        RULES[self.rule].0
    }

    /// The value of an option; zero for one that the rule does not have.
    pub(crate) fn get(&self, option: &str) -> f32 {
        let at = RULES[self.rule].1.iter().position(|o| o.0 == option);
        at.and_then(|i| self.values.get(i)).map_or(0.0, |v| v.0)
    }
}

impl FromStr for OptimizerSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let Some(rule) = RULES.iter().position(|r| r.0 == name) else {
            let known: Vec<&str> = RULES.iter().map(|r| r.0).collect();
            return Err(format!(
                "there is no optimizer `{name}`; write one of {}, as adamw:lr=1e-3,weight_decay=0.01 (for an \
                 optimizer model of training artifacts use --optimizer-model)",
                known.join(", ")
            ));
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
                return Err(format!("{name} has no option `{key}`; it has {known}{instead}"));
            };
            if seen.insert(at, ()).is_some() {
                return Err(format!("`{key}` is given twice"));
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

/// The value of option `key`, which must make sense for it.
fn number(key: &str, text: &str) -> Result<f32, String> {
    if key == "nesterov" {
        return match text {
            "true" | "1" => Ok(1.0),
            "false" | "0" => Ok(0.0),
            _ => Err(format!("nesterov={text} must be true or false")),
        };
    }
    let value: f32 = text.parse().map_err(|_| format!("{key}={text} must be a number"))?;
    let share = matches!(key, "beta1" | "beta2");
    if !value.is_finite() || value < 0.0 || (share && value >= 1.0) {
        let range = if share { "in [0, 1)" } else { "finite and not negative" };
        return Err(format!("{key}={text} must be {range}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is printed parses to the same, for every loss and optimizer.
    #[test]
    fn recipes_read_back() {
        let losses = [
            "cross-entropy",
            "cross-entropy:axis=-1",
            "cross-entropy:axis=1,output=a,b",
            "cross-entropy:output=axis=1",
            "mse:output=a=b,c",
            "l1",
            "bce-with-logits:output=y",
            "output",
            "output:loss",
        ];
        for text in losses {
            let loss: Loss = text.parse().expect(text);
            assert_eq!(loss.to_string(), text);
        }
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

    /// What is listed parses, and its options are those that parse to the defaults.
    #[test]
    fn lists_are_what_parses() {
        for [name, options, _] in optimizers() {
            let listed: OptimizerSpec = format!("{name}:{}", options.replace(' ', "")).parse().expect(&name);
            assert_eq!(name.parse(), Ok(listed));
        }
        assert_eq!(losses().iter().filter(|l| l[0].parse::<Loss>().is_ok()).count(), LOSSES.len());
    }

    /// Unknown names, options and impossible numbers are refused with what is possible.
    #[test]
    fn impossible_recipes_are_refused() {
        let refused = |text: &str, part: &str| {
            let error = text.parse::<OptimizerSpec>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
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
        assert!("huber".parse::<Loss>().expect_err("loss").contains("cross-entropy, mse"));
        let refused = |text: &str| text.parse::<Loss>().expect_err(text);
        assert!(
            refused("cross-entropy:axis=2").contains("cross-entropy:axis=-1 for scores [n, ..., classes]")
        );
        assert!(refused("cross-entropy:axis=1,x").contains("`x` is no option"));
        assert!(refused("mse:axis=1").contains("`axis=1` is no option"));
        assert!("mse:x".parse::<Loss>().expect_err("option").contains("mse:output=NAME"));
    }
}
