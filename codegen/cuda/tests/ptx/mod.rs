//! Kernels judged by their PTX, without a GPU.

#[allow(dead_code, reason = "each program uses a part")]
pub(crate) mod calls;
#[allow(dead_code, reason = "each program uses a part")]
pub(crate) mod predict;
#[allow(dead_code, reason = "each program uses a part")]
pub(crate) mod stats;
