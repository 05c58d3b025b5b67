//! The committed models: each imports as it should, and the manifest lists exactly the files that are there.

mod train;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use memc_frontend::{Import, ImportOptions};
use memc_ir::{Code, Feed, Init, Module, OpKind, OutputRole, Role};
use train::import;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")
}

fn imported(path: &str, options: &ImportOptions) -> Import {
    import(&root().join(path), options).expect(path)
}

fn plain(path: &str) -> Import {
    imported(path, &ImportOptions::default())
}

/// Sound, and the same after being printed and parsed.
fn assert_sound(m: &Module) {
    assert_eq!(memc_ir::verify(m), Ok(()));
    let text = memc_ir::print(m);
    let again = memc_ir::parse(&text).expect("what is printed parses");
    assert_eq!(memc_ir::print(&again), text);
}

fn count(m: &Module, role: Role) -> usize {
    m.states.values().filter(|s| s.role == role).count()
}

/// (path, trained parameters, buffers, optimizer tensors, ops): every training artifact and one-file step.
const MODELS: &[(&str, usize, usize, usize, usize)] = &[
    ("bert_tiny_dropout/training_model.onnx", 38, 0, 0, 259),
    ("bert_tiny_nodrop/training_model.onnx", 38, 0, 77, 239),
    ("bert_tiny_nodrop_sgd/training_model.onnx", 38, 0, 0, 238),
    ("bert_tiny_nodrop_step/adamw.onnx", 38, 0, 76, 1025),
    ("bert_tiny_nodrop_step/momentum.onnx", 38, 0, 38, 603),
    ("bert_tiny_nodrop_step/sgd.onnx", 38, 0, 0, 527),
    ("cnn_bn/training_model.onnx", 10, 4, 21, 42),
    ("cnn_bn_head/training_model.onnx", 2, 4, 5, 22),
    ("cnn_bn_sgd/training_model.onnx", 10, 4, 0, 41),
    ("cnn_bn_step/adamw.onnx", 10, 6, 20, 331),
    ("cnn_bn_step/momentum.onnx", 10, 6, 10, 217),
    ("cnn_bn_step/sgd.onnx", 10, 6, 0, 197),
    ("lstm_sgd/training_model.onnx", 6, 0, 0, 485),
    ("lstm_step/adamw.onnx", 6, 0, 12, 860),
    ("lstm_step/momentum.onnx", 6, 0, 6, 790),
    ("lstm_step/sgd.onnx", 6, 0, 0, 778),
    ("mlp_clip/training_model.onnx", 6, 0, 13, 45),
    ("mlp_clip_sgd/training_model.onnx", 6, 0, 0, 44),
    ("mlp_s/training_model.onnx", 6, 0, 13, 24),
    ("mlp_s_adamw_wd/training_model.onnx", 6, 0, 13, 24),
    ("mlp_s_bce/training_model.onnx", 6, 0, 13, 42),
    ("mlp_s_l1/training_model.onnx", 6, 0, 13, 29),
    ("mlp_s_mse/training_model.onnx", 6, 0, 13, 31),
    ("mlp_s_sgd/training_model.onnx", 6, 0, 0, 23),
    ("mlp_s_step/adamw.onnx", 6, 0, 12, 161),
    ("mlp_s_step/momentum.onnx", 6, 0, 6, 91),
    ("mlp_s_step/sgd.onnx", 6, 0, 0, 79),
    ("resnet_tiny/training_model.onnx", 62, 40, 125, 283),
];

/// Every training artifact and one-file step is in the table, imports, verifies, and has the states and ops
/// the table says.
#[test]
fn all_models_import() {
    let mut found: Vec<String> = files()
        .into_keys()
        .filter(|p| p.ends_with(".onnx") && !p.ends_with("optimizer_model.onnx"))
        .filter(|p| !["gen/", "standard/", "zoo/"].iter().any(|folder| p.starts_with(folder)))
        .collect();
    found.sort();
    let listed: Vec<&str> = MODELS.iter().map(|m| m.0).collect();
    assert_eq!(found, listed);
    for &(path, params, buffers, optimizer, ops) in MODELS {
        let mut options = ImportOptions::default();
        let init = root().join(path).with_file_name("init.safetensors");
        if init.is_file() {
            options.checkpoint = Some(init);
        }
        let import = imported(path, &options);
        let m = &import.module;
        assert_sound(m);
        let counts = [Role::Param, Role::Buffer, Role::Optimizer].map(|r| count(m, r));
        assert_eq!((counts, m.order.len()), ([params, buffers, optimizer], ops), "{path}");
        assert_eq!(import.warnings, Vec::<String>::new(), "{path}");
        let losses = m.outputs.iter().filter(|o| o.role == OutputRole::Loss).count();
        assert_eq!((losses, m.outputs.len()), (1, 1), "{path}");
        // Everything but frozen tensors changes in every step.
        assert!(m.states.values().all(|s| s.next.is_some() != (s.role == Role::Frozen)), "{path}");
    }
}

