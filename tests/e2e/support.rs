//! Running the command and the runtime, and reading reference arrays.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memc_plan::PlanFile;
use memc_runtime::{RunOptions, Step, Watch, cpu};
use serde_json::Value;

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Says what a test leaves out, for want of another program. A macro's text would be kept where tests pass.
pub(crate) fn skipped(what: &str) {
    std::io::stderr().write_all(format!("SKIPPED: {what}\n").as_bytes()).unwrap();
}

/// `memc` in the repository, on a machine without a GPU: the default device is the cpu.
pub(crate) fn memc_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memc"));
    command.current_dir(root()).env("CUDA_VISIBLE_DEVICES", "");
    command
}

/// Runs `memc` in the repository.
pub(crate) fn memc(args: &[&str]) -> Output {
    memc_command().args(args).output().unwrap()
}

/// Runs `memc` and requires success; its standard output.
pub(crate) fn memc_ok(args: &[&str]) -> String {
    let out = memc(args);
    assert!(out.status.success(), "memc {}\n{}", args.join(" "), String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Runs `memc` and requires the exit code; its standard error.
pub(crate) fn memc_fails(code: i32, args: &[&str]) -> String {
    let out = memc(args);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(code), "memc {}\n{text}", args.join(" "));
    text
}

/// One JSON object printed by `memc`.
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A field that is a number.
pub(crate) fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} in {value}"))
}

/// A reference array in f32, or None where it is of another type.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    npyz::NpyFile::new(bytes).unwrap().into_vec::<f32>().unwrap()
}

/// The arrays of an `.npz` file, an archive of `.npy` files, by name.
pub(crate) fn npz(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut archive = zip::ZipArchive::new(file).unwrap();
    let mut out = BTreeMap::new();
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        out.insert(entry.name().unwrap().trim_end_matches(".npy").to_string(), bytes);
    }
    out
}

/// Output of a run and the files that it left.
pub(crate) struct Ran {
    pub(crate) losses: Vec<f32>,
    /// States by name, as saved.
    pub(crate) states: BTreeMap<String, Vec<u8>>,
}

/// Collects losses.
#[derive(Default)]
pub(crate) struct Losses(pub(crate) Vec<f32>);

impl Watch for Losses {
    fn step(&mut self, step: &Step) {
        self.0.push(step.loss().unwrap());
    }
    fn note(&mut self, text: &str) {
        eprintln!("{text}");
    }
    fn should_stop(&self) -> bool {
        false
    }
}

/// Runs a plan for some steps, comparing with the unplanned run when `options.verify`.
pub(crate) fn run(plan: &Path, folder: &Path, mut options: RunOptions) -> Ran {
    let file = PlanFile::open(plan).unwrap();
    let saved = folder.join("out.safetensors");
    options.save = Some(saved.clone());
    let mut losses = Losses::default();
    memc_runtime::run(&file, &options, &mut losses).unwrap_or_else(|e| panic!("{}: {e}", plan.display()));
    Ran { losses: losses.0, states: self::saved(&saved) }
}

/// The tensors of a saved state by name.
pub(crate) fn saved(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    tensors.iter().map(|(name, view)| (name.to_string(), view.data().to_vec())).collect()
}

/// Some steps on synthetic data with adversarial timing, compared with the unplanned run.
pub(crate) fn verified(steps: u64, seed: u64) -> RunOptions {
    RunOptions {
        steps: Some(steps),
        synthetic: true,
        verify: true,
        cpu: adversarial(seed),
        ..RunOptions::default()
    }
}

/// Options of the runs in these tests: poisoned memory, adversarial delays.
pub(crate) fn adversarial(seed: u64) -> cpu::Options {
    cpu::Options { threads: 2, check_memory: true, delay_seed: Some(seed), slow: None }
}

/// Writes bytes to a file of the folder and returns its path.
pub(crate) fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}
