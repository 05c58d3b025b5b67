//! The controller's state: jobs, the plan of those that train, and one change at a time.

mod adapt;
mod status;

use std::collections::VecDeque;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use memc::Error;
use memc::device::DeviceProfile;
use memc_runtime::{Carried, Observed, Rate, StateFile};
use memc_support::Replace;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use adapt::Seen;
use status::word;

use crate::leg::{Ended, Leg, Results, checkpoint, run_options};
use crate::planning::{Planned, Set, Work, plan, plan_path};
use crate::request::{Request, Submission};
use crate::socket::refusal;
use crate::{Options, ReadOptions};

/// Time between looks at whether to end.
const LOOK: Duration = Duration::from_millis(100);

/// Something that a thread tells the controller.
pub(crate) enum Message {
    /// A client's request, and where the answer goes.
    Request(Request, Sender<Value>),
    /// A plan, or why there is none.
    Planned(Box<Result<Planned, Error>>),
    /// A round was measured; with the number of its leg.
    Measured(u64, Box<Observed>),
    /// The rounds of a plan have ended.
    Ended(Box<Ended>),
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Status {
    /// Trains, or will as soon as there is a plan.
    Training,
    /// Off the device until it is resumed.
    Paused,
    /// To be ended when the round that runs is.
    Stopping,
    /// All steps are done, or it was stopped.
    Done,
    /// It could not go on.
    Failed,
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    submission: Submission,
    status: Status,
    /// Reason why it failed.
    why: Option<String>,
    /// Steps done when it left the device.
    steps_done: u64,
}

/// The jobs as they are kept on disk.
#[derive(Serialize, Deserialize)]
struct Kept {
    jobs: Vec<Entry>,
    /// The budget, where a request has changed it.
    budget: Option<KeptBudget>,
}

/// A budget that a request has set, in bytes.
#[derive(Serialize, Deserialize)]
struct KeptBudget {
    /// The budget that the controller was started with: started with another one, it has that.
    started_with: u64,
    bytes: u64,
}

/// A change that is being planned, and what there was before.
struct Change {
    jobs: Vec<Entry>,
    budget: u64,
    /// A job whose former states are forgotten once the change is made.
    anew: Option<String>,
    reply: Sender<Value>,
}

pub(crate) struct Controller {
    options: Options,
    /// The budget that it was started with, in bytes.
    started_with: u64,
    read: Arc<ReadOptions>,
    to: Sender<Message>,
    jobs: Vec<Entry>,
    /// States of jobs; none while a leg has them.
    carried: Option<Carried>,
    results: Results,
    leg: Option<(Set, Leg)>,
    /// Legs so far.
    legs: u64,
    /// Profile of the plans: the target's, with the times that were measured last.
    profile: DeviceProfile,
    /// Number of its changes.
    revision: u64,
    /// Departure of measured times from which on jobs are planned again.
    departs: f64,
    /// Measurements of the leg that runs.
    seen: Seen,
    planned: Option<Planned>,
    planning: Option<Set>,
    changes: VecDeque<(Request, Sender<Value>)>,
    change: Option<Change>,
    /// Jobs that are forgotten when the leg that runs gives their states back.
    forgotten: Vec<String>,
    /// Held for as long as the controller lives.
    _lock: File,
}

impl Controller {
    /// Reads the jobs of a folder, which is made where there is none.
    pub(crate) fn open(
        mut options: Options,
        read: Arc<ReadOptions>,
        to: Sender<Message>,
    ) -> Result<Controller, Error> {
        let shown = options.folder.display().to_string();
        let failed = |e: std::io::Error| Error::Io(format!("cannot use the folder {shown}: {e}"));
        std::fs::create_dir_all(&options.folder).map_err(failed)?;
        let lock = File::create(options.folder.join("lock")).map_err(failed)?;
        lock.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => {
                Error::Usage(format!("another controller uses {shown}; give another --folder, or stop it"))
            }
            TryLockError::Error(e) => failed(e),
        })?;
        let started_with = options.budget;
        let mut jobs = match std::fs::read_to_string(kept_path(&options.folder)) {
            Ok(text) => {
                let kept: Kept = serde_json::from_str(&text)
                    .map_err(|e| Error::Usage(format!("{shown}: its jobs.json is damaged: {e}")))?;
                let set = kept.budget.filter(|budget| budget.started_with == started_with);
                options.budget = set.map_or(started_with, |budget| budget.bytes);
                kept.jobs
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Error::Io(format!("{shown}/jobs.json: {e}"))),
        };
        for entry in &mut jobs {
            // A file that cannot be read is told when the job is to go on from it.
            if let Ok(file) = StateFile::open(&checkpoint(&options.folder, &entry.submission.job)) {
                entry.steps_done = file.step();
            }
        }
        let profile = adapt::profile(&options)?;
        let (carried, results) = (Some(Carried::default()), Results::default());
        let (leg, legs, revision, seen): (_, _, _, Seen) = Default::default();
        let (planned, planning, changes, change, forgotten) = Default::default();
        Ok(Controller {
            options,
            started_with,
            read,
            to,
            jobs,
            carried,
            results,
            leg,
            legs,
            profile,
            revision,
            departs: adapt::DEPARTS,
            seen,
            planned,
            planning,
            changes,
            change,
            forgotten,
            _lock: lock,
        })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.options.socket
    }

    /// Answers messages until `stop` says so, and then ends the round that runs.
    pub(crate) fn run(&mut self, messages: &Receiver<Message>, stop: &dyn Fn() -> bool, tell: &dyn Fn(&str)) {
        self.advance(tell);
        while !stop() {
            match messages.recv_timeout(LOOK) {
                Ok(message) => self.take(message, tell),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        // A change that is still planned is as if it had not come.
        if self.change.is_some() {
            self.undo("the controller is ending", tell);
        }
        if let Some((_, leg)) = &self.leg {
            leg.end();
        }
        while self.leg.is_some() {
            match messages.recv() {
                Ok(Message::Ended(ended)) => self.ended(*ended, tell),
                Ok(Message::Request(_, reply)) => drop(reply.send(refusal("the controller is ending"))),
                Ok(Message::Planned(_) | Message::Measured(..)) => {}
                Err(_) => return,
            }
        }
        self.keep(tell);
    }

    fn take(&mut self, message: Message, tell: &dyn Fn(&str)) {
        match message {
            Message::Request(Request::Status, reply) => drop(reply.send(self.status())),
            Message::Request(request, reply) => self.changes.push_back((request, reply)),
            Message::Planned(result) => self.planned(*result, tell),
            Message::Measured(leg, observed) => self.measured(leg, &observed, tell),
            Message::Ended(ended) => self.ended(*ended, tell),
        }
        self.advance(tell);
    }

    /// The jobs that are to train.
    fn wanted(&self) -> Set {
        let training = self.jobs.iter().filter(|job| job.status == Status::Training);
        let of = |job: &Entry| (job.submission.job.clone(), job.submission.steps_in_round);
        Set { jobs: training.map(of).collect(), budget: self.options.budget, revision: self.revision }
    }

    /// Goes on with what can be done without waiting: changes, a plan, a leg.
    fn advance(&mut self, tell: &dyn Fn(&str)) {
        while self.planning.is_none() {
            if self.change.is_none()
                && let Some((request, reply)) = self.changes.pop_front()
            {
                let (jobs, budget) = (self.jobs.clone(), self.options.budget);
                let anew = match &request {
                    Request::Submit(submission) => Some(submission.job.clone()),
                    _ => None,
                };
                if let Err(why) = self.apply(request) {
                    drop(reply.send(refusal(&why)));
                    continue;
                }
                self.change = Some(Change { jobs, budget, anew, reply });
            }
            self.end_stopped(tell);
            let wanted = self.wanted();
            if !wanted.jobs.is_empty() && self.planned.as_ref().is_none_or(|planned| planned.set != wanted) {
                self.plan(wanted, tell);
                break;
            }
            // A job that is to stop has its states on disk before the answer says so.
            if self.jobs.iter().any(|entry| entry.status == Status::Stopping) {
                break;
            }
            let Some(change) = self.change.take() else { break };
            self.departs = adapt::DEPARTS;
            change.anew.iter().for_each(|job| self.forget(job));
            self.keep(tell);
            drop(change.reply.send(self.status()));
        }
        let wanted = self.wanted();
        let is_left = |(job, _): &(String, u32)| wanted.jobs.iter().all(|(name, _)| name != job);
        match &self.leg {
            // A job that is to leave trains no further, and the others wait for a plan without it.
            Some((set, leg))
                if *set != wanted && (self.planning.is_none() || set.jobs.iter().any(is_left)) =>
            {
                leg.end();
            }
            Some(_) => {}
            None if self.planning.is_none() && !wanted.jobs.is_empty() => self.start(wanted, tell),
            None => {}
        }
    }

    /// Changes the jobs as a request says; nothing where it is refused.
    fn apply(&mut self, request: Request) -> Result<(), String> {
        let mut with = |job: &str, from: &[Status], to: Status| {
            let entry = self.jobs.iter_mut().find(|entry| entry.submission.job == job);
            let entry = entry.ok_or_else(|| format!("there is no job {job}"))?;
            if !from.contains(&entry.status) {
                return Err(format!("job {job} is {}", word(entry.status)));
            }
            (entry.status, entry.why) = (to, None);
            Ok(())
        };
        match request {
            Request::Submit(submission) => self.submit(*submission),
            Request::Stop { job } => with(&job, &[Status::Training, Status::Paused], Status::Stopping),
            Request::Pause { job } => with(&job, &[Status::Training], Status::Paused),
            Request::Resume { job } => with(&job, &[Status::Paused, Status::Failed], Status::Training),
            Request::SetBudget { bytes } => {
                self.options.budget = bytes;
                Ok(())
            }
            Request::Status => Ok(()),
        }
    }

    fn submit(&mut self, submission: Submission) -> Result<(), String> {
        let job = &submission.job;
        if !memc::is_job_name(job) {
            return Err(format!("`{job}` is no name for a job: use letters, digits, -, _ and ."));
        }
        let each = u64::from(submission.steps_in_round);
        if submission.steps == 0 {
            return Err(format!("job {job}: it has no steps to train; give --steps N"));
        }
        if !submission.steps.is_multiple_of(each) {
            return Err(format!(
                "job {job}: its {} steps are no whole number of rounds of {each}; give a multiple",
                submission.steps
            ));
        }
        if let Some(rate) = &submission.lr {
            rate.parse::<Rate>().map_err(|why| format!("job {job}: --lr {rate}: {why}"))?;
        }
        let is_over = |entry: &Entry| matches!(entry.status, Status::Done | Status::Failed);
        let saves = |entry: &&Entry| !is_over(entry) && entry.submission.save.is_some();
        let same = self.jobs.iter().filter(saves).find(|entry| entry.submission.save == submission.save);
        if let Some(other) = same {
            return Err(format!("job {job}: --save is the file of job {}", other.submission.job));
        }
        if self.jobs.iter().any(|entry| entry.submission.job == *job && !is_over(entry)) {
            return Err(format!("there is a job {job} already"));
        }
        let before = self.jobs.len();
        self.jobs.retain(|entry| entry.submission.job != *job);
        if self.jobs.len() < before {
            // The plan may be of the former job of this name.
            self.planned = None;
        }
        self.jobs.push(Entry { submission, status: Status::Training, why: None, steps_done: 0 });
        Ok(())
    }

    /// Forgets the states of a job that is over.
    fn forget(&mut self, job: &str) {
        match &mut self.carried {
            Some(carried) => carried.forget(job),
            None => self.forgotten.push(job.to_owned()),
        }
        self.results.lock().unwrap_or_else(PoisonError::into_inner).remove(job);
        // There may be none.
        let _ = std::fs::remove_file(checkpoint(&self.options.folder, job));
    }

    fn plan(&mut self, set: Set, tell: &dyn Fn(&str)) {
        let in_set = |entry: &&Entry| entry.status == Status::Training;
        let jobs = self.jobs.iter().filter(in_set).map(|entry| entry.submission.clone()).collect();
        // The plan on disk may be a newer one than that of the leg.
        let is_on_disk = |running: &Set| self.planned.as_ref().is_some_and(|planned| planned.set == *running);
        let current = self.same_leg(&set).filter(|(running, _)| is_on_disk(running));
        let current = current.map(|(_, leg)| leg.file.clone());
        let work = Work { set: set.clone(), jobs, profile: self.profile.clone(), current };
        match plan(work, &self.options, self.read.clone(), self.to.clone()) {
            Ok(()) => {
                self.planning = Some(set);
                self.leg.iter().for_each(|(_, leg)| leg.measures(false));
            }
            Err(error) => self.not_planned(set, &error, tell),
        }
    }

    fn planned(&mut self, result: Result<Planned, Error>, tell: &dyn Fn(&str)) {
        let set = self.planning.take();
        self.leg.iter().for_each(|(_, leg)| leg.measures(true));
        match result {
            Ok(planned) if planned.is_current => self.stay(planned, tell),
            Ok(planned) => {
                let names: Vec<&str> = planned.set.jobs.iter().map(|(job, _)| job.as_str()).collect();
                let (round_ms, arena) = (planned.round_ns as f64 / 1e6, memc_ir::Bytes(planned.arena_bytes));
                tell(&format!("plan of {}: {round_ms:.3} ms a round, arena {arena}", names.join(", ")));
                self.planned = Some(planned);
            }
            Err(error) => self.not_planned(set.unwrap_or_default(), &error, tell),
        }
    }

    /// Takes back a change that has no plan. Without a change the last job fails, so that the others go on.
    fn undo(&mut self, why: &str, tell: &dyn Fn(&str)) {
        if let Some(change) = &self.change {
            (self.options.budget, self.jobs) = (change.budget, self.settled());
        }
        if let Some(change) = self.change.take() {
            self.keep(tell);
            drop(change.reply.send(refusal(why)));
            return;
        }
        let is_named = |entry: &Entry| why.contains(&format!("job {}:", entry.submission.job));
        let named = self.jobs.iter().position(|entry| entry.status == Status::Training && is_named(entry));
        let last = self.jobs.iter().rposition(|entry| entry.status == Status::Training);
        if let Some(entry) = named.or(last).and_then(|at| self.jobs.get_mut(at)) {
            tell(&format!("job {} failed: {why}", entry.submission.job));
            (entry.status, entry.why) = (Status::Failed, Some(why.to_owned()));
        }
        self.keep(tell);
    }

    /// The jobs as they are without the change that is being planned. Some may have ended in the meantime.
    fn settled(&self) -> Vec<Entry> {
        let Some(change) = &self.change else { return self.jobs.clone() };
        let is_over = |now: &&Entry| matches!(now.status, Status::Done | Status::Failed);
        let settled = |entry: &Entry| {
            let now = self.jobs.iter().find(|now| now.submission == entry.submission);
            let steps_done = now.map_or(entry.steps_done, |now| now.steps_done);
            now.filter(is_over).cloned().unwrap_or(Entry { steps_done, ..entry.clone() })
        };
        change.jobs.iter().map(settled).collect()
    }

    /// Runs the jobs of the plan.
    fn start(&mut self, set: Set, tell: &dyn Fn(&str)) {
        let Some(mut carried) = self.carried.take() else { return };
        match self.leg(&set, &mut carried) {
            Ok((file, run)) => {
                self.legs += 1;
                self.seen = Seen::default();
                match Leg::start(self.legs, file, run, carried, self.results.clone(), self.to.clone()) {
                    Ok(leg) => {
                        leg.measures(self.planning.is_none());
                        self.leg = Some((set, leg));
                    }
                    Err(error) => {
                        // The states are gone with the thread: checkpoints are read again.
                        self.carried = Some(Carried::default());
                        self.fail(&set, &error.to_string(), tell);
                    }
                }
            }
            Err(error) => {
                self.carried = Some(carried);
                self.fail(&set, &error.to_string(), tell);
                self.advance(tell);
            }
        }
    }

    /// The plan and the run of a leg. States that no leg has left come from checkpoints.
    fn leg(
        &self,
        set: &Set,
        carried: &mut Carried,
    ) -> Result<(Arc<memc_plan::PlanFile>, memc_runtime::RunOptions), Error> {
        let file = memc::open(&plan_path(&self.options.folder))?;
        let mut jobs = Vec::new();
        for entry in self.jobs.iter().filter(|entry| entry.status == Status::Training) {
            let job = &entry.submission.job;
            let path = checkpoint(&self.options.folder, job);
            if set.jobs.iter().any(|(name, _)| name == job) && carried.steps(job) == 0 && path.exists() {
                let read = carried.read(file.plan(), job, &path);
                read.map_err(|error| Error::Io(format!("job {job}: its checkpoint: {error}")))?;
            }
            jobs.push(&entry.submission);
        }
        let run = run_options(&jobs, carried, &self.options)?;
        Ok((Arc::new(file), run))
    }

    fn ended(&mut self, ended: Ended, tell: &dyn Fn(&str)) {
        let Some((set, _)) = self.leg.take() else { return };
        for (job, _) in &set.jobs {
            let steps = ended.carried.steps(job);
            if let Some(entry) = self.jobs.iter_mut().find(|entry| entry.submission.job == *job) {
                entry.steps_done = steps;
                if entry.status == Status::Training && steps >= entry.submission.steps {
                    entry.status = Status::Stopping;
                }
            }
        }
        let mut carried = ended.carried;
        self.forgotten.drain(..).for_each(|job| carried.forget(&job));
        if let Err(why) = ended.result {
            // A step that failed leaves the states that the leg began with; checkpoints may be newer.
            for (job, _) in &set.jobs {
                let file = StateFile::open(&checkpoint(&self.options.folder, job));
                if file.is_ok_and(|file| file.step() > carried.steps(job)) {
                    carried.forget(job);
                }
            }
            self.fail(&set, &why, tell);
        }
        self.carried = Some(carried);
        self.end_stopped(tell);
        self.keep(tell);
    }

    /// Puts the states of jobs that are to end, and that no leg has, where they are to be. Their own copies
    /// go once that is written down.
    fn end_stopped(&mut self, tell: &dyn Fn(&str)) {
        let runs =
            |job: &String| self.leg.iter().any(|(set, _)| set.jobs.iter().any(|(name, _)| name == job));
        let stopping = |entry: &&Entry| entry.status == Status::Stopping && !runs(&entry.submission.job);
        let jobs: Vec<Submission> = self.jobs.iter().filter(stopping).map(|e| e.submission.clone()).collect();
        let mut done = Vec::new();
        for submission in jobs {
            let path = checkpoint(&self.options.folder, &submission.job);
            let copied = match submission.save.as_ref().filter(|_| path.exists()) {
                Some(to) => copy(&path, to),
                None => Ok(()),
            };
            let (status, why) = match copied {
                Ok(()) => (Status::Done, None),
                Err(error) => (Status::Failed, Some(error.to_string())),
            };
            tell(&format!("job {} is {}", submission.job, word(status)));
            done.extend((status == Status::Done).then(|| submission.job.clone()));
            let entry = self.jobs.iter_mut().find(|entry| entry.submission.job == submission.job);
            entry.into_iter().for_each(|entry| (entry.status, entry.why) = (status, why.clone()));
        }
        if !done.is_empty() {
            self.keep(tell);
            done.iter().for_each(|job| self.forget(job));
        }
    }

    /// Fails the job that an error is about, or all where it does not say; the others go on.
    fn fail(&mut self, set: &Set, why: &str, tell: &dyn Fn(&str)) {
        let is_named = |job: &&String| {
            let entry = self.jobs.iter().find(|entry| entry.submission.job == **job);
            let inputs = entry.iter().flat_map(|entry| &entry.submission.inputs);
            let files = inputs.filter_map(|input| Some(input.split_once("=@")?.1));
            let rates = entry.iter().filter_map(|entry| entry.submission.lr.as_deref()?.strip_prefix('@'));
            // A file of tokens has their type behind its name.
            let path = |file: &str| file.split_once(':').map_or(file.to_owned(), |(path, _)| path.to_owned());
            let mut paths = files.map(path).chain(rates.map(str::to_owned));
            why.contains(&format!("job {job}:")) || paths.any(|path| why.contains(&format!("{path}:")))
        };
        let named: Vec<&String> = set.jobs.iter().map(|(job, _)| job).filter(is_named).collect();
        let failed: Vec<&String> =
            if named.is_empty() { set.jobs.iter().map(|(job, _)| job).collect() } else { named };
        for job in failed {
            tell(&format!("job {job} failed: {why}"));
            let entry = self.jobs.iter_mut().find(|entry| entry.submission.job == *job);
            entry
                .into_iter()
                .for_each(|entry| (entry.status, entry.why) = (Status::Failed, Some(why.to_owned())));
        }
    }

    /// Writes the jobs down.
    fn keep(&self, tell: &dyn Fn(&str)) {
        let bytes = self.change.as_ref().map_or(self.options.budget, |change| change.budget);
        let budget = KeptBudget { started_with: self.started_with, bytes };
        let kept = Kept { jobs: self.settled(), budget: (bytes != self.started_with).then_some(budget) };
        let path = kept_path(&self.options.folder);
        let written = serde_json::to_string_pretty(&kept)
            .map_err(std::io::Error::other)
            .and_then(|text| Replace::whole(&path, text.as_bytes()));
        if let Err(error) = written {
            tell(&format!("warning: {}: {error}; a restart would not know the last change", path.display()));
        }
    }
}

/// The file that the jobs are kept in.
fn kept_path(folder: &Path) -> std::path::PathBuf {
    folder.join("jobs.json")
}

/// Copies a file, as a whole or not at all.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut file = Replace::begin(to)?;
    std::io::copy(&mut std::fs::File::open(from)?, file.file())?;
    file.finish()
}