/// Integer inputs that are indices or labels carry their legal range.
#[test]
fn ranges_of_integer_inputs() {
    let range = |path: &str, name: &str| {
        let m = plain(path).module;
        let value = m.value_named(name).expect("input");
        m.inputs.values().find(|x| x.value == value).map(|x| match &x.feed {
            Feed::Data { range, .. } => *range,
            _ => None,
        })
    };
    assert_eq!(range("mlp_s/training_model.onnx", "labels"), Some(Some((0, 10))));
    assert_eq!(range("bert_tiny_nodrop/training_model.onnx", "input"), Some(Some((0, 100))));
    assert_eq!(range("bert_tiny_nodrop_step/sgd.onnx", "x"), Some(Some((0, 100))));
    assert_eq!(range("cnn_bn_step/adamw.onnx", "y"), Some(Some((0, 10))));
    assert_eq!(range("cnn_bn_step/adamw.onnx", "x"), Some(None));
}

/// Files beside the model are used and named; leaving the optimizer out turns gradients into outputs.
#[test]
fn companions() {
    let import = plain("cnn_bn/training_model.onnx");
    assert!(
        import.notes[0].contains("optimizer_model.onnx (found beside the model): AdamW"),
        "{:?}",
        import.notes
    );
    assert!(import.notes[1].contains("checkpoint (found beside the model)"), "{:?}", import.notes);
    assert!(import.module.states.values().all(|s| s.role != Role::Param || matches!(s.init, Init::Data(_))));
    let none = ImportOptions { no_optimizer: true, ..ImportOptions::default() };
    let m = imported("cnn_bn/training_model.onnx", &none).module;
    let gradients: Vec<&str> =
        m.outputs.iter().filter(|o| o.role == OutputRole::Gradient).map(|o| o.name.as_str()).collect();
    assert_eq!(gradients.len(), 10);
    assert!(gradients.contains(&"c1.weight_grad"));
    assert_eq!(count(&m, Role::Optimizer), 0);
    assert_sound(&m);
}

/// Batch normalisation's running statistics are carried although no node of the model reads the new ones.
#[test]
fn statistics_are_carried() {
    let m = plain("cnn_bn/training_model.onnx").module;
    for s in m.states.values().filter(|s| s.role == Role::Buffer) {
        let op = m.def_op(s.next.expect("next")).expect("op");
        assert!(matches!(m.ops[op].code, Code::Compute(OpKind::MovingAverage { .. })));
        assert_eq!(m.ops[op].operands[0], s.value);
    }
}

