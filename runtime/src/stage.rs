//! Stages of a run or a measurement, for a user who waits.

use std::{fmt, sync::Arc};

/// Stage of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before its first step, with this to do.
    Before(&'static str),
    /// Its steps.
    Steps,
    /// Between two steps, or after the last one, with this to do.
    Between(&'static str),
    /// After its last step, with this to do.
    After(&'static str),
}

type Tell = dyn Fn(&str) + Send + Sync;

/// Receiver of a measurement's stages; none by default.
#[derive(Clone, Default)]
pub struct Stages(Option<Arc<Tell>>);

impl Stages {
    /// Tells this function.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Stages {
        Stages(Some(Arc::new(tell)))
    }

    /// Tells what comes next.
    pub(crate) fn enter(&self, what: &str) {
        self.0.iter().for_each(|tell| tell(what));
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stages").field(&self.0.is_some()).finish()
    }
}
