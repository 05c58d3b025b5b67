//! Learning rates of the steps of each job.

use std::{collections::BTreeMap, path::Path};

use memc_ir::{DType, TensorType, counted};
use memc_plan::{Feed, Plan};

use super::FeedOptions;
use super::array::Array;
use super::checks::reserved;
use super::source::InputSource;
use crate::Error;
use crate::jobs::{self, Job};
use crate::schedule::Rate;

/// Learning rate of each step.
#[derive(Debug)]
pub(super) struct Rates {
    pub(super) rate: Rate,
    plan: f32,
    /// Rates of a file.
    pub(super) list: Vec<f32>,
}

impl Rates {
    pub(super) fn at(&self, step: u64) -> f32 {
        match &self.rate {
            Rate::Plan => self.plan,
            Rate::Constant(rate) => *rate,
            Rate::Schedule(schedule) => schedule.rate(step, self.plan),
            Rate::File(_) => {
                let at = usize::try_from(step.saturating_sub(1)).unwrap_or(usize::MAX);
                self.list.get(at).copied().unwrap_or(f32::NAN)
            }
        }
    }
}

/// The learning rates of each job.
pub(super) fn rates_of(plan: &Plan, jobs: &[Job], options: &FeedOptions) -> Result<Vec<Rates>, Error> {
    let mut defaults: BTreeMap<usize, f32> = BTreeMap::new();
    for input in &plan.inputs {
        if let Feed::LearningRate { default, .. } = input.feed {
            defaults.insert(jobs::index_of(jobs, &input.name), default);
        }
    }
    if options.lr != Rate::Plan && defaults.is_empty() {
        return Err(Error::Usage("--lr: the plan takes no learning rate".to_owned()));
    }
    for (name, _) in &options.job_lr {
        let at = jobs::find(jobs, name, &format!("--lr {name}/"))?;
        if !defaults.contains_key(&at) {
            return Err(Error::Usage(format!("--lr {name}/: the job takes no learning rate")));
        }
    }
    let mut out = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        let own = options.job_lr.iter().rev().find(|(name, _)| *name == job.name).map(|(_, rate)| rate);
        let rate = own.unwrap_or(&options.lr).clone();
        let list = match &rate {
            Rate::File(path) if defaults.contains_key(&at) => {
                rates_in(path, job.done(options.done.saturating_add(options.steps)))?
            }
            _ => Vec::new(),
        };
        out.push(Rates { rate, plan: defaults.get(&at).copied().unwrap_or(0.0), list });
    }
    Ok(out)
}

/// Refuses a file of rates that ends before step `last`.
pub(super) fn last_for(path: &Path, rates: u64, last: u64) -> Result<(), Error> {
    if rates >= last {
        return Ok(());
    }
    Err(Error::Data(format!(
        "{}: its {} do not last for step {last}; give one rate for each step",
        path.display(),
        counted(rates, "rate"),
    )))
}

/// The rates of a file, one for each step up to `last`.
fn rates_in(path: &Path, last: u64) -> Result<Vec<f32>, Error> {
    let ty = TensorType::scalar(DType::F32);
    let mut array = Array::open(&InputSource::Path(path.to_owned()), "learning rate", &ty)?;
    last_for(path, if array.is_whole { 0 } else { array.units }, last)?;
    let mut bytes = reserved(&TensorType::new(DType::F32, [array.units]), "learning rate")?;
    array.read(0, &mut bytes)?;
    let list: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    match list.iter().position(|rate| !rate.is_finite() || *rate < 0.0) {
        None => Ok(list),
        Some(at) => Err(Error::Data(format!(
            "{}: the rate of step {} is {}; rates are finite and not negative",
            path.display(),
            at + 1,
            list.get(at).copied().unwrap_or_default(),
        ))),
    }
}
