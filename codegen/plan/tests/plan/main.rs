//! Tests of the plan's forms, its file and its comparison.

mod buckets;
mod diff;
mod generate;
mod hostile;
mod round_trip;
mod text;
mod trace;
mod validate;
mod write;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use memc_plan::{InitialData, Plan, PlanError, PlanFile, TunedAlgorithm, TunedKernel, Tuning};

/// The plan of the README's text form.
fn example_text() -> &'static str {
    let readme = include_str!("../../README.md");
    let (_, rest) = readme.split_once("```text\n").expect("the README has a text block");
    rest.split_once("```").expect("the text block ends").0
}

/// The plan of the README, and its data.
fn example() -> (Plan, BTreeMap<usize, Vec<u8>>) {
    let plan = memc_plan::text::parse(example_text()).expect("the README's plan parses");
    (plan, BTreeMap::from([(0, (0..=255).collect())]))
}

/// A tuning section for the plan of the README.
fn tuning() -> Tuning {
    let algorithm = TunedAlgorithm::Product(Box::new([7; 64]));
    Tuning {
        device: "A GPU".to_owned(),
        arch: "sm_90".to_owned(),
        libraries: vec![("cuBLASLt".to_owned(), "13.1.0".to_owned())],
        rounding: "exact".to_owned(),
        allow_nondeterminism: false,
        kernels: vec![TunedKernel {
            kernel: 1,
            algorithm,
            workspace_bytes: 256,
            ns: 20,
            default_ns: 30,
            is_apart: false,
        }],
    }
}

/// The data that has a place of its own, by bucket and index of the state.
#[derive(Clone, Default)]
struct Blobs(BTreeMap<(usize, usize), Vec<u8>>);

impl InitialData for Blobs {
    fn bytes(&mut self, bucket: usize, state: usize) -> io::Result<Cow<'_, [u8]>> {
        let bytes = self.0.get(&(bucket, state)).ok_or_else(|| io::Error::other("it has no own place"))?;
        Ok(Cow::Borrowed(bytes))
    }
}

/// A folder that is removed at the end.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self) -> PathBuf {
        self.path().join("model.plan")
    }

    /// Writes these bytes and opens them as a plan.
    fn open(&self, bytes: &[u8]) -> Result<PlanFile, PlanError> {
        fs::write(self.file(), bytes).expect("the file can be written");
        PlanFile::open(self.file())
    }

    /// The bytes of the file of a plan.
    fn bytes(&self, plan: &Plan, data: &(impl InitialData + Clone)) -> Vec<u8> {
        memc_plan::write(self.file(), plan, &mut data.clone(), &|| false).expect("the plan can be written");
        fs::read(self.file()).expect("the file can be read")
    }

    /// Names of the folder's files.
    fn entries(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("a folder entry").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<String> =
            fs::read_dir(self.path()).expect("the folder can be read").map(name).collect();
        names.sort();
        names
    }
}

/// Puts the right content hash into a file's header.
fn rehash(file: &mut [u8]) {
    if file.len() >= 64 {
        let covered = [&file[..32], &file[64..]].concat();
        file[32..64].copy_from_slice(&memc_plan::hash(&covered));
    }
}
