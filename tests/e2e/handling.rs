//! Ways in which named tensors leave the device: kept to, or refused with the reason.

use crate::support::{memc_fails, memc_ok};

const MODEL: &str = "models/cnn_bn/training_model.onnx";
const BUDGET: [&str; 8] = ["plan", MODEL, "--device", "cpu", "--gpu-mem", "300K", "--effort", "1"];

/// The lines of a plan's decisions.
fn decisions(more: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("d.txt");
    let path = file.display().to_string();
    memc_ok(&[&BUDGET[..], more, &["--decisions", &path]].concat());
    std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn named_tensors_leave_as_they_are_told() {
    let begins = |lines: &[String], word: &str| lines.iter().filter(|line| line.starts_with(word)).count();
    let free = decisions(&[]);
    let swapped: Vec<&str> = free.iter().filter_map(|line| line.strip_prefix("out %")).collect();
    let first = swapped.first().expect("something is swapped in 300K");

    let kept = decisions(&["--keep", first]);
    assert_eq!(begins(&kept, &format!("in %{first}")), 0, "{kept:#?}");
    assert_eq!(begins(&decisions(&["--swap", "*"]), "recompute "), 0);
    // States cannot be computed again; all else leaves for that alone.
    let again = decisions(&["--recompute", "*"]);
    let left: Vec<&str> = again.iter().filter_map(|line| line.strip_prefix("out %")).collect();
    let is_state = |name: &&str| again.iter().any(|line| line.starts_with(&format!("resident %{name} ")));
    assert!(!left.is_empty() && left.iter().all(is_state), "{again:#?}");
}

#[test]
fn what_cannot_be_handled_so_is_refused_with_the_reason() {
    for (more, why) in [
        (&["--keep", "absent*"][..], "--keep absent*: no tensor is called so"),
        (
            &["--recompute", "fc.weight"],
            "--recompute fc.weight: no op computes what is called so, or not again",
        ),
        (&["--keep", "fc.*", "--swap", "fc.weight"], "is named by another option, too"),
        (&["--keep", "fc.weight", "--planner", "vdnn"], "vdnn knows nothing of them"),
        (&["--swap", "fc.weight", "--no-swap"], "cannot be used with"),
    ] {
        let said = memc_fails(2, &[&BUDGET[..], more].concat());
        assert!(said.contains(why), "{said}");
    }
    let said = memc_fails(4, &[&BUDGET[..], &["--keep", "*"]].concat());
    assert!(said.contains("no plan fits 300.00 KiB") && said.contains("smallest feasible"), "{said}");
}

/// The budget that an error names has a plan that handles tensors as they are to be handled, and is less than
/// what keeps all of them.
#[test]
fn the_smallest_budget_is_one_for_tensors_that_are_handled_so() {
    let plan = ["plan", MODEL, "--device", "cpu", "--keep", "fc.bias", "--gpu-mem"];
    let said = memc_fails(4, &[&plan[..], &["200K"]].concat());
    let named = said.split("pass --gpu-mem ").nth(1).unwrap().split_whitespace().next().unwrap();
    let bytes: u64 = named.trim_end_matches('B').parse().unwrap();
    assert!(bytes < 300 << 10, "{said}");
    memc_ok(&[&plan[..], &[named]].concat());
}
