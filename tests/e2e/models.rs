//! Every committed model with reference numbers, at 100 %, 75 % and 50 % of its unplanned peak and at the
//! smallest feasible budget: losses and final state equal the reference within rounding, and equal the
//! unplanned run bit for bit, under poisoned memory and adversarial delays.

use std::path::Path;

use memc_runtime::RunOptions;

use crate::hold::{Training, hold};
use crate::support::{floats, memc_ok, npz, put, root, run};

/// Largest difference of a state from the reference.
const STATE: f32 = 1e-6;
/// The same where Adam divides by the root of tiny second moments, which magnifies rounding.
const ADAM_STATE: f32 = 1e-5;

/// A model and how its reference was made.
struct Case {
    /// Files below `models/`.
    model: String,
    reference: String,
    /// Input names of the samples and of the targets.
    inputs: [&'static str; 2],
    init: Option<String>,
    tolerance: f32,
    /// Parts of the names of states whose true gradient is zero: a bias in front of a batch norm, or of
    /// attention keys. Adam turns the rounding noise of such a gradient into steps of the size of the
    /// learning rate, so the reference says nothing about them; the comparison with the unplanned run still
    /// covers them bit for bit.
    noise: &'static [&'static str],
    /// Options that say how to read the model.
    flags: &'static [&'static str],
}

/// Training artifacts in a folder, with their own optimizer.
fn artifact(folder: &str, tolerance: f32) -> Case {
    Case {
        model: format!("{folder}/training_model.onnx"),
        reference: format!("{folder}/reference.npz"),
        inputs: ["input", "labels"],
        init: None,
        tolerance,
        noise: &[],
        flags: &[],
    }
}

/// Training artifacts with gradient descent instead of their own optimizer.
fn artifact_sgd(folder: &str, inputs: [&'static str; 2]) -> Case {
    let flags = &["--optimizer-model", "models/mlp_s_sgd/optimizer_model.onnx"];
    Case { inputs, flags, reference: format!("{folder}/reference_sgd.npz"), ..artifact(folder, STATE) }
}

/// A one-file step of an optimizer.
fn step(folder: &str, optimizer: &str, tolerance: f32) -> Case {
    Case {
        model: format!("{folder}/{optimizer}.onnx"),
        reference: format!("{folder}/{optimizer}.npz"),
        inputs: ["x", "y"],
        init: Some(format!("{folder}/init.safetensors")),
        ..artifact(folder, tolerance)
    }
}

/// A forward model, trained as the artifacts whose reference it is compared with.
fn forward(model: &str, reference: &str, flags: &'static [&'static str]) -> Case {
    let (model, reference) = (format!("gen/{model}.onnx"), format!("{reference}.npz"));
    Case { model, reference, flags, ..artifact("", STATE) }
}

/// A model in the standard's own training form, whose batch is open.
fn standard(name: &str, tolerance: f32) -> Case {
    let (inputs, flags) = (["x", "labels"], &["--dim", "batch=5"]);
    Case { inputs, flags, ..step("standard", &format!("linear.{name}"), tolerance) }
}

/// Inputs of the artifacts whose loss compares floats.
const TARGET: [&str; 2] = ["input", "target"];
/// Options that train only the last layer.
const HEAD: &[&str] = &["--loss", "cross-entropy", "--optimizer", "sgd", "--trainable", "fc.*"];
/// Training of the artifacts with SGD.
const SGD: &[&str] = &["--loss", "cross-entropy", "--optimizer", "sgd"];
/// The same with the batch size that the references have.
const SGD_BATCH_4: &[&str] = &["--loss", "cross-entropy", "--optimizer", "sgd", "--dim", "batch=4"];
const SGD_MSE: &[&str] = &["--loss", "mse", "--optimizer", "sgd"];
const SGD_L1: &[&str] = &["--loss", "l1", "--optimizer", "sgd"];
const SGD_BCE: &[&str] = &["--loss", "bce-with-logits", "--optimizer", "sgd"];

