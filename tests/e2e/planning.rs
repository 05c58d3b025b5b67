//! `memc plan`, `compare`, `sweep`, `bound` and `export-problem`: what they print, and that they agree.

use memc_baselines::PLANNERS;
use serde_json::{Value, json};

use crate::support::{json, memc, memc_fails, memc_ok, number, put};

const MODEL: &str = "models/cnn_bn/training_model.onnx";

/// A problem file: a chain of `n` ops forward, each with an activation of 1 MiB, and back again.
pub(crate) fn chain(folder: &std::path::Path, n: u64, link: u64) -> String {
    let mut ops = Vec::new();
    for i in 0..n {
        let reads: Vec<u64> = if i == 0 { vec![] } else { vec![i - 1] };
        ops.push(
            json!({"id": i, "name": format!("f{i}"), "time_ns": 100_000, "reads": reads, "writes": [i]}),
        );
    }
    for i in (0..n).rev() {
        let (from, to) = (2 * n - 1 - i, 2 * n - i);
        let mut reads = vec![i];
        if i + 1 < n {
            reads.push(from);
        }
        let (id, name) = (n + from, format!("b{i}"));
        ops.push(json!({"id": id, "name": name, "time_ns": 100_000, "reads": reads, "writes": [to]}));
    }
    let tensor = |id: u64| json!({"id": id, "name": format!("t{id}"), "bytes": 1 << 20, "kind": "transient"});
    let tensors: Vec<Value> = (0..=2 * n).map(tensor).collect();
    let device = json!({"memory_bytes": 1u64 << 30, "h2d_bytes_per_s": link, "d2h_bytes_per_s": link});
    let problem = json!({
        "format": "memc-problem/1", "name": "chain", "device": device, "tensors": tensors, "ops": ops,
    });
    put(folder, "chain.json", problem.to_string().as_bytes()).display().to_string()
}

pub(crate) const LINK: u64 = 8_000_000_000;

fn list(text: &str) -> Vec<Value> {
    json(text).as_array().unwrap().clone()
}

#[test]
fn compare_has_every_planner_the_fastest_first_and_says_why_some_have_no_plan() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 12, LINK);
    let compare = ["compare", &problem, "--gpu-mem", "6M", "--effort", "0"];
    let rows = list(&memc_ok(&[&compare[..], &["--json"]].concat()));
    let names: Vec<&str> = rows.iter().map(|r| r["planner"].as_str().unwrap()).collect();
    let known: Vec<&str> = PLANNERS.iter().map(|p| p.name).collect();
    assert!(known.iter().all(|k| names.contains(k)) && names.len() == known.len(), "{names:?} {known:?}");
    let steps: Vec<Option<u64>> = rows.iter().map(|r| r["step_ns"].as_u64()).collect();
    let planned: Vec<u64> = steps.iter().flatten().copied().collect();
    assert!(planned.is_sorted() && steps[planned.len()..].iter().all(Option::is_none), "{steps:?}");
    for row in &rows {
        assert_eq!(row["feasible"].as_bool().unwrap(), row["step_ns"].is_u64(), "{row}");
        assert_eq!(row["why"].is_string(), row["step_ns"].is_null(), "{row}");
        if row["step_ns"].is_u64() {
            assert!(number(row, "arena_bytes") <= 6 << 20, "{row}");
            assert!(number(row, "bound_ns") <= number(row, "step_ns"), "{row}");
        }
    }
    let keep = rows.iter().find(|r| r["planner"] == "keep-all").unwrap();
    assert_eq!(keep["feasible"], false);
    let text = memc_ok(&compare);
    assert!(text.lines().nth(1).unwrap().contains('*'), "{text}");
    assert!(text.contains("keep-all: no plan: "), "{text}");
}

/// From effort 3 on the default planner asks all others, so that none is faster.
#[test]
fn no_planner_is_faster_at_a_high_effort() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 8, LINK);
    for budget in ["4M", "5M"] {
        let rows = list(&memc_ok(&["compare", &problem, "--gpu-mem", budget, "--effort", "3", "--json"]));
        let step = |row: &Value| row["step_ns"].as_u64();
        let own = rows.iter().find(|row| row["planner"] == "memc").and_then(step).unwrap();
        let others: Vec<u64> = rows.iter().filter_map(step).collect();
        assert!(others.len() > 10 && others.iter().all(|&other| own <= other), "{own} {others:?}");
    }
}

