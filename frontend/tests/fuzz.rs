//! Random damage: the importer returns, and what it accepts is a sound module.

mod train;
mod wire;

use std::fs;
use std::path::Path;

use arbtest::{arbitrary, arbtest};
use memc_frontend::ImportOptions;
use train::{import, import_bytes};
use wire::*;

fn models() -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let read = |p: &str| fs::read(root.join(p)).expect("committed model");
    vec![
        small_step().model(),
        read("mlp_s_sgd/training_model.onnx"),
        read("cnn_bn/training_model.onnx"),
        read("mlp_s_step/sgd.onnx"),
    ]
}

/// Changes a few bytes, or removes or repeats a stretch.
fn damaged(u: &mut arbitrary::Unstructured<'_>, mut bytes: Vec<u8>) -> arbitrary::Result<Vec<u8>> {
    for _ in 0..u.int_in_range(1..=4)? {
        if bytes.is_empty() {
            break;
        }
        let at = u.choose_index(bytes.len())?;
        match u.int_in_range(0..=3)? {
            0 => bytes[at] = u.arbitrary()?,
            1 => bytes[at] ^= 1 << u.int_in_range(0..=7)?,
            2 => drop(bytes.drain(at..(at + u.int_in_range(1..=16)?).min(bytes.len()))),
            _ => {
                let stretch = bytes[at..(at + u.int_in_range(1..=64)?).min(bytes.len())].to_vec();
                bytes.splice(at..at, stretch);
            }
        }
    }
    Ok(bytes)
}

fn check(bytes: &[u8], accumulate: u32) {
    check_with(bytes, &ImportOptions { accumulate, ..ImportOptions::default() });
}

fn recipe(loss: &str, optimizer: &str) -> ImportOptions {
    let (loss, optimizer) = (loss.parse().expect("loss"), optimizer.parse().expect("optimizer"));
    ImportOptions { loss: Some(loss), optimizer: Some(optimizer), ..ImportOptions::default() }
}

/// Whether the model is imported; it must be refused or sound.
fn check_with(bytes: &[u8], options: &ImportOptions) -> bool {
    match import_bytes(bytes, options) {
        Ok(import) => {
            assert_eq!(memc_ir::verify(&import.module), Ok(()));
            let text = memc_ir::print(&import.module);
            let again = memc_ir::parse(&text).expect("what is printed parses");
            assert_eq!(memc_ir::print(&again), text);
            true
        }
        Err(e) => {
            assert!(!e.to_string().is_empty());
            false
        }
    }
}

/// Damaged real models.
#[test]
fn damaged_models() {
    let models = models();
    arbtest(|u| {
        let model = u.choose(&models)?.clone();
        let accumulate = u.int_in_range(1..=2)?;
        check(&damaged(u, model)?, accumulate);
        Ok(())
    })
    .budget_ms(900);
}

/// Damaged forward models and models with training information.
#[test]
fn damaged_recipes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let read = |p: &str| fs::read(root.join(p)).expect("committed model");
    let batch = |options| ImportOptions { dims: vec![("batch".into(), 2)], ..options };
    let cases = [
        (small_training().model(), ImportOptions::default()),
        (read("standard/linear.TrainingInfo.Adam.onnx"), batch(ImportOptions::default())),
        (read("standard/linear.regularised.Momentum.onnx"), batch(ImportOptions::default())),
        (read("gen/mlp_s.forward.onnx"), recipe("cross-entropy", "adamw")),
        (read("gen/cnn_bn.forward.onnx"), recipe("mse", "momentum")),
        (read("gen/cnn_bn.dynamic.onnx"), batch(recipe("cross-entropy", "sgd"))),
        (read("gen/cnn_bn.dynamo_optimized.onnx"), recipe("l1", "adagrad")),
    ];
    for (bytes, options) in &cases {
        assert!(check_with(bytes, options));
        for end in (0..bytes.len()).step_by(bytes.len() / 64 + 1) {
            assert!(!check_with(&bytes[..end], options), "cut at {end}");
        }
    }
    arbtest(|u| {
        let (bytes, options) = u.choose(&cases)?;
        check_with(&damaged(u, bytes.clone())?, options);
        Ok(())
    })
    .budget_ms(1500);
}

