//! ONNX Runtime's optimizer models.
//!
//! Such a model is one node over sequences of tensors, with an optional node that limits the gradients' norm
//! in front. It names no parameters: its sequences follow the order of the training model's parameters. The
//! update itself is added by a pass.

use memc_ir::OpKind;
use memc_ir::attr::F32;
use memc_ir::recipe::{Groups, Optimizer, UpdateRule};

use crate::context::Done;
use crate::error::{Fault, ImportError, some_of, unsupported};
use crate::model::{Attr, Graph, MS, Node};

/// The learning rate when neither checkpoint nor user gives one, as ONNX Runtime has it.
const DEFAULT_RATE: f32 = 0.001;

/// Parts of an optimizer model that were read so far.
#[derive(Default)]
struct Found {
    max_norm: Option<f32>,
    rule: Option<UpdateRule>,
}

/// Recognises an optimizer model.
pub(crate) fn read(graph: &Graph) -> Result<Optimizer, ImportError> {
    let mut found = Found::default();
    for node in &graph.nodes {
        found.add(node).map_err(|fault| fault.at(&node.label()))?;
    }
    let missing = || ImportError::BadModel("it has no AdamWOptimizer or SGDOptimizerV2 node".into());
    let rule = found.rule.ok_or_else(missing)?;
    Ok(Optimizer { max_norm: found.max_norm, rate: DEFAULT_RATE, rule, groups: Groups::default() })
}

impl Found {
    fn add(&mut self, node: &Node) -> Done {
        match (node.domain.as_str(), node.op.as_str()) {
            (MS, "InplaceClipGradNorm") if self.max_norm.is_none() && self.rule.is_none() => {
                match node.attrs.get("norm_type") {
                    None => {}
                    Some(Attr::Text(t)) if t == "fro" => {}
                    Some(Attr::Text(t)) => {
                        return unsupported(format!("norm `{t}` is not supported; only `fro` is"));
                    }
                    Some(_) => return unsupported("attribute `norm_type` must be a string"),
                }
                self.max_norm = Some(node.float("max_norm", 1.0)?);
            }
            (MS, "SGDOptimizerV2") if self.rule.is_none() => {
                inputs(node, 3)?;
                self.rule = Some(UpdateRule::Sgd { decay: 0.0 });
            }
            (MS, "AdamWOptimizer") if self.rule.is_none() => {
                inputs(node, 6)?;
                self.rule = Some(adamw(node)?);
            }
            _ => {
                return unsupported(
                    "an optimizer model has one AdamWOptimizer or SGDOptimizerV2, optionally with \
                     InplaceClipGradNorm in front",
                );
            }
        }
        Ok(())
    }
}

fn adamw(node: &Node) -> Result<UpdateRule, Fault> {
    let mode = node.int("adam_mode", 0)?;
    if mode != 0 && mode != 1 {
        return Err(format!("there is no adam_mode {mode}").into());
    }
    let kind = OpKind::AdamW {
        alpha: F32(node.float("alpha", 0.9)?),
        beta: F32(node.float("beta", 0.999)?),
        epsilon: F32(node.float("epsilon", 1e-8)?),
        weight_decay: F32(node.float("weight_decay", 0.01)?),
        bias_correction: node.int("correct_bias", 1)? != 0,
        decay_first: mode == 0,
        l2: F32(0.0),
    };
    Ok(UpdateRule::Op { kind, moments: 2, counts: true, name: "AdamW" })
}

/// Refuses a further input, by which an update may be skipped.
fn inputs(node: &Node, count: usize) -> Done {
    let given: Vec<&String> = node.inputs.iter().filter(|n| !n.is_empty()).collect();
    if given.len() == count {
        return Ok(());
    }
    unsupported(format!("it has inputs {}, supported are exactly {count}", some_of(&given)))
}
