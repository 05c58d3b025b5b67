//! Every op of the table in double precision. Tests compare kernels, gradients and rewrites with it.
//!
//! [`eval`] runs one op, [`run`] a whole graph-phase module. Written from the rows' definitions and the ONNX
//! specification alone, one element at a time by multi-index, and sharing no code with `memc-kernels`:
//!
//! - Floating-point elements are `f64` whatever the element type says, and no op rounds to it; a cast between
//!   floating-point types changes nothing.
//! - Integers and booleans are exact; `i32` wraps at 32 bits.
//! - Slow and allocating freely: for tests on small tensors only, which is why no product crate links it.

mod elementwise;
mod error;
mod eval;
mod index;
mod interp;
mod linalg;
mod loss;
mod movement;
mod norm;
mod optim;
mod random;
mod reduce;
mod tensor;
mod window;

pub use error::EvalError;
pub use eval::eval;
pub use interp::{Env, run};
pub use tensor::{Data, Tensor64};
