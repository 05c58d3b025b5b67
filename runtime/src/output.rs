//! Outputs of the last step as NumPy arrays (`.npy`, version 1.0), in the element types that inputs are read
//! in.
//!
//! A file is replaced in one step or not at all, when the steps are done.

use std::{
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use memc_ir::{DType, TensorType};
use memc_plan::Plan;
use memc_support::Replace;

use crate::{Error, Programs, state::list};

/// The outputs with these names, by index, each with its file.
pub(crate) fn find<'o>(
    plan: &Plan,
    wanted: &'o [(String, PathBuf)],
    flag: &str,
) -> Result<Vec<(usize, &'o Path)>, Error> {
    let find = |(name, path): &'o (String, PathBuf)| match plan.outputs.iter().position(|o| o.name == *name) {
        Some(index) => Ok((index, path.as_path())),
        None => {
            let known: Vec<&str> = plan.outputs.iter().map(|o| o.name.as_str()).collect();
            Err(Error::Usage(format!("{flag} {name}: the plan has no such output; it has {}", list(&known))))
        }
    };
    wanted.iter().map(find).collect()
}

/// Writes a tensor of type `ty`.
pub(crate) fn write(path: &Path, ty: &TensorType, bytes: &[u8]) -> Result<(), Error> {
    let mut file = Replace::begin(path).map_err(|e| Error::io(path, e))?;
    let written = file.file().write_all(&header(ty)).and_then(|()| file.file().write_all(bytes));
    written.and_then(|()| file.finish()).map_err(|e| Error::io(path, e))
}

/// An output of all steps, stacked along a new first axis.
#[derive(Debug)]
pub(crate) struct Collector {
    path: PathBuf,
    file: Replace,
    ty: TensorType,
    count: u64,
    /// Length of the header, which is written again at the end.
    start: usize,
}

impl Collector {
    /// Begins the file.
    pub(crate) fn begin(path: &Path, ty: &TensorType) -> Result<Collector, Error> {
        let io = |e| Error::io(path, e);
        let mut file = Replace::begin(path).map_err(io)?;
        // The longest number of steps takes no more digits.
        let head = header(&stacked(ty, u64::MAX));
        file.file().write_all(&head).map_err(io)?;
        Ok(Collector { path: path.to_owned(), file, ty: ty.clone(), count: 0, start: head.len() })
    }

    /// Adds a step's output.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.count += 1;
        self.file.file().write_all(bytes).map_err(|e| Error::io(&self.path, e))
    }

    /// Puts the file in its place.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        let head = padded_header(&stacked(&self.ty, self.count), self.start);
        let file = self.file.file();
        let written = file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&head));
        written.and_then(|()| self.file.finish()).map_err(|e| Error::io(&self.path, e))
    }
}

fn stacked(ty: &TensorType, count: u64) -> TensorType {
    TensorType::new(ty.dtype, [&[count], ty.shape.as_slice()].concat())
}

/// The file's bytes before its data: magic, version, length, and a dictionary that ends at a multiple of 64.
fn header(ty: &TensorType) -> Vec<u8> {
    padded_header(ty, 0)
}

/// Likewise, at least `least` bytes long.
fn padded_header(ty: &TensorType, least: usize) -> Vec<u8> {
    const ALIGN: usize = 64;
    const BEFORE: usize = 10;
    let dtype = match ty.dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        // As the package ml_dtypes saves it: two plain bytes.
        DType::BF16 => "<V2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::I8 => "|i1",
        DType::U8 => "|u1",
        DType::Bool => "|b1",
    };
    let extents: String = ty.shape.iter().map(|extent| format!("{extent}, ")).collect();
    let mut text =
        format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({extents}), }}").into_bytes();
    let end = (BEFORE + text.len() + 1).next_multiple_of(ALIGN).max(least);
    text.resize(end - BEFORE - 1, b' ');
    text.push(b'\n');
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend(text);
    out
}

/// Refuses to collect an output whose type is not the same in all buckets.
pub(crate) fn same_types(
    programs: &Programs,
    plan: &Plan,
    collected: &[(usize, &Path)],
) -> Result<(), Error> {
    for (index, _) in collected {
        let mut types = programs.iter().map(|program| program.types.outputs.get(*index));
        let first = types.next();
        if types.any(|ty| Some(ty) != first) {
            let name = plan.outputs.get(*index).map_or("", |output| &output.name);
            return Err(Error::Usage(format!(
                "--collect {name}: its size is another in some bucket of the plan, so that its steps make no \
                 one array; --output writes that of the last step"
            )));
        }
    }
    Ok(())
}
