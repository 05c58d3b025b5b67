//! Forward models: what is trained, by what, and what is refused or warned of.
#![allow(clippy::panic, reason = "a test fails by panicking")]

mod train;
mod wire;

use std::path::{Path, PathBuf};

use memc_frontend::{Import, ImportError, ImportOptions};
use memc_ir::{Feed, Module, OpKind, OutputRole, Role};
use train::{import, import_bytes};
use wire::*;

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models").join(name)
}

fn recipe(loss: &str, optimizer: &str) -> ImportOptions {
    ImportOptions {
        loss: Some(loss.parse().expect("loss")),
        optimizer: Some(optimizer.parse().expect("optimizer")),
        ..ImportOptions::default()
    }
}

fn imported(name: &str, options: &ImportOptions) -> Import {
    let import = import(&model(name), options).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(memc_ir::verify(&import.module), Ok(()), "{name}");
    let text = memc_ir::print(&import.module);
    assert_eq!(memc_ir::print(&memc_ir::parse(&text).expect("what is printed parses")), text, "{name}");
    import
}

fn usage(name: &str, options: &ImportOptions) -> String {
    match import(&model(name), options) {
        Err(ImportError::Usage(text)) => text,
        other => panic!("{name}: a usage error is expected, not {other:?}"),
    }
}

fn names(m: &Module, role: Role) -> Vec<&str> {
    m.states.values().filter(|s| s.role == role).map(|s| m.values[s.value].name.as_str()).collect()
}

fn count(m: &Module, f: fn(&OpKind) -> bool) -> usize {
    m.order.iter().filter(|&&o| m.ops[o].kind().is_some_and(f)).count()
}

/// A forward model becomes the same step as the artifacts made from it, op for op in number.
#[test]
fn both_routes_have_as_many_ops() {
    for (forward, artifact) in [("mlp_s", "mlp_s_sgd"), ("cnn_bn", "cnn_bn_sgd")] {
        let own = imported(&format!("gen/{forward}.forward.onnx"), &recipe("cross-entropy", "sgd"));
        let theirs = imported(&format!("{artifact}/training_model.onnx"), &ImportOptions::default());
        assert_eq!(own.module.order.len(), theirs.module.order.len(), "{forward}");
        for role in [Role::Param, Role::Buffer, Role::Optimizer] {
            let sorted = |m| {
                let mut list: Vec<String> = names(m, role).into_iter().map(str::to_string).collect();
                list.sort();
                list
            };
            assert_eq!(sorted(&own.module), sorted(&theirs.module), "{forward}");
        }
        assert_eq!(own.warnings, Vec::<String>::new());
    }
}

/// Dynamic exports bound to a size are the static exports of that size.
#[test]
fn bound_exports_equal_static_ones() {
    let mut options = recipe("cross-entropy", "sgd");
    let fixed = imported("gen/bert_tiny_nodrop.forward.onnx", &options).module;
    options.dims = vec![("batch".into(), 4)];
    let bound = imported("gen/bert_tiny_nodrop.dynamic.onnx", &options).module;
    assert_eq!(bound.order.len(), fixed.order.len());
    options.dims.clear();
    let open = import(&model("gen/bert_tiny_nodrop.dynamic.onnx"), &options).expect_err("open").to_string();
    assert!(open.contains("batch (axis 0 of `input`)") && open.contains("--dim batch=32"), "{open}");
}

/// Every optimizer gives its op for every parameter, and its moments.
#[test]
fn optimizers() {
    let with = |text: &str| imported("gen/mlp_s.forward.onnx", &recipe("cross-entropy", text)).module;
    let states = |text: &str| names(&with(text), Role::Optimizer).len();
    assert_eq!(["sgd", "momentum", "adagrad", "adam", "adamw"].map(states), [0, 6, 6, 13, 13]);
    // With dampening and decay of the rate the step counts.
    assert_eq!(["momentum:dampening=0.1", "adagrad:lr_decay=0.1"].map(states), [7, 7]);
    let m = with("adam:lr=0.25,weight_decay=0.5");
    let adam = |k: &OpKind| {
        matches!(k, OpKind::AdamW { weight_decay, l2, decay_first: true, bias_correction: true, .. }
            if weight_decay.0 == 0.0 && l2.0 == 0.5)
    };
    assert_eq!(count(&m, adam), 6);
    let rate = m.inputs.values().find_map(|x| match x.feed {
        Feed::LearningRate { default, .. } => Some(default.0),
        _ => None,
    });
    assert_eq!(rate, Some(0.25));
    assert_eq!(count(&with("sgd:weight_decay=0.1"), |k| matches!(k, OpKind::Sgd {})), 6);
    let none = with("none");
    let gradients = none.outputs.iter().filter(|o| o.role == OutputRole::Gradient).count();
    assert_eq!((gradients, none.states.values().filter(|s| s.next.is_some()).count()), (6, 0));
}

