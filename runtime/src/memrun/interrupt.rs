//! The handler of interrupts, and its messages.
//!
//! The handler itself does not write: the main thread may be blocked on an output that nobody reads, and a
//! second interrupt must end the command all the same.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, Ordering},
};

use crate::{INTERRUPTED, Stage};

use crate::memrun::terminal::{Line, note};

/// Stage of a run, and the request to end it.
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
    /// Enters a stage.
    pub(crate) fn come_to(&self, stage: Stage) {
        let at = match stage {
            Stage::Before(_) => BEFORE,
            Stage::Steps | Stage::Between(_) => STEPS,
            Stage::After(_) => AFTER,
        };
        self.at.store(at, Ordering::Relaxed);
    }

    /// Message about the effect of the first interrupt.
    fn answer(&self, saves: bool) -> String {
        let what = match self.at.load(Ordering::Relaxed) {
            BEFORE => return "ending before the first step; once more ends at once".to_owned(),
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

/// Installs the handler of a run: the first interrupt ends the run after its step, the second ends the
/// process.
pub(crate) fn end_after_step(stop: Arc<Stop>, saves: bool, line: &Line) {
    let erase = line.erase();
    let caught = memc_support::on_interrupt(move || {
        if stop.asked.swap(true, Ordering::Relaxed) {
            exit(erase, "nothing was saved");
        }
        memc_support::write_stderr(text(erase, &stop.answer(saves)));
    });
    if let Err(error) = caught {
        note(&format!("signals cannot be caught ({error}); an interrupt will not save the state"));
    }
}

/// Installs the handler of a command that writes nothing before its end: the first interrupt ends the
/// process.
pub(crate) fn exit_at_once(line: &Line) {
    let erase = line.erase();
    if let Err(error) =
        memc_support::on_interrupt(move || exit(erase, "there is no result, and nothing was written"))
    {
        note(&format!("signals cannot be caught ({error}); an interrupt may leave a temporary file"));
    }
}

fn text(erase: &str, what: &str) -> String {
    format!("{erase}memrun: interrupted: {what}\n")
}

/// Ends the process. The message says that written files are whole, or else is `nothing`.
fn exit(erase: &str, nothing: &str) -> ! {
    memc_support::exit_now(INTERRUPTED, |has_files| {
        text(erase, if has_files { "files that were written are whole" } else { nothing })
    })
}
