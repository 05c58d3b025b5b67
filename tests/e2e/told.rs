//! Messages for input that is almost usable: checkpoints, recipes, sizes, files.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;

use crate::support::{json, memc, memc_fails, memc_ok, number, put};

const FORWARD: &str = "models/gen/mlp_s.forward.onnx";

/// Stderr of a `memc` that succeeds.
fn said(args: &[&str]) -> String {
    let out = memc(args);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "memc {}\n{text}", args.join(" "));
    text
}

/// A checkpoint that has none of the model's names is refused with names of both. One that lacks parameters
/// is refused too, with what a misspelt name is near to, unless they may be missing.
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
    let text = memc_fails(3, &[&estimate[..], &[&path]].concat());
    assert!(text.contains("does not have 5 parameters of the model: fc1.bias, fc1.weight"), "{text}");
    assert!(text.contains("`module.fc1.weight` is near `fc1.weight`"), "{text}");
    let text = said(&[&estimate[..], &[&path, "--allow-missing", "*"]].concat());
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

/// `memc list` has the values of `--loss` and `--optimizer` with their defaults, and every rule.
#[test]
fn lists_show_what_the_command_line_takes() {
    assert!(memc_ok(&["list", "optimizers"]).contains("beta1=0.9, beta2=0.999"));
    assert!(memc_ok(&["list", "losses"]).contains("axis=-1"));
    let planners: Value = serde_json::from_str(&memc_ok(&["list", "planners", "--json"])).expect("JSON");
    assert_eq!(planners[0]["planner"], "memc");
    assert!(memc_ok(&["list", "rewrites"]).contains("memory-rewrite"));
    // Piped, every row is one line.
    for what in ["losses", "optimizers", "planners", "passes", "rewrites", "rules"] {
        let rows = json(&memc_ok(&["list", what, "--json"])).as_array().unwrap().len();
        assert_eq!(memc_ok(&["list", what]).lines().count(), rows + 1, "{what}");
    }
}

/// A pipeline that rewrites nothing says so instead of nothing.
#[test]
fn opt_explains_that_nothing_was_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.mir").display().to_string();
    let model = "models/mlp_s_step/adamw.onnx";
    assert!(said(&["opt", model, "--explain", "-o", &file]).contains("no rule rewrote anything"));
    assert!(said(&["opt", model, "--explain", "--pass", "all", "-o", &file]).contains("raise: 6 adamw"));
}

/// `--json` of `verify`, `diff` and `opt` has what their text says; so have failures.
#[test]
fn verify_diff_and_opt_print_objects_for_scripts() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let model = "models/mlp_s_step/adamw.onnx";
    let valid = json(&memc_ok(&["verify", model, "--json"]));
    assert_eq!((&valid["valid"], &valid["phase"]), (&Value::from(true), &Value::from("graph")));
    let text = format!("{} ops, {} values", number(&valid, "ops"), number(&valid, "values"));
    assert!(memc_ok(&["verify", model]).contains(&text), "{text}");
    let broken = put(folder.path(), "broken.mir", b"module {").display().to_string();
    let out = memc(&["verify", &broken, "--json"]);
    assert_eq!(json(&String::from_utf8(out.stdout).unwrap())["exit_code"], 3);

    for budget in ["250K", "1M"] {
        let model = "models/cnn_bn/training_model.onnx";
        memc_ok(&["compile", model, "--gpu-mem", budget, "--effort", "0", "-o", &file(budget)]);
    }
    let diff = |other: &str| memc(&["diff", &file("250K"), &file(other), "--json"]);
    let (same, other) = (diff("250K"), diff("1M"));
    assert_eq!((same.status.code(), other.status.code()), (Some(0), Some(1)));
    let [same, other] = [same, other].map(|out| json(&String::from_utf8(out.stdout).unwrap()));
    assert_eq!((&same["equal"], &other["equal"]), (&Value::from(true), &Value::from(false)));
    assert!(same["differences"].as_array().unwrap().is_empty(), "{same}");
    let lines = other["differences"].as_array().unwrap();
    assert!(lines.iter().any(|l| l.as_str().unwrap().contains("budget")), "{other}");
    let handling = other["handling"].as_array().unwrap();
    assert!(handling.iter().any(|l| l.as_str().unwrap().starts_with("~ swapped -> kept: ")), "{other}");
    assert!(same["handling"].as_array().unwrap().is_empty(), "{same}");
    let short = memc(&["diff", &file("250K"), &file("1M")]).stdout;
    let all = memc(&["diff", &file("250K"), &file("1M"), "--all"]).stdout;
    let [short, all] = [short, all].map(|out| String::from_utf8(out).unwrap().lines().count());
    assert!(short < 20 && all > 2 * short, "{short} lines, with --all {all}");

    let opt = ["opt", model, "--pass", "all"];
    let out = json(&memc_ok(&[&opt[..], &["--json"]].concat()));
    assert_eq!(out["ir"].as_str().unwrap(), memc_ok(&opt));
    let rules = out["rewrites"].as_array().unwrap();
    let adamw = rules.iter().find(|r| r["rule"] == "adamw").unwrap();
    assert_eq!((number(adamw, "count"), adamw["pass"].as_str()), (6, Some("raise")));
    assert!(!out["stats"].as_array().unwrap().is_empty(), "{out}");
    let out = json(&memc_ok(&[&opt[..], &["--json", "-o", &file("a.mir")]].concat()));
    assert!(out["ir"].is_null() && std::fs::read_to_string(file("a.mir")).unwrap() == memc_ok(&opt));
}

