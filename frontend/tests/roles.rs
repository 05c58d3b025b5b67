//! Statements of a model's file and of options about parameters, detached tensors and checkpoints.
#![allow(clippy::panic, reason = "a test fails by panicking")]

mod train;
mod wire;

use memc_frontend::{Import, ImportError, ImportOptions};
use memc_ir::{Blob, Init, Module, OpKind, Role};
use train::{import, import_bytes};
use wire::*;

fn options() -> ImportOptions {
    ImportOptions {
        loss: Some("mse".parse().expect("loss")),
        optimizer: Some("sgd".parse().expect("optimizer")),
        ..ImportOptions::default()
    }
}

/// A linear layer `l`, a table `pe` that is added, and a gain of one number; by PyTorch's exporters.
fn graph() -> Graph {
    Graph {
        nodes: vec![
            node("Add", "a", &["x", "pe"], &["shifted"], &[]),
            node("MatMul", "m", &["shifted", "l.weight"], &["y"], &[]),
            node("Mul", "g", &["y", "gain"], &["out"], &[]),
        ],
        inputs: vec![value("x", 1, &["2", "3"])],
        outputs: vec![value("out", 1, &["2", "3"])],
        initializers: vec![
            tensor("pe", 1, &[3], &[0; 12]),
            tensor("l.weight", 1, &[3, 3], &[0; 36]),
            tensor("gain", 1, &[], &1f32.to_le_bytes()),
        ],
        ..Graph::default()
    }
}

/// The model as PyTorch's exporters sign it.
fn bytes(graph: &Graph) -> Vec<u8> {
    [graph.model(), field(2, "pytorch")].concat()
}

/// A value with metadata.
fn noted(name: &str, key: &str, text: &str) -> Vec<u8> {
    [value(name, 1, &["3"]), field(4, entry(key, text))].concat()
}

fn entry(key: &str, value: &str) -> Vec<u8> {
    [field(1, key), field(2, value)].concat()
}

fn names(m: &Module, role: Role) -> Vec<&str> {
    m.states.values().filter(|s| s.role == role).map(|s| m.values[s.value].name.as_str()).collect()
}

fn read(model: &[u8], options: &ImportOptions) -> Import {
    let import = import_bytes(model, options).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(memc_ir::verify(&import.module), Ok(()));
    import
}

fn usage(model: &[u8], options: &ImportOptions) -> String {
    match import_bytes(model, options) {
        Err(ImportError::Usage(text)) => text,
        other => panic!("a usage error is expected, not {other:?}"),
    }
}

/// Where nothing says what a parameter is, each trained tensor that is no layer's weight is named, with the
/// options that settle it. Once they do, nothing is said.
#[test]
fn a_guess_is_said() {
    let model = bytes(&graph());
    let import = read(&model, &options());
    assert_eq!(names(&import.module, Role::Param), ["gain", "l.weight", "pe"]);
    let text = import.warnings.join("\n");
    assert!(text.contains("2 tensors trained as parameters, though they are no layer's weight"), "{text}");
    assert!(text.contains("gain") && text.contains("`pe`") && !text.contains("l.weight"), "{text}");
    assert!(text.contains("--parameters FILE") && text.contains("--freeze"), "{text}");

    let frozen = ImportOptions { freeze: vec!["pe".into(), "ga*".into()], ..options() };
    let import = read(&model, &frozen);
    assert_eq!(names(&import.module, Role::Frozen), ["gain", "pe"]);
    assert_eq!(import.warnings, Vec::<String>::new());
    assert!(import.notes.iter().any(|n| n == "--freeze ga*: 1 parameter, gain"), "{:?}", import.notes);
}

