//! Loss of a forward graph, computed from one of its outputs and labels that are fed.

use memc_ir::attr::{F32, Reduction, Scalar};
use memc_ir::recipe::{ClassAxis, Loss, LossKind};
use memc_ir::{
    Code, DType, Def, Feed, Id, Module, OpId, OpKind, Output, OutputRole, ParseError, Phase, TensorType,
    ValueId, some_of,
};

use crate::graph::compact;
use crate::{OptionDef, Options, PassCx, PassDef, PassError};

pub(super) const PASS: PassDef = PassDef {
    name: "add-loss",
    summary: "compute a loss from one output and labels that are fed; other outputs go",
    phases: (Phase::Graph, Phase::Graph),
    options: OPTIONS,
    run,
};

const OPTIONS: &[OptionDef] = &[
    OptionDef { name: "loss", default: "", doc: "kind of loss, see `memc list losses`" },
    OptionDef { name: "axis", default: "", doc: "axis of the classes of a cross-entropy, 1 or -1" },
    OptionDef { name: "output", default: "", doc: "output to compute the loss from, where several fit" },
];

/// Name of the labels among inputs.
const LABELS: &str = "labels";

fn run(m: &mut Module, options: &Options, _: &mut PassCx<'_>) -> Result<(), PassError> {
    let kind = options.get(OPTIONS, "loss")?;
    let text = match options.given("axis") {
        Some(axis) => format!("{kind}:axis={axis}"),
        None => kind.to_string(),
    };
    let mut loss: Loss = text.parse().map_err(|e: ParseError| PassError::Usage(e.to_string()))?;
    if let Some(output) = options.given("output") {
        loss.output = Some(output.to_string());
    }
    add_loss(m, &loss, &[])
}

/// Appends `loss` to the forward graph `m`, whose outputs are losses afterwards, one a micro-step, and behind
/// them those of `kept`, by name, of all micro-steps.
///
/// With several micro-steps, told by the data inputs, outputs come in as many equal groups, and every loss
/// stands where its micro-step ends. A loss that is an output of the model is not kept twice.
///
/// # Errors
///
/// [`PassError::Usage`] where no output, or more than one, fits the loss, or where the graph has an input
/// `labels`, or a kept output the name of the loss.
pub fn add_loss(m: &mut Module, loss: &Loss, kept: &[String]) -> Result<(), PassError> {
    let usage = |text: String| Err(PassError::Usage(text));
    let is_labels = |x: &memc_ir::Input| matches!(&x.feed, Feed::Data { source, .. } if source == LABELS);
    if loss.kind != LossKind::Output && m.inputs.values().any(is_labels) {
        return usage(format!(
            "--loss {loss} feeds `{LABELS}`, but the model already has an input `{LABELS}`; where it \
             computes the loss itself, give --loss output"
        ));
    }
    if m.outputs.iter().any(|o| o.role == OutputRole::Loss) {
        return usage("the module has a loss already".into());
    }
    let steps = 1 + m.inputs.values().filter_map(|x| micro_step(&x.feed)).max().unwrap_or(0);
    let group = m.outputs.len() / steps as usize;
    if group * steps as usize != m.outputs.len() {
        return usage(format!("{} outputs cannot be shared among {steps} micro-steps", m.outputs.len()));
    }
    let chosen = choose(m, &m.outputs[..group], loss)?;
    let base = match loss.kind {
        LossKind::Output => m.outputs[chosen].name.clone(),
        _ => "loss".to_string(),
    };
    let is_kept = |i: usize| i != chosen || loss.kind != LossKind::Output;
    let kept: Vec<usize> = (0..group).filter(|&i| is_kept(i) && kept.contains(&m.outputs[i].name)).collect();
    if let Some(&i) = kept.iter().find(|&&i| m.outputs[i].name == base) {
        let name = &m.outputs[i].name;
        return usage(format!("output `{name}` cannot be kept, since the step's own loss has that name"));
    }
    let values: Vec<ValueId> = (0..steps as usize).map(|k| m.outputs[k * group + chosen].value).collect();
    let losses = match values[..] {
        [output] => vec![emit(m, loss, output, 0)?],
        _ => interleave(m, loss, &values)?,
    };
    let all = (0..steps as usize).flat_map(|k| kept.iter().map(move |i| k * group + i));
    let kept: Vec<Output> = all.map(|i| m.outputs[i].clone()).collect();
    let named = |(k, value): (usize, ValueId)| {
        let name = if k == 0 { base.clone() } else { format!("{base}.{k}") };
        Output { value, name, role: OutputRole::Loss }
    };
    m.outputs = losses.into_iter().enumerate().map(named).chain(kept).collect();
    Ok(())
}

/// Micro-step that consumes an input; `None` for an input that all share.
fn micro_step(feed: &Feed) -> Option<u32> {
    if let Feed::Data { micro, .. } = feed { Some(*micro) } else { None }
}

