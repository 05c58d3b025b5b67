//! Data whose extents differ from step to step: arrays of their own for each step, padded to a bucket's.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, TensorType};

use super::npy;
use super::source::InputSource;
use crate::Error;
use crate::error::Defect;

/// Units of several files, each of its own extents.
#[derive(Debug)]
pub(super) struct Ragged {
    input: String,
    parts: Vec<Part>,
    pub(super) units: u64,
    /// Bytes of the element that fills what a unit leaves of a bucket's tensor.
    pad: Option<Vec<u8>>,
    /// Room for a unit as it is stored.
    stored: Vec<u8>,
}

/// Units of one file, all of the same extents.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    start: u64,
    units: u64,
    shape: Vec<u64>,
}

fn fail(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::Data(format!("{}: {what}", path.display()))
}

/// An element that fills tensors up, as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pad {
    /// A whole number, for elements of any type.
    Int(i64),
    /// Another number, for floats.
    Float(f32),
}

impl std::str::FromStr for Pad {
    type Err = Defect;

    fn from_str(text: &str) -> Result<Pad, Defect> {
        let float = || text.parse::<f32>().ok().map(Pad::Float);
        let number = text.parse::<i64>().ok().map(Pad::Int).or_else(float);
        number.ok_or_else(|| Defect::new(format!("`{text}` is not a number")))
    }
}

impl Pad {
    /// Bytes of the element as one of a type; `None` where the type does not have it.
    fn bytes(self, dtype: DType) -> Option<Vec<u8>> {
        match self {
            Pad::Int(n) if dtype.is_float() => Scalar::Float(F32(n as f32)).to_bytes(dtype),
            Pad::Int(n) => Scalar::Int(n).to_bytes(dtype),
            Pad::Float(x) => Scalar::Float(F32(x)).to_bytes(dtype),
        }
    }
}

/// Whether a tensor of these extents has room in one of a type.
fn has_room(shape: &[u64], ty: &TensorType) -> bool {
    shape.len() == ty.shape.len() && shape.iter().zip(&ty.shape).all(|(own, most)| own <= most)
}

impl Ragged {
    /// Opens the data of `input`, whose type in each bucket is one of `types`, and checks what headers tell.
    pub(super) fn open(
        source: &InputSource,
        input: &str,
        types: &[TensorType],
        pad: Option<Pad>,
    ) -> Result<Ragged, Error> {
        let InputSource::Path(path) = source else {
            return Err(Error::Usage(format!(
                "--input {input}: the plan has buckets for several sizes of it; give a folder of .npy files, \
                 one for each step"
            )));
        };
        let (mut parts, dtype) = (Vec::new(), types.first().map_or(DType::F32, |ty| ty.dtype));
        for file in super::array::files(path)? {
            parts.push(part(&file, input, types)?);
        }
        let pad = match pad {
            None => None,
            Some(pad) => Some(pad.bytes(dtype).ok_or_else(|| {
                Error::Usage(format!("--pad {input}: an element of type {dtype} is not such a number"))
            })?),
        };
        // Buckets are listed by falling size.
        let smallest = |part: &&Part| types.iter().rev().find(|ty| has_room(&part.shape, ty));
        let is_short = |part: &&Part| smallest(part).is_some_and(|ty| *ty.shape != *part.shape);
        if let (None, Some(part)) = (&pad, parts.iter().find(is_short)) {
            return Err(no_pad(part, input, smallest(&part)));
        }
        let units = parts.iter().map(|part| part.units).fold(0, u64::saturating_add);
        Ok(Ragged { input: input.to_owned(), parts, units, pad, stored: Vec::new() })
    }

    /// Bytes of the element that fills tensors up.
    pub(super) fn pad(&self) -> Option<&[u8]> {
        self.pad.as_deref()
    }

