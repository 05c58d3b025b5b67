//! Problems that are none, and devices that cannot do everything: exit codes, and which op or tensor is
//! named.

use serde_json::{Value, json};

use crate::support::{json, memc, memc_fails, memc_ok, number, put};

/// Two ops, each with one tensor, on a device that swaps.
fn small() -> Value {
    json!({
        "format": "memc-problem/1", "name": "small",
        "device": {"memory_bytes": 1u64 << 30, "h2d_bytes_per_s": 1e9, "d2h_bytes_per_s": 1e9},
        "tensors": [
            {"id": 7, "name": "w", "bytes": 1 << 20, "kind": "persistent"},
            {"id": 8, "name": "x", "bytes": 4 << 20, "kind": "transient"},
        ],
        "ops": [
            {"id": 0, "name": "forward", "time_ns": 1000, "reads": [7], "writes": [8]},
            {"id": 1, "name": "update", "time_ns": 1000, "reads": [7, 8], "writes": [7]},
        ],
    })
}

fn changed(change: impl FnOnce(&mut Value)) -> Value {
    let mut problem = small();
    change(&mut problem);
    problem
}

/// Every way to break a problem is exit 3, with the file and what is wrong named.
#[test]
fn malformed_problems_are_exit_3_and_name_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let cases: Vec<(Value, &[&str])> = vec![
        (changed(|p| p["ops"][0]["reads"] = json!([9])), &["op 0 (forward)", "unknown tensor 9"]),
        (changed(|p| p["tensors"][1]["bytes"] = json!(-1)), &["tensor 8", "bytes", "non-negative"]),
        (changed(|p| p["tensors"][1]["bytes"] = json!(u64::MAX)), &["tensor 8", "below 2^60"]),
        (changed(|p| p["tensors"][1]["bytes"] = json!(1e300)), &["tensor 8", "below 2^60"]),
        (changed(|p| p["tensors"][1]["bytes"] = json!((1u64 << 60) - 1)), &["too large"]),
        (changed(|p| p["ops"][0]["time_ns"] = json!((1u64 << 60) - 1)), &["too large to plan", "forward"]),
        (
            changed(|p| p["ops"][0]["time_ns"] = json!(1u64 << 56)),
            &["too large to plan", "2^52 ns", "forward"],
        ),
        (
            changed(|p| p["device"]["copy_latency_ns"] = json!(1u64 << 55)),
            &["too large to plan", "2^52 ns", "latency is 36028797018963968 ns"],
        ),
        (changed(|p| p["ops"][0]["time_ns"] = json!("soon")), &["op 0 (forward)", "time_ns"]),
        (changed(|p| p["ops"][0]["workspace_bytes"] = json!(-4)), &["op 0 (forward)", "workspace_bytes"]),
        (changed(|p| p["ops"][0]["after"] = json!([1])), &["cycle", "forward", "update"]),
        (changed(|p| p["ops"][0]["after"] = json!([0])), &["cycle", "forward"]),
        (changed(|p| p["ops"][0]["after"] = json!([5])), &["op 0 (forward)", "unknown op 5"]),
        (
            changed(|p| {
                p["ops"][0]["reads"] = json!([8]);
                p["ops"][0]["writes"] = json!([7]);
                p["ops"][1] = json!({"id": 1, "name": "late", "time_ns": 1, "reads": [7], "writes": [8]});
            }),
            &["cycle", "forward reads tensor x before late computes it"],
        ),
        (changed(|p| p["ops"][1]["writes"] = json!([7, 7])), &["update writes tensor w twice"]),
        (changed(|p| p["ops"][1]["outputs"] = json!([[8, -1]])), &["op 1 (update)", "outputs"]),
        (
            changed(|p| p["ops"][1]["outputs"] = json!([[8, (4 << 20) + 1]])),
            &["op update hands out 4194305 bytes of tensor x, which has 4194304"],
        ),
        (changed(|p| p["ops"] = json!([])), &["no ops"]),
        (changed(|p| p["ops"][1]["id"] = json!(0)), &["op 0 (update) is there twice"]),
        (changed(|p| p["tensors"][1]["id"] = json!(7)), &["tensor 7 is there twice"]),
        (
            changed(|p| p["tensors"][1]["kind"] = json!("eternal")),
            &["tensor 8", "transient, persistent or input"],
        ),
        (changed(|p| p["device"]["h2d_bytes_per_s"] = json!(-1)), &["h2d_bytes_per_s", "from 1 to 1e18"]),
        (changed(|p| p["device"]["d2h_bytes_per_s"] = json!(1e300)), &["d2h_bytes_per_s", "from 1 to 1e18"]),
        (changed(|p| p["device"]["d2h_bytes_per_s"] = json!(0.5)), &["d2h_bytes_per_s", "0 for no link"]),
        (changed(|p| p["format"] = json!("memc-problem/2")), &["memc-problem/2", "memc-problem/1"]),
        (json!({"format": "memc-profile/1", "kernels": "gpu"}), &["memc-profile/1", "--device takes"]),
        (changed(|p| p["ops"] = json!({})), &["ops must be a list"]),
        (json!([]), &["the file must be an object"]),
        (changed(|p| p["tensors"][1]["name"] = json!(8)), &["tensor 8: name must be a string"]),
        (changed(|p| p["ops"][1]["name"] = json!(["up"])), &["op 1: name must be a string"]),
        (changed(|p| p["opps"] = json!([])), &["the file: unknown field `opps`", "ops"]),
        (changed(|p| p["device"]["h2d"] = json!(1)), &["device: unknown field `h2d`", "h2d_bytes_per_s"]),
        (changed(|p| p["tensors"][1]["size"] = json!(1)), &["tensor 8: unknown field `size`", "bytes"]),
        (
            changed(|p| p["ops"][1]["workspace_byte"] = json!(1)),
            &["op 1 (update): unknown field `workspace_byte`", "workspace_bytes"],
        ),
    ];
    for (problem, parts) in cases {
        let path = put(folder.path(), "bad.json", problem.to_string().as_bytes()).display().to_string();
        for command in ["plan", "bound", "compare"] {
            let said = memc_fails(3, &[command, &path, "--gpu-mem", "1G"]);
            assert!(
                said.contains("bad.json: ") && parts.iter().all(|p| said.contains(p)),
                "{parts:?}: {said}"
            );
        }
    }
}

