//! Failure of an op.

use std::fmt;

/// Reason why an op or a module has no results, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EvalError(String);

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EvalError {}

impl From<String> for EvalError {
    fn from(sentence: String) -> Self {
        Self(sentence)
    }
}

impl From<&str> for EvalError {
    fn from(sentence: &str) -> Self {
        Self(sentence.into())
    }
}

/// Tests report their failures as sentences.
impl From<EvalError> for String {
    fn from(error: EvalError) -> Self {
        error.0
    }
}
