//! Errors of the command line and their exit codes.

use std::fmt;

use memc_passes::plan::{Infeasible, PlanError};

use crate::output::left_behind;

/// Why a command stopped; the variant decides the exit code.
#[derive(Debug)]
pub(crate) enum Error {
    /// 2: the command line is wrong.
    Usage(String),
    /// 3: the model is bad or not supported.
    Model(String),
    /// 4: no plan fits the budget.
    Infeasible(String, Option<Box<Infeasible>>),
    /// 4: no layout as low as the capacity was found.
    NoLayout {
        /// The capacity asked for.
        capacity: u64,
        /// The lowest layout found.
        height: u64,
        /// Most bytes live at once.
        load: u64,
        /// A height that no layout is below.
        bound: u64,
        /// What was found instead, and what may find one.
        why: String,
    },
    /// 4: as above; with `--json` the report on stdout says so.
    Said(String),
    /// 7: the plan is damaged, of another version, or wrong.
    Plan(String),
    /// 7: `memc check` rejected the plan and, with `--json`, has printed why.
    Rejected(String),
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
            Error::Infeasible(..) | Error::NoLayout { .. } | Error::Said(_) => 4,
            Error::Plan(_) | Error::Rejected(_) => 7,
            Error::Internal(_) => 70,
            Error::Io(_) => 74,
            Error::Interrupted => 130,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(t)
            | Error::Model(t)
            | Error::Infeasible(t, _)
            | Error::Plan(t)
            | Error::Rejected(t)
            | Error::Said(t)
            | Error::Io(t) => f.write_str(t),
            Error::NoLayout { capacity, why, .. } => write!(f, "no layout of height {capacity}{why}"),
            Error::Internal(t) => {
                write!(f, "{t}\nthis is a bug in memc; please report it with the model and this command line")
            }
            Error::Interrupted => write!(f, "interrupted; {}", left_behind()),
            Error::Different => Ok(()),
        }
    }
}

impl From<memc_passes::PassError> for Error {
    fn from(e: memc_passes::PassError) -> Self {
        use memc_passes::PassError as P;
        match e {
            P::Usage(text) => Error::Usage(text),
            P::Infeasible(i) => Error::Infeasible(i.to_string(), Some(i)),
            P::Unsupported(text) => Error::Model(text),
            P::Invalid(_) => Error::Model(e.to_string()),
            P::Failed(_) | P::Bug { .. } => Error::Internal(e.to_string()),
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

impl From<PlanError> for Error {
    fn from(e: PlanError) -> Self {
        match e {
            PlanError::Infeasible(i) => Error::Infeasible(i.to_string(), Some(i)),
            PlanError::Failed(text) => Error::Internal(text),
        }
    }
}

impl Error {
    /// The error as the object that `--json` promises.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let mut out = serde_json::json!({"error": self.to_string(), "exit_code": self.code()});
        if let Error::NoLayout { capacity, height, load, bound, .. } = self {
            out["capacity"] = (*capacity).into();
            out["height"] = (*height).into();
            out["load"] = (*load).into();
            out["bound"] = (*bound).into();
        }
        if let Error::Infeasible(_, Some(i)) = self {
            out["gpu_mem_bytes"] = i.budget_bytes.into();
            out["reserve_bytes"] = i.reserve_bytes.into();
            out["smallest_feasible_bytes"] = i.smallest_bytes.into();
            out["working_set_op"] = i.op.clone().into();
            out["working_set_bytes"] = i.working_set_bytes.into();
            let tensor = |(name, ty, bytes): &(String, String, u64)| serde_json::json!({"name": name, "type": ty, "bytes": bytes});
            out["tensors"] = i.tensors.iter().map(tensor).collect();
        }
        out
    }
}
