//! Evaluating ops on tensors that own their bytes: the plain use of the kernels, for folding and for tests.

use bytemuck::Pod;
use memc_ir::{DType, OpKind, TensorType};

use crate::call::{ALIGN, Call, execute};
use crate::error::KernelError;
use crate::view::Operand;

/// Zeroed bytes, aligned as kernels want them.
#[derive(Debug)]
pub struct AlignedBytes {
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes at an address divisible by [`ALIGN`].
    pub fn zeroed(len: usize) -> Self {
        let storage = vec![0; len.saturating_add(ALIGN - 1)];
        let start = storage.as_ptr().addr().next_multiple_of(ALIGN) - storage.as_ptr().addr();
        Self { storage, start, len }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.len]
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.len]
    }
}

impl Clone for AlignedBytes {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len);
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }
}

impl PartialEq for AlignedBytes {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

/// A dense row-major tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    /// Element type and shape.
    pub ty: TensorType,
    /// The elements, as many bytes as the type says.
    pub data: AlignedBytes,
}

impl Tensor {
    /// A tensor of zero bytes.
    ///
    /// Errors when the type has more elements than any tensor may have, or than memory can address.
    pub fn zeros(ty: TensorType) -> Result<Self, KernelError> {
        let bytes = ty.checked_numel().and_then(|n| usize::try_from(n.checked_mul(ty.dtype.bytes())?).ok());
        let Some(bytes) = bytes else {
            return Err(KernelError::Call { op: "tensor", reason: format!("{ty} is too large") });
        };
        Ok(Self { data: AlignedBytes::zeroed(bytes), ty })
    }

    /// A tensor with the given elements, whose width is that of `ty`'s element type.
    ///
    /// Errors when the number or the width of the elements does not match.
    pub fn from_slice<T: Pod>(ty: TensorType, elements: &[T]) -> Result<Self, KernelError> {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        if bytes.len() as u64 != ty.bytes() || size_of::<T>() as u64 != ty.dtype.bytes() {
            let reason = format!("{} elements of {} bytes are not {ty}", elements.len(), size_of::<T>());
            return Err(KernelError::Call { op: "tensor", reason });
        }
        let mut tensor = Self::zeros(ty)?;
        tensor.data.bytes_mut().copy_from_slice(bytes);
        Ok(tensor)
    }

    /// An `f32` tensor.
    pub fn f32(shape: &[u64], elements: &[f32]) -> Result<Self, KernelError> {
        Self::from_slice(TensorType::new(DType::F32, shape), elements)
    }

    /// An `i64` tensor.
    pub fn i64(shape: &[u64], elements: &[i64]) -> Result<Self, KernelError> {
        Self::from_slice(TensorType::new(DType::I64, shape), elements)
    }

    /// The elements as `T`, or `None` when its width is not that of the element type.
    pub fn elements<T: Pod>(&self) -> Option<&[T]> {
        if size_of::<T>() as u64 != self.ty.dtype.bytes() {
            return None;
        }
        if self.data.len == 0 { Some(&[]) } else { bytemuck::try_cast_slice(self.data.bytes()).ok() }
    }
}

/// Evaluates `op`, allocating results and workspace.
///
/// # Errors
///
/// [`KernelError::Call`] when the operands do not satisfy the op's type rule, and whatever [`execute`]
/// reports.
pub fn eval(op: &OpKind, operands: &[&Tensor]) -> Result<Vec<Tensor>, KernelError> {
    let operand_types: Vec<TensorType> = operands.iter().map(|t| t.ty.clone()).collect();
    let types: Vec<&TensorType> = operand_types.iter().collect();
    let fail = |reason| KernelError::Call { op: op.mnemonic(), reason };
    let result_types = op.infer(&types).map_err(|e| fail(e.to_string()))?;
    let call = Call { op, operand_types: &operand_types, result_types: &result_types };
    let workspace = call.check()?;
    let workspace =
        usize::try_from(workspace).map_err(|_| fail(format!("{workspace} bytes of workspace")))?;
    let mut workspace = AlignedBytes::zeroed(workspace);
    let mut results = result_types.iter().cloned().map(Tensor::zeros).collect::<Result<Vec<_>, _>>()?;
    let bytes: Vec<Operand> = operands.iter().map(|t| Operand::Bytes(t.data.bytes())).collect();
    let mut out: Vec<&mut [u8]> = results.iter_mut().map(|t| t.data.bytes_mut()).collect();
    execute(&call, &bytes, &mut out, workspace.bytes_mut())?;
    Ok(results)
}
