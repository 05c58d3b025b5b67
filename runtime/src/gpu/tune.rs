//! Measuring the algorithms that libraries have for a program's kernels.
//!
//! Contract: the program's first step warms up, and leaves what a step leaves in the arena; then the
//! algorithms of each call take turns, each several times, on the places of one launch of the program, in
//! captured graphs, so that what the host takes to issue a call is in no time. Before each call other bytes
//! of the arena are written, as many as push the call's operands out of the device's cache, since other
//! kernels run between in a step, too. What the arena holds afterwards means nothing.
//!
//! Where libraries may compute a kernel in two forms, the program is measured both ways. A time is that of
//! the call and of the kernels that do the rest.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use memc_gpu::{
    Candidate, Clock, GpuError, Graphs, LibraryAlgorithms, LibraryOp, MOST_ALGORITHMS, Region, Setting,
    Stream,
};
use memc_plan::{Section, TunedKernel, Tuning};

use super::library::{self, Group};
use super::replay::{Replay, ReplayOptions};
use super::tuned::{named, to_plan};
use crate::log::Log;
use crate::profile::machine::median;
use crate::program::{Action, Launch};
use crate::{Device, Error, Executor, HostSide, Program, Stages};

/// Calls of an algorithm in a graph, each with a time.
const ROW: usize = 3;
/// Launches of a graph whose times count.
const SAMPLES: usize = 9;
/// Bytes that are written before a call: more than the cache of any GPU holds.
const TOUCH: usize = 192 << 20;
/// Byte that they get, which makes small numbers.
const FILL: u8 = 0x3c;
/// In hundredths, how much of the time of the library's own choice another algorithm may take to be tuned:
/// the rest is noise.
const WORTH: u128 = 98;

/// Section and number of a command.
type At = (Section, usize);

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
    /// `granted` bytes of host memory are the program's, whatever the system says is available. With
    /// `is_other` only kernels are measured that libraries may compute in two forms, and of those the second
    /// one.
    pub(crate) fn new(open: &'a F, granted: Option<u64>, is_other: bool, stages: &'a Stages) -> Tuner<'a, F> {
        let options = ReplayOptions { all_libraries: true, granted, is_other, ..ReplayOptions::MEASURED };
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
        let (stages, measured) = (self.stages.clone(), self.measured.clone());
        Ok(Box::new(Warm { replay, is_other: self.options.is_other, stages, measured }))
    }
}

