//! `memc max-batch`, what an interrupt leaves of a search, and how states on both sides are told.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::planning::{LINK, chain};
use crate::support::{json, memc, memc_fails, memc_ok, number};

/// A model with a symbolic batch.
const OPEN: &str = "models/standard/linear.TrainingInfo.Adam.onnx";

#[test]
fn max_batch_is_the_largest_that_fits_unplanned_and_planned() {
    let args = ["--gpu-mem", "96K", "--device", "toy", "--effort", "0", "--json"];
    let out = json(&memc_ok(&[&["max-batch", OPEN, "--dim", "batch"], &args[..]].concat()));
    let (unplanned, planned) = (number(&out, "largest_unplanned"), number(&out, "largest_planned"));
    assert!(0 < unplanned && unplanned <= planned, "{out}");
    let at = |size: u64| format!("batch={size}");
    let peak = |size: u64| {
        let out = memc_ok(&["estimate", OPEN, "--device", "toy", "--json", "--dim", &at(size)]);
        number(&json(&out), "peak_bytes")
    };
    assert!(peak(unplanned) <= 96 << 10 && peak(unplanned + 1) > 96 << 10, "{out}");
    let plan = |size: u64| {
        let out = memc(&[&["plan", OPEN, "--dim", &at(size)], &args[..]].concat());
        out.status.code()
    };
    assert_eq!((plan(planned), plan(planned + 1)), (Some(0), Some(4)), "{out}");
    for probe in out["probes"].as_array().unwrap().iter().filter(|p| p["planned"] == true) {
        assert_eq!(probe["fits"], number(probe, "size") <= planned, "{probe}");
    }
    let text = memc_ok(&[&["max-batch", OPEN, "--dim", "batch"], &args[..6]].concat());
    assert!(text.contains(&format!("{unplanned} unplanned, {planned} by memc")), "{text}");
}

#[test]
fn max_batch_keeps_to_a_slowdown_and_to_a_largest_size() {
    let largest = |flags: &[&str]| {
        let args =
            ["max-batch", OPEN, "--dim", "batch", "--gpu-mem", "96K", "--device", "toy", "--effort", "0"];
        let out = json(&memc_ok(&[&args[..], &["--json"], flags].concat()));
        for probe in out["probes"].as_array().unwrap().iter().filter(|p| p["fits"] == true) {
            let most = out["max_slowdown"].as_f64().unwrap_or(f64::INFINITY);
            assert!(number(probe, "step_ns") as f64 <= most * number(probe, "ideal_ns") as f64, "{probe}");
        }
        number(&out, "largest_planned")
    };
    let free = largest(&[]);
    assert!(largest(&["--max-slowdown", "1.01"]) <= free);
    assert_eq!(largest(&["--up-to", "3"]), 3);
    let said =
        memc_fails(2, &["max-batch", OPEN, "--dim", "batch", "--gpu-mem", "1M", "--max-slowdown", "0.5"]);
    assert!(said.contains("at least 1"), "{said}");
}

#[test]
fn max_batch_says_what_is_wrong_with_the_model_the_dimension_or_the_budget() {
    let said = memc_fails(
        3,
        &["max-batch", "models/cnn_bn/training_model.onnx", "--dim", "batch", "--gpu-mem", "1M"],
    );
    assert!(said.contains("every shape has a size") && said.contains("symbolic batch"), "{said}");
    let said = memc_fails(2, &["max-batch", OPEN, "--dim", "bach", "--gpu-mem", "1M"]);
    assert!(said.contains("no symbolic dimension `bach`; it has batch"), "{said}");
    for dims in [&[][..], &["--dim", "batch=4"], &["--dim", "batch", "--dim", "seq"]] {
        let said = memc_fails(2, &[&["max-batch", OPEN, "--gpu-mem", "1M"], dims].concat());
        assert!(said.contains("as --dim batch"), "{said}");
    }
    let said = memc_fails(4, &["max-batch", OPEN, "--dim", "batch", "--gpu-mem", "128B", "--device", "toy"]);
    assert!(said.contains("no plan fits 128 B") && said.contains("working set peaks at"), "{said}");
    // Elsewhere a dimension has a size.
    let said = memc_fails(2, &["plan", OPEN, "--dim", "batch", "--gpu-mem", "1M"]);
    assert!(said.contains("write NAME=N"), "{said}");
}

