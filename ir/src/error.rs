//! Errors that are one sentence: about types that do not fit, and about text that does not parse.

use std::fmt;

use crate::diag::Diag;

/// Defines error types that hold one sentence.
macro_rules! sentences {
    ($($(#[$doc:meta])* $vis:vis $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        $vis struct $name(String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::error::Error for $name {}

        impl From<String> for $name {
            fn from(sentence: String) -> Self {
                Self(sentence)
            }
        }

        impl From<&str> for $name {
            fn from(sentence: &str) -> Self {
                Self(sentence.into())
            }
        }

        impl From<$name> for String {
            fn from(error: $name) -> Self {
                error.0
            }
        }
    )*};
}

sentences! {
    /// Operands, attributes or contents that do not fit an op or a type.
    pub TypeError;
    /// Text that is no op, type, size, loss or optimizer.
    pub ParseError;
    /// Obstacle to the gradient of an op.
    pub(crate) NoGradient;
}

impl From<Diag> for ParseError {
    fn from(diag: Diag) -> Self {
        Self(diag.message)
    }
}

impl From<TypeError> for NoGradient {
    fn from(error: TypeError) -> Self {
        Self(error.0)
    }
}