/// A file that is no model and a folder that is not there are called that.
#[test]
fn files_that_cannot_be_used_are_named() {
    assert!(memc_fails(3, &["estimate", "README.md"]).contains("README.md: not an ONNX model: it is text"));
}

#[test]
fn a_folder_in_place_of_a_model_is_told_what_is_in_it() {
    let said = memc_fails(2, &["estimate", "models/cnn_bn"]);
    assert!(
        said.contains("is a folder: give a model in it, such as models/cnn_bn/training_model.onnx"),
        "{said}"
    );
    let folder = tempfile::tempdir().unwrap();
    let said = memc_fails(2, &["compile", &folder.path().display().to_string()]);
    assert!(said.contains("there is no .onnx file in it"), "{said}");
}

/// A file that cannot be written is refused before planning, and nothing is left half done.
#[test]
fn places_that_take_no_file_are_refused_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let compile = ["compile", FORWARD, "--loss", "mse", "--no-optimizer", "--gpu-mem", "1B"];
    let inside = folder.path().display().to_string();
    for (path, said) in [
        ("/nonexistent/x", "no folder `/nonexistent`"),
        ("/proc/x", "`/proc/x`: the folder `/proc` takes no files"),
        (&inside, "not a regular file"),
    ] {
        let text = memc_fails(74, &[&compile[..], &["-o", path]].concat());
        assert!(text.contains(said) && !text.contains(".memc-") && text.lines().count() == 1, "{text}");
        let text = memc_fails(74, &[&compile[..], &["-o", &file("a.plan"), "--decisions", path]].concat());
        assert!(text.contains(said), "{text}");
        for command in ["plan", "explain"] {
            let text = memc_fails(74, &[&[command], &compile[1..], &["--decisions", path]].concat());
            assert!(text.contains(said), "{text}");
        }
    }
    let text = memc_fails(74, &[&compile[..], &["-o", "/dev/null"]].concat());
    assert!(text.contains("`/dev/null`: not a regular file") && text.lines().count() == 1, "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Of IR that breaks rules only the lines that do are shown, each with the rules.
#[test]
fn verify_shows_the_lines_that_are_wrong_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let text = "module @wrong graph\n%x = input : f32[3]\n%right = relu %x : f32[3]\n\
                %y = relu %right : f32[4]\nyield output %y as \"y\"\n";
    let path = put(folder.path(), "wrong.mir", text.as_bytes()).display().to_string();
    let said = memc_fails(3, &["verify", &path]);
    assert!(said.contains("%y = relu %right : f32[4]\n;~ "), "{said}");
    assert!(!said.contains("%right = relu") && !said.contains("input :"), "{said}");
}

/// Where swapping takes more host memory than there is, less is swapped, at last nothing; where that is not
/// enough either, both are told.
#[test]
fn host_memory_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("model.plan").display().to_string();
    let model = "models/bert_tiny_nodrop/training_model.onnx";
    let limited = |gpu: &str, limit: &str, check: &dyn Fn(&[&str]) -> String| {
        check(&[
            "compile",
            model,
            "--effort",
            "0",
            "-o",
            &plan,
            "--json",
            "--gpu-mem",
            gpu,
            "--host-mem",
            limit,
        ])
    };
    let host = |limit| number(&json(&limited("445K", limit, &memc_ok)), "host_bytes");
    assert!(host("1M") > 10 << 10 && host("10K") <= 10 << 10);
    let free = json(&limited("445K", "1M", &memc_ok));
    let most = number(&free, "host_bytes") * 3 / 4;
    let less = json(&limited("445K", &format!("{most}B"), &memc_ok));
    assert!(number(&less, "host_bytes") <= most && number(&less, "swap_out_bytes") > 0, "{less} {free}");
    let text = limited("330K", "10K", &|args| memc_fails(4, args));
    assert!(text.contains("of host memory, more than --host-mem 10.00 KiB"), "{text}");
    assert!(text.contains("\n  the largest tensor there: %"), "{text}");
    let hint = text.split_once("hint: pass --host-mem ").expect("it has one").1;
    let (host, device) = hint.trim_end().split_once(" or more, or --gpu-mem ").expect("it names both");
    let device = device.strip_suffix(" or more, which needs no swapping").expect("it is the end");
    limited("330K", host, &memc_ok);
    let bytes = |text: &str| text.trim_end_matches('B').parse::<u64>().unwrap();
    let takes = number(&json(&limited("330K", "1M", &memc_ok)), "host_bytes");
    assert!(bytes(host) < takes, "less than the {takes} of the plan that is best is enough: {text}");
    limited(device, "10K", &memc_ok);
    assert!(memc_fails(2, &["compile", model, "--host-mem", "10"]).contains("10G"));
}
