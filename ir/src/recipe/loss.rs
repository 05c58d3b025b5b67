//! Loss of a forward model, as the command line spells it: `cross-entropy:axis=-1,output=logits`.
//!
//! Printed text parses back to the same loss.

use std::fmt;
use std::str::FromStr;

use crate::error::ParseError;

/// Kind of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossKind {
    /// Softmax cross-entropy of scores and integer labels, whose shape is that of the scores without the
    /// classes' axis; the mean.
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

/// Name, kind, options and meaning of every loss.
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

/// Name, options and meaning of every loss that [`Loss`] parses.
pub fn losses() -> Vec<[String; 3]> {
    LOSSES.iter().map(|l| [l.0, l.2, l.3].map(String::from)).collect()
}

/// The loss of a forward model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// Kind of loss.
    pub kind: LossKind,
    /// Output that the loss is computed from; may be absent when only one fits.
    pub output: Option<String>,
    /// Axis of the classes in the scores of a cross-entropy; may be absent when the scores have two axes.
    pub classes: Option<ClassAxis>,
}

/// Axis of the classes in the scores of a cross-entropy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClassAxis {
    /// Scores `[n, classes, ...]`, as PyTorch and ONNX have them.
    Second,
    /// Scores `[n, ..., classes]`, as language models have them.
    Last,
}

const CLASS_AXES: [(&str, ClassAxis); 2] = [("1", ClassAxis::Second), ("-1", ClassAxis::Last)];

impl FromStr for Loss {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (name, rest) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
        let Some(&(_, kind, ..)) = LOSSES.iter().find(|l| l.0 == name) else {
            let known: Vec<&str> = LOSSES.iter().map(|l| l.0).collect();
            return Err(format!("there is no loss `{name}`; write one of {}", known.join(", ")).into());
        };
        let (classes, rest) = match rest.and_then(|r| r.strip_prefix("axis=")) {
            Some(axis) if kind == LossKind::CrossEntropy => {
                let (axis, rest) = axis.split_once(',').map_or((axis, None), |(a, b)| (a, Some(b)));
                let Some(found) = CLASS_AXES.iter().find(|a| a.0 == axis) else {
                    return Err(format!(
                        "classes cannot be along axis `{axis}`; write {name}:axis=-1 for scores [n, ..., \
                         classes] or {name}:axis=1 for scores [n, classes, ...]"
                    )
                    .into());
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
                    return Err(format!("`{rest}` is no option; write {name}:axis=-1,output=NAME").into());
                }
                None => return Err(format!("`{rest}` is no option; write {name}:output=NAME").into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed losses parse to the same.
    #[test]
    fn losses_read_back() {
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
    }

    /// Listed losses parse.
    #[test]
    fn lists_are_what_parses() {
        assert_eq!(losses().iter().filter(|l| l[0].parse::<Loss>().is_ok()).count(), LOSSES.len());
    }

    /// Unknown names and options are refused with what is possible.
    #[test]
    fn impossible_losses_are_refused() {
        assert!("huber".parse::<Loss>().expect_err("loss").to_string().contains("cross-entropy, mse"));
        let refused = |text: &str| text.parse::<Loss>().expect_err(text).to_string();
        assert!(
            refused("cross-entropy:axis=2").contains("cross-entropy:axis=-1 for scores [n, ..., classes]")
        );
        assert!(refused("cross-entropy:axis=1,x").contains("`x` is no option"));
        assert!(refused("mse:axis=1").contains("`axis=1` is no option"));
        assert!("mse:x".parse::<Loss>().expect_err("option").to_string().contains("mse:output=NAME"));
    }
}
