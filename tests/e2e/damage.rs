//! Bad input at the command line: damaged models and plans, unwritable targets. One message, the right exit
//! code, and the file that was there stays.

use memc_plan::{Action, PlanFile};

use crate::support::{json, memc_fails, memc_ok, number, put, root};

const MODEL: &str = "models/mlp_s/training_model.onnx";

#[test]
fn a_model_that_is_cut_off_missing_or_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(root().join(MODEL)).unwrap();
    for (name, contents) in
        [("half.onnx", &bytes[..bytes.len() / 2]), ("text.onnx", b"hello".as_slice()), ("empty.onnx", b"")]
    {
        let path = put(folder.path(), name, contents).display().to_string();
        let said = memc_fails(3, &["compile", &path, "--gpu-mem", "1M"]);
        assert!(said.contains(name) && !said.contains("panicked"), "{said}");
    }
    memc_fails(74, &["compile", "no/such/model.onnx", "--gpu-mem", "1M"]);
}

#[test]
fn a_mir_file_with_violations_shows_them_under_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let text = "module @m graph\n%x = input : f32[4]\n%y = relu %z : f32[4]\n%z = exp %x : f32[4]\n\
                yield output %y as \"y\"\n";
    let path = put(folder.path(), "bad.mir", text.as_bytes()).display().to_string();
    let said = memc_fails(3, &["verify", &path]);
    assert!(said.contains(";~ S3"), "{said}");
}

#[test]
fn a_step_too_large_to_count_is_refused_with_its_largest_op() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::from("module @m graph\n%x = input : f32[16777216,16777216]\n");
    for i in 0..60 {
        let before = if i == 0 { "x".to_string() } else { format!("y{}", i - 1) };
        text += &format!("%y{i} = matmul %{before}, %{before} : f32[16777216,16777216]\n");
    }
    text += "yield output %y59 as \"y\"\n";
    let path = put(folder.path(), "huge.mir", text.as_bytes()).display().to_string();
    for command in ["compile", "estimate"] {
        let said = memc_fails(3, &[command, &path]);
        assert!(said.contains("too large") && said.contains("y"), "{said}");
    }
}

#[test]
fn ir_text_without_initial_values_is_refused_by_compile() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("step.mir").display().to_string();
    memc_ok(&["opt", MODEL, "-o", &file]);
    let said = memc_fails(3, &["compile", &file, "--gpu-mem", "1M"]);
    assert!(said.contains("initial values"), "{said}");
}

#[test]
fn a_damaged_plan_or_another_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("a.plan").display().to_string();
    memc_ok(&["compile", MODEL, "--gpu-mem", "1M", "-o", &plan]);
    let mut bytes = std::fs::read(&plan).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = put(folder.path(), "damaged.plan", &bytes).display().to_string();
    memc_fails(7, &["check", &damaged]);
    memc_fails(7, &["dump", &root().join(MODEL).display().to_string()]);
    memc_fails(74, &["dump", "no/such.plan"]);
}

#[test]
fn a_target_that_cannot_be_written_keeps_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/such/folder/a.plan").display().to_string();
    memc_fails(74, &["compile", MODEL, "--gpu-mem", "1M", "-o", &missing]);
    let plan = folder.path().join("a.plan").display().to_string();
    memc_ok(&["compile", MODEL, "--gpu-mem", "1M", "-o", &plan]);
    let before = std::fs::read(&plan).unwrap();
    memc_fails(4, &["compile", MODEL, "--gpu-mem", "1K", "-o", &plan]);
    assert_eq!(std::fs::read(&plan).unwrap(), before);
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1, "left behind: {names:?}");
}

#[test]
fn a_disk_that_fills_up_keeps_what_was_there() {
    // A file size limit stands in for a full disk: the write fails half way.
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("a.plan");
    std::fs::write(&plan, b"old").unwrap();
    let script = format!(
        "trap '' XFSZ; ulimit -f 4; exec {} compile {MODEL} --gpu-mem 1M -o {}",
        env!("CARGO_BIN_EXE_memc"),
        plan.display()
    );
    let out = std::process::Command::new("bash").current_dir(root()).args(["-c", &script]).output().unwrap();
    assert_eq!(out.status.code(), Some(74), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(std::fs::read(&plan).unwrap(), b"old");
}

#[test]
fn json_of_a_rejected_plan_lists_the_errors() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("a.plan").display().to_string();
    memc_ok(&["compile", MODEL, "--gpu-mem", "1M", "-o", &plan]);
    let out =
        crate::support::memc(&["check", &plan, "--source", "models/mlp_s_sgd/training_model.onnx", "--json"]);
    assert_eq!(out.status.code(), Some(7));
    let report = json(&String::from_utf8(out.stdout).unwrap());
    assert_eq!(report["accepted"], false);
    assert!(!report["errors"].as_array().unwrap().is_empty());
}

/// A plan compiled with another checkpoint than the one beside its model is told from a wrong one, and proved
/// with it.
#[test]
fn check_says_that_initial_values_differ() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("a.plan").display().to_string();
    let model = "models/mlp_s_adamw_wd/training_model.onnx";
    let values = ["--checkpoint", "models/mlp_s_adamw_wd/checkpoint_after"];
    memc_ok(&[&["compile", model, "-o", &plan][..], &values].concat());
    let said = memc_fails(7, &["check", &plan, "--source", model]);
    assert!(said.contains("other initial values: give --checkpoint FILE"), "{said}");
    assert!(said.lines().count() < 10, "{said}");
    assert!(memc_ok(&[&["check", &plan, "--source", model][..], &values].concat()).contains("proved"));
}

/// A step has no wait to spare: without any one of them the plan is refused.
#[test]
fn without_any_one_of_its_waits_a_plan_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.plan");
    let to = path.display().to_string();
    let models = [
        (MODEL, "10000B"),
        ("models/cnn_bn/training_model.onnx", "222K"),
        ("models/resnet_tiny/training_model.onnx", "40%"),
        ("models/bert_tiny_nodrop_sgd/training_model.onnx", "100K"),
        ("models/bert_tiny_nodrop_sgd/training_model.onnx", "40K"),
    ];
    let mut dropped = 0;
    for (model, budget) in models {
        let budget = match budget.strip_suffix('%') {
            None => budget.to_owned(),
            Some(share) => {
                let peak = number(&json(&memc_ok(&["estimate", model, "--json"])), "peak_bytes");
                format!("{}B", peak * share.parse::<u64>().unwrap() / 100)
            }
        };
        memc_ok(&["compile", model, "--gpu-mem", &budget, "--effort", "1", "-o", &to]);
        let file = PlanFile::open(&path).unwrap();
        let (plan, graph) = (file.plan(), memc_ir::parse(&file.plan().meta.source).unwrap());
        let is_wait = |i: &usize| matches!(plan.body[*i].action, Action::Wait { .. });
        for i in (0..plan.body.len()).filter(is_wait) {
            let mut less = plan.clone();
            less.body.remove(i);
            let errors = memc_check::check(&graph, &less).expect_err("it is needed").0;
            assert_eq!(errors[0].code(), "C01", "{model} {budget}, command {i}");
            dropped += 1;
        }
    }
    assert!(dropped > 200, "{dropped}");
}
