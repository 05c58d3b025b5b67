//! Running one node test: import, passes, kernels.

use std::collections::BTreeMap;

use memc_frontend::{Binding, ImportError, import_bound, interface, read_tensor};
use memc_ir::{Def, Id, Module, TensorType};
use memc_kernels::interp::{Tensor, eval};
use memc_passes::{DeviceProfile, GRAPH_PIPELINE, PassCx, Pipeline};

use crate::archive::Test;
use crate::compare::{difference, tolerance};

/// Outcome of a test.
pub(crate) enum Outcome {
    /// Its numbers are right, with these inputs as constants.
    Pass(Vec<String>),
    /// The importer refuses it, for this reason.
    Unsupported(String),
    /// Its numbers are wrong, or something failed that should not.
    Wrong(String),
}

/// The rules by which inputs become constants, tried in order until the importer accepts the model: a
/// compiler of static shapes must know the values of axes, shapes, paddings and modes.
const RULES: &[fn(&TensorType) -> bool] = &[
    |_| false,
    |ty| ty.rank() == 0 || (ty.rank() == 1 && !ty.dtype.is_float()),
    |ty| ty.rank() <= 1 || !ty.dtype.is_float(),
];

/// A test's model, imported, and its tensors.
pub(crate) struct Prepared {
    pub(crate) module: Module,
    /// Names of the model's inputs.
    pub(crate) names: Vec<String>,
    /// Tensors fed to them, in that order.
    pub(crate) inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// The inputs that became constants.
    constants: Vec<String>,
}

/// Runs a test.
pub(crate) fn run(test: &Test) -> Outcome {
    let prepared = match prepare(test) {
        Ok(prepared) => prepared,
        Err(outcome) => return outcome,
    };
    match check(test, &prepared) {
        Ok(()) => Outcome::Pass(prepared.constants),
        Err(why) => Outcome::Wrong(why),
    }
}

/// Imports a test's model, by the first of the rules that the importer accepts.
pub(crate) fn prepare(test: &Test) -> Result<Prepared, Outcome> {
    if !test.left_out.is_empty() {
        return Err(Outcome::Unsupported(test.left_out.clone()));
    }
    let tensors = |kind| test.tensors(kind).into_iter().map(tensor).collect::<Result<Vec<_>, _>>();
    let inputs = tensors("input").map_err(|e| refused(test, &e))?;
    let outputs = tensors("output").map_err(|e| refused(test, &e))?;
    let (names, _) = interface(test.model()).map_err(|e| refused(test, &e))?;
    let mut last = Outcome::Wrong("it was not run".into());
    for rule in RULES {
        let mut constants = Vec::new();
        let mut bindings = BTreeMap::new();
        for (name, t) in names.iter().zip(&inputs) {
            let binding = if rule(&t.ty) {
                constants.push(name.clone());
                Binding::Constant(t.ty.clone(), t.data.bytes().into())
            } else {
                Binding::Fed(t.ty.clone())
            };
            bindings.insert(name.clone(), binding);
        }
        match import_bound(test.model(), &bindings) {
            Ok(import) => return Ok(Prepared { module: import.module, names, inputs, outputs, constants }),
            Err(e @ ImportError::Unsupported(_)) => last = refused(test, &e),
            Err(e) => return Err(Outcome::Wrong(e.to_string())),
        }
    }
    Err(last)
}

fn tensor(bytes: &[u8]) -> Result<Tensor, ImportError> {
    let (ty, data) = read_tensor(bytes)?;
    let mut t = Tensor::zeros(ty).map_err(|e| ImportError::BadModel(e.to_string()))?;
    t.data.bytes_mut().copy_from_slice(&data);
    Ok(t)
}

