//! Kernels on the host, for a device that is none of this process's memory: work that its queues come to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memc_gpu::HostWork;
use memc_plan::Section;
use rayon::ThreadPool;

use super::split::HALVES;
use super::turns::Turns;
use crate::cpu::arena::Arenas;
use crate::cpu::exec::Runner;
use crate::cpu::guarded;
use crate::{Error, Program, cpu};

/// Threads for kernels on the host: all of the machine but two, of which one waits for the device, and one
/// is the driver's. A kernel takes as long as its slowest thread.
pub(super) fn pool() -> Result<ThreadPool, Error> {
    let machine = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    cpu::pool(machine.saturating_sub(2).max(machine / 2).max(1))
}

/// Kernels of a program on its host arena.
pub(super) struct HostKernels {
    /// Of each turn.
    programs: [Arc<Program>; HALVES],
    /// Work is done one at a time; the lock is never waited for.
    runner: Mutex<Runner>,
    pool: ThreadPool,
    /// Whether one has failed: nothing runs after it.
    failed: AtomicBool,
    /// Its error, until it is told.
    failure: Mutex<Option<Error>>,
}

impl HostKernels {
    /// Kernels of a program whose host arena is `host`, and lives as long as anything runs.
    pub(super) fn new(turns: &Turns, host: &mut [u8], check_memory: bool) -> Result<Arc<HostKernels>, Error> {
        let programs = [turns.program(0).clone(), turns.program(1).clone()];
        let runner = Runner::new(turns.program(0).clone(), Arc::new(Arenas::of_host(host)), check_memory);
        Ok(Arc::new(HostKernels {
            programs,
            runner: Mutex::new(runner),
            pool: pool()?,
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }))
    }

    /// The work of one command in a turn.
    pub(super) fn work(self: &Arc<Self>, turn: usize, section: Section, index: usize) -> HostWork {
        let this = self.clone();
        HostWork(Arc::new(move || this.run(turn, section, index)))
    }

    fn run(&self, turn: usize, section: Section, index: usize) {
        let program = self.programs.get(turn);
        let Some(command) = program.and_then(|program| program.section(section).get(index)) else { return };
        if self.failed.load(Ordering::Acquire) {
            return;
        }
        let launch = || self.runner.lock().unwrap_or_else(PoisonError::into_inner).run(&command.action);
        let run = || self.pool.install(launch);
        if let Err(error) = guarded(section, index, run) {
            self.failed.store(true, Ordering::Release);
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    /// The error of what has run.
    pub(super) fn check(&self) -> Result<(), Error> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }
}
