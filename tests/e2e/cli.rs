//! The command line: sizes, JSON, exit codes, determinism, checking, comparing, replaying.

use std::path::Path;
use std::process::Command;

use crate::signal::interrupt;
use crate::support::{json, memc, memc_command, memc_fails, memc_ok, number, root};

const MODEL: &str = "models/cnn_bn/training_model.onnx";

fn compile(folder: &std::path::Path, name: &str, extra: &[&str]) -> String {
    let plan = folder.join(name).display().to_string();
    memc_ok(&[&["compile", MODEL, "-o", &plan, "--json"], extra].concat())
}

#[test]
fn the_version_names_the_commit_of_a_checkout() {
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(root()).output();
    let commit =
        git.ok().filter(|out| out.status.success()).map(|out| String::from_utf8(out.stdout).unwrap());
    let commit = commit.map(|commit| format!(" ({})", commit.trim())).unwrap_or_default();
    assert_eq!(memc_ok(&["--version"]), format!("memc {}{commit}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_bare_number_or_decimal_unit_is_a_usage_error_with_a_hint() {
    let said = memc_fails(2, &["compile", MODEL, "--gpu-mem", "1000000"]);
    assert!(said.contains("1000000B") && said.contains("1000000G"), "{said}");
    let said = memc_fails(2, &["compile", MODEL, "--gpu-mem", "1GB"]);
    assert!(said.contains("1GiB"), "{said}");
}

#[test]
fn compile_prints_the_promised_json() {
    let folder = tempfile::tempdir().unwrap();
    let out = json(&compile(folder.path(), "a.plan", &["--gpu-mem", "400KiB"]));
    for field in [
        "gpu_mem_bytes",
        "arena_bytes",
        "host_bytes",
        "peak_bytes",
        "unplanned_peak_bytes",
        "ideal_ns",
        "step_ns",
        "swap_out_bytes",
        "swap_in_bytes",
        "recompute_ns",
        "ops",
        "plan_ns",
    ] {
        number(&out, field);
    }
    assert_eq!(number(&out, "gpu_mem_bytes"), 400 << 10);
    assert!(
        number(&out, "arena_bytes") <= 400 << 10 && number(&out, "unplanned_peak_bytes") > 400 << 10,
        "{out}"
    );
    assert!(number(&out, "step_ns") >= number(&out, "bound_ns"), "{out}");
}

#[test]
fn an_impossible_budget_names_the_smallest_one_and_the_op_and_that_budget_works() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("a.plan").display().to_string();
    let said = memc_fails(4, &["compile", MODEL, "--gpu-mem", "64K", "-o", &plan]);
    assert!(said.contains("smallest feasible") && said.contains("ConvGrad"), "{said}");
    let hint = said.split("--gpu-mem ").nth(1).and_then(|t| t.split_whitespace().next()).unwrap();
    memc_ok(&["compile", MODEL, "--gpu-mem", hint, "-o", &plan]);
}

#[test]
fn the_same_input_gives_the_same_bytes_at_any_thread_count() {
    let folder = tempfile::tempdir().unwrap();
    for model in [MODEL, "models/bert_tiny_nodrop/training_model.onnx"] {
        let plans: Vec<Vec<u8>> = ["1", "2", "5"]
            .into_iter()
            .map(|threads| {
                let plan = folder.path().join(format!("{threads}.plan"));
                let args = ["compile", model, "--gpu-mem", "400K", "-o"];
                let run =
                    memc_command().env("RAYON_NUM_THREADS", threads).args(args).arg(&plan).output().unwrap();
                assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
                std::fs::read(&plan).unwrap()
            })
            .collect();
        assert!(plans.windows(2).all(|p| p[0] == p[1]), "{model}: the plan depends on the thread count");
    }
}

#[test]
fn check_proves_a_plan_against_its_model_and_rejects_it_against_another() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), "a.plan", &["--gpu-mem", "400K"]);
    let plan = folder.path().join("a.plan").display().to_string();
    assert!(memc_ok(&["check", &plan]).contains("proved"));
    assert!(memc_ok(&["check", &plan, "--source", MODEL]).contains("proved"));
    let said = memc_fails(7, &["check", &plan, "--source", "models/cnn_bn_sgd/training_model.onnx"]);
    assert!(said.contains("C10") || said.contains("C14"), "{said}");
    assert!(said.contains("--optimizer-model") && said.lines().count() < 10, "{said}");
    let said = memc_fails(7, &["check", &plan, "--source", "models/mlp_s/training_model.onnx"]);
    assert!(said.contains("a plan of another model") && said.lines().count() < 10, "{said}");
    let report = json(&memc_ok(&["check", &plan, "--json"]));
    assert_eq!(report["accepted"], true);
}

