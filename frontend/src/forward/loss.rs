//! The loss of a forward model, from one of its outputs and labels that are fed.

use memc_ir::attr::{F32, Reduction, Scalar};
use memc_ir::{DType, Feed, OpKind, TensorType, ValueId};

use crate::context::Context;
use crate::error::{Fault, ImportError, some_of};
use crate::recipe::{ClassAxis, Loss, LossKind};
use crate::source::Source;

/// What labels are called.
pub(super) const LABELS: &str = "labels";

/// The output that `loss` is computed from.
pub(super) fn output<'a>(
    source: &'a Source<'a>,
    cx: &Context<'_>,
    loss: &Loss,
) -> Result<&'a str, ImportError> {
    let outputs = || source.model.graph.outputs.iter().map(|o| o.name.as_str());
    let fits = |name: &str| {
        let Ok(ty) = cx.type_of(name) else { return false };
        ty.dtype.is_float()
            && match loss.kind {
                LossKind::CrossEntropy => ty.rank() >= 2,
                LossKind::Output => ty.numel() == 1,
                LossKind::Mse | LossKind::L1 | LossKind::BceWithLogits => true,
            }
    };
    let wanted = match loss.kind {
        LossKind::CrossEntropy => "scores of floats, with an axis of samples and one of classes",
        LossKind::Output => "one float",
        LossKind::Mse | LossKind::L1 | LossKind::BceWithLogits => "a tensor of floats",
    };
    let all: Vec<&str> = outputs().collect();
    let usage = |m: String| Err(ImportError::Usage(format!("--loss {loss}: {m}")));
    // Every float output can be compared with labels of its own shape.
    let other = || {
        let float = outputs().find(|o| cx.type_of(o).is_ok_and(|ty| ty.dtype.is_float()));
        float.map_or(String::new(), |o| {
            let kind = if fits(o) { loss.kind } else { LossKind::Mse };
            format!(
                "; write for instance --loss {}",
                Loss { kind, output: Some(o.to_string()), classes: None }
            )
        })
    };
    let example = |name: &str| Loss { output: Some(name.to_string()), ..loss.clone() };
    let chosen = |name: &'a str| {
        let Ok(ty) = cx.type_of(name) else { return Ok(name) };
        if loss.kind != LossKind::CrossEntropy || loss.classes.is_some() || ty.rank() == 2 {
            return Ok(name);
        }
        let with = |classes| {
            let labels = labels_type(ty, Some(classes));
            format!("--loss {}, with labels {labels}", Loss { classes: Some(classes), ..loss.clone() })
        };
        usage(format!(
            "output `{name}` is {ty}, and its classes may be along its last axis, as of language models, or along its \
             second, as in PyTorch and ONNX; write {}, or {}",
            with(ClassAxis::Last),
            with(ClassAxis::Second)
        ))
    };
    if let Some(name) = &loss.output {
        return match outputs().find(|o| o == name) {
            Some(found) if fits(found) => chosen(found),
            Some(found) => usage(match cx.type_of(found) {
                Ok(ty) => format!("output `{name}` is {ty}, but the loss needs {wanted}{}", other()),
                Err(_) => format!("output `{name}` has no type"),
            }),
            None => usage(format!("the model has no output `{name}`; it has {}{}", some_of(&all), other())),
        };
    }
    let candidates: Vec<&str> = outputs().filter(|o| fits(o)).collect();
    match candidates[..] {
        [one] => chosen(one),
        [] => {
            let typed = |name: &&str| match cx.type_of(name) {
                Ok(ty) => format!("{name} ({ty})"),
                Err(_) => name.to_string(),
            };
            let list: Vec<String> = all.iter().map(typed).collect();
            usage(format!("no output is {wanted}; the model has {}{}", some_of(&list), other()))
        }
        [first, ..] => usage(format!(
            "several outputs fit ({}); choose one, as --loss {}, or combine them in the model and give --loss output",
            some_of(&candidates),
            example(first)
        )),
    }
}

