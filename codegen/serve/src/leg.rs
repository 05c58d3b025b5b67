//! A leg: the rounds of one plan, in a thread of its own.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use memc::Error;
use memc_plan::PlanFile;
use memc_runtime::{Carried, MeasureOptions, Observed, RunOptions, Step, Watch, cpu, run_carrying};

use crate::Options;
use crate::controller::Message;
use crate::request::Submission;

/// The last known results of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) step: u64,
    pub(crate) loss: Option<f32>,
    /// Time of the last round in ns.
    pub(crate) round_ns: u64,
}

/// Results of jobs by name, shared with the thread that runs them.
pub(crate) type Results = Arc<Mutex<BTreeMap<String, Progress>>>;

/// A leg that runs.
pub(crate) struct Leg {
    pub(crate) file: Arc<PlanFile>,
    stop: Arc<AtomicBool>,
    /// Whether rounds that are due are measured.
    measures: Arc<AtomicBool>,
}

/// A leg that has ended.
pub(crate) struct Ended {
    pub(crate) carried: Carried,
    /// Reason why it failed.
    pub(crate) result: Result<(), String>,
}

impl Leg {
    /// Runs rounds of a plan.
    pub(crate) fn start(
        number: u64,
        file: Arc<PlanFile>,
        run: RunOptions,
        mut carried: Carried,
        results: Results,
        to: Sender<Message>,
    ) -> Result<Leg, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let measures = Arc::new(AtomicBool::new(true));
        let mut watch =
            Follow { number, stop: stop.clone(), measures: measures.clone(), results, to: to.clone() };
        let runs = file.clone();
        let work = move || {
            let run = || run_carrying(&runs, &run, &mut carried, &mut watch).map(drop);
            let result = match catch_unwind(AssertUnwindSafe(run)) {
                Ok(result) => result.map_err(|error| error.to_string()),
                Err(_) => {
                    // The states may be of two steps.
                    carried = Carried::default();
                    Err("memrun failed unexpectedly".to_owned())
                }
            };
            // Nobody waits for it once the controller has ended.
            let _ = to.send(Message::Ended(Box::new(Ended { carried, result })));
        };
        let spawned = std::thread::Builder::new().name("rounds".into()).spawn(work);
        spawned
            .map(|_| Leg { file, stop, measures })
            .map_err(|e| Error::Io(format!("no thread to run in: {e}")))
    }

    /// Asks it to end after the round that runs.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Says whether rounds that are due are measured.
    pub(crate) fn measures(&self, is_quiet: bool) {
        self.measures.store(is_quiet, Ordering::Relaxed);
    }
}

struct Follow {
    number: u64,
    stop: Arc<AtomicBool>,
    measures: Arc<AtomicBool>,
    results: Results,
    to: Sender<Message>,
}

impl Watch for Follow {
    fn step(&mut self, step: &Step) {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        for job in &step.jobs {
            let progress = Progress { step: job.step, loss: job.loss, round_ns: step.ns };
            results.insert(job.name.clone(), progress);
        }
    }

    fn may_measure(&self) -> bool {
        self.measures.load(Ordering::Relaxed)
    }

    fn measured(&mut self, observed: &Observed) {
        // Nobody waits for it once the controller has ended.
        let _ = self.to.send(Message::Measured(self.number, Box::new(observed.clone())));
    }

    fn note(&mut self, _text: &str) {}

    fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The run of some jobs until the first of them is done.
pub(crate) fn run_options(
    jobs: &[&Submission],
    carried: &Carried,
    options: &Options,
) -> Result<RunOptions, Error> {
    let before = |job: &&Submission| carried.steps(&job.job) / u64::from(job.steps_in_round.max(1));
    let rounds = jobs.iter().map(before).max().unwrap_or(0);
    let slow = options.cpu.slow;
    let slow = slow.map(|slow| cpu::Slow { after: slow.after.saturating_sub(rounds), ..slow });
    let mut run = RunOptions {
        save: Some(checkpoint(&options.folder, "{job}")),
        save_every: Some(options.save_every),
        repeats: true,
        synthetic: jobs.iter().any(|job| job.synthetic),
        device: options.device,
        cpu: cpu::Options { slow, ..options.cpu },
        measure: options.adapt.map(|every| MeasureOptions { every, profile: None }),
        ..RunOptions::default()
    };
    let mut rounds = u64::MAX;
    for job in jobs {
        let left = job.steps.saturating_sub(carried.steps(&job.job));
        rounds = rounds.min(left / u64::from(job.steps_in_round.max(1)));
        for input in &job.inputs {
            run.inputs.push(data(job, input)?);
        }
        if let Some(rate) = &job.lr {
            let rate =
                rate.parse().map_err(|e| Error::Usage(format!("job {}: --lr {rate}: {e}", job.job)))?;
            run.job_lr.push((job.job.clone(), rate));
        }
    }
    run.steps = Some(rounds);
    Ok(run)
}

/// The data of an input, `NAME=@FILE`.
fn data(job: &Submission, text: &str) -> Result<(String, memc_runtime::InputSource), Error> {
    let usage = |why: &str| Error::Usage(format!("job {}: --input {text}: {why}", job.job));
    let (name, file) = text.split_once("=@").ok_or_else(|| usage("write NAME=@FILE"))?;
    let file = job.folder.join(file);
    let source: memc_runtime::InputSource = format!("@{}", file.display()).parse().map_err(usage)?;
    let path = source.path().ok_or_else(|| usage("a job reads files"))?;
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => return Err(usage("it is no file")),
        Ok(_) => {}
        Err(error) => return Err(Error::Io(format!("job {}: {}: {error}", job.job, path.display()))),
    }
    Ok((format!("{}/{name}", job.job), source))
}

/// The file of a job's last checkpoint.
pub(crate) fn checkpoint(folder: &Path, job: &str) -> std::path::PathBuf {
    folder.join(format!("{job}.safetensors"))
}