/// `compare` and `plan` give the same figures for a planner.
#[test]
fn compare_and_plan_agree() {
    let args = ["--gpu-mem", "300K", "--effort", "0", "--json"];
    let names = ["memc", "odswap"];
    let rows = list(&memc_ok(&[&["compare", MODEL, "--planners", "memc,odswap"], &args[..]].concat()));
    for name in names {
        let row = rows.iter().find(|r| r["planner"] == name).unwrap();
        let alone = json(&memc_ok(&[&["plan", MODEL, "--planner", name], &args[..]].concat()));
        for field in
            ["step_ns", "bound_ns", "ideal_ns", "swap_in_bytes", "arena_bytes", "order", "evaluations"]
        {
            assert_eq!(row[field], alone[field], "{name}: {field}");
        }
    }
}

#[test]
fn compare_without_any_plan_is_exit_4_and_knows_planners_by_name() {
    let out = memc(&["compare", MODEL, "--gpu-mem", "64K", "--planners", "memc,keep-all", "--json"]);
    assert_eq!(out.status.code(), Some(4));
    let rows = list(&String::from_utf8(out.stdout).unwrap());
    assert!(rows.len() == 2 && rows.iter().all(|r| r["feasible"] == false), "{rows:?}");
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("working set peaks at"), "{said}");
    for command in ["compare", "plan", "sweep"] {
        let planner = if command == "compare" { "--planners" } else { "--planner" };
        let budget = if command == "sweep" { "1M:2M:1M" } else { "1M" };
        let said = memc_fails(2, &[command, MODEL, "--gpu-mem", budget, planner, "guess"]);
        assert!(said.contains("unknown planner `guess`") && said.contains("swapadvisor"), "{said}");
    }
}

/// `plan` and `compile` find the same plan of a model, with the same bound beside it.
#[test]
fn plan_and_compile_find_the_same_plan() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("a.plan").display().to_string();
    for budget in ["250K", "350K", "1M"] {
        let args = ["--gpu-mem", budget, "--effort", "1", "--json"];
        let numbers = json(&memc_ok(&[&["plan", MODEL], &args[..]].concat()));
        let compiled = json(&memc_ok(&[&["compile", MODEL, "-o", &plan], &args[..]].concat()));
        for field in [
            "step_ns",
            "ideal_ns",
            "bound_ns",
            "bound_holds_for",
            "arena_bytes",
            "swap_in_bytes",
            "swap_out_bytes",
            "recompute_ns",
            "evaluations",
        ] {
            assert_eq!(numbers[field], compiled[field], "{budget}: {field}");
        }
        assert!(number(&compiled, "bound_ns") <= number(&compiled, "step_ns"), "{compiled}");
        assert!(number(&numbers, "given_order_bound_ns") >= number(&numbers, "ideal_ns"), "{numbers}");
    }
}

/// `plan` and `compile` carry out the decisions that `plan` saved, in either order.
#[test]
fn saved_decisions_of_plan_are_carried_out_by_plan_and_compile() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    for order in ["given", "greedy"] {
        let (saved, plan) = (file("a.dec"), file("a.plan"));
        let args = ["--gpu-mem", "300K", "--json"];
        let found = ["plan", MODEL, "--effort", "0", "--order", order, "--decisions", &saved];
        let found = json(&memc_ok(&[&found, &args[..]].concat()));
        assert_eq!(found["order"], order);
        let again = json(&memc_ok(&[&["plan", MODEL, "--apply", &saved], &args[..]].concat()));
        let compiled =
            json(&memc_ok(&[&["compile", MODEL, "--apply", &saved, "-o", &plan], &args[..]].concat()));
        for field in ["step_ns", "arena_bytes", "swap_in_bytes", "bound_ns"] {
            assert_eq!((&found[field], &found[field]), (&again[field], &compiled[field]), "{order}: {field}");
        }
    }
    let other = chain(folder.path(), 4, LINK);
    let said = memc_fails(3, &["plan", &other, "--gpu-mem", "1G", "--apply", &file("a.dec")]);
    assert!(said.contains("no tensor is called"), "{said}");
}

