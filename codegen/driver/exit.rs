//! Errors of the command line and their exit codes.

use std::fmt;

/// Why a command stopped; the variant decides the exit code.
#[derive(Debug)]
pub(crate) enum Error {
    /// 2: the command line is wrong.
    Usage(String),
    /// 3: the model is bad or not supported.
    Model(String),
    /// 4: no plan fits the budget.
    Infeasible(String),
    /// 7: the plan is damaged, of another version, or wrong.
    Plan(String),
    /// 70: a bug in memc.
    Internal(String),
    /// 74: reading or writing failed.
    Io(String),
    /// 130: interrupted by the user.
    Interrupted,
    /// 1: `memc diff` found differences, which it has printed.
    Different,
}

impl Error {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Error::Different => 1,
            Error::Usage(_) => 2,
            Error::Model(_) => 3,
            Error::Infeasible(_) => 4,
            Error::Plan(_) => 7,
            Error::Internal(_) => 70,
            Error::Io(_) => 74,
            Error::Interrupted => 130,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(t) | Error::Model(t) | Error::Infeasible(t) | Error::Plan(t) | Error::Io(t) => {
                f.write_str(t)
            }
            Error::Internal(t) => {
                write!(f, "{t}\nthis is a bug in memc; please report it with the model and this command line")
            }
            Error::Interrupted => f.write_str("interrupted; nothing was written"),
            Error::Different => Ok(()),
        }
    }
}

impl From<memc_passes::PassError> for Error {
    fn from(e: memc_passes::PassError) -> Self {
        use memc_passes::PassError as P;
        match e {
            P::Usage(text) => Error::Usage(text),
            P::Infeasible(i) => Error::Infeasible(i.to_string()),
            P::Invalid { ref after, .. } if after == "input" => Error::Model(e.to_string()),
            P::Invalid { .. } | P::Failed(_) => Error::Internal(e.to_string()),
        }
    }
}

impl From<memc_plan::PlanError> for Error {
    fn from(e: memc_plan::PlanError) -> Self {
        match e {
            memc_plan::PlanError::Io { .. } => Error::Io(e.to_string()),
            memc_plan::PlanError::Interrupted => Error::Interrupted,
            _ => Error::Plan(e.to_string()),
        }
    }
}