/// Patterns choose what is trained; what is frozen keeps its value and costs no gradient.
#[test]
fn patterns_freeze_parameters() {
    let mut options = recipe("cross-entropy", "adamw");
    options.freeze = vec!["fc1.*".into(), "*2.bias".into()];
    let m = imported("gen/mlp_s.forward.onnx", &options).module;
    assert_eq!(names(&m, Role::Frozen), ["fc1.bias", "fc1.weight", "fc2.bias"]);
    assert_eq!(names(&m, Role::Param), ["fc2.weight", "fc3.bias", "fc3.weight"]);
    assert!(m.states.values().filter(|s| s.role == Role::Frozen).all(|s| s.next.is_none()));
    options = ImportOptions { trainable: vec!["fc3.*".into()], ..recipe("cross-entropy", "sgd") };
    let m = imported("gen/mlp_s.forward.onnx", &options).module;
    assert_eq!(names(&m, Role::Param), ["fc3.bias", "fc3.weight"]);
    assert_eq!(count(&m, |k| matches!(k, OpKind::ReluGrad {})), 0);
    options.trainable = vec!["fc9.*".into()];
    let text = usage("gen/mlp_s.forward.onnx", &options);
    assert!(text.contains("--trainable fc9.* matches no parameter; the model has fc1.bias"), "{text}");
    options.trainable = vec!["[".into()];
    assert!(usage("gen/mlp_s.forward.onnx", &options).contains("'layer4.*'"));
}

/// Running statistics follow from one micro-step to the next; gradients are summed before one update.
#[test]
fn accumulation() {
    let options = ImportOptions { accumulate: 3, ..recipe("cross-entropy", "sgd") };
    let m = imported("gen/cnn_bn.forward.onnx", &options).module;
    assert_eq!(names(&m, Role::Buffer).len(), 4);
    assert_eq!(count(&m, |k| matches!(k, OpKind::MovingAverage { .. })), 12);
    assert_eq!(count(&m, |k| matches!(k, OpKind::Sgd {})), 10);
    let losses: Vec<&str> = m.outputs.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(losses, ["loss", "loss.1", "loss.2"]);
    // The gradients of a micro-step come before the next one.
    let place = |wanted: memc_ir::OpId| m.order.iter().position(|&op| op == wanted).expect("in the order");
    let grad = |op: &&memc_ir::OpId| matches!(m.ops[**op].kind(), Some(OpKind::BatchNormGrad {}));
    let first = m.order.iter().find(grad).map(|&op| place(op)).expect("a gradient");
    let loss = |i: usize| place(m.def_op(m.outputs[i].value).expect("computed"));
    assert!(loss(0) < first && first < loss(1));
    let labels =
        m.inputs.values().filter(|x| matches!(&x.feed, Feed::Data { source, .. } if source == "labels"));
    assert_eq!(labels.count(), 3);
}

/// Exports that lost batch normalisation's training form, or the whole normalisation, are called out.
#[test]
fn lost_training_semantics() {
    let warnings = |name: &str| imported(name, &recipe("cross-entropy", "sgd")).warnings.join("\n");
    let fixed = warnings("gen/cnn_bn.dynamo.onnx");
    assert!(fixed.contains("2 BatchNormalization nodes in inference form"), "{fixed}");
    assert!(fixed.contains("training=TrainingMode.TRAINING"), "{fixed}");
    let folded = warnings("gen/cnn_bn.dynamo_optimized.onnx");
    assert!(folded.contains("folded into 2 convolutions (`node_Conv_15`"), "{folded}");
    let producer = field(2, "pytorch");
    let float = |n: usize| vec![0; 4 * n];
    let graph = |second: &str| Graph {
        nodes: vec![
            node("Gemm", "one", &["x", "onnx::MatMul_7", "a.bias"], &["h"], &[]),
            node("Gemm", "two", &["h", second, "a.bias"], &["y"], &[]),
        ],
        inputs: vec![value("x", 1, &["2", "3"])],
        outputs: vec![value("y", 1, &["2", "3"])],
        initializers: vec![
            tensor("onnx::MatMul_7", 1, &[3, 3], &float(9)),
            tensor("b.weight", 1, &[3, 3], &float(9)),
            tensor("a.bias", 1, &[3], &float(3)),
        ],
        ..Graph::default()
    };
    let warnings = |second: &str| {
        let bytes = [graph(second).model(), producer.clone()].concat();
        import_bytes(&bytes, &recipe("mse", "sgd")).expect("import").warnings.join("\n")
    };
    let text = warnings("b.weight");
    assert!(text.contains("names that the exporter made up (`onnx::MatMul_7`)"), "{text}");
    assert!(text.contains("in several nodes at once (`a.bias`, 2 uses)"), "{text}");
    // A layer that runs twice shares all that it has.
    assert!(!warnings("onnx::MatMul_7").contains("in several nodes"));
}