#[test]
fn diff_is_empty_for_equal_plans_and_exits_with_1_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    for (name, budget) in [("a", "400K"), ("b", "400K"), ("c", "300K")] {
        compile(folder.path(), name, &["--gpu-mem", budget]);
    }
    let path = |name: &str| folder.path().join(name).display().to_string();
    assert!(memc_ok(&["diff", &path("a"), &path("b")]).contains("equal"));
    let out = memc(&["diff", &path("a"), &path("c")]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&out.stdout).contains("budget"),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
}

#[test]
fn dump_prints_text_and_json_of_the_same_plan() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), "a.plan", &["--gpu-mem", "400K"]);
    let plan = folder.path().join("a.plan").display().to_string();
    let text = memc_ok(&["dump", &plan]);
    assert_eq!(memc_plan::text::print(&memc_plan::text::parse(&text).unwrap()), text);
    let dumped = json(&memc_ok(&["dump", &plan, "--json"]));
    assert_eq!(dumped["body"].as_array().unwrap().len(), memc_plan::text::parse(&text).unwrap().body.len());
}

#[test]
fn saved_decisions_replay_with_default_options() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for (model, budget) in
        [(MODEL, "300K"), (MODEL, "240K"), ("models/resnet_tiny/training_model.onnx", "1M")]
    {
        let (a, b, decisions) = (path("a.plan"), path("b.plan"), path("a.dec"));
        let args = ["compile", model, "--gpu-mem", budget, "--json", "-o"];
        let first = json(&memc_ok(&[&args[..], &[&a, "--decisions", &decisions]].concat()));
        let second = json(&memc_ok(&[&args[..], &[&b, "--apply", &decisions]].concat()));
        for field in ["arena_bytes", "host_bytes", "step_ns", "swap_in_bytes", "recompute_ns", "ops"] {
            assert_eq!(first[field], second[field], "{model} at {budget}: {field}");
        }
    }
}

#[test]
fn decisions_that_cannot_be_carried_out_are_bad_data() {
    let folder = tempfile::tempdir().unwrap();
    let decisions = folder.path().join("a.dec");
    let path = decisions.display().to_string();
    compile(folder.path(), "a.plan", &["--gpu-mem", "300K", "--decisions", &path]);
    let text = std::fs::read_to_string(&decisions).unwrap();
    let first_out = text.lines().find(|l| l.starts_with("out ")).unwrap();
    let first_run = text.lines().find(|l| l.starts_with("run ")).unwrap();
    let broken = [
        text.replacen(&format!("{first_out}\n"), "", 1),
        text.replacen(&format!("{first_run}\n"), "", 1),
        text.replacen(" @ ", " @ 18446744073709551615", 1),
        text.replacen(" dev @ ", " dev @ x", 1),
        text.lines()
            .map(|l| {
                l.split(" dev @ ").next().filter(|h| *h != l).map_or(l.into(), |h| format!("{h} dev @ 0"))
            })
            .collect::<Vec<_>>()
            .join("\n"),
        "nonsense".to_string(),
    ];
    for text in broken {
        std::fs::write(&decisions, &text).unwrap();
        let plan = folder.path().join("b.plan").display().to_string();
        let said = memc_fails(3, &["compile", MODEL, "--gpu-mem", "300K", "-o", &plan, "--apply", &path]);
        assert!(said.contains("a.dec") && !said.contains("bug"), "{said}");
    }
}

#[test]
fn recomputation_wins_on_a_slow_link_and_keeps_every_bit() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("a.plan");
    let args = [
        "compile",
        MODEL,
        // Rewriting for memory leaves the planner little to run again.
        "--no-mem-rewrite",
        "--planner",
        "belady",
        "--device",
        "toy",
        "--json",
        "--gpu-mem",
        "344064B",
        "-o",
    ];
    let out = json(&memc_ok(&[&args[..], &[&plan.display().to_string()]].concat()));
    assert!(number(&out, "recompute_ops") > 0, "{out}");
    crate::support::run(&plan, folder.path(), crate::support::verified(2, 5));
}

/// One run makes several results of an op again, with the bits of the first.
#[test]
fn several_results_are_made_again_by_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let decisions = file("a.dec").display().to_string();
    let model = "models/bert_tiny_dropout/training_model.onnx";
    let trained =
        [&["--gpu-mem", "1610931577B", "--no-swap", "--decisions", &decisions][..], &[]].map(|flags| {
            let plan = file("a.plan");
            let args = ["compile", model, "--device", "h100", "--formulation", "own", "-o"];
            memc_ok(&[&args[..], &[&plan.display().to_string()], flags].concat());
            crate::support::run(&plan, folder.path(), crate::support::verified(3, 7))
        });
    assert!(trained[0].losses == trained[1].losses && trained[0].states == trained[1].states);
    let text = std::fs::read_to_string(decisions).unwrap();
    let again = text.lines().filter_map(|line| line.strip_prefix("recompute ")?.split_once(" at "));
    let made = again.map(|(_, places)| places.matches('%').count()).max();
    assert!(made >= Some(2), "{text}");
}

