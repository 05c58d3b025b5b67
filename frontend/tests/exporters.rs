//! Exporters merge equal parameters, fold reshapes into them and give them names of their own.
#![allow(clippy::panic, reason = "a test fails by panicking")]

mod train;
mod wire;

use memc_frontend::{Import, ImportError, ImportOptions};
use memc_ir::{OutputRole, Role};
use train::import_bytes;
use wire::*;

fn options(trainable: &[&str]) -> ImportOptions {
    ImportOptions {
        loss: Some("mse".parse().expect("loss")),
        optimizer: Some("none".parse().expect("optimizer")),
        trainable: trainable.iter().map(ToString::to_string).collect(),
        ..ImportOptions::default()
    }
}

fn imported(graph: &Graph, trainable: &[&str]) -> Import {
    let import = import_bytes(&graph.model(), &options(trainable)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(memc_ir::verify(&import.module), Ok(()));
    import
}

fn refused(graph: &Graph, trainable: &[&str]) -> String {
    match import_bytes(&graph.model(), &options(trainable)) {
        Err(ImportError::Usage(text)) => text,
        other => panic!("a usage error is expected, not {other:?}"),
    }
}

/// The names of parameters, which are those that have a gradient.
fn trained(import: &Import) -> Vec<&str> {
    let m = &import.module;
    let states = m.states.values().filter(|s| s.role == Role::Param);
    let names: Vec<&str> = states.map(|s| m.values[s.value].name.as_str()).collect();
    let gradients: Vec<&str> = m
        .outputs
        .iter()
        .filter(|o| o.role == OutputRole::Gradient)
        .filter_map(|o| o.name.strip_suffix("_grad"))
        .collect();
    assert_eq!(names, gradients);
    names
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// `y = norm(x) * scale`, then batch normalisation with `last` as its scale, shift, mean and variance.
fn norms(copies: &[(&str, &str)], last: [&str; 4], scale: &[f32]) -> Graph {
    let mut nodes: Vec<Vec<u8>> =
        copies.iter().map(|(from, to)| node("Identity", to, &[from], &[to], &[])).collect();
    let norm = ["x", "n1.weight", "n1.bias"];
    let inputs = [&["h"], &last[..]].concat();
    nodes.push(node("LayerNormalization", "n1", &norm, &["h"], &[]));
    nodes.push(node("BatchNormalization", "b", &inputs, &["y"], &[]));
    Graph {
        nodes,
        inputs: vec![value("x", 1, &["4", "2"])],
        outputs: vec![value("y", 1, &["4", "2"])],
        initializers: vec![
            tensor("n1.weight", 1, &[2], &floats(scale)),
            tensor("n1.bias", 1, &[2], &floats(&[0.0, 0.0])),
        ],
        ..Graph::default()
    }
}

/// Equal scales and shifts that were merged behind an identity are trained each on its own; running
/// statistics are not trained. Tensors that the model ties stay one.
#[test]
fn merged_parameters_are_separated() {
    let copies = [
        ("n1.weight", "b.running_var"),
        ("n1.bias", "b.running_mean"),
        ("n1.bias", "b.bias"),
        ("n1.weight", "b.weight"),
    ];
    let last = ["b.weight", "b.bias", "b.running_mean", "b.running_var"];
    let import = imported(&norms(&copies, last, &[1.0, 1.0]), &[]);
    assert_eq!(trained(&import), ["b.bias", "b.weight", "n1.bias", "n1.weight"]);
    let notes = import.notes.join("\n");
    assert!(notes.contains("4 tensors that the exporter had merged with equal ones are separate"), "{notes}");
    assert!(notes.contains("`b.weight` of `n1.weight`"), "{notes}");
    let import = imported(&norms(&copies, last, &[1.0, 2.0]), &[]);
    assert_eq!(trained(&import), ["b.bias", "n1.bias", "n1.weight"]);
    assert!(import.notes.join("\n").contains("`b.running_var` of `n1.weight`"));
}

/// Where a parameter itself stands in the place of a running statistic, the statistic is a constant of its
/// own.
#[test]
fn statistics_are_no_parameters() {
    let import = imported(&norms(&[], ["n1.weight", "n1.bias", "n1.bias", "n1.weight"], &[1.0, 1.0]), &[]);
    assert_eq!(trained(&import), ["n1.bias", "n1.weight"]);
    let notes = import.notes.join("\n");
    assert!(notes.contains("`n1.weight.running_var` of `n1.weight`"), "{notes}");
    let graph = Graph {
        nodes: vec![
            node("Sub", "s", &["x", "b.running_mean"], &["h"], &[]),
            node("Mul", "m", &["h", "b.weight"], &["y"], &[]),
        ],
        inputs: vec![value("x", 1, &["4", "2"])],
        outputs: vec![value("y", 1, &["4", "2"])],
        initializers: vec![
            tensor("b.weight", 1, &[2], &floats(&[1.0, 2.0])),
            tensor("b.running_mean", 1, &[2], &floats(&[1.0, 2.0])),
        ],
        ..Graph::default()
    };
    assert_eq!(trained(&imported(&graph, &[])), ["b.weight"]);
    let text = refused(&graph, &["b.running_mean"]);
    assert!(text.contains("running statistics are not trained by gradients"), "{text}");
}

/// Group normalisation's scale and shift and slopes of PReLU are trained under the names that the exporter
/// gave them when it folded their reshape; other such tensors are called out, and are trained when named.
#[test]
fn folded_parameters() {
    let channels = |name: &str| tensor(name, 1, &[2, 1, 1], &floats(&[0.5, 2.0]));
    let graph = Graph {
        nodes: vec![
            node("Reshape", "r", &["x", "groups"], &["grouped"], &[]),
            node("InstanceNormalization", "i", &["grouped", "val_8", "val_11"], &["normal"], &[]),
            node("Reshape", "back", &["normal", "shape"], &["h"], &[]),
            node("Mul", "scale", &["h", "val_21"], &["scaled"], &[]),
            node("Add", "shift", &["scaled", "onnx::Add_37"], &["shifted"], &[]),
            node("PRelu", "p", &["shifted", "onnx::PRelu_38"], &["z"], &[]),
            node("Sub", "s", &["z", "val_30"], &["y"], &[]),
        ],
        inputs: vec![value("x", 1, &["3", "2", "4", "4"])],
        outputs: vec![value("y", 1, &["3", "2", "4", "4"])],
        initializers: vec![
            tensor("groups", 7, &[3], &[3i64, 1, 32].map(i64::to_le_bytes).concat()),
            tensor("shape", 7, &[4], &[3i64, 2, 4, 4].map(i64::to_le_bytes).concat()),
            tensor("val_8", 1, &[1], &floats(&[1.0])),
            tensor("val_11", 1, &[1], &floats(&[0.0])),
            channels("val_21"),
            channels("onnx::Add_37"),
            channels("onnx::PRelu_38"),
            channels("val_30"),
        ],
        ..Graph::default()
    };
    let import = imported(&graph, &[]);
    assert_eq!(trained(&import), ["onnx::Add_37", "onnx::PRelu_38", "val_21"]);
    let text = import.warnings.join("\n");
    assert!(
        text.contains("1 tensor with names that the exporter made up stays constant (`val_30`)"),
        "{text}"
    );
    assert!(text.contains("--trainable '*' --trainable 'val_30'"), "{text}");
    let import = imported(&graph, &["*", "val_30"]);
    assert_eq!(trained(&import), ["onnx::Add_37", "onnx::PRelu_38", "val_21", "val_30"]);
    assert!(!import.warnings.join("\n").contains("stays constant"), "{:?}", import.warnings);
    assert!(refused(&graph, &["groups"]).contains("--trainable groups: it is i64[3], and only floats"));
}

/// An exponent is a parameter where it is called like one, or named by the user.
#[test]
fn exponents() {
    let graph = |name: &str| Graph {
        nodes: vec![
            node("Abs", "a", &["x"], &["a"], &[]),
            node("Pow", "p", &["a", name], &["powers"], &[]),
            node("Mul", "m", &["powers", "w"], &["capped"], &[]),
            node("Clip", "c", &["capped", "low"], &["y"], &[]),
        ],
        inputs: vec![value("x", 1, &["3", "2"])],
        outputs: vec![value("y", 1, &["3", "2"])],
        initializers: vec![
            tensor("w", 1, &[2], &floats(&[1.0, 2.0])),
            tensor(name, 1, &[1], &floats(&[3.0])),
            tensor("low", 1, &[], &floats(&[0.5])),
        ],
        ..Graph::default()
    };
    assert_eq!(trained(&imported(&graph("pool.p"), &[])), ["pool.p", "w"]);
    let import = imported(&graph("pool.p"), &["pool.p"]);
    assert_eq!(trained(&import), ["pool.p"]);
    let notes = import.notes.join("\n");
    assert!(
        notes.contains("forward model: 1 parameter, 1 frozen, 0 optimizer tensors, 0 buffers, "),
        "{notes}"
    );
    assert_eq!(trained(&imported(&graph("p"), &[])), ["w"]);
    assert_eq!(trained(&imported(&graph("p"), &["p"])), ["p"]);
    assert!(refused(&graph("p"), &["low"]).contains("only as a bound, shape or other setting"));
}

/// A one-file step that is given a loss is refused as such.
#[test]
fn steps_take_no_loss() {
    let mut graph = small_step();
    graph.initializers = vec![tensor("unused", 1, &[], &floats(&[1.0]))];
    let text = refused(&graph, &[]);
    assert!(text.contains("looks like a one-file training step") && text.contains("leave it out"), "{text}");
}

/// Factors of running variances.
fn scales(producer: &str) -> Vec<f32> {
    let names = ["s", "b", "mean", "var"];
    let inputs = [&["x"], &names[..]].concat();
    let training = [int_attr("training_mode", 1)];
    let outputs = ["y", "y/mean", "y/var"];
    let mut graph = Graph {
        nodes: vec![node("BatchNormalization", "b", &inputs, &outputs, &training)],
        inputs: vec![value("x", 1, &["2", "3", "4"])],
        outputs: vec![value("y", 1, &["2", "3", "4"])],
        ..Graph::default()
    };
    graph.initializers = names.iter().map(|name| tensor(name, 1, &[3], &floats(&[1.0, 2.0, 3.0]))).collect();
    let model = [graph.model(), field(2, producer)].concat();
    let import = import_bytes(&model, &options(&[])).unwrap_or_else(|e| panic!("{e}"));
    let m = &import.module;
    let scale = |op: &memc_ir::Op| match &op.code {
        memc_ir::Code::Compute(memc_ir::OpKind::MovingAverage { scale, .. }) => Some(scale.0),
        _ => None,
    };
    m.order.iter().filter_map(|&op| scale(&m.ops[op])).collect()
}

/// Running variances follow the sample variance in models from PyTorch, the population variance in others.
#[test]
fn running_variances_are_those_of_the_exporter() {
    assert_eq!(scales("pytorch"), [1.0, 8.0 / 7.0]);
    assert_eq!(scales("other"), [1.0, 1.0]);
}

/// A normalisation that runs twice in a step: the statistics pass through both, whether the nodes read the
/// stored ones or copies of them, and only in models from PyTorch.
#[test]
fn statistics_pass_through_every_run() {
    let training = [int_attr("training_mode", 1)];
    for (producer, copied, chained) in
        [("pytorch", false, true), ("pytorch", true, true), ("other", false, false)]
    {
        let second: &[&str] = if copied { &["copy.mean", "copy.var"] } else { &["n.mean", "n.var"] };
        let norm = |x: &str, statistics: &[&str], outputs: &[&str]| {
            let inputs = [&[x, "s", "b"], statistics].concat();
            node("BatchNormalization", outputs[0], &inputs, outputs, &training)
        };
        let mut nodes = vec![
            norm("x", &["n.mean", "n.var"], &["y", "y.mean", "y.var"]),
            norm("y", second, &["z", "z.mean", "z.var"]),
        ];
        if copied {
            nodes.insert(1, node("Identity", "c", &["n.mean"], &["copy.mean"], &[]));
            nodes.insert(1, node("Identity", "d", &["n.var"], &["copy.var"], &[]));
        }
        let names = ["s", "b", "n.mean", "n.var"];
        let graph = Graph {
            nodes,
            inputs: vec![value("x", 1, &["2", "3", "4"]), value("unread", 1, &["7"])],
            outputs: vec![value("z", 1, &["2", "3", "4"])],
            initializers: names.iter().map(|name| tensor(name, 1, &[3], &floats(&[1.0, 2.0, 3.0]))).collect(),
            ..Graph::default()
        };
        let model = [graph.model(), field(2, producer)].concat();
        let import = import_bytes(&model, &options(&[])).unwrap_or_else(|e| panic!("{e}"));
        let m = &import.module;
        let states: Vec<&str> = m.states.values().map(|s| m.values[s.value].name.as_str()).collect();
        assert_eq!(states, ["b", "n.mean", "n.var", "s"]);
        for state in m.states.values().filter(|s| s.role == Role::Buffer) {
            let next = m.def_op(state.next.expect("an update")).expect("an op");
            let before = m.ops[next].operands[0];
            assert_eq!(before != state.value, chained, "{producer}, {copied}");
            assert!(!chained || m.ops[m.def_op(before).expect("an op")].operands[0] == state.value);
        }
        assert_eq!(m.inputs.len(), 2, "x and labels");
        assert!(import.notes.iter().any(|note| note.contains("takes no data: unread")), "{:?}", import.notes);
    }
}
