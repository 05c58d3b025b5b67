//! Outputs of the last step as NumPy arrays (`.npy`, version 1.0), in the element types that inputs are read
//! in.
//!
//! A file is replaced in one step or not at all, when the steps are done.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use memc_ir::{DType, TensorType};
use memc_plan::Plan;
use memc_support::Replace;

use crate::{Error, state::list};

/// The outputs with these names, by index, each with its file.
pub(crate) fn find<'o>(
    plan: &Plan,
    wanted: &'o [(String, PathBuf)],
) -> Result<Vec<(usize, &'o Path)>, Error> {
    let find = |(name, path): &'o (String, PathBuf)| match plan.outputs.iter().position(|o| o.name == *name) {
        Some(index) => Ok((index, path.as_path())),
        None => {
            let known: Vec<&str> = plan.outputs.iter().map(|o| o.name.as_str()).collect();
            Err(Error::Usage(format!(
                "--output {name}: the plan has no such output; it has {}",
                list(&known)
            )))
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

/// The file's bytes before its data: magic, version, length, and a dictionary that ends at a multiple of 64.
fn header(ty: &TensorType) -> Vec<u8> {
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
    let end = (BEFORE + text.len() + 1).next_multiple_of(ALIGN);
    text.resize(end - BEFORE - 1, b' ');
    text.push(b'\n');
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend(text);
    out
}
