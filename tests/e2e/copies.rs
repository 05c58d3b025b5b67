//! Tensors copied more than once in a step, or before the first one: the run equals the unplanned one.

use memc_plan::{Action, Command, PlanFile};

use crate::support::{json, memc_ok, number, run, verified};

/// A state that begins a step on both sides: the prologue fills its host shadow, and every step is the
/// unplanned one.
#[test]
fn a_state_on_both_sides_is_copied_to_its_host_shadow_and_runs_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (saved, plan) = (file("a.dec"), file("a.plan"));
    let model = "models/mlp_s/training_model.onnx";
    memc_ok(&["compile", model, "--gpu-mem", "11000B", "--decisions", &saved, "-o", &plan]);
    let resident_slots = std::fs::read_to_string(&saved).unwrap().matches(" both").count();
    let copies = |c: &&Command| matches!(c.action, Action::Copy { .. });
    let filled = PlanFile::open(&plan).unwrap().plan().prologue.iter().filter(copies).count();
    assert!(
        resident_slots > 0 && filled == resident_slots,
        "{resident_slots} resident slots, {filled} copies"
    );
    run(plan.as_ref(), folder.path(), verified(4, 7));
}

/// The host writes an input once, however many copies read it, and in time for the step to be the ideal one:
/// while the step before ends, where the input's bytes are free by then.
#[test]
fn inputs_that_arrive_ahead_or_twice_run_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("a.plan").display().to_string();
    let model = "models/cnn_bn/training_model.onnx";
    for (budget, most) in [("300K", 2), ("peak*75%", 2), ("1M", 1)] {
        let out = json(&memc_ok(&["compile", model, "--gpu-mem", budget, "-o", &plan, "--json"]));
        assert_eq!(number(&out, "step_ns"), number(&out, "ideal_ns"), "{budget}: {out}");
        let opened = PlanFile::open(&plan).unwrap();
        let copies = |slot| {
            let reads = |c: &&Command| matches!(&c.action, Action::Copy { src, .. } if *src == slot);
            opened.plan().body.iter().filter(reads).count()
        };
        assert_eq!(opened.plan().inputs.iter().map(|i| copies(i.slot)).max(), Some(most), "{budget}");
        run(plan.as_ref(), folder.path(), verified(4, 7));
    }
}
