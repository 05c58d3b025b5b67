//! Following a run.

use std::path::Path;

use crate::{Observed, Stage};

/// Follows a run.
pub trait Watch {
    /// The run is going to have so many steps.
    fn steps(&mut self, _steps: u64) {}
    /// A step is done.
    fn step(&mut self, step: &Step);
    /// Whether to measure a step that is due.
    fn may_measure(&self) -> bool {
        true
    }
    /// A step was measured.
    fn measured(&mut self, _observed: &Observed) {}
    /// The run comes to a stage.
    fn stage(&mut self, _stage: Stage) {}
    /// The states after step `step` were evaluated: mean over the evaluation's steps of each output that is
    /// one float.
    fn evaluated(&mut self, _step: u64, _means: &[(String, f32)]) {}
    /// The states after step `step` are in a file.
    fn saved(&mut self, _path: &Path, _step: u64) {}
    /// Something the user should know.
    fn note(&mut self, text: &str);
    /// Whether to end the run before the next step.
    fn should_stop(&self) -> bool;
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Watch for Silent {
    fn step(&mut self, _step: &Step) {}
    fn note(&mut self, _text: &str) {}
    fn should_stop(&self) -> bool {
        false
    }
}

/// A step that is done; of a plan of several jobs, a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Number, counted from 1 over resumed runs.
    pub number: u64,
    /// Nanoseconds until the next step could begin; of the last step, until its last update was done. The
    /// times of a run add up to that of all its steps.
    pub ns: u64,
    /// Each job; of a plan of one model, that.
    pub jobs: Vec<JobStep>,
}

/// A job's part of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct JobStep {
    /// Name of the job; empty where the plan is of one model.
    pub name: String,
    /// Number of its last step, counted from 1 over resumed runs.
    pub step: u64,
    /// Mean of all its loss outputs.
    pub loss: Option<f32>,
    /// Learning rate of its last step, where it takes one.
    pub rate: Option<f32>,
    /// Pass over its data, counted from 1.
    pub epoch: Option<u64>,
}

impl Step {
    /// Loss of the only job; `None` where there are several, or it has none.
    pub fn loss(&self) -> Option<f32> {
        if let [only] = &self.jobs[..] { only.loss } else { None }
    }
}
