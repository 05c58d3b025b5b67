//! Layout of a plan file, and opening one.
//!
//! A file is a header of [`HEADER_BYTES`] bytes, the meta section right behind it (see [`crate::wire`]),
//! zeros up to the next multiple of [`PAGE`], and the data section with the states' initial bytes; without
//! data the file ends after the meta section. Numbers are little-endian.
//!
//! | bytes   | header field                                                       |
//! |---------|--------------------------------------------------------------------|
//! | 0..8    | `MEMCPLAN`                                                         |
//! | 8..12   | format version                                                     |
//! | 12..16  | zero                                                               |
//! | 16..24  | length of the meta section                                         |
//! | 24..32  | length of the data section                                         |
//! | 32..64  | blake3 of header bytes 0..32 and of all that follows the header    |

use std::{
    fmt,
    fs::File,
    path::{Path, PathBuf},
};

use memc_ir::Data;
use memc_support::FileKind;

use crate::{BUCKETS_VERSION, FORMAT_VERSION, Init, Plan, PlanError, data::Blob, wire};

/// Alignment in bytes of the data section within the file.
pub const PAGE: u64 = 4096;

pub(crate) const HEADER_BYTES: usize = 64;
/// Header bytes that the hash covers.
pub(crate) const HASHED_HEADER_BYTES: usize = 32;
const MAGIC: &[u8; 8] = b"MEMCPLAN";
/// Longest meta section that is read or written.
const MAX_META_BYTES: u64 = 256 << 20;

/// Positions of the parts of a file, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) meta_bytes: u64,
    pub(crate) data_bytes: u64,
    pub(crate) data_start: u64,
    pub(crate) file_bytes: u64,
}

/// Lengths that no file can have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TooLong {
    /// A meta section of so many bytes.
    Meta(u64),
    /// Sections whose lengths add up to more than a `u64`.
    Overflow,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TooLong::Meta(bytes) => {
                write!(f, "{bytes} bytes of tables and commands; at most {MAX_META_BYTES} are allowed")
            }
            TooLong::Overflow => f.write_str("the lengths in the header overflow"),
        }
    }
}

impl Layout {
    pub(crate) fn new(meta_bytes: u64, data_bytes: u64) -> Result<Layout, TooLong> {
        if meta_bytes > MAX_META_BYTES {
            return Err(TooLong::Meta(meta_bytes));
        }
        let header = HEADER_BYTES as u64;
        let meta_end = header.checked_add(meta_bytes);
        let data_start =
            if data_bytes == 0 { meta_end } else { meta_end.and_then(|n| n.checked_next_multiple_of(PAGE)) };
        let file_bytes = data_start.and_then(|start| start.checked_add(data_bytes));
        match (data_start, file_bytes) {
            (Some(data_start), Some(file_bytes)) => {
                Ok(Layout { meta_bytes, data_bytes, data_start, file_bytes })
            }
            _ => Err(TooLong::Overflow),
        }
    }

    /// The header without its hash.
    pub(crate) fn header(&self, version: u32) -> [u8; HASHED_HEADER_BYTES] {
        let mut header = [0; HASHED_HEADER_BYTES];
        header[0..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&version.to_le_bytes());
        header[16..24].copy_from_slice(&self.meta_bytes.to_le_bytes());
        header[24..32].copy_from_slice(&self.data_bytes.to_le_bytes());
        header
    }
}

/// An open plan: the decoded plan, and its states' initial bytes, which are mapped where it is a file's.
#[derive(Debug)]
pub struct PlanFile {
    plan: Plan,
    content_hash: [u8; 32],
    map: Data,
    data_start: u64,
}

impl PlanFile {
    /// Opens a plan file and verifies it: magic, version, lengths, content hash, encoding,
    /// [`Plan::validate`], and the hash of each state's initial bytes.
    ///
    /// # Errors
    /// [`PlanError::NotAPlan`], [`PlanError::Version`], [`PlanError::Damaged`], [`PlanError::Invalid`],
    /// [`PlanError::InitialData`] or [`PlanError::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<PlanFile, PlanError> {
        let path = path.as_ref();
        let io = |source| PlanError::Io { path: PathBuf::from(path), source };
        // Opening a pipe would wait for whoever writes to it.
        let metadata = std::fs::metadata(path).map_err(io)?;
        if !metadata.is_file() {
            return Err(PlanError::NotAPlan {
                hint: "it is not a regular file; name the file that memc wrote",
            });
        }
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if metadata.len() == 0 {
            return Err(PlanError::NotAPlan { hint: "the file is empty; compile the model again" });
        }
        let map = memc_support::map(&file).map(Data::from).map_err(io)?;
        PlanFile::of_bytes(map)
    }

    /// The plan file with these bytes, verified as on opening.
    pub(crate) fn of_bytes(map: Data) -> Result<PlanFile, PlanError> {
        let (plan, content_hash, data_start) = verify(&map)?;
        Ok(PlanFile { plan, content_hash, map, data_start })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The hash that the header holds: it identifies plan and data, and is that of the bytes read.
    pub fn content_hash(&self) -> &[u8; 32] {
        &self.content_hash
    }

    /// Initial bytes of a state of the plan itself (bucket 0) or of one of its buckets, counted from 1. Empty
    /// for states without [`Init::Data`] and indices out of range. Lengths and hashes were verified on
    /// opening.
    pub fn data(&self, bucket: usize, state: usize) -> &[u8] {
        let state = self.plan.bucket(bucket).and_then(|plan| plan.states.get(state));
        match state.map(|state| &state.init) {
            Some(Init::Data { offset, bytes, .. }) => {
                data_at(&self.map, self.data_start, *offset, *bytes).unwrap_or_default()
            }
            _ => &[],
        }
    }
}

