//! What an interrupt does, and says at once.
//!
//! The handler does not write: whoever prints may be waiting for a reader, and a second interrupt must end the command all
//! the same.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, Ordering},
};

use memc_runtime::{INTERRUPTED, Stage};

use crate::progress::Line;
use crate::report::note;

/// Where a run is, and whether it is to end.
#[derive(Default)]
pub(crate) struct Stop {
    pub(crate) asked: AtomicBool,
    /// One of [`BEFORE`], [`STEPS`] and [`AFTER`].
    at: AtomicU8,
}

const BEFORE: u8 = 0;
const STEPS: u8 = 1;
const AFTER: u8 = 2;

impl Stop {
    /// The run comes to a stage.
    pub(crate) fn come_to(&self, stage: Stage) {
        let at = match stage {
            Stage::Before(_) => BEFORE,
            Stage::Steps => STEPS,
            Stage::After(_) => AFTER,
        };
        self.at.store(at, Ordering::Relaxed);
    }

    /// What the first interrupt brings about.
    fn answer(&self, saves: bool) -> String {
        let what = match self.at.load(Ordering::Relaxed) {
            BEFORE => "ending before the first step",
            STEPS => "ending after this step",
            _ => {
                return "no step is left; once more ends at once, and leaves what is not written by then"
                    .to_owned();
            }
        };
        let then = if saves { ", then saving the state" } else { "" };
        format!("{what}{then}; once more ends at once, and saves nothing")
    }
}

/// The first interrupt lets a run end after its step, the second ends the command.
pub(crate) fn end_after_step(stop: Arc<Stop>, saves: bool, line: &Line) {
    let erase = line.erase();
    let caught = ctrlc::set_handler(move || {
        if stop.asked.swap(true, Ordering::Relaxed) {
            leave(erase, "nothing was saved");
        }
        memc_plan::tell(text(erase, &stop.answer(saves)));
    });
    if let Err(error) = caught {
        note(&format!("signals cannot be caught ({error}); an interrupt will not save the state"));
    }
}

/// The first interrupt ends the command, which has written nothing.
pub(crate) fn leave_at_once(line: &Line) {
    let erase = line.erase();
    if let Err(error) =
        ctrlc::set_handler(move || leave(erase, "there is no result, and nothing was written"))
    {
        note(&format!("signals cannot be caught ({error}); an interrupt may leave a temporary file"));
    }
}

fn text(erase: &str, what: &str) -> String {
    format!("{erase}memrun: interrupted: {what}\n")
}

/// Ends the command, which says what it leaves: `nothing`, or files.
fn leave(erase: &str, nothing: &str) -> ! {
    memc_plan::leave(INTERRUPTED, |has_files| {
        text(erase, if has_files { "files that were written are whole" } else { nothing })
    })
}