/// The course of a search ends with the plan; generations of the default planner and of a published genetic
/// one are told, and the best of them never gets worse.
#[test]
fn the_course_of_a_search_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("curve.json").display().to_string();
    for planner in ["memc", "swapadvisor", "home", "autoswap"] {
        let args =
            ["--gpu-mem", "400K", "--order", "given", "--formulation", "own", "--json", "--curve", &file];
        let plan =
            json(&memc_ok(&[&["plan", MODEL, "--planner", planner, "--effort", "1"], &args[..]].concat()));
        let course = json(&std::fs::read_to_string(&file).unwrap());
        let (curve, alive) = (course["curve"].as_array().unwrap(), course["alive"].as_array().unwrap());
        let (last, step_ns) = (curve.last().unwrap()[2].as_u64().unwrap(), number(&plan, "step_ns"));
        // HOME's swarm goes by a model of its own, and may leave a faster plan that it has told of.
        assert!(last == step_ns || planner == "home" && last < step_ns, "{planner}: {course}");
        assert!(curve.is_sorted_by(|a, b| a[2].as_u64() > b[2].as_u64()), "{planner}: {course}");
        assert!(alive.len() > 1 && alive.is_sorted_by_key(|row| row[1].as_u64()), "{planner}: {course}");
    }
    let said = memc_fails(2, &["plan", MODEL, "--gpu-mem", "400K", "--apply", &file, "--curve", &file]);
    assert!(said.contains("--curve"), "{said}");
}

/// Where everything fits in several orders, the fastest of them is the plan, so that more memory is not
/// slower; and where all wait for the input, its copy is hidden.
#[test]
fn where_everything_fits_the_fastest_order_is_taken() {
    let plan = |model, args: &[&str]| {
        json(&memc_ok(&[&["plan", model, "--gpu-mem", "16M", "--no-mem-rewrite", "--json"], args].concat()))
    };
    let kept = ["--planner", "keep-all", "--order", "given"];
    let resnet = "models/resnet_tiny/training_model.onnx";
    for (model, order) in [("models/mlp_s/training_model.onnx", "greedy"), (resnet, "given")] {
        let (given, best) = (plan(model, &kept), plan(model, &[]));
        assert!(number(&given, "step_ns") > number(&given, "ideal_ns"), "{given}");
        assert!(best["order"] == order && number(&best, "step_ns") == number(&best, "ideal_ns"), "{best}");
        assert!(number(&best, "bound_ns") <= number(&best, "step_ns"), "{best}");
    }
}

#[test]
fn sweep_has_a_row_for_every_budget_and_marks_those_that_pay() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 12, LINK);
    let sweep = ["sweep", &problem, "--gpu-mem", "2M:14M:4M", "--effort", "1"];
    let rows = list(&memc_ok(&[&sweep[..], &["--json"]].concat()));
    let budgets: Vec<u64> = rows.iter().map(|r| number(r, "gpu_mem_bytes")).collect();
    assert_eq!(budgets, [2 << 20, 6 << 20, 10 << 20, 14 << 20]);
    assert_eq!((&rows[0]["feasible"], &rows[0]["pareto"]), (&json!(false), &json!(false)));
    let mut fastest = u64::MAX;
    for row in &rows[1..] {
        let step = number(row, "step_ns");
        assert_eq!(row["pareto"], step < fastest, "{row}");
        assert!(number(row, "bound_ns") <= step, "{row}");
        fastest = fastest.min(step);
    }
    assert_eq!(fastest, number(&rows[3], "ideal_ns"), "14 MiB hold all that is live at once");
    let picture = folder.path().join("sweep.svg").display().to_string();
    let text = memc_ok(&[&sweep[..], &["--plot", &picture]].concat());
    assert!(text.contains("below the smallest feasible") && text.contains("Pareto"), "{text}");
    let picture = std::fs::read_to_string(picture).unwrap();
    let count = |what: &str| picture.matches(what).count();
    let drawn = [count("<circle"), count("class=\"pareto\""), count("2.00 MiB: no plan</title>")];
    let pays = rows.iter().filter(|row| row["pareto"] == true).count();
    assert_eq!(drawn, [3, pays, 1], "{picture}");
    memc_fails(4, &["sweep", &problem, "--gpu-mem", "1M:2M:1M"]);
}