/// Of two values of one key neither is meant more than the other.
#[test]
fn a_key_that_an_object_has_twice_is_exit_3() {
    let folder = tempfile::tempdir().unwrap();
    for (once, twice, key) in [
        ("\"time_ns\":1000", "\"time_ns\":1000,\n\"time_ns\":2000", "time_ns"),
        ("\"ops\":", "\n\"tensors\":[],\"ops\":", "tensors"),
    ] {
        let text = small().to_string().replacen(once, twice, 1);
        let path = put(folder.path(), "twice.json", text.as_bytes()).display().to_string();
        let said = memc_fails(3, &["plan", &path, "--gpu-mem", "1G"]);
        assert!(said.contains(&format!("twice.json: one object has `{key}` twice at line 2")), "{said}");
    }
}

/// A trace may have tensors that it never saw written: they appear where they are read first. An input's
/// bytes may be used for what is computed from it.
#[test]
fn transients_that_nothing_writes_and_inputs_that_ops_write_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |problem: Value| {
        let path = put(folder.path(), "good.json", problem.to_string().as_bytes()).display().to_string();
        json(&memc_ok(&["plan", &path, "--gpu-mem", "5M", "--json"]))
    };
    let unwritten = plan(changed(|p| p["ops"][0]["writes"] = json!([])));
    assert_eq!(
        (number(&unwritten, "step_ns"), number(&unwritten, "swap_in_bytes")),
        (2000, 0),
        "{unwritten}"
    );
    let input = plan(changed(|p| {
        p["tensors"][1]["kind"] = json!("input");
        p["ops"][0]["reads"] = json!([7, 8]);
    }));
    assert!(number(&input, "step_ns") >= 2000, "{input}");
}