    /// The first unit whose extent on an axis is not that of another's on its own axis, in words.
    pub(super) fn differs(&self, axis: usize, other: &Ragged, its: usize, units: u64) -> Option<String> {
        let extent = |part: &Part, axis: usize| part.shape.get(axis).copied().unwrap_or(0);
        let mut unit = 0;
        while unit < units {
            let ((own, at), (part, within)) = (self.place(unit)?, other.place(unit)?);
            let (a, b) = (extent(own, axis), extent(part, its));
            if a != b {
                let (one, two) = (own.path.display(), part.path.display());
                return Some(format!(
                    "{one} has {a} where {two} has {b}; both are one dimension of the model"
                ));
            }
            // All units of a file have the same extents.
            unit += (own.units - at).min(part.units - within).max(1);
        }
        None
    }

    /// The file of the first unit, for messages.
    pub(super) fn path(&self) -> &Path {
        self.parts.first().map_or(Path::new(""), |part| part.path.as_path())
    }

    /// The file of a unit, and its number there.
    fn place(&self, unit: u64) -> Option<(&Part, u64)> {
        let mut within = unit;
        for part in &self.parts {
            if within < part.units {
                return Some((part, within));
            }
            within -= part.units;
        }
        None
    }

    /// Whether a unit has room in a tensor of a type.
    pub(super) fn fits(&self, unit: u64, ty: &TensorType) -> bool {
        self.place(unit).is_some_and(|(part, _)| has_room(&part.shape, ty))
    }

    /// Reads a unit into a tensor of a type, and fills the rest.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Data`] where there is a rest and nothing to fill it with.
    pub(super) fn read(&mut self, unit: u64, ty: &TensorType, out: &mut [u8]) -> Result<(), Error> {
        let mut stored = std::mem::take(&mut self.stored);
        let missing = || fail(self.path(), format!("there is no slice {unit}; it has {}", self.units));
        let (part, within) = self.place(unit).ok_or_else(missing)?;
        let width = ty.dtype.bytes();
        let bytes = part.shape.iter().fold(width, |bytes, extent| bytes.saturating_mul(*extent));
        stored.resize(usize::try_from(bytes).unwrap_or(0), 0);
        let io = |e| Error::io(&part.path, e);
        let mut file = File::open(&part.path).map_err(io)?;
        file.seek(SeekFrom::Start(part.start.saturating_add(within.saturating_mul(bytes)))).map_err(io)?;
        file.read_exact(&mut stored).map_err(io)?;
        if ty.dtype == DType::Bool && stored.iter().any(|&byte| byte > 1) {
            return Err(fail(&part.path, format!("slice {within}: a boolean is neither 0 nor 1")));
        }
        if stored.len() == out.len() {
            out.copy_from_slice(&stored);
        } else {
            let pad = self.pad.as_ref().ok_or_else(|| no_pad(part, &self.input, Some(ty)))?;
            out.chunks_exact_mut(pad.len().max(1)).for_each(|to| to.copy_from_slice(pad));
            put(&stored, &part.shape, out, &ty.shape, usize::try_from(width).unwrap_or(1));
        }
        self.stored = stored;
        Ok(())
    }
}

/// Error of data that is shorter than a bucket.
fn no_pad(part: &Part, input: &str, ty: Option<&TensorType>) -> Error {
    let to = ty.map_or_else(String::new, |ty| format!(" for {ty}"));
    fail(
        &part.path,
        format!(
            "input `{input}` has the shape {:?}{to}; say what fills the rest, as --pad {input}=VALUE: \
             often 0, and for labels the value that the loss ignores, such as -100",
            part.shape
        ),
    )
}

