//! States between two plans.
//!
//! Contract: a run that ends at a step leaves the states of every job as they are after its last whole step,
//! under the names that the plan has for them. A run of another plan that has a state of the same name and
//! type goes on from it, bit for bit; states that no run has left begin as the plan has them.

use std::{collections::BTreeMap, path::Path};

use memc_ir::TensorType;
use memc_plan::Plan;

use crate::Error;
use crate::jobs::{Job, own_name};
use crate::state::{StateFile, variables};

/// States of jobs that no device holds, and the steps that each job has done.
#[derive(Debug, Default)]
pub struct Carried {
    /// By the plans' name.
    states: BTreeMap<String, (TensorType, Vec<u8>)>,
    /// By job; the only job of a plan of one model has no name.
    steps: BTreeMap<String, u64>,
}

impl Carried {
    /// Steps that a job has done.
    pub fn steps(&self, job: &str) -> u64 {
        self.steps.get(job).copied().unwrap_or(0)
    }

    /// Reads the states of one of several jobs from a file that a run has saved, with all that `plan` has of
    /// it.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Data`] where the file is not of that job.
    pub fn read(&mut self, plan: &Plan, job: &str, path: &Path) -> Result<(), Error> {
        let file = StateFile::open(path)?.of_job(job);
        file.check(plan, crate::state::Fit::Exact)?;
        for state in variables(plan).filter(|state| own_name(job, &state.name).is_some()) {
            let length = usize::try_from(state.ty.bytes())
                .map_err(|_| Error::Memory(format!("state `{}`: no memory for {}", state.name, state.ty)))?;
            let mut bytes = vec![0; length];
            file.read(&state.name, &mut bytes)?;
            self.states.insert(state.name.clone(), (state.ty.clone(), bytes));
        }
        self.steps.insert(job.to_owned(), file.step());
        Ok(())
    }

    /// Forgets a job.
    pub fn forget(&mut self, job: &str) {
        self.states.retain(|name, _| own_name(job, name).is_none());
        self.steps.remove(job);
    }

    /// Refuses states whose types are others in a plan.
    pub(crate) fn check(&self, plan: &Plan) -> Result<(), Error> {
        for state in variables(plan) {
            if let Some((ty, _)) = self.states.get(&state.name).filter(|(ty, _)| *ty != state.ty) {
                return Err(Error::Data(format!(
                    "state `{}` is {} in the plan, and {ty} in the run that it goes on from",
                    state.name, state.ty
                )));
            }
        }
        Ok(())
    }

    /// Copies the state of a plan; `false` where no run has left it.
    pub(crate) fn write(&self, plan: &Plan, state: usize, out: &mut [u8]) -> Result<bool, Error> {
        let name = plan.states.get(state).filter(|state| state.is_variable()).map(|state| &state.name);
        let Some((_, bytes)) = name.and_then(|name| self.states.get(name)) else { return Ok(false) };
        if bytes.len() != out.len() {
            return Err(Error::Internal(format!("state {state} has {} bytes", bytes.len())));
        }
        out.copy_from_slice(bytes);
        Ok(true)
    }

    /// Takes the state of a plan.
    pub(crate) fn take(&mut self, plan: &Plan, state: usize, bytes: &[u8]) {
        let Some(state) = plan.states.get(state).filter(|state| state.is_variable()) else { return };
        self.states.insert(state.name.clone(), (state.ty.clone(), bytes.to_vec()));
    }

    /// Takes the states and steps that a run has left.
    pub(crate) fn replace(&mut self, left: Carried) {
        self.states.extend(left.states);
        self.steps.extend(left.steps);
    }

    /// Takes note of the steps that jobs have done after a number of rounds.
    pub(crate) fn stepped(&mut self, jobs: &[Job], rounds: u64) {
        self.steps.extend(jobs.iter().map(|job| (job.name.clone(), job.done(rounds))));
    }

    /// Steps of the jobs of a plan before its first round.
    pub(crate) fn before(&self) -> Vec<(String, u64)> {
        self.steps.iter().map(|(job, steps)| (job.clone(), *steps)).collect()
    }
}
