//! What memc tells people who gave it something that it can almost use: checkpoints, recipes, sizes, files.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;

use crate::support::{memc, memc_fails, memc_ok, put};

const FORWARD: &str = "models/gen/mlp_s.forward.onnx";

/// What `memc` writes to standard error when it succeeds.
fn said(args: &[&str]) -> String {
    let out = memc(args);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "memc {}\n{text}", args.join(" "));
    text
}

/// A checkpoint that has none of the model's names is refused with names of both; one with some says how many, and
/// names what a misspelt one is near to.
#[test]
fn a_checkpoint_says_what_it_sets() {
    let folder = tempfile::tempdir().unwrap();
    let zeros = [0u8; 40];
    let checkpoint = |names: &[&str]| {
        let view = || TensorView::new(Dtype::F32, vec![10], &zeros).unwrap();
        let bytes = safetensors::serialize(names.iter().map(|n| (*n, view())), None).unwrap();
        put(folder.path(), "c.safetensors", &bytes).display().to_string()
    };
    let estimate = ["estimate", FORWARD, "--loss", "cross-entropy", "--optimizer", "sgd", "--checkpoint"];
    let path = checkpoint(&["encoder.bias"]);
    let text = memc_fails(3, &[&estimate[..], &[&path]].concat());
    assert!(text.contains("no tensor of the model: it has encoder.bias, the model has fc1.bias"), "{text}");
    let path = checkpoint(&["fc3.bias", "module.fc1.weight"]);
    let text = said(&[&estimate[..], &[&path]].concat());
    assert!(text.contains("c.safetensors, 1 of 6 states set"), "{text}");
    assert!(text.contains("has 1 tensor that the model does not"), "{text}");
    assert!(text.contains("`module.fc1.weight` is near `fc1.weight`"), "{text}");
}

/// A step that changes no parameter says so, unless that was asked for.
#[test]
fn a_step_without_an_optimizer_says_that_nothing_is_trained() {
    let estimate = ["estimate", FORWARD, "--loss", "cross-entropy"];
    assert!(said(&estimate).contains("there is no optimizer"));
    for asked in [&["--optimizer", "none"][..], &["--optimizer", "sgd"], &["--no-optimizer"]] {
        assert!(!said(&[&estimate[..], asked].concat()).contains("there is no optimizer"));
    }
}

/// What may be given to `--loss` and `--optimizer` is listed with its defaults, and so is every rule.
#[test]
fn lists_show_what_the_command_line_takes() {
    assert!(memc_ok(&["list", "optimizers"]).contains("beta1=0.9, beta2=0.999"));
    assert!(memc_ok(&["list", "losses"]).contains("axis=-1"));
    let planners: Value = serde_json::from_str(&memc_ok(&["list", "planners", "--json"])).expect("JSON");
    assert_eq!(planners[0]["planner"], "memc");
    assert!(memc_ok(&["list", "rewrites"]).contains("memory-rewrite"));
    for what in ["losses", "optimizers", "ops", "passes", "rewrites", "rules"] {
        let text = memc_ok(&["list", what]);
        let longest = text.lines().max_by_key(|l| l.chars().count()).unwrap();
        assert!(longest.chars().count() <= 120, "{longest}");
    }
}

/// A pipeline that rewrites nothing says so instead of nothing.
#[test]
fn opt_explains_that_nothing_was_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.mir").display().to_string();
    let model = "models/mlp_s_step/adamw.onnx";
    assert!(said(&["opt", model, "--explain", "-o", &file]).contains("no rule rewrote anything"));
    assert!(said(&["opt", model, "--explain", "--pass", "all", "-o", &file]).contains("recover: 6 adamw"));
}

/// A file that is no model and a folder that is not there are called that.
#[test]
fn files_that_cannot_be_used_are_named() {
    assert!(memc_fails(3, &["estimate", "README.md"]).contains("README.md: not an ONNX model: it is text"));
    let text =
        memc_fails(74, &["compile", FORWARD, "--loss", "mse", "--no-optimizer", "-o", "/nonexistent/x"]);
    assert!(text.contains("no folder `/nonexistent`") && !text.contains(".tmp"), "{text}");
}