/// Puts a tensor of smaller extents at the beginning of each axis of another.
fn put(from: &[u8], shape: &[u64], out: &mut [u8], extents: &[u64], width: usize) {
    let size = |shape: &[u64]| shape.iter().fold(width as u64, |bytes, extent| bytes.saturating_mul(*extent));
    let step = |shape: &[u64]| usize::try_from(size(shape)).unwrap_or(usize::MAX).max(1);
    let (Some((_, own)), Some((_, rest))) = (shape.split_first(), extents.split_first()) else {
        return out.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    };
    if own == rest {
        return out.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
    if from.is_empty() {
        return;
    }
    for (from, out) in from.chunks(step(own)).zip(out.chunks_mut(step(rest))) {
        put(from, own, out, rest, width);
    }
}

/// The units of a file.
fn part(path: &Path, input: &str, types: &[TensorType]) -> Result<Part, Error> {
    let io = |e| Error::io(path, e);
    let mut head = Vec::new();
    File::open(path).map_err(io)?.take(npy::HEADER_BYTES).read_to_end(&mut head).map_err(io)?;
    let dtype = types.first().map_or(DType::F32, |ty| ty.dtype);
    let (shape, start) =
        npy::shape(&head, dtype).map_err(|what| fail(path, format!("input `{input}`: {what}")))?;
    let rank = types.first().map_or(0, |ty| ty.shape.len());
    let (units, shape) = match shape.split_first() {
        Some((units, rest)) if rest.len() == rank => (*units, rest.to_vec()),
        _ => (1, shape),
    };
    // An axis that is the same in all buckets is not padded.
    let is_fixed = |axis: usize| {
        let mut extents = types.iter().map(|ty| ty.shape.get(axis));
        let first = extents.next();
        extents.all(|extent| Some(extent) == first)
    };
    let agrees = |ty: &TensorType| {
        let pairs = shape.iter().zip(&ty.shape).enumerate();
        has_room(&shape, ty) && { pairs }.all(|(axis, (own, most))| !is_fixed(axis) || own == most)
    };
    if shape.contains(&0) || !types.iter().any(agrees) {
        let known: Vec<String> = types.iter().map(|ty| format!("{:?}", ty.shape)).collect();
        return Err(fail(
            path,
            format!(
                "input `{input}` has the shape {shape:?}, which no bucket has room for; they take {}",
                known.join(", ")
            ),
        ));
    }
    let bytes = shape.iter().try_fold(dtype.bytes(), |bytes, extent| bytes.checked_mul(*extent));
    let whole = bytes.and_then(|bytes| bytes.checked_mul(units)?.checked_add(start));
    let has = path.metadata().map_err(io)?.len();
    if whole != Some(has) {
        let what = format!("it has {has} bytes, which is not what its header says; copy it again");
        return Err(fail(path, what));
    }
    Ok(Part { path: path.to_owned(), start, units, shape })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements keep their index on every axis, and the rest is as it was.
    #[test]
    fn tensors_are_put_at_the_beginning() {
        let mut out = [9u8; 12];
        put(&[1, 2, 3, 4], &[2, 2], &mut out, &[3, 4], 1);
        assert_eq!(out, [1, 2, 9, 9, 3, 4, 9, 9, 9, 9, 9, 9]);
        let mut out = [9u8; 12];
        put(&[1, 1, 2, 2], &[1, 2, 1], &mut out, &[1, 3, 2], 2);
        assert_eq!(out, [1, 1, 9, 9, 2, 2, 9, 9, 9, 9, 9, 9]);
        let mut out = [9u8; 2];
        put(&[], &[1, 0], &mut out, &[1, 2], 1);
        assert_eq!(out, [9, 9]);
    }

    /// Whole numbers fill elements of any type that has them, others floats alone.
    #[test]
    fn pads_are_elements() {
        let pad = |text: &str, dtype| text.parse::<Pad>().unwrap().bytes(dtype);
        assert_eq!(pad("-100", DType::I64), Some((-100i64).to_le_bytes().to_vec()));
        assert_eq!(pad("0", DType::F32), Some(0f32.to_le_bytes().to_vec()));
        assert_eq!(pad("1", DType::Bool), Some(vec![1]));
        assert_eq!(pad("2", DType::Bool), None);
        assert_eq!(pad("0.5", DType::I32), None);
        assert!("x".parse::<Pad>().is_err());
    }
}