/// Training information with nodes, tensors and bindings removed, repeated, exchanged and renamed.
#[test]
fn changed_training_information() {
    const NAMES: &[&str] =
        &["x", "y", "w", "t", "e", "s", "loss", "dw", "rate", "n", "v", "one", "w_new", "v_new", "n_new", ""];
    let mut accepted = 0;
    arbtest(|u| {
        let mut trained = small_training();
        for _ in 0..u.int_in_range(1..=3)? {
            let graph = if u.arbitrary()? { &mut trained.algorithm } else { &mut trained.main };
            let mut list = match u.int_in_range(0..=3)? {
                0 => Some(&mut graph.nodes),
                1 => Some(&mut graph.initializers),
                2 => Some(&mut graph.inputs),
                _ => None,
            };
            if let Some(list) = list.as_mut().filter(|list| !list.is_empty()) {
                let (i, k) = (u.choose_index(list.len())?, u.choose_index(list.len())?);
                match u.int_in_range(0..=2)? {
                    0 => drop(list.remove(i)),
                    1 => list.swap(i, k),
                    _ => list.push(list[i].clone()),
                }
                continue;
            }
            match u.int_in_range(0..=2)? {
                0 => trained.bindings.push((u.int_in_range(3..=4)?, u.choose(NAMES)?, u.choose(NAMES)?)),
                1 => drop(trained.bindings.pop()),
                _ => {
                    let pick = |u: &mut arbitrary::Unstructured<'_>| -> arbitrary::Result<Vec<&str>> {
                        (0..u.int_in_range(1..=3)?).map(|_| u.choose(NAMES).copied()).collect()
                    };
                    let (xs, zs, mut given) = (pick(u)?, pick(u)?, pick(u)?);
                    if u.arbitrary()? {
                        given = [xs.clone(), zs.clone()].concat();
                    }
                    let attrs =
                        [texts_attr("xs", &xs), texts_attr("zs", &zs), text_attr("y", u.choose(NAMES)?)];
                    trained.algorithm.nodes.push(preview("Gradient", &given, &["more"], &attrs));
                }
            }
        }
        accepted += usize::from(check_with(&trained.model(), &ImportOptions::default()));
        Ok(())
    })
    .budget_ms(1500);
    assert!(accepted > 10, "only {accepted} changed models were accepted, so little was tried");
}

/// Random bytes.
#[test]
fn random_bytes() {
    arbtest(|u| {
        let bytes: Vec<u8> = u.arbitrary()?;
        check(&bytes, 1);
        Ok(())
    })
    .budget_ms(200);
}

/// Operators of [`random_node`].
const OPS: &[&str] = &[
    "Add",
    "Cast",
    "Clip",
    "Concat",
    "ConstantOfShape",
    "Conv",
    "Dropout",
    "ConvTranspose",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "Gemm",
    "GRU",
    "GlobalAveragePool",
    "LSTM",
    "LayerNormalization",
    "MatMul",
    "MaxPool",
    "AveragePool",
    "Pad",
    "Pow",
    "Range",
    "ReduceSum",
    "Reshape",
    "ScatterElements",
    "ScatterND",
    "Shape",
    "Slice",
    "Softmax",
    "Split",
    "SequenceAt",
    "SplitToSequence",
    "Squeeze",
    "Sum",
    "Transpose",
    "Unsqueeze",
    "Where",
    "BatchNormalization",
    "MaxPoolGrad",
    "AveragePoolGrad",
];
/// Their integer attributes.
const ATTRS: &[&str] =
    &["axis", "to", "keepdims", "group", "transA", "ceil_mode", "training_mode", "start", "end"];
/// Their attributes that are lists of integers.
const LISTS: &[&str] = &["perm", "kernel_shape", "strides", "pads", "dilations", "axes", "output_padding"];

/// A node of a random supported operator over some of `names`, and its outputs.
fn random_node(
    u: &mut arbitrary::Unstructured<'_>,
    names: &[String],
    i: usize,
) -> arbitrary::Result<(Vec<u8>, Vec<String>)> {
    let op = *u.choose(OPS)?;
    let inputs: Vec<&str> =
        (0..u.int_in_range(0..=5)?).map(|_| u.choose(names).map(String::as_str)).collect::<Result<_, _>>()?;
    let outputs: Vec<String> = (0..u.int_in_range(1..=3)?).map(|k| format!("t{i}_{k}_grad")).collect();
    let mut attrs = Vec::new();
    for _ in 0..u.int_in_range(0..=2)? {
        attrs.push(int_attr(u.choose(ATTRS)?, u.int_in_range(-3..=9)?));
    }
    let list = *u.choose(LISTS)?;
    let mut attr = [field(1, list), int(20, 7)].concat();
    for _ in 0..u.int_in_range(0..=4)? {
        attr.extend(int(8, u.int_in_range(-1..=4)?));
    }
    attrs.push(attr);
    attrs.sort();
    attrs.dedup_by(|a, b| a.get(..6) == b.get(..6));
    let outs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    Ok((node(op, &format!("n{i}"), &inputs, &outs, &attrs), outputs))
}

