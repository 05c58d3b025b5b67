//! Failures of an import.
//!
//! Every message names what is wrong, where it is and what can be done about it, on one line where possible.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use memc_ir::some_of;

/// Failure of an import.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportError {
    /// The file is damaged, or breaks the rules of its format.
    BadModel(String),
    /// The file is sound but uses something that has no place in the IR.
    Unsupported(String),
    /// The options do not fit the model.
    Usage(String),
    /// A file could not be read.
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl ImportError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        ImportError::Io { path: path.to_path_buf(), source }
    }

    /// The same error, with `context` in front of its message.
    pub(crate) fn within(self, context: &str) -> Self {
        match self {
            ImportError::BadModel(m) => ImportError::BadModel(format!("{context}: {m}")),
            ImportError::Unsupported(m) => ImportError::Unsupported(format!("{context}: {m}")),
            other => other,
        }
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::BadModel(m) | ImportError::Unsupported(m) | ImportError::Usage(m) => {
                f.write_str(&printable(m))
            }
            ImportError::Io { path, source } => write!(f, "cannot read `{}`: {source}", path.display()),
        }
    }
}

impl std::error::Error for ImportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let ImportError::Io { source, .. } = self { Some(source) } else { None }
    }
}

/// Longest message in characters; shapes and names from a file may be much longer.
const LONGEST: usize = 4000;

/// `text` without terminal control characters, cut to a readable length.
fn printable(text: &str) -> String {
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == LONGEST {
            out.push_str(" ...");
            break;
        }
        if c.is_control() && c != '\n' { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Refusal of one node or one stored tensor; the caller adds which.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The node breaks its operator's rules, or the tensor's data do not fit its type.
    Bad(String),
    /// The node or tensor has a form that is not supported.
    Unsupported(String),
}

impl Fault {
    /// The error of the fault at `place`.
    pub(crate) fn at(self, place: &str) -> ImportError {
        ImportError::from(self).within(place)
    }

    /// The error of the fault when it concerns the tensor `name`.
    pub(crate) fn of(self, name: &str) -> ImportError {
        self.at(&format!("`{name}`"))
    }

    /// The error of a model that is damaged at `place`, whether the fault is a rule or a form.
    pub(crate) fn damage(self, place: &str) -> ImportError {
        ImportError::BadModel(format!("{place}: {self}"))
    }
}

/// A fault of a tensor that stands alone.
impl From<Fault> for ImportError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Bad(m) => ImportError::BadModel(m),
            Fault::Unsupported(m) => ImportError::Unsupported(m),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Fault::Bad(m) | Fault::Unsupported(m)) = self;
        f.write_str(m)
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Fault::Bad(message)
    }
}

impl From<memc_ir::TypeError> for Fault {
    fn from(error: memc_ir::TypeError) -> Self {
        Fault::Bad(error.to_string())
    }
}

impl From<&str> for Fault {
    fn from(message: &str) -> Self {
        Fault::Bad(message.to_string())
    }
}

/// An unsupported form of an operator.
pub(crate) fn unsupported<T>(message: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Unsupported(message.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages cannot drive a terminal and stay short, whatever the file's names are.
    #[test]
    fn messages_are_printable() {
        let error = ImportError::BadModel(format!("a\u{1b}[2Jb\nc{}", "x".repeat(10_000)));
        let text = error.to_string();
        assert!(text.starts_with("a\\u{1b}[2Jb\ncxxx") && text.ends_with("x ..."), "{text}");
        assert!(text.len() < 4100);
    }
}
