//! The routes of one model to a training step: ONNX Runtime's artifact, PyTorch's one-file step, and the
//! forward model.

use std::path::Path;

use memc_frontend::ImportOptions;
use memc_ir::Module;
use memc_passes::GRAPH_PIPELINE;
use memc_passes::analysis::peak_live_bytes;

use super::models::{imported, profile, run};

/// Panics where the steps of one model differ by more than one part in twenty in ops or in bytes live at
/// once.
pub(crate) fn check() {
    for model in ["mlp_s", "cnn_bn", "bert_tiny_nodrop"] {
        let artifact = measures(&format!("{model}_sgd/training_model.onnx"), &ImportOptions::default());
        let step = measures(&format!("{model}_step/sgd.onnx"), &ImportOptions::default());
        let recipe = ImportOptions {
            loss: Some("cross-entropy".parse().unwrap()),
            optimizer: Some("sgd".parse().unwrap()),
            ..ImportOptions::default()
        };
        let forward = measures(&format!("gen/{model}.forward.onnx"), &recipe);
        for (route, other) in [("one-file step", step), ("forward model", forward)] {
            for (what, a, b) in [("ops", artifact.0, other.0), ("bytes", artifact.1, other.1)] {
                assert!(a.abs_diff(b) * 20 <= a, "{model}: {b} {what} as a {route}, {a} as an artifact");
            }
        }
    }
}

/// Kernels and bytes live at once of the step that the compiler makes of a model.
fn measures(name: &str, options: &ImportOptions) -> (u64, u64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
    let mut m: Module = imported(&path, options);
    run(&mut m, GRAPH_PIPELINE);
    run(&mut m, "schedule-ops");
    let kernels = m.order.iter().filter(|&&op| !m.ops[op].is_view()).count() as u64;
    (kernels, peak_live_bytes(&m, profile()).unwrap().bytes)
}
