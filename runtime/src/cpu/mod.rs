//! The CPU device: arenas of ordinary memory, a thread for each stream, `memc-kernels` as kernels.
//!
//! Streams and events mean what they mean in CUDA: commands of a stream run in the order of issue, a wait
//! binds to the most recent record at the time of the call, and nothing else orders streams. Results do not
//! depend on the number of threads or on timing. [`Options`] can make timing hostile and the contents of
//! undefined memory poisonous, to show that a plan does not depend on them.
//!
//! After the first run of each section, replaying allocates nothing on the issuing thread or the stream
//! threads, apart from what kernels do.

pub(crate) mod arena;
mod delays;
mod event;
pub(crate) mod exec;
mod spans;
mod stream;
pub(crate) mod timed;

use std::{str::FromStr, sync::Arc};

use memc_ir::ops::Family;
use rayon::ThreadPool;

use crate::{Device, Error, Executor, Program, Programs, memory};
pub(crate) use stream::guarded;

/// Threads for kernels; 0 for as many as the machine has. A program on the device takes one of its pool's
/// threads for good, so that other work needs a pool of its own.
pub(crate) fn pool(threads: usize) -> Result<ThreadPool, Error> {
    // Left to itself, the pool takes any number that the environment says.
    let machine = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = if threads > 0 { threads } else { machine() };
    let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
    builder.thread_name(|i| format!("memrun-kernel-{i}")).build().map_err(|error| {
        Error::Memory(format!("cannot start {threads} kernel threads: {error}; lower --threads"))
    })
}

/// Options of the CPU device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Threads that kernels run on; 0 for as many as the machine has.
    pub threads: usize,
    /// Fill undefined memory (at the start, after a free, a workspace) with `0xff`, which is NaN in floats.
    pub check_memory: bool,
    /// Delay commands at random, by this seed.
    pub delay_seed: Option<u64>,
    /// Make some kernels slower, to show what a run does about it.
    pub slow: Option<Slow>,
}

/// Kernels that take longer than they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Family of the ops.
    pub family: Family,
    /// Factor of their time, at least 1.
    pub factor: u32,
    /// Bodies that run before.
    pub after: u64,
}

impl FromStr for Slow {
    type Err = &'static str;

    /// Parses `FAMILY=FACTOR@STEP`, the first step that is slow.
    fn from_str(text: &str) -> Result<Slow, &'static str> {
        let parse = || {
            let (family, rest) = text.split_once('=')?;
            let (factor, step) = rest.split_once('@').unwrap_or((rest, "1"));
            let after = step.parse::<u64>().ok()?.checked_sub(1)?;
            Some(Slow {
                family: Family::from_name(family)?,
                factor: factor.parse().ok().filter(|&n| n > 0)?,
                after,
            })
        };
        parse().ok_or("expected FAMILY=FACTOR@STEP, such as conv=3@50")
    }
}

/// The CPU device.
#[derive(Debug)]
pub struct Cpu {
    options: Options,
    pool: Arc<ThreadPool>,
}

impl Cpu {
    /// Starts the threads that kernels run on.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system refuses the threads.
    pub fn new(options: Options) -> Result<Cpu, Error> {
        Ok(Cpu { options, pool: Arc::new(pool(options.threads)?) })
    }
}

impl Device for Cpu {
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
        self.open_all(&program.into())
    }

    fn open_all(&self, programs: &Programs) -> Result<Box<dyn Executor>, Error> {
        let most = |bytes: fn(&Program) -> usize| programs.iter().map(|p| bytes(p)).max().unwrap_or(0);
        let (dev_bytes, host_bytes) = (most(|p| p.dev_bytes), most(|p| p.host_bytes));
        memory::check(dev_bytes, host_bytes, false)?;
        let fill = if self.options.check_memory { exec::POISON } else { 0 };
        let arenas = arena::Arenas::reserve(dev_bytes, host_bytes, fill)?;
        let on_host = programs.iter().any(|program| program.has_host_kernels());
        let host = on_host.then(|| pool(self.options.threads).map(Arc::new)).transpose()?;
        let pools = stream::Pools { device: &self.pool, host };
        Ok(Box::new(stream::Streams::start(programs, arenas, &self.options, pools)?))
    }
}