/// Two micro-steps: two sets of inputs and losses, chained statistics, summed gradients, one update.
#[test]
fn accumulation() {
    let options = ImportOptions { accumulate: 2, ..ImportOptions::default() };
    let m = imported("cnn_bn/training_model.onnx", &options).module;
    assert_sound(&m);
    let feeds: Vec<(&str, &str, u32)> = m
        .inputs
        .values()
        .filter_map(|x| match &x.feed {
            Feed::Data { source, micro, .. } => {
                Some((m.values[x.value].name.as_str(), source.as_str(), *micro))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        feeds,
        [("input", "input", 0), ("labels", "labels", 0), ("input.1", "input", 1), ("labels.1", "labels", 1)]
    );
    let losses: Vec<&str> = m.outputs.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(losses.len(), 2);
    assert_eq!(losses[1], format!("{}.1", losses[0]));
    let ops = |f: fn(&OpKind) -> bool| m.order.iter().filter(|&&o| m.ops[o].kind().is_some_and(f)).count();
    assert_eq!(ops(|k| matches!(k, OpKind::AdamW { .. })), 10);
    assert_eq!(ops(|k| matches!(k, OpKind::MovingAverage { .. })), 8);
    for s in m.states.values().filter(|s| s.role == Role::Buffer) {
        let second = m.def_op(s.next.expect("next")).expect("op");
        let first = m.def_op(m.ops[second].operands[0]).expect("the second micro-step continues the first");
        assert_eq!(m.ops[first].operands[0], s.value);
    }
    let sum = m.value_named("c1.weight_grad.accumulation.buffer").expect("summed gradient");
    let sum = m.def_op(sum).expect("op");
    let names: Vec<&str> = m.ops[sum].operands.iter().map(|&v| m.values[v].name.as_str()).collect();
    assert_eq!(names, ["c1.weight_grad", "c1.weight_grad.1"]);
}

/// A checkpoint written after five steps resumes moments and step count; one without values does not import.
#[test]
fn resuming_a_checkpoint() {
    let after = root().join("mlp_s_adamw_wd/checkpoint_after");
    let options = ImportOptions { checkpoint: Some(after), ..ImportOptions::default() };
    let import = imported("mlp_s_adamw_wd/training_model.onnx", &options);
    let m = &import.module;
    assert!(import.notes[1].contains("(given, from step 5)"), "{:?}", import.notes);
    let state = |name: &str| {
        let v = m.value_named(name).unwrap_or_else(|| panic!("{name}"));
        m.states.values().find(|s| s.value == v).expect("state")
    };
    let Init::Data(step) = &state("step").init else { panic!("the step count is stored") };
    assert_eq!(step.bytes().map(|b| &**b), Some(5i64.to_le_bytes().as_slice()));
    for name in ["fc1.weight.momentum0", "fc3.bias.momentum1"] {
        let Init::Data(moment) = &state(name).init else { panic!("{name} is stored") };
        assert!(moment.bytes().expect("bytes").iter().any(|&b| b != 0));
    }
    let wrong =
        ImportOptions { checkpoint: Some(root().join("cnn_bn/checkpoint")), ..ImportOptions::default() };
    let text = import_error("mlp_s/training_model.onnx", &wrong);
    assert!(text.contains("checkpoint has no `fc1.weight`"), "{text}");
}

fn import_error(path: &str, options: &ImportOptions) -> String {
    import(&root().join(path), options).expect_err("must fail").to_string()
}

/// An optimizer model, or a forward model, is refused with advice.
#[test]
fn other_kinds_of_model() {
    let optimizer = import_error("mlp_s/optimizer_model.onnx", &ImportOptions::default());
    assert!(optimizer.contains("this is an optimizer model"), "{optimizer}");
    let forward = import_error("gen/mlp_s.forward.onnx", &ImportOptions::default());
    assert!(forward.contains("not a training step") && forward.contains("artifacts"), "{forward}");
    let swapped = ImportOptions {
        optimizer_model: Some(root().join("mlp_s/training_model.onnx")),
        ..ImportOptions::default()
    };
    let text = import_error("mlp_s/training_model.onnx", &swapped);
    assert!(text.contains("an optimizer model has one AdamWOptimizer"), "{text}");
}

/// Every file under models/, by path, as `bytes blake3`; the manifest and the page about it are left out.
fn files() -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut open = vec![root()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).expect("folder") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.strip_prefix(root()).expect("inside").to_string_lossy().replace('\\', "/");
            if name != "manifest.tsv" && name != "README.md" {
                let bytes = fs::read(&path).expect("file");
                out.insert(name, format!("{}\t{}", bytes.len(), blake3::hash(&bytes).to_hex()));
            }
        }
    }
    out
}

/// The manifest has every file with its size and hash, and all of them are small.
///
/// With `MEMC_BLESS=1` the test writes the manifest instead.
#[test]
fn manifest_is_complete() {
    let mut text = String::from("path\tbytes\tblake3\n");
    for (path, line) in files() {
        text.push_str(&format!("{path}\t{line}\n"));
    }
    let manifest = root().join("manifest.tsv");
    #[allow(clippy::disallowed_methods, reason = "a test that writes its expectation on request")]
    if std::env::var_os("MEMC_BLESS").is_some() {
        fs::write(&manifest, &text).expect("write");
    }
    assert_eq!(fs::read_to_string(&manifest).expect("models/manifest.tsv"), text);
    let total: u64 = files().values().filter_map(|l| l.split('\t').next()?.parse::<u64>().ok()).sum();
    assert!(total <= 12 << 20, "{total} bytes of models are too many for the repository");
}