/// The option, the model's own list and the exporter's kinds each name the parameters; the first wins.
#[test]
fn files_and_options_say_what_a_parameter_is() {
    const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";
    let mut kinds = graph();
    for (name, kind) in [("pe", "BUFFER"), ("l.weight", "PARAMETER"), ("gain", "InputKind.PARAMETER")] {
        kinds.more.extend(field(13, noted(name, KIND, kind)));
    }
    let import = read(&bytes(&kinds), &options());
    assert_eq!(names(&import.module, Role::Param), ["gain", "l.weight"]);
    assert_eq!(names(&import.module, Role::Frozen), ["pe"]);
    assert_eq!(import.warnings, Vec::<String>::new());
    let is_unsaid = |import: &Import| import.notes.iter().any(|n| n.contains("requires_grad=False"));
    assert!(is_unsaid(&import), "{:?}", import.notes);
    let frozen = ImportOptions { freeze: vec!["gain".to_owned()], ..options() };
    assert!(!is_unsaid(&read(&bytes(&kinds), &frozen)));

    let listed =
        |graph: &Graph, json: &str| [bytes(graph), field(14, entry("memc.parameters", json))].concat();
    let import = read(&listed(&kinds, r#"["l.weight", "pe"]"#), &options());
    assert_eq!(names(&import.module, Role::Param), ["l.weight", "pe"]);

    let patterns = |list: &[&str]| ImportOptions {
        parameters: list.iter().map(ToString::to_string).collect(),
        ..options()
    };
    let import = read(&listed(&kinds, r#"["pe"]"#), &patterns(&["l.*", "gain"]));
    assert_eq!(names(&import.module, Role::Param), ["gain", "l.weight"]);
    assert_eq!(names(&import.module, Role::Frozen), ["pe"]);

    let import = read(&bytes(&graph()), &patterns(&["l.weight", "lm_head.weight"]));
    assert_eq!(names(&import.module, Role::Param), ["l.weight"]);
    assert!(import.warnings.join("\n").contains("`lm_head.weight`; weights that are tied"));
    let text = usage(&bytes(&graph()), &patterns(&["lm_head.weight"]));
    assert!(text.contains("--parameters matches no tensor of the model: it has `lm_head.weight`"), "{text}");
    match import_bytes(&listed(&kinds, "pe, gain"), &options()) {
        Err(ImportError::BadModel(text)) => assert!(text.contains("no JSON array of names"), "{text}"),
        other => panic!("{other:?}"),
    }
}

/// The gradient stops at a `detach` of the exported program, and at tensors that the option names.
#[test]
fn gradients_stop_where_the_model_or_the_user_says() {
    let count = |import: &Import| {
        let stops = |o: &&memc_ir::OpId| {
            matches!(import.module.ops[**o].kind(), Some(OpKind::Copy {} | OpKind::StopGradient {}))
        };
        import.module.order.iter().filter(stops).count()
    };
    let call = "%detach : [num_users=1] = call_function[target=torch.ops.aten.detach.default](args = (%y,))";
    let mut detached = graph();
    let identity = node("Identity", "node_detach", &["shifted"], &["still"], &[]);
    detached.nodes[1] = [identity, field(9, entry("pkg.torch.onnx.fx_node", call))].concat();
    detached.nodes.insert(2, node("MatMul", "m", &["still", "l.weight"], &["y"], &[]));
    let import = read(&bytes(&detached), &options());
    assert_eq!((names(&import.module, Role::Param), count(&import)), (vec!["gain", "l.weight"], 1));
    assert!(import.warnings.join("\n").contains("the loss does not depend on 1 parameter"));

    let stopped = ImportOptions { stop_gradient: vec!["shif*".into()], ..options() };
    let import = read(&bytes(&graph()), &stopped);
    assert_eq!((names(&import.module, Role::Param), count(&import)), (vec!["gain", "l.weight"], 1));

    let refused = |name: &str| {
        usage(&bytes(&graph()), &ImportOptions { stop_gradient: vec![name.into()], ..options() })
    };
    assert!(refused("l.weight").contains("freeze parameters with --freeze"));
    assert!(refused("x").contains("inputs alone"));
    assert!(refused("shited").contains("matches no tensor that a node computes; there are shifted, y, out"));
}

/// A safetensors file with alias: of tied tensors it keeps one.
fn safetensors(tensors: &[(&str, usize)], alias: Option<(&str, &str)>) -> Vec<u8> {
    let mut header = String::from("{");
    if let Some((alias, name)) = alias {
        header.push_str(&format!(r#""__metadata__":{{"format":"pt","{alias}":"{name}"}},"#));
    }
    let (mut entries, mut at) = (Vec::new(), 0);
    for (name, n) in tensors {
        let shape = if *n == 9 { "3,3".to_string() } else { n.to_string() };
        let end = at + 4 * n;
        entries.push(format!(r#""{name}":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{at},{end}]}}"#));
        at = end;
    }
    header.push_str(&entries.join(","));
    header.push('}');
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; at]].concat()
}

/// Tied tensors are found under the name that the file kept. A state that the file does not set is named, and
/// a parameter among them is refused unless allowed.
#[test]
fn checkpoints_set_every_parameter_or_say_which_they_do_not() {
    let dir = tempfile::tempdir().expect("dir");
    let (model, checkpoint) = (dir.path().join("model.onnx"), dir.path().join("weights"));
    std::fs::write(&model, bytes(&graph())).expect("model");
    let frozen =
        ImportOptions { freeze: vec!["gain".into()], checkpoint: Some(checkpoint.clone()), ..options() };
    let with = |bytes: Vec<u8>, options: &ImportOptions| {
        std::fs::write(&checkpoint, bytes).expect("checkpoint");
        import(&model, options)
    };
    let tied = safetensors(&[("head", 9), ("pe", 3)], Some(("l.weight", "head")));
    let found = with(tied, &frozen).expect("the alias names the tensor");
    assert!(found.notes.iter().any(|n| n.ends_with("2 of 3 states set")), "{:?}", found.notes);
    let text = found.warnings.join("\n");
    assert!(text.contains("does not have 1 state, which keep the model's values: gain"), "{text}");
    assert!(!text.contains("head"), "{text}");

    let lacking = || safetensors(&[("pe", 3), ("head", 9)], None);
    let text = with(lacking(), &frozen).expect_err("a parameter is not set").to_string();
    assert!(text.contains("does not have 1 parameter of the model: l.weight"), "{text}");
    assert!(text.contains("--allow-missing 'l.weight'"), "{text}");
    let allowed = ImportOptions { allow_missing: vec!["l.*".into()], ..frozen.clone() };
    let found = with(lacking(), &allowed).expect("it is allowed");
    assert!(found.warnings.join("\n").contains("gain, l.weight"), "{:?}", found.warnings);

    // An optimizer goes on at the step that memrun saved.
    let step = br#"{"step":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}"#;
    let bytes = [&(step.len() as u64).to_le_bytes()[..], step, &7i64.to_le_bytes()].concat();
    let adam = ImportOptions {
        optimizer: Some("adam".parse().expect("optimizer")),
        allow_missing: vec!["*".into()],
        ..frozen.clone()
    };
    let found = with(bytes, &adam).expect("a step and no moments");
    let count = found.module.states.values().find(|s| found.module.values[s.value].name == "step");
    assert_eq!(count.map(|s| s.init.clone()), Some(Init::Data(Blob::new(7i64.to_le_bytes()))));

    let text = with(b"PK\x03\x04archive".to_vec(), &frozen).expect_err("an archive").to_string();
    assert!(text.contains("file of torch.save") && text.contains("safetensors.torch.save_model"), "{text}");
}

/// Groups lose weight decay or change the rate of the parameters that they name; what they match is told.
#[test]
fn parameter_groups() {
    let own = ImportOptions {
        optimizer: Some("adamw:lr=0.1,weight_decay=0.5".parse().expect("optimizer")),
        no_decay: vec!["vectors".into()],
        rate_factors: vec![("l.*".into(), memc_ir::attr::F32(0.25)), ("*".into(), memc_ir::attr::F32(2.0))],
        ..options()
    };
    let import = import_bytes(&bytes(&graph()), &own).unwrap_or_else(|e| panic!("{e}"));
    let m = &import.module;
    let mut seen = Vec::new();
    for &op in &m.order {
        let memc_ir::Code::Compute(OpKind::AdamW { weight_decay, .. }) = &m.ops[op].code else { continue };
        // Weight, gradient, two moments, rate and step.
        let operand = |i: usize| m.values[m.ops[op].operands[i]].name.clone();
        seen.push((operand(0), weight_decay.0, operand(4)));
    }
    let group = |name: &str, decay: f32, rate: &str| (name.to_string(), decay, rate.to_string());
    assert_eq!(
        seen,
        [
            group("gain", 0.0, "learning_rate.2.0"),
            group("l.weight", 0.5, "learning_rate.0.5"),
            group("pe", 0.0, "learning_rate.2.0"),
        ]
    );
    let notes = import.notes.join("\n");
    assert!(
        notes.contains("--no-decay vectors: 2 parameters") && notes.contains("--lr-mult l.*: 1 parameter")
    );
    let none = ImportOptions { no_decay: vec!["nothing*".into()], ..own };
    match import_bytes(&bytes(&graph()), &none) {
        Err(ImportError::Usage(text)) => assert!(text.contains("matches no trained parameter"), "{text}"),
        other => panic!("a usage error is expected, not {other:?}"),
    }
}
