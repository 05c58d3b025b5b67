//! Every committed model with reference numbers, at 100 %, 75 % and 50 % of its unplanned peak and at the smallest
//! feasible budget: losses and final state equal the reference within rounding, and equal the unplanned run bit for
//! bit, under poisoned memory and adversarial delays.

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
    /// Folder under `models/`, and the file in it.
    model: &'static str,
    reference: &'static str,
    /// Input names of the samples and of the targets.
    inputs: [&'static str; 2],
    init: Option<&'static str>,
    tolerance: f32,
    /// Parts of the names of states whose true gradient is zero: a bias in front of a batch norm, or of attention
    /// keys. Adam turns the rounding noise of such a gradient into steps of the size of the learning rate, so the
    /// reference says nothing about them; the comparison with the unplanned run still covers them bit for bit.
    noise: &'static [&'static str],
    /// Options that say how to read the model.
    flags: &'static [&'static str],
}

const fn artifact(
    model: &'static str,
    reference: &'static str,
    tolerance: f32,
    noise: &'static [&'static str],
) -> Case {
    Case { model, reference, inputs: ["input", "labels"], init: None, tolerance, noise, flags: &[] }
}

const fn step(
    model: &'static str,
    reference: &'static str,
    init: &'static str,
    tolerance: f32,
    noise: &'static [&'static str],
) -> Case {
    Case { model, reference, inputs: ["x", "y"], init: Some(init), tolerance, noise, flags: &[] }
}

/// A forward model, trained as the artifacts whose reference it is compared with.
const fn forward(model: &'static str, reference: &'static str, flags: &'static [&'static str]) -> Case {
    Case { flags, ..artifact(model, reference, STATE, &[]) }
}

