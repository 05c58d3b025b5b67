//! Slices of a NumPy array file (`.npy`), read one at a time.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    panic::catch_unwind,
    path::{Path, PathBuf},
};

use memc_ir::{DType, TensorType};
use npyz::{Endianness, NpyHeader, Order, TypeChar};

use crate::Error;
use crate::error::Defect;

/// An open array whose slices are tensors of one type.
#[derive(Debug)]
pub(super) struct Rows {
    path: PathBuf,
    file: File,
    /// First byte of the data within the file.
    start: u64,
    dtype: DType,
    row_bytes: u64,
    /// Slices along the leading axis; `None` if the array has the input's own shape.
    rows: Option<u64>,
}

impl Rows {
    /// Opens an array and checks its element type, shape, order and length.
    pub(super) fn open(path: &Path, input: &str, ty: &TensorType) -> Result<Rows, Error> {
        let io = |source| Error::io(path, source);
        let fail = |what: String| Error::Data(format!("{}: {what}", path.display()));
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut head = Vec::new();
        (&file).take(HEADER_BYTES).read_to_end(&mut head).map_err(io)?;
        let header = header(&head).map_err(|what| {
            fail(format!("not a .npy file of a plain array: {what}; save the array with numpy.save"))
        });
        let (header, start) = header?;
        check_dtype(&header, ty.dtype).map_err(|what| fail(format!("input `{input}` is {ty}: {what}")))?;
        let rows = match header.shape() {
            shape if shape == ty.shape => None,
            [rows, shape @ ..] if shape == ty.shape => Some(*rows),
            other => {
                return Err(fail(format!(
                    "an array of shape {other:?} does not feed input `{input}` of shape {:?}; give that \
                     shape, or that with a leading axis of steps",
                    ty.shape
                )));
            }
        };
        if header.order() != Order::C && header.shape().len() > 1 {
            let what = "the array is in Fortran order; save numpy.ascontiguousarray(x)";
            return Err(fail(what.to_owned()));
        }
        let bytes = ty.bytes().checked_mul(rows.unwrap_or(1)).and_then(|data| data.checked_add(start));
        if bytes != Some(length) {
            return Err(fail(format!(
                "it has {length} bytes, which is not what its header says; copy it again"
            )));
        }
        Ok(Rows { path: path.to_owned(), file, start, dtype: ty.dtype, row_bytes: ty.bytes(), rows })
    }

    /// Slices along the leading axis; `None` if the array has the input's own shape.
    pub(super) fn rows(&self) -> Option<u64> {
        self.rows
    }

    /// Reads one slice.
    pub(super) fn read(&mut self, row: u64, out: &mut [u8]) -> Result<(), Error> {
        let at = row.saturating_mul(self.row_bytes).saturating_add(self.start);
        let read = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.read_exact(out));
        read.map_err(|e| Error::io(&self.path, e))?;
        if self.dtype == DType::Bool && out.iter().any(|&byte| byte > 1) {
            let what = "a boolean is neither 0 nor 1";
            return Err(Error::Data(format!("{}: slice {row}: {what}", self.path.display())));
        }
        Ok(())
    }
}

/// Most bytes of a file's header; those of plain arrays are far shorter.
const HEADER_BYTES: u64 = 1024;

/// The header, and the first byte behind it. `head` is the beginning of the file.
fn header(head: &[u8]) -> Result<(NpyHeader, u64), Defect> {
    let text = match head {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, a, b, ..] => {
            Some((10, u32::from(u16::from_le_bytes([*a, *b]))))
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d, ..] => {
            Some((12, u32::from_le_bytes([*a, *b, *c, *d])))
        }
        _ => None,
    };
    let (start, length) = text.ok_or("it does not begin as one")?;
    let end = u64::from(length).saturating_add(start);
    let head = usize::try_from(end)
        .ok()
        .and_then(|end| head.get(..end))
        .ok_or("its header is cut short or too long")?;
    // The reader multiplies the extents unchecked, and panics where it notices. Lengths are checked by the
    // caller.
    match catch_unwind(|| NpyHeader::from_reader(head)) {
        Ok(Ok(header)) => Ok((header, end)),
        Ok(Err(error)) => Err(Defect::new(error)),
        Err(_) => Err(Defect::new("its shape is too large")),
    }
}

/// Checks the element type; the error says how to convert.
fn check_dtype(header: &NpyHeader, dtype: DType) -> Result<(), Defect> {
    let (name, wanted) = match dtype {
        DType::F32 => ("numpy.float32", (TypeChar::Float, 4)),
        DType::F16 => ("numpy.float16", (TypeChar::Float, 2)),
        // NumPy has no such type; the package ml_dtypes adds one, which is saved as plain bytes.
        DType::BF16 => ("ml_dtypes.bfloat16", (TypeChar::RawData, 2)),
        DType::I32 => ("numpy.int32", (TypeChar::Int, 4)),
        DType::I64 => ("numpy.int64", (TypeChar::Int, 8)),
        DType::I8 => ("numpy.int8", (TypeChar::Int, 1)),
        DType::U8 => ("numpy.uint8", (TypeChar::Uint, 1)),
        DType::Bool => ("numpy.bool", (TypeChar::Bool, 1)),
    };
    let npyz::DType::Plain(ty) = header.dtype() else {
        return Err(Defect::new("the array has a structured type; save a plain array"));
    };
    let found = (ty.type_char(), ty.size_field());
    if found != wanted {
        return Err(Defect::new(format!("the array has type `{ty}`; convert it with x.astype({name})")));
    }
    if ty.endianness() == Endianness::Big {
        return Err(Defect::new(format!("the array is big-endian; convert it with x.astype({name})")));
    }
    Ok(())
}