/// The type of the labels of a cross-entropy of scores of type `scores`, whose rank is two or more.
fn labels_type(scores: &TensorType, classes: Option<ClassAxis>) -> TensorType {
    let mut shape = scores.shape.clone();
    match classes {
        Some(ClassAxis::Last) => shape.truncate(shape.len().saturating_sub(1)),
        Some(ClassAxis::Second) | None => drop(shape.drain(1..2)),
    }
    TensorType::new(DType::I64, shape)
}

/// Appends the loss of `output`, a scalar, with its labels for micro-step `micro`.
pub(super) fn emit(cx: &mut Context<'_>, loss: &Loss, output: ValueId, micro: u32) -> Result<ValueId, Fault> {
    let ty = cx.module.values[output].ty.clone();
    let kind = loss.kind;
    if kind == LossKind::Output {
        return Ok(output);
    }
    let labels_ty = match kind {
        LossKind::CrossEntropy => labels_type(&ty, loss.classes),
        _ => ty.clone(),
    };
    let feed = Feed::Data { source: LABELS.into(), micro, range: None };
    let labels = cx.module.add_input(LABELS, labels_ty, feed);
    let mut emit = |kind: OpKind, operands: &[ValueId], name: &str| cx.emit(kind, operands, name, "loss");
    let mean = OpKind::ReduceMean { axes: (0..ty.rank() as u64).collect(), keepdims: false };
    match kind {
        LossKind::CrossEntropy => {
            let kind = OpKind::CrossEntropy { reduction: Reduction::Mean, ignore_index: -100 };
            if let (Some(ClassAxis::Last), [before @ .., classes]) = (loss.classes, &ty.shape[..])
                && before.len() > 1
            {
                let (rows, classes) = (before.iter().product(), *classes);
                let scores = emit(OpKind::Reshape { shape: vec![rows, classes] }, &[output], "loss/scores")?;
                let labels = emit(OpKind::Reshape { shape: vec![rows] }, &[labels], "loss/labels")?;
                return emit(kind, &[scores, labels], "loss");
            }
            emit(kind, &[output, labels], "loss")
        }
        LossKind::Mse => {
            let error = emit(OpKind::Sub {}, &[output, labels], "loss/error")?;
            let squares = emit(OpKind::Mul {}, &[error, error], "loss/squares")?;
            emit(mean, &[squares], "loss")
        }
        LossKind::L1 => {
            let error = emit(OpKind::Sub {}, &[output, labels], "loss/error")?;
            let size = emit(OpKind::Abs {}, &[error], "loss/abs")?;
            emit(mean, &[size], "loss")
        }
        LossKind::BceWithLogits => {
            // max(x, 0) - x * y + log(1 + exp(-|x|)), which overflows nowhere. With |x| as 2 max(x, 0) - x its slope is
            // sigmoid(x) - y at zero too, whatever slope the maximum has there.
            let positive = emit(OpKind::Relu {}, &[output], "loss/positive")?;
            let chosen = emit(OpKind::Mul {}, &[output, labels], "loss/chosen")?;
            let below = emit(OpKind::Sub {}, &[positive, output], "loss/below")?;
            let size = emit(OpKind::Add {}, &[positive, below], "loss/abs")?;
            let negative = emit(OpKind::Neg {}, &[size], "loss/neg")?;
            let power = emit(OpKind::Exp {}, &[negative], "loss/exp")?;
            let one = OpKind::Fill { dtype: ty.dtype, shape: Vec::new(), value: Scalar::Float(F32(1.0)) };
            let one = emit(one, &[], "loss/one")?;
            let sum = emit(OpKind::Add {}, &[power, one], "loss/sum")?;
            let log = emit(OpKind::Log {}, &[sum], "loss/log")?;
            let linear = emit(OpKind::Sub {}, &[positive, chosen], "loss/linear")?;
            let all = emit(OpKind::Add {}, &[linear, log], "loss/elements")?;
            emit(mean, &[all], "loss")
        }
        LossKind::Output => Ok(output),
    }
}
