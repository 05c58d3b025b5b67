//! Gradients at points where a function has a corner or a root has none: there they are what PyTorch gives.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod train;
mod wire;

use memc_frontend::ImportOptions;
use memc_ir::{Feed, Init, OutputRole};
use memc_reference::{Env, Tensor64, run};
use train::import_bytes;
use wire::*;

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The loss and its gradient with respect to the only parameter, `labels` being fed.
fn slope(graph: &Graph, loss: &str, labels: &[f32]) -> (f64, Vec<f64>) {
    let options = ImportOptions {
        loss: Some(loss.parse().unwrap()),
        optimizer: Some("none".parse().unwrap()),
        ..ImportOptions::default()
    };
    let m = import_bytes(&graph.model(), &options).unwrap().module;
    let mut env = Env::new();
    for input in m.inputs.values() {
        assert!(matches!(input.feed, Feed::Data { .. }));
        let tensor = Tensor64::from_bytes(m.values[input.value].ty.clone(), &floats(labels)).unwrap();
        env.insert(input.value, tensor);
    }
    for state in m.states.values() {
        let Init::Data(blob) = &state.init else { panic!("stored values are expected") };
        let bytes = blob.bytes().unwrap();
        let tensor = Tensor64::from_bytes(m.values[state.value].ty.clone(), bytes).unwrap();
        env.insert(state.value, tensor);
    }
    let all = run(&m, &env).unwrap();
    let of = |role| {
        let outputs: Vec<_> = m.outputs.iter().filter(|o| o.role == role).collect();
        assert_eq!(outputs.len(), 1, "{role:?}");
        all[&outputs[0].value].f().unwrap().to_vec()
    };
    (of(OutputRole::Loss)[0], of(OutputRole::Gradient))
}

fn close(got: &[f64], want: &[f64]) -> bool {
    got.len() == want.len() && got.iter().zip(want).all(|(g, w)| (g - w).abs() <= 1e-6 * w.abs().max(1.0))
}

/// Binary cross-entropy has slope sigmoid(x) - y everywhere, also at zero, and overflows nowhere.
#[test]
fn binary_cross_entropy() {
    let scores = [0.0, 0.0, 1.5, -1.5, 100.0, -100.0];
    let labels = [0.0, 1.0, 0.25, 0.75, 0.0, 1.0];
    let graph = Graph {
        nodes: vec![node("Identity", "i", &["w"], &["y"], &[])],
        outputs: vec![value("y", 1, &["6"])],
        initializers: vec![tensor("w", 1, &[6], &floats(&scores))],
        ..Graph::default()
    };
    let (loss, gradient) = slope(&graph, "bce-with-logits", &labels);
    let want: Vec<f64> = scores
        .iter()
        .zip(labels)
        .map(|(&x, y)| (1.0 / (1.0 + (-f64::from(x)).exp()) - f64::from(y)) / 6.0)
        .collect();
    assert!(close(&gradient, &want), "{gradient:?}, not {want:?}");
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let sum: f64 =
        scores.iter().zip(labels).map(|(&x, y)| softplus(f64::from(x)) - f64::from(x) * f64::from(y)).sum();
    assert!(close(&[loss], &[sum / 6.0]), "{loss}");
}

/// The mean absolute error has slope zero where it is zero.
#[test]
fn absolute_error() {
    let graph = Graph {
        nodes: vec![node("Identity", "i", &["w"], &["y"], &[])],
        outputs: vec![value("y", 1, &["3"])],
        initializers: vec![tensor("w", 1, &[3], &floats(&[2.0, -1.0, 0.5]))],
        ..Graph::default()
    };
    let (_, gradient) = slope(&graph, "l1", &[2.0, 1.0, 0.0]);
    assert!(close(&gradient, &[0.0, -1.0 / 3.0, 1.0 / 3.0]), "{gradient:?}");
}

