//! Plans beside the run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use memc::{Error, Event, Job, Model, Size, Source, Watch, Workload};
use memc_plan::{Feed, Plan};
use memc_runtime::{Carried, FeedOptions, Feeder, Program};

use crate::controller::Message;
use crate::leg::run_options;
use crate::request::Submission;
use crate::{Options, ReadOptions};

/// The jobs of a plan with their steps in a round, and its budget.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Set {
    pub(crate) jobs: Vec<(String, u32)>,
    /// Bytes.
    pub(crate) budget: u64,
}

/// A plan of some jobs.
pub(crate) struct Planned {
    pub(crate) set: Set,
    /// Modelled time of a round in ns.
    pub(crate) round_ns: u64,
    /// Bytes of the device arena.
    pub(crate) arena_bytes: u64,
}

/// Passes nothing on.
struct Quiet;

impl Watch for Quiet {
    fn event(&self, _event: Event<'_>) {}
}

/// Plans jobs in a thread of its own, which sends the plan, or why there is none.
pub(crate) fn plan(
    set: Set,
    jobs: Vec<Submission>,
    options: &Options,
    read: Arc<ReadOptions>,
    to: Sender<Message>,
) -> Result<(), Error> {
    let options = options.clone();
    let work = move || {
        let work = || make(&set, &jobs, &options, &*read);
        let result = catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|_| Err(Error::Internal("planning failed unexpectedly".into())));
        // Nobody waits for it once the controller has ended.
        let _ = to.send(Message::Planned(Box::new(result)));
    };
    let spawned = std::thread::Builder::new().name("planning".into()).spawn(work);
    spawned.map(drop).map_err(|e| Error::Io(format!("no thread to plan in: {e}")))
}

fn make(set: &Set, jobs: &[Submission], options: &Options, read: &ReadOptions) -> Result<Planned, Error> {
    let made: Result<Vec<Job>, Error> = jobs.iter().map(|job| of(job, read)).collect();
    let model = Model::read(&Workload::Jobs(made?), &options.target, &Quiet)?;
    let compile = memc::Options {
        budget: Some(Size::Bytes(set.budget)),
        search: options.search.clone(),
        watch: &Quiet,
        ..memc::Options::default()
    };
    let compiled = memc::compile(&model, &compile)?;
    jobs.iter().try_for_each(|job| has_data(&compiled.plan, job))?;
    can_read(&compiled.plan, jobs, options)?;
    // The plan that runs is replaced by one that is right in all respects.
    compiled.write(&plan_path(&options.folder), &|| false)?;
    let meta = &compiled.plan.meta;
    let (round_ns, arena_bytes) = (meta.claims.step_ns, meta.dev_bytes);
    Ok(Planned { set: set.clone(), round_ns, arena_bytes })
}

/// The file of the newest plan.
pub(crate) fn plan_path(folder: &Path) -> PathBuf {
    folder.join("jobs.plan")
}

/// A job as memc takes it.
fn of(job: &Submission, read: &ReadOptions) -> Result<Job, Error> {
    let mut import = read(&job.options)?;
    for path in [&mut import.optimizer_model, &mut import.checkpoint].into_iter().flatten() {
        *path = job.folder.join(&*path);
    }
    let source = Source { path: job.model.clone(), import };
    Ok(Job { name: job.job.clone(), steps: job.steps_in_round, swap_limit: job.swap_limit, source })
}

/// Refuses data that the plan cannot be fed.
fn can_read(plan: &Plan, jobs: &[Submission], options: &Options) -> Result<(), Error> {
    let all: Vec<&Submission> = jobs.iter().collect();
    let run = run_options(&all, &Carried::default(), options)?;
    let feed = FeedOptions {
        inputs: run.inputs,
        job_lr: run.job_lr,
        synthetic: run.synthetic,
        again: true,
        steps: 1,
        ..FeedOptions::default()
    };
    let program = Program::new(plan).map_err(|error| Error::Internal(error.to_string()))?;
    Feeder::new(plan, &program, &feed).map(drop).map_err(|error| Error::Usage(error.to_string()))
}

/// Refuses a job without data for an input of its own.
fn has_data(plan: &Plan, job: &Submission) -> Result<(), Error> {
    let prefix = format!("{}/", job.job);
    let given: Vec<&str> = job.inputs.iter().filter_map(|input| Some(input.split_once('=')?.0)).collect();
    for input in &plan.inputs {
        let Feed::Data { source, .. } = &input.feed else { continue };
        let Some(own) = source.strip_prefix(&prefix) else { continue };
        if !job.synthetic && !given.contains(&own) {
            return Err(Error::Usage(format!(
                "job {}: there is no data for `{own}`; give it, as --input {own}=@{own}.npy, or train on \
                 made-up data with --synthetic",
                job.job
            )));
        }
    }
    Ok(())
}
