//! Searches one after another: what one has found outlasts an interrupt of those that follow.

use std::sync::atomic::Ordering;

use crate::exit::Error;
use crate::output::{STOP, Writing};
use crate::solve::Outcome;

/// What is known of a series of searches.
#[derive(Default)]
pub(crate) struct Series {
    /// While there is something to keep, and no interrupt yet.
    kept: Option<Writing>,
    interrupted: bool,
}

impl Series {
    /// From now on there is something to keep: the first interrupt ends the series, not the command.
    pub(crate) fn keep(&mut self) {
        if !self.interrupted {
            self.kept.get_or_insert_with(Writing::begin);
        }
    }

    /// Whether an interrupt has ended the series; the next one ends the command.
    pub(crate) fn interrupted(&mut self) -> bool {
        if self.kept.is_some() && STOP.swap(false, Ordering::Relaxed) {
            self.end();
        }
        self.interrupted
    }

    /// What the next search finds; nothing once an interrupt has ended the series. One that is interrupted when it has a
    /// plan is the last.
    pub(crate) fn next(
        &mut self,
        search: impl FnOnce() -> Result<Outcome, Error>,
    ) -> Result<Option<Outcome>, Error> {
        if self.interrupted() {
            return Ok(None);
        }
        match search() {
            Err(Error::Interrupted) if self.kept.is_some() => {
                self.end();
                Ok(None)
            }
            Err(e) => Err(e),
            Ok(outcome) => {
                if outcome.interrupted {
                    self.end();
                } else if outcome.plan.is_ok() {
                    self.keep();
                }
                Ok(Some(outcome))
            }
        }
    }

    fn end(&mut self) {
        self.interrupted = true;
        self.kept = None;
    }
}