#[test]
fn rewriting_for_memory_says_what_it_saves_and_a_plan_remembers_whether_it_was_done() {
    let folder = tempfile::tempdir().unwrap();
    for flag in [&["--no-mem-rewrite"][..], &[]] {
        let plan = folder.path().join("a.plan").display().to_string();
        let saved = |command: &[&str]| {
            let out = json(&memc_ok(&[command, &[MODEL, "--json"], flag].concat()));
            let stash = &out["stash"];
            (number(stash, "bytes_before"), number(stash, "bytes_after"))
        };
        let (before, after) = saved(&["compile", "-o", &plan]);
        let (all, least) = saved(&["estimate"]);
        assert!(all == before && least <= after, "{all} {least}, {before} {after}");
        assert_eq!(before > least, flag.is_empty(), "{before} {least}");
        assert!(memc_ok(&["check", &plan, "--source", MODEL]).contains("proved"));
    }
}

#[test]
fn an_output_never_replaces_an_input() {
    let folder = tempfile::tempdir().unwrap();
    let model = crate::support::put(folder.path(), "m.onnx", &std::fs::read(root().join(MODEL)).unwrap());
    let model = model.display().to_string();
    let said = memc_fails(2, &["compile", &model, "--no-optimizer", "-o", &model]);
    assert!(said.contains("overwritten"), "{said}");
    let said = memc_fails(2, &["compile", MODEL, "-o", "-"]);
    assert!(said.contains("`-` is not standard output here") && !Path::new("-").exists(), "{said}");
    let same = folder.path().join("x").display().to_string();
    memc_fails(2, &["compile", &model, "--no-optimizer", "-o", &same, "--decisions", &model]);
}

#[test]
fn models_and_recipes_that_do_not_fit_are_refused_with_what_would() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("model.plan").display().to_string();
    let refused = |code: i32, model: &str, flags: &[&str], parts: &[&str]| {
        let base = ["compile", model, "--gpu-mem", "1M", "-o", plan.as_str()];
        let said = memc_fails(code, &[&base, flags].concat());
        assert!(parts.iter().all(|part| said.contains(part)), "{flags:?}: {said}");
        assert!(!std::path::Path::new(&plan).exists(), "{flags:?}");
    };
    let standard = "models/standard/linear.TrainingInfo.Adam.onnx";
    refused(3, standard, &[], &["batch (axis 0 of `x`, axis 0 of `labels`)", "--dim batch=32"]);
    refused(2, standard, &["--dim", "batch=2", "--dim", "batch=3"], &["contradict", "as --dim batch=2"]);
    refused(2, standard, &["--dim", "bach=2"], &["no symbolic dimension `bach`", "--dim batch=2"]);
    refused(2, standard, &["--dim", "batch=0"], &["as --dim batch=32"]);
    refused(2, standard, &["--dim", "batch=2", "--loss", "mse"], &["TrainingInfoProto", "leave it out"]);
    refused(2, MODEL, &["--dim", "batch=2"], &["static", "leave --dim out"]);
    refused(2, MODEL, &["--loss", "mse"], &["contain their loss", "leave it out"]);
    let forward = "models/gen/mlp_s.forward.onnx";
    refused(2, forward, &["--loss", "huber"], &["one of cross-entropy, mse, l1, bce-with-logits, output"]);
    refused(
        2,
        forward,
        &["--loss", "mse", "--optimizer", "lion"],
        &["none, sgd, momentum, adam, adamw, adagrad"],
    );
    refused(
        2,
        forward,
        &["--loss", "mse:output=y"],
        &["no output `y`; it has output", "--loss mse:output=output"],
    );
    refused(2, forward, &["--loss", "output"], &["one float", "output (f32[4,10])"]);
    refused(2, forward, &["--optimizer", "sgd"], &["forward model", "--loss cross-entropy"]);
    refused(2, forward, &["--loss", "mse", "--freeze", "fc9*"], &["matches no parameter", "fc1.bias"]);
    refused(2, forward, &["--loss", "mse", "--trainable", "fc9*"], &["matches no parameter", "fc1.bias"]);
    refused(3, forward, &[], &["not a training step", "--loss cross-entropy"]);
}

