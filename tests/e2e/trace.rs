//! Planned and measured timelines of one plan.

use memc_plan::PlanFile;
use memc_runtime::{MeasureOptions, RunOptions, cpu, cpu::Slow};
use serde_json::Value;

use crate::support::{json, memc_fails, memc_ok, number, put, run};

/// Track and name of every slice, sorted.
fn slices(trace: &Value) -> Vec<(u64, String)> {
    let events = trace["traceEvents"].as_array().unwrap();
    let slice = |e: &Value| (number(e, "tid"), e["name"].as_str().unwrap().to_owned());
    let mut slices: Vec<_> = events.iter().filter(|e| e["ph"] == "X").map(slice).collect();
    slices.sort();
    slices
}

fn compile(model: &str, device: &str, budget: &str, plan: &str) {
    let budget: &[&str] = if budget.is_empty() { &[] } else { &["--gpu-mem", budget] };
    let args = ["compile", model, "--device", device, "--effort", "1", "-o", plan];
    memc_ok(&[&args[..], budget].concat());
}

/// The planned timeline takes the time that the plan claims, at every budget and link, since both are of one
/// event model; and one that copies in both directions at once takes longer on a link that they share.
#[test]
fn a_planned_timeline_takes_the_time_that_the_plan_claims() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("model.plan").display().to_string();
    for (model, device, budgets) in [
        ("models/cnn_bn/training_model.onnx", "cpu", ["", "300K", "222K"]),
        ("models/bert_tiny_nodrop/training_model.onnx", "toy", ["", "700K", "600K"]),
        ("models/resnet_tiny/training_model.onnx", "a100-40g", ["", "513M", "514M"]),
        ("models/mlp_s/training_model.onnx", "toy", ["", "100K", "90K"]),
    ] {
        for budget in budgets {
            compile(model, device, budget, &plan);
            let trace = json(&memc_ok(&["trace", &plan]));
            let other = &trace["otherData"];
            assert_eq!(number(other, "step_ns"), number(other, "planned_step_ns"), "{model} at {budget}");
            let events = trace["traceEvents"].as_array().unwrap();
            let live = |e: &Value| number(&e["args"], "live");
            let most = events.iter().filter(|e| e["ph"] == "C").map(live).max().unwrap();
            assert!(most > 0 && most <= number(other, "arena_bytes"), "{model} at {budget}: {most}");
        }
    }
}

/// The measured timeline has the tracks and slices of the planned one.
#[test]
fn a_measured_timeline_opens_beside_the_planned_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.plan");
    let (plan, measured) = (path.display().to_string(), folder.path().join("measured.json"));
    let planned = folder.path().join("planned.json");
    compile("models/cnn_bn/training_model.onnx", "cpu", "300K", &plan);
    memc_ok(&["trace", &plan, "-o", &planned.display().to_string()]);
    let options = RunOptions {
        steps: Some(2),
        synthetic: true,
        trace: Some(measured.clone()),
        ..RunOptions::default()
    };
    run(&path, folder.path(), options);
    let read = |path| json(&std::fs::read_to_string(path).unwrap());
    let (planned, measured) = (read(planned), read(measured));
    assert_eq!(slices(&planned), slices(&measured));
    let file = PlanFile::open(&path).unwrap();
    let timed = file.plan().body.iter().filter(|c| !matches!(c.action.name(), "wait" | "record" | "free"));
    assert_eq!(slices(&planned).len(), timed.count());
    assert_eq!(planned["otherData"]["origin"], "planned for cpu");
}

/// A plan for a measured device needs its profile again; another one gives other times.
#[test]
fn a_planned_timeline_is_of_the_plans_device_or_another() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("model.plan").display().to_string();
    let profile = r#"{"format": "memc-profile/1", "name": "mine", "kernels": "plain", "processors": 8,
        "f32_flops_per_s": 1e9, "memory_bytes_per_s": 1e9, "d2h_bytes_per_s": 1e8, "h2d_bytes_per_s": 2e8,
        "duplex_total_bytes_per_s": 2e8, "kernel_latency_ns": 100, "copy_latency_ns": 1000,
        "reserve_bytes": 0, "compute_slowdown_under_copies": 1.5}"#;
    let device = put(folder.path(), "mine.json", profile.as_bytes()).display().to_string();
    for budget in ["300K", "222K"] {
        compile("models/cnn_bn/training_model.onnx", &device, budget, &plan);
        let said = memc_fails(2, &["trace", &plan]);
        assert!(said.contains("`mine`") && said.contains("--device"), "{said}");
        let trace = json(&memc_ok(&["trace", &plan, "--device", &device]));
        let other = &trace["otherData"];
        assert_eq!(number(other, "step_ns"), number(other, "planned_step_ns"), "{budget}");
        let trace = json(&memc_ok(&["trace", &plan, "--device", "h200"]));
        assert!(number(&trace["otherData"], "step_ns") < number(other, "step_ns"));
        // Kernels that nothing slows are done sooner.
        let alone =
            put(folder.path(), "alone.json", profile.replace("1.5}", "1}").as_bytes()).display().to_string();
        let trace = json(&memc_ok(&["trace", &plan, "--device", &alone]));
        assert!(number(&trace["otherData"], "step_ns") < number(other, "step_ns"), "{budget}");
    }
}

/// A run that is measured leaves a profile of its kernels that memc plans with, and the same states.
#[test]
fn a_run_measures_the_kernels_that_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str| folder.path().join(name).display().to_string();
    let model = "models/cnn_bn/training_model.onnx";
    compile(model, "cpu", "300K", &text("model.plan"));
    let measured = |profile: Option<&str>, slow: Option<Slow>| {
        let profile = profile.map(|name| Some(folder.path().join(name)));
        let options = RunOptions {
            steps: Some(12),
            synthetic: true,
            cpu: cpu::Options { slow, ..cpu::Options::default() },
            measure: profile.map(|profile| MeasureOptions { every: 5, profile }),
            ..RunOptions::default()
        };
        run(&folder.path().join("model.plan"), folder.path(), options).states
    };
    let plain = measured(None, None);
    assert!(measured(Some("own.json"), None) == plain, "measuring changes states");
    assert!(measured(Some("slow.json"), Some("pool=100@2".parse().unwrap())) == plain);
    let read = |name: &str| json(&std::fs::read_to_string(text(name)).unwrap());
    let pool = |profile: &Value| {
        let rows = profile["ops"].as_array().unwrap();
        number(rows.iter().find(|row| row["op"] == "max_pool").unwrap(), "time_ns")
    };
    let (own, slow) = (read("own.json"), read("slow.json"));
    // Steps 2, 7 and 12.
    assert!(own["ops"].as_array().unwrap().iter().all(|row| number(row, "samples").is_multiple_of(3)));
    assert!(pool(&slow) > 20 * pool(&own), "{} beside {}", pool(&slow), pool(&own));
    memc_ok(&[
        "compile",
        model,
        "--device",
        &text("own.json"),
        "--gpu-mem",
        "300K",
        "-o",
        &text("again.plan"),
    ]);
}
