//! Programs on a device that has a [`Driver`](memc_gpu::Driver): kernels that are generated and compiled,
//! calls of libraries, two arenas, queues, kernels on the host.
//!
//! A matrix product or convolution is a library's call where `memc-cuda` describes it as one, the library is
//! there, and it has an algorithm that takes no more workspace than the plan lists: the one of the plan's
//! tuning section, where it was measured with the same libraries on the same kind of device, or the one that
//! the library chooses. Otherwise it is a generated kernel.
//!
//! A step runs by graphs: the commands of the body are captured once over all queues, and a launch
//! replays them all. Two graphs take turns and are ordered by events of theirs, so that a step's first copies
//! may run beside the last of the step before it, as when commands are issued one by one. This costs a second
//! set of nodes on the device, and a wait for the device after the first step. Where a plan swaps, the faster
//! way is found in the first steps. Inputs have two places in host memory, which take turns, too: the host
//! writes a step's inputs and issues it while the step before it runs. Where `--host-mem` leaves no room for
//! the second places, or the plan has other things in the first ones, it waits.
//!
//! Contract: the same kernels, in the same order of each queue, as the plan has commands; nothing is
//! allocated after the program is opened, except that small updates may share a launch. A plan that was made
//! for another kind of device lists less scratch than kernels of this one need: one region behind the arena
//! serves all of them, since launches run one after another; it counts against the plan's budget, and a plan
//! that leaves no room for it is refused.
//!
//! Results are those of `memc-kernels` within rounding. An index value or label out of range ends the run
//! before an output or a state is taken that follows it.

mod at_host;
mod batched;
mod capture;
mod library;
mod lower;
pub(crate) mod machine;
pub(crate) mod measure;
mod memory;
mod places;
mod probe;
pub(crate) mod refused;
mod replay;
mod report;
mod split;
mod states;
mod trace;
mod trial;
pub(crate) mod tune;
mod tuned;
mod turns;
mod units;

use std::sync::Arc;

use memc_gpu::{Clock, Cuda, GpuError, Graphs, LibraryAlgorithms, LibraryOptions};

use crate::{Device, Error, Executor, Program};

/// A device that is opened anew for every program.
#[derive(Debug)]
pub struct Gpu<F> {
    name: &'static str,
    open: F,
    options: replay::ReplayOptions,
}

impl<D: Graphs + Clock + LibraryAlgorithms + 'static, F: Fn() -> Result<D, GpuError>> Gpu<F> {
    /// A device whose drivers `open` makes. `check_memory` fills undefined memory (at the start, after a
    /// free, a result before it is written) with `0xff`, which is NaN in floats.
    pub fn new(name: &'static str, open: F, check_memory: bool) -> Gpu<F> {
        Gpu {
            name,
            open,
            options: replay::ReplayOptions { check_memory, ..replay::ReplayOptions::default() },
        }
    }

    /// The same device, which issues every command of every step where `no_graph` is set.
    #[must_use]
    pub fn without_graph(mut self, no_graph: bool) -> Gpu<F> {
        self.options.no_graph = no_graph;
        self
    }

    /// The same device, which takes host arenas of up to `granted` bytes whatever the system says is
    /// available: the caller has compared the plan's with that. A plan's own arena is taken where that is
    /// larger, so that 0 stands for programs that share what is granted.
    #[must_use]
    pub fn with_host_memory(mut self, granted: Option<u64>) -> Gpu<F> {
        self.options.granted = granted;
        self
    }
}

/// The NVIDIA GPU with this number, and a choice of libraries.
pub fn cuda(
    ordinal: usize,
    libraries: LibraryOptions,
    check_memory: bool,
) -> Gpu<impl Fn() -> Result<Cuda, GpuError>> {
    Gpu::new("cuda", move || Cuda::open(ordinal, libraries), check_memory)
}

impl<D: Graphs + Clock + LibraryAlgorithms + 'static, F: Fn() -> Result<D, GpuError>> Device for Gpu<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, program: Arc<Program>) -> Result<Box<dyn Executor>, Error> {
        // Where there is no device, that is what to say, whatever else the plan wants.
        Ok(Box::new(replay::Replay::open((self.open)()?, program, self.options)?))
    }
}
