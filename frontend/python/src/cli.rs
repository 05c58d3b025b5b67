//! The two command lines, for the entry points of the package.
//!
//! Each takes the process over, as a program of its own would: a wrong argument or an interrupt may end it.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Run `memc` with these arguments, the program's name first, and return its exit code.
///
/// The process is the command's own from then on: it may end it, and handles its signals.
#[pyfunction]
pub(crate) fn memc_main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| memc_cli::main(args))
}

/// Run `memrun` with these arguments, the program's name first, and return its exit code.
///
/// The process is the command's own from then on: it may end it, and handles its signals.
#[pyfunction]
pub(crate) fn memrun_main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| memc_runtime::memrun::main(args))
}
