//! `memc max-batch`, what an interrupt leaves of a search, how states on both sides are told, completions.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::planning::{LINK, chain};
use crate::signal::interrupt;
use crate::support::{json, memc, memc_fails, memc_ok, number, put};

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

/// Starts a search that goes on for long, interrupts it after a while, and returns its exit code and what it
/// wrote.
fn interrupted(args: &[&str], after: Duration) -> (Option<i32>, String, String) {
    let mut command = crate::support::memc_command();
    command.args(args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(after);
    assert!(interrupt(child.id()));
    let out = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

/// Interrupts a command ever later, however slow the machine, until there is something that it keeps;
/// `nothing` looks at what it said as long as there is not.
fn with_a_result(args: &[&str], nothing: impl Fn(&str)) -> (String, String) {
    let mut after = Duration::from_millis(250);
    loop {
        match interrupted(args, after) {
            // Without a code the handler was not set yet.
            (Some(130) | None, _, said) if after < Duration::from_secs(60) => nothing(&said),
            (code, out, said) => {
                assert_eq!(code, Some(0), "{said}");
                return (out, said);
            }
        }
        after *= 2;
    }
}

/// Before a plan is found an interrupt ends the command with 130; from then on the plan is kept.
#[test]
fn an_interrupt_keeps_the_best_plan_found_so_far() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 200, LINK / 8);
    let saved = folder.path().join("best.txt").display().to_string();
    let plan = ["plan", &problem, "--gpu-mem", "40M", "--effort", "5", "--json", "--decisions", &saved];
    let (out, said) = with_a_result(&plan, |said| {
        assert!(!std::path::Path::new(&saved).exists(), "{said}");
    });
    assert!(said.contains("interrupted: going on with the best plan found so far"), "{said}");
    let out = json(&out);
    assert_eq!((out["stopped"].as_bool(), out["feasible"].as_bool()), (Some(true), Some(true)), "{out}");
    let again = json(&memc_ok(&["plan", &problem, "--gpu-mem", "40M", "--json", "--apply", &saved]));
    assert_eq!(again["step_ns"], out["step_ns"]);
}

/// The first interrupt is answered at once; the second, whenever it comes, ends the command without waiting,
/// and leaves no file or a whole one.
#[test]
fn a_second_interrupt_ends_the_search_at_once() {
    let to = tempfile::tempdir().unwrap();
    let plan = to.path().join("a.plan");
    let mut command = crate::support::memc_command();
    command.args(["compile", "models/cnn_bn/training_model.onnx"]);
    command.args(["--gpu-mem", "222K", "--effort", "5", "-o"]).arg(&plan);
    let mut after = Duration::from_millis(50);
    let mut ended = 0;
    for pause in [0, 1, 5, 20, 50].into_iter().map(Duration::from_millis).cycle().take(60) {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(after);
        assert!(interrupt(child.id()));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let is_answered = lines.any(|line| line.contains("once more to end at once"));
        if is_answered {
            std::thread::sleep(pause);
            interrupt(child.id());
        }
        let rest: Vec<String> = lines.collect();
        let code = child.wait().unwrap().code();
        let files: Vec<_> = std::fs::read_dir(to.path()).unwrap().map(|f| f.unwrap().path()).collect();
        assert!(!rest.iter().any(|line| line.contains("once more")), "{rest:?}");
        match code {
            Some(0) => assert_eq!(files, [&*plan]),
            // Without a code the handler was not set yet.
            Some(130) | None => assert!(files.is_empty() || files == [&*plan], "{files:?}"),
            _ => panic!("{code:?} {rest:?}"),
        }
        if is_answered && code == Some(130) {
            let left =
                if files.is_empty() { "no file was written" } else { "files that were written are whole" };
            assert!(rest.iter().any(|line| line.contains(left)), "{rest:?}");
            ended += 1;
        }
        if ended == 3 {
            return;
        }
        let _ = std::fs::remove_file(&plan);
        after = if is_answered { after } else { (after * 3 / 2).min(Duration::from_secs(60)) };
    }
    panic!("ended by a second interrupt {ended} times only");
}

/// A state that begins a step on both sides is called that by `explain`, and `dump` says where its host
/// shadow lies.
#[test]
fn states_on_both_sides_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (saved, plan) = (file("a.dec"), file("a.plan"));
    let (model, budget) = ("models/mlp_s/training_model.onnx", ["--gpu-mem", "11000B"]);
    memc_ok(&[&["compile", model, "--decisions", &saved, "-o", &plan], &budget[..]].concat());
    let decisions = std::fs::read_to_string(&saved).unwrap();
    let name = |l: &str| l.strip_prefix("resident %")?.split_once(" both").map(|(name, _)| name.to_string());
    let both: Vec<String> = decisions.lines().filter_map(name).collect();
    assert!(!both.is_empty(), "{decisions}");

    let explain = [&["explain", model, "--apply", &saved], &budget[..]].concat();
    let told = json(&memc_ok(&[&explain[..], &["--json"]].concat()));
    let tensors = told["tensors"].as_array().unwrap();
    let sides = |place: &str| tensors.iter().filter(|t| t["resident"] == place).count();
    let of_both = tensors.iter().filter(|t| both.iter().any(|name| t["name"] == name.as_str()));
    assert!(of_both.clone().all(|t| t["resident"] == "both"), "{told}");
    assert_eq!((of_both.count(), sides("both")), (both.len(), both.len()), "{told}");
    let count =
        |place: &str| decisions.lines().filter(|l| l.starts_with("resident ") && l.contains(place)).count();
    assert_eq!((sides("dev"), sides("host")), (count(" dev"), count(" host")), "{told}");
    let text = memc_ok(&explain);
    assert!(text.contains(" swap* ") && text.contains("* begins a step on both sides"), "{text}");

    let states = json(&memc_ok(&["dump", &plan, "--json"]))["states"].as_array().unwrap().clone();
    let shadowed: Vec<&str> = states
        .iter()
        .filter(|s| s["host_shadow"]["space"] == "host")
        .map(|s| s["name"].as_str().unwrap())
        .collect();
    assert_eq!(shadowed, both);
    let lines = memc_ok(&["dump", &plan]);
    assert_eq!(
        lines.lines().filter(|l| l.starts_with("state ") && l.contains(" ; host shadow host+")).count(),
        both.len()
    );
}