/// A plan for a budget is one for every larger one, and the bound of a row holds for plans of all orders that
/// are tried.
#[test]
fn more_memory_is_not_slower_in_a_sweep() {
    let rows = list(&memc_ok(&["sweep", MODEL, "--gpu-mem", "222K:262K:4K", "--effort", "1", "--json"]));
    let steps: Vec<u64> = rows.iter().map(|r| number(r, "step_ns")).collect();
    assert!(steps.is_sorted_by(|a, b| a >= b), "{steps:?}");
    let bounds = rows.iter().map(|r| number(r, "bound_ns"));
    assert!(rows.iter().any(|r| r["bound_holds_for"] == "any order"));
    assert!(bounds.max() <= steps.iter().min().copied(), "{steps:?}");
}

#[test]
fn ranges_of_budgets_are_checked() {
    for (range, hint) in [
        ("6G", "FROM:TO:STEP"),
        ("6:24G:2G", "write 6B for bytes"),
        ("24G:6G:2G", "smaller size first"),
        ("6G:24G:0G", "never gets to 24G"),
        ("1B:1G:1B", "take a larger step"),
    ] {
        let said = memc_fails(2, &["sweep", MODEL, "--gpu-mem", range]);
        assert!(said.contains(hint), "{range}: {said}");
    }
    assert!(memc_fails(2, &["sweep", MODEL]).contains("--gpu-mem"));
    let said = memc_fails(2, &["sweep", MODEL, "--gpu-mem", "50%:100%:25%", "--device", "toy"]);
    assert!(said.contains("memory of the device is not known"), "{said}");
}

#[test]
fn a_time_limit_ends_the_search_with_a_plan_and_has_a_unit() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 60, 1_000_000_000);
    let plan = ["plan", &problem, "--gpu-mem", "9M", "--effort", "5", "--json", "--time-limit"];
    let out = json(&memc_ok(&[&plan[..], &["1ms"]].concat()));
    assert_eq!((&out["stopped"], &out["feasible"]), (&json!(true), &json!(true)), "{out}");
    for (text, hint) in
        [("10", "write 10s for seconds"), ("10parsecs", "not a unit of time"), ("s", "not a time")]
    {
        let said = memc_fails(2, &[&plan[..], &[text]].concat());
        assert!(said.contains(hint), "{said}");
    }
    assert!(memc_ok(&["plan", "--help"]).contains("depend on the machine"));
    let sweep = ["sweep", &problem, "--gpu-mem", "9M:10M:1M", "--effort", "5", "--time-limit", "1ms"];
    assert!(list(&memc_ok(&[&sweep[..], &["--json"]].concat())).iter().all(|row| row["stopped"] == true));
    assert!(memc_ok(&sweep).contains("Pareto, stopped\n"));
}

/// The exported problem of a model, planned, is the model, planned.
#[test]
fn an_exported_problem_plans_as_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.json").display().to_string();
    memc_ok(&["export-problem", MODEL, "--device", "v100-16g", "-o", &file]);
    assert_eq!(
        memc_ok(&["export-problem", MODEL, "--device", "v100-16g"]),
        std::fs::read_to_string(&file).unwrap()
    );
    let problem = json(&std::fs::read_to_string(&file).unwrap());
    assert_eq!(problem["format"], "memc-problem/1");
    let named = |name: &str| problem["tensors"].as_array().unwrap().iter().any(|t| t["name"] == name);
    assert!(named("c1.weight") && named("input"), "values of the model");
    let args = ["--effort", "0", "--json", "--planner", "belady"];
    let of_model =
        ["plan", MODEL, "--device", "toy", "--no-mem-rewrite", "--order", "given", "--gpu-mem", "300K"];
    let of_model = json(&memc_ok(&[&of_model[..], &args].concat()));
    memc_ok(&["export-problem", MODEL, "--device", "toy", "-o", &file]);
    let of_file = json(&memc_ok(&[&["plan", &file, "--gpu-mem", "300K"], &args[..]].concat()));
    for field in ["step_ns", "ideal_ns", "swap_in_bytes", "swap_out_bytes", "arena_bytes"] {
        assert_eq!(of_model[field], of_file[field], "{field}");
    }
}

