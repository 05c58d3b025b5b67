//! Errors of a run and their exit codes.

use std::{fmt, io, path::Path, path::PathBuf};

use memc_gpu::GpuError;
use memc_plan::PlanError;

/// Error that ends a run. Messages name the defect, its place, and the next step for the user.
#[derive(Debug)]
pub enum Error {
    /// The command line asks for something that this plan or program does not have: exit code 2.
    Usage(String),
    /// Data supplied by the user is not what the model takes: exit code 3.
    Data(String),
    /// The device cannot give the memory: exit code 5.
    Memory(String),
    /// The planned run differs from the unplanned one: exit code 6.
    Mismatch(String),
    /// The loss is no finite number, and the run was to stop then: exit code 9.
    Diverged(String),
    /// The plan is damaged, breaks a rule, or does not fit the device: exit code 7.
    Plan(String),
    /// The device is not there, or has failed: exit code 8.
    Device(String),
    /// A signal ended the wait for data: exit code 130.
    Interrupted(String),
    /// A defect of this program: exit code 70.
    Internal(String),
    /// The file system refused: exit code 74.
    Io {
        /// The file or folder concerned.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Sentence about a defect of a plan or a file. The caller adds the place, and decides the exit code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect(String);

impl Defect {
    pub(crate) fn new(text: impl fmt::Display) -> Defect {
        Defect(text.to_string())
    }
}

impl std::error::Error for Defect {}

impl From<&str> for Defect {
    fn from(text: &str) -> Defect {
        Defect(text.to_owned())
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Exit code of a run that a signal stopped.
pub const INTERRUPTED: u8 = 130;

impl Error {
    /// The process exit code for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Data(_) => 3,
            Error::Memory(_) => 5,
            Error::Mismatch(_) => 6,
            Error::Plan(_) => 7,
            Error::Device(_) => 8,
            Error::Diverged(_) => 9,
            Error::Interrupted(_) => INTERRUPTED,
            Error::Internal(_) => 70,
            Error::Io { .. } => 74,
        }
    }

    /// An error of reading or writing `path`.
    pub fn io(path: impl AsRef<Path>, source: io::Error) -> Error {
        Error::Io { path: path.as_ref().to_owned(), source }
    }

    /// An error of opening the plan file `path`.
    pub fn opening(path: &Path, error: PlanError) -> Error {
        const NEEDS: &str = "memrun needs a plan, a file that `memc compile MODEL -o FILE.plan` writes";
        let shown = path.display();
        match error {
            PlanError::Io { path, source } if source.kind() == io::ErrorKind::NotFound => {
                Error::io(path, io::Error::new(io::ErrorKind::NotFound, format!("no such file; {NEEDS}")))
            }
            PlanError::Io { path, source } => Error::Io { path, source },
            PlanError::NotAPlan { .. } if path.is_dir() => {
                Error::Plan(format!("{shown}: not a memc plan but a folder; {NEEDS}"))
            }
            PlanError::NotAPlan { .. } if path.extension().is_some_and(|e| e == "onnx") => {
                Error::Plan(format!(
                    "{shown}: not a memc plan; compile the model first: memc compile {shown} -o model.plan"
                ))
            }
            other => Error::Plan(format!("{}: {other}", path.display())),
        }
    }
}

impl From<GpuError> for Error {
    fn from(error: GpuError) -> Error {
        let text = error.to_string();
        match error {
            GpuError::Memory { .. } | GpuError::HostMemory { .. } | GpuError::Full { .. } => {
                Error::Memory(text)
            }
            GpuError::Compile { .. } | GpuError::Bounds { .. } => Error::Internal(text),
            _ => Error::Device(text),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(what)
            | Error::Data(what)
            | Error::Memory(what)
            | Error::Mismatch(what)
            | Error::Diverged(what)
            | Error::Interrupted(what)
            | Error::Plan(what)
            | Error::Device(what) => f.write_str(what),
            Error::Internal(what) => {
                write!(
                    f,
                    "internal error: {what}; this is a defect of memrun, please report it with the plan"
                )
            }
            Error::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