/// A shape that the file declares otherwise than the graph computes it is called out with both.
#[test]
fn declared_shapes_are_compared() {
    let graph = Graph {
        nodes: vec![node("Mul", "m", &["x", "w"], &["y"], &[])],
        inputs: vec![value("x", 1, &["batch", "3"])],
        outputs: vec![value("y", 1, &["batch", "7"])],
        initializers: vec![tensor("w", 1, &[3], &[0; 12])],
        ..Graph::default()
    };
    let options = ImportOptions { dims: vec![("batch".into(), 2)], ..recipe("mse", "sgd") };
    let text = import_bytes(&graph.model(), &options).expect("import").warnings.join("\n");
    assert!(text.contains("`y` is declared as f32[2,7] but is f32[2,3]"), "{text}");
}

/// Losses that do not fit, or options for another kind of model, are usage errors with an example.
#[test]
fn wrong_recipes_are_usage_errors() {
    let mlp = "gen/mlp_s.forward.onnx";
    let text = usage(mlp, &recipe("mse:output=nothing", "sgd"));
    assert!(text.contains("no output `nothing`; it has output"), "{text}");
    let text = usage(mlp, &recipe("output", "sgd"));
    assert!(text.contains("no output is one float; the model has output (f32[4,10])"), "{text}");
    assert!(text.contains("--loss mse:output=output"), "{text}");
    let alone = ImportOptions { optimizer: Some("sgd".parse().expect("sgd")), ..ImportOptions::default() };
    let text = usage(mlp, &alone);
    assert!(
        text.contains("a forward model with outputs output") && text.contains("--loss cross-entropy"),
        "{text}"
    );
    let frozen = ImportOptions { freeze: vec!["*".into()], ..recipe("mse", "sgd") };
    let text = usage(mlp, &frozen);
    assert!(text.contains("--freeze * leaves no parameter to train; the model has fc1.bias"), "{text}");
    let text = usage("mlp_s/training_model.onnx", &recipe("mse", "sgd"));
    assert!(text.contains("--loss mse is for forward models, but these are training artifacts"), "{text}");
    let carried = ImportOptions { carry: vec![("a".into(), "b".into())], ..recipe("mse", "sgd") };
    assert!(usage("mlp_s_step/sgd.onnx", &carried).contains("--loss mse is for forward models"));
    let graph = Graph {
        nodes: vec![
            node("Mul", "m", &["x", "w"], &["y"], &[]),
            node("Neg", "n", &["y"], &["z"], &[]),
            node("ReduceSum", "s", &["y"], &["total"], &[int_attr("keepdims", 0)]),
        ],
        inputs: vec![value("x", 1, &["2", "3"]), value("labels", 1, &["2", "3"])],
        outputs: vec![value("y", 1, &["2", "3"]), value("z", 1, &["2", "3"]), value("total", 1, &[])],
        initializers: vec![tensor("w", 1, &[3], &[0; 12])],
        ..Graph::default()
    };
    let refused = |bytes: &[u8], loss: &str| match import_bytes(bytes, &recipe(loss, "sgd")) {
        Err(ImportError::Usage(text)) => text,
        other => panic!("{other:?}"),
    };
    let mut reading = graph.clone();
    reading.nodes[1] = node("Sub", "n", &["y", "labels"], &["z"], &[]);
    let text = refused(&reading.model(), "mse");
    assert!(text.contains("already has an input `labels`") && text.contains("--loss output"), "{text}");
    let mut other = graph.clone();
    other.inputs.pop();
    let text = refused(&other.model(), "mse");
    assert!(
        text.contains("several outputs fit (y, z, total)") && text.contains("--loss mse:output=y"),
        "{text}"
    );
    let text = refused(&other.model(), "cross-entropy:output=total");
    assert!(text.contains("output `total` is f32[], but the loss needs scores"), "{text}");
    import_bytes(&graph.model(), &recipe("output", "sgd")).expect("the only scalar is the loss");
}