/// The refusal in few words: without the node's name and what would be supported instead.
fn refused(test: &Test, error: &ImportError) -> Outcome {
    let ImportError::Unsupported(text) = error else { return Outcome::Wrong(error.to_string()) };
    let (_, rest) = text.split_once("element type `").unwrap_or_default();
    if let Some((name, _)) = rest.split_once('`') {
        return Outcome::Unsupported(format!("element type {name}"));
    }
    if text.contains("of the model cannot be imported:") {
        let short = |line: &str| {
            let (op, why) = line.trim().split_once(", opset ")?;
            let why = why.split_once(": ")?.1.split(" (nodes ").next()?;
            let op = op.strip_prefix("ai.onnx::").unwrap_or(op);
            Some(if why.starts_with("the operator is not supported") {
                format!("operator {op}")
            } else {
                format!("operator {op}: {why}")
            })
        };
        let ops: Vec<String> = text.lines().skip(1).filter_map(short).collect();
        return Outcome::Unsupported(ops.join(", "));
    }
    let short = text.split_once(": ").map_or(text.as_str(), |(_, rest)| rest);
    assert!(!short.contains(['\n', '\t']), "{}: the reason is not one line: {text}", test.name);
    Outcome::Unsupported(short.to_string())
}

/// Compares what the module computes, as imported and after the graph passes, with the expected outputs.
fn check(test: &Test, prepared: &Prepared) -> Result<(), String> {
    let Prepared { names, inputs, outputs, .. } = prepared;
    let fed: BTreeMap<&str, &Tensor> = names.iter().map(String::as_str).zip(inputs).collect();
    let relative = tolerance(&test.name);
    let mut module = prepared.module.clone();
    compare(&module, &fed, outputs, relative).map_err(|e| format!("as imported, {e}"))?;
    let profile = DeviceProfile::named("cpu").unwrap();
    let mut cx = PassCx::new(profile);
    Pipeline::parse(GRAPH_PIPELINE).unwrap().run(&mut module, &mut cx).map_err(|e| e.to_string())?;
    compare(&module, &fed, outputs, relative).map_err(|e| format!("after the graph passes, {e}"))
}

fn compare(
    module: &Module,
    fed: &BTreeMap<&str, &Tensor>,
    want: &[Tensor],
    relative: f32,
) -> Result<(), String> {
    let have = evaluate(module, fed)?;
    if have.len() != want.len() {
        return Err(format!("there are {} outputs, not {}", have.len(), want.len()));
    }
    for (output, (have, want)) in module.outputs.iter().zip(have.iter().zip(want)) {
        difference(have, want, relative).map_or(Ok(()), |d| Err(format!("output `{}` {d}", output.name)))?;
    }
    Ok(())
}

/// The outputs of `module` when its inputs are `fed`.
fn evaluate(module: &Module, fed: &BTreeMap<&str, &Tensor>) -> Result<Vec<Tensor>, String> {
    let mut now: Vec<Option<Tensor>> = vec![None; module.values.len()];
    for (id, value) in module.values.iter() {
        now[id.index()] = match value.def {
            Def::Input(_) => Some((*fed.get(value.name.as_str()).ok_or("an input is not fed")?).clone()),
            Def::Const(c) => {
                let mut t = Tensor::zeros(value.ty.clone()).map_err(|e| e.to_string())?;
                t.data.bytes_mut().copy_from_slice(&module.consts[c].data);
                Some(t)
            }
            Def::State(_) | Def::HostShadow(_) | Def::Op(..) => None,
        };
    }
    for &id in &module.order {
        let op = &module.ops[id];
        let operands: Option<Vec<&Tensor>> = op.operands.iter().map(|v| now[v.index()].as_ref()).collect();
        let (kind, operands) = (op.kind().ok_or("not an op")?, operands.ok_or("an operand is missing")?);
        let results = eval(kind, &operands).map_err(|e| e.to_string())?;
        for (v, t) in op.results.iter().zip(results) {
            now[v.index()] = Some(t);
        }
    }
    let take = |o: &memc_ir::Output| now[o.value.index()].clone().ok_or("an output is not computed".into());
    module.outputs.iter().map(take).collect()
}
