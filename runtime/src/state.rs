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
use memc_plan::{Plan, State, StateRole};
use memc_support::{FileKind, Replace};
use safetensors::tensor::Metadata;
use serde_json::{Map, Value, json};

use crate::Error;

/// End of the names of PyTorch's counters of batches, which stand beside running statistics.
const COUNTER: &str = "num_batches_tracked";
/// Header entry that is no tensor.
const METADATA: &str = "__metadata__";
/// Metadata key of the number of steps done.
const STEP: &str = "step";
/// Largest number of steps done; far more than anyone runs, far less than overflows.
const MOST_STEPS: u64 = 1 << 53;
/// Metadata key of the source graph's hash.
const SOURCE: &str = "source";

/// A plan's states that are not constants, in the plan's order.
pub(crate) fn variables(plan: &Plan) -> impl Iterator<Item = &State> {
    plan.states.iter().filter(|state| is_variable(state))
}

/// Whether a state is saved and compared. No step changes a constant.
pub(crate) fn is_variable(state: &State) -> bool {
    state.role != StateRole::Const
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
    source: Option<String>,
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
        let step = match entry(STEP) {
            Some(text) => {
                let step = text.parse().ok().filter(|step| *step <= MOST_STEPS);
                step.ok_or_else(|| fail(format!("its step number `{text}` is not a number of steps")))?
            }
            None => 0,
        };
        let source = entry(SOURCE);
        Ok(StateFile { path: path.to_owned(), contents, tensors, step, source })
    }

    /// Steps done when the file was written; 0 where it does not say.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Whether the file says that it was written by a run of another source graph.
    pub fn is_of_another_source(&self, plan: &Plan) -> bool {
        self.source.as_ref().is_some_and(|source| *source != hex(&plan.meta.source_hash))
    }

    /// Reads a tensor; `false` where the file does not have it.
    pub(crate) fn read(&self, name: &str, out: &mut [u8]) -> Result<bool, Error> {
        let Some(Tensor { data, .. }) = self.tensors.get(name) else { return Ok(false) };
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
        let known: BTreeMap<&str, &TensorType> = variables(plan).map(|s| (s.name.as_str(), &s.ty)).collect();
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

/// A saved state being written. Dropping it leaves the target as it was.
#[derive(Debug)]
pub struct StateWriter {
    target: PathBuf,
    file: Replace,
    /// For each state of the plan, its place in the file, and whether it was written.
    places: Vec<Option<(Range<u64>, bool)>>,
}

impl StateWriter {
    /// Begins to write the states of `plan`, of which `step` steps are done.
    ///
    /// # Errors
    /// [`Error::Io`] if the target's folder refuses a file.
    pub fn create(path: &Path, plan: &Plan, step: u64) -> Result<StateWriter, Error> {
        let target = path.to_owned();
        let file = Replace::begin(path).map_err(|e| Error::io(path, e))?;

        if plan.states.iter().any(|state| state.name == METADATA) {
            return Err(Error::Data(format!("a state named `{METADATA}` cannot be saved")));
        }
        let mut header = Map::new();
        header.insert(
            METADATA.to_owned(),
            json!({STEP: step.to_string(), SOURCE: hex(&plan.meta.source_hash)}),
        );
        let mut end = 0u64;
        let mut places = vec![None; plan.states.len()];
        let mut states: Vec<_> = plan.states.iter().enumerate().filter(|(_, s)| is_variable(s)).collect();
        // Wide elements come first, so that every tensor is aligned to its elements.
        states.sort_by_key(|(_, s)| (u64::MAX - s.ty.dtype.bytes(), s.name.as_str()));
        for (index, state) in states {
            let ty = &state.ty;
            let begin = end;
            end = begin.saturating_add(ty.bytes());
            let entry =
                json!({"dtype": dtype_name(ty.dtype), "shape": ty.shape, "data_offsets": [begin, end]});
            header.insert(state.name.clone(), entry);
            if let Some(place) = places.get_mut(index) {
                *place = Some((begin..end, false));
            }
        }
        let mut writer = StateWriter { target, file, places };
        writer.header(Value::Object(header), end)?;
        Ok(writer)
    }

    fn header(&mut self, header: Value, data: u64) -> Result<(), Error> {
        let mut header = header.to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let start = (header.len() as u64).saturating_add(8);
        for place in self.places.iter_mut().flatten() {
            place.0 = place.0.start.saturating_add(start)..place.0.end.saturating_add(start);
        }
        let file = self.file.file();
        let written = file
            .write_all(&(header.len() as u64).to_le_bytes())
            .and_then(|()| file.write_all(&header))
            .and_then(|()| file.set_len(start.saturating_add(data)));
        written.map_err(|e| Error::io(&self.target, e))
    }

    /// Writes the state with this index; constants are passed over.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Internal`] if the length is not that of the state.
    pub fn put(&mut self, state: usize, bytes: &[u8]) -> Result<(), Error> {
        let Some(Some((place, written))) = self.places.get_mut(state) else { return Ok(()) };
        if place.end.saturating_sub(place.start) != bytes.len() as u64 {
            return Err(Error::Internal(format!("state {state} was stored with {} bytes", bytes.len())));
        }
        let file = self.file.file();
        let done = file.seek(SeekFrom::Start(place.start)).and_then(|_| file.write_all(bytes));
        done.map_err(|e| Error::io(&self.target, e))?;
        *written = true;
        Ok(())
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Plan`] if a state was not written.
    pub fn finish(self, plan: &Plan) -> Result<(), Error> {
        self.written(plan)?.publish()
    }

    /// The whole file, which is not in its place yet.
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
        let places = self.places.into_iter().map(|place| place.map(|(range, _)| range)).collect();
        Ok(Saved { path: self.target, file: self.file, places })
    }
}

/// A whole state file that waits to be put in its place. Dropping it leaves the target as it was.
#[derive(Debug)]
pub(crate) struct Saved {
    path: PathBuf,
    file: Replace,
    /// For each state of the plan, its place in the file.
    places: Vec<Option<Range<u64>>>,
}

impl Saved {
    /// The file that it will replace.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// [`Error::Io`]; the target is then what it was, except that a file system may fail to synchronise the
    /// folder after the rename.
    pub(crate) fn publish(self) -> Result<(), Error> {
        self.file.finish().map_err(|e| Error::io(&self.path, e))
    }

    /// Reads the state with this index; `false` where it is not in the file.
    pub(crate) fn read(&mut self, state: usize, out: &mut [u8]) -> Result<bool, Error> {
        let Some(Some(place)) = self.places.get(state) else { return Ok(false) };
        let file = self.file.file();
        let done = file.seek(SeekFrom::Start(place.start)).and_then(|_| file.read_exact(out));
        done.map_err(|e| Error::io(&self.path, e))?;
        Ok(true)
    }
}