fn check(case: &Case) {
    hold(&Training {
        model: &case.model,
        flags: case.flags,
        init: case.init.as_deref(),
        inputs: case.inputs,
        arrays: &npz(&root().join("models").join(&case.reference)),
        losses: "losses",
        finals: "final/",
        tolerance: case.tolerance,
        noise: case.noise,
    });
}

macro_rules! cases {
    ($($name:ident: $case:expr;)*) => {$(
        #[test]
        fn $name() {
            check(&$case);
        }
    )*};
}

/// Biases in front of a batch norm.
const BEFORE_NORM: &[&str] = &["c1.bias", "c2.bias"];
/// The same, and the running means of the norms behind them, which include the bias.
const BEFORE_NORM_AND_MEANS: &[&str] = &["c1.bias", "c2.bias", "running_mean"];
/// Biases of attention keys.
const KEYS: &[&str] = &["k.bias"];

cases! {
    mlp_s_sgd: artifact("mlp_s_sgd", STATE);
    mlp_s_adamw: artifact("mlp_s", ADAM_STATE);
    mlp_s_weight_decay: artifact("mlp_s_adamw_wd", ADAM_STATE);
    mlp_s_mse: Case { inputs: TARGET, ..artifact("mlp_s_mse", ADAM_STATE) };
    mlp_s_mse_sgd: artifact_sgd("mlp_s_mse", TARGET);
    mlp_s_l1: Case { inputs: TARGET, ..artifact("mlp_s_l1", ADAM_STATE) };
    mlp_s_l1_sgd: artifact_sgd("mlp_s_l1", TARGET);
    mlp_s_bce: Case { inputs: TARGET, ..artifact("mlp_s_bce", ADAM_STATE) };
    mlp_s_bce_sgd: artifact_sgd("mlp_s_bce", TARGET);
    cnn_bn_head: artifact("cnn_bn_head", ADAM_STATE);
    cnn_bn_head_sgd: artifact_sgd("cnn_bn_head", ["input", "labels"]);
    mlp_clip_adamw: artifact("mlp_clip", ADAM_STATE);
    mlp_clip_sgd: artifact("mlp_clip_sgd", STATE);
    cnn_bn_sgd: artifact("cnn_bn_sgd", STATE);
    cnn_bn_adamw: Case { noise: BEFORE_NORM, ..artifact("cnn_bn", ADAM_STATE) };
    bert_tiny_sgd: artifact("bert_tiny_nodrop_sgd", STATE);
    bert_tiny_adamw: Case { noise: KEYS, ..artifact("bert_tiny_nodrop", ADAM_STATE) };
    bert_tiny_dropout: Case { flags: &["--seed", "3"], ..artifact("bert_tiny_dropout", STATE) };
    step_mlp_s_sgd: step("mlp_s_step", "sgd", STATE);
    step_mlp_s_momentum: step("mlp_s_step", "momentum", STATE);
    step_mlp_s_adamw: step("mlp_s_step", "adamw", ADAM_STATE);
    step_cnn_bn_sgd: step("cnn_bn_step", "sgd", STATE);
    step_cnn_bn_momentum: step("cnn_bn_step", "momentum", STATE);
    step_cnn_bn_adamw: Case { noise: BEFORE_NORM_AND_MEANS, ..step("cnn_bn_step", "adamw", ADAM_STATE) };
    step_bert_tiny_sgd: step("bert_tiny_nodrop_step", "sgd", STATE);
    step_bert_tiny_momentum: step("bert_tiny_nodrop_step", "momentum", STATE);
    step_bert_tiny_adamw: Case { noise: KEYS, ..step("bert_tiny_nodrop_step", "adamw", ADAM_STATE) };
    step_lstm_sgd: step("lstm_step", "sgd", STATE);
    step_lstm_momentum: step("lstm_step", "momentum", STATE);
    step_lstm_adamw: step("lstm_step", "adamw", ADAM_STATE);
    lstm_sgd: artifact("lstm_sgd", STATE);
    forward_mlp_s: forward("mlp_s.forward", "mlp_s_sgd/reference", SGD);
    forward_mlp_s_mse: forward("mlp_s.forward", "mlp_s_mse/reference_sgd", SGD_MSE);
    forward_mlp_s_l1: forward("mlp_s.forward", "mlp_s_l1/reference_sgd", SGD_L1);
    forward_mlp_s_bce: forward("mlp_s.forward", "mlp_s_bce/reference_sgd", SGD_BCE);
    forward_cnn_bn_head: forward("cnn_bn.forward", "cnn_bn_head/reference_sgd", HEAD);
    forward_cnn_bn: forward("cnn_bn.forward", "cnn_bn_sgd/reference", SGD);
    forward_cnn_bn_dynamic: forward("cnn_bn.dynamic", "cnn_bn_sgd/reference", SGD_BATCH_4);
    forward_bert_tiny: forward("bert_tiny_nodrop.forward", "bert_tiny_nodrop_sgd/reference", SGD);
    forward_bert_tiny_dynamic:
        forward("bert_tiny_nodrop.dynamic", "bert_tiny_nodrop_sgd/reference", SGD_BATCH_4);
    forward_lstm: forward("lstm.forward", "lstm_sgd/reference", SGD);
    standard_momentum: standard("TrainingInfo.Momentum", STATE);
    standard_adam: standard("TrainingInfo.Adam", STATE);
    standard_adagrad: standard("TrainingInfo.Adagrad", STATE);
    standard_nesterov: standard("regularised.Momentum", STATE);
    standard_adam_regularised: standard("regularised.Adam", STATE);
    standard_adagrad_decay: standard("regularised.Adagrad", STATE);
    resnet_tiny_adamw: artifact("resnet_tiny", ADAM_STATE);
}

