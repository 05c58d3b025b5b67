//! The terminal: one changing line on standard error, notes and errors beside it, results on standard output.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use crate::Error;
use indicatif::{ProgressBar, ProgressStyle};
use memc_support::printable;

/// Interval at which the line is drawn again while nothing changes.
const TICK: Duration = Duration::from_millis(120);

/// The line on standard error, where that is a terminal.
#[derive(Clone)]
pub(crate) struct Line(Option<ProgressBar>);

impl Line {
    /// Shown on a terminal, if it is wanted.
    pub(crate) fn new(wanted: bool) -> Line {
        let bar = (wanted && io::stderr().is_terminal()).then(ProgressBar::new_spinner);
        bar.iter().for_each(|bar| bar.enable_steady_tick(TICK));
        Line(bar)
    }

    /// Current activity.
    pub(crate) fn stage(&self, what: &str) {
        self.draw("{spinner} {msg} [{elapsed}]", what);
    }

    /// From now on, or again, a bar of so many steps.
    pub(crate) fn steps(&self, steps: u64) {
        let Some(bar) = &self.0 else { return };
        bar.set_length(steps);
        self.draw("{bar:30} {pos}/{len} steps  {msg}  [{elapsed}] {eta} left", "");
        if bar.position() == 0 {
            bar.reset_elapsed();
            bar.reset_eta();
        }
    }

    fn draw(&self, style: &str, message: &str) {
        let Some(bar) = &self.0 else { return };
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(message.to_owned());
    }

    /// A step more is done, with this loss.
    pub(crate) fn step(&self, loss: Option<f32>) {
        let Some(bar) = &self.0 else { return };
        if let Some(loss) = loss {
            bar.set_message(format!("loss {}", number(loss)));
        }
        bar.inc(1);
    }

    /// Prints beside the line.
    pub(crate) fn show<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Control codes that a terminal needs before text in the place of the line.
    pub(crate) fn erase(&self) -> &'static str {
        if self.0.is_some() { "\r\x1b[2K" } else { "" }
    }

    /// Takes the line away.
    pub(crate) fn close(&self) {
        self.0.iter().for_each(ProgressBar::finish_and_clear);
    }
}

/// A loss, in few digits where it is very small or large.
pub(crate) fn number(loss: f32) -> String {
    if loss != 0.0 && !(1e-4..1e7).contains(&loss.abs()) { format!("{loss:e}") } else { loss.to_string() }
}

/// Prints something the user should know.
pub(crate) fn note(text: &str) {
    // Without a standard error there is nobody to tell.
    let _ = writeln!(io::stderr(), "memrun: note: {}", printable(text));
}

/// Prints an error.
pub(crate) fn error(error: &Error) {
    let _ = writeln!(io::stderr(), "memrun: error: {}", printable(&error.to_string()));
}

/// Writes to standard output and returns the exit code: a reader that has left is as good as one that has
/// read.
pub(crate) fn print(text: &str) -> u8 {
    let mut out = io::stdout().lock();
    match out.write_all(printable(text).as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            let failure = Error::io("standard output", e);
            error(&failure);
            failure.exit_code()
        }
        _ => 0,
    }
}
