//! Decisions while a step runs: the bits of the unplanned step, within the memory that was given.

use std::path::{Path, PathBuf};

use memc_plan::PlanFile;
use memc_runtime::{DynamicOptions, Policy, Report, RunOptions, Silent, cpu};

use crate::support::*;

const CNN: &str = "models/cnn_bn/training_model.onnx";

fn plan_of(folder: &Path, model: &str) -> PathBuf {
    let plan = folder.join("p.plan");
    memc_ok(&["compile", model, "-o", plan.to_str().unwrap(), "--effort", "0"]);
    plan
}

fn options(steps: u64, policy: Policy, gpu_mem: u64) -> RunOptions {
    RunOptions {
        steps: Some(steps),
        synthetic: true,
        dynamic: Some(DynamicOptions { policy, gpu_mem: Some(gpu_mem) }),
        ..RunOptions::default()
    }
}

fn run(plan: &Path, options: &RunOptions) -> Result<Report, memc_runtime::Error> {
    memc_runtime::run(&PlanFile::open(plan).unwrap(), options, &mut Silent)
}

/// Each policy gives the bits of the unplanned run in less than its memory, whatever undefined memory holds.
#[test]
fn policies_have_the_bits_of_the_unplanned_step() {
    for (model, share) in [(CNN, 82), ("models/bert_tiny_dropout/training_model.onnx", 70)] {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan_of(folder.path(), model);
        let peak = number(&json(&memc_ok(&["estimate", model, "--json"])), "peak_bytes");
        for policy in Policy::ALL {
            let cpu = cpu::Options { threads: 2, check_memory: true, ..cpu::Options::default() };
            let options = RunOptions { verify: true, cpu, ..options(6, policy, peak * share / 100) };
            let report = run(&plan, &options).unwrap();
            assert!(report.verified);
            let decided = report.decided.unwrap();
            assert_eq!((decided.policy, decided.arena_bytes), (policy, peak * share / 100));
            let counts = decided.counts;
            assert!(counts.peak_bytes <= decided.arena_bytes);
            let does = match policy {
                Policy::Dtr => counts.again > 0 && counts.dropped > 0 && counts.out_bytes == 0,
                _ => counts.out_bytes > 0 && counts.in_bytes > 0,
            };
            assert!(does, "{model} {policy:?}: {counts:?}");
        }
    }
}

/// States of a run with decisions are those that the plan goes on from.
#[test]
fn states_pass_to_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan_of(folder.path(), CNN);
    let at = |name: &str| Some(folder.path().join(name));
    run(&plan, &RunOptions { save: at("first"), ..options(3, Policy::Delta, 480 << 10) }).unwrap();
    let rest =
        RunOptions { resume: at("first"), save: at("second"), dynamic: None, ..options(4, Policy::Dtr, 0) };
    run(&plan, &rest).unwrap();
    run(&plan, &RunOptions { save: at("all"), dynamic: None, ..options(7, Policy::Dtr, 0) }).unwrap();
    let read = |name: &str| saved(&folder.path().join(name));
    assert!(read("second") == read("all"));
}

/// Options that do not go together are refused with the reason, and a step that does not fit says where.
#[test]
fn what_does_not_fit_or_go_together_is_refused() {
    assert!("best".parse::<Policy>().unwrap_err().contains("delta, delta-lru, delta-greedy, dtr"));
    let folder = tempfile::tempdir().unwrap();
    let plan = plan_of(folder.path(), CNN);
    let refused = |options: RunOptions, code: u8, words: [&str; 2]| {
        let error = run(&plan, &options).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.exit_code(), code, "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let trace = Some(folder.path().join("t.json"));
    let words = ["none of --trace, --measure and --eval", "--dynamic"];
    refused(RunOptions { trace, ..options(2, Policy::Dtr, 1 << 20) }, 2, words);
    refused(options(2, Policy::Dtr, 64 << 10), 5, ["for the states", "larger --gpu-mem"]);
    refused(options(2, Policy::Delta, 250 << 10), 5, ["no room for", "Conv"]);
}

/// Whatever the model and the memory, a run has the right bits or says that the memory is too little.
#[test]
fn a_run_is_right_or_has_too_little_memory() {
    let narrow = "models/gen/mlp_bfloat16_weights.forward.onnx";
    let jobs = [
        "--job",
        "a=models/cnn_bn/training_model.onnx:1",
        "--job",
        "b=models/lstm_sgd/training_model.onnx:2",
    ];
    let models: [&[&str]; 4] = [
        &[narrow, "--loss", "cross-entropy", "--optimizer", "adamw"],
        &["models/gen/mlp_dropout.forward.onnx", "--loss", "cross-entropy", "--accumulate", "2"],
        &["models/resnet_tiny/training_model.onnx"],
        &jobs,
    ];
    for model in models {
        let folder = tempfile::tempdir().unwrap();
        let plan = folder.path().join("p.plan");
        memc_ok(
            &[&["compile", "-o", plan.to_str().unwrap(), "--effort", "0", "--no-mem-rewrite"], model]
                .concat(),
        );
        let peak = PlanFile::open(&plan).unwrap().plan().meta.claims.unplanned_peak_bytes;
        let mut ran = 0;
        for policy in Policy::ALL {
            for share in [200, 140, 110, 90, 75, 60] {
                let options = RunOptions { verify: true, ..options(3, policy, peak * share / 100) };
                match run(&plan, &options) {
                    Ok(report) => ran += usize::from(report.verified),
                    Err(memc_runtime::Error::Memory(_)) => {}
                    Err(error) => panic!("{model:?} {policy:?} {share}: {error}"),
                }
            }
        }
        assert!(ran >= 4, "{model:?}: {ran} runs");
    }
}