/// Who has no name that can be seen is called by its id.
#[test]
fn empty_names_are_replaced_by_ids() {
    let folder = tempfile::tempdir().unwrap();
    let problem = changed(|p| {
        p["tensors"][1]["name"] = json!("");
        p["ops"][0]["name"] = json!("  ");
    });
    let path = put(folder.path(), "unnamed.json", problem.to_string().as_bytes()).display().to_string();
    let said = memc_fails(4, &["plan", &path, "--gpu-mem", "4M"]);
    assert!(said.contains("working set peaks at op0: ") && said.contains("4.00 MiB  t8\n"), "{said}");
}

/// Fields for people only may hold anything.
#[test]
fn names_origin_and_reference_are_read_over() {
    let folder = tempfile::tempdir().unwrap();
    let problem = changed(|p| {
        p["origin"] = json!("a trace");
        p["reference"] = json!({"ideal_ms": 1.0, "others": [1, 2]});
        p["device"]["name"] = json!("a device");
    });
    let path = put(folder.path(), "said.json", problem.to_string().as_bytes()).display().to_string();
    let plan = json(&memc_ok(&["plan", &path, "--gpu-mem", "1G", "--json"]));
    assert_eq!(plan["step_ns"], 2000);
}

/// Ops without times have no ratios: no number stands where there is none.
#[test]
fn a_step_that_takes_no_time_has_no_ratios() {
    let folder = tempfile::tempdir().unwrap();
    let problem = changed(|p| (0..2).for_each(|op| p["ops"][op]["time_ns"] = json!(0)));
    let path = put(folder.path(), "idle.json", problem.to_string().as_bytes()).display().to_string();
    let of = |command: &str, budget: &str, flags: &[&str]| {
        memc_ok(&[&[command, &path, "--effort", "0", "--gpu-mem", budget], flags].concat())
    };
    let rows = [
        json(&of("plan", "1G", &["--json"])),
        json(&of("compare", "1G", &["--json", "--planners", "memc"]))[0].clone(),
        json(&of("sweep", "8M:8M:1M", &["--json"]))[0].clone(),
        json(&of("explain", "1G", &["--json"])),
    ];
    for row in rows {
        assert_eq!((&row["ideal_ns"], &row["step_ns"]), (&json!(0), &json!(0)), "{row}");
        assert!(row["step_over_ideal"].is_null() && row["step_over_bound"].is_null(), "{row}");
    }
    let bound = json(&memc_ok(&["bound", &path, "--gpu-mem", "1G", "--json"]));
    assert!(bound["bounds"][0]["fixed_order_over_ideal"].is_null(), "{bound}");
    let texts = [
        (of("plan", "1G", &[]), "- of the ideal step, - of the certified bound"),
        (of("compare", "1G", &["--planners", "memc"]), "0.000 ms        -        -"),
        (of("sweep", "8M:8M:1M", &[]), "0.000 ms        -      -        -"),
        (of("explain", "1G", &[]), "to the host - of the step, to the device -"),
        (memc_ok(&["bound", &path, "--gpu-mem", "1G"]), "0.000 ms        -     0.000 ms        -"),
    ];
    for (text, part) in texts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A published method that fails says why: with the flag that keeps it from its means, and bytes that can be
/// read. What is said to be enough is so for the planner that is named.
#[test]
fn a_planner_without_a_plan_says_what_is_forbidden_and_whose_the_smallest_budget_is() {
    let folder = tempfile::tempdir().unwrap();
    let problem = crate::planning::chain(folder.path(), 12, crate::planning::LINK);
    let fails = |budget: &str, flags: &[&str]| {
        memc_fails(4, &[&["plan", &problem, "--effort", "0", "--gpu-mem", budget], flags].concat())
    };
    for (flags, parts) in [
        (
            &["--planner", "dtr", "--no-recompute"][..],
            &["dtr", "; --no-recompute keeps it from running ops again"][..],
        ),
        (&["--planner", "odswap", "--no-swap"], &["odswap", "; --no-swap keeps it from swapping"]),
        (&["--planner", "vdnn-all", "--no-swap"], &["MiB (", "; --no-swap keeps it from swapping"]),
        (&["--planner", "belady", "--no-swap"], &["belady", "; --no-swap keeps it from swapping"]),
        (
            &["--planner", "smartpool", "--no-swap"],
            &["smartpool swaps nothing and needs 13.00 MiB (13,631,488 B)"],
        ),
    ] {
        let said = fails("6M", flags);
        assert!(parts.iter().all(|part| said.contains(part)), "{flags:?}: {said}");
        assert!(said.contains("with --planner memc") && !said.contains("no plan fits"), "{flags:?}: {said}");
    }
    let said = fails("6M", &["--planner", "smartpool", "--no-recompute"]);
    assert!(!said.contains("--no-recompute") && said.contains("--planner memc"), "{said}");
    let said = fails("2M", &["--planner", "dtr"]);
    assert!(said.contains("that is enough for --planner memc; others may need more"), "{said}");
    assert!(!fails("2M", &[]).contains("--planner memc"));
    let told = fails("6M", &["--planner", "checkpoint-sqrt"]);
    let budget =
        told.split("a plan: ").nth(1).and_then(|t| t.split(&['(', ' '][..]).find(|w| w.contains(',')));
    let budget = format!("{}B", budget.unwrap_or_else(|| panic!("{told}")).replace(',', ""));
    memc_ok(&["plan", &problem, "--effort", "0", "--gpu-mem", &budget, "--planner", "memc"]);
    fails(&budget, &["--planner", "checkpoint-sqrt"]);
}

/// A file that ends early, wherever it does, is refused and no crash.
#[test]
fn truncated_problems_are_exit_3() {
    let folder = tempfile::tempdir().unwrap();
    let text = small().to_string();
    for end in (0..text.len()).step_by(97) {
        let path = put(folder.path(), "cut.json", &text.as_bytes()[..end]).display().to_string();
        let said = memc_fails(3, &["plan", &path, "--gpu-mem", "1G"]);
        assert!(said.contains("cut.json: not JSON"), "{said}");
    }
    let path = put(folder.path(), "bytes.json", &[0xff, 0xfe, 0x00]).display().to_string();
    assert!(memc_fails(3, &["plan", &path, "--gpu-mem", "1G"]).contains("not UTF-8"));
    assert!(memc_fails(74, &["plan", "nowhere.json", "--gpu-mem", "1G"]).contains("nowhere.json"));
}

/// An op that does not fit at all is named with its tensors, whatever the planner.
#[test]
fn an_op_larger_than_the_budget_is_exit_4_with_its_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = put(folder.path(), "small.json", small().to_string().as_bytes()).display().to_string();
    for planner in ["memc", "swapadvisor", "vdnn-all", "keep-all"] {
        let said = memc_fails(4, &["plan", &path, "--gpu-mem", "4M", "--planner", planner]);
        let named = ["working set peaks at", "forward", "4.00 MiB  x", "1.00 MiB  w", "--gpu-mem 5242880B"];
        assert!(named.iter().all(|n| said.contains(n)), "{planner}: {said}");
    }
}

