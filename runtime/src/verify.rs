//! Comparing a planned run with the unplanned one, bit for bit.

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
    let mut differing = elements.enumerate().filter(|(_, (a, b))| a != b);
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
