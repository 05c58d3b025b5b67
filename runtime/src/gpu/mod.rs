//! Programs on a device that has a [`Driver`]: kernels generated for every op and compiled as one program, two arenas,
//! three queues.
//!
//! Contract: the same kernels, in the same order of each queue, as the plan has commands; nothing is allocated after the
//! program is opened, except that small updates may share a launch ([`joint`]). A plan that was made for another kind of
//! device lists less scratch than kernels of this one need: one region behind the arena serves all of them, since launches
//! run one after another; it counts against the plan's budget, and a plan that leaves no room for it is refused.
//!
//! Results are those of `memc-kernels` within rounding. An index value or label out of range ends the run before an output
//! or a state is taken that follows it.

mod joint;
mod lower;
mod replay;
mod report;

use std::sync::Arc;

use memc_gpu::{Cuda, Driver, GpuError};

use crate::{Device, Error, Executor, Program, memory};

/// A device that is opened anew for every program.
#[derive(Debug)]
pub struct Gpu<F> {
    name: &'static str,
    open: F,
    check_memory: bool,
}

impl<D: Driver + 'static, F: Fn() -> Result<D, GpuError>> Gpu<F> {
    /// A device whose drivers `open` makes. `check_memory` fills undefined memory (at the start, after a free, a result
    /// before it is written) with `0xff`, which is NaN in floats.
    pub fn new(name: &'static str, open: F, check_memory: bool) -> Gpu<F> {
        Gpu { name, open, check_memory }
    }
}

/// The NVIDIA GPU with this number.
pub fn cuda(ordinal: usize, check_memory: bool) -> Gpu<impl Fn() -> Result<Cuda, GpuError>> {
    Gpu::new("cuda", move || Cuda::open(ordinal), check_memory)
}

impl<D: Driver + 'static, F: Fn() -> Result<D, GpuError>> Device for Gpu<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn threads(&self) -> usize {
        0
    }

    fn has_reference_kernels(&self) -> bool {
        false
    }

    fn open(&self, program: Arc<Program>) -> Result<Box<dyn Executor>, Error> {
        // Where there is no device, that is what to say, whatever else the plan wants.
        let driver = (self.open)()?;
        memory::check(0, program.host_bytes)?;
        let lowered = lower::lower(&program)?;
        Ok(Box::new(replay::Replay::new(program, &lowered, driver, self.check_memory)?))
    }
}