/// Where scores have more than two axes, the user says which one the classes are along; labels lack that
/// axis.
#[test]
fn class_axes() {
    let graph = |dims: &[&str]| Graph {
        nodes: vec![node("Mul", "m", &["x", "w"], &["y"], &[])],
        inputs: vec![value("x", 1, dims)],
        outputs: vec![value("y", 1, dims)],
        initializers: vec![tensor("w", 1, &[4], &[0; 16])],
        ..Graph::default()
    };
    let labels = |dims: &[&str], loss: &str| {
        let import = import_bytes(&graph(dims).model(), &recipe(loss, "sgd")).expect(loss);
        assert_eq!(memc_ir::verify(&import.module), Ok(()), "{loss}");
        let m = import.module;
        m.inputs.values().map(|x| &m.values[x.value]).find(|v| v.name == "labels").map(|v| v.ty.shape.clone())
    };
    assert_eq!(labels(&["2", "3", "4"], "cross-entropy:axis=-1"), Some(vec![2, 3]));
    assert_eq!(labels(&["2", "3", "4"], "cross-entropy:axis=1"), Some(vec![2, 4]));
    assert_eq!(labels(&["2", "3", "5", "4"], "cross-entropy:axis=-1,output=y"), Some(vec![2, 3, 5]));
    assert_eq!(labels(&["2", "3", "5", "4"], "cross-entropy:axis=1"), Some(vec![2, 5, 4]));
    for loss in ["cross-entropy", "cross-entropy:axis=1", "cross-entropy:axis=-1"] {
        assert_eq!(labels(&["2", "4"], loss), Some(vec![2]));
    }
    match import_bytes(&graph(&["2", "3", "4"]).model(), &recipe("cross-entropy:output=y", "sgd")) {
        Err(ImportError::Usage(text)) => assert!(
            text.contains("cross-entropy:axis=-1,output=y, with labels i64[2,3]")
                && text.contains("cross-entropy:axis=1,output=y, with labels i64[2,4]"),
            "{text}"
        ),
        other => panic!("{other:?}"),
    }
}

/// Dropout and random tensors have a stream each, also in every micro-step, and take the seed.
#[test]
fn random_nodes_have_their_own_streams() {
    let ratio = tensor("ratio", 1, &[], &0.25f32.to_le_bytes());
    let on = tensor("on", 9, &[], &[1]);
    let graph = Graph {
        nodes: vec![
            node("Dropout", "d1", &["x", "ratio", "on"], &["a", "mask"], &[]),
            node("Mul", "m", &["a", "w"], &["b"], &[]),
            node("Dropout", "d2", &["b", "ratio", "on"], &["y"], &[int_attr("seed", 5)]),
        ],
        inputs: vec![value("x", 1, &["2", "3"])],
        outputs: vec![value("y", 1, &["2", "3"])],
        initializers: vec![tensor("w", 1, &[3], &[0; 12]), ratio, on],
        ..Graph::default()
    };
    let options = ImportOptions { accumulate: 2, seed: 9, ..recipe("l1", "sgd") };
    let m = import_bytes(&graph.model(), &options).expect("import").module;
    assert_eq!(memc_ir::verify(&m), Ok(()));
    let keys: Vec<(i64, i64)> = m
        .order
        .iter()
        .filter_map(|&o| match m.ops[o].kind() {
            Some(OpKind::RandomMask { seed, stream, .. }) => Some((*seed, *stream)),
            _ => None,
        })
        .collect();
    assert_eq!(keys, [(9, 0), (5, 1), (9, 2), (5, 3)]);
    assert_eq!(m.inputs.values().filter(|x| matches!(x.feed, Feed::Step { .. })).count(), 1);
}

/// All models of the zoo import with the values that their initialization graphs give.
#[test]
fn the_zoo_imports() {
    let mut seen = 0;
    for entry in std::fs::read_dir(model("zoo")).expect("zoo") {
        let name = entry.expect("entry").file_name().into_string().expect("name");
        let Some(stem) = name.strip_suffix(".onnx") else { continue };
        // The two largest take as long as all others together.
        if ["nasnet_a_r25", "gpt2_xl"].contains(&stem) {
            continue;
        }
        let loss = match stem {
            "inception_v3" => "output",
            _ if stem.starts_with("bert") => "cross-entropy:axis=1",
            _ if stem.starts_with("gpt2") => "cross-entropy:axis=-1",
            _ => "cross-entropy",
        };
        let options = ImportOptions { dims: vec![("batch".into(), 2)], ..recipe(loss, "momentum") };
        let import = import(&model("zoo").join(&name), &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(memc_ir::verify(&import.module), Ok(()), "{name}");
        assert_eq!(import.warnings, Vec::<String>::new(), "{name}");
        seen += 1;
    }
    assert!(seen > 30, "{seen} models");
}