/// The search for the first of three budgets goes on for longer than any interrupt takes to come.
#[test]
fn an_interrupted_sweep_ends_with_the_rows_that_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 200, LINK / 8);
    let sweep = ["sweep", &problem, "--gpu-mem", "40M:42M:1M", "--effort", "5"];
    let (out, said) = with_a_result(&[&sweep[..], &["--json"]].concat(), |_| ());
    let rows = json(&out).as_array().unwrap().clone();
    assert_eq!(rows.len(), 1, "{out}");
    assert_eq!((&rows[0]["feasible"], &rows[0]["stopped"]), (&true.into(), &true.into()), "{out}");
    assert!(said.contains("interrupted: 2 budgets left out"), "{said}");
}

/// The first planner is quick, the second goes on for longer than any interrupt takes to come.
#[test]
fn an_interrupted_comparison_keeps_the_planners_that_were_done() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 200, LINK / 8);
    let compare =
        ["compare", &problem, "--gpu-mem", "40M", "--effort", "5", "--planners", "belady,memc,capuchin"];
    let (out, said) = with_a_result(&[&compare[..], &["--json"]].concat(), |_| ());
    let rows = json(&out).as_array().unwrap().clone();
    let of = |name: &str| rows.iter().find(|r| r["planner"] == name);
    assert!(of("belady").is_some_and(|r| r["feasible"] == true), "{out}");
    assert!(of("memc").is_none_or(|r| r["feasible"] == true && r["stopped"] == true), "{out}");
    assert!(of("capuchin").is_none() && said.contains("left out"), "{said}");
}

/// Planning for the first size beyond those that fit unplanned goes on for longer than any interrupt takes to
/// come.
#[test]
fn an_interrupted_max_batch_says_that_its_answer_is_not_final() {
    let model = "models/gen/bert_tiny_nodrop.dynamic.onnx";
    let args = [
        "max-batch",
        model,
        "--loss",
        "mse",
        "--dim",
        "batch",
        "--gpu-mem",
        "4M",
        "--device",
        "toy",
        "--effort",
        "5",
    ];
    let (out, said) = with_a_result(&[&args[..], &["--json"]].concat(), |_| ());
    let out = json(&out);
    assert_eq!((&out["interrupted"], &out["stopped"]), (&true.into(), &true.into()), "{out}");
    assert!(number(&out, "largest_planned") > 0, "{out}");
    assert!(said.contains("interrupted: the answer is the largest size known so far"), "{said}");
    let (text, _) = with_a_result(&args, |_| ());
    assert!(text.contains("largest batch known so far (interrupted)"), "{text}");
}

/// Completions know commands and options, and the shell takes them; each command has a man page.
#[test]
fn completions_and_man_pages_have_every_command() {
    let bash = memc_ok(&["completions", "bash"]);
    for part in ["compile", "--gpu-mem", "max-batch", "bash elvish fish powershell zsh"] {
        assert!(bash.contains(part), "{part}");
    }
    let folder = tempfile::tempdir().unwrap();
    let script = put(folder.path(), "memc.bash", bash.as_bytes());
    // Without a shell to ask, the test ends with what it has.
    if let Ok(checked) = Command::new("bash").arg("-n").arg(&script).output() {
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
    let said = memc_fails(2, &["completions", "tcsh"]);
    assert!(said.contains("possible values: bash"), "{said}");
    let pages = folder.path().join("man/man1");
    memc_ok(&["man", &pages.display().to_string()]);
    for page in ["memc.1", "memc-compile.1", "memc-job-submit.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".SH OPTIONS"), "{page}");
    }
    let said = memc_fails(74, &["man", &script.display().to_string()]);
    assert!(said.contains("cannot write man pages to") && said.contains("memc.bash"), "{said}");
}

#[test]
fn an_interrupted_allocation_search_ends_with_its_best_and_claims_no_optimum() {
    let allocation = ["alloc", "passes/alloc/tests/data/D.csv", "--effort", "5", "--json"];
    let (out, said) = with_a_result(&allocation, |_| ());
    let out = json(&out);
    assert_eq!((&out["stopped"], &out["optimal"]), (&true.into(), &false.into()), "{out}");
    assert!(number(&out, "height") > number(&out, "load"), "{out}");
    assert!(said.contains("interrupted: going on with the best allocation found so far"), "{said}");
}
