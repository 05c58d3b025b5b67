//! Writing a plan file.
//!
//! Contract: the target is replaced in one step or not at all. The bytes depend on the plan and the data
//! alone.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{self, Seek, SeekFrom, Write},
    path::Path,
};

use memc_support::Replace;

use crate::{
    Plan, PlanError, PlanFile,
    data::Blob,
    file::{HASHED_HEADER_BYTES, HEADER_BYTES, Layout},
    wire,
};

/// Bytes written between two looks at `should_stop`.
const CHUNK: usize = 1 << 20;

/// Source of the states' initial bytes. Only states with [`crate::Init::Data`] are asked for, each once, in
/// order: those of the plan itself, then those of each bucket. Not asked for are states of buckets whose data
/// has the place of an earlier plan's.
pub trait InitialData {
    /// The bytes of the state with this index, of the plan itself (bucket 0) or of one of its buckets,
    /// counted from 1.
    ///
    /// # Errors
    /// Any error of reading them.
    fn bytes(&mut self, bucket: usize, state: usize) -> io::Result<Cow<'_, [u8]>>;
}

/// For plans without [`crate::Init::Data`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NoData;

impl InitialData for NoData {
    fn bytes(&mut self, _bucket: usize, _state: usize) -> io::Result<Cow<'_, [u8]>> {
        Err(missing())
    }
}

/// Bytes by index of the state, for plans without buckets and for buckets without data of their own.
impl InitialData for BTreeMap<usize, Vec<u8>> {
    fn bytes(&mut self, bucket: usize, state: usize) -> io::Result<Cow<'_, [u8]>> {
        let own = if bucket == 0 { self.get(&state) } else { None };
        own.map(|bytes| Cow::Borrowed(bytes.as_slice())).ok_or_else(missing)
    }
}

/// The data of an open plan, to write it again with another schedule.
impl InitialData for PlanFile {
    fn bytes(&mut self, bucket: usize, state: usize) -> io::Result<Cow<'_, [u8]>> {
        Ok(Cow::Borrowed(self.data(bucket, state)))
    }
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no bytes were supplied")
}

/// Writes a plan and its initial data to `path`, in one step, and returns the content hash. `should_stop` is
/// asked between chunks of a megabyte and a last time before the rename.
///
/// # Errors
/// [`PlanError::Invalid`] if the plan breaks a rule of [`Plan::validate`], [`PlanError::InitialData`] if a
/// state's bytes are not those that the plan declares, [`PlanError::Interrupted`], [`PlanError::Io`]. A file
/// at `path` is then intact, except that a file system may fail to synchronise the folder after the rename:
/// the new file is then complete and in place, but may not survive a power loss.
pub fn write(
    path: impl AsRef<Path>,
    plan: &Plan,
    data: &mut dyn InitialData,
    should_stop: &dyn Fn() -> bool,
) -> Result<[u8; 32], PlanError> {
    plan.validate()?;
    let path = path.as_ref();
    let io = |source| PlanError::Io { path: path.to_owned(), source };
    let mut file = Replace::begin(path).map_err(io)?;
    let hash = match stream(file.file(), plan, data, should_stop) {
        Ok(hash) => hash,
        Err(Stop::Io(source)) => return Err(io(source)),
        Err(Stop::Plan(error)) => return Err(error),
    };
    file.sync().map_err(io)?;
    if should_stop() {
        return Err(PlanError::Interrupted);
    }
    file.finish().map_err(io)?;
    Ok(hash)
}

impl PlanFile {
    /// A plan with its initial data, as if it were written to a file and opened.
    ///
    /// # Errors
    /// Those of [`write()`], without the file system's, and of [`PlanFile::open`].
    pub fn in_memory(plan: &Plan, data: &mut dyn InitialData) -> Result<PlanFile, PlanError> {
        plan.validate()?;
        let mut bytes = io::Cursor::new(Vec::new());
        match stream(&mut bytes, plan, data, &|| false) {
            Ok(_) => PlanFile::of_bytes(bytes.into_inner().into()),
            Err(Stop::Plan(error)) => Err(error),
            Err(Stop::Io(source)) => Err(PlanError::Io { path: "memory".into(), source }),
        }
    }
}

