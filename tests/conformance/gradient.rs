//! Gradients of the node tests' models against finite differences, all in double precision.
//!
//! What an operator is imported as is not differentiated by the standard's tests; here the loss is a fixed
//! weighting of a model's float outputs. Inputs are moved a little from the tests' numbers, which often lie
//! where a function has a kink. A derivative along one random direction per input is compared, at points
//! where it exists.

use memc_ir::autodiff::differentiate;
use memc_ir::{DType, Def, Module, OpKind, TensorType, ValueId};
use memc_reference::{Data, Env, Tensor64, run};

use crate::archive::Test;
use crate::case::{Prepared, prepare};

/// Most elements that the ops of a model may compute together; the reference is slow.
const MAX_ELEMENTS: u64 = 30_000;
/// Half the distance of the points that a finite difference compares.
const STEP: f64 = 1e-6;

/// Derivatives checked of one test.
pub(crate) enum Checked {
    /// Nothing: no float result that depends on a float input, too large, not finite there, or an optimizer's
    /// update.
    Nothing,
    /// The derivatives for some inputs.
    Right,
    /// This is wrong.
    Wrong(String),
}

/// Checks the derivatives of a test's model, when the importer accepts it.
pub(crate) fn check(test: &Test) -> Checked {
    let Ok(prepared) = prepare(test) else { return Checked::Nothing };
    let training = test.operator.strip_prefix("ai.onnx.preview.training::");
    if training.is_some_and(|op| op != "Gradient") {
        return Checked::Nothing;
    }
    let mut m = prepared.module.clone();
    let computed = m.order.iter().flat_map(|&op| m.ops[op].results.clone());
    if computed.map(|v| m.values[v].ty.numel()).sum::<u64>() > MAX_ELEMENTS {
        return Checked::Nothing;
    }
    let Some(loss) = weighted_outputs(&mut m) else { return Checked::Nothing };
    let inputs: Vec<ValueId> =
        m.inputs.values().map(|x| x.value).filter(|&v| m.values[v].ty.dtype.is_float()).collect();
    let start = start(&m, &prepared);
    let mut checked = Checked::Nothing;
    for input in inputs {
        match along_one_direction(&m, loss, input, &start) {
            Ok(true) => checked = Checked::Right,
            Ok(false) => {}
            Err(why) => return Checked::Wrong(format!("input `{}`: {why}", m.values[input].name)),
        }
    }
    checked
}

/// Numbers between -1 and 1 without pattern; number `i` of sequence `salt`.
fn noise(salt: usize, i: usize) -> f64 {
    let x = ((i + 1) as f64 * 12.9898 + (salt + 1) as f64 * 78.233).sin() * 43_758.545_3;
    2.0 * (x - x.floor()) - 1.0
}

/// Appends a loss: every element of every float output that an op computes, weighted differently, summed up.
fn weighted_outputs(m: &mut Module) -> Option<ValueId> {
    let computed = |v: &ValueId| m.values[*v].ty.dtype.is_float() && matches!(m.values[*v].def, Def::Op(..));
    let outputs: Vec<ValueId> = m.outputs.iter().map(|o| o.value).filter(computed).collect();
    let mut loss = None;
    for (salt, output) in outputs.into_iter().enumerate() {
        let ty = TensorType::new(DType::F32, m.values[output].ty.shape.clone());
        let output = m.add_op(OpKind::Cast { to: DType::F32 }, &[output], &[], "").unwrap()[0];
        let weights = (0..ty.numel() as usize).flat_map(|i| (noise(salt, i) as f32).to_le_bytes());
        let weights = m.add_const("weights", ty.clone(), weights.collect::<Vec<u8>>());
        let mut op = |kind, operands: &[ValueId]| m.add_op(kind, operands, &[], "").unwrap()[0];
        let product = op(OpKind::Mul {}, &[output, weights]);
        let axes = (0..ty.rank() as u64).collect();
        let sum = op(OpKind::ReduceSum { axes, keepdims: false }, &[product]);
        loss = Some(loss.map_or(sum, |loss| op(OpKind::Add {}, &[loss, sum])));
    }
    loss
}

/// The test's inputs, floats moved by a hundredth.
fn start(m: &Module, prepared: &Prepared) -> Env {
    let mut start = Env::new();
    for input in m.inputs.values() {
        let name = &m.values[input.value].name;
        let at = prepared.names.iter().position(|n| n == name).expect("an input of the test");
        let given = &prepared.inputs[at];
        let mut t = Tensor64::from_bytes(given.ty.clone(), given.data.bytes()).unwrap();
        if let Data::Float(x) = &mut t.data {
            for (i, x) in x.iter_mut().enumerate() {
                *x += 0.01 * noise(at + 7, i) * (1.0 + x.abs());
            }
        }
        start.insert(input.value, t);
    }
    start
}

/// Whether there was a derivative to compare.
fn along_one_direction(m: &Module, loss: ValueId, input: ValueId, start: &Env) -> Result<bool, String> {
    let mut m = m.clone();
    let gradient = match differentiate(&mut m, loss, &[input]) {
        Ok(gradients) => gradients[0],
        Err(e) if e.reason.contains("derivative is zero") || e.reason.contains("carries no gradient") => None,
        Err(e) => return Err(e.to_string()),
    };
    let at = |offset: f64| -> Result<f64, String> {
        let mut start = start.clone();
        if let Data::Float(x) = &mut start.get_mut(&input).expect("a float input").data {
            for (i, x) in x.iter_mut().enumerate() {
                *x += offset * noise(3, i);
            }
        }
        Ok(run(&m, &start)?[&loss].f()?[0])
    };
    let difference = (at(STEP)? - at(-STEP)?) / (2.0 * STEP);
    let have = match gradient {
        None => 0.0,
        Some(gradient) => {
            let values = run(&m, start)?;
            expect_type(&values[&gradient].ty, &m.values[input].ty)?;
            let finite = start[&input].f()?.iter().map(|x| x.is_finite());
            let slopes = values[&gradient].f()?.iter().enumerate().zip(finite);
            slopes.filter(|&(_, finite)| finite).map(|((i, g), _)| g * noise(3, i)).sum()
        }
    };
    if !difference.is_finite() {
        return Ok(false);
    }
    let allowed = 1e-4 * difference.abs().max(1e-2 * at(0.0)?.abs()).max(1e-2);
    if (have - difference).abs() <= allowed {
        Ok(gradient.is_some())
    } else {
        Err(format!("the derivative is {have}, finite differences give {difference}"))
    }
}

fn expect_type(have: &TensorType, want: &TensorType) -> Result<(), String> {
    if have == want { Ok(()) } else { Err(format!("the gradient is {have}, not {want}")) }
}
