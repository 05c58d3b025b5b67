//! `memc opt`: passes by name, by headers, up to a pass, and the IR between them.

use crate::support::{memc, memc_fails, memc_ok};

const MODEL: &str = "models/mlp_s/training_model.onnx";

#[test]
fn opt_prints_ir_that_verifies_and_runs_named_passes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.mir").display().to_string();
    memc_ok(&["opt", MODEL, "--pass", "cse,dce,bufferize,alloc{algo=first-fit},events", "-o", &file]);
    assert!(memc_ok(&["verify", &file]).contains("mem phase"));
    let said = memc_fails(2, &["opt", MODEL, "--pass", "no-such-pass"]);
    assert!(said.contains("known:") && said.contains("bufferize"), "{said}");
}

#[test]
fn opt_explains_which_rules_rewrote_which_values() {
    let args = ["opt", "models/mlp_s_step/adamw.onnx", "--pass", memc_passes::GRAPH_PIPELINE, "--explain"];
    let out = memc(&args);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert!(said.contains("raise: 6 adamw at m.fc1.weight_new, m.fc1.bias_new, "), "{said}");
    assert!(said.contains("simplify: ") && said.contains("raise: 1 cross-entropy at loss"), "{said}");
}

const STEP: &str = "module @m graph

%x = input : f32[4]
%y = neg %x : f32[4]
%z = neg %x : f32[4]
%unread = exp %x : f32[4]
%s = add %y, %z : f32[4]
yield output %s as \"s\"
";

/// A folder with a file `step.mir` of this text, and the path of that file.
fn step(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.mir");
    std::fs::write(&path, text).unwrap();
    (folder, path.display().to_string())
}

#[test]
fn opt_stops_after_a_pass_and_prints_the_ir_after_passes() {
    let (_folder, file) = step(STEP);
    let passes = ["opt", &file, "--pass", "cse,dce,canonicalise"];
    let out = memc(&[&passes[..], &["--stop-after", "dce", "--print-after", "all"]].concat());
    let said = String::from_utf8_lossy(&out.stderr);
    let (cse, dce) = said.strip_prefix("; after cse\n").unwrap().split_once("; after dce\n").unwrap();
    assert!(cse.contains("%unread") && !cse.contains("%z") && !dce.contains("%unread"), "{said}");
    assert_eq!(String::from_utf8_lossy(&out.stdout), dce);

    let out = memc(&[&passes[..], &["--print-after", "dce"]].concat());
    assert_eq!(String::from_utf8_lossy(&out.stderr), format!("; after dce\n{dce}"));

    for option in ["--stop-after", "--print-after"] {
        let said = memc_fails(2, &[&passes[..], &[option, "fold"]].concat());
        assert!(
            said.contains(&format!("{option} fold")) && said.contains("cse, dce, canonicalise"),
            "{said}"
        );
    }
    assert!(memc_fails(2, &["opt", &file, "--stop-after", "fold"]).contains("give --pass"));
}

/// As the reproducer of a failed pass is run.
#[test]
fn opt_takes_passes_and_device_from_headers_unless_they_are_given() {
    let (_folder, file) = step(&format!("; fold fails\n;! pass dce\n;! device toy\n{STEP}"));
    let by_header = memc_ok(&["opt", &file]);
    assert!(!by_header.contains("%unread") && by_header.contains("%z"), "{by_header}");
    assert!(memc_ok(&["opt", &file, "--pass", "cse"]).contains("%unread"));

    let (_folder, file) = step(&format!(";! pass dce\n;! device nowhere\n{STEP}"));
    assert!(memc_fails(2, &["opt", &file]).contains("unknown device `nowhere`"));
    assert_eq!(memc_ok(&["opt", &file, "--device", "cpu"]), by_header);
}

#[test]
fn events_without_offsets_are_a_usage_error_with_a_hint() {
    let (_folder, file) = step(STEP);
    let said = memc_fails(2, &["opt", &file, "--pass", "bufferize,events"]);
    assert!(said.contains("has no offset") && said.contains("hint: run `alloc` first"), "{said}");
}
