//! Inference: outputs beside ONNX Runtime's, the same bits at every budget, alone and among jobs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memc_plan::PlanFile;
use memc_runtime::{RunOptions, Step, Watch};

use crate::support::{adversarial, floats, json, memc_fails, memc_ok, npz, number, put, root};

const CNN: &str = "models/gen/cnn_bn.forward.onnx";
const MLP: &str = "models/gen/mlp_dropout.forward.onnx";
const LSTM: &str = "models/gen/lstm.forward.onnx";

/// Expects steps without a loss.
struct Silent;

impl Watch for Silent {
    fn step(&mut self, step: &Step) {
        assert!(step.jobs.iter().all(|job| job.loss.is_none()), "{step:?}");
    }
    fn note(&mut self, _text: &str) {}
    fn should_stop(&self) -> bool {
        false
    }
}

fn compile(folder: &Path, args: &[&str]) -> PathBuf {
    let plan = folder.join("model.plan");
    memc_ok(&[&["compile", "-o", plan.to_str().unwrap()], args].concat());
    plan
}

/// The three budgets: unplanned, 60 % of the peak, the smallest.
fn budgets(args: &[&str]) -> [String; 3] {
    let need = json(&memc_ok(&[&["estimate", "--json"], args].concat()));
    let (peak, least) = (number(&need, "peak_bytes"), number(&need, "smallest_feasible_bytes"));
    [peak, (peak * 6 / 10).max(least), least].map(|bytes| format!("{bytes}B"))
}

/// All outputs of a verified run, by name.
fn outputs(folder: &Path, plan: &Path, options: RunOptions) -> BTreeMap<String, Vec<u8>> {
    let file = PlanFile::open(plan).unwrap();
    assert!(file.plan().meta.is_inference());
    let names: Vec<String> = file.plan().outputs.iter().map(|output| output.name.clone()).collect();
    let path = |at: usize| folder.join(format!("{at}.npy"));
    let collect = names.iter().enumerate().map(|(at, name)| (name.clone(), path(at))).collect();
    let options = RunOptions { collect, verify: true, cpu: adversarial(3), ..options };
    let report = memc_runtime::run(&file, &options, &mut Silent).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.means.is_empty());
    names.into_iter().enumerate().map(|(at, name)| (name, std::fs::read(path(at)).unwrap())).collect()
}

fn synthetic() -> RunOptions {
    RunOptions { steps: Some(2), synthetic: true, ..RunOptions::default() }
}

