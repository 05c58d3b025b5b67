//! CPU kernels: the meaning of every op in numbers.
//!
//! [`execute`] runs one op of the table in `memc-ir` on dense row-major byte slices that the caller owns.
//! The contract that the rest of memc builds on:
//!
//! - **Deterministic.** The bits of a result depend on the operands' bits and types only, never on the number
//!   of threads: work is cut into chunks fixed by the types, and partial results are combined in index order.
//! - **No hidden memory.** Scratch comes from the `workspace` slice, whose size is the op's
//!   [`Cost::workspace`](memc_ir::Cost), or from small arrays on the stack. The exceptions are the packing
//!   buffer of the `gemm` crate, which lives on the heap inside a matrix product, and the shapes of the calls
//!   that an op on narrow element types, or a normalisation with further steps, is cut into.
//! - **In place means bit-identical.** An operand may share its bytes with a result when the op's row
//!   declares the pair; the result is the same as with separate bytes.
//! - **Bounded.** An index value out of range is an error that names it. Nothing outside the slices is
//!   touched.
//!
//! Threads come from the rayon pool that the caller runs in (`ThreadPool::install`), or the global one.
//!
//! This crate does not schedule, allocate tensors (except [`interp`]) or know about plans.

mod bands;
mod bias_grad;
mod call;
mod columns;
mod conv;
mod convert;
mod dense;
mod depthwise;
mod depthwise_rows;
mod elementwise;
mod error;
mod fused;
mod fused_norm;
mod index;
pub mod interp;
mod loss;
mod matmul;
mod matrix;
mod narrow;
mod norm;
mod num;
mod optim;
mod panels;
mod parallel;
mod pool;
mod random;
mod reduce;
mod shape;
mod softmax;
mod view;
mod walk;
mod widen;

pub use call::{ALIGN, Call, execute};
pub use error::KernelError;
pub use view::Operand;
