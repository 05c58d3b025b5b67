//! Exceptions, and the kinds of errors that become them.
//!
//! Every exception is an `Error`. Its text is that of the command line, hint included, with arguments in
//! place of options; `hint` has the hint alone.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(memc, Error, PyException, "Failure of memc; `hint` says what to do about it, or is None.");
create_exception!(
    memc,
    InfeasibleBudget,
    Error,
    "No plan fits the budget. `smallest` has the smallest budget in bytes, `peak_op` the op with the largest \
     working set, `tensors` its largest tensors as (name, type, bytes); None and [] where there is none."
);
create_exception!(memc, UnsupportedOp, Error, "An op of the model that memc does not have.");
create_exception!(memc, InvalidModel, Error, "The model, or its text, is not a correct step.");
create_exception!(
    memc,
    DeviceError,
    Error,
    "The device is not there, has failed, or cannot give the memory."
);
create_exception!(memc, DataError, Error, "Data is not what the step takes.");
create_exception!(memc, InternalError, Error, "A bug in memc.");

/// The exception of every failure, under the name that the module exports.
pub(crate) type MemcError = Error;

/// Gives an exception its attributes.
fn with<'py>(py: Python<'py>, error: PyErr, set: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<()>) -> PyErr {
    match set(error.value(py).as_any()) {
        Ok(()) => error,
        Err(other) => other,
    }
}

/// The hint at the end of a text.
fn hint(text: &str) -> Option<&str> {
    text.split_once("\nhint: ").map(|(_, hint)| hint)
}

fn hinted(py: Python<'_>, error: PyErr, text: &str) -> PyErr {
    with(py, error, |value| value.setattr("hint", hint(text)))
}

/// The exception for a wrong argument or a missing thing.
pub(crate) fn usage(py: Python<'_>, text: String) -> PyErr {
    hinted(py, Error::new_err(text.clone()), &text)
}

/// The exception for data that does not fit.
pub(crate) fn data(py: Python<'_>, text: String) -> PyErr {
    hinted(py, DataError::new_err(text.clone()), &text)
}

/// Options of the command line, and the arguments of `compile` that do the same.
const SPOKEN: &[(&str, &str)] = &[
    (", or another --planner; `memc compare` shows what each finds", ""),
    ("--gpu-mem", "budget"),
    ("--host-mem", "host_memory"),
    ("--no-swap", "swap=False"),
    ("--no-recompute", "recompute=False"),
    ("--no-host-ops", "host_ops=False"),
    ("--device", "device"),
];

/// A text of the command line, in the words of this module.
fn spoken(text: String) -> String {
    SPOKEN.iter().fold(text, |text, (option, argument)| text.replace(option, argument))
}

/// The exception for an error of the compiler.
pub(crate) fn of_compiler(py: Python<'_>, error: &memc::Error) -> PyErr {
    let text = spoken(error.to_string());
    let exception = match error {
        memc::Error::Usage(_) | memc::Error::Io(_) => Error::new_err(text.clone()),
        memc::Error::Model(_) | memc::Error::Plan(_) => InvalidModel::new_err(text.clone()),
        memc::Error::Infeasible(no_fit) => {
            let report = no_fit.report.as_deref();
            let set = |value: &Bound<'_, PyAny>| {
                value.setattr("smallest", report.map(|r| r.smallest_bytes))?;
                value.setattr("peak_op", report.map(|r| r.op.as_str()))?;
                value.setattr("tensors", report.map(|r| r.tensors.clone()).unwrap_or_default())
            };
            with(py, InfeasibleBudget::new_err(text.clone()), set)
        }
        memc::Error::NoAllocation { .. } => InfeasibleBudget::new_err(text.clone()),
        memc::Error::Internal(_) | memc::Error::Bug { .. } => {
            let text = text.clone();
            match error {
                memc::Error::Bug { reproducer, .. } => {
                    with(py, InternalError::new_err(text), |value| value.setattr("reproducer", reproducer))
                }
                _ => InternalError::new_err(text),
            }
        }
        memc::Error::Interrupted => pyo3::exceptions::PyKeyboardInterrupt::new_err(()),
    };
    hinted(py, exception, &text)
}

/// The exception for an error of the runtime.
pub(crate) fn of_runtime(py: Python<'_>, error: &memc_runtime::Error) -> PyErr {
    use memc_runtime::Error as Runtime;
    let text = spoken(error.to_string());
    let exception = match error {
        Runtime::Usage(_) | Runtime::Io { .. } | Runtime::Mismatch(_) | Runtime::Diverged(_) => {
            Error::new_err(text.clone())
        }
        Runtime::Data(_) => DataError::new_err(text.clone()),
        Runtime::Memory(_) | Runtime::Device(_) => DeviceError::new_err(text.clone()),
        Runtime::Plan(_) => InvalidModel::new_err(text.clone()),
        Runtime::Internal(_) => InternalError::new_err(text.clone()),
        Runtime::Interrupted(_) => pyo3::exceptions::PyKeyboardInterrupt::new_err(()),
    };
    hinted(py, exception, &text)
}

/// The exception for a panic.
pub(crate) fn of_panic(py: Python<'_>, panic: &(dyn std::any::Any + Send)) -> PyErr {
    of_compiler(py, &memc::Error::Internal(panic_text(panic)))
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    format!("panic: {text}")
}