/// Without a link nothing is swapped, by any planner: either it fits, or it runs ops again, or there is no
/// plan.
#[test]
fn zero_bandwidth_means_no_swapping() {
    let folder = tempfile::tempdir().unwrap();
    for field in ["h2d_bytes_per_s", "d2h_bytes_per_s"] {
        let problem = changed(|p| p["device"][field] = json!(0));
        let path = put(folder.path(), "cut-off.json", problem.to_string().as_bytes()).display().to_string();
        let text = memc_ok(&["compare", &path, "--gpu-mem", "8M", "--json"]);
        for row in json(&text).as_array().unwrap() {
            assert_eq!((number(row, "swap_in_bytes"), number(row, "swap_out_bytes")), (0, 0), "{row}");
        }
        let said = memc_fails(4, &["plan", &path, "--gpu-mem", "4M"]);
        assert!(said.contains("no plan fits") && said.contains("forward"), "{said}");
        assert!(!said.contains(field), "no link would help an op that does not fit: {said}");
    }
}

/// Where it is for want of a link that nothing fits, that is said, unless swapping is not wanted anyway.
#[test]
fn a_budget_that_only_a_link_would_do_for_says_that_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let problem = changed(|p| {
        p["device"] = json!({"memory_bytes": 1u64 << 30, "h2d_bytes_per_s": 1e9});
        p["tensors"][1] = json!({"id": 8, "name": "m", "bytes": 4 << 20, "kind": "persistent"});
        p["ops"][1] = json!({"id": 1, "name": "other", "time_ns": 1, "reads": [7], "writes": [7]});
        p["ops"][0] = json!({"id": 0, "name": "first", "time_ns": 1, "reads": [8], "writes": [8]});
    });
    let path = put(folder.path(), "alone.json", problem.to_string().as_bytes()).display().to_string();
    let why = "the device's d2h_bytes_per_s is 0, so that nothing can be swapped";
    for command in ["plan", "compare"] {
        let args = [command, &path, "--gpu-mem", "4M"];
        let said = memc_fails(4, &args);
        assert!(said.contains(why), "{said}");
        let said = memc_fails(4, &[&args[..], &["--no-swap"]].concat());
        assert!(!said.contains("d2h_bytes_per_s"), "{said}");
    }
    let text = memc_ok(&["bound", &path, "--gpu-mem", "4M"]);
    let row = |what: &str| {
        let row =
            text.lines().find(|l| l.starts_with(&format!("{what} in the given order: first has to have")));
        row.unwrap_or_else(|| panic!("{what}: {text}"))
    };
    assert!(row("swap only").ends_with(why) && !row("recompute only").contains("d2h"), "{text}");
    let bound = json(&memc_ok(&["bound", &path, "--gpu-mem", "4M", "--json"]));
    assert!(bound["feasible"] == true && bound["why"].is_null(), "{bound}");
    assert!(bound["bounds"][2]["why"].as_str().unwrap().ends_with(why), "{bound}");
}

