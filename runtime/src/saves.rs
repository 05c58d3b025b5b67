//! Saves of a run while it goes on.
//!
//! Contract: no save changes a bit of the run. Where `--stop-on-nan` is given, a save is put in its place
//! only when the step after it has a finite loss: the states of a diverging run never replace good ones.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
};

use memc_plan::Plan;
use memc_support::is_same_file;

use crate::jobs::{self, Job};
use crate::run::RunOptions;
use crate::state::{Saved, state_files};
use crate::watch::Watch;
use crate::{Error, Session};

/// Digits of a step's number in the name of a save.
const DIGITS: usize = 8;

/// Saves in between.
pub(crate) struct Saves<'a> {
    plan: &'a Plan,
    jobs: Vec<Job>,
    /// The states' file and the steps between saves.
    asked: Option<(&'a Path, u64)>,
    /// Number of files that are kept; `None` for one file that each save replaces.
    keep: Option<u64>,
    /// Whether a save waits for the loss of the next step.
    waits: bool,
    /// A whole save that waits, and the step after which it was made.
    waiting: Option<(Saved, u64)>,
    /// Files of this run with their steps, the last one behind.
    made: VecDeque<(PathBuf, u64)>,
}

impl<'a> Saves<'a> {
    /// The saves that the options ask for.
    pub(crate) fn new(options: &'a RunOptions, plan: &'a Plan) -> Saves<'a> {
        Saves {
            plan,
            jobs: jobs::of(plan),
            asked: options.save.as_deref().zip(options.save_every),
            keep: options.keep,
            waits: options.stop_on_nan,
            waiting: None,
            made: VecDeque::new(),
        }
    }

    /// Whether the states are to be saved after step `number`.
    pub(crate) fn is_due(&self, number: u64) -> bool {
        self.asked.is_some_and(|(_, every)| number.is_multiple_of(every))
    }

    /// Saves the states.
    ///
    /// # Errors
    /// Those of [`Session::store`] and [`Session::reload`]; the session is of no use then.
    pub(crate) fn save(&mut self, session: &mut Session<'_>, watch: &mut dyn Watch) -> Result<(), Error> {
        let Some((path, _)) = self.asked else { return Ok(()) };
        let step = session.steps_done();
        let target = if self.keep.is_some() { numbered(path, step) } else { path.to_owned() };
        let mut saved = session.store(&target, self.plan)?;
        let reloaded = session.reload(&mut |state, bytes| saved.read(state, bytes));
        self.waiting = Some((saved, step));
        reloaded?;
        if self.waits { Ok(()) } else { self.publish(watch) }
    }

    /// Puts the save that waits in its place, and removes the oldest of this run's saves beyond those that
    /// are kept.
    ///
    /// # Errors
    /// [`Error::Io`]; the session is as it was.
    pub(crate) fn publish(&mut self, watch: &mut dyn Watch) -> Result<(), Error> {
        let Some((saved, step)) = self.waiting.take() else { return Ok(()) };
        let path = saved.path().to_owned();
        saved.publish()?;
        watch.saved(&path, step);
        self.made.push_back((path, step));
        let most = self.keep.and_then(|keep| usize::try_from(keep).ok()).unwrap_or(1);
        while self.made.len() > most {
            let Some((old, _)) = self.made.pop_front() else { break };
            if self.keep.is_none() {
                continue;
            }
            for (_, old) in state_files(&old, &self.jobs) {
                match std::fs::remove_file(&old) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(Error::io(&old, error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Gives up the save that waits; says whether there was one.
    pub(crate) fn drop_waiting(&mut self) -> bool {
        self.waiting.take().is_some()
    }

    /// The last file of this run, and the step after which it was saved.
    pub(crate) fn last(&self) -> Option<&(PathBuf, u64)> {
        self.made.back()
    }
}

/// The parts of the names of saves in between that stand around the step.
fn affixes(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
    (format!("{stem}-"), extension.unwrap_or_default())
}

/// The file of a save in between: `states-00000100.safetensors`.
fn numbered(path: &Path, step: u64) -> PathBuf {
    let (before, after) = affixes(path);
    path.with_file_name(format!("{before}{step:0DIGITS$}{after}"))
}

/// The error that `path` is missing, with the newest save in between of a run that was to save there.
pub(crate) fn missing(path: PathBuf, source: io::Error) -> Error {
    let Some(save) = newest(&path) else { return Error::io(path, source) };
    let text = format!("no such file; the last save of its run is {}", save.display());
    Error::io(path, io::Error::new(source.kind(), text))
}

/// The newest save in between of a run that was to save in `path`.
fn newest(path: &Path) -> Option<PathBuf> {
    let (before, after) = affixes(path);
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names =
        std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let step = |name: String| name.strip_prefix(&before)?.strip_suffix(&after)?.parse::<u64>().ok();
    names.filter_map(step).max().map(|step| numbered(path, step))
}

/// Refuses saves in between in the place of the file that `--init` reads. `done` steps are done, and `most`
/// are to be run.
pub(crate) fn check_names(options: &RunOptions, jobs: &[Job], done: u64, most: u64) -> Result<(), Error> {
    let (Some(path), Some(init), Some(_)) = (&options.save, &options.init, options.keep) else {
        return Ok(());
    };
    let name = init.file_stem().unwrap_or_default().to_string_lossy();
    let step = name.rsplit_once('-').and_then(|(_, step)| step.parse::<u64>().ok());
    let every = options.save_every.unwrap_or(1);
    let is_made =
        |step: &u64| *step > done && *step <= done.saturating_add(most) && step.is_multiple_of(every);
    let is_init =
        |step: u64| state_files(&numbered(path, step), jobs).iter().any(|(_, save)| is_same_file(save, init));
    if step.filter(is_made).is_some_and(is_init) {
        return Err(Error::Usage(format!(
            "--save would replace {}, which --init reads; save under another name",
            init.display()
        )));
    }
    Ok(())
}