enum Stop {
    Io(io::Error),
    Plan(PlanError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Io(error)
    }
}

impl From<PlanError> for Stop {
    fn from(error: PlanError) -> Stop {
        Stop::Plan(error)
    }
}

/// Writes the bytes of a file and returns the content hash.
fn stream(
    out: &mut (impl Write + Seek),
    plan: &Plan,
    data: &mut dyn InitialData,
    should_stop: &dyn Fn() -> bool,
) -> Result<[u8; 32], Stop> {
    let meta = wire::encode(plan);
    let layout = Layout::new(meta.len() as u64, plan.data_bytes()?);
    let layout = layout.map_err(|error| PlanError::invalid("file", error.to_string()))?;
    let header = layout.header(plan.version());
    out.write_all(&header)?;
    out.write_all(&[0; HEADER_BYTES - HASHED_HEADER_BYTES])?;
    let mut sink = Sink { out, hasher: blake3::Hasher::new(), at: HEADER_BYTES as u64, should_stop };
    sink.hasher.update(&header);
    sink.bytes(&meta)?;
    sink.pad_to(layout.data_start)?;
    for Blob { bucket, index, state, offset, bytes, hash } in plan.placed() {
        let wrong = |what| PlanError::InitialData { state: state.name.clone(), what }.in_bucket(bucket);
        let blob = data.bytes(bucket, index).map_err(|e| wrong(e.to_string()))?;
        if blob.len() as u64 != bytes {
            return Err(wrong(format!("{} bytes where the plan declares {bytes}", blob.len())).into());
        }
        sink.pad_to(layout.data_start.saturating_add(offset))?;
        if sink.bytes(&blob)? != hash {
            return Err(wrong("the bytes do not match the hash that the plan declares".to_owned()).into());
        }
    }
    let Sink { out, hasher, .. } = sink;
    let hash = *hasher.finalize().as_bytes();
    out.seek(SeekFrom::Start(HASHED_HEADER_BYTES as u64))?;
    out.write_all(&hash)?;
    out.flush()?;
    Ok(hash)
}

/// Passes bytes on and hashes them.
struct Sink<'a, W> {
    out: &'a mut W,
    hasher: blake3::Hasher,
    at: u64,
    should_stop: &'a dyn Fn() -> bool,
}

impl<W: Write> Sink<'_, W> {
    /// Writes all of `bytes` and returns their own hash.
    fn bytes(&mut self, bytes: &[u8]) -> Result<[u8; 32], Stop> {
        let mut own = blake3::Hasher::new();
        for chunk in bytes.chunks(CHUNK) {
            if (self.should_stop)() {
                return Err(PlanError::Interrupted.into());
            }
            self.out.write_all(chunk)?;
            self.hasher.update(chunk);
            own.update(chunk);
            self.at = self.at.saturating_add(chunk.len() as u64);
        }
        Ok(*own.finalize().as_bytes())
    }

    /// Writes zeros up to an offset within the file, less than a page ahead.
    fn pad_to(&mut self, offset: u64) -> Result<(), Stop> {
        let zeros = [0; crate::PAGE as usize];
        let missing = usize::try_from(offset.saturating_sub(self.at)).unwrap_or(usize::MAX);
        self.bytes(zeros.get(..missing).unwrap_or(&zeros))?;
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// A full disk ends the writing with an error of the file system.
    #[test]
    fn a_full_disk_is_an_error() {
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let result = stream(&mut full, &Plan::default(), &mut NoData, &|| false);
        assert!(matches!(result, Err(Stop::Io(error)) if error.kind() == io::ErrorKind::StorageFull));
    }
}
