//! Evaluations: numbers beside ONNX Runtime's, states shared with training, outputs that are kept.

use std::path::{Path, PathBuf};

use memc_runtime::{EvaluationOptions, InputSource, RunOptions, Step, Watch};

use crate::support::{adversarial, floats, json, memc_fails, memc_ok, npz, number, put, root};

/// Notes what a run tells.
#[derive(Default)]
struct Told {
    losses: Vec<f32>,
    evaluations: Vec<(u64, Vec<(String, f32)>)>,
}

impl Watch for Told {
    fn step(&mut self, step: &Step) {
        self.losses.extend(step.loss());
    }
    fn evaluated(&mut self, step: u64, means: &[(String, f32)]) {
        self.evaluations.push((step, means.to_vec()));
    }
    fn note(&mut self, _text: &str) {}
    fn should_stop(&self) -> bool {
        false
    }
}

struct Case {
    folder: tempfile::TempDir,
    model: String,
}

impl Case {
    /// A forward model of `models/gen` with the data of `models/recipes`.
    fn new(model: &str, recipe: &str) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let arrays = npz(&root().join(format!("models/recipes/{recipe}.npz")));
        put(folder.path(), "x.npy", &arrays["x"]);
        put(folder.path(), "y.npy", &arrays["y"]);
        Case { folder, model: format!("models/gen/{model}.forward.onnx") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The model and the flags that training and evaluation share.
    fn source<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&[self.model.as_str(), "--loss", "cross-entropy", "--optimizer", "momentum:lr=0.05"], more].concat()
    }

    fn compile(&self, name: &str, more: &[&str]) -> PathBuf {
        let path = self.path(name);
        memc_ok(&[&["compile"], &self.source(more)[..], &["-o", path.to_str().unwrap()]].concat());
        path
    }

    fn inputs(&self) -> Vec<(String, InputSource)> {
        vec![("input".into(), self.path("x.npy").into()), ("labels".into(), self.path("y.npy").into())]
    }

    fn options(&self) -> RunOptions {
        RunOptions { inputs: self.inputs(), cpu: adversarial(5), ..RunOptions::default() }
    }

    fn run(&self, plan: &Path, options: &RunOptions) -> (Told, memc_runtime::Report) {
        let file = memc_plan::PlanFile::open(plan).unwrap();
        let mut told = Told::default();
        let report = memc_runtime::run(&file, options, &mut told).unwrap_or_else(|e| panic!("{e}"));
        (told, report)
    }

    /// Smallest budget of the training, which the evaluation takes too.
    fn smallest(&self) -> String {
        let text = memc_ok(&[&["estimate"], &self.source(&["--json"])[..]].concat());
        format!("{}B", number(&json(&text), "smallest_feasible_bytes"))
    }
}

/// Mean losses over five batches and the first scores of the last one are those of ONNX Runtime 1.23 with
/// batch normalisation and dropout in inference form.
#[test]
fn evaluations_are_those_of_inference() {
    for (model, recipe, mean, first) in [
        ("cnn_bn", "head", 2.285_767_2, [0.009_836_61, -0.146_875_32, 0.111_194_27]),
        ("mlp_dropout", "dropout", 2.324_805_8, [-0.099_513_28, 0.031_442_69, 0.230_752_45]),
    ] {
        let case = Case::new(model, recipe);
        let plan = case.compile("eval.plan", &["--evaluation"]);
        let scores = case.path("scores.npy");
        let options =
            RunOptions { collect: vec![("output".into(), scores.clone())], verify: true, ..case.options() };
        let (told, report) = case.run(&plan, &options);
        assert_eq!(told.losses.len(), 5, "one pass over the data");
        assert_eq!(report.means[0].0, "loss");
        assert!((report.means[0].1 - mean).abs() < 2e-6, "{model}: {} instead of {mean}", report.means[0].1);
        let scores = floats(&std::fs::read(&scores).unwrap());
        let last = &scores[4 * 40..4 * 40 + 3];
        assert!(last.iter().zip(first).all(|(a, b)| (a - b).abs() < 2e-6), "{model}: {last:?}");
        memc_ok(&["check", plan.to_str().unwrap(), "--source", &case.model]);
    }
}

