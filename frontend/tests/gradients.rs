//! Gradients of memc's own against those in the committed training graphs, which ONNX Runtime and PyTorch
//! wrote.
//!
//! Each module gets a second backward pass by `differentiate`; both are evaluated in double precision on the
//! model's initial state and random data, where equal mathematics gives equal numbers up to rounding.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod train;

use std::path::Path;

use memc_frontend::ImportOptions;
use memc_ir::autodiff::differentiate;
use memc_ir::{Def, Feed, Init, Module, OpKind, OutputRole, Role, StateId, TensorType, ValueId};
use memc_reference::{Data, Env, Tensor64, run};
use train::import;

/// Largest difference of an element relative to the largest of its gradient, or to the largest of all
/// gradients for those that are zero but for rounding. Graphs hold constants such as the root of two rounded
/// to `f32`.
const TOLERANCE: f64 = 1e-7;

const RATE: f64 = 0.125;

/// Numbers that look random and are the same every time.
fn noise(ty: &TensorType, range: Option<(i64, i64)>, seed: u64) -> Tensor64 {
    let word = |i: u64| {
        let z = (i + 1 + (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
    };
    let (low, high) = range.unwrap_or((0, 2));
    let data = if ty.dtype.is_float() {
        Data::Float((0..ty.numel()).map(|i| word(i) as f64 / (1u64 << 30) as f64 - 1.0).collect())
    } else {
        Data::Int((0..ty.numel()).map(|i| low + (word(i) % (high - low) as u64) as i64).collect())
    };
    Tensor64 { ty: ty.clone(), data }
}

fn constant(ty: &TensorType, value: f64) -> Tensor64 {
    let n = ty.numel() as usize;
    let data =
        if ty.dtype.is_float() { Data::Float(vec![value; n]) } else { Data::Int(vec![value as i64; n]) };
    Tensor64 { ty: ty.clone(), data }
}

fn start(m: &Module) -> Env {
    let mut env = Env::new();
    for (i, input) in m.inputs.iter() {
        let ty = &m.values[input.value].ty;
        let tensor = match &input.feed {
            Feed::Data { range, .. } => noise(ty, *range, u64::from(i.0)),
            Feed::LearningRate { .. } => constant(ty, RATE),
            Feed::Step { .. } => constant(ty, 1.0),
        };
        env.insert(input.value, tensor);
    }
    for (i, state) in m.states.iter() {
        let ty = &m.values[state.value].ty;
        let tensor = match &state.init {
            Init::Zeros => constant(ty, 0.0),
            Init::Ones => constant(ty, 1.0),
            Init::Data(blob) => match blob.bytes() {
                Some(bytes) => Tensor64::from_bytes(ty.clone(), bytes).unwrap(),
                None => noise(ty, None, 1000 + u64::from(i.0)),
            },
            _ => noise(ty, None, 1000 + u64::from(i.0)),
        };
        env.insert(state.value, tensor);
    }
    env
}

/// The gradient of a state in the graph itself: an operand of its update, or what plain gradient descent at
/// `rate` changed.
fn recorded(m: &Module, state: StateId, all: &Env, rate: f64) -> Vec<f64> {
    let next = m.states[state].next.unwrap();
    if let Def::Op(op, 0) = m.values[next].def
        && let Some(OpKind::Sgd {} | OpKind::AdamW { .. }) = m.ops[op].kind()
    {
        return all[&m.ops[op].operands[1]].f().unwrap().to_vec();
    }
    let (before, after) = (all[&m.states[state].value].f().unwrap(), all[&next].f().unwrap());
    before.iter().zip(after).map(|(b, a)| (b - a) / rate).collect()
}

fn largest(xs: &[f64]) -> f64 {
    xs.iter().fold(0.0, |m, x| m.max(x.abs()))
}

fn check(path: &str, rate: f64) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models").join(path);
    let mut options = ImportOptions::default();
    let init = file.with_file_name("init.safetensors");
    options.checkpoint = init.is_file().then_some(init);
    let mut m = import(&file, &options).unwrap().module;
    let loss = m.outputs.iter().find(|o| o.role == OutputRole::Loss).unwrap().value;
    let params: Vec<StateId> =
        m.states.iter().filter(|(_, s)| s.role == Role::Param).map(|(id, _)| id).collect();
    let wrt: Vec<ValueId> = params.iter().map(|&s| m.states[s].value).collect();
    let grads = differentiate(&mut m, loss, &wrt).unwrap_or_else(|e| panic!("{path}: {e}"));
    memc_ir::verify(&m).unwrap();
    let all = run(&m, &start(&m)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let pairs: Vec<(Vec<f64>, Vec<f64>)> = params
        .iter()
        .zip(grads)
        .map(|(&s, g)| (all[&g.unwrap()].f().unwrap().to_vec(), recorded(&m, s, &all, rate)))
        .collect();
    let overall = pairs.iter().map(|(_, want)| largest(want)).fold(0.0, f64::max);
    assert!(overall > 1e-3, "{path}: the gradients vanish");
    for ((got, want), &v) in pairs.iter().zip(&wrt) {
        let size = largest(want).max(1e-3 * overall);
        let error = largest(&got.iter().zip(want).map(|(g, w)| g - w).collect::<Vec<_>>()) / size;
        assert!(error <= TOLERANCE, "{path}: the gradient of {} differs by {error:.1e}", m.values[v].name);
    }
}

#[test]
fn of_perceptrons() {
    check("mlp_s_sgd/training_model.onnx", RATE);
    check("mlp_s_mse/training_model.onnx", RATE);
    check("mlp_s_step/sgd.onnx", f64::from(0.01f32));
}

#[test]
fn of_convolutional_networks() {
    check("cnn_bn_sgd/training_model.onnx", RATE);
    check("cnn_bn_step/sgd.onnx", f64::from(0.01f32));
}

#[test]
fn of_transformers() {
    check("bert_tiny_nodrop_sgd/training_model.onnx", RATE);
    check("bert_tiny_nodrop_step/sgd.onnx", f64::from(0.01f32));
}

#[test]
fn of_recurrent_networks() {
    check("lstm_sgd/training_model.onnx", RATE);
}

#[test]
fn of_residual_networks() {
    check("resnet_tiny/training_model.onnx", RATE);
}
