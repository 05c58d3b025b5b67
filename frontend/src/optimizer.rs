//! ONNX Runtime's optimizer models.
//!
//! Such a model is one node over sequences of tensors, with an optional node that limits the gradients' norm
//! in front. It names no parameters: its sequences follow the order of the training model's parameters. The update itself
//! is added by a pass.

use memc_ir::OpKind;
use memc_ir::attr::F32;
use memc_ir::recipe::{Optimizer, UpdateRule};

use crate::error::{ImportError, some_of};
use crate::model::{Attr, Graph, Node};
use crate::registry::MS;

/// The learning rate when neither checkpoint nor user gives one, as ONNX Runtime has it.
const DEFAULT_RATE: f32 = 0.001;

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
                out = Some(Optimizer { max_norm, rate: DEFAULT_RATE, rule: UpdateRule::Sgd { decay: 0.0 } });
            }
            (MS, "AdamWOptimizer") if out.is_none() => {
                inputs(node, 6)?;
                out = Some(Optimizer { max_norm, rate: DEFAULT_RATE, rule: adamw(node)? });
            }
            _ => {
                return Err(at("an optimizer model has one AdamWOptimizer or SGDOptimizerV2, optionally \
                               with InplaceClipGradNorm in front"
                    .into()));
            }
        }
    }
    out.ok_or_else(|| ImportError::BadModel("it has no AdamWOptimizer or SGDOptimizerV2 node".into()))
}

fn adamw(node: &Node) -> Result<UpdateRule, ImportError> {
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
    Ok(UpdateRule::Op { kind, moments: 2, counts: true, name: "AdamW" })
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
