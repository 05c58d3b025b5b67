//! Saved states: a safetensors file with one tensor for each state that is not a constant, by name.
//!
//! Contract: a file holds everything that a run needs to go on as if it had not stopped: all states, the
//! number of steps done, and the hash of the source graph. The bytes of a file depend on these alone. A file
//! is replaced in one step or not at all: the bytes go to a temporary file in the same folder, which is
//! synchronised and renamed.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use memc_ir::{DType, TensorType};
use memc_plan::{Plan, State};
use memc_support::{FileKind, Replace};
use safetensors::tensor::Metadata;
use serde_json::{Map, Value, json};

use crate::Error;
use crate::jobs::{self, Job};

/// End of the names of PyTorch's counters of batches, which stand beside running statistics.
const COUNTER: &str = "num_batches_tracked";
/// Header entry that is no tensor.
const METADATA: &str = "__metadata__";
/// Metadata key of the number of steps done; with a slash and the name of a job behind it, of its steps.
const STEP: &str = "step";
/// Largest number of steps done; far more than anyone runs, far less than overflows.
const MOST_STEPS: u64 = 1 << 53;
/// Part of a path for states that stands for the name of each of several jobs.
const EACH_JOB: &str = "{job}";
/// Metadata key of the source graph's hash.
const SOURCE: &str = "source";

/// A plan's states that are not constants, in the plan's order.
pub(crate) fn variables(plan: &Plan) -> impl Iterator<Item = &State> {
    plan.states.iter().filter(|state| state.is_variable())
}

fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I8 => "I8",
        DType::U8 => "U8",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::Bool => "BOOL",
    }
}

/// An open safetensors file, whose tensors are read when they are asked for. A pipe is read at once.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    contents: Contents,
    tensors: BTreeMap<String, Tensor>,
    step: u64,
    /// Steps of jobs that are in it, by name.
    job_steps: Vec<(String, u64)>,
    source: Option<String>,
    /// The job whose states it has under their own names, where it has not those of all jobs.
    job: Option<String>,
}

#[derive(Debug)]
enum Contents {
    File(Mutex<File>),
    /// All tensors of a pipe, and their place in the file.
    Piped(Vec<u8>, u64),
}

#[derive(Debug)]
struct Tensor {
    /// `F32[2,3]`.
    ty: String,
    data: Range<u64>,
}

/// Tensors that a file must, or may, have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    /// Each state, and no others.
    Exact,
    /// Some of the states, and no others.
    Part,
    /// Each state, and any others.
    Cover,
}