/// A program that is measured after its first step.
struct Warm<D> {
    replay: Replay<D>,
    is_other: bool,
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
        self.replay.driver.reserve_marks(2 * (MOST_ALGORITHMS * ROW + 1))?;
        let mut calls = Vec::new();
        let mut groups = library::groups(&program);
        groups.retain(|group| !self.is_other || group.has_choice());
        for (i, group) in groups.iter().enumerate() {
            self.stages.enter(&format!("measuring algorithms: call {} of {}", i + 1, groups.len()));
            let is_of = |launch: &Launch| group.kernels.contains(&launch.kernel);
            let commands = Section::ALL.into_iter().flat_map(|section| {
                let commands = program.section(section).iter().enumerate();
                commands.map(move |(index, command)| ((section, index), &command.action))
            });
            let all: Vec<(At, &Launch)> = commands
                .filter_map(|(at, action)| match action {
                    Action::Launch(launch) if is_of(launch) => Some((at, launch)),
                    _ => None,
                })
                .collect();
            let Some(first) = all.first() else { continue };
            let launches = all.iter().filter(|((section, _), _)| *section == Section::Body).count();
            calls.extend(self.tune(group, *first, launches)?);
        }
        calls.sort_by_key(|call| call.tuned.kernel);
        let tuning = tuning(self.replay.driver.setting(), &calls);
        Ok(Measured { calls, tuning })
    }

    /// Measures the algorithms of a call; none where the library does not compute it.
    fn tune(
        &mut self,
        group: &Group,
        (at, launch): (At, &Launch),
        launches: usize,
    ) -> Result<Option<TunedCall>, Error> {
        let driver = &mut self.replay.driver;
        // The form that is run: of those that the library takes, the first.
        let candidates = |call: &_, workspace| {
            driver.algorithms(call, workspace).map(|algorithms| Some(algorithms).filter(|w| !w.is_empty()))
        };
        let found = group.first(group.tried(self.is_other), candidates)?;
        let Some((candidates, form)) = found else { return Ok(None) };
        let Some(places) = library::places(form, launch) else { return Ok(None) };
        let workspace = library::scratch(form, launch);
        let mut algorithms: Vec<(Candidate, LibraryOp)> = Vec::new();
        for (rank, candidate) in candidates.into_iter().take(MOST_ALGORITHMS).enumerate() {
            let Some(op) = driver.plan_tuned(&form.call, group.offered(form), &candidate.algorithm)? else {
                continue;
            };
            // The first call loads code. What a library offers it may still not do.
            match driver.call(op, &places, workspace) {
                Ok(()) => driver.synchronize()?,
                Err(GpuError::Library { .. } | GpuError::Full { .. }) if rank > 0 => continue,
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
        let used = places.iter().chain([&workspace]);
        let touch = other(self.replay.arena, used.map(|place| place.start..place.start + place.len));
        let ops: Vec<LibraryOp> = algorithms.iter().map(|(_, op)| *op).collect();
        let mut times = self.times(&ops, &places, workspace, at, touch)?;
        let times = times.iter_mut().map(|times| median(times).max(1));
        let algorithms = algorithms.into_iter().map(|(candidate, _)| candidate).zip(times).collect();
        Ok(keep(launch, algorithms, launches, form.is_apart))
    }

    /// Times of calls, with the rest of the launch at `at`, each after writing `touch`.
    fn times(
        &mut self,
        ops: &[LibraryOp],
        places: &[Region],
        workspace: Region,
        at: At,
        touch: Range<usize>,
    ) -> Result<Vec<Vec<u64>>, Error> {
        self.replay.driver.begin_capture()?;
        let mut marks = 0;
        let mut mark = |driver: &mut D| {
            marks += 1;
            driver.mark(Stream::Compute, marks - 1)
        };
        // The first pair has nothing between.
        let issued = (|| {
            (0..2).try_for_each(|_| mark(&mut self.replay.driver))?;
            for op in ops.iter().flat_map(|op| [op; ROW]) {
                self.replay.driver.fill(Stream::Compute, touch.start, touch.len(), FILL)?;
                mark(&mut self.replay.driver)?;
                self.replay.driver.call(*op, places, workspace)?;
                self.replay.rest(at.0, at.1)?;
                mark(&mut self.replay.driver)?;
            }
            Ok::<(), GpuError>(())
        })();
        let graph = self.replay.driver.end_capture();
        issued?;
        let graph = graph?;
        let mut times = vec![Vec::with_capacity(ROW * SAMPLES); ops.len()];
        let driver = &mut self.replay.driver;
        // The first launch of a graph warms up.
        for sample in 0..=SAMPLES {
            driver.replay(graph)?;
            driver.synchronize()?;
            let own = driver.elapsed_ns(0, 1)?;
            for (op, times) in times.iter_mut().enumerate().filter(|_| sample > 0) {
                for pair in (1 + op * ROW..).take(ROW) {
                    let ns = driver.elapsed_ns(2 * pair, 2 * pair + 1)?.saturating_sub(own);
                    times.push(ns.max(1).unsigned_abs());
                }
            }
        }
        Ok(times)
    }
}

/// The longest part of an arena without these places, cut to what is to be written.
fn other(arena: usize, used: impl Iterator<Item = Range<usize>>) -> Range<usize> {
    let mut used: Vec<Range<usize>> = used.collect();
    used.push(arena..arena);
    used.sort_by_key(|place| place.start);
    let (mut from, mut longest) = (0, 0..0);
    for place in used {
        if place.start.saturating_sub(from) > longest.len() {
            longest = from..place.start;
        }
        from = from.max(place.end);
    }
    longest.start..longest.end.min(longest.start.saturating_add(TOUCH))
}

/// Whether libraries may compute a kernel of the program in two forms.
pub(crate) fn has_choice(program: &Program) -> bool {
    library::groups(program).iter().any(Group::has_choice)
}

/// Measurements of both ways to compute kernels, of each kernel the faster one.
pub(crate) fn faster(first: Measured, second: Measured) -> Measured {
    let mut calls = first.calls;
    for other in second.calls {
        let Some(call) = calls.iter_mut().find(|call| call.tuned.kernel == other.tuned.kernel) else {
            continue;
        };
        let (ns, default_ns) = (other.tuned.ns, call.tuned.default_ns);
        let is_new = call.tuned.is_apart != other.tuned.is_apart;
        call.algorithms += if is_new { other.algorithms } else { 0 };
        if is_new && ns < call.tuned.ns && is_worth(ns, default_ns) {
            let tuned = TunedKernel { default_ns, ..other.tuned };
            *call = TunedCall { tuned, is_other: true, algorithms: call.algorithms, ..other };
        }
    }
    let kernels = || calls.iter().map(|call| call.tuned.clone()).collect();
    let tuning = first.tuning.map(|tuning| {
        let others = second.tuning.into_iter().flat_map(|tuning| tuning.libraries);
        let mut all: BTreeMap<String, String> = tuning.libraries.into_iter().chain(others).collect();
        all.retain(|name, _| calls.iter().any(|call| call.library == name));
        Tuning { kernels: kernels(), libraries: all.into_iter().collect(), ..tuning }
    });
    Measured { calls, tuning }
}

/// Whether a time is so much less than that of the library's own choice that it is worth another algorithm.
fn is_worth(ns: u64, default_ns: u64) -> bool {
    u128::from(ns) * 100 < u128::from(default_ns) * WORTH
}

/// The fastest of a call's algorithms, or the first, which is the library's own choice, where nothing else is
/// worth it.
fn keep(
    launch: &Launch,
    algorithms: Vec<(Candidate, u64)>,
    launches: usize,
    is_apart: bool,
) -> Option<TunedCall> {
    let default_ns = algorithms.first()?.1;
    let (count, kernel) = (algorithms.len(), u32::try_from(launch.kernel).ok()?);
    let ranked = algorithms.into_iter().enumerate();
    let (rank, (candidate, ns)) = ranked
        .filter(|(rank, (_, ns))| *rank == 0 || is_worth(*ns, default_ns))
        .min_by_key(|(_, (_, ns))| *ns)?;
    let library = candidate.algorithm.component().name();
    let (workspace_bytes, algorithm) = (candidate.workspace as u64, to_plan(candidate.algorithm));
    let tuned = TunedKernel { kernel, algorithm, workspace_bytes, ns, default_ns, is_apart };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes written before a call are the longest part of the arena that the call does not use.
    #[test]
    fn the_longest_unused_part_is_written() {
        let used = || [300..400, 0..100, 350..500].into_iter();
        assert_eq!(other(1000, used()), 500..1000);
        assert_eq!(other(600, used()), 100..300);
        assert_eq!(other(500, used()), 100..300);
        assert_eq!(other(100, std::iter::once(0..100)), 0..0);
        assert_eq!(other(2 * TOUCH, std::iter::once(0..8)), 8..8 + TOUCH);
    }
}
