//! Measuring a program's kernels on a device: one command at a time, each kernel between two marks.
//!
//! Contract: the first step warms up; the others run the body's commands one after another on one queue, as a
//! captured graph, so that what the host takes to issue a command is in no time. Marks themselves take time,
//! which pairs of marks with nothing between tell, and which is taken off. A kernel between marks also begins
//! later than one behind another kernel: what all take together without marks tells by how much. Before a
//! step counts the graph is replayed for a while, so that the device's clocks are those of a long run.

use std::ops::Range;
use std::sync::Arc;

use memc_gpu::{Clock, Facts, GpuError, Graph, Graphs, LibraryAlgorithms, Stream};
use memc_plan::{Queue, Section};

use super::places::on_device;
use super::replay::{Replay, ReplayOptions};
use super::split::Split;
use crate::clock::{elapsed_ns, now};
use crate::log::Log;
use crate::profile::machine::median;
use crate::program::{Action, Command};
use crate::progress::Progress;
use crate::{Device, Error, Executor, HostSide, Program, memory};

/// Pairs of marks with nothing between in a step.
const PAIRS: usize = 15;
/// Times that medians are of.
const SAMPLES: usize = 5;

/// Times of a program's steps.
#[derive(Default)]
pub(crate) struct Measured {
    /// Times in ns of each kernel of the program.
    pub(crate) times: Vec<Vec<u64>>,
    /// The device while all of the program is on it, and the bytes of it that plans cannot have.
    pub(crate) device: Option<(Facts, u64)>,
}

/// A device that takes down times.
pub(crate) struct Timed<'a, F> {
    open: &'a F,
    options: ReplayOptions,
    warm_ns: u64,
    measured: Log<Measured>,
}

impl<'a, F> Timed<'a, F> {
    /// `granted` bytes of host memory are the program's, whatever the system says is available. The device is
    /// busy for `warm_ns` before it is measured.
    pub(crate) fn new(open: &'a F, granted: Option<u64>, warm_ns: u64) -> Timed<'a, F> {
        let options = ReplayOptions { granted, ..ReplayOptions::MEASURED };
        Timed { open, options, warm_ns, measured: Log::default() }
    }

    /// Takes the times out.
    pub(crate) fn take(&self) -> Measured {
        self.measured.take()
    }
}

impl<D: Graphs + Clock + LibraryAlgorithms + 'static, F: Fn() -> Result<D, GpuError>> Device
    for Timed<'_, F>
{
    fn name(&self) -> &'static str {
        "timed"
    }

    fn open(&self, program: Arc<Program>) -> Result<Box<dyn Executor>, Error> {
        let driver = (self.open)()?;
        let Some(split) = Split::of(&program) else {
            return Err(Error::Plan(
                "the step has host commands between those of the device, whose times cannot be told"
                    .to_owned(),
            ));
        };
        self.measured.lock().times = vec![Vec::new(); program.kernels.len()];
        let replay = Replay::open(driver, program, self.options)?;
        let bytes = [replay.free_bytes.unwrap_or(0), replay.arena as u64];
        Ok(Box::new(InOrder {
            replay,
            split,
            chain: None,
            marked: Vec::new(),
            empty: 0..0,
            late_ns: 0,
            warm_ns: self.warm_ns,
            bytes,
            measured: self.measured.clone(),
        }))
    }
}

/// A program, one command at a time.
struct InOrder<D> {
    replay: Replay<D>,
    split: Split,
    /// The body's commands of the device, on one queue.
    chain: Option<Graph>,
    /// The kernel of each pair of marks.
    marked: Vec<usize>,
    /// Pairs of marks with nothing between.
    empty: Range<usize>,
    /// Time in ns by which a kernel between marks begins later than one behind another kernel.
    late_ns: u64,
    /// Time in ns that the device is kept busy before it is measured.
    warm_ns: u64,
    /// Bytes of the device that were free before, and those of its arena.
    bytes: [u64; 2],
    measured: Log<Measured>,
}

/// Whether the one queue has a command: not events, which one queue does not need, nor kernels on the host,
/// which nothing that is measured depends on.
fn in_order(command: &Command) -> bool {
    let is_event = matches!(command.action, Action::Record(_) | Action::Wait(_));
    !is_event && command.queue != Queue::CPU && command.queue.stream().is_some()
}

/// Launches on the device with nothing but frees and events between, as ranges of commands.
fn runs(body: &[Command]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut is_open = false;
    for (index, command) in body.iter().enumerate() {
        match &command.action {
            Action::Launch(_) if on_device(command).is_some() => match runs.last_mut().filter(|_| is_open) {
                Some(run) => run.end = index + 1,
                None => runs.push(index..index + 1),
            },
            Action::Copy { .. } => {}
            _ => continue,
        }
        is_open = on_device(command).is_some();
    }
    runs
}

impl<D: Graphs + Clock> InOrder<D> {
    fn capture(&mut self) -> Result<(), Error> {
        if !self.replay.driver.is_page_locked() {
            return Err(Error::Memory(format!(
                "the host arena cannot be page-locked, and what copies of pageable memory take is no \
                 property of the device; {}",
                memory::lock_remedy()
            )));
        }
        let program = self.replay.program.clone();
        let body = program.section(Section::Body);
        let launches = body.iter().filter_map(on_device).count();
        self.replay.driver.synchronize()?;
        self.empty = launches..launches;
        let runs = runs(body);
        let marks = launches + PAIRS;
        self.replay.driver.reserve_marks(2 * (marks + runs.len()))?;
        self.replay.driver.begin_capture()?;
        let issued = self.split.device.clone().try_for_each(|index| match body.get(index) {
            Some(command) if in_order(command) => {
                self.issue(index, &command.action)?;
                self.pair(launches)
            }
            _ => Ok(()),
        });
        let chain = self.replay.driver.end_capture();
        issued?;
        let chain = chain?;
        self.chain = Some(chain);
        let start = now();
        while elapsed_ns(start) < self.warm_ns {
            self.replay.driver.replay(chain)?;
            self.replay.driver.synchronize()?;
        }
        self.late_ns = self.late(chain, &runs, 2 * marks)?;
        let (facts, [before, arena]) = (self.replay.driver.facts()?, self.bytes);
        let reserve_bytes = super::memory::reserve(&facts, before, arena);
        self.measured.lock().device = Some((facts, reserve_bytes));
        Ok(())
    }