/// The gradient of the sum of what `nodes` make of `w`, of shape [2, 2], as `y`.
fn of_sum(nodes: &[Vec<u8>], w: [f32; 4]) -> Vec<f64> {
    let mut nodes = nodes.to_vec();
    nodes.push(node("ReduceSum", "s", &["y"], &["loss"], &[int_attr("keepdims", 0)]));
    let graph = Graph {
        nodes,
        outputs: vec![value("loss", 1, &[])],
        initializers: vec![
            tensor("w", 1, &[2, 2], &floats(&w)),
            tensor("axes", 7, &[1], &1i64.to_le_bytes()),
            tensor("eps", 1, &[], &floats(&[0.5])),
        ],
        ..Graph::default()
    };
    slope(&graph, "output", &[]).1
}

/// Norms have slope zero at zero; dividing by a clipped one divides by the bound there.
#[test]
fn norms_of_zero_rows() {
    let w = [3.0, 4.0, 0.0, 0.0];
    let norm = node("ReduceL2", "n", &["w", "axes"], &["y"], &[]);
    let got = of_sum(&[norm], w);
    assert!(close(&got, &[0.6, 0.8, 0.0, 0.0]), "{got:?}");
    let normalised = [
        node("ReduceL2", "n", &["w", "axes"], &["norm"], &[]),
        node("Clip", "c", &["norm", "eps"], &["clipped"], &[]),
        node("Div", "d", &["w", "clipped"], &["y"], &[]),
    ];
    let got = of_sum(&normalised, w);
    assert!(close(&got, &[0.2 - 7.0 * 0.6 / 25.0, 0.2 - 7.0 * 0.8 / 25.0, 2.0, 2.0]), "{got:?}");
    let got = of_sum(&[node("LpNormalization", "n", &["w"], &["y"], &[int_attr("axis", 1)])], w);
    assert!(got.iter().all(|g| g.is_finite()), "{got:?}");
    let pooled = [
        node("Unsqueeze", "u", &["w", "axes"], &["u"], &[]),
        node("LpPool", "p", &["u"], &["y"], &[ints_attr("kernel_shape", &[2]), int_attr("p", 3)]),
    ];
    let got = of_sum(&pooled, w);
    let cube = 91f64.powf(-2.0 / 3.0);
    assert!(close(&got, &[9.0 * cube, 16.0 * cube, 0.0, 0.0]), "{got:?}");
}

/// Powers at zero: their limits, as PyTorch's.
#[test]
fn powers_at_zero() {
    for (exponent, want) in [(2.0f32, 0.0), (1.5, 0.0), (1.0, 1.0), (0.5, f64::INFINITY), (0.0, 0.0)] {
        let graph = Graph {
            nodes: vec![
                node("Pow", "p", &["w", "exponent"], &["y"], &[]),
                node("ReduceSum", "s", &["y"], &["loss"], &[int_attr("keepdims", 0)]),
            ],
            outputs: vec![value("loss", 1, &[])],
            initializers: vec![
                tensor("w", 1, &[2], &floats(&[0.0; 2])),
                tensor("exponent", 1, &[], &floats(&[exponent])),
            ],
            ..Graph::default()
        };
        assert_eq!(slope(&graph, "output", &[]).1, [want; 2], "{exponent}");
    }
}

/// Where every label is ignored, losses with and without class weights are zero with gradient zero. Class
/// weights are no parameters.
#[test]
fn all_labels_ignored() {
    for weights in [false, true] {
        let inputs = if weights { vec!["w", "labels", "weights"] } else { vec!["w", "labels"] };
        let attrs = [int_attr("ignore_index", -100), text_attr("reduction", "mean")];
        let graph = Graph {
            nodes: vec![node("SoftmaxCrossEntropyLoss", "l", &inputs, &["loss"], &attrs)],
            outputs: vec![value("loss", 1, &[])],
            initializers: vec![
                tensor("w", 1, &[2, 3], &floats(&[0.5, 1.0, -2.0, 0.0, 3.0, 1.0])),
                tensor("labels", 7, &[2], &[-100i64; 2].map(i64::to_le_bytes).concat()),
                tensor("weights", 1, &[3], &floats(&[1.0, 2.0, 0.5])),
            ],
            ..Graph::default()
        };
        assert_eq!(slope(&graph, "output", &[]), (0.0, vec![0.0; 6]), "{weights}");
    }
}