#[test]
fn failures_are_json_too_when_json_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("a.plan").display().to_string();
    let out = memc(&["compile", MODEL, "--gpu-mem", "64K", "--json", "-o", &plan]);
    assert_eq!(out.status.code(), Some(4));
    let error = json(&String::from_utf8(out.stdout).unwrap());
    assert_eq!(number(&error, "exit_code"), 4);
    assert!(number(&error, "smallest_feasible_bytes") > 64 << 10, "{error}");
}

#[test]
fn an_interrupt_ends_a_command_at_once_with_130() {
    use std::os::unix::process::ExitStatusExt;
    // A pipe that nobody writes to holds the command up where it reads its model.
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("model.mir");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut child = Command::new(env!("CARGO_BIN_EXE_memc")).arg("verify").arg(&pipe).spawn().unwrap();
    // Opening the other end returns once the command has opened its own, after it set its handler.
    let writer = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    assert!(interrupt(child.id()));
    let status = child.wait().unwrap();
    drop(writer);
    assert_eq!(status.code(), Some(130), "signal {:?}", status.signal());
}

#[test]
fn saved_decisions_replay_to_the_same_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let decisions = folder.path().join("a.dec").display().to_string();
    let first = json(&compile(
        folder.path(),
        "a.plan",
        &["--gpu-mem", "400K", "--order", "given", "--decisions", &decisions],
    ));
    let second = json(&compile(folder.path(), "b.plan", &["--gpu-mem", "400K", "--apply", &decisions]));
    for field in
        ["arena_bytes", "host_bytes", "step_ns", "swap_in_bytes", "swap_out_bytes", "recompute_ns", "ops"]
    {
        assert_eq!(first[field], second[field], "{field}");
    }
    let plan = folder.path().join("c.plan").display().to_string();
    let too_small =
        memc_fails(4, &["compile", MODEL, "--gpu-mem", "230K", "--apply", &decisions, "-o", &plan]);
    assert!(too_small.contains("decisions take"), "{too_small}");
}

#[test]
fn estimate_says_what_a_step_needs() {
    let out = json(&memc_ok(&["estimate", MODEL, "--json"]));
    let parts =
        ["weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "workspace_bytes"];
    assert!(parts.iter().all(|p| number(&out, p) > 0), "{out}");
    assert_eq!(
        number(&out, "optimizer_bytes"),
        2 * number(&out, "weights_bytes") + 64,
        "two moments, and the step"
    );
    assert!(number(&out, "smallest_feasible_bytes") < number(&out, "peak_bytes"), "{out}");
    assert_eq!(number(&out, "parameters"), 9146);
    let (sizes, tensors) = (number(&out, "distinct_tensor_sizes"), number(&out, "tensors"));
    assert!(6 <= sizes && sizes < tensors && tensors <= 3 * number(&out, "ops"), "{out}");
}

/// A parameter that is used twice has two contributions to its gradient, and one gradient.
#[test]
fn estimate_counts_the_gradient_of_a_shared_parameter_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shared.mir").display().to_string();
    let text = "module @shared graph
%w = state {role = param, init = zeros} : f32[8,8]
%x = input : f32[8,8]
%lr = input {feed = learning_rate, default = 0.1} : f32[]
%a = matmul %x, %w : f32[8,8]
%b = matmul %a, %w : f32[8,8]
%c = tanh %b : f32[8,8]
%loss = reduce_sum %c {axes = [0, 1]} : f32[]
%late = matmul %a, %c {trans_a} : f32[8,8]
%early = matmul %x, %c {trans_a} : f32[8,8]
%w_grad = add %early, %late : f32[8,8]
%w_new = sgd %w, %w_grad, %lr : f32[8,8]
yield loss %loss as \"loss\"
carry %w <- %w_new
";
    std::fs::write(&file, text).unwrap();
    let out = json(&memc_ok(&["estimate", &file, "--json"]));
    assert_eq!((number(&out, "gradients_bytes"), number(&out, "weights_bytes")), (256, 256), "{out}");
}

#[test]
fn help_shows_examples_and_exit_codes() {
    assert!(memc_ok(&["--help"]).contains("infeasible"));
    assert!(memc_ok(&["compile", "--help"]).contains("--gpu-mem 1M"));
    assert!(memc_ok(&["list", "rules"]).contains("M7"));
    let rewrites = memc_ok(&["list", "rewrites"]);
    assert!(rewrites.contains("neg-of-neg") && rewrites.contains("conv-grad-weight"), "{rewrites}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let command = format!("{} list ops | head -n 1; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_memc"));
    let out = Command::new("bash").args(["-c", &command]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