    /// By how much the kernels of a chain begin later for its marks than without them, on average, in ns.
    /// `mark` is the first that is free.
    fn late(&mut self, chain: Graph, runs: &[Range<usize>], mark: usize) -> Result<u64, Error> {
        let program = self.replay.program.clone();
        let body = program.section(Section::Body);
        self.replay.driver.begin_capture()?;
        let issued = self.split.device.clone().try_for_each(|index| {
            let Some(command) = body.get(index) else { return Ok(()) };
            if let Some(run) = runs.iter().position(|run| run.start == index) {
                self.replay.driver.mark(Stream::Compute, mark + 2 * run)?;
            }
            if in_order(command) {
                self.replay.on_device(Section::Body, index, Stream::Compute, &command.action)?;
            }
            match runs.iter().position(|run| run.end == index + 1) {
                Some(run) => self.replay.driver.mark(Stream::Compute, mark + 2 * run + 1),
                None => Ok(()),
            }
        });
        let unmarked = self.replay.driver.end_capture();
        issued?;
        let unmarked = unmarked?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            self.replay.driver.replay(chain)?;
            self.replay.driver.synchronize()?;
            let own = self.own_ns()?;
            with.push(self.total(0, self.marked.len(), own)?);
            self.replay.driver.replay(unmarked)?;
            self.replay.driver.synchronize()?;
            without.push(self.total(mark, runs.len(), own)?);
        }
        // The first of a run is behind a mark in both.
        let behind = self.marked.len().saturating_sub(runs.len()).max(1) as u64;
        Ok(median(&mut with).saturating_sub(median(&mut without)) / behind)
    }

    /// Time in ns between so many pairs of marks from one on, without what the marks take.
    fn total(&mut self, mark: usize, pairs: usize, own: u64) -> Result<u64, GpuError> {
        let times = (0..pairs).map(|pair| {
            let ns = self.replay.driver.elapsed_ns(mark + 2 * pair, mark + 2 * pair + 1)?;
            Ok(ns.max(0).unsigned_abs().saturating_sub(own))
        });
        times.sum()
    }

    /// A pair of marks with nothing between, as many as there are to be, spread over so many launches.
    fn pair(&mut self, launches: usize) -> Result<(), GpuError> {
        let is_due = self.marked.len() * PAIRS >= self.empty.len() * launches;
        if is_due && self.empty.len() < PAIRS {
            let mark = 2 * self.empty.end;
            self.empty.end += 1;
            self.replay.driver.mark(Stream::Compute, mark)?;
            self.replay.driver.mark(Stream::Compute, mark + 1)?;
        }
        Ok(())
    }

    /// Time in ns that a pair of marks takes itself.
    fn own_ns(&mut self) -> Result<u64, GpuError> {
        let pairs = self.empty.clone().map(|pair| self.replay.driver.elapsed_ns(2 * pair, 2 * pair + 1));
        let times = pairs.map(|ns| Ok(ns?.max(0).unsigned_abs()));
        Ok(median(&mut times.collect::<Result<Vec<_>, GpuError>>()?))
    }

    fn issue(&mut self, index: usize, action: &Action) -> Result<(), GpuError> {
        match action {
            Action::Launch(launch) => {
                let mark = 2 * self.marked.len();
                self.marked.push(launch.kernel);
                self.replay.driver.mark(Stream::Compute, mark)?;
                self.replay.on_device(Section::Body, index, Stream::Compute, action)?;
                self.replay.driver.mark(Stream::Compute, mark + 1)
            }
            _ => self.replay.on_device(Section::Body, index, Stream::Compute, action),
        }
    }

    fn step(&mut self, chain: Graph, host: &mut dyn HostSide) -> Result<(), Error> {
        let program = self.replay.program.clone();
        let (body, device) = (program.section(Section::Body), &self.split.device);
        for command in body.get(..device.start).unwrap_or_default() {
            self.replay.on_host(&command.action, host)?;
        }
        self.replay.driver.replay(chain)?;
        self.replay.driver.synchronize()?;
        for command in body.get(device.end..).unwrap_or_default() {
            self.replay.on_host(&command.action, host)?;
        }
        let own = self.own_ns()? + self.late_ns;
        let mut measured = self.measured.lock();
        for (pair, kernel) in self.marked.iter().enumerate() {
            let ns = self.replay.driver.elapsed_ns(2 * pair, 2 * pair + 1)?;
            measured
                .times
                .get_mut(*kernel)
                .into_iter()
                .for_each(|times| times.push(ns.max(0).unsigned_abs().saturating_sub(own).max(1)));
        }
        Ok(())
    }
}

impl<D: Graphs + Clock> Executor for InOrder<D> {
    fn run(&mut self, section: Section, host: &mut dyn HostSide) -> Result<(), Error> {
        match self.chain {
            Some(chain) if section == Section::Body => {
                self.replay.enter(section)?;
                self.step(chain, host)?;
                self.replay.progress = Progress::After(section);
            }
            _ => {
                self.replay.run(section, host)?;
                if section == Section::Body {
                    self.capture()?;
                }
            }
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
