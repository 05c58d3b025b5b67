//! Which models are planned, for which devices and budgets, with how much search.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// One compilation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    /// File under `models/`.
    pub(crate) model: String,
    /// Options that say how to read the model, separated by blanks.
    pub(crate) options: String,
    /// Device profile.
    pub(crate) device: String,
    /// Search effort, 0 to 5.
    pub(crate) effort: u32,
    /// Device memory in bytes.
    pub(crate) budget: u64,
}

/// Networks of the zoo: name, device, options.
const ZOO: [(&str, &str, &str); 20] = [
    ("bert_base", "a100-40g", "--dim=batch=16 --loss=cross-entropy:axis=1 --optimizer=adam"),
    ("bert_base", "v100-16g", "--dim=batch=8 --loss=mse:output=qa_outputs --optimizer=adamw"),
    ("densenet121", "v100-16g", "--dim=batch=32 --loss=cross-entropy --optimizer=momentum"),
    ("gpt2_small", "h100", "--dim=batch=4 --loss=cross-entropy:axis=-1 --optimizer=adamw"),
    ("inception_v3", "v100-16g", "--dim=batch=32 --loss=output --optimizer=momentum"),
    ("inception_v4", "a100-80g", "--dim=batch=32 --loss=cross-entropy --optimizer=momentum"),
    ("mobilenet_v2", "gtx1080ti", "--dim=batch=64 --loss=cross-entropy --optimizer=momentum"),
    ("plain20_cifar10", "gtx1080ti", "--dim=batch=128 --loss=cross-entropy --optimizer=momentum"),
    ("resnet18", "cpu", "--dim=batch=16 --loss=cross-entropy --optimizer=sgd"),
    ("resnet34", "gtx1080ti", "--dim=batch=64 --loss=cross-entropy --optimizer=adam"),
    ("resnet50", "v100-16g", "--dim=batch=64 --loss=cross-entropy --optimizer=momentum"),
    ("resnet50", "h100", "--dim=batch=128 --loss=cross-entropy --optimizer=momentum --no-fuse"),
    ("resnet50_cifar10", "gtx1080ti", "--dim=batch=128 --loss=cross-entropy --optimizer=momentum"),
    ("resnext50_32x4d", "v100-16g", "--dim=batch=32 --loss=cross-entropy --optimizer=momentum"),
    ("rnn_8_8k", "v100-16g", "--dim=batch=64 --loss=cross-entropy --optimizer=sgd"),
    ("squeezenet1_1", "gtx1080ti", "--dim=batch=128 --loss=cross-entropy --optimizer=momentum"),
    ("vgg11_cifar10", "cpu", "--dim=batch=32 --loss=cross-entropy --optimizer=adagrad"),
    ("vgg16", "gtx1080ti", "--dim=batch=64 --loss=cross-entropy --optimizer=momentum"),
    ("vgg19", "a100-40g", "--dim=batch=64 --loss=cross-entropy --optimizer=momentum --no-mem-rewrite"),
    ("vit_b_16", "h100", "--dim=batch=64 --loss=cross-entropy --optimizer=adam"),
];

/// Models that take long for their size.
const SLOW: [&str; 4] = ["bert_tiny", "lstm", "resnet_tiny", "standard"];
/// Networks of the zoo that `cargo test` plans, too, without much search.
const QUICK: [&str; 3] = ["resnet18.onnx", "squeezenet1_1.onnx", "plain20_cifar10.onnx"];

impl Cell {
    /// Whether it takes no more than about a second.
    pub(crate) fn is_small(&self) -> bool {
        match self.model.strip_prefix("zoo/") {
            Some(network) => self.effort == 0 && QUICK.contains(&network),
            None => self.effort == 0 || !SLOW.iter().any(|slow| self.model.starts_with(slow)),
        }
    }

    /// Runs `memc COMMAND` on the model.
    pub(crate) fn memc(&self, command: &str, more: &[&str]) -> Result<Output, String> {
        Command::new(env!("CARGO_BIN_EXE_memc"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .arg(command)
            .arg(format!("models/{}", self.model))
            .args(self.options.split_whitespace())
            .args(["--device", &self.device, "--json"])
            .args(more)
            .output()
            .map_err(|e| format!("memc: {e}"))
    }
}

/// Committed training models and networks of [`ZOO`], each at four budgets and two efforts.
pub(crate) fn cells(is_wanted: impl Fn(&Cell) -> bool) -> Result<Vec<Cell>, String> {
    let cell = |model: &str, options: &str, device: &str| Cell {
        model: model.into(),
        options: options.into(),
        device: device.into(),
        effort: 0,
        budget: 0,
    };
    let mut models = Vec::new();
    for model in committed()? {
        let options = if model.starts_with("standard/") { "--dim=batch=5" } else { "" };
        models.push(cell(&model, options, "cpu"));
    }
    models.extend(ZOO.iter().map(|(net, device, options)| cell(&format!("zoo/{net}.onnx"), options, device)));
    let mut cells = Vec::new();
    for model in models.into_iter().filter(is_wanted) {
        for budget in budgets(&model)? {
            for effort in [0, 2] {
                cells.push(Cell { budget, effort, ..model.clone() });
            }
        }
    }
    Ok(cells)
}

/// Training models under `models/`, in order of names.
fn committed() -> Result<Vec<String>, String> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let list = |folder: &Path| -> Result<Vec<_>, String> {
        let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).collect();
        paths.sort();
        Ok(paths)
    };
    let mut out = Vec::new();
    for folder in list(&models)? {
        if !folder.is_dir() || folder.ends_with("gen") || folder.ends_with("zoo") {
            continue;
        }
        for file in list(&folder)? {
            if file.extension().is_some_and(|e| e == "onnx") && !file.ends_with("optimizer_model.onnx") {
                let name = file.strip_prefix(&models).unwrap_or(&file);
                out.push(name.to_string_lossy().into_owned());
            }
        }
    }
    Ok(out)
}

/// From what the unplanned step takes down to the smallest feasible budget, in three equal steps.
fn budgets(cell: &Cell) -> Result<[u64; 4], String> {
    let out = cell.memc("estimate", &[])?;
    let estimate: Value = serde_json::from_slice(&out.stdout).map_err(|e| format!("{cell:?}: {e}"))?;
    let bytes = |field: &str| {
        estimate[field].as_u64().ok_or_else(|| format!("{cell:?}: `memc estimate` prints no {field}"))
    };
    let (peak, least) = (bytes("peak_bytes")?, bytes("smallest_feasible_bytes")?);
    let part = |n: u64| least + peak.saturating_sub(least) / 3 * n;
    Ok([peak, part(2), part(1), least])
}
