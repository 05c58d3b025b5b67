//! The zoo: every network trains as it stands, from the initial contents its file describes.

mod train;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use memc_frontend::ImportOptions;
use memc_ir::{Init, OutputRole, Role};
use train::import;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")
}

/// Number of parameters by network, from the table of models/README.md.
fn stated() -> BTreeMap<String, u64> {
    let page = fs::read_to_string(models().join("README.md")).expect("models/README.md");
    let table = page.split("<!-- begin: models/gen/table.py -->").nth(1).expect("the table");
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_string(), cells.get(4)?.replace(',', "").parse().expect("a number")))
    };
    table.lines().filter_map(row).collect()
}

/// The loss that the network `name` of the literature is trained with.
fn loss(name: &str) -> &'static str {
    match name {
        "inception_v3" => "output",
        _ if name.starts_with("bert") => "cross-entropy:axis=1",
        _ if name.starts_with("gpt2") => "cross-entropy:axis=-1",
        _ => "cross-entropy",
    }
}

/// Every file imports with loss and optimizer without a warning, and its module verifies. It has as many
/// parameters as the page says, all are trained, statistics are carried, and every state's content is
/// generated, so that no file holds weights.
#[test]
fn every_network_trains() {
    let mut stated = stated();
    let mut files: Vec<PathBuf> =
        fs::read_dir(models().join("zoo")).expect("folder").map(|e| e.expect("entry").path()).collect();
    files.sort();
    for file in files {
        let name = file.file_stem().expect("name").to_string_lossy().to_string();
        let loss = loss(&name);
        let options = ImportOptions {
            loss: Some(loss.parse().expect("loss")),
            optimizer: Some("sgd:lr=0.1".parse().expect("optimizer")),
            dims: vec![("batch".into(), 2)],
            ..ImportOptions::default()
        };
        let done = import(&file, &options).expect(&name);
        let m = &done.module;
        assert_eq!(memc_ir::verify(m), Ok(()), "{name}");
        assert_eq!(done.warnings, Vec::<String>::new(), "{name}");
        let elements = |role| -> u64 {
            m.states.values().filter(|s| s.role == role).map(|s| m.values[s.value].ty.numel()).sum()
        };
        assert_eq!(Some(elements(Role::Param)), stated.remove(&name), "{name}");
        assert_eq!((elements(Role::Frozen), elements(Role::Optimizer)), (0, 0), "{name}");
        for s in m.states.values() {
            let state = &m.values[s.value].name;
            assert!(s.next.is_some(), "{name}: {state} does not change");
            assert!(!matches!(s.init, Init::Data(_)), "{name}: {state} is stored");
        }
        assert_eq!(m.outputs.iter().filter(|o| o.role == OutputRole::Loss).count(), 1, "{name}");
    }
    assert_eq!(stated, BTreeMap::new(), "in the table only");
}
