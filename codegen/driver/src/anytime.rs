//! Searches one after another: results so far outlast a request to stop those that follow.

use crate::error::Error;
use crate::plan::Outcome;
use crate::watch::{Hold, Watch};

/// State of a series of searches.
pub(crate) struct Anytime<'a> {
    watch: &'a dyn Watch,
    /// From the first result until a request to stop.
    held: Option<Hold<'a>>,
    interrupted: bool,
}

impl<'a> Anytime<'a> {
    pub(crate) fn new(watch: &'a dyn Watch) -> Anytime<'a> {
        Anytime { watch, held: None, interrupted: false }
    }

    /// From now on there is something to keep: the first request to stop ends the series, not the whole work.
    pub(crate) fn keep(&mut self) {
        if !self.interrupted {
            let watch = self.watch;
            self.held.get_or_insert_with(|| Hold::begin(watch));
        }
    }

    /// Whether a request to stop has ended the series.
    pub(crate) fn interrupted(&mut self) -> bool {
        if self.held.is_some() && self.watch.take_stop() {
            self.end();
        }
        self.interrupted
    }

    /// Outcome of the next search; `None` once the series has ended. A search that is stopped when it has a
    /// plan is the last.
    pub(crate) fn next(
        &mut self,
        search: impl FnOnce() -> Result<Outcome, Error>,
    ) -> Result<Option<Outcome>, Error> {
        if self.interrupted() {
            return Ok(None);
        }
        match search() {
            Err(Error::Interrupted) if self.held.is_some() => {
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
        self.held = None;
    }
}
