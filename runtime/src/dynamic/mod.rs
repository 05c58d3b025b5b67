//! Decisions while a step runs, in place of a plan's: DELTA and DTR on the CPU device.
//!
//! The device runs the unplanned step of a plan within a device arena of a given size. Nothing is proved
//! ahead: each access is ordered after the copies that it depends on as it is issued, and a step that does
//! not fit ends the run. Results are those of the unplanned step, bit for bit.

mod copies;
mod flow;
mod memory;
mod policy;
mod space;
mod walk;

use std::{borrow::Cow, fmt, sync::Arc};

use memc_ir::{Bytes, counted};
use memc_plan::{Plan, Section};
use rayon::ThreadPool;

pub use memory::Counts;
pub use policy::Policy;

use self::flow::internal;
use self::memory::Memory;
use self::walk::Walk;
use crate::cpu::{self, arena::Arenas, exec::Runner};
use crate::device::{Device, Executor, HostSide};
use crate::program::Action;
use crate::progress::Progress;
use crate::run::require_gpu;
use crate::{DeviceName, Error, Program, RunOptions, memory as machine, unplanned};

/// Options of a run with decisions while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicOptions {
    /// Decides.
    pub policy: Policy,
    /// Bytes of the device arena; `None` for as many as the plan's has.
    pub gpu_mem: Option<u64>,
}

/// The plan, or the unplanned one where decisions are made while it runs.
///
/// # Errors
/// [`Error::Plan`] for a source that is no valid graph.
pub(crate) fn plan(of: &Plan, dynamic: Option<DynamicOptions>) -> Result<Cow<'_, Plan>, Error> {
    match dynamic {
        Some(_) => unplanned::plan(of).map(Cow::Owned),
        None => Ok(Cow::Borrowed(of)),
    }
}

/// Refuses decisions on a device that makes none.
pub(crate) fn refuse(dynamic: Option<DynamicOptions>) -> Result<(), Error> {
    match dynamic {
        Some(_) => Err(Error::Usage("--dynamic takes a device and states of its own".to_owned())),
        None => Ok(()),
    }
}

/// Decisions of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Who decided.
    pub policy: Policy,
    /// The decisions.
    pub counts: Counts,
    /// Bytes of the device arena.
    pub arena_bytes: u64,
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { dropped, again, out_bytes, in_bytes, moved_bytes, .. } = self.counts;
        let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        write!(
            f,
            "{}, in the last step: {} dropped, {} run again; {} copied out, {} in, {} moved",
            self.policy.name(),
            counted(number(dropped), "tensor"),
            counted(number(again), "op"),
            Bytes(out_bytes).short(),
            Bytes(in_bytes).short(),
            Bytes(moved_bytes).short(),
        )
    }
}

/// The CPU device with an arena of a given size, on which an unplanned program runs.
pub(crate) struct Dynamic {
    policy: Policy,
    capacity: usize,
    /// Most bytes of host memory.
    host_mem: Option<u64>,
    options: cpu::Options,
    pool: Arc<ThreadPool>,
}

impl Dynamic {
    /// Starts the threads that kernels run on.
    ///
    /// # Errors
    /// [`Error::Usage`] for a plan or options that it does not run, and [`Error::Memory`] if the system
    /// refuses the threads.
    pub(crate) fn new(dynamic: DynamicOptions, plan: &Plan, run: &RunOptions) -> Result<Dynamic, Error> {
        check(plan, run)?;
        let pool = Arc::new(cpu::pool(run.cpu.threads)?);
        let capacity = dynamic.gpu_mem.unwrap_or(plan.meta.dev_bytes);
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        Ok(Dynamic { policy: dynamic.policy, capacity, host_mem: run.host_mem, options: run.cpu, pool })
    }
}

/// Refuses what a run that decides while it runs cannot do.
fn check(plan: &Plan, options: &RunOptions) -> Result<(), Error> {
    let refused = |what: &str| Err(Error::Usage(format!("--dynamic {what}")));
    if options.device != DeviceName::Cpu {
        return refused("runs on the CPU device so far; leave --device out, or run the plan");
    }
    require_gpu(options.device, options.libraries, options.no_graph)?;
    if !plan.buckets.is_empty() {
        return refused(
            "runs plans of one size, and this one has buckets; compile with one size for each --dim",
        );
    }
    if options.trace.is_some() || options.measure.is_some() || options.evaluation.is_some() {
        return refused("goes with none of --trace, --measure and --eval; leave them out, or run the plan");
    }
    if options.cpu.slow.is_some() || options.cpu.delay_seed.is_some() {
        return refused("goes with neither --slow nor --delay-seed; leave them out, or run the plan");
    }
    Ok(())
}

impl Device for Dynamic {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn has_reference_kernels(&self) -> bool {
        true
    }

    fn open(&self, program: Arc<Program>) -> Result<Box<dyn Executor>, Error> {
        // More than twice the unplanned memory is of no use, whatever is given.
        let capacity = self.capacity.min(program.dev_bytes.saturating_mul(2));
        // No more is away at a time than is there in the unplanned step.
        let away = if self.policy.copies() { program.dev_bytes } else { 0 };
        let host_bytes = program.host_bytes.saturating_add(away);
        machine::limit(host_bytes, self.host_mem)?;
        machine::check(capacity, host_bytes, false)?;
        let fill = if self.options.check_memory { cpu::exec::POISON } else { 0 };
        let arenas = Arc::new(Arenas::reserve(capacity, host_bytes, fill)?);
        let mut memory = Memory::new(&program, &arenas, capacity, host_bytes)?;
        memory.settle_in(self.policy.name())?;
        let walk = Walk {
            policy: self.policy,
            runner: Runner::new(program.clone(), arenas.clone(), self.options.check_memory),
            program,
            memory,
            arenas,
            pool: self.pool.clone(),
            visitors: Vec::new(),
            ahead: Vec::new(),
        };
        Ok(Box::new(Walker { walk, progress: Progress::New }))
    }
}

/// An unplanned program that is walked.
struct Walker {
    walk: Walk,
    progress: Progress,
}

impl Walker {
    /// Loads the states, or stores them.
    fn states(&mut self, section: Section, host: &mut dyn HostSide) -> Result<(), Error> {
        let walk = &mut self.walk;
        for command in walk.program.clone().section(section) {
            match command.action {
                Action::Load(state) => {
                    let place = walk.memory.place(state)?;
                    walk.memory.copies.settle(place, true)?;
                    host.load(state, walk.arenas.write(place))?;
                }
                Action::Store(state) => {
                    let place = walk.memory.place(state)?;
                    walk.memory.copies.settle(place, false)?;
                    host.store(state, walk.arenas.read(place))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Executor for Walker {
    fn run(&mut self, section: Section, host: &mut dyn HostSide) -> Result<(), Error> {
        let progress = std::mem::replace(&mut self.progress, Progress::Within);
        if !progress.allows(section) {
            return Err(Progress::refuse(section));
        }
        match section {
            Section::Body => self.walk.step(host)?,
            _ => self.states(section, host)?,
        }
        self.progress = Progress::After(section);
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        if matches!(self.progress, Progress::Within) {
            return Err(internal("the device was used after an error"));
        }
        let drained = self.walk.memory.copies.drain();
        drained.inspect_err(|_| self.progress = Progress::Within)
    }

    fn decided(&self) -> Option<Decided> {
        let Walk { policy, memory, .. } = &self.walk;
        Some(Decided { policy: *policy, counts: memory.counts, arena_bytes: memory.capacity as u64 })
    }
}