/// The first scores of the last of five batches are those of ONNX Runtime 1.23, with batch normalisation and
/// dropout in inference form, at every budget. No input is labels, and no state changes.
#[test]
fn outputs_are_those_of_onnx_runtime() {
    for (model, recipe, first) in [
        (CNN, "head", [0.009_836_61, -0.146_875_32, 0.111_194_27]),
        (MLP, "dropout", [-0.099_513_28, 0.031_442_69, 0.230_752_45]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let arrays = npz(&root().join(format!("models/recipes/{recipe}.npz")));
        let x = put(folder.path(), "x.npy", &arrays["x"]);
        let mut seen = Vec::new();
        for budget in budgets(&[model, "--inference"]) {
            let plan = compile(folder.path(), &[model, "--inference", "--gpu-mem", &budget]);
            memc_ok(&["check", plan.to_str().unwrap(), "--source", model]);
            let inputs = vec![("input".into(), x.clone().into())];
            let found = outputs(folder.path(), &plan, RunOptions { inputs, ..RunOptions::default() });
            assert_eq!(found.keys().collect::<Vec<_>>(), ["output"]);
            let scores = floats(&found["output"]);
            assert_eq!(scores.len(), 5 * 40, "one pass over the data");
            let last = &scores[4 * 40..4 * 40 + 3];
            assert!(last.iter().zip(first).all(|(a, b)| (a - b).abs() < 2e-6), "{model}: {last:?}");
            seen.push(found);
        }
        assert!(seen.iter().all(|found| *found == seen[0]), "{model}");
    }
}

/// Every forward model has the bits of its evaluation at every budget.
#[test]
fn inference_has_the_bits_of_an_evaluation() {
    for model in [LSTM, "models/gen/bert_tiny_nodrop.forward.onnx", "models/gen/cnn_bn.dynamo.onnx"] {
        let folder = tempfile::tempdir().unwrap();
        let evaluation = compile(folder.path(), &[model, "--evaluation"]);
        let file = PlanFile::open(&evaluation).unwrap();
        let name = file.plan().outputs[0].name.clone();
        let path = folder.path().join("evaluated.npy");
        let collect = vec![(name.clone(), path.clone())];
        let options = RunOptions { collect, cpu: adversarial(1), ..synthetic() };
        memc_runtime::run(&file, &options, &mut Silent).unwrap_or_else(|e| panic!("{e}"));
        let expected = std::fs::read(&path).unwrap();
        for budget in budgets(&[model, "--inference"]) {
            let plan = compile(folder.path(), &[model, "--inference", "--gpu-mem", &budget]);
            assert!(outputs(folder.path(), &plan, synthetic())[&name] == expected, "{model} within {budget}");
        }
    }
}

/// Weights leave the device where the budget is small: they are read from host memory, never written back.
#[test]
fn weights_are_streamed() {
    let args = [MLP, "--inference"];
    let [peak, _, least] = budgets(&args);
    let plan = |budget| json(&memc_ok(&[&["plan", "--json", "--gpu-mem", budget], &args[..]].concat()));
    let (roomy, tight) = (plan(&peak), plan(&least));
    assert_eq!(number(&roomy, "swap_in_bytes"), 0);
    assert!(number(&tight, "swap_in_bytes") > 0);
    assert_eq!(number(&tight, "swap_out_bytes"), 0);
}

/// Jobs compute what they compute alone; a trained job may stand beside one that is served.
#[test]
fn jobs_compute_what_they_compute_alone() {
    let folder = tempfile::tempdir().unwrap();
    let alone = |model| {
        let plan = compile(folder.path(), &[model, "--inference"]);
        outputs(folder.path(), &plan, synthetic())
    };
    let expected = [("a", alone(CNN)), ("b", alone(LSTM))];
    let (a, b) = (format!("a={CNN}"), format!("b={LSTM}"));
    let jobs = ["--job", &a, "--inference", "--job", &b, "--inference"];
    for budget in budgets(&jobs) {
        let plan = compile(folder.path(), &[&jobs[..], &["--gpu-mem", &budget]].concat());
        let (a, b) = (format!("a={CNN}"), format!("b={LSTM}"));
        memc_ok(&["check", plan.to_str().unwrap(), "--source", &a, "--source", &b]);
        let found = outputs(folder.path(), &plan, synthetic());
        for (job, own) in &expected {
            own.iter().for_each(|(name, bytes)| assert!(found[&format!("{job}/{name}")] == *bytes));
        }
    }
    let mixed =
        ["--job", &a, "--loss", "cross-entropy", "--optimizer", "sgd:lr=0.1", "--job", &b, "--inference"];
    let plan = compile(folder.path(), &mixed);
    assert!(!PlanFile::open(&plan).unwrap().plan().meta.is_inference());
}

/// Commands that plan take `--inference`; options of training are taken and change nothing.
#[test]
fn commands_take_inference() {
    let args = [CNN, "--inference"];
    let [_, _, least] = budgets(&args);
    memc_ok(&[&["sweep", "--effort", "0", "--gpu-mem", "230K:260K:15K"], &args[..]].concat());
    memc_ok(&[&["explain", "--gpu-mem", &least], &args[..]].concat());
    let dynamic = ["models/gen/cnn_bn.dynamic.onnx", "--inference", "--dim", "batch", "--gpu-mem", "1M"];
    memc_ok(&[&["max-batch", "--effort", "0"], &dynamic[..]].concat());
    let plain = memc_ok(&[&["plan", "--json", "--gpu-mem", &least], &args[..]].concat());
    let trained = ["--loss", "cross-entropy", "--optimizer", "adamw"];
    let same = memc_ok(&[&["plan", "--json", "--gpu-mem", &least], &args[..], &trained].concat());
    let step = |text: &str| number(&json(text), "step_ns");
    assert_eq!(step(&plain), step(&same));
}

/// Training artifacts have no inference, and a model is not evaluated as well.
#[test]
fn other_models_are_refused() {
    let text = memc_fails(2, &["estimate", "models/cnn_bn/training_model.onnx", "--inference"]);
    assert!(text.contains("--inference is for forward models, but these are training artifacts"), "{text}");
    memc_fails(2, &["estimate", CNN, "--inference", "--evaluation"]);
    let text = memc_fails(2, &["estimate", CNN, "--inference", "--keep-output", "hidden"]);
    assert!(text.contains("--keep-output hidden matches no output of the model; it has output"), "{text}");
}
