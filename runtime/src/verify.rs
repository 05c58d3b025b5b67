//! Comparing a planned run with the unplanned one, bit for bit.
//!
//! All NaNs are one value. Of two NaNs with other bits, the processor's sum or product is the first, and the
//! compiler may exchange the operands of both: a kernel in place and the same kernel into other bytes differ.

use memc_ir::attr::Scalar;
use memc_ir::{DType, TensorType};

use crate::Error;

/// Fails with the first element in which two tensors of one type differ. `when` is for the message, such as
/// `after step 3`.
pub(crate) fn same(
    what: &str,
    name: &str,
    when: &str,
    ty: &TensorType,
    planned: &[u8],
    reference: &[u8],
) -> Result<(), Error> {
    if planned == reference {
        return Ok(());
    }
    if planned.len() != reference.len() {
        let (a, b) = (planned.len(), reference.len());
        return Err(Error::Mismatch(format!(
            "{what} `{name}` {when} has {a} bytes planned and {b} unplanned"
        )));
    }
    let width = usize::try_from(ty.dtype.bytes()).unwrap_or(1);
    let elements = planned.chunks(width).zip(reference.chunks(width));
    let is_nan =
        |bytes| matches!(Scalar::from_bytes(bytes, ty.dtype), Some(Scalar::Float(x)) if x.0.is_nan());
    let mut differing = elements.enumerate().filter(|(_, (a, b))| a != b && !(is_nan(a) && is_nan(b)));
    let Some((at, (a, b))) = differing.next() else { return Ok(()) };
    let count = differing.count().saturating_add(1);
    Err(Error::Mismatch(format!(
        "{what} `{name}` ({ty}) {when} differs from the unplanned run first at index {}: \
         {} planned, {} unplanned ({count} of {} elements differ)",
        position(at as u64, &ty.shape),
        value(ty.dtype, a),
        value(ty.dtype, b),
        ty.numel(),
    )))
}

/// The index on each axis of a flat row-major position.
fn position(mut flat: u64, shape: &[u64]) -> String {
    let mut index: Vec<String> = Vec::with_capacity(shape.len());
    for extent in shape.iter().rev() {
        let extent = (*extent).max(1);
        index.push((flat % extent).to_string());
        flat /= extent;
    }
    index.reverse();
    format!("[{}]", index.join(","))
}

/// An element as a number, with its bits where the number alone may hide the difference.
fn value(dtype: DType, bytes: &[u8]) -> String {
    match Scalar::from_bytes(bytes, dtype) {
        Some(Scalar::Float(x)) => {
            let bits: String = bytes.iter().rev().map(|b| format!("{b:02x}")).collect();
            format!("{:?} (0x{bits})", x.0)
        }
        Some(Scalar::Int(v)) => v.to_string(),
        None => format!("{bytes:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel in place may keep the other one of two NaNs.
    #[test]
    fn the_bits_of_nan_are_no_difference() {
        let words = |words: [u32; 2]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let (quiet, other) = (words([0x3f80_0000, 0x7fc0_0000]), words([0x3f80_0000, 0xffc0_1234]));
        let compare = |dtype, a: &[u8], b: &[u8]| same("state", "w", "", &TensorType::new(dtype, [2]), a, b);
        assert!(compare(DType::F32, &quiet, &other).is_ok());
        assert!(compare(DType::I32, &quiet, &other).is_err(), "integers have no NaN");
        assert!(compare(DType::F32, &quiet, &words([0x7fc0_0000; 2])).is_err(), "a number is not NaN");
        let half = |word: u16| [word.to_le_bytes(), word.to_le_bytes()].concat();
        assert!(compare(DType::F16, &half(0x7e00), &half(0xfe01)).is_ok());
    }

    /// The message names tensor, index on each axis, both values with their bits, and how many differ.
    #[test]
    fn the_first_difference_is_named() {
        let ty = TensorType::new(DType::F32, [2, 3]);
        let bytes = |xs: [f32; 6]| xs.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let a = bytes([1.0, 2.0, 3.0, 4.0, -0.0, f32::NAN]);
        let b = bytes([1.0, 2.0, 3.0, 4.0, 0.0, 1.5]);
        assert!(same("state", "w", "at the end", &ty, &a, &a).is_ok(), "equal bits are equal, also of NaN");
        let error = same("state", "w", "at the end", &ty, &a, &b).unwrap_err();
        assert_eq!(error.exit_code(), 6);
        let text = error.to_string();
        for part in ["`w`", "at the end", "[1,1]", "-0.0 (0x80000000)", "0.0 (0x00000000)", "2 of 6"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
    }
}
