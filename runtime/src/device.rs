//! Interface of a device: it reserves two arenas and replays a prepared program.
//!
//! Contract: a device reserves the arenas that the program asks for before anything runs, and nothing
//! afterwards. A GPU may add a second place in host memory for each input. A program is handed over once; its
//! sections are then run without preparation.

use std::{str::FromStr, sync::Arc};

use memc_plan::{Section, Span};

use crate::{Decided, Error, Program, Programs, RefusedCall};

/// A device by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// Arenas in ordinary memory, streams as threads.
    #[default]
    Cpu,
    /// The NVIDIA GPU with this number.
    Cuda(usize),
}

impl FromStr for DeviceName {
    type Err = &'static str;

    /// Parses `cpu`, `cuda` or `cuda:N`.
    fn from_str(text: &str) -> Result<DeviceName, &'static str> {
        let number = |n: &str| n.parse().ok().filter(|_| n.bytes().all(|b| b.is_ascii_digit()));
        match text.split_once(':') {
            None if text == "cpu" => Ok(DeviceName::Cpu),
            None if text == "cuda" => Ok(DeviceName::Cuda(0)),
            Some(("cuda", n)) => number(n).map(DeviceName::Cuda).ok_or("expected a number after `cuda:`"),
            _ => Err("expected cpu, cuda or cuda:N"),
        }
    }
}

/// Where a state lies between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePlace {
    /// Address in this process, or in a GPU's memory.
    pub address: usize,
    /// Whether the address is one of a GPU's memory, in the primary context of its driver.
    pub is_on_gpu: bool,
    /// Whether a step takes the state from a copy too, which a change in this place would not reach.
    pub has_copies: bool,
}

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

    /// As [`Device::open`], for the programs of a plan and its buckets, which share the arenas.
    ///
    /// # Errors
    /// Those of [`Device::open`], and [`Error::Usage`] where the device runs no plans with buckets.
    fn open_all(&self, programs: &Programs) -> Result<Box<dyn Executor>, Error> {
        match &programs[..] {
            [program] => self.open(program.clone()),
            _ => Err(Error::Usage(format!(
                "the plan has buckets for several sizes, which run on the CPU device so far and not on `{}`; \
                 compile with one size for each --dim",
                self.name()
            ))),
        }
    }
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

    /// Chooses the program of the plan (0) or of one of its buckets, whose sections run from now on. Waits
    /// for all that was issued where it is another than before. Each program has a prologue of its own, which
    /// comes before its first body. The epilogue is that of the program which ran last.
    ///
    /// # Errors
    /// The first error of any stream; [`Error::Internal`] for a bucket that there is not.
    fn select(&mut self, bucket: usize) -> Result<(), Error> {
        if bucket == 0 { Ok(()) } else { Err(Error::Internal(format!("this device has no bucket {bucket}"))) }
    }

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

    /// Takes the content that a state has between two steps, once all that was issued has run. `bytes` has
    /// the length of the state's type.
    ///
    /// # Errors
    /// The first error of any stream; [`Error::Internal`] within a section, and on a device that hands out no
    /// states.
    fn read_state(&mut self, _state: usize, _bytes: &mut [u8]) -> Result<(), Error> {
        Err(no_states())
    }

    /// Gives a state another content between two steps, once all that was issued has run: in its resident
    /// slot, and wherever the prologue copies that to.
    ///
    /// # Errors
    /// Those of [`Executor::read_state`].
    fn write_state(&mut self, _state: usize, _bytes: &[u8]) -> Result<(), Error> {
        Err(no_states())
    }

    /// Where a state lies between two steps: its resident slot. Waits until all that was issued has run.
    /// Until the next section runs, the bytes there are the state's content, and may be written if it has no
    /// copies. They stay in their place as long as the executor lives.
    ///
    /// # Errors
    /// Those of [`Executor::read_state`].
    fn state_place(&mut self, _state: usize) -> Result<StatePlace, Error> {
        Err(no_states())
    }

    /// Decisions of the last body, where the device decides while it runs.
    fn decided(&self) -> Option<Decided> {
        None
    }

    /// Notes for the user on how the program runs here.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// Calls that the device's libraries refused, so that generated kernels run instead.
    fn refused(&self) -> &[RefusedCall] {
        &[]
    }
}

/// Error of a device whose states only its epilogue tells.
fn no_states() -> Error {
    Error::Internal("this device hands out no states between steps".to_owned())
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
