//! Gradient accumulation: `--accumulate 2` equals two calls of the training graph before each optimizer step.

use memc_runtime::{Rate, RunOptions};

use crate::support::{adversarial, floats, memc_ok, npz, put, root, run};

/// Runs a model whose reference was recorded with two micro-steps for each optimizer step.
fn check(model: &str, tolerance: f32) {
    let arrays = npz(&root().join("models").join(model).join("reference_accumulate2.npz"));
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("model.plan");
    let path = format!("models/{model}/training_model.onnx");
    for budget in ["100%", "60%"] {
        let mut args = vec!["compile", &path, "--accumulate", "2:sum", "-o"];
        let plan_text = plan.display().to_string();
        args.push(&plan_text);
        let estimate = memc_ok(&["estimate", &path, "--accumulate", "2:sum", "--json"]);
        let figure = |name| crate::support::number(&crate::support::json(&estimate), name);
        let (peak, least) = (figure("peak_bytes"), figure("smallest_feasible_bytes"));
        let bytes = format!("{}B", if budget == "100%" { peak } else { least.max(peak / 10 * 6) });
        args.extend(["--gpu-mem", &bytes]);
        memc_ok(&args);
        let losses = floats(&arrays["losses"]);
        let options = RunOptions {
            steps: Some(losses.len() as u64 / 2),
            inputs: vec![
                ("input".into(), put(folder.path(), "x.npy", &arrays["x"]).into()),
                ("labels".into(), put(folder.path(), "y.npy", &arrays["y"]).into()),
            ],
            lr: Rate::Constant(floats(&arrays["lr"])[0]),
            verify: true,
            cpu: adversarial(11),
            ..RunOptions::default()
        };
        let ran = run(&plan, folder.path(), options);
        for (k, (have, pair)) in ran.losses.iter().zip(losses.chunks(2)).enumerate() {
            let want = (pair[0] + pair[1]) / 2.0;
            assert!(
                (have - want).abs() <= 1e-5,
                "{model}: mean loss of step {k} is {have}, reference {want}"
            );
        }
        for (name, bytes) in arrays.iter().filter_map(|(n, b)| n.strip_prefix("final/").map(|n| (n, b))) {
            let have = ran.states[name].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            for (have, want) in have.zip(floats(bytes)) {
                assert!((have - want).abs() <= tolerance, "{model}: {name} is {have}, reference {want}");
            }
        }
    }
}

#[test]
fn two_micro_steps_of_adamw() {
    check("mlp_s", 1e-5);
}

#[test]
fn two_micro_steps_of_sgd_with_batch_norm_statistics_moving_twice() {
    check("cnn_bn_sgd", 1e-6);
}