impl StateFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Data`] if the file is no safetensors file.
    pub fn open(path: &Path) -> Result<StateFile, Error> {
        /// Length of the header's length.
        const LENGTH: u64 = 8;
        /// Longest header that the format allows, in bytes.
        const LONGEST: u64 = 100_000_000;
        let io = |source| Error::io(path, source);
        let fail = |what: String| Error::Data(format!("{}: {what}", path.display()));
        let found = std::fs::metadata(path).map_err(io)?;
        if found.is_dir() {
            return Err(fail("it is a folder; states are read from safetensors files".to_owned()));
        }
        let mut file = File::open(path).map_err(io)?;
        let size = found.is_file().then(|| file.metadata()).transpose().map_err(io)?.map(|m| m.len());
        let mut bytes = Vec::new();
        (&mut file).take(LENGTH).read_to_end(&mut bytes).map_err(io)?;
        if let Some(other) = other_format(&bytes) {
            return Err(fail(format!("{other}; states are read from safetensors files")));
        }
        let whole = |what: &dyn std::fmt::Display| fail(format!("not a whole safetensors file: {what}"));
        let length: [u8; LENGTH as usize] =
            bytes.as_slice().try_into().map_err(|_| whole(&"it is too short"))?;
        let length = u64::from_le_bytes(length);
        let most = size.map_or(LONGEST, |size| LONGEST.min(size.saturating_sub(LENGTH)));
        if length > most {
            return Err(whole(&format_args!("its header would take {length} of {most} bytes")));
        }
        let mut header = Vec::new();
        (&mut file).take(length).read_to_end(&mut header).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| whole(&e))?;
        let start = length.saturating_add(LENGTH);
        let data = metadata.data_len() as u64;
        let wanted = start.saturating_add(data);
        let mut piped = Vec::new();
        if size.is_none() {
            // One byte more tells whether the pipe ends where it should.
            (&mut file).take(data.saturating_add(1)).read_to_end(&mut piped).map_err(io)?;
        }
        let size = size.unwrap_or(start.saturating_add(piped.len() as u64));
        if wanted != size {
            return Err(whole(&format_args!("it has {size} bytes where its header says {wanted}")));
        }
        let contents =
            if found.is_file() { Contents::File(Mutex::new(file)) } else { Contents::Piped(piped, start) };
        let mut tensors = BTreeMap::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let extents: Vec<String> = info.shape.iter().map(ToString::to_string).collect();
            let ty = format!("{}[{}]", info.dtype, extents.join(","));
            let (begin, end) = info.data_offsets;
            let at = |offset: usize| start.saturating_add(offset as u64);
            let data = at(begin)..at(end);
            tensors.insert(name, Tensor { ty, data });
        }
        let entry = |key: &str| metadata.metadata().as_ref().and_then(|m| m.get(key)).cloned();
        let number = |text: &str| {
            let step = text.parse().ok().filter(|step| *step <= MOST_STEPS);
            step.ok_or_else(|| fail(format!("its step number `{text}` is not a number of steps")))
        };
        let step = entry(STEP).map_or(Ok(0), |text| number(&text))?;
        let mut job_steps = Vec::new();
        for (key, text) in metadata.metadata().iter().flatten() {
            if let Some(name) = key.strip_prefix(STEP).and_then(|key| key.strip_prefix('/')) {
                job_steps.push((name.to_owned(), number(text)?));
            }
        }
        let source = entry(SOURCE);
        Ok(StateFile { path: path.to_owned(), contents, tensors, step, job_steps, source, job: None })
    }

    /// The file as one of a single job, whose tensors have its own names.
    pub(crate) fn of_job(self, job: &str) -> StateFile {
        StateFile { job: Some(job.to_owned()), ..self }
    }

    /// Whether it has the states of a single job of several.
    pub(crate) fn is_of_job(&self) -> bool {
        self.job.is_some()
    }

    /// Steps that jobs had done before the first round, by name.
    ///
    /// # Errors
    /// [`Error::Data`] where a job has done fewer steps than the rounds have with these jobs.
    pub(crate) fn before(&self, jobs: &[Job]) -> Result<Vec<(String, u64)>, Error> {
        if let Some(job) = &self.job {
            return Ok(vec![(job.clone(), self.step)]);
        }
        let mut before = Vec::new();
        for (name, done) in &self.job_steps {
            let Some(job) = jobs.iter().find(|job| job.name == *name) else { continue };
            let Some(more) = done.checked_sub(job.done(self.step)) else {
                return Err(Error::Data(format!(
                    "{}: job {name} had other steps in a round when it was saved; go on from files of single \
                     jobs, which --save '{EACH_JOB}.safetensors' writes",
                    self.path.display()
                )));
            };
            before.push((name.clone(), more));
        }
        Ok(before)
    }

    /// The name that a state of the plan has in the file; none where the state is another job's.
    fn own_name<'n>(&self, name: &'n str) -> Option<&'n str> {
        self.job.as_ref().map_or(Some(name), |job| jobs::own_name(job, name))
    }

    /// Steps done when the file was written, or rounds where it has several jobs; 0 where it does not say.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Whether the file says that it was written by a run of another source graph.
    pub fn is_of_another_source(&self, plan: &Plan) -> bool {
        self.source.as_ref().is_some_and(|source| *source != hex(&plan.meta.source_hash))
    }

    /// Reads a tensor; `false` where the file does not have it.
    pub(crate) fn read(&self, name: &str, out: &mut [u8]) -> Result<bool, Error> {
        let tensor = self.own_name(name).and_then(|name| self.tensors.get(name));
        let Some(Tensor { data, .. }) = tensor else { return Ok(false) };
        if data.end.saturating_sub(data.start) != out.len() as u64 {
            return Err(Error::Internal(format!("tensor `{name}` was read as {} bytes", out.len())));
        }
        match &self.contents {
            Contents::File(file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let done = file.seek(SeekFrom::Start(data.start)).and_then(|_| file.read_exact(out));
                done.map_err(|e| Error::io(&self.path, e))?;
            }
            Contents::Piped(bytes, start) => {
                let at = |place: u64| usize::try_from(place.saturating_sub(*start)).unwrap_or(usize::MAX);
                let from = bytes.get(at(data.start)..at(data.end));
                let missing = || Error::Internal(format!("tensor `{name}` is not in what was read"));
                out.copy_from_slice(from.ok_or_else(missing)?);
            }
        }
        Ok(true)
    }

    /// Compares names and types with the plan's states.
    pub(crate) fn check(&self, plan: &Plan, fit: Fit) -> Result<(), Error> {
        let fail = |what: String| Err(Error::Data(format!("{}: {what}", self.path.display())));
        let known: BTreeMap<&str, &TensorType> =
            variables(plan).filter_map(|s| Some((self.own_name(&s.name)?, &s.ty))).collect();
        for (name, tensor) in &self.tensors {
            let Some(ty) = known.get(name.as_str()) else { continue };
            let extents: Vec<String> = ty.shape.iter().map(ToString::to_string).collect();
            let wanted = format!("{}[{}]", dtype_name(ty.dtype), extents.join(","));
            if tensor.ty != wanted {
                return fail(format!("tensor `{name}` is {} where the plan's state is {wanted}", tensor.ty));
            }
        }
        // A `state_dict` has counters that no step reads.
        let is_extra = |name: &&str| !known.contains_key(name) && !name.ends_with(COUNTER);
        let extra: Vec<&str> = self.tensors.keys().map(String::as_str).filter(is_extra).collect();
        if !extra.is_empty() && fit != Fit::Cover {
            return fail(format!(
                "the plan has no state named {}; to begin with a file that holds more than the model, \
                 compile it in: `memc compile --checkpoint FILE`",
                list(&extra)
            ));
        }
        let missing: Vec<&str> =
            known.keys().copied().filter(|name| !self.tensors.contains_key(*name)).collect();
        if !missing.is_empty() {
            let lacks = list(&missing);
            match fit {
                Fit::Exact => return fail(format!("it lacks {lacks}; to set only some states, use --init")),
                Fit::Cover => return fail(format!("it lacks {lacks}, which the evaluation reads")),
                Fit::Part => {}
            }
        }
        Ok(())
    }
}

/// Advice on a file that is no safetensors file, by its kind.
fn other_format(head: &[u8]) -> Option<&'static str> {
    match FileKind::of(head)? {
        FileKind::Safetensors => None,
        FileKind::Plan => Some("this is a plan, which memrun takes without an option"),
        FileKind::Array => Some("this is a NumPy array, which can feed an input: `--input NAME=@FILE.npy`"),
        FileKind::OrtCheckpoint => Some(
            "this is an ONNX Runtime checkpoint, which goes into the plan: `memc compile --checkpoint FILE`",
        ),
        FileKind::Archive => Some(
            "this is an archive, as of NumPy (.npz) or PyTorch; save its tensors with \
             safetensors.numpy.save_file",
        ),
    }
}

/// Names in backquotes, cut short after a few.
pub(crate) fn list(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    if names.len() > SHOWN {
        text.push(format!("{} more", names.len() - SHOWN));
    }
    text.join(", ")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file of a path for states, or with `{job}` in its name the file of each of several jobs.
pub(crate) fn state_files<'j>(path: &Path, jobs: &'j [Job]) -> Vec<(Option<&'j Job>, PathBuf)> {
    let text = path.to_string_lossy();
    let is_one = jobs.iter().all(|job| job.name.is_empty());
    if is_one || !text.contains(EACH_JOB) {
        return vec![(None, path.to_owned())];
    }
    jobs.iter().map(|job| (Some(job), text.replace(EACH_JOB, &job.name).into())).collect()
}

/// Saved states being written, of all jobs or each in a file of its own. Dropping it leaves the targets as
/// they were.
#[derive(Debug)]
pub struct StateWriter {
    target: PathBuf,
    files: Vec<(PathBuf, Replace)>,
    /// For each state of the plan, its place, and whether it was written.
    places: Vec<Option<(Place, bool)>>,
}

/// The bytes of a state in one of several files.
#[derive(Clone, Debug)]
struct Place {
    file: usize,
    bytes: Range<u64>,
}

impl StateWriter {
    /// Begins to write the states of `plan`, of which `rounds` steps, or rounds of its jobs, are done.
    ///
    /// # Errors
    /// [`Error::Io`] if a target's folder refuses a file.
    pub fn create(path: &Path, plan: &Plan, rounds: u64) -> Result<StateWriter, Error> {
        StateWriter::of_jobs(path, plan, &jobs::of(plan), rounds)
    }

    /// Likewise, where jobs may have done steps before the first round.
    pub(crate) fn of_jobs(path: &Path, plan: &Plan, jobs: &[Job], rounds: u64) -> Result<StateWriter, Error> {
        if plan.states.iter().any(|state| state.name == METADATA) {
            return Err(Error::Data(format!("a state named `{METADATA}` cannot be saved")));
        }
        let mut writer =
            StateWriter { target: path.to_owned(), files: Vec::new(), places: vec![None; plan.states.len()] };
        for (job, path) in state_files(path, jobs) {
            let metadata = match job {
                Some(job) => json!({STEP: job.done(rounds).to_string()}),
                None => described(plan, jobs, rounds),
            };
            writer.begin(&path, plan, job, metadata)?;
        }
        Ok(writer)
    }

    /// Begins a file with the states of a job, or of all.
    fn begin(&mut self, path: &Path, plan: &Plan, job: Option<&Job>, metadata: Value) -> Result<(), Error> {
        let own = |name| job.map_or(Some(name), |job| job.own_name(name));
        let variables = plan.states.iter().enumerate().filter(|(_, state)| state.is_variable());
        let mut states: Vec<_> =
            variables.filter_map(|(i, state)| Some((i, own(state.name.as_str())?, &state.ty))).collect();
        // Wide elements come first, so that every tensor is aligned to its elements.
        states.sort_by_key(|(_, name, ty)| (u64::MAX - ty.dtype.bytes(), *name));
        let mut header = Map::new();
        header.insert(METADATA.to_owned(), metadata);
        let mut end = 0u64;
        for (_, name, ty) in &states {
            let begin = end;
            end = begin.saturating_add(ty.bytes());
            let entry =
                json!({"dtype": dtype_name(ty.dtype), "shape": ty.shape, "data_offsets": [begin, end]});
            header.insert((*name).to_owned(), entry);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut at = (header.len() as u64).saturating_add(8);
        let size = at.saturating_add(end);
        for (index, _, ty) in states {
            let bytes = at..at.saturating_add(ty.bytes());
            at = bytes.end;
            if let Some(place) = self.places.get_mut(index) {
                *place = Some((Place { file: self.files.len(), bytes }, false));
            }
        }
        let mut replace = Replace::begin(path).map_err(|e| Error::io(path, e))?;
        let file = replace.file();
        let written = file
            .write_all(&(header.len() as u64).to_le_bytes())
            .and_then(|()| file.write_all(&header))
            .and_then(|()| file.set_len(size));
        written.map_err(|e| Error::io(path, e))?;
        self.files.push((path.to_owned(), replace));
        Ok(())
    }

    /// Writes the state with this index; constants are passed over.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Internal`] if the length is not that of the state.
    pub fn put(&mut self, state: usize, bytes: &[u8]) -> Result<(), Error> {
        let Some(Some((place, written))) = self.places.get_mut(state) else { return Ok(()) };
        let Some((path, replace)) = self.files.get_mut(place.file) else { return Ok(()) };
        if place.bytes.end.saturating_sub(place.bytes.start) != bytes.len() as u64 {
            return Err(Error::Internal(format!("state {state} was stored with {} bytes", bytes.len())));
        }
        let file = replace.file();
        let done = file.seek(SeekFrom::Start(place.bytes.start)).and_then(|_| file.write_all(bytes));
        done.map_err(|e| Error::io(path, e))?;
        *written = true;
        Ok(())
    }

    /// Puts the files in their place.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Plan`] if a state was not written.
    pub fn finish(self, plan: &Plan) -> Result<(), Error> {
        self.written(plan)?.publish()
    }

    /// The whole files, which are not in their place yet.
    ///
    /// # Errors
    /// [`Error::Plan`] if a state was not written.
    pub(crate) fn written(self, plan: &Plan) -> Result<Saved, Error> {
        let states = plan.states.iter().zip(&self.places);
        let left = states.filter(|(_, place)| matches!(place, Some((_, false))));
        let left: Vec<&str> = left.map(|(state, _)| state.name.as_str()).collect();
        if !left.is_empty() {
            return Err(Error::Plan(format!("the plan's epilogue does not store {}", list(&left))));
        }
        let places = self.places.into_iter().map(|place| place.map(|(place, _)| place)).collect();
        Ok(Saved { path: self.target, files: self.files, places })
    }
}

