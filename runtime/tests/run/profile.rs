//! Measuring a plan.

use memc_runtime::{ProfileOptions, profile};

use crate::{CLASSIFIER, Folder};

/// Every kernel that the body launches is there once, with a time for each launch of each step that counts.
#[test]
fn every_kernel_of_a_step_is_measured() {
    let folder = Folder::of(CLASSIFIER);
    let plan = folder.plan();
    let options = ProfileOptions { steps: 4, threads: 1, ..ProfileOptions::default() };
    let measured = profile(&plan, &options).expect("the plan runs");
    let launches = plan.plan().body.iter().filter_map(|c| match &c.action {
        memc_plan::Action::Launch { kernel, .. } => Some(*kernel),
        _ => None,
    });
    let launches: Vec<u32> = launches.collect();
    let mut kernels = launches.clone();
    kernels.sort_unstable();
    kernels.dedup();
    assert_eq!(measured.ops.len(), kernels.len());
    assert_eq!(measured.ops.iter().map(|op| op.samples).sum::<usize>(), 4 * launches.len());
    assert!(measured.ops.iter().all(|op| op.time_ns > 0));
    let machine = &measured.machine;
    assert!(machine.flops_per_s > 0 && machine.memory_bytes_per_s > 0 && machine.copy_bytes_per_s > 0);
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
    assert_eq!(memrun(&["profile", "cpu.json", "-o", "x.json"]).status.code(), Some(7));
    assert_eq!(memrun(&["profile", "model.plan"]).status.code(), Some(2));
}