/// The optimizer and the checkpoint beside a training model are used, and the user is told so.
#[test]
fn an_artifact_finds_its_parts_beside_it_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("model.plan").display().to_string();
    let out = crate::support::memc(&[
        "compile",
        "models/cnn_bn/training_model.onnx",
        "--gpu-mem",
        "1M",
        "-o",
        &plan,
    ]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && said.contains("optimizer_model.onnx") && said.contains("checkpoint"),
        "{said}"
    );
    assert!(Path::new(&plan).exists());
}

/// A plan without an optimizer hands out its gradients, those that ONNX Runtime recorded of the same first
/// step.
#[test]
fn gradients_are_outputs_without_an_optimizer() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("model.plan");
    let model = "models/mlp_s_sgd/training_model.onnx";
    memc_ok(&["compile", model, "--no-optimizer", "-o", &plan.display().to_string()]);
    let arrays = npz(&root().join("models/mlp_s_sgd/reference.npz"));
    let feed = |name: &str, array: &str| (name.to_string(), put(folder.path(), array, &arrays[array]).into());
    let mut outputs = Vec::new();
    for array in arrays.keys() {
        if let Some(parameter) = array.strip_prefix("grad0/") {
            outputs.push((format!("{parameter}_grad"), folder.path().join(parameter)));
        }
    }
    assert_eq!(outputs.len(), 6);
    let inputs = vec![feed("input", "x"), feed("labels", "y")];
    let options = RunOptions {
        steps: Some(1),
        synthetic: true,
        inputs,
        outputs: outputs.clone(),
        ..RunOptions::default()
    };
    run(&plan, folder.path(), options);
    for (name, path) in outputs {
        let ours = floats(&std::fs::read(path).unwrap());
        let theirs = floats(&arrays[&format!("grad0/{}", name.trim_end_matches("_grad"))]);
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let off = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < STATE && theirs.iter().any(|x| *x != 0.0), "{name}: {off}");
    }
}
