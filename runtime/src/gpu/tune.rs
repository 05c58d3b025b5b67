//! Measuring the algorithms that libraries have for a program's kernels.
//!
//! Contract: the program's first step warms up, and leaves what a step leaves in the arena; then the
//! algorithms of each call take turns, each several times in a row, on the places of one launch of the
//! program, in captured graphs, so that what the host takes to issue a call is in no time. What the arena
//! holds afterwards means nothing.

use std::sync::Arc;

use memc_gpu::{
    Candidate, Clock, GpuError, Graphs, LibraryAlgorithms, LibraryOp, MOST_ALGORITHMS, Setting, Stream,
};
use memc_plan::{Section, TunedKernel, Tuning};

use super::library::{self, Group};
use super::places::{launches, region};
use super::replay::{Replay, ReplayOptions};
use super::tuned::{named, to_plan};
use crate::log::Log;
use crate::profile::machine::median;
use crate::program::{Action, Launch};
use crate::{Device, Error, Executor, HostSide, Program, Stages};

/// Calls in a row that a time is of.
const ROW: usize = 5;
/// Times that medians are of.
const SAMPLES: usize = 9;
/// In hundredths, how much of the time of the library's own choice another algorithm may take to be tuned:
/// the rest is noise.
const WORTH: u128 = 98;

/// A call with its algorithms measured.
#[derive(Clone, Debug)]
pub struct TunedCall {
    /// The tuned algorithm.
    pub tuned: TunedKernel,
    /// The library that has it.
    pub library: &'static str,
    /// Algorithms that were measured.
    pub algorithms: usize,
    /// Whether another algorithm than the library's own choice is kept.
    pub is_other: bool,
    /// Launches of it in a step.
    pub launches: usize,
}

/// Results of measuring.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) calls: Vec<TunedCall>,
    pub(crate) tuning: Option<Tuning>,
}

/// A device that measures algorithms.
pub(crate) struct Tuner<'a, F> {
    open: &'a F,
    stages: &'a Stages,
    options: ReplayOptions,
    measured: Log<Measured>,
}

impl<'a, F> Tuner<'a, F> {
    /// `host_is_granted` where the caller lets the program have its host arena, whatever the system says is
    /// available.
    pub(crate) fn new(open: &'a F, host_is_granted: bool, stages: &'a Stages) -> Tuner<'a, F> {
        let options = ReplayOptions { all_libraries: true, host_is_granted, ..ReplayOptions::MEASURED };
        Tuner { open, stages, options, measured: Log::default() }
    }

    /// Takes the results out.
    pub(crate) fn take(&self) -> Measured {
        self.measured.take()
    }
}

impl<D: Graphs + Clock + LibraryAlgorithms + 'static, F: Fn() -> Result<D, GpuError>> Device
    for Tuner<'_, F>
{
    fn name(&self) -> &'static str {
        "tuner"
    }

    fn open(&self, program: Arc<Program>) -> Result<Box<dyn Executor>, Error> {
        let replay = Replay::open((self.open)()?, program, self.options)?;
        Ok(Box::new(Warm { replay, stages: self.stages.clone(), measured: self.measured.clone() }))
    }
}

/// A program that is measured after its first step.
struct Warm<D> {
    replay: Replay<D>,
    stages: Stages,
    measured: Log<Measured>,
}

impl<D: Graphs + Clock + LibraryAlgorithms> Executor for Warm<D> {
    fn run(&mut self, section: Section, host: &mut dyn HostSide) -> Result<(), Error> {
        self.replay.run(section, host)?;
        if section == Section::Body {
            let measured = self.measure()?;
            *self.measured.lock() = measured;
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        self.replay.synchronize()
    }

    fn notes(&self) -> &[String] {
        self.replay.notes()
    }
}

impl<D: Graphs + Clock + LibraryAlgorithms> Warm<D> {
    fn measure(&mut self) -> Result<Measured, Error> {
        let program = self.replay.program.clone();
        self.replay.driver.synchronize()?;
        self.replay.driver.reserve_marks(2 * MOST_ALGORITHMS)?;
        let mut calls = Vec::new();
        let groups = library::groups(&program);
        for (i, group) in groups.iter().enumerate() {
            self.stages.enter(&format!("measuring algorithms: call {} of {}", i + 1, groups.len()));
            let is_of = |launch: &&Launch| group.kernels.contains(&launch.kernel);
            let Some(launch) = launches(&program).find(is_of) else { continue };
            let body = program.section(Section::Body).iter();
            let launches = body.filter(|c| matches!(&c.action, Action::Launch(launch) if is_of(&launch)));
            calls.extend(self.tune(group, launch, launches.count())?);
        }
        calls.sort_by_key(|call| call.tuned.kernel);
        let tuning = tuning(self.replay.driver.setting(), &calls);
        Ok(Measured { calls, tuning })
    }

