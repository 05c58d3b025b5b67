//! Typed, checked views of the byte slices of a call.

use bytemuck::Pod;
use memc_ir::{DType, OpKind, TensorType};

use crate::error::KernelError;
use crate::walk::{StridedSpace, ext, product};

/// One operand of a kernel call.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// Bytes of its own, which no result overlaps.
    Bytes(&'a [u8]),
    /// Shares its bytes exactly with the result of this index; a pair that the op's row declares.
    Result(usize),
}

/// The operand side of a checked call.
#[derive(Clone, Copy)]
pub(crate) struct Ctx<'a> {
    pub(crate) op: &'a OpKind,
    /// Operand types.
    pub(crate) types: &'a [TensorType],
    /// Result types.
    pub(crate) results: &'a [TensorType],
    pub(crate) operands: &'a [Operand<'a>],
    /// Index of the results' first element, where a call computes a part of them.
    pub(crate) first: usize,
    /// Elements of every operand and result of an element-wise op whose types say nothing of shapes.
    pub(crate) flat: Option<usize>,
}

/// Place of the elements of an operand.
#[derive(Clone, Copy)]
pub(crate) enum Src<'a, T> {
    /// In bytes of their own.
    Slice(&'a [T]),
    /// In the result that the kernel writes.
    Same,
}

impl<'a, T> Src<'a, T> {
    /// The elements, given the result they may be in.
    pub(crate) fn view<'b>(self, result: &'b [T]) -> &'b [T]
    where
        'a: 'b,
    {
        match self {
            Src::Slice(s) => s,
            Src::Same => result,
        }
    }

    /// Elements `at..at + part.len()`, given the part of the result that holds them if they share bytes.
    pub(crate) fn view_at<'b>(self, at: usize, part: &'b [T]) -> &'b [T]
    where
        'a: 'b,
    {
        match self {
            Src::Slice(s) => &s[at..at + part.len()],
            Src::Same => part,
        }
    }
}

impl<'a> Ctx<'a> {
    /// An error of this call.
    pub(crate) fn fail(&self, reason: impl Into<String>) -> KernelError {
        KernelError::Call { op: self.op.mnemonic(), reason: reason.into() }
    }

    /// The error for an element type that the op's type rule excludes.
    pub(crate) fn unsupported(&self, dtype: DType) -> KernelError {
        self.fail(format!("element type {dtype} is not allowed here"))
    }

    /// Operand `i`, wherever it is.
    pub(crate) fn src<T: Pod>(&self, i: usize) -> Result<Src<'a, T>, KernelError> {
        match self.operands[i] {
            Operand::Bytes(b) => Ok(Src::Slice(self.cast(b)?)),
            Operand::Result(_) => Ok(Src::Same),
        }
    }

    /// Operand `i`, which no in-place pair mentions.
    pub(crate) fn slice<T: Pod>(&self, i: usize) -> Result<&'a [T], KernelError> {
        match self.operands[i] {
            Operand::Bytes(b) => self.cast(b),
            Operand::Result(_) => Err(self.fail(format!("operand {i} cannot share bytes with a result"))),
        }
    }

    /// The space of result 0, whose operands of these indices broadcast.
    pub(crate) fn walk<const N: usize>(&self, operands: [usize; N]) -> StridedSpace<N> {
        match self.flat {
            Some(n) => StridedSpace::line(n),
            None => StridedSpace::broadcast(&self.results[0].shape, operands.map(|i| &*self.types[i].shape)),
        }
    }

    /// The bytes of a result as elements.
    pub(crate) fn out<'b, T: Pod>(&self, bytes: &'b mut [u8]) -> Result<&'b mut [T], KernelError> {
        if bytes.is_empty() {
            return Ok(&mut []);
        }
        bytemuck::try_cast_slice_mut(bytes).map_err(|e| self.fail(format!("result or workspace bytes: {e}")))
    }

    fn cast<T: Pod>(&self, bytes: &'a [u8]) -> Result<&'a [T], KernelError> {
        if bytes.is_empty() {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(bytes).map_err(|e| self.fail(format!("operand bytes: {e}")))
    }

    /// Exactly `N` results.
    pub(crate) fn outs<'r, 'b, const N: usize>(
        &self,
        results: &'r mut [&'b mut [u8]],
    ) -> Result<&'r mut [&'b mut [u8]; N], KernelError> {
        let got = results.len();
        results.try_into().map_err(|_| self.fail(format!("wants {N} results, got {got}")))
    }
}

/// Extents before, at and after `axis`.
pub(crate) fn around(shape: &[u64], axis: usize) -> (usize, usize, usize) {
    (product(&shape[..axis]), ext(shape[axis]), product(&shape[axis + 1..]))
}

/// The axis that a checked attribute names.
pub(crate) fn axis_of(c: &Ctx, axis: i64, rank: usize) -> Result<usize, KernelError> {
    let found = usize::try_from(axis).ok().filter(|&a| a < rank);
    found.ok_or_else(|| c.fail(format!("axis {axis} is not within rank {rank}")))
}
