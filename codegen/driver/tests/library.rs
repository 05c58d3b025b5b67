//! The library as a caller has it: no process of its own, no files but the model, stopped from outside.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memc::{
    CONV_WORKSPACE, Error, Event, Instance, Model, Options, Poses, Search, Silent, Size, Source, Target,
    Watch, compile,
};
use memc_frontend::ImportOptions;
use memc_plan::Plan;

#[path = "../examples/memory.rs"]
mod memory;

/// `cargo run --release --package memc --example memory > codegen/driver/memory.svg` draws it anew.
#[test]
fn the_picture_of_the_readme_is_what_the_library_draws() {
    let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("memory.svg");
    let drawn = memory::picture().unwrap_or_else(|e| panic!("{e}"));
    assert!(std::fs::read_to_string(picture).unwrap() == drawn, "the picture differs");
}

fn model(name: &str) -> Model {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let source = Source { path: models.join(name), ..Source::default() };
    Model::read(&source.into(), &Target::default(), &Silent).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_model_compiles_within_a_budget_and_its_plan_is_written() {
    let model = model("cnn_bn/training_model.onnx");
    let search = Search { effort: 0, ..Search::default() };
    let budget = Some(Size::Bytes(300 << 10));
    let options = Options { budget, search, ..Options::default() };
    let compiled = compile(&model, &options).unwrap_or_else(|e| panic!("{e}"));
    assert!(compiled.peak_bytes() <= 300 << 10 && compiled.peak_bytes() < compiled.unplanned_peak_bytes());
    let (bound, _) = compiled.bound().unwrap();
    assert!(bound <= compiled.plan.meta.claims.step_ns);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.plan");
    compiled.write(&file, &|| false).unwrap();
    assert_eq!(memc::open(&file).unwrap().plan(), &compiled.plan);
    assert!(memc::check(&compiled.plan, None).unwrap().is_ok());
}

/// Convolutions of a plan for a GPU have more workspace where there is room, all launches of one alike, and
/// the arena stays within the budget.
#[test]
fn convolutions_have_more_workspace_where_there_is_room() {
    let source = Source {
        path: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/zoo/resnet18.onnx"),
        import: ImportOptions {
            dims: vec![("batch".into(), 64)],
            loss: "cross-entropy".parse().ok(),
            ..ImportOptions::default()
        },
    };
    let target = Target { device: "h100".into(), ..Target::default() };
    let model = Model::read(&source.into(), &target, &Silent).unwrap_or_else(|e| panic!("{e}"));
    let search = Search { effort: 0, ..Search::default() };
    let options = Options { search, budget: Some(Size::PeakPercent(80.0)), ..Options::default() };
    let plan = |conv_workspace| {
        let compiled = compile(&model, &Options { conv_workspace, ..options.clone() }).unwrap();
        compiled.plan
    };
    let largest = |plan: &Plan| plan.kernels.iter().map(|kernel| kernel.workspace_bytes).max().unwrap();
    let (ample, least) = (plan(*CONV_WORKSPACE.end()), plan(*CONV_WORKSPACE.start()));
    assert!(largest(&least) < 33 << 20, "{}", largest(&least));
    assert!(largest(&ample) > 64 << 20, "{}", largest(&ample));
    assert!(ample.meta.dev_bytes + ample.meta.reserve_bytes <= ample.meta.budget_bytes);
    let [ample_ns, least_ns] = [&ample, &least].map(|plan| plan.meta.claims.step_ns);
    assert!(ample_ns <= least_ns + least_ns / 10, "{ample_ns} {least_ns}");

    // Where it is planned for, less memory has room for it, too, and where nothing has, plans do without.
    let within = |budget, conv_workspace| {
        compile(&model, &Options { budget: Some(budget), conv_workspace, ..options.clone() })
    };
    let half = within(Size::PeakPercent(70.0), *CONV_WORKSPACE.end()).unwrap_or_else(|e| panic!("{e}"));
    assert!(largest(&half.plan) == largest(&ample), "{}", largest(&half.plan));
    let (tight, start) = (Size::Bytes(0), *CONV_WORKSPACE.start());
    let Err(Error::Infeasible(none)) = within(tight, start) else { panic!("no budget is nothing") };
    let smallest = Size::Bytes(none.report.unwrap().smallest_bytes);
    let bare = within(smallest, *CONV_WORKSPACE.end()).unwrap_or_else(|e| panic!("{e}"));
    assert!(bare.plan.meta.claims.step_ns > half.plan.meta.claims.step_ns);
}

#[test]
fn an_infeasible_budget_is_an_error_with_its_figures() {
    let model = model("cnn_bn/training_model.onnx");
    let options = Options { budget: Some(Size::Bytes(4096)), ..Options::default() };
    let Err(error) = compile(&model, &options) else { panic!("4096 bytes are not enough") };
    assert_eq!(error.exit_code(), 4);
    let Error::Infeasible(no_fit) = error else { panic!("{error}") };
    let report = no_fit.report.unwrap();
    assert_eq!(report.budget_bytes, 4096);
    assert!(report.smallest_bytes >= report.working_set_bytes && !report.tensors.is_empty());
    let options = Options { budget: Some(Size::Bytes(report.smallest_bytes)), ..options };
    assert!(compile(&model, &options).is_ok(), "the budget that the report names has a plan");
}

/// A step that takes no memory does not fit a budget below the device's reserve.
#[test]
fn the_reserve_alone_may_be_too_much() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.mir");
    std::fs::write(&path, "module @m graph\n").unwrap();
    let target = Target { device: "h100".into(), ..Target::default() };
    let model = Model::read(&Source { path, ..Source::default() }.into(), &target, &Silent).unwrap();
    let reserve = model.profile.reserve_bytes;
    let compiled =
        |budget| compile(&model, &Options { budget: Some(Size::Bytes(budget)), ..Options::default() });
    let Err(error) = compiled(reserve - 1) else { panic!("the reserve does not fit") };
    assert_eq!(error.exit_code(), 4, "{error}");
    assert!(compiled(reserve).is_ok());
}

