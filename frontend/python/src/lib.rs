//! The compiler and the runtime as the Python module `memc._native`.
//!
//! A step in the IR's text form becomes a `Plan`, and a plan that runs a `Session`. Data
//! goes in and out as addresses and lengths; `memory` says who answers for them. How a PyTorch module
//! becomes IR text is the business of the package's Python files.
//!
//! Python's lock is released while anything is compiled or run. No panic leaves the module: it becomes
//! `InternalError`.

mod cli;
mod compile;
mod error;
mod memory;
mod plan;
mod session;
mod worker;

use pyo3::prelude::*;

/// Compiler and runtime of memc.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::cli::{memc_main, memrun_main};
    #[pymodule_export]
    use crate::compile::compile;
    #[pymodule_export]
    use crate::error::{
        DataError, DeviceError, InfeasibleBudget, InternalError, InvalidModel, MemcError, UnsupportedOp,
    };
    #[pymodule_export]
    use crate::plan::{Plan, load};
    #[pymodule_export]
    use crate::session::{Session, View};

    /// Adds the version.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