/// Small integer constants called `c0`, `c1` and `c2`.
fn random_constants(u: &mut arbitrary::Unstructured<'_>) -> arbitrary::Result<Vec<Vec<u8>>> {
    let mut out = Vec::new();
    for i in 0..3 {
        let values: Vec<i64> =
            (0..u.int_in_range(0..=4)?).map(|_| u.int_in_range(-3..=6)).collect::<Result<_, _>>()?;
        let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        out.push(tensor(&format!("c{i}"), 7, &[values.len() as i64], &raw));
    }
    Ok(out)
}

/// Names that the graphs below start with.
fn first_names() -> Vec<String> {
    ["w", "x", "image", "", "c0", "c1", "c2"].map(str::to_string).to_vec()
}

/// Graphs of random supported operators over random operands and small integer constants.
#[test]
fn random_nodes() {
    arbtest(|u| {
        let mut graph = small_step();
        let mut names = first_names();
        graph.inputs.push(value("image", 1, &["2", "3", "5", "4"]));
        graph.initializers = random_constants(u)?;
        for i in 0..u.int_in_range(1..=6)? {
            let (node, outputs) = random_node(u, &names, i)?;
            graph.nodes.push(node);
            names.extend(outputs);
        }
        check(&graph.model(), 1);
        Ok(())
    })
    .budget_ms(900);
}

/// Forward models of random operators, each added to those that the importer accepted: what is differentiated
/// is sound.
#[test]
fn random_forward_models() {
    let (mut tried, mut differentiated) = (0, 0);
    let float = |name: &str, dims: &[i64]| {
        let count = dims.iter().product::<i64>() as usize;
        tensor(name, 1, dims, &0.5f32.to_le_bytes().repeat(count))
    };
    arbtest(|u| {
        let mut graph = Graph {
            nodes: vec![
                node("Mul", "first", &["small", "w"], &["x"], &[]),
                node("Mul", "second", &["large", "filter"], &["image"], &[]),
            ],
            inputs: vec![value("small", 1, &["2", "3"]), value("large", 1, &["2", "3", "5", "4"])],
            initializers: random_constants(u)?,
            ..Graph::default()
        };
        graph.initializers.extend([float("w", &[3]), float("filter", &[3, 1, 1])]);
        let mut names = first_names();
        for i in 0..u.int_in_range(1..=12)? {
            let (node, outputs) = random_node(u, &names, i)?;
            graph.nodes.push(node);
            let result = field(1, u.choose(&outputs)?);
            graph.outputs = vec![result];
            tried += 1;
            if check_with(&graph.model(), &recipe(u.choose(&["l1", "output", "cross-entropy"])?, "sgd")) {
                differentiated += 1;
                names.extend(outputs);
            } else {
                graph.nodes.pop();
            }
        }
        Ok(())
    })
    .budget_ms(1500);
    assert!(differentiated > 20, "{differentiated} of {tried} random graphs were differentiated");
}

/// Damaged checkpoints of both kinds.
#[test]
fn damaged_checkpoints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let dir = tempfile::tempdir().expect("dir");
    let (ort, safe) = (root.join("mlp_s_adamw_wd"), root.join("mlp_s_step"));
    let cases = [
        (ort.join("training_model.onnx"), fs::read(ort.join("checkpoint_after")).expect("checkpoint")),
        (safe.join("sgd.onnx"), fs::read(safe.join("init.safetensors")).expect("checkpoint")),
    ];
    let path = dir.path().join("checkpoint");
    arbtest(|u| {
        let (model, bytes) = u.choose(&cases)?.clone();
        fs::write(&path, damaged(u, bytes)?).expect("write");
        let options = ImportOptions { checkpoint: Some(path.clone()), ..ImportOptions::default() };
        if let Ok(import) = import(&model, &options) {
            assert_eq!(memc_ir::verify(&import.module), Ok(()));
        }
        Ok(())
    })
    .budget_ms(500);
}
