//! Measuring a plan.

use std::sync::{Arc, Mutex};

use memc_runtime::{Profile, ProfileOptions, Stages, profile, profile_gpu};

use crate::mock::{Behaviour, Mock, has_compiler};
use crate::{CLASSIFIER, Folder};

/// Every kernel that the body launches is there once, with a time for each launch of each of four steps.
fn hold(folder: &Folder, measured: &Profile) {
    let plan = folder.plan();
    let launches = plan.plan().body.iter().filter_map(|c| match &c.action {
        memc_plan::Action::Launch { kernel, .. } => Some(*kernel),
        _ => None,
    });
    let launches: Vec<u32> = launches.collect();
    let mut kernels = launches.clone();
    kernels.sort_unstable();
    kernels.dedup();
    assert_eq!(measured.ops.len(), kernels.len());
    assert_eq!(measured.ops.iter().map(|op| op.samples).sum::<u64>(), 4 * launches.len() as u64);
    assert!(measured.ops.iter().all(|op| op.time_ns > 0));
    let m = &measured.machine;
    let rates =
        [m.flops_per_s, m.memory_bytes_per_s, m.d2h_bytes_per_s, m.h2d_bytes_per_s, m.duplex_bytes_per_s];
    assert!(rates.iter().all(|rate| *rate > 0), "{m:?}");
}

#[test]
fn every_kernel_of_a_step_is_measured() {
    let folder = Folder::of(CLASSIFIER);
    let options = ProfileOptions { steps: 4, threads: 1, ..ProfileOptions::default() };
    hold(&folder, &profile(&folder.plan(), &options).expect("the plan runs"));
}

/// Whoever waits is told of every step, and of what is measured of the machine.
#[test]
fn what_is_measured_is_told() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = told.clone();
    let stages = Stages::new(move |what| to.lock().unwrap().push(what.to_owned()));
    let options = ProfileOptions { steps: 2, threads: 1, stages, ..ProfileOptions::default() };
    profile(&Folder::of(CLASSIFIER).plan(), &options).expect("the plan runs");
    let told = told.lock().unwrap();
    let steps = ["a step that warms up", "timing kernels: step 1 of 2", "timing kernels: step 2 of 2"];
    assert!(told.windows(3).any(|three| three == steps), "{told:?}");
    assert!(told.last().is_some_and(|last| last.starts_with("measuring the machine: ")), "{told:?}");
}

/// On a GPU the same kernels are measured, and more of the machine. What is neither free nor the plan's is
/// the reserve.
#[test]
fn every_kernel_of_a_step_is_measured_on_a_gpu() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    let options = ProfileOptions { steps: 4, ..ProfileOptions::default() };
    let open = || Ok(Mock::new(Behaviour::default()));
    let measured = profile_gpu(&open, &folder.plan(), &options).expect("the plan runs");
    hold(&folder, &measured);
    assert_eq!((measured.name.as_str(), measured.processors), ("mock-gpu", 8));
    let m = &measured.machine;
    assert!(
        m.copy_latency_ns > 0 && m.kernel_latency_ns > Some(0) && m.compute_slowdown >= Some(1.0),
        "{m:?}"
    );
    // All but the arena that is not free.
    assert_eq!((m.memory_bytes, m.reserve_bytes), (Some(1 << 28), (1 << 28) - (1 << 24)));
    let json = measured.to_json();
    assert_eq!(json["kernels"], "gpu");
    assert!(json["compute_slowdown_under_copies"].as_f64() >= Some(1.0), "{json}");
}

/// Measuring writes the file that the command names, and a plan that is none is refused as in a run.
#[test]
fn the_command_writes_a_profile() {
    let folder = Folder::of(CLASSIFIER);
    let memrun = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_memrun"));
        command.current_dir(folder.path("")).args(arguments).output().expect("memrun starts")
    };
    let done = memrun(&["profile", "model.plan", "-o", "cpu.json", "--steps", "2", "--threads", "1"]);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let text = std::fs::read_to_string(folder.path("cpu.json")).expect("the profile is there");
    let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(value["format"], "memc-profile/1");
    assert_eq!(value["name"], "cpu-1-threads");
    let object = |output: &std::process::Output| -> serde_json::Value {
        serde_json::from_slice(&output.stdout).expect("one object")
    };
    let object_of = |plan: &str| {
        let steps = ["--steps", "1", "--threads", "1", "--json"];
        memrun(&[&["profile", plan, "-o", "again.json"][..], &steps].concat())
    };
    let done = object(&object_of("model.plan"));
    assert_eq!((&done["profile"], &done["device"]), (&"again.json".into(), &value["name"]));
    assert_eq!(done["kernels"].as_u64(), value["ops"].as_array().map(|ops| ops.len() as u64));
    assert!(done["f32_flops_per_s"].as_u64() > Some(0), "{done}");
    let failed = object_of("cpu.json");
    assert_eq!(failed.status.code(), Some(7));
    let failed = object(&failed);
    let keys: Vec<&String> = failed.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["device", "error", "exit_code"]);
    assert!(failed["exit_code"] == 7 && failed["error"].as_str().is_some_and(|e| e.contains("cpu.json")));
    assert_eq!(memrun(&["profile", "cpu.json", "-o", "x.json"]).status.code(), Some(7));
    assert_eq!(memrun(&["profile", "model.plan"]).status.code(), Some(2));
}

/// A profile is kept where memc looks for that of the device.
#[test]
fn a_profile_is_kept_for_the_machine() {
    let folder = Folder::of(CLASSIFIER);
    let done = std::process::Command::new(env!("CARGO_BIN_EXE_memrun"))
        .current_dir(folder.path(""))
        .env("XDG_DATA_HOME", folder.path("data"))
        .args(["profile", "model.plan", "--keep", "--steps", "1", "--threads", "1"])
        .output()
        .expect("memrun starts");
    let text = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(text.contains("data/memc/profiles/cpu-1-threads.json"), "{text}");
    let kept = std::fs::read_to_string(folder.path("data/memc/profiles/cpu-1-threads.json"));
    assert!(kept.expect("the profile is there").contains("memc-profile/1"));
}