fn data_at(file: &[u8], data_start: u64, offset: u64, bytes: u64) -> Option<&[u8]> {
    let start = data_start.checked_add(offset)?;
    range(file, start, start.checked_add(bytes)?)
}

fn range(file: &[u8], start: u64, end: u64) -> Option<&[u8]> {
    file.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

/// The plan, content hash and start of the data section of a file's bytes.
fn verify(file: &[u8]) -> Result<(Plan, [u8; 32], u64), PlanError> {
    if !file.starts_with(MAGIC) {
        return Err(PlanError::NotAPlan { hint: hint(file) });
    }
    let short = || PlanError::damaged(format!("its {} bytes end within the header", file.len()));
    let (header, body) = file.split_first_chunk::<HEADER_BYTES>().ok_or_else(short)?;
    let [_, _, _, _, _, _, _, _, v0, v1, v2, v3, z0, z1, z2, z3, lengths @ ..] = header;
    let version = u32::from_le_bytes([*v0, *v1, *v2, *v3]);
    if !(FORMAT_VERSION..=BUCKETS_VERSION).contains(&version) {
        return Err(PlanError::Version { found: version, supported: BUCKETS_VERSION });
    }
    if [*z0, *z1, *z2, *z3] != [0; 4] {
        return Err(PlanError::damaged("a reserved header field is not zero"));
    }
    let (lengths, content_hash) = lengths.split_at(16);
    let (words, _) = lengths.as_chunks::<8>();
    let (&[meta_bytes, data_bytes], Ok(content_hash)) = (words, <[u8; 32]>::try_from(content_hash)) else {
        return Err(short());
    };
    let layout = Layout::new(u64::from_le_bytes(meta_bytes), u64::from_le_bytes(data_bytes));
    let layout = layout.map_err(|error| PlanError::damaged(error.to_string()))?;
    if layout.file_bytes != file.len() as u64 {
        let (is, should) = (file.len(), layout.file_bytes);
        return Err(PlanError::damaged(format!("it has {is} bytes where its header says {should}")));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&header[..HASHED_HEADER_BYTES]).update(body);
    if *hasher.finalize().as_bytes() != content_hash {
        return Err(PlanError::damaged("its content does not match its hash"));
    }
    let meta =
        usize::try_from(layout.meta_bytes).ok().and_then(|length| body.get(..length)).ok_or_else(short)?;
    let plan = wire::decode(meta)?;
    if plan.version() != version {
        return Err(PlanError::damaged("its format version is not that of its contents"));
    }
    plan.validate()?;
    if plan.data_bytes()? != layout.data_bytes {
        return Err(PlanError::damaged("the length of its data is not the one that its states need"));
    }
    check_data(file, &plan, &layout)?;
    Ok((plan, content_hash, layout.data_start))
}

/// Checks the bytes behind the meta section: the hash of each state's data, of buckets too, and zeros
/// elsewhere. Data that several states share is looked at once.
fn check_data(file: &[u8], plan: &Plan, layout: &Layout) -> Result<(), PlanError> {
    let mut end = HEADER_BYTES as u64 + layout.meta_bytes;
    for Blob { bucket, state, offset, bytes, hash, .. } in plan.placed() {
        let start = layout.data_start.saturating_add(offset);
        let gap = range(file, end, start).ok_or_else(|| PlanError::damaged("its data is cut short"))?;
        if gap.iter().any(|&byte| byte != 0) {
            return Err(PlanError::damaged("the bytes between its parts are not zero"));
        }
        if data_at(file, layout.data_start, offset, bytes).map(crate::hash) != Some(hash) {
            let what = "the bytes in the file do not match their hash".to_owned();
            return Err(PlanError::InitialData { state: state.name.clone(), what }.in_bucket(bucket));
        }
        end = start.saturating_add(bytes);
    }
    Ok(())
}

/// Likely kind of a file that is no plan, and advice.
fn hint(file: &[u8]) -> &'static str {
    match FileKind::of(file) {
        Some(FileKind::Archive) => {
            return "this looks like a zip archive or a PyTorch file; compile an ONNX training model with \
                    `memc compile`";
        }
        Some(FileKind::Safetensors) => {
            return "this looks like a safetensors file; give the plan, and the safetensors file as the state \
                    to resume from";
        }
        Some(FileKind::Array) => {
            return "this looks like a NumPy array; give the plan, and the array with --input";
        }
        _ => {}
    }
    if file.starts_with(b"ptrt") || file.starts_with(b"ftrt") {
        "this looks like a TensorRT engine; compile an ONNX training model with `memc compile`"
    } else if file.starts_with(b"plan ") {
        "this looks like the text form of a plan; give the binary file that memc wrote"
    } else if matches!(file, [0x08, 1..=20, 0x12 | 0x1a | 0x22 | 0x2a | 0x3a | 0x42, ..]) {
        "this looks like an ONNX model; compile it first with `memc compile`"
    } else {
        "it does not begin with `MEMCPLAN`; compile an ONNX training model with `memc compile`"
    }
}
