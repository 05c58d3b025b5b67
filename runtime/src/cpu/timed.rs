//! The CPU device with one command at a time, each timed.
//!
//! Contract: a section's commands run in the order of issue, which is one of the orders that events allow,
//! with real data and the caches that a step leaves. What streams cost each other, and handing commands over,
//! is not in the times.

use std::sync::Arc;

use memc_plan::Section;
use rayon::ThreadPool;

use super::{arena::Arenas, exec::Runner, memory, pool};
use crate::clock::{elapsed_ns, now};
use crate::log::Log;
use crate::program::{Action, Command};
use crate::progress::Progress;
use crate::{Device, Error, Executor, HostSide, Program};

/// Times in ns that each kernel of a program took in bodies of its runs, by kernel.
pub(crate) type Times = Vec<Vec<u64>>;

/// The CPU device, timing kernels.
pub(crate) struct Timed {
    pool: Arc<ThreadPool>,
    times: Log<Times>,
}

impl Timed {
    /// Starts the threads that kernels run on; 0 for as many as the machine has.
    pub(crate) fn new(threads: usize) -> Result<Timed, Error> {
        Ok(Timed { pool: Arc::new(pool(threads)?), times: Log::default() })
    }

    /// The threads that kernels run on.
    pub(crate) fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// Takes the times so far.
    pub(crate) fn take(&self) -> Times {
        self.times.lock().iter_mut().map(std::mem::take).collect()
    }
}

impl Device for Timed {
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
        memory::check(program.dev_bytes, program.host_bytes, false)?;
        let arenas = Arc::new(Arenas::reserve(program.dev_bytes, program.host_bytes, 0)?);
        *self.times.lock() = vec![Vec::new(); program.kernels.len()];
        let runner = Runner::new(program.clone(), arenas, false);
        let (pool, times) = (self.pool.clone(), self.times.clone());
        Ok(Box::new(InOrder { program, runner, pool, times, progress: Progress::New }))
    }
}

/// A program, one command at a time.
struct InOrder {
    program: Arc<Program>,
    runner: Runner,
    pool: Arc<ThreadPool>,
    times: Log<Times>,
    progress: Progress,
}

/// Whether the host has a part in a command.
fn is_exchange(command: &Command) -> bool {
    matches!(command.action, Action::Load(_) | Action::Store(_) | Action::Write(_) | Action::Read(_))
}

impl Executor for InOrder {
    fn run(&mut self, section: Section, host: &mut dyn HostSide) -> Result<(), Error> {
        let progress = std::mem::replace(&mut self.progress, Progress::Within);
        if !progress.allows(section) {
            return Err(Progress::refuse(section));
        }
        let (program, runner) = (self.program.clone(), &mut self.runner);
        for batch in program.section(section).chunk_by(|a, b| is_exchange(a) == is_exchange(b)) {
            if batch.iter().any(is_exchange) {
                batch.iter().try_for_each(|command| runner.exchange(&command.action, host))?;
                continue;
            }
            // A worker of the pool splits work in its own queue, as the compute stream does.
            let taken = self.pool.install(|| timed(runner, batch))?;
            if section == Section::Body {
                let mut times = self.times.lock();
                for (kernel, ns) in taken {
                    times.get_mut(kernel).into_iter().for_each(|of| of.push(ns));
                }
            }
        }
        self.progress = Progress::After(section);
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Runs commands; the kernels among them with their times in ns.
fn timed(runner: &mut Runner, commands: &[Command]) -> Result<Vec<(usize, u64)>, Error> {
    let mut times = Vec::with_capacity(commands.len());
    for command in commands {
        let start = now();
        runner.run(&command.action)?;
        if let Action::Launch(launch) = &command.action {
            times.push((launch.kernel, elapsed_ns(start)));
        }
    }
    Ok(times)
}