/// A controller that asks again and again, and stops searches at will.
#[derive(Default)]
struct Controller {
    stop: AtomicBool,
    held: AtomicUsize,
    events: Mutex<Vec<String>>,
}

impl Watch for Controller {
    fn event(&self, event: Event<'_>) {
        if let Event::Found(_) = event {
            assert!(self.held.load(Ordering::Relaxed) > 0, "a plan that was found is held");
        }
        self.events.lock().unwrap().push(format!("{event:?}"));
    }

    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn hold(&self, held: bool) {
        if held {
            self.held.fetch_add(1, Ordering::Relaxed)
        } else {
            self.held.fetch_sub(1, Ordering::Relaxed)
        };
    }
}

#[test]
fn one_instance_is_planned_again_at_other_budgets_and_stopped() {
    let instance = Instance::of_model(&model("cnn_bn/training_model.onnx"), Poses::default()).unwrap();
    let search = Search { effort: 0, ..Search::default() };
    let controller = Controller::default();
    let budgets = [instance.smallest(search.allow).unwrap(), 300 << 10, 400 << 10, 1 << 20];
    for budget in budgets {
        let outcome = instance.plan(budget, &search, &controller).unwrap();
        let (_, plan) = outcome.require(&instance, search.allow).unwrap();
        assert!(plan.evaluation.dev_bytes <= budget && !outcome.stopped);
    }
    let swept = memc::sweep(&instance, &budgets, &search, &controller).unwrap();
    let steps: Vec<Option<u64>> = swept.points.iter().map(|p| p.report.step_ns).collect();
    assert!(steps.is_sorted_by(|a, b| a.is_some() && a >= b), "more memory, no slower: {steps:?}");
    controller.stop.store(true, Ordering::Relaxed);
    let stopped = instance.plan(budgets[1], &search, &controller);
    match stopped {
        Ok(outcome) => assert!(outcome.interrupted && outcome.stopped && outcome.plan.is_ok()),
        Err(e) => assert!(matches!(e, Error::Interrupted), "{e}"),
    }
    assert_eq!(controller.held.load(Ordering::Relaxed), 0);
    assert!(controller.events.lock().unwrap().iter().any(|e| e.starts_with("Found")));
}
