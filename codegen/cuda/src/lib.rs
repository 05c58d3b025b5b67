//! CUDA kernels as text: for an op at fixed types, what to launch, in what order, on which buffers.
//!
//! [`lower`] answers for one op; [`program`] joins the kernels of many into one translation unit for NVRTC,
//! which needs no CUDA headers. The contract:
//!
//! - **Meaning.** Results are those of `memc-kernels`: the same bits where an op copies, compares, counts or
//!   draws random words, and where it sums in the same order; otherwise within the rounding of `f32`. This
//!   asks for a compiler that fuses no product and sum by itself (`--fmad=false`); where kernels want that,
//!   in products, they say so.
//! - **Deterministic.** No atomics on floats: sums are trees, or go in index order, cut by types alone. Long
//!   sums are in f64; on architectures with slow f64 they are pairs of f32, in the same order. The same bits
//!   from run to run on one machine.
//! - **At the speed of memory.** Rows are read by 16 bytes where their length allows it, and no loop divides
//!   64-bit integers; tests read the PTX of every kernel.
//! - **No hidden memory.** Scratch is [`Lowering::workspace`] bytes that the caller supplies, with any
//!   contents.
//! - **Aligned.** Operands, results and workspace begin at multiples of 64 bytes.
//! - **In place.** An operand may share its bytes with a result where the op's row declares the pair.
//! - **Bounded.** An index value out of range reads as zero and writes nothing, a label out of range gives
//!   NaN, and a launch ahead of the op's reports the first of them ([`IndexCheck`]).
//!
//! Kernels take extents and strides as parameters, so that one text serves many shapes; element types, the
//! number of axes and attributes are part of the text. Equal texts have equal names.
//!
//! This crate compiles and launches nothing. Matrix products and convolutions are plain tiled loops, for
//! machines without cuBLASLt and cuDNN. [`library`] returns the one call of these libraries that an op is,
//! [`forms`] that call and others with launches behind them, and [`allowance`] the workspace that such a call
//! may take.

mod batch_norm;
mod bias_grad;
mod check;
mod conv;
mod elementwise;
mod error;
mod forms;
mod fused;
mod fused_norm;
mod index;
mod index_space;
mod kernel;
mod library;
mod loss;
mod lower;
mod map;
mod multi;
mod norm;
mod optim;
mod pool;
mod product;
mod random;
mod reduce;
mod rows;
mod shape;
mod softmax;

use memc_ir::{OpKind, TensorType};

pub use check::{NO_REPORT, report};
pub use error::CudaError;
pub use forms::{Form, forms};
pub use kernel::{Arg, IndexCheck, Kernel, Launch, Lowering, PREAMBLE, kernel_names, program};
pub use library::{
    Addend, CONV_WORKSPACE, Convolution, Epilogue, LibraryCall, PLACE_ALIGN, Pass, Product, WORKSPACE_ALIGN,
    allowance, ample_allowance, library,
};
/// Element types of library calls.
pub use memc_ir::DType;
pub use multi::{MOST_UPDATES, is_small_update, updates};

/// An op with the types of its operands and results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) op: &'a OpKind,
    pub(crate) operands: &'a [TensorType],
    pub(crate) results: &'a [TensorType],
}

/// Scratch bytes with which a GPU computes `op` on operands of these types: enough for generated kernels, and
/// for a library, of a convolution up to `most` within [`CONV_WORKSPACE`].
pub fn workspace(op: &OpKind, operands: &[&TensorType], most: u64) -> u64 {
    let operands: Vec<TensorType> = operands.iter().map(|t| (*t).clone()).collect();
    lower(op, &operands).map_or(0, |lowering| lowering.workspace).max(ample_allowance(op, &operands, most))
}

/// The launches that compute `op` on operands of these types.
///
/// # Errors
///
/// [`CudaError::Types`] when the types do not satisfy the op's type rule; [`CudaError::Missing`] for an op
/// that has no kernel yet.
pub fn lower(op: &OpKind, operands: &[TensorType]) -> Result<Lowering, CudaError> {
    let types: Vec<&TensorType> = operands.iter().collect();
    let results = op.infer(&types).map_err(|reason| CudaError::Types { op: op.mnemonic(), reason })?;
    let call = Call { op, operands, results: &results };
    let mut lowering = lower::dispatch(&call)?;
    check::add(&call, &mut lowering);
    Ok(lowering)
}