/// Training artifacts with gradient descent instead of their own optimizer.
const fn artifact_sgd(model: &'static str, reference: &'static str, inputs: [&'static str; 2]) -> Case {
    Case {
        inputs,
        flags: &["--optimizer-model", "models/mlp_s_sgd/optimizer_model.onnx"],
        ..artifact(model, reference, STATE, &[])
    }
}

/// Inputs of the artifacts whose loss compares floats.
const TARGET: [&str; 2] = ["input", "target"];
/// Only the last layer is trained.
const HEAD: &[&str] = &["--loss", "cross-entropy", "--optimizer", "sgd", "--trainable", "fc.*"];

/// A model in the standard's own training form, whose batch is open.
const fn standard(model: &'static str, reference: &'static str, tolerance: f32) -> Case {
    let init = Some("standard/init.safetensors");
    Case {
        inputs: ["x", "labels"],
        init,
        flags: &["--dim", "batch=5"],
        ..artifact(model, reference, tolerance, &[])
    }
}

/// How the artifacts with SGD were trained.
const SGD: &[&str] = &["--loss", "cross-entropy", "--optimizer", "sgd"];
/// The same with the batch size that the references have.
const SGD_BATCH_4: &[&str] = &["--loss", "cross-entropy", "--optimizer", "sgd", "--dim", "batch=4"];

fn check(case: &Case) {
    let arrays = npz(&root().join("models").join(case.reference));
    let Case { model, inputs, init, tolerance, noise, flags, .. } = *case;
    hold(&Training {
        model,
        flags,
        init,
        inputs,
        arrays: &arrays,
        losses: "losses",
        finals: "final/",
        tolerance,
        noise,
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
    mlp_s_sgd: artifact("mlp_s_sgd/training_model.onnx", "mlp_s_sgd/reference.npz", STATE, &[]);
    mlp_s_adamw: artifact("mlp_s/training_model.onnx", "mlp_s/reference.npz", ADAM_STATE, &[]);
    mlp_s_weight_decay: artifact("mlp_s_adamw_wd/training_model.onnx", "mlp_s_adamw_wd/reference.npz", ADAM_STATE, &[]);
    mlp_s_mse: Case { inputs: TARGET, ..artifact("mlp_s_mse/training_model.onnx", "mlp_s_mse/reference.npz", ADAM_STATE, &[]) };
    mlp_s_mse_sgd: artifact_sgd("mlp_s_mse/training_model.onnx", "mlp_s_mse/reference_sgd.npz", TARGET);
    mlp_s_l1: Case { inputs: TARGET, ..artifact("mlp_s_l1/training_model.onnx", "mlp_s_l1/reference.npz", ADAM_STATE, &[]) };
    mlp_s_l1_sgd: artifact_sgd("mlp_s_l1/training_model.onnx", "mlp_s_l1/reference_sgd.npz", TARGET);
    mlp_s_bce: Case { inputs: TARGET, ..artifact("mlp_s_bce/training_model.onnx", "mlp_s_bce/reference.npz", ADAM_STATE, &[]) };
    mlp_s_bce_sgd: artifact_sgd("mlp_s_bce/training_model.onnx", "mlp_s_bce/reference_sgd.npz", TARGET);
    cnn_bn_head: artifact("cnn_bn_head/training_model.onnx", "cnn_bn_head/reference.npz", ADAM_STATE, &[]);
    cnn_bn_head_sgd: artifact_sgd("cnn_bn_head/training_model.onnx", "cnn_bn_head/reference_sgd.npz", ["input", "labels"]);
    mlp_clip_adamw: artifact("mlp_clip/training_model.onnx", "mlp_clip/reference.npz", ADAM_STATE, &[]);
    mlp_clip_sgd: artifact("mlp_clip_sgd/training_model.onnx", "mlp_clip_sgd/reference.npz", STATE, &[]);
    cnn_bn_sgd: artifact("cnn_bn_sgd/training_model.onnx", "cnn_bn_sgd/reference.npz", STATE, &[]);
    cnn_bn_adamw: artifact("cnn_bn/training_model.onnx", "cnn_bn/reference.npz", ADAM_STATE, BEFORE_NORM);
    bert_tiny_sgd: artifact("bert_tiny_nodrop_sgd/training_model.onnx", "bert_tiny_nodrop_sgd/reference.npz", STATE, &[]);
    bert_tiny_adamw: artifact("bert_tiny_nodrop/training_model.onnx", "bert_tiny_nodrop/reference.npz", ADAM_STATE, KEYS);
    bert_tiny_dropout: Case { flags: &["--seed", "3"], ..artifact("bert_tiny_dropout/training_model.onnx", "bert_tiny_dropout/reference.npz", STATE, &[]) };
    step_mlp_s_sgd: step("mlp_s_step/sgd.onnx", "mlp_s_step/sgd.npz", "mlp_s_step/init.safetensors", STATE, &[]);
    step_mlp_s_momentum: step("mlp_s_step/momentum.onnx", "mlp_s_step/momentum.npz", "mlp_s_step/init.safetensors", STATE, &[]);
    step_mlp_s_adamw: step("mlp_s_step/adamw.onnx", "mlp_s_step/adamw.npz", "mlp_s_step/init.safetensors", ADAM_STATE, &[]);
    step_cnn_bn_sgd: step("cnn_bn_step/sgd.onnx", "cnn_bn_step/sgd.npz", "cnn_bn_step/init.safetensors", STATE, &[]);
    step_cnn_bn_momentum: step("cnn_bn_step/momentum.onnx", "cnn_bn_step/momentum.npz", "cnn_bn_step/init.safetensors", STATE, &[]);
    step_cnn_bn_adamw: step("cnn_bn_step/adamw.onnx", "cnn_bn_step/adamw.npz", "cnn_bn_step/init.safetensors", ADAM_STATE, BEFORE_NORM_AND_MEANS);
    step_bert_tiny_sgd: step("bert_tiny_nodrop_step/sgd.onnx", "bert_tiny_nodrop_step/sgd.npz", "bert_tiny_nodrop_step/init.safetensors", STATE, &[]);
    step_bert_tiny_momentum: step("bert_tiny_nodrop_step/momentum.onnx", "bert_tiny_nodrop_step/momentum.npz", "bert_tiny_nodrop_step/init.safetensors", STATE, &[]);
    step_bert_tiny_adamw: step("bert_tiny_nodrop_step/adamw.onnx", "bert_tiny_nodrop_step/adamw.npz", "bert_tiny_nodrop_step/init.safetensors", ADAM_STATE, KEYS);
    step_lstm_sgd: step("lstm_step/sgd.onnx", "lstm_step/sgd.npz", "lstm_step/init.safetensors", STATE, &[]);
    step_lstm_momentum: step("lstm_step/momentum.onnx", "lstm_step/momentum.npz", "lstm_step/init.safetensors", STATE, &[]);
    step_lstm_adamw: step("lstm_step/adamw.onnx", "lstm_step/adamw.npz", "lstm_step/init.safetensors", ADAM_STATE, &[]);
    lstm_sgd: artifact("lstm_sgd/training_model.onnx", "lstm_sgd/reference.npz", STATE, &[]);
    forward_mlp_s: forward("gen/mlp_s.forward.onnx", "mlp_s_sgd/reference.npz", SGD);
    forward_mlp_s_mse: forward("gen/mlp_s.forward.onnx", "mlp_s_mse/reference_sgd.npz", &["--loss", "mse", "--optimizer", "sgd"]);
    forward_mlp_s_l1: forward("gen/mlp_s.forward.onnx", "mlp_s_l1/reference_sgd.npz", &["--loss", "l1", "--optimizer", "sgd"]);
    forward_mlp_s_bce: forward("gen/mlp_s.forward.onnx", "mlp_s_bce/reference_sgd.npz", &["--loss", "bce-with-logits", "--optimizer", "sgd"]);
    forward_cnn_bn_head: forward("gen/cnn_bn.forward.onnx", "cnn_bn_head/reference_sgd.npz", HEAD);
    forward_cnn_bn: forward("gen/cnn_bn.forward.onnx", "cnn_bn_sgd/reference.npz", SGD);
    forward_cnn_bn_dynamic: forward("gen/cnn_bn.dynamic.onnx", "cnn_bn_sgd/reference.npz", SGD_BATCH_4);
    forward_bert_tiny: forward("gen/bert_tiny_nodrop.forward.onnx", "bert_tiny_nodrop_sgd/reference.npz", SGD);
    forward_bert_tiny_dynamic: forward("gen/bert_tiny_nodrop.dynamic.onnx", "bert_tiny_nodrop_sgd/reference.npz", SGD_BATCH_4);
    forward_lstm: forward("gen/lstm.forward.onnx", "lstm_sgd/reference.npz", SGD);
    standard_momentum: standard("standard/linear.TrainingInfo.Momentum.onnx", "standard/linear.TrainingInfo.Momentum.npz", STATE);
    standard_adam: standard("standard/linear.TrainingInfo.Adam.onnx", "standard/linear.TrainingInfo.Adam.npz", STATE);
    standard_adagrad: standard("standard/linear.TrainingInfo.Adagrad.onnx", "standard/linear.TrainingInfo.Adagrad.npz", STATE);
    standard_nesterov: standard("standard/linear.regularised.Momentum.onnx", "standard/linear.regularised.Momentum.npz", STATE);
    standard_adam_regularised: standard("standard/linear.regularised.Adam.onnx", "standard/linear.regularised.Adam.npz", STATE);
    standard_adagrad_decay: standard("standard/linear.regularised.Adagrad.onnx", "standard/linear.regularised.Adagrad.npz", STATE);
    resnet_tiny_adamw: artifact("resnet_tiny/training_model.onnx", "resnet_tiny/reference.npz", ADAM_STATE, &[]);
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

/// A plan without an optimizer hands out its gradients, those that ONNX Runtime recorded of the same first step.
#[test]
fn gradients_are_outputs_without_an_optimizer() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("model.plan");
    let model = "models/mlp_s_sgd/training_model.onnx";
    memc_ok(&["compile", model, "--no-optimizer", "-o", &plan.display().to_string()]);
    let arrays = npz(&root().join("models/mlp_s_sgd/reference.npz"));
    let feed = |name: &str, array: &str| (name.to_string(), put(folder.path(), array, &arrays[array]));
    let mut outputs = Vec::new();
    for array in arrays.keys() {
        if let Some(parameter) = array.strip_prefix("grad0/") {
            outputs.push((format!("{parameter}_grad"), folder.path().join(parameter)));
        }
    }
    assert_eq!(outputs.len(), 6);
    let inputs = vec![feed("input", "x"), feed("labels", "y")];
    let options = RunOptions { steps: 1, inputs, outputs: outputs.clone(), ..RunOptions::default() };
    run(&plan, folder.path(), options);
    for (name, path) in outputs {
        let ours = floats(&std::fs::read(path).unwrap());
        let theirs = floats(&arrays[&format!("grad0/{}", name.trim_end_matches("_grad"))]);
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let off = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < STATE && theirs.iter().any(|x| *x != 0.0), "{name}: {off}");
    }
}