#[test]
fn a_bound_is_below_every_plan_and_says_what_can_never_fit() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 12, LINK);
    let bound = json(&memc_ok(&["bound", &problem, "--gpu-mem", "5M", "--json"]));
    let rows = bound["bounds"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows.iter().filter(|r| r["feasible"] == true) {
        assert!(number(row, "order_free_ns") <= number(row, "fixed_order_ns"), "{row}");
        assert!(number(&bound, "ideal_ns") <= number(row, "order_free_ns"), "{row}");
    }
    let swapping = rows.iter().find(|r| r["swap"] == true && r["recompute"] == false).unwrap();
    let plan = ["plan", &problem, "--gpu-mem", "5M", "--no-recompute", "--json"];
    let plan = json(&memc_ok(&plan));
    assert_eq!(plan["bound_ns"], swapping["fixed_order_ns"]);
    assert!(number(&plan, "bound_ns") > number(&plan, "ideal_ns"), "5 MiB cost time: {plan}");
    let said = memc_fails(4, &["bound", &problem, "--gpu-mem", "2M"]);
    assert!(said.contains("b10 has to have 3.00 MiB"), "{said}");
}

/// Gaps and stalls of `explain` add up to the cost of the plan, and are the same for applied decisions.
#[test]
fn an_explanation_adds_up_and_also_explains_saved_decisions() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("a.dec").display().to_string();
    let args = ["explain", MODEL, "--gpu-mem", "300K", "--planner", "odswap"];
    let out = json(&memc_ok(&[&args[..], &["--json", "--decisions", &saved]].concat()));
    let tensors = out["tensors"].as_array().unwrap();
    let gaps = |t: &Value| t["gaps"].as_array().unwrap().clone();
    let mut copied = 0;
    for t in tensors {
        let does = t["does"].as_str().unwrap();
        assert_eq!(does == "keep", gaps(t).is_empty(), "{t}");
        if t["kind"] == "input" {
            continue;
        }
        for gap in gaps(t).iter().filter(|g| g["back_by"] == "copy") {
            copied += number(t, "bytes");
            assert!(number(gap, "copy_in_ns") > 0 && gap["before"].is_string(), "{t}");
            // Nothing runs in a gap that is a mere change of place.
            assert!(gap["bytes_there"].as_u64().is_none_or(|b| b <= 300 << 10), "{t}");
        }
    }
    assert!(copied >= number(&out, "swap_in_bytes") && number(&out, "swap_in_bytes") > 0, "{out}");
    let stalls = out["stalls"].as_array().unwrap();
    let waits = |what: &str| {
        let of = stalls.iter().filter(|s| s["waits_for"].as_str().unwrap().contains(what));
        of.map(|s| number(s, "ns")).sum::<u64>()
    };
    assert_eq!(waits("coming in"), number(&out, "stall_in_ns"));
    assert_eq!(waits("room: "), number(&out, "stall_out_ns"));
    let again = ["explain", MODEL, "--gpu-mem", "300K", "--apply", &saved];
    let applied = json(&memc_ok(&[&again[..], &["--json"]].concat()));
    assert_eq!((&applied["tensors"], &applied["stalls"]), (&out["tensors"], &out["stalls"]));
    let text = memc_ok(&[&again[..], &["--tensor", "c1.w*", "--top", "3"]].concat());
    assert!(text.contains("c1.weight") && !text.contains("c2.weight"), "{text}");
    assert!(text.contains("waiting for") && text.contains("links busy"), "{text}");
    let said = memc_fails(2, &[&again[..], &["--tensor", "zz*"]].concat());
    assert!(said.contains("no tensor is called `zz*`"), "{said}");
}

/// A tensor that is computed again is said to be, with the op's time.
#[test]
fn an_explanation_tells_recomputation_from_copies() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 12, 100_000_000);
    let args = ["explain", &problem, "--gpu-mem", "8M", "--planner", "checkpoint-sqrt", "--json"];
    let out = json(&memc_ok(&args));
    let tensors = out["tensors"].as_array().unwrap();
    let again: u64 = tensors
        .iter()
        .flat_map(|t| t["gaps"].as_array().unwrap())
        .inspect(|g| assert_eq!(g["back_by"], "recompute"))
        .map(|g| number(g, "recompute_ns"))
        .sum();
    assert_eq!(again, number(&out, "recompute_ns"));
    assert!(again > 0 && tensors.iter().any(|t| t["does"] == "recompute"));
}

