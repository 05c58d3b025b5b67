//! A log that an executor writes for the caller that opened its device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value that a device and its executors share.
#[derive(Debug, Default)]
pub(crate) struct Log<T>(Arc<Mutex<T>>);

impl<T: Default> Log<T> {
    /// The value, to write to. A panic elsewhere leaves what was written.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the value out, and leaves the default.
    pub(crate) fn take(&self) -> T {
        std::mem::take(&mut self.lock())
    }
}

impl<T> Clone for Log<T> {
    fn clone(&self) -> Log<T> {
        Log(self.0.clone())
    }
}
