//! Headers of NumPy array files (`.npy`).

use std::panic::catch_unwind;

use memc_ir::{DType, TensorType};
use memc_support::FileKind;
use npyz::{Endianness, NpyHeader, Order, TypeChar};

use crate::error::Defect;

/// Use of an array for an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// It has the input's shape, and feeds every step the same.
    Whole,
    /// One axis more in front: so many slices, one for each micro-step.
    Slices(u64),
    /// Another first extent than the input: so many samples, of which each micro-step takes a batch.
    Samples(u64),
}

/// Form and place of the data, by a header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) form: Form,
    /// First byte of the data.
    pub(super) start: u64,
}

/// Extents of the array that begins with `head` and has elements of a type, and the first byte of its data.
pub(super) fn shape(head: &[u8], dtype: DType) -> Result<(Vec<u64>, u64), Defect> {
    let (header, start) = header(head).map_err(|what| {
        Defect::new(format!(
            "not a .npy file of a plain array: {what}; save the array with numpy.save, or say the type of \
             raw tokens, as FILE:u16"
        ))
    })?;
    check_dtype(&header, dtype)?;
    if header.order() != Order::C && header.shape().len() > 1 {
        return Err(Defect::new("the array is in Fortran order; save numpy.ascontiguousarray(x)"));
    }
    Ok((header.shape().to_vec(), start))
}

/// The layout of the array that begins with `head`, for an input of type `ty`.
pub(super) fn layout(head: &[u8], ty: &TensorType) -> Result<Layout, Defect> {
    let (shape, start) = shape(head, ty.dtype)?;
    let form = match (shape.as_slice(), ty.shape.as_slice()) {
        (shape, own) if shape == own => Form::Whole,
        ([slices, shape @ ..], own) if shape == own => Form::Slices(*slices),
        ([samples, shape @ ..], [batch, own @ ..]) if shape == own && samples >= batch => {
            Form::Samples(*samples)
        }
        ([samples, shape @ ..], [batch, own @ ..]) if shape == own => {
            return Err(Defect::new(format!("{samples} samples are fewer than a batch of {batch}")));
        }
        (other, own) => {
            return Err(Defect::new(format!(
                "an array of shape {other:?} does not feed shape {own:?}; give that shape, one with a \
                 leading axis \
                 of steps, or one with more samples in the first axis"
            )));
        }
    };
    Ok(Layout { form, start })
}

/// Bytes from the beginning of a file that tell how long its header is.
pub(super) const PREFIX: usize = 12;

/// Bytes of the file until its data, by its first [`PREFIX`] bytes; `None` where it is no array.
pub(super) fn header_bytes(prefix: &[u8]) -> Option<u64> {
    let (start, length) = lengths(prefix)?;
    Some(start.saturating_add(length.into())).filter(|&n| n <= HEADER_BYTES)
}

/// Most bytes of a file's header; those of plain arrays are far shorter.
pub(super) const HEADER_BYTES: u64 = 1024;

/// Most opening brackets of a header; that of a plain array has two. The reader tries a bracket as a
/// dictionary and as a set, and so its time grows exponentially with them: twelve take minutes.
const MOST_BRACKETS: usize = 8;

/// Length of the magic, and of the text behind it.
fn lengths(head: &[u8]) -> Option<(u64, u32)> {
    match head {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, a, b, ..] => {
            Some((10, u32::from(u16::from_le_bytes([*a, *b]))))
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d, ..] => {
            Some((12, u32::from_le_bytes([*a, *b, *c, *d])))
        }
        _ => None,
    }
}

/// The header, and the first byte behind it. `head` is the beginning of the file.
fn header(head: &[u8]) -> Result<(NpyHeader, u64), Defect> {
    let (start, length) = lengths(head).ok_or(match FileKind::of(head) {
        Some(FileKind::Archive) => "it is an archive, as of PyTorch (.pt) or NumPy (.npz)",
        Some(FileKind::Plan) => "it is a plan",
        Some(FileKind::Safetensors) => "it is a safetensors file",
        _ => "it does not begin as one",
    })?;
    let end = u64::from(length).saturating_add(start);
    let head = usize::try_from(end)
        .ok()
        .and_then(|end| head.get(..end))
        .ok_or("its header is cut short or too long")?;
    if head.iter().filter(|byte| b"([{".contains(byte)).count() > MOST_BRACKETS {
        return Err(Defect::new(format!("its header has more than {MOST_BRACKETS} opening brackets")));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str) -> Vec<u8> {
        let length = u16::try_from(header.len()).expect("a short header").to_le_bytes();
        [b"\x93NUMPY\x01\x00", length.as_slice(), header.as_bytes()].concat()
    }

    /// Nested brackets, on which the reader's time grows exponentially, are refused before it sees them.
    #[test]
    fn nested_headers_are_refused() {
        let ty = TensorType::new(DType::F32, [2]);
        let plain = file("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n");
        assert!(matches!(layout(&plain, &ty), Ok(Layout { form: Form::Whole, .. })));
        for bracket in ["{", "[", "(", "{'a':"] {
            let error = layout(&file(&bracket.repeat(60)), &ty).unwrap_err().to_string();
            assert!(error.contains("more than 8 opening brackets"), "{error}");
        }
    }
}