/// Where nothing fits, `bound` says why in words and as an object, as `plan` does.
#[test]
fn a_bound_that_there_is_none_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = put(folder.path(), "small.json", small().to_string().as_bytes()).display().to_string();
    let out = memc(&["bound", &path, "--gpu-mem", "4M", "--json"]);
    let bound = json(&String::from_utf8(out.stdout).unwrap());
    let why = bound["why"].as_str().unwrap();
    assert!(out.status.code() == Some(4) && bound["feasible"] == false, "{bound}");
    assert!(why.contains("forward has to have 5.00 MiB"), "{bound}");
    assert!(String::from_utf8(out.stderr).unwrap().contains(why));
    assert!(memc_fails(4, &["bound", &path, "--gpu-mem", "4M"]).contains(why));
}

/// The smallest budget that an error names works with the planner's permissions.
#[test]
fn the_smallest_budget_is_one_without_swapping_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let problem = crate::planning::chain(folder.path(), 12, crate::planning::LINK);
    let plan = |budget: &str, flags: &[&str]| {
        let out =
            memc(&[&["plan", &problem, "--effort", "0", "--gpu-mem", budget, "--json"], flags].concat());
        json(&String::from_utf8(out.stdout).unwrap())
    };
    let smallest = |flags: &[&str]| number(&plan("3M", flags), "smallest_feasible_bytes");
    let (all, rerun, none) =
        (smallest(&[]), smallest(&["--no-swap"]), smallest(&["--no-swap", "--no-recompute"]));
    assert!(all <= rerun && rerun < none, "{all} {rerun} {none}");
    assert_eq!(none, number(&plan("1G", &[]), "unplanned_peak_bytes"));
    let out = plan(&format!("{rerun}B"), &["--no-swap"]);
    assert!(out["feasible"] == true && number(&out, "recompute_ops") > 0, "{out}");
    let said =
        memc_fails(4, &["plan", &problem, "--gpu-mem", "4M", "--no-swap", "--planner", "checkpoint-sqrt"]);
    assert!(
        said.contains("smallest budget known to have a plan") && !said.contains("no plan fits"),
        "{said}"
    );
}
