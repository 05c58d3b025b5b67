//! Copies of models with notes: nothing else changes, and what cannot be copied is refused.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

mod wire;

use std::path::{Path, PathBuf};

use memc_frontend::{Notes, annotate};
use onnx_protobuf::{Message, ModelProto, StringStringEntryProto};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn entries(value: &str) -> Vec<(String, String)> {
    vec![("memc.decision".into(), value.into()), ("memc.bytes".into(), "64".into())]
}

/// Notes on every node and every value of a model.
fn notes(model: &ModelProto) -> Notes {
    let mut notes = Notes::default();
    for node in &model.graph.node {
        notes.nodes.insert(node.name.clone(), entries(&node.name));
        for output in &node.output {
            notes.values.insert(output.clone(), entries(output));
            notes.lines.insert(output.clone(), format!("{output}: kept"));
        }
    }
    for name in
        model.graph.input.iter().map(|i| &i.name).chain(model.graph.initializer.iter().map(|t| &t.name))
    {
        notes.values.insert(name.clone(), entries(name));
    }
    notes
}

fn value<'a>(metadata: &'a [StringStringEntryProto], key: &str) -> Option<&'a str> {
    let mut found = metadata.iter().filter(|entry| entry.key == key);
    let first = found.next();
    assert!(found.next().is_none(), "{key} twice");
    first.map(|entry| entry.value.as_str())
}

fn strip(model: &mut ModelProto) {
    let graph = model.graph.as_mut().unwrap();
    let drop = |list: &mut Vec<StringStringEntryProto>| list.retain(|entry| !entry.key.starts_with("memc."));
    graph.node.iter_mut().for_each(|node| drop(&mut node.metadata_props));
    graph.initializer.iter_mut().for_each(|tensor| drop(&mut tensor.metadata_props));
    let values = graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info);
    values.for_each(|value| drop(&mut value.metadata_props));
}

/// Without its notes and the version of its format, a copy is the model. A copy of a copy has each note once.
#[test]
fn a_copy_is_the_model_with_notes() {
    let folder = tempfile::tempdir().unwrap();
    for model in
        ["models/zoo/resnet18.onnx", "models/cnn_bn/training_model.onnx", "models/lstm_step/adamw.onnx"]
    {
        let path = root().join(model);
        if !path.exists() {
            panic!("{model} has moved");
        }
        let original = ModelProto::parse_from_bytes(&std::fs::read(&path).unwrap()).unwrap();
        let notes = notes(&original);
        let to = folder.path().join("copy.onnx");
        let bytes = annotate(&path, &to, &notes).unwrap();
        std::fs::write(&to, &bytes).unwrap();
        assert_eq!(bytes, annotate(&to, &to, &notes).unwrap(), "{model}");
        let mut copy = ModelProto::parse_from_bytes(&bytes).unwrap();
        assert!(copy.ir_version >= 10);
        let mut seen = 0;
        for node in &copy.graph.node {
            assert_eq!(value(&node.metadata_props, "memc.decision"), Some(node.name.as_str()));
            for output in node.output.iter().filter(|output| !output.is_empty()) {
                let line = value(&node.metadata_props, &format!("memc.output.{output}"));
                assert_eq!(line, Some(format!("{output}: kept").as_str()));
            }
        }
        for of in copy.graph.input.iter().chain(&copy.graph.output).chain(&copy.graph.value_info) {
            assert_eq!(value(&of.metadata_props, "memc.decision"), Some(of.name.as_str()));
            seen += 1;
        }
        for tensor in &copy.graph.initializer {
            assert_eq!(value(&tensor.metadata_props, "memc.decision"), Some(tensor.name.as_str()));
        }
        assert!(seen > 0);
        strip(&mut copy);
        copy.ir_version = original.ir_version;
        assert_eq!(copy, original, "{model}");
    }
}

/// Data in other files stays where it is: the copy must lie beside it.
#[test]
fn a_copy_lies_beside_external_data() {
    use wire::{field, int, node, value};
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let location = field(13, [field(1, "location"), field(2, "w.bin")].concat());
    let tensor = [int(1, 2), int(2, 1), field(8, "w"), location, int(14, 1)].concat();
    let graph = [
        field(1, node("Add", "add", &["x", "w"], &["y"], &[])),
        field(2, "g"),
        field(5, tensor),
        field(11, value("x", 1, &["2"])),
        field(12, value("y", 1, &["2"])),
    ];
    let model = [int(1, 8), field(7, graph.concat()), field(8, int(2, 17))].concat();
    let path = here.path().join("model.onnx");
    std::fs::write(&path, model).unwrap();
    let error = annotate(&path, &there.path().join("copy.onnx"), &Notes::default()).unwrap_err().to_string();
    assert!(error.contains("`w`") && error.contains("the model's folder"), "{error}");
    let copy = annotate(&path, &here.path().join("copy.onnx"), &Notes::default()).unwrap();
    let copy = ModelProto::parse_from_bytes(&copy).unwrap();
    assert_eq!(copy.graph.initializer[0].external_data[0].value, "w.bin");
}

/// Files that are no models are refused.
#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    for bytes in [&b"hello, this is text"[..], b"\x3a\x7f\x00", b"PK\x03\x04"] {
        std::fs::write(&path, bytes).unwrap();
        assert!(annotate(&path, &path, &Notes::default()).is_err());
    }
    assert!(annotate(&folder.path().join("none.onnx"), &path, &Notes::default()).is_err());
}
