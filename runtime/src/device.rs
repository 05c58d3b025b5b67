//! Interface of a device: it reserves two arenas and replays a prepared program.
//!
//! Contract: a device reserves exactly the arenas that the program asks for, before anything runs, and
//! nothing afterwards. A program is handed over once; its sections are then run without preparation.

use std::sync::Arc;

use memc_plan::{Section, Span};

use crate::{Error, Program, RefusedCall};

/// A machine that executes programs.
pub trait Device {
    /// Name for humans, such as `cpu`.
    fn name(&self) -> &'static str;

    /// Threads of this machine that kernels run on; 0 where they do not run on it.
    fn threads(&self) -> usize {
        0
    }

    /// Whether its kernels are those of `memc-kernels`, to the bit.
    fn has_reference_kernels(&self) -> bool {
        false
    }

    /// Reserves both arenas, touches their pages, and prepares the program's sections for replay.
    ///
    /// # Errors
    /// [`Error::Memory`] if the memory is not there, [`Error::Plan`] if the device cannot run the program.
    fn open(&self, program: Arc<Program>) -> Result<Box<dyn Executor>, Error>;
}

/// A program on a device.
pub trait Executor {
    /// Issues the commands of one section in order. Host commands call `host`; commands of other streams may
    /// still be running on return. The prologue comes first and once, then the body any number of times, then
    /// the epilogue once; a prologue may follow an epilogue that was waited for. After an error the executor
    /// only returns errors and no longer calls `host`.
    ///
    /// # Errors
    /// The first error of any stream, or of `host`; [`Error::Internal`] for a section out of this order.
    fn run(&mut self, section: Section, host: &mut dyn HostSide) -> Result<(), Error>;

    /// Takes what [`Executor::traced`] needs, before the first body.
    ///
    /// # Errors
    /// The device tells no times.
    fn prepare_trace(&mut self) -> Result<(), Error> {
        Err(Error::Internal("this device traces nothing".to_owned()))
    }

    /// Runs the body as [`Executor::run`] does, and waits for it: when each launch, copy, write and read of
    /// it ran, in ns from the first of them.
    ///
    /// # Errors
    /// Those of [`Executor::run`].
    fn traced(&mut self, _host: &mut dyn HostSide) -> Result<Vec<Span>, Error> {
        Err(Error::Internal("this device traces nothing".to_owned()))
    }

    /// Waits until all streams have run what was issued.
    ///
    /// # Errors
    /// The first error of any stream.
    fn synchronize(&mut self) -> Result<(), Error>;

    /// Notes for the user on how the program runs here.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// Calls that the device's libraries refused, so that generated kernels run instead.
    fn refused(&self) -> &[RefusedCall] {
        &[]
    }
}

/// The host's end of a plan: what happens at its host commands. Indices are those of the plan's tables, and
/// byte slices have the length of the tensor's type.
pub trait HostSide {
    /// Fills in the initial contents of a state.
    ///
    /// # Errors
    /// Whatever keeps the contents from being supplied.
    fn load(&mut self, state: usize, bytes: &mut [u8]) -> Result<(), Error>;

    /// Takes the final contents of a state.
    ///
    /// # Errors
    /// Whatever keeps the contents from being taken.
    fn store(&mut self, state: usize, bytes: &[u8]) -> Result<(), Error>;

    /// Fills in an input of the current step.
    ///
    /// # Errors
    /// Whatever keeps the contents from being supplied.
    fn write(&mut self, input: usize, bytes: &mut [u8]) -> Result<(), Error>;

    /// Takes an output of the current step.
    ///
    /// # Errors
    /// Whatever keeps the contents from being taken.
    fn read(&mut self, output: usize, bytes: &[u8]) -> Result<(), Error>;
}