/// Starts a search that goes on for long, interrupts it after a while, and returns its exit code and what it wrote.
fn interrupted(args: &[&str], after: Duration) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memc"));
    command.current_dir(crate::support::root()).args(args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(after);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let out = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

/// Before a plan is found an interrupt ends the command with 130; from then on the plan is kept.
#[test]
fn an_interrupt_keeps_the_best_plan_found_so_far() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 200, LINK / 8);
    let saved = folder.path().join("best.txt").display().to_string();
    let plan = ["plan", &problem, "--gpu-mem", "40M", "--effort", "5", "--json", "--decisions", &saved];
    let mut after = Duration::from_millis(250);
    // Patience until a plan is there, however slow the machine.
    let (out, said) = loop {
        let (code, out, said) = interrupted(&plan, after);
        match code {
            // Without a code the handler was not set yet.
            Some(130) | None if after < Duration::from_secs(60) => {
                assert!(!std::path::Path::new(&saved).exists(), "{said}");
                after *= 2;
            }
            code => {
                assert_eq!(code, Some(0), "{said}");
                break (out, said);
            }
        }
    };
    assert!(said.contains("interrupted: going on with the best plan found so far"), "{said}");
    let out = json(&out);
    assert_eq!((out["stopped"].as_bool(), out["feasible"].as_bool()), (Some(true), Some(true)), "{out}");
    let again = json(&memc_ok(&["plan", &problem, "--gpu-mem", "40M", "--json", "--apply", &saved]));
    assert_eq!(again["step_ns"], out["step_ns"]);
}

/// A state that begins a step on both sides is called that by `explain`, and `dump` says where its mirror lies.
#[test]
fn states_on_both_sides_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (saved, plan) = (file("a.dec"), file("a.plan"));
    let (model, budget) = ("models/mlp_s/training_model.onnx", ["--gpu-mem", "10000B"]);
    memc_ok(&[&["compile", model, "--decisions", &saved, "-o", &plan], &budget[..]].concat());
    let decisions = std::fs::read_to_string(&saved).unwrap();
    let name = |l: &str| l.strip_prefix("home %")?.split_once(" both").map(|(name, _)| name.to_string());
    let both: Vec<String> = decisions.lines().filter_map(name).collect();
    assert!(!both.is_empty(), "{decisions}");

    let explain = [&["explain", model, "--apply", &saved], &budget[..]].concat();
    let told = json(&memc_ok(&[&explain[..], &["--json"]].concat()));
    let tensors = told["tensors"].as_array().unwrap();
    let sides = |home: &str| tensors.iter().filter(|t| t["home"] == home).count();
    let of_both = tensors.iter().filter(|t| both.iter().any(|name| t["name"] == name.as_str()));
    assert!(of_both.clone().all(|t| t["home"] == "both"), "{told}");
    assert_eq!((of_both.count(), sides("both")), (both.len(), both.len()), "{told}");
    let count = |home: &str| decisions.lines().filter(|l| l.starts_with("home ") && l.contains(home)).count();
    assert_eq!((sides("dev"), sides("host")), (count(" dev"), count(" host")), "{told}");
    let text = memc_ok(&explain);
    assert!(text.contains(" swap* ") && text.contains("* begins a step on both sides"), "{text}");

    let states = json(&memc_ok(&["dump", &plan, "--json"]))["states"].as_array().unwrap().clone();
    let mirrored: Vec<&str> = states
        .iter()
        .filter(|s| s["mirror"]["space"] == "host")
        .map(|s| s["name"].as_str().unwrap())
        .collect();
    assert_eq!(mirrored, both);
    let lines = memc_ok(&["dump", &plan]);
    assert_eq!(
        lines.lines().filter(|l| l.starts_with("state ") && l.contains(" ; mirror host+")).count(),
        both.len()
    );
}
