//! Losses over classes: softmax cross-entropy, and the negative log-likelihood.

use memc_ir::attr::Reduction;
use memc_ir::{DType, OpKind, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};

/// Reduction and ignored label.
fn read(n: &NodeCx<'_, '_>) -> Result<(Reduction, i64), Fault> {
    let reduction = match n.text("reduction", "mean")? {
        "none" => Reduction::None,
        "mean" => Reduction::Mean,
        "sum" => Reduction::Sum,
        other => return Err(format!("there is no reduction `{other}`").into()),
    };
    Ok((reduction, n.int("ignore_index", i64::MIN)?))
}

/// `SoftmaxCrossEntropyLoss(scores, labels, weights?) -> (loss, log_prob)`.
pub(crate) fn cross_entropy(n: &mut NodeCx<'_, '_>) -> Done {
    let (reduction, ignore_index) = read(n)?;
    let operands = [n.operand(0)?, n.operand(1)?];
    let Some(weights) = n.optional(2)? else {
        return n.finish(OpKind::CrossEntropy { reduction, ignore_index }, &operands);
    };
    let log_prob = n.temp(OpKind::LogSoftmax { axis: 1 }, &[operands[0]])?;
    let loss = likelihood(n, log_prob, operands[1], Some(weights))?;
    n.yields(0, loss);
    n.yields(1, log_prob);
    Ok(())
}

/// Microsoft's `SoftmaxCrossEntropyLossGrad(dloss, log_prob, labels)`.
pub(crate) fn cross_entropy_grad(n: &mut NodeCx<'_, '_>) -> Done {
    if n.input(3).is_some() {
        return unsupported("class weights are not supported");
    }
    let (reduction, ignore_index) = read(n)?;
    let (mut dloss, log_prob, labels) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    if reduction != Reduction::None && n.ty(dloss).numel() == 1 {
        dloss = n.reshaped(dloss, &[])?;
    }
    n.finish(OpKind::CrossEntropyGrad { reduction, ignore_index }, &[dloss, log_prob, labels])
}

/// `NegativeLogLikelihoodLoss(log_prob, labels, weights?)`.
pub(crate) fn negative_log_likelihood(n: &mut NodeCx<'_, '_>) -> Done {
    let (log_prob, labels, weights) = (n.operand(0)?, n.operand(1)?, n.optional(2)?);
    let loss = likelihood(n, log_prob, labels, weights)?;
    n.yields(0, loss);
    Ok(())
}

/// `-weight[label] * log_prob[label]`, reduced; the mean is weighted too. Ignored labels weigh nothing.
fn likelihood(n: &mut NodeCx<'_, '_>, log_prob: ValueId, labels: ValueId, weights: Option<ValueId>) -> Made {
    let (reduction, ignore_index) = read(n)?;
    let (scores, shape) = (n.ty(log_prob).clone(), n.ty(labels).shape.clone());
    let fits = scores.rank() >= 2 && [&scores.shape[..1], &scores.shape[2..]].concat() == shape;
    if !fits || !n.ty(labels).dtype.is_int() {
        return Err(format!("labels {} do not fit scores {scores}", n.ty(labels)).into());
    }
    let mut counted = None;
    let mut known = labels;
    if ignore_index != i64::MIN {
        let ignored = n.integer("ignored", ignore_index)?;
        let labels = n.cast_to(labels, DType::I64)?;
        let same = n.temp(OpKind::Equal {}, &[labels, ignored])?;
        let counts = n.temp(OpKind::Not {}, &[same])?;
        let zero = n.number(labels, "zero", 0.0)?;
        known = n.pick(counts, labels, zero)?;
        counted = Some(counts);
    }
    let mut column = shape.clone();
    column.insert(1, 1);
    let at = n.reshaped(known, &column)?;
    let taken = n.temp(OpKind::GatherElements { axis: 1 }, &[log_prob, at])?;
    let taken = n.reshaped(taken, &shape)?;
    let mut loss = n.temp(OpKind::Neg {}, &[taken])?;
    let mut weight = match weights {
        Some(w) if n.ty(w).shape == scores.shape[1..2] => {
            Some(n.temp(OpKind::Gather { axis: 0 }, &[w, known])?)
        }
        Some(w) => return Err(format!("weights {} do not fit scores {scores}", n.ty(w)).into()),
        None => None,
    };
    if let Some(counts) = counted {
        let zero = n.number(loss, "zero", 0.0)?;
        loss = n.pick(counts, loss, zero)?;
        weight = Some(match weight {
            Some(w) => n.pick(counts, w, zero)?,
            None => n.cast_to(counts, scores.dtype)?,
        });
    }
    if let (Some(w), Some(_)) = (weight, weights) {
        loss = n.mul(loss, w)?;
    }
    let axes: Vec<u64> = (0..shape.len() as u64).collect();
    match (reduction, weight) {
        (Reduction::None, _) => Ok(loss),
        (Reduction::Sum, _) => n.sum(loss, &axes, false),
        (Reduction::Mean, None) => n.temp(OpKind::ReduceMean { axes, keepdims: false }, &[loss]),
        (Reduction::Mean, Some(w)) => {
            let (loss, w) = (n.sum(loss, &axes, false)?, n.sum(w, &axes, false)?);
            // With every label ignored the loss is zero, as of the op for unweighted labels.
            let (zero, one) = (n.number(w, "zero", 0.0)?, n.number(w, "one", 1.0)?);
            let none = n.temp(OpKind::Equal {}, &[w, zero])?;
            let w = n.pick(none, one, w)?;
            n.div(loss, w)
        }
    }
}
