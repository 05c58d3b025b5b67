//! Jobs of a plan, whose steps a round runs.
//!
//! Contract: a plan of one model has one job without a name, whose rounds are its steps. In a plan of several
//! every tensor, input and output has the name of its job and a slash in front. Rounds count from 1 over
//! resumed runs; a job that was resumed from a run of its own had done steps before the first round.

use memc_ir::Turn;
use memc_plan::Plan;

use crate::{Error, state::list};

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// Empty for the only job of a plan of one model.
    pub(crate) name: String,
    /// Steps in a round.
    pub(crate) steps: u32,
    /// Steps that it had done before the first round.
    pub(crate) before: u64,
}

impl Job {
    /// Steps done after a number of rounds.
    pub(crate) fn done(&self, rounds: u64) -> u64 {
        self.before.saturating_add(rounds.saturating_mul(u64::from(self.steps)))
    }

    /// Number of a step of a round, both counted from 1; the step's turn counts from 0.
    pub(crate) fn step(&self, round: u64, index: u32) -> u64 {
        self.before.saturating_add(Turn { index, count: self.steps }.step(round))
    }

    /// Rounds until the job has done a number of steps.
    pub(crate) fn rounds(&self, steps: u64) -> u64 {
        steps.saturating_sub(self.before).div_ceil(u64::from(self.steps.max(1)))
    }

    /// [`own_name`] of the job.
    pub(crate) fn own_name<'n>(&self, name: &'n str) -> Option<&'n str> {
        own_name(&self.name, name)
    }
}

/// A job's own name of a tensor; `None` where the tensor is another job's.
pub(crate) fn own_name<'n>(job: &str, name: &'n str) -> Option<&'n str> {
    if job.is_empty() { Some(name) } else { name.strip_prefix(job)?.strip_prefix('/') }
}

/// Index of the job with a name that an option gives, such as `--lr NAME/`.
pub(crate) fn find(jobs: &[Job], name: &str, option: &str) -> Result<usize, Error> {
    let at = jobs.iter().position(|job| job.name == name && !name.is_empty());
    at.ok_or_else(|| {
        let known: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        let known = if known == [""] { "none".to_owned() } else { list(&known) };
        Error::Usage(format!("{option}: the plan has no such job; it has {known}"))
    })
}

/// The jobs of a plan, in its order. None of them has done steps before the first round.
pub(crate) fn of(plan: &Plan) -> Vec<Job> {
    let job = |(name, steps): (&str, u32)| Job { name: name.to_owned(), steps: steps.max(1), before: 0 };
    let jobs: Vec<Job> = memc_plan::jobs(&plan.meta.options).map(job).collect();
    if jobs.is_empty() { vec![Job { name: String::new(), steps: 1, before: 0 }] } else { jobs }
}

/// The whole rounds that steps done by all jobs amount to. Takes their steps off, and leaves those that jobs
/// had done before the first of these rounds.
pub(crate) fn begun(jobs: &[Job], done: &mut [(String, u64)]) -> u64 {
    let steps = |job: &Job| done.iter().find(|(name, _)| *name == job.name).map_or(0, |(_, steps)| *steps);
    let rounds = jobs.iter().map(|job| steps(job) / u64::from(job.steps.max(1))).min().unwrap_or(0);
    for (name, steps) in done {
        let of = jobs.iter().find(|job| job.name == *name);
        let in_rounds = of.map_or(0, |job| rounds.saturating_mul(u64::from(job.steps)));
        *steps = steps.saturating_sub(in_rounds);
    }
    rounds
}

/// Index of the job that a tensor is of; of a damaged plan it may be the wrong one.
pub(crate) fn index_of(jobs: &[Job], name: &str) -> usize {
    jobs.iter().position(|job| job.own_name(name).is_some()).unwrap_or(0)
}
