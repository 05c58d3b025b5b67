//! The standard's optimizers, `ai.onnx.preview.training`: one node updates any number of tensors.
//!
//! Inputs are the learning rate R, the number of updates done T, and the tensors grouped by kind: X1.. Xn,
//! their gradients G1.. Gn, then each kind of state; outputs are the new tensors and states in the same
//! groups. A tensor becomes one op.

use memc_ir::attr::F32;
use memc_ir::{DType, OpKind, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};

/// A node's operands.
struct Group {
    rate: ValueId,
    /// Updates done before this one.
    count: ValueId,
    /// For every tensor its value, gradient and states.
    tensors: Vec<Vec<ValueId>>,
}

/// The operands of a node whose optimizer keeps `states` tensors for each one it updates.
fn group(n: &mut NodeCx<'_, '_>, states: usize) -> Result<Group, Fault> {
    let kinds = 2 + states;
    let given = n.node.inputs.len();
    let tensors = given.saturating_sub(2) / kinds;
    if tensors == 0 || tensors * kinds + 2 != given {
        return Err(Fault::Bad(format!(
            "it has {given} inputs; R and T and then {kinds} for each tensor are expected"
        )));
    }
    if n.node.outputs.len() > tensors * (1 + states) {
        return Err(Fault::Bad(format!(
            "it has {} outputs for {tensors} tensors with {states} states each",
            n.node.outputs.len()
        )));
    }
    let (rate, count) = (n.operand(0)?, n.operand(1)?);
    if n.ty(count).dtype != DType::I64 {
        return Err(Fault::Bad(format!("T must be int64, not {}", n.ty(count))));
    }
    let all = n.operands()?;
    let of = |i: usize| (0..kinds).map(|k| all[2 + k * tensors + i]).collect();
    let group = Group { rate, count, tensors: (0..tensors).map(of).collect() };
    match group.tensors.iter().flatten().find(|&&v| n.ty(v).dtype != DType::F32) {
        Some(&v) => unsupported(format!("it updates tensors of float, not {}", n.ty(v))),
        None => Ok(group),
    }
}

impl Group {
    /// Appends an op of `kind` for every tensor, whose operands are its value, gradient, states, the rate and
    /// `count`, and whose results are the outputs. A new value is scaled by `keep`.
    fn update(&self, n: &mut NodeCx<'_, '_>, kind: &OpKind, count: Option<ValueId>, keep: f32) -> Done {
        let node = n.node;
        for (i, tensors) in self.tensors.iter().enumerate() {
            let outputs = (0..tensors.len() - 1).map(|k| k * self.tensors.len() + i);
            let mut names: Vec<&str> = outputs.clone().map(|o| n.output(o).unwrap_or_default()).collect();
            let before = format!("{}/{}", names[0], kind.mnemonic());
            if keep != 1.0 {
                names[0] = &before;
            }
            let operands: Vec<ValueId> = tensors.iter().copied().chain([self.rate]).chain(count).collect();
            let mut results = n.cx.module.add_op(kind.clone(), &operands, &names, &node.name)?;
            if let Some(value) = results.first_mut().filter(|_| keep != 1.0) {
                let factor = n.scalar("keep", keep)?;
                let name = n.output(i).unwrap_or_default();
                *value = n.cx.emit(OpKind::Mul {}, &[*value, factor], name, &node.name)?;
            }
            for (o, value) in outputs.zip(results) {
                n.bind(o, value);
            }
        }
        Ok(())
    }

    /// The number of this update, from 1.
    fn number(&self, n: &mut NodeCx<'_, '_>) -> Made {
        let one = n.integer("one", 1)?;
        n.temp(OpKind::Add {}, &[self.count, one])
    }
}

fn required(n: &NodeCx<'_, '_>, name: &str) -> Result<F32, Fault> {
    if n.node.attrs.contains_key(name) {
        return n.float(name, 0.0).map(F32);
    }
    Err(Fault::Bad(format!("attribute `{name}` is missing")))
}

/// `Adam(R, T, X.., G.., V.., H..) -> (X_new.., V_new.., H_new..)`. Bias correction starts at T = 1.
pub(crate) fn adam(n: &mut NodeCx<'_, '_>) -> Done {
    let group = group(n, 2)?;
    let kind = OpKind::AdamW {
        alpha: F32(n.float("alpha", 0.9)?),
        beta: F32(n.float("beta", 0.999)?),
        epsilon: F32(n.float("epsilon", 1e-6)?),
        weight_decay: F32(0.0),
        bias_correction: true,
        decay_first: false,
        l2: F32(n.float("norm_coefficient", 0.0)?),
    };
    let keep = 1.0 - n.float("norm_coefficient_post", 0.0)?;
    group.update(n, &kind, Some(group.count), keep)
}

/// `Adagrad(R, T, X.., G.., H..) -> (X_new.., H_new..)`.
pub(crate) fn adagrad(n: &mut NodeCx<'_, '_>) -> Done {
    let group = group(n, 1)?;
    let decay = F32(n.float("decay_factor", 0.0)?);
    let epsilon = F32(n.float("epsilon", 1e-6)?);
    let kind = OpKind::Adagrad { epsilon, l2: F32(n.float("norm_coefficient", 0.0)?), decay };
    let count = if decay.0 == 0.0 { None } else { Some(group.number(n)?) };
    group.update(n, &kind, count, 1.0)
}

/// `Momentum(R, T, X.., G.., V..) -> (X_new.., V_new..)`. The first update, of T = 0, takes beta as 1.
pub(crate) fn momentum(n: &mut NodeCx<'_, '_>) -> Done {
    let group = group(n, 1)?;
    let nesterov = match n.text("mode", "")? {
        "standard" => false,
        "nesterov" => true,
        other => {
            return Err(Fault::Bad(format!("there is no mode `{other}`; there are standard and nesterov")));
        }
    };
    let (alpha, beta) = (required(n, "alpha")?, required(n, "beta")?);
    let kind = OpKind::Momentum { alpha, beta, l2: required(n, "norm_coefficient")?, nesterov };
    let count = if beta.0 == 1.0 { None } else { Some(group.number(n)?) };
    group.update(n, &kind, count, 1.0)
}
