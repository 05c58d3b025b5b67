//! Errors of the library. The kind decides the exit code of a command.

use std::fmt;

use memc_frontend::ImportError;
use memc_passes::PassError;
use memc_passes::plan::Infeasible;
use memc_plan::PlanError;

/// Reason why work stopped.
#[derive(Debug)]
pub enum Error {
    /// 2: an option is wrong.
    Usage(String),
    /// 3: the model is bad or not supported.
    Model(String),
    /// 4: no plan fits the budget.
    Infeasible(NoFit),
    /// 4: no allocation as low as the capacity was found.
    NoAllocation {
        /// The capacity asked for.
        capacity: u64,
        /// The lowest allocation found.
        height: u64,
        /// Most bytes live at once.
        load: u64,
        /// A height that no allocation is below.
        bound: u64,
        /// The lowest allocation instead, and a hint how to find one that fits.
        why: String,
    },
    /// 7: the plan is damaged, of another version, or wrong.
    Plan(String),
    /// 70: a bug in memc.
    Internal(String),
    /// 70: a pass failed: a bug in memc.
    Bug {
        /// The pass, and the reason.
        text: String,
        /// Content of a file (.mir) that `memc opt` runs to show the failure again.
        reproducer: String,
    },
    /// 74: reading or writing failed.
    Io(String),
    /// 130: a request to stop came before there was a result.
    Interrupted,
}

/// Reason why no plan fits.
#[derive(Debug)]
pub struct NoFit {
    /// Text for people.
    pub text: String,
    /// Smallest budget, the op with the largest working set and its tensors, where those are the reason.
    pub report: Option<Box<Infeasible>>,
}

impl Error {
    /// An infeasible budget with nothing but a text.
    pub(crate) fn no_fit(text: String) -> Error {
        Error::Infeasible(NoFit { text, report: None })
    }

    /// Exit code of a command that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Model(_) => 3,
            Error::Infeasible(_) | Error::NoAllocation { .. } => 4,
            Error::Plan(_) => 7,
            Error::Internal(_) | Error::Bug { .. } => 70,
            Error::Io(_) => 74,
            Error::Interrupted => 130,
        }
    }

    /// The error of one of several jobs, named in the text.
    pub(crate) fn in_job(self, job: &str) -> Error {
        match self {
            Error::Usage(text) => Error::Usage(format!("job {job}: {text}")),
            Error::Model(text) => Error::Model(format!("job {job}: {text}")),
            Error::Io(text) => Error::Io(format!("job {job}: {text}")),
            other => other,
        }
    }

    /// The error of a plan file, named in the text.
    pub fn in_plan(self, file: &std::path::Path) -> Error {
        match self {
            Error::Plan(text) => Error::Plan(format!("{}: {text}", file.display())),
            other => other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(t) | Error::Model(t) | Error::Plan(t) | Error::Io(t) => f.write_str(t),
            Error::Infeasible(no_fit) => f.write_str(&no_fit.text),
            Error::NoAllocation { capacity, why, .. } => write!(f, "no allocation of height {capacity}{why}"),
            Error::Internal(text) | Error::Bug { text, .. } => {
                write!(
                    f,
                    "{text}\nthis is a bug in memc; please report it with the model and this command line"
                )
            }
            Error::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Box<Infeasible>> for Error {
    fn from(report: Box<Infeasible>) -> Self {
        Error::Infeasible(NoFit { text: report.to_string(), report: Some(report) })
    }
}

impl From<ImportError> for Error {
    fn from(e: ImportError) -> Self {
        match e {
            ImportError::Usage(text) => Error::Usage(text),
            ImportError::Io { .. } => Error::Io(e.to_string()),
            _ => Error::Model(e.to_string()),
        }
    }
}

impl From<PassError> for Error {
    fn from(e: PassError) -> Self {
        match e {
            PassError::Usage(text) => Error::Usage(text),
            PassError::Infeasible(report) => report.into(),
            PassError::Unsupported(text) => Error::Model(text),
            PassError::Invalid(_) => Error::Model(e.to_string()),
            PassError::Failed(text) => Error::Internal(text),
            PassError::Bug { text, reproducer } => Error::Bug { text, reproducer },
        }
    }
}

impl From<PlanError> for Error {
    fn from(e: PlanError) -> Self {
        match e {
            PlanError::Io { .. } => Error::Io(e.to_string()),
            PlanError::Interrupted => Error::Interrupted,
            _ => Error::Plan(e.to_string()),
        }
    }
}
