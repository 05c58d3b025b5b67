//! Progress of a run, and the results of its steps.

use std::sync::{Arc, atomic::Ordering};

use memc_runtime::{Stage, Watch};

use crate::interrupt::Stop;
use crate::terminal::{Line, note, number, print};

/// Steps whose results are stored without growing a table.
const ROOM: u64 = 1 << 16;

/// The steps so far.
pub(crate) struct Progress {
    line: Line,
    stop: Arc<Stop>,
    /// Steps that were asked for.
    pub(crate) asked: u64,
    /// Number of the first step.
    pub(crate) first: u64,
    pub(crate) losses: Vec<Option<f32>>,
    pub(crate) step_ns: Vec<u64>,
    /// Whether every step prints its row.
    rows: bool,
    /// Exit code of the first row that could not be printed.
    pub(crate) unprinted: u8,
    /// The first step whose loss is not a finite number.
    pub(crate) not_finite: Option<u64>,
}

impl Progress {
    pub(crate) fn new(steps: u64, line: Line, rows: bool, stop: Arc<Stop>) -> Progress {
        let room = usize::try_from(steps.min(ROOM)).unwrap_or(0);
        Progress {
            line,
            stop,
            asked: steps,
            first: 1,
            losses: Vec::with_capacity(room),
            step_ns: Vec::with_capacity(room),
            rows,
            unprinted: 0,
            not_finite: None,
        }
    }

    /// Of a run that did not begin.
    pub(crate) fn silent() -> Progress {
        Progress::new(0, Line::new(false), false, Arc::default())
    }

    /// Median time of a step in nanoseconds, without the first if there are others: it warms up. None of no
    /// steps.
    pub(crate) fn median_ns(&self) -> Option<u64> {
        let mut times =
            self.step_ns.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(&self.step_ns).to_vec();
        times.sort_unstable();
        let lower = *times.get(times.len().saturating_sub(1) / 2)?;
        Some(lower.midpoint(*times.get(times.len() / 2)?))
    }
}

impl Watch for Progress {
    fn step(&mut self, step: u64, loss: Option<f32>, ns: u64) {
        if self.step_ns.is_empty() {
            self.first = step;
        }
        self.losses.push(loss);
        self.step_ns.push(ns);
        if self.not_finite.is_none() && loss.is_some_and(|loss| !loss.is_finite()) {
            self.not_finite = Some(step);
            self.note(&format!("the loss is not a finite number at step {step}"));
        }
        if self.rows {
            let code = self.line.show(|| print(&row(step, loss, ns, step == self.first)));
            if self.unprinted == 0 {
                self.unprinted = code;
            }
        }
        self.line.step(loss);
    }

    fn stage(&mut self, stage: Stage) {
        self.stop.come_to(stage);
        match stage {
            Stage::Before(what) | Stage::After(what) => self.line.stage(what),
            Stage::Steps => self.line.steps(self.asked),
        }
    }

    fn note(&mut self, text: &str) {
        self.line.show(|| note(text));
    }

    fn should_stop(&self) -> bool {
        self.stop.asked.load(Ordering::Relaxed)
    }
}

/// The row of a step, under the header if it is the first.
fn row(step: u64, loss: Option<f32>, ns: u64, first: bool) -> String {
    let header = if first { "    step           loss          ms\n" } else { "" };
    let loss = loss.map_or_else(|| "-".to_owned(), number);
    format!("{header}{step:>8} {loss:>14} {:>11.3}\n", ns as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of a step leaves the first out, unless it is the only one, and of two in the middle is their
    /// mean.
    #[test]
    fn the_time_of_a_step_is_the_median_without_the_first() {
        let median = |times: &[u64]| {
            let mut progress = Progress::silent();
            times.iter().for_each(|&ns| progress.step(1, None, ns));
            progress.median_ns()
        };
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[9]), Some(9));
        assert_eq!(median(&[9, 1]), Some(1));
        assert_eq!(median(&[9, 4, 2]), Some(3));
        assert_eq!(median(&[9, 4, 2, 30]), Some(4));
    }
}