/// In the table of stalls a run that is an op's second is marked.
#[test]
fn a_stall_before_a_second_run_is_told_from_one_before_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 12, LINK);
    let args = ["explain", &problem, "--gpu-mem", "4M", "--planner", "capuchin", "--top", "100"];
    let stalls = json(&memc_ok(&[&args[..], &["--json"]].concat()))["stalls"].clone();
    let stalls = stalls.as_array().unwrap();
    let second = stalls.iter().filter(|s| s["recompute"] == true).count();
    assert!(second > 0 && second < stalls.len(), "both kinds wait: {stalls:?}");
    assert_eq!(memc_ok(&args).matches(" (recomputed)").count(), second);
}

/// Branches that all begin before the first ends: only another order fits. The plan has a bound and needs no
/// more than the budget, and `bound` says so.
#[test]
fn what_fits_in_another_order_only_is_planned_and_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let big = |i: u64| json!({"id": i, "time_ns": 1000, "reads": [0], "writes": [i]});
    let small = |i: u64| json!({"id": i + 3, "time_ns": 1000, "reads": [i], "writes": [i + 3]});
    let mut ops = vec![json!({"id": 0, "time_ns": 1000, "reads": [], "writes": [0]})];
    ops.extend((1..4).map(big).chain((1..4).map(small)));
    ops.push(json!({"id": 7, "time_ns": 1000, "reads": [4, 5, 6], "writes": [7]}));
    let bytes = |id: u64| if (1..4).contains(&id) { 200 << 10 } else { 1 << 10 };
    let tensor = |id| json!({"id": id, "name": format!("t{id}"), "bytes": bytes(id), "kind": "transient"});
    let device = json!({"memory_bytes": 1 << 30, "h2d_bytes_per_s": 0, "d2h_bytes_per_s": 0});
    let problem = json!({"format": "memc-problem/1", "name": "branches", "device": device,
        "tensors": (0..8).map(tensor).collect::<Vec<_>>(), "ops": ops});
    let path = put(folder.path(), "branches.json", problem.to_string().as_bytes()).display().to_string();
    let only = ["--gpu-mem", "300K", "--no-recompute", "--json"];
    let plan = json(&memc_ok(&[&["plan", &path], &only[..]].concat()));
    assert_eq!((&plan["step_ns"], &plan["bound_ns"]), (&json!(8000), &json!(8000)));
    assert_eq!((&plan["order"], &plan["order_changed"]), (&json!("given"), &json!(true)));
    let text = memc_ok(&["plan", &path, "--gpu-mem", "300K", "--no-recompute"]);
    assert!(text.contains("given, then changed"), "{text}");
    let whole = json(&memc_ok(&["plan", &path, "--gpu-mem", "1M", "--json"]));
    assert_eq!(whole["order_changed"], false);
    assert!(number(&plan, "smallest_feasible_bytes") <= 300 << 10, "{plan}");
    let bounds = json(&memc_ok(&[&["bound", &path], &only[..]].concat()));
    assert_eq!(bounds["bounds"][0]["fixed_order_ns"], Value::Null);
    assert_eq!(bounds["bounds"][0]["order_free_ns"], 8000);
}

/// Options for planners are refused beside a script, and options for models beside a problem.
#[test]
fn options_that_would_do_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let problem = chain(folder.path(), 12, LINK);
    let saved = folder.path().join("a.dec").display().to_string();
    memc_ok(&["plan", &problem, "--gpu-mem", "6M", "--effort", "0", "--decisions", &saved]);
    memc_fails(2, &["plan", &problem, "--gpu-mem", "6M", "--apply", &saved, "--no-recompute"]);
    for option in [["--device", "v100-16g"], ["--dim", "batch=4"], ["--loss", "mse"]] {
        let said = memc_fails(2, &[&["plan", &problem, "--gpu-mem", "6M"], &option[..]].concat());
        assert!(said.contains(option[0]) && said.contains("planning problem"), "{said}");
    }
}