/// Metadata of a file with the states of all jobs.
fn described(plan: &Plan, jobs: &[Job], rounds: u64) -> Value {
    let mut metadata = json!({STEP: rounds.to_string(), SOURCE: hex(&plan.meta.source_hash)});
    for job in jobs.iter().filter(|job| !job.name.is_empty()) {
        metadata[format!("{STEP}/{}", job.name)] = job.done(rounds).to_string().into();
    }
    metadata
}

/// Whole state files that wait to be put in their place. Dropping them leaves the targets as they were.
#[derive(Debug)]
pub(crate) struct Saved {
    path: PathBuf,
    files: Vec<(PathBuf, Replace)>,
    /// For each state of the plan, its place.
    places: Vec<Option<Place>>,
}

impl Saved {
    /// The path that the states were to be saved in.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the files in their place.
    ///
    /// # Errors
    /// [`Error::Io`]; the target is then what it was, except that a file system may fail to synchronise the
    /// folder after the rename.
    pub(crate) fn publish(self) -> Result<(), Error> {
        self.files.into_iter().try_for_each(|(path, file)| file.finish().map_err(|e| Error::io(&path, e)))
    }

    /// Reads the state with this index; `false` where it is in no file.
    pub(crate) fn read(&mut self, state: usize, out: &mut [u8]) -> Result<bool, Error> {
        let Some(Some(place)) = self.places.get(state) else { return Ok(false) };
        let Some((path, replace)) = self.files.get_mut(place.file) else { return Ok(false) };
        let file = replace.file();
        let done = file.seek(SeekFrom::Start(place.bytes.start)).and_then(|_| file.read_exact(out));
        done.map_err(|e| Error::io(path, e))?;
        Ok(true)
    }
}
