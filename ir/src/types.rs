//! Tensor types: element type and concrete shape, dense row-major.

use std::fmt;

words! {
    /// Element type of a tensor.
    pub enum DType {
        /// IEEE 754 binary32.
        F32 = "f32",
        /// IEEE 754 binary16.
        F16 = "f16",
        /// The upper half of an [`F32`](DType::F32).
        BF16 = "bf16",
        /// Two's-complement 32-bit integer.
        I32 = "i32",
        /// Two's-complement 64-bit integer.
        I64 = "i64",
        /// Two's-complement 8-bit integer.
        I8 = "i8",
        /// Unsigned 8-bit integer.
        U8 = "u8",
        /// One byte, 0 or 1.
        Bool = "bool",
    }
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::I64 => 8,
            DType::I8 | DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether arithmetic on this type is floating point.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether this is an integer type.
    pub fn is_int(self) -> bool {
        matches!(self, DType::I32 | DType::I64 | DType::I8 | DType::U8)
    }

    /// Whether elements are positions, classes or counts: integers of at least 32 bits.
    pub fn is_index(self) -> bool {
        matches!(self, DType::I32 | DType::I64)
    }

    /// Whether arithmetic is done on a wider type, see [`Widening`](crate::ops::Widening).
    pub fn is_narrow(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::I8 | DType::U8)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Largest number of elements a tensor may have; keeps every byte count within `i64`.
pub const MAX_ELEMENTS: u64 = 1 << 48;

/// Largest rank of a tensor.
pub const MAX_RANK: usize = 12;

/// Element type and shape of a tensor; dense, row-major, no strides.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extent of every axis, outermost first. Empty for a scalar.
    pub shape: Vec<u64>,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Vec<u64>>) -> Self {
        Self { dtype, shape: shape.into() }
    }
    /// A scalar type.
    pub fn scalar(dtype: DType) -> Self {
        Self { dtype, shape: Vec::new() }
    }
    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
    /// Number of elements; `None` when it exceeds [`MAX_ELEMENTS`] or the rank exceeds [`MAX_RANK`].
    pub fn checked_numel(&self) -> Option<u64> {
        if self.shape.len() > MAX_RANK {
            return None;
        }
        // A zero extent makes the tensor empty, but its other extents still have to be sane.
        let product = self.shape.iter().filter(|&&d| d != 0).try_fold(1u64, |n, &d| n.checked_mul(d));
        let product = product.filter(|&n| n <= MAX_ELEMENTS)?;
        Some(if self.shape.contains(&0) { 0 } else { product })
    }
    /// Number of elements of a type that passed the verifier (saturating otherwise).
    pub fn numel(&self) -> u64 {
        self.checked_numel().unwrap_or(MAX_ELEMENTS)
    }
    /// Bytes of the dense payload.
    pub fn bytes(&self) -> u64 {
        self.numel() * self.dtype.bytes()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.shape.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_shapes_have_no_element_count() {
        assert_eq!(TensorType::new(DType::F32, [1 << 40, 1 << 40]).checked_numel(), None);
        assert_eq!(TensorType::new(DType::F32, [0, 1 << 40]).checked_numel(), Some(0));
        assert_eq!(TensorType::new(DType::F32, [1; 13]).checked_numel(), None);
        assert_eq!(TensorType::scalar(DType::I64).bytes(), 8);
    }
}
