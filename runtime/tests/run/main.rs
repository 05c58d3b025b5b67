//! Tests of the devices and of `memrun`, on plans written by hand.

mod arena;
mod between;
mod command;
mod fake;
mod generated;
mod gpu;
mod interrupted;
mod libraries;
mod mock;
mod narrow;
mod plain;
mod profile;
mod refused;
mod runs;
#[cfg(target_os = "linux")]
mod signal;
mod states;
mod trace;
mod training;
mod tune;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use memc_plan::{NoData, Plan, PlanFile};
use memc_runtime::{Error, Report, RunOptions, Stage, Step, Watch, run};

/// A classifier with swapped optimizer state; see the file.
const CLASSIFIER: &str = include_str!("classifier.plan");

/// The same, with the host waiting for the copies of its inputs as in compiled plans, before it writes the
/// next ones.
fn host_waits() -> String {
    let primed = "  d2h record e5\n}\nbody {\n";
    assert!(CLASSIFIER.contains(primed));
    CLASSIFIER.replace(primed, "  d2h record e5\n  h2d record e0\n}\nbody {\n  host wait e0\n")
}

/// A folder with a plan, removed at the end.
struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    fn new(plan: &Plan) -> Folder {
        let folder = tempfile::tempdir().expect("a temporary folder");
        memc_plan::write(folder.path().join("model.plan"), plan, &mut NoData, &|| false)
            .expect("the plan is valid");
        Folder { folder }
    }

    fn of(text: &str) -> Folder {
        Folder::new(&parse(text))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn plan(&self) -> PlanFile {
        PlanFile::open(self.path("model.plan")).expect("the plan opens")
    }

    /// Runs the plan and returns the losses.
    fn run(&self, options: &RunOptions) -> Result<Vec<f32>, Error> {
        let mut log = Log::default();
        run(&self.plan(), options, &mut log).map(|_| log.losses)
    }

    /// Runs the plan for some steps and returns the losses and the bytes of the saved state.
    fn run_and_save(&self, options: &RunOptions) -> (Vec<f32>, Vec<u8>) {
        let path = self.path("saved.safetensors");
        let options = RunOptions { save: Some(path.clone()), ..options.clone() };
        let losses = self.run(&options).expect("the run succeeds");
        (losses, std::fs::read(path).expect("the state was saved"))
    }

    /// Names of the folder's files.
    fn entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).expect("the folder can be read");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn parse(text: &str) -> Plan {
    let mut plan = memc_plan::text::parse(text).expect("the plan parses");
    plan.meta.set_source(plan.meta.source.clone());
    plan
}

fn steps(steps: u64) -> RunOptions {
    RunOptions { steps: Some(steps), synthetic: true, ..RunOptions::default() }
}

/// Notes what a run reports, and stops it after some steps.
#[derive(Debug, Default)]
struct Log {
    losses: Vec<f32>,
    steps: Vec<u64>,
    notes: Vec<String>,
    stages: Vec<Stage>,
    stop_after: Option<usize>,
}

impl Watch for Log {
    fn step(&mut self, step: &Step) {
        self.steps.push(step.number);
        self.losses.extend(step.loss());
    }

    fn stage(&mut self, stage: Stage) {
        self.stages.push(stage);
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn should_stop(&self) -> bool {
        self.stop_after == Some(self.steps.len())
    }
}

/// Writes a `.npy` file, version 1.0.
fn npy(path: &Path, descr: &str, shape: &[usize], data: &[u8]) {
    let extents: String = shape.iter().map(|d| format!("{d}, ")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(header.len()).expect("a short header").to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(data);
    std::fs::write(path, bytes).expect("the array can be written");
}

/// The tensors of a safetensors file as numbers.
fn floats(file: &[u8]) -> BTreeMap<String, Vec<f32>> {
    let tensors = safetensors::SafeTensors::deserialize(file).expect("a safetensors file");
    let read = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    tensors.iter().map(|(name, view)| (name.to_owned(), read(view.data()))).collect()
}

/// The report of a run that must succeed.
fn report(folder: &Folder, options: &RunOptions, log: &mut Log) -> Report {
    run(&folder.plan(), options, log).expect("the run succeeds")
}
