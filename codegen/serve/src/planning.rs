//! Plans beside the run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use memc::device::DeviceProfile;
use memc::{Error, Event, Job, Model, Size, Source, Watch, Workload, step_ns};
use memc_plan::{Feed, Plan, PlanFile};
use memc_runtime::{Carried, FeedOptions, Feeder, Program};
use memc_support::Replace;

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
    /// Revision of the measured times that it is for.
    pub(crate) revision: u64,
}

/// A plan of some jobs.
pub(crate) struct Planned {
    pub(crate) set: Set,
    /// Modelled time of a round in ns.
    pub(crate) round_ns: u64,
    /// Bytes of the device arena.
    pub(crate) arena_bytes: u64,
    /// Whether the plan that runs stays, since a new one would hardly be faster.
    pub(crate) is_current: bool,
}

/// Part of a round, one in so many, by which a new plan of the same jobs is faster at least.
const WORTH: u64 = 50;

/// A task for planning.
pub(crate) struct Work {
    pub(crate) set: Set,
    pub(crate) jobs: Vec<Submission>,
    /// Times of ops and copies.
    pub(crate) profile: DeviceProfile,
    /// The plan of the same jobs that runs.
    pub(crate) current: Option<Arc<PlanFile>>,
}

/// Passes nothing on.
struct Quiet;

impl Watch for Quiet {
    fn event(&self, _event: Event<'_>) {}
}

/// Plans jobs in a thread of its own, which sends the plan, or why there is none.
pub(crate) fn plan(
    work: Work,
    options: &Options,
    read: Arc<ReadOptions>,
    to: Sender<Message>,
) -> Result<(), Error> {
    let options = options.clone();
    let work = move || {
        let make = || make(&work, &options, &*read);
        let result = catch_unwind(AssertUnwindSafe(make))
            .unwrap_or_else(|_| Err(Error::Internal("planning failed unexpectedly".into())));
        // Nobody waits for it once the controller has ended.
        let _ = to.send(Message::Planned(Box::new(result)));
    };
    let spawned = std::thread::Builder::new().name("planning".into()).spawn(work);
    spawned.map(drop).map_err(|e| Error::Io(format!("no thread to plan in: {e}")))
}

fn make(work: &Work, options: &Options, read: &ReadOptions) -> Result<Planned, Error> {
    let Work { set, jobs, profile, current } = work;
    let made: Result<Vec<Job>, Error> = jobs.iter().map(|job| of(job, read)).collect();
    let mut target = options.target.clone();
    if options.adapt.is_some() {
        target.device = keep_profile(&options.folder, profile)?;
    }
    let model = Model::read(&Workload::Jobs(made?), &target, &Quiet)?;
    let compile = memc::Options {
        budget: Some(Size::Bytes(set.budget)),
        search: options.search.clone(),
        watch: &Quiet,
        ..memc::Options::default()
    };
    let compiled = memc::compile(&model, &compile)?;
    if let Some(current) = current {
        let round_ns = step_ns(current.plan(), profile)?;
        if compiled.plan.meta.claims.step_ns > round_ns - round_ns / WORTH {
            let arena_bytes = current.plan().meta.dev_bytes;
            return Ok(Planned { set: set.clone(), round_ns, arena_bytes, is_current: true });
        }
    }
    jobs.iter().try_for_each(|job| has_data(&compiled.plan, job))?;
    can_read(&compiled.plan, jobs, options)?;
    // The plan that runs is replaced by one that is right in all respects.
    compiled.write(&plan_path(&options.folder), &|| false)?;
    let meta = &compiled.plan.meta;
    let (round_ns, arena_bytes) = (meta.claims.step_ns, meta.dev_bytes);
    Ok(Planned { set: set.clone(), round_ns, arena_bytes, is_current: false })
}

/// Writes the profile with measured times; its path as a device.
fn keep_profile(folder: &Path, profile: &DeviceProfile) -> Result<String, Error> {
    let path = profile_path(folder);
    let failed = |e: std::io::Error| Error::Io(format!("{}: {e}", path.display()));
    Replace::whole(&path, profile.print().as_bytes()).map_err(failed)?;
    Ok(path.display().to_string())
}

/// The file of the profile with measured times.
pub(crate) fn profile_path(folder: &Path) -> PathBuf {
    folder.join("measured.json")
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
    Feeder::new(plan, std::slice::from_ref(&program), &feed)
        .map(drop)
        .map_err(|error| Error::Usage(error.to_string()))
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