/// Rebuilds `m`, outputs included, with the loss of each of `outputs`, one a micro-step, behind the values of
/// its micro-step.
///
/// The data inputs of a micro-step open it in the order of values.
fn interleave(m: &mut Module, loss: &Loss, outputs: &[ValueId]) -> Result<Vec<ValueId>, PassError> {
    let mut outputs = outputs.to_vec();
    if !m.order.is_sorted() {
        let former = m.outputs.clone();
        compact(m);
        let renamed = |v: &ValueId| {
            let at = former.iter().position(|o| o.value == *v);
            at.and_then(|i| m.outputs.get(i)).map_or(*v, |o| o.value)
        };
        outputs = outputs.iter().map(renamed).collect();
    }
    let mut live = vec![false; m.ops.len()];
    m.order.iter().for_each(|op| live[op.index()] = true);
    let mut out = Module::new(m.name.clone());
    let mut new: Vec<Option<ValueId>> = vec![None; m.values.len()];
    let mut losses = Vec::new();
    let mut opened = 0;
    for (v, value) in m.values.iter() {
        if let Def::Input(i) = value.def {
            opened = micro_step(&m.inputs[i].feed).unwrap_or(0).max(opened);
        }
        while losses.len() < opened as usize
            && let Some(output) = outputs.get(losses.len()).and_then(|o| new[o.index()])
        {
            let micro = losses.len() as u32;
            losses.push(emit(&mut out, loss, output, micro)?);
        }
        let ty = value.ty.clone();
        new[v.index()] = match value.def {
            Def::Input(i) => Some(out.add_input(&value.name, ty, m.inputs[i].feed.clone())),
            Def::State(s) => {
                let id = out.add_state(&value.name, ty, m.states[s].role, m.states[s].init.clone());
                Some(out.states[id].value)
            }
            Def::Const(c) => Some(out.add_const(&value.name, ty, m.consts[c].data.clone())),
            Def::Op(op, 0) if live[op.index()] => {
                copy_op(m, op, &mut out, &mut new)?;
                continue;
            }
            Def::Op(..) | Def::HostShadow(_) => continue,
        };
    }
    for output in &outputs[losses.len()..] {
        let output = copied(&new, *output)?;
        let micro = losses.len() as u32;
        losses.push(emit(&mut out, loss, output, micro)?);
    }
    for (id, state) in m.states.iter() {
        out.states[id].next = state.next.map(|next| copied(&new, next)).transpose()?;
    }
    for output in &m.outputs {
        out.outputs.push(Output { value: copied(&new, output.value)?, ..output.clone() });
    }
    *m = out;
    Ok(losses)
}

fn copied(new: &[Option<ValueId>], v: ValueId) -> Result<ValueId, PassError> {
    new[v.index()].ok_or_else(|| PassError::Failed("a value is used before it is defined".into()))
}

