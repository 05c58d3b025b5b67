//! Errors of plans and their files.

use std::{fmt, io, path::PathBuf};

/// Error of a bucket that a plan does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoBucket {
    /// Name that was asked for.
    pub name: String,
    /// Names of the plan's buckets; none where the plan is of one size.
    pub known: Vec<String>,
}

impl fmt::Display for NoBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.known[..] {
            [] => f.write_str("the plan has no buckets: leave out --bucket"),
            known => write!(f, "the plan has no bucket `{}`; it has {}", self.name, known.join(", ")),
        }
    }
}

impl std::error::Error for NoBucket {}

/// Error of reading, parsing or writing a plan. Messages name the place within the plan. Only
/// [`PlanError::Io`] names the file: the caller knows which one it asked for.
#[derive(Debug)]
pub enum PlanError {
    /// The file does not begin as a plan does.
    NotAPlan {
        /// Likely kind of the file, and advice.
        hint: &'static str,
    },
    /// The file has a format version that this program does not read.
    Version {
        /// Version of the file.
        found: u32,
        /// The version this program reads and writes.
        supported: u32,
    },
    /// The bytes are not those that were written.
    Damaged {
        /// The defect.
        what: String,
    },
    /// The plan breaks a rule of [`crate::Plan::validate`], or names an op, type or role that does not exist.
    Invalid {
        /// Part of the plan, such as `body command 12`.
        at: String,
        /// The defect.
        what: String,
    },
    /// The text form does not parse.
    Text {
        /// Line, counted from 1.
        line: usize,
        /// The defect.
        what: String,
    },
    /// The initial bytes supplied for a state are not those that the plan declares.
    InitialData {
        /// Name of the state.
        state: String,
        /// The defect.
        what: String,
    },
    /// The caller asked to stop; nothing was replaced.
    Interrupted,
    /// The file system refused.
    Io {
        /// The file or folder concerned.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl PlanError {
    pub(crate) fn damaged(what: impl Into<String>) -> PlanError {
        PlanError::Damaged { what: what.into() }
    }

    pub(crate) fn text(line: usize, what: impl Into<String>) -> PlanError {
        PlanError::Text { line, what: what.into() }
    }

    /// The error with the part of the plan that it is in.
    pub(crate) fn within(self, part: &str) -> PlanError {
        match self {
            PlanError::Damaged { what } => PlanError::Damaged { what: format!("{part}: {what}") },
            PlanError::Invalid { at, what } => PlanError::Invalid { at: format!("{part} {at}"), what },
            other => other,
        }
    }

    /// The error with the bucket that it is in, counted from 1; bucket 0 is the plan itself.
    pub(crate) fn in_bucket(self, bucket: usize) -> PlanError {
        let within = |text| format!("bucket {bucket}: {text}");
        match self {
            same if bucket == 0 => same,
            PlanError::Damaged { what } => PlanError::Damaged { what: within(what) },
            PlanError::Invalid { at, what } => PlanError::Invalid { at: within(at), what },
            PlanError::InitialData { state, what } => PlanError::InitialData { state, what: within(what) },
            other => other,
        }
    }

    pub(crate) fn invalid(at: impl Into<String>, what: impl Into<String>) -> PlanError {
        PlanError::Invalid { at: at.into(), what: what.into() }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::NotAPlan { hint } => write!(f, "not a memc plan: {hint}"),
            PlanError::Version { found, supported } if found > supported => write!(
                f,
                "plan format {found} is newer than format {supported}, which this program reads; use the \
                 release that made the plan, or compile the model again"
            ),
            PlanError::Version { found, supported } => write!(
                f,
                "plan format {found} is not format {supported}, which this program reads; compile the model \
                 again"
            ),
            PlanError::Damaged { what } => {
                write!(f, "the plan is damaged: {what}; copy it again or compile the model again")
            }
            PlanError::Invalid { at, what } => write!(f, "invalid plan: {at}: {what}"),
            PlanError::Text { line, what } => write!(f, "line {line}: {what}"),
            PlanError::InitialData { state, what } => write!(f, "initial data of state `{state}`: {what}"),
            PlanError::Interrupted => write!(f, "interrupted; nothing was written"),
            PlanError::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for PlanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PlanError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