    /// Measures the algorithms of a call; none where the library does not compute it.
    fn tune(&mut self, group: &Group, launch: &Launch, launches: usize) -> Result<Option<TunedCall>, Error> {
        let driver = &mut self.replay.driver;
        // The form that is run: of those that the library takes, the first.
        let candidates = |call: &_| {
            driver
                .algorithms(call, group.workspace)
                .map(|algorithms| Some(algorithms).filter(|w| !w.is_empty()))
        };
        let Some((candidates, form)) = group.first(candidates)? else { return Ok(None) };
        let (places, workspace) = (form.places(launch), region(launch.workspace));
        let mut algorithms: Vec<(Candidate, LibraryOp)> = Vec::new();
        for (rank, candidate) in candidates.into_iter().take(MOST_ALGORITHMS).enumerate() {
            let Some(op) = driver.plan_tuned(&form.call, group.workspace, &candidate.algorithm)? else {
                continue;
            };
            // The first call loads code. What a library offers it may still not do.
            match driver.call(op, &places, workspace) {
                Ok(()) => driver.synchronize()?,
                Err(GpuError::Library { .. }) if rank > 0 => continue,
                Err(error) => return Err(error.into()),
            }
            if algorithms.is_empty() && rank > 0 {
                return Ok(None);
            }
            algorithms.push((candidate, op));
        }
        if algorithms.is_empty() {
            return Ok(None);
        }
        driver.begin_capture()?;
        let issued = algorithms.iter().enumerate().try_for_each(|(algorithm, (_, op))| {
            driver.mark(Stream::Compute, 2 * algorithm)?;
            (0..ROW).try_for_each(|_| driver.call(*op, &places, workspace))?;
            driver.mark(Stream::Compute, 2 * algorithm + 1)
        });
        let graph = driver.end_capture();
        issued?;
        let graph = graph?;
        let mut times = vec![Vec::with_capacity(SAMPLES); algorithms.len()];
        // The first launch of a graph warms up.
        for sample in 0..=SAMPLES {
            driver.replay(graph)?;
            driver.synchronize()?;
            for (algorithm, times) in times.iter_mut().enumerate().filter(|_| sample > 0) {
                times.push(driver.elapsed_ns(2 * algorithm, 2 * algorithm + 1)?.max(1).unsigned_abs());
            }
        }
        let times = times.iter_mut().map(|times| (median(times) / ROW as u64).max(1));
        Ok(keep(
            launch,
            algorithms.into_iter().map(|(candidate, _)| candidate).zip(times).collect(),
            launches,
        ))
    }
}

/// The fastest of a call's algorithms, or the first, which is the library's own choice, where nothing else is
/// worth it.
fn keep(launch: &Launch, algorithms: Vec<(Candidate, u64)>, launches: usize) -> Option<TunedCall> {
    let default_ns = algorithms.first()?.1;
    let (count, kernel) = (algorithms.len(), u32::try_from(launch.kernel).ok()?);
    let is_worth = |ns: u64| u128::from(ns) * 100 < u128::from(default_ns) * WORTH;
    let ranked = algorithms.into_iter().enumerate();
    let (rank, (candidate, ns)) =
        ranked.filter(|(rank, (_, ns))| *rank == 0 || is_worth(*ns)).min_by_key(|(_, (_, ns))| *ns)?;
    let library = candidate.algorithm.component().name();
    let (workspace_bytes, algorithm) = (candidate.workspace as u64, to_plan(candidate.algorithm));
    let tuned = TunedKernel { kernel, algorithm, workspace_bytes, ns, default_ns };
    Some(TunedCall { tuned, library, algorithms: count, is_other: rank > 0, launches })
}

/// The section of a plan; none where no call was measured.
fn tuning(setting: Setting, calls: &[TunedCall]) -> Option<Tuning> {
    let libraries = setting.libraries.into_iter().map(|(component, version)| (component.name(), version));
    let is_used = |name: &str| calls.iter().any(|call| call.library == name);
    let used = libraries.filter(|(name, _)| is_used(name)).map(|(name, version)| (name.to_owned(), version));
    let (rounding, allow_nondeterminism) = named(setting.options);
    let tuning = Tuning {
        device: setting.device,
        arch: setting.arch.to_string(),
        libraries: used.collect(),
        rounding: rounding.to_owned(),
        allow_nondeterminism,
        kernels: calls.iter().map(|call| call.tuned.clone()).collect(),
    };
    (!calls.is_empty()).then_some(tuning)
}