/// Evaluations change no bit of the training at its smallest budget, and evaluate the states of their step.
#[test]
fn evaluations_share_the_states() {
    let case = Case::new("cnn_bn", "head");
    let budget = case.smallest();
    let plan = case.compile("train.plan", &["--gpu-mem", &budget]);
    let eval = case.compile("eval.plan", &["--evaluation", "--gpu-mem", &budget]);
    let plain = RunOptions { steps: Some(5), save: Some(case.path("plain")), ..case.options() };
    let (without, _) = case.run(&plan, &plain);
    let evaluation = EvaluationOptions { plan: eval.clone(), inputs: case.inputs(), every: Some(2) };
    let with = RunOptions {
        save: Some(case.path("with")),
        save_every: Some(3),
        keep: Some(9),
        evaluation: Some(evaluation),
        verify: true,
        ..plain
    };
    let (told, _) = case.run(&plan, &with);
    assert_eq!(told.losses, without.losses);
    let read = |name: &str| std::fs::read(case.path(name)).unwrap();
    assert_eq!(read("with"), read("plain"));
    assert_eq!(told.evaluations.iter().map(|e| e.0).collect::<Vec<_>>(), [2, 4, 5]);
    assert!(told.evaluations.windows(2).all(|pair| pair[0].1 != pair[1].1), "{:?}", told.evaluations);
    let alone = RunOptions { init: Some(case.path("with")), ..case.options() };
    let (_, report) = case.run(&eval, &alone);
    assert_eq!(Some(&(5, report.means)), told.evaluations.last());
}

/// Statistics that no step changes are states, too: an evaluation has those of the training, and a saved
/// state has them for PyTorch.
#[test]
fn evaluations_share_fixed_statistics() {
    let case = Case { model: "models/gen/cnn_bn.dynamo.onnx".into(), ..Case::new("cnn_bn", "head") };
    let (plan, eval) = (case.compile("train.plan", &[]), case.compile("eval.plan", &["--evaluation"]));
    let evaluation = EvaluationOptions { plan: eval.clone(), inputs: case.inputs(), every: Some(1) };
    let saved = case.path("saved");
    let options = RunOptions {
        steps: Some(1),
        save: Some(saved.clone()),
        evaluation: Some(evaluation),
        ..case.options()
    };
    let (told, _) = case.run(&plan, &options);
    let (_, report) = case.run(&eval, &RunOptions { init: Some(saved), ..case.options() });
    assert_eq!(told.evaluations, [(1, report.means)]);
}

/// A training step keeps the outputs that it is told to keep, of every micro-step.
#[test]
fn outputs_are_kept() {
    let case = Case::new("mlp_dropout", "dropout");
    let kept = case.compile("kept.plan", &["--keep-output", "out*", "--accumulate", "2"]);
    let names = ["output", "output.1"].map(|name| (name.to_string(), case.path(&format!("{name}.npy"))));
    let options = RunOptions { outputs: names.to_vec(), steps: Some(2), ..case.options() };
    case.run(&kept, &options);
    let [first, second] = names.map(|(_, path)| floats(&std::fs::read(path).unwrap()));
    assert!(first.len() == 40 && second.len() == 40 && first != second);
    let why = memc_fails(2, &[&["compile"], &case.source(&["--keep-output", "hidden"])[..]].concat());
    assert!(why.contains("--keep-output hidden matches no output of the model; it has output"), "{why}");
}

/// A plan that is no evaluation of the model, or takes more than the budget, is refused before the first
/// step.
#[test]
fn other_plans_are_no_evaluations() {
    let case = Case::new("cnn_bn", "head");
    let budget = case.smallest();
    let plan = case.compile("train.plan", &["--gpu-mem", &budget]);
    let refused = |eval: PathBuf, says: &str| {
        let evaluation = EvaluationOptions { plan: eval, inputs: case.inputs(), every: None };
        let options = RunOptions { evaluation: Some(evaluation), ..case.options() };
        let file = memc_plan::PlanFile::open(&plan).unwrap();
        let why = memc_runtime::run(&file, &options, &mut Told::default()).unwrap_err();
        assert!(why.exit_code() == 2 && why.to_string().contains(says), "{why}");
    };
    refused(plan.clone(), "the plan trains");
    let other = Case::new("mlp_dropout", "dropout");
    refused(other.compile("other.plan", &["--evaluation"]), "has no state");
    let large = case.compile("large.plan", &["--evaluation", "--gpu-mem", "64M"]);
    refused(
        large,
        &format!("more than the budget of the run, {}", memc_ir::Bytes::parse(&budget, "").unwrap()),
    );
}
