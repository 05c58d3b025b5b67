//! Recurrent layers: what they unroll to, and what is refused.

mod wire;

use memc_frontend::{ImportOptions, import_inference};
use memc_ir::{Module, OpKind};
use wire::*;

/// Imports one `op` node over a sequence of `time` steps, batch 2, 3 inputs and 4 hidden units.
fn layer(
    op: &str,
    (gates, directions): (i64, i64),
    time: &str,
    inputs: &[&str],
    outputs: &[&str],
    attrs: &[Vec<u8>],
    lengths: &[i32],
) -> Result<Module, String> {
    let dim = |n: i64| n.to_string();
    let (d, rows, twice) = (dim(directions), dim(4 * gates), dim(8 * gates));
    let lengths: Vec<u8> = lengths.iter().flat_map(|l| l.to_le_bytes()).collect();
    let graph = Graph {
        nodes: vec![node(op, "layer", inputs, outputs, attrs)],
        inputs: vec![
            value("x", 1, &[time, "2", "3"]),
            value("w", 1, &[&d, &rows, "3"]),
            value("r", 1, &[&d, &rows, "4"]),
            value("b", 1, &[&d, &twice]),
            value("h", 1, &[&d, "2", "4"]),
        ],
        outputs: outputs.iter().filter(|o| !o.is_empty()).map(|o| value(o, 1, &[])).collect(),
        initializers: vec![tensor("lengths", 6, &[2], &lengths)],
        ..Graph::default()
    };
    let import = import_inference(&graph.model(), &ImportOptions::default()).map_err(|e| e.to_string())?;
    assert_eq!(memc_ir::verify(&import.module), Ok(()));
    Ok(import.module)
}

fn count(m: &Module, f: fn(&OpKind) -> bool) -> usize {
    m.order.iter().filter(|&&o| m.ops[o].kind().is_some_and(f)).count()
}

fn shapes(m: &Module) -> Vec<Vec<u64>> {
    m.outputs.iter().map(|o| m.values[o.value].ty.shape.clone()).collect()
}

/// An LSTM has one product for the input of all steps, one per step for the hidden state, and shared weights.
#[test]
fn an_lstm_is_unrolled_with_shared_weights() {
    let m =
        layer("LSTM", (4, 1), "5", &["x", "w", "r", "b"], &["y", "yh", "yc"], &[], &[2, 2]).expect("import");
    assert_eq!(shapes(&m), [vec![5, 1, 2, 4], vec![1, 2, 4], vec![1, 2, 4]]);
    assert_eq!(count(&m, |k| matches!(k, OpKind::Gemm { .. })), 6);
    assert_eq!(count(&m, |k| matches!(k, OpKind::Sigmoid {})), 15);
    assert_eq!(count(&m, |k| matches!(k, OpKind::Select {})), 0);
}

/// Both directions of all three kinds of layer give outputs side by side.
#[test]
fn both_directions() {
    let attrs = [[field(1, "direction"), field(4, "bidirectional"), int(20, 3)].concat()];
    for (op, gates) in [("LSTM", 4), ("GRU", 3), ("RNN", 1)] {
        let m = layer(op, (gates, 2), "3", &["x", "w", "r", "b", "", "h"], &["y", "yh"], &attrs, &[2, 2]);
        assert_eq!(shapes(&m.expect("import")), [vec![3, 2, 2, 4], vec![2, 2, 4]], "{op}");
    }
}

/// Sequences that end early keep their state and give zeros from there on; only those steps pay for it.
#[test]
fn shorter_sequences_are_masked() {
    let m = layer("RNN", (1, 1), "4", &["x", "w", "r", "", "lengths"], &["y", "yh"], &[], &[3, 2]);
    let m = m.expect("import");
    // Steps 2 and 3, for the state and for the output.
    assert_eq!(count(&m, |k| matches!(k, OpKind::Select {})), 4);
    let bad = layer("RNN", (1, 1), "4", &["x", "w", "r", "", "lengths"], &["y"], &[], &[3, 9]);
    assert!(bad.expect_err("too long").contains("sequence length 9 is not between 0 and 4"));
}

/// Absurd lengths, shapes that do not fit and unknown functions are refused with the node's name.
#[test]
fn bad_layers_are_refused() {
    let refused = |time, inputs: &[&str], attrs: &[Vec<u8>], parts: &[&str]| {
        let text = layer("LSTM", (4, 1), time, inputs, &["y"], attrs, &[2, 2]).expect_err("must be refused");
        assert!(text.contains("`layer`") && parts.iter().all(|p| text.contains(p)), "{text}");
    };
    refused("100000000", &["x", "w", "r"], &[], &["100000000 time steps", "shorter sequence"]);
    refused("0", &["x", "w", "r"], &[], &["no time steps"]);
    refused("5", &["x", "r", "r"], &[], &["do not fit input"]);
    refused("5", &["x", "w", "r", "w"], &[], &["bias", "[1, 32]"]);
    refused("5", &["x", "w", "r", "", "", "w"], &[], &["initial state", "[1, 2, 4]"]);
    refused("5", &["x", "w", "r"], &[int_attr("hidden_size", 7)], &["hidden_size is 7"]);
    let strings = |list: &[&str]| {
        let body: Vec<u8> = list.iter().flat_map(|s| field(9, s)).collect();
        [field(1, "activations"), body, int(20, 8)].concat()
    };
    refused("5", &["x", "w", "r"], &[strings(&["Sigmoid", "Tanh", "Swish"])], &["`Swish`", "HardSigmoid"]);
    refused("5", &["x", "w", "r"], &[strings(&["Sigmoid"])], &["1 activations"]);
}
