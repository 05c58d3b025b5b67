//! Random damage: the importer returns, and what it accepts is a sound module.

mod wire;

use std::fs;
use std::path::Path;

use arbtest::{arbitrary, arbtest};
use memc_frontend::{ImportOptions, import, import_bytes};
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
    let options = ImportOptions { accumulate, ..ImportOptions::default() };
    match import_bytes(bytes, &options) {
        Ok(import) => {
            assert_eq!(memc_ir::verify(&import.module), Ok(()));
            let text = memc_ir::print(&import.module);
            let again = memc_ir::parse(&text).expect("what is printed parses");
            assert_eq!(memc_ir::print(&again), text);
        }
        Err(e) => assert!(!e.to_string().is_empty()),
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

/// Graphs of random supported operators over random operands and small integer constants.
#[test]
fn random_nodes() {
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
    const ATTRS: &[&str] =
        &["axis", "to", "keepdims", "group", "transA", "ceil_mode", "training_mode", "start", "end"];
    const LISTS: &[&str] =
        &["perm", "kernel_shape", "strides", "pads", "dilations", "axes", "output_padding"];
    arbtest(|u| {
        let mut graph = small_step();
        let mut names: Vec<String> = vec!["w".into(), "x".into(), "image".into(), "".into()];
        graph.inputs.push(value("image", 1, &["2", "3", "5", "4"]));
        for i in 0..3 {
            let values: Vec<i64> =
                (0..u.int_in_range(0..=4)?).map(|_| u.int_in_range(-3..=6)).collect::<Result<_, _>>()?;
            let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            graph.initializers.push(tensor(&format!("c{i}"), 7, &[values.len() as i64], &raw));
            names.push(format!("c{i}"));
        }
        for i in 0..u.int_in_range(1..=6)? {
            let op = *u.choose(OPS)?;
            let inputs: Vec<String> =
                (0..u.int_in_range(0..=5)?).map(|_| u.choose(&names).cloned()).collect::<Result<_, _>>()?;
            let outputs: Vec<String> =
                (0..u.int_in_range(1..=3)?).map(|k| format!("t{i}_{k}_grad")).collect();
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
            let refs = |list: &[String]| list.iter().map(|s| s.to_string()).collect::<Vec<String>>();
            let (ins, outs) = (refs(&inputs), refs(&outputs));
            let ins: Vec<&str> = ins.iter().map(String::as_str).collect();
            let outs: Vec<&str> = outs.iter().map(String::as_str).collect();
            graph.nodes.push(node(op, &format!("n{i}"), &ins, &outs, &attrs));
            names.extend(outputs);
        }
        check(&graph.model(), 1);
        Ok(())
    })
    .budget_ms(900);
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
