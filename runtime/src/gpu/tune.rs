//! Measuring the ways that libraries have for a program's kernels.
//!
//! Contract: the program's first step warms up, and leaves what a step leaves in the arena; then the ways of each call take
//! turns, each several times in a row, on the places of one launch of the program, in captured graphs, so that what the
//! host takes to issue a call is in no time. What the arena holds afterwards means nothing.

use std::sync::Arc;

use memc_gpu::{Clock, GpuError, Graphs, LibraryOp, MOST_WAYS, Offer, Setting, Stream, Ways};
use memc_plan::{Section, TunedKernel, Tuning};

use super::kept::{named, to_plan};
use super::library::{self, Group};
use super::lower;
use super::replay::{How, Replay, region};
use crate::noted::Noted;
use crate::profile::median;
use crate::program::{Action, Launch};
use crate::{Device, Error, Executor, HostSide, Program, Stages};

/// Calls in a row that a time is of.
const ROW: usize = 5;
/// Times that medians are of.
const SAMPLES: usize = 9;
/// In hundredths, how much of the time of the library's own choice another way may take to be kept: the rest is noise.
const WORTH: u128 = 98;

/// A call with its ways measured.
#[derive(Clone, Debug)]
pub struct TunedCall {
    /// The way that is kept.
    pub kept: TunedKernel,
    /// The library that has it.
    pub library: &'static str,
    /// Ways that were measured.
    pub ways: usize,
    /// Whether another way than the library's own choice is kept.
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

/// A device that measures ways.
pub(crate) struct Tuner<'a, F> {
    open: &'a F,
    stages: &'a Stages,
    measured: Noted<Measured>,
}

impl<'a, F> Tuner<'a, F> {
    pub(crate) fn new(open: &'a F, stages: &'a Stages) -> Tuner<'a, F> {
        Tuner { open, stages, measured: Noted::default() }
    }

    /// Takes the results out.
    pub(crate) fn take(&self) -> Measured {
        self.measured.take()
    }
}

impl<D: Graphs + Clock + Ways + 'static, F: Fn() -> Result<D, GpuError>> Device for Tuner<'_, F> {
    fn name(&self) -> &'static str {
        "tuner"
    }

    fn open(&self, program: Arc<Program>) -> Result<Box<dyn Executor>, Error> {
        let how = How { all_libraries: true, ..How::MEASURED };
        let replay = Replay::open((self.open)()?, program, how)?;
        Ok(Box::new(Warm { replay, stages: self.stages.clone(), measured: self.measured.clone() }))
    }
}

/// A program that is measured after its first step.
struct Warm<D> {
    replay: Replay<D>,
    stages: Stages,
    measured: Noted<Measured>,
}

impl<D: Graphs + Clock + Ways> Executor for Warm<D> {
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

impl<D: Graphs + Clock + Ways> Warm<D> {
    fn measure(&mut self) -> Result<Measured, Error> {
        let program = self.replay.program.clone();
        self.replay.driver.synchronize()?;
        self.replay.driver.reserve_marks(2 * MOST_WAYS)?;
        let mut calls = Vec::new();
        let groups = library::groups(&program);
        for (i, group) in groups.iter().enumerate() {
            self.stages.enter(&format!("measuring ways: call {} of {}", i + 1, groups.len()));
            let is_of = |launch: &&Launch| group.kernels.contains(&launch.kernel);
            let Some(launch) = lower::launches(&program).find(is_of) else { continue };
            let body = program.section(Section::Body).iter();
            let launches = body.filter(|c| matches!(&c.action, Action::Launch(launch) if is_of(&launch)));
            calls.extend(self.tune(group, launch, launches.count())?);
        }
        calls.sort_by_key(|call| call.kept.kernel);
        let tuning = tuning(self.replay.driver.setting(), &calls);
        Ok(Measured { calls, tuning })
    }

    /// Measures the ways of a call; none where the library does not compute it.
    fn tune(&mut self, group: &Group, launch: &Launch, launches: usize) -> Result<Option<TunedCall>, Error> {
        let driver = &mut self.replay.driver;
        // The form that is run: of those that the library takes, the first.
        let offers =
            |call: &_| driver.ways(call, group.workspace).map(|ways| Some(ways).filter(|w| !w.is_empty()));
        let Some((offers, form)) = group.first(offers)? else { return Ok(None) };
        let (places, workspace) = (form.places(launch), region(launch.workspace));
        let mut ways: Vec<(Offer, LibraryOp)> = Vec::new();
        for (rank, offer) in offers.into_iter().take(MOST_WAYS).enumerate() {
            let Some(op) = driver.plan_way(&form.call, group.workspace, &offer.way)? else { continue };
            // The first call loads code. What a library offers it may still not do.
            match driver.call(op, &places, workspace) {
                Ok(()) => driver.synchronize()?,
                Err(GpuError::Library { .. }) if rank > 0 => continue,
                Err(error) => return Err(error.into()),
            }
            if ways.is_empty() && rank > 0 {
                return Ok(None);
            }
            ways.push((offer, op));
        }
        if ways.is_empty() {
            return Ok(None);
        }
        driver.begin_capture()?;
        let issued = ways.iter().enumerate().try_for_each(|(way, (_, op))| {
            driver.mark(Stream::Compute, 2 * way)?;
            (0..ROW).try_for_each(|_| driver.call(*op, &places, workspace))?;
            driver.mark(Stream::Compute, 2 * way + 1)
        });
        let graph = driver.end_capture();
        issued?;
        let graph = graph?;
        let mut times = vec![Vec::with_capacity(SAMPLES); ways.len()];
        // The first launch of a graph warms up.
        for sample in 0..=SAMPLES {
            driver.replay(graph)?;
            driver.synchronize()?;
            for (way, times) in times.iter_mut().enumerate().filter(|_| sample > 0) {
                times.push(driver.elapsed_ns(2 * way, 2 * way + 1)?.max(1).unsigned_abs());
            }
        }
        let times = times.iter_mut().map(|times| (median(times) / ROW as u64).max(1));
        Ok(keep(launch, ways.into_iter().map(|(offer, _)| offer).zip(times).collect(), launches))
    }
}

/// The fastest of a call's ways, or the first, which is the library's own choice, where nothing else is worth it.
fn keep(launch: &Launch, ways: Vec<(Offer, u64)>, launches: usize) -> Option<TunedCall> {
    let default_ns = ways.first()?.1;
    let (count, kernel) = (ways.len(), u32::try_from(launch.kernel).ok()?);
    let is_worth = |ns: u64| u128::from(ns) * 100 < u128::from(default_ns) * WORTH;
    let ranked = ways.into_iter().enumerate();
    let (rank, (offer, ns)) =
        ranked.filter(|(rank, (_, ns))| *rank == 0 || is_worth(*ns)).min_by_key(|(_, (_, ns))| *ns)?;
    let library = offer.way.component().name();
    let (workspace_bytes, way) = (offer.workspace as u64, to_plan(offer.way));
    let kept = TunedKernel { kernel, way, workspace_bytes, ns, default_ns };
    Some(TunedCall { kept, library, ways: count, is_other: rank > 0, launches })
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
        kernels: calls.iter().map(|call| call.kept.clone()).collect(),
    };
    (!calls.is_empty()).then_some(tuning)
}