/// Appends a copy of `op` to `out`.
fn copy_op(m: &Module, op: OpId, out: &mut Module, new: &mut [Option<ValueId>]) -> Result<(), PassError> {
    let op = &m.ops[op];
    let Code::Compute(kind) = &op.code else {
        return Err(PassError::Failed("a copy in the graph phase".into()));
    };
    let operands = op.operands.iter().map(|&v| copied(new, v)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<&str> = op.results.iter().map(|&v| m.values[v].name.as_str()).collect();
    let results = out
        .add_op(kind.clone(), &operands, &names, &op.origin)
        .map_err(|e| PassError::Failed(e.to_string()))?;
    for (&old, result) in op.results.iter().zip(results) {
        new[old.index()] = Some(result);
    }
    Ok(())
}

/// Index of the output that `loss` is computed from.
fn choose(m: &Module, outputs: &[Output], loss: &Loss) -> Result<usize, PassError> {
    let ty = |o: &Output| &m.values[o.value].ty;
    let fits = |o: &Output| {
        ty(o).dtype.is_float()
            && match loss.kind {
                LossKind::CrossEntropy => ty(o).rank() >= 2,
                LossKind::Output => ty(o).numel() == 1,
                LossKind::Mse | LossKind::L1 | LossKind::BceWithLogits => true,
            }
    };
    let wanted = match loss.kind {
        LossKind::CrossEntropy => "scores of floats, with an axis of samples and one of classes",
        LossKind::Output => "one float",
        LossKind::Mse | LossKind::L1 | LossKind::BceWithLogits => "a tensor of floats",
    };
    let usage = |text: String| Err(PassError::Usage(format!("--loss {loss}: {text}")));
    let with_output = |kind, o: &Output, classes| Loss { kind, output: Some(o.name.clone()), classes };
    // Every float output can be compared with labels of its own shape.
    let other = || {
        let float = outputs.iter().find(|o| ty(o).dtype.is_float());
        float.map_or(String::new(), |o| {
            let kind = if fits(o) { loss.kind } else { LossKind::Mse };
            format!("; write for instance --loss {}", with_output(kind, o, None))
        })
    };
    let chosen = |i: usize| match ambiguous_classes(loss, &outputs[i], ty(&outputs[i])) {
        Some(text) => usage(text),
        None => Ok(i),
    };
    let all: Vec<&str> = outputs.iter().map(|o| o.name.as_str()).collect();
    if let Some(name) = &loss.output {
        return match outputs.iter().position(|o| o.name == *name) {
            Some(i) if fits(&outputs[i]) => chosen(i),
            Some(i) => {
                let ty = ty(&outputs[i]);
                usage(format!("output `{name}` is {ty}, but the loss needs {wanted}{}", other()))
            }
            None => usage(format!("the model has no output `{name}`; it has {}{}", some_of(&all), other())),
        };
    }
    let candidates: Vec<usize> = (0..outputs.len()).filter(|&i| fits(&outputs[i])).collect();
    match candidates[..] {
        [one] => chosen(one),
        [] => {
            let list: Vec<String> = outputs.iter().map(|o| format!("{} ({})", o.name, ty(o))).collect();
            usage(format!("no output is {wanted}; the model has {}{}", some_of(&list), other()))
        }
        [first, ..] => usage(format!(
            "several outputs fit ({}); choose one, as --loss {}, or combine them in the model and give \
             --loss output",
            some_of(&candidates.iter().map(|&i| all[i]).collect::<Vec<_>>()),
            with_output(loss.kind, &outputs[first], loss.classes)
        )),
    }
}

/// Question about the axis of the classes, where scores have more than two axes and `loss` does not say.
fn ambiguous_classes(loss: &Loss, output: &Output, ty: &TensorType) -> Option<String> {
    if loss.kind != LossKind::CrossEntropy || loss.classes.is_some() || ty.rank() == 2 {
        return None;
    }
    let with = |classes| {
        let labels = labels_type(ty, Some(classes));
        format!("--loss {}, with labels {labels}", Loss { classes: Some(classes), ..loss.clone() })
    };
    Some(format!(
        "output `{}` is {ty}, and its classes may be along its last axis, as of language models, or along \
         its second, as in PyTorch and ONNX; write {}, or {}",
        output.name,
        with(ClassAxis::Last),
        with(ClassAxis::Second)
    ))
}

/// Type of the labels of a cross-entropy of scores of type `scores`, whose rank is two or more.
fn labels_type(scores: &TensorType, classes: Option<ClassAxis>) -> TensorType {
    let mut shape = scores.shape.clone();
    match classes {
        Some(ClassAxis::Last) => shape.truncate(shape.len().saturating_sub(1)),
        Some(ClassAxis::Second) | None => drop(shape.drain(1..2)),
    }
    TensorType::new(DType::I64, shape)
}

/// Half-open range of the labels of a cross-entropy of scores of type `scores`.
fn label_range(scores: &TensorType, classes: Option<ClassAxis>) -> Option<(i64, i64)> {
    let axis = if classes == Some(ClassAxis::Last) { scores.rank().checked_sub(1)? } else { 1 };
    Some((0, i64::try_from(*scores.shape.get(axis)?).ok()?))
}

/// Appends the loss of `output`, a scalar, with its labels for micro-step `micro`.
fn emit(m: &mut Module, loss: &Loss, output: ValueId, micro: u32) -> Result<ValueId, PassError> {
    let ty = m.values[output].ty.clone();
    let kind = loss.kind;
    if kind == LossKind::Output {
        return Ok(output);
    }
    // As PyTorch's autocast has it: the loss of 16-bit outputs is computed in f32.
    let (mut output, mut ty) = (output, ty);
    if ty.dtype.is_float() && ty.dtype != DType::F32 {
        ty.dtype = DType::F32;
        let cast = m.add_op(OpKind::Cast { to: DType::F32 }, &[output], &["loss/f32"], "loss");
        let cast = cast.map_err(|e| PassError::Failed(e.to_string()))?.first().copied();
        output = cast.ok_or_else(|| PassError::Failed("an op of the loss has no result".into()))?;
    }
    let (labels_ty, range) = match kind {
        LossKind::CrossEntropy => (labels_type(&ty, loss.classes), label_range(&ty, loss.classes)),
        _ => (ty.clone(), None),
    };
    let labels = m.add_input(LABELS, labels_ty, Feed::Data { source: LABELS.into(), micro, range });
    let mut emit = |kind: OpKind, operands: &[ValueId], name: &str| {
        let results = m.add_op(kind, operands, &[name], "loss");
        let first = results.map_err(|e| PassError::Unsupported(format!("`loss`: {e}")))?.first().copied();
        first.ok_or_else(|| PassError::Failed("an op of the loss has no result".into()))
    };
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
            // max(x, 0) - x * y + log(1 + exp(-|x|)), which overflows nowhere. With |x| as 2 max(x, 0) - x
            // its slope is sigmoid(x) - y at zero too, whatever slope the maximum has there.
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
