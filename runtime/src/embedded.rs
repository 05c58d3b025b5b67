//! A plan in the program of its caller, which hands it inputs and takes outputs and states as bytes.
//!
//! Contract: the caller supplies every input of a step but the step's number. What can be wrong with the data
//! is found before the step begins, and leaves everything as it was; any other error ends the use of the
//! plan. Between two steps states may be read, replaced, and where they are ordinary memory changed in place.
//!
//! Files of data, schedules of learning rates and saved states are the work of [`crate::Session`].

use std::collections::BTreeMap;
use std::sync::Arc;

use memc_gpu::LibraryOptions;
use memc_ir::{DType, TensorType};
use memc_plan::{Feed, Input, PlanFile, Section};

use crate::cpu::{self, Cpu};
use crate::ends::{self, Outputs};
use crate::feed::legal::{self, Legal};
use crate::jobs::{self, Job};
use crate::{Device, DeviceName, Error, Executor, HostSide, Initial, Program, StatePlace, gpu};

/// Device of an embedded plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmbeddedOptions {
    /// The device.
    pub device: DeviceName,
    /// Options of the CPU device; `check_memory` is for every device.
    pub cpu: cpu::Options,
    /// Permissions of a GPU's libraries.
    pub libraries: LibraryOptions,
    /// Issue every command of every step, on a device that would capture and replay them.
    pub no_graph: bool,
}

impl EmbeddedOptions {
    fn open(self) -> Result<Box<dyn Device>, Error> {
        Ok(match self.device {
            DeviceName::Cpu => Box::new(Cpu::new(self.cpu)?),
            DeviceName::Cuda(ordinal) => {
                let device = gpu::cuda(ordinal, self.libraries, self.cpu.check_memory);
                Box::new(device.without_graph(self.no_graph))
            }
        })
    }
}

/// Supplies the first contents of the state with an index; `false` where the plan's own are to be taken.
pub type Contents<'s> = dyn FnMut(usize, &mut [u8]) -> Result<bool, Error> + 's;

/// A plan that runs.
pub struct Embedded {
    file: Arc<PlanFile>,
    program: Arc<Program>,
    executor: Box<dyn Executor>,
    outputs: Outputs,
    /// Values that inputs may hold, by the index of the input.
    legal: BTreeMap<usize, Vec<Legal>>,
    jobs: Vec<Job>,
    /// Rounds done.
    done: u64,
}

impl Embedded {
    /// Reserves the memory and brings the states to their resident slots.
    ///
    /// # Errors
    /// Those of [`Device::open`], of `contents`, of the plan's prologue, and [`Error::Usage`] for a plan with
    /// buckets.
    pub fn start(
        file: Arc<PlanFile>,
        options: EmbeddedOptions,
        contents: &mut Contents<'_>,
    ) -> Result<Embedded, Error> {
        let program = Arc::new(Program::new(file.plan())?);
        file.plan().inputs.iter().try_for_each(check_number)?;
        let mut executor = options.open()?.open(program.clone())?;
        let initial = Initial::new(&file, Vec::new(), Vec::new())?;
        let mut loading = Loading { program: &program, initial: &initial, contents };
        executor.run(Section::Prologue, &mut loading)?;
        executor.synchronize()?;
        let (outputs, legal) = (Outputs::of(&program), legal::of(file.plan(), &program));
        let jobs = jobs::of(file.plan());
        Ok(Embedded { file, program, executor, outputs, legal, jobs, done: 0 })
    }

    /// The plan.
    pub fn file(&self) -> &Arc<PlanFile> {
        &self.file
    }

    /// Notes for the user on how the program runs on the device.
    pub fn notes(&self) -> &[String] {
        self.executor.notes()
    }

    /// Steps done; of a plan of several jobs, rounds.
    pub fn steps_done(&self) -> u64 {
        self.done
    }

    /// Sets the number of steps done, so that the next one has the number after it.
    pub fn set_steps(&mut self, done: u64) {
        self.done = done;
    }

    /// Runs one step; of a plan of several jobs, one round. `data` has the bytes of each input, by index; the
    /// numbers of steps are filled in.
    ///
    /// # Errors
    /// [`Error::Data`] where an input is missing, has another length or holds a value that no kernel takes:
    /// nothing has happened then. After any other error the plan is of no use.
    pub fn step(&mut self, data: &[Option<&[u8]>]) -> Result<(), Error> {
        let step = self.done.saturating_add(1);
        let inputs = self.file.plan().inputs.iter().zip(&self.program.types.inputs);
        for (at, (input, ty)) in inputs.enumerate() {
            if matches!(input.feed, Feed::Step { .. }) {
                continue;
            }
            let Some(bytes) = data.get(at).copied().flatten() else {
                return Err(Error::Data(format!("input `{}` is missing; the step takes {ty}", input.name)));
            };
            check_length(&input.name, ty, bytes.len())?;
            let legal = self.legal.get(&at).map(Vec::as_slice).unwrap_or_default();
            legal::check(legal, &input.name, ty, bytes, step)?;
        }
        let outputs = &mut self.outputs;
        let mut stepping = Stepping { file: &self.file, jobs: &self.jobs, data, outputs, step };
        self.executor.run(Section::Body, &mut stepping)?;
        self.done = step;
        Ok(())
    }

    /// Bytes of an output of the last step; zeros before the first. `None` of one that there is not.
    pub fn output(&self, output: usize) -> Option<&[u8]> {
        self.outputs.get(output)
    }

    /// Takes the content of a state, once the last step is done. `bytes` has the length of its type.
    ///
    /// # Errors
    /// Those of [`Executor::read_state`].
    pub fn read_state(&mut self, state: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.executor.read_state(state, bytes)
    }

    /// Gives a state another content, once the last step is done. `bytes` has the length of its type.
    ///
    /// # Errors
    /// Those of [`Executor::write_state`].
    pub fn write_state(&mut self, state: usize, bytes: &[u8]) -> Result<(), Error> {
        self.executor.write_state(state, bytes)
    }

    /// See [`Executor::state_place`].
    ///
    /// # Errors
    /// Those of [`Executor::read_state`].
    pub fn state_place(&mut self, state: usize) -> Result<StatePlace, Error> {
        self.executor.state_place(state)
    }

    /// Waits until the last step is done.
    ///
    /// # Errors
    /// The first error of any stream.
    pub fn synchronize(&mut self) -> Result<(), Error> {
        self.executor.synchronize()
    }
}

/// Refuses a step number that is no number.
fn check_number(input: &Input) -> Result<(), Error> {
    let is_number = matches!(input.ty.dtype, DType::F32 | DType::I32 | DType::I64) && input.ty.numel() == 1;
    if is_number || !matches!(input.feed, Feed::Step { .. }) {
        return Ok(());
    }
    Err(Error::Plan(format!("input `{}`: a step number is one f32, i32 or i64 number", input.name)))
}

/// Refuses data of another length than its type's.
fn check_length(name: &str, ty: &TensorType, bytes: usize) -> Result<(), Error> {
    if ty.bytes() == bytes as u64 {
        return Ok(());
    }
    Err(Error::Data(format!("input `{name}` has {bytes} bytes; {ty} has {}", ty.bytes())))
}

/// Error of an exchange that a section does not have.
fn misplaced(what: &str) -> Error {
    Error::Plan(format!("{what} out of its place"))
}

/// The host's end of the prologue.
struct Loading<'l, 's> {
    program: &'l Program,
    initial: &'l Initial<'l>,
    contents: &'l mut Contents<'s>,
}

impl HostSide for Loading<'_, '_> {
    fn load(&mut self, state: usize, bytes: &mut [u8]) -> Result<(), Error> {
        if (self.contents)(state, bytes)? {
            return Ok(());
        }
        ends::load(self.program, self.initial, (0, state), bytes)
    }

    fn store(&mut self, _state: usize, _bytes: &[u8]) -> Result<(), Error> {
        Err(misplaced("a state is stored"))
    }

    fn write(&mut self, _input: usize, _bytes: &mut [u8]) -> Result<(), Error> {
        Err(misplaced("an input is written"))
    }

    fn read(&mut self, _output: usize, _bytes: &[u8]) -> Result<(), Error> {
        Err(misplaced("an output is read"))
    }
}

/// The host's end of a step.
struct Stepping<'s> {
    file: &'s PlanFile,
    jobs: &'s [Job],
    data: &'s [Option<&'s [u8]>],
    outputs: &'s mut Outputs,
    /// Number of the step.
    step: u64,
}

impl HostSide for Stepping<'_> {
    fn load(&mut self, _state: usize, _bytes: &mut [u8]) -> Result<(), Error> {
        Err(misplaced("a state is loaded"))
    }

    fn store(&mut self, _state: usize, _bytes: &[u8]) -> Result<(), Error> {
        Err(misplaced("a state is stored"))
    }

    fn write(&mut self, input: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let wrong = || Error::Internal(format!("input {input} has no contents of {} bytes", bytes.len()));
        let entry = self.file.plan().inputs.get(input).ok_or_else(wrong)?;
        if let Feed::Step { turn } = entry.feed {
            let job = self.jobs.get(jobs::index_of(self.jobs, &entry.name));
            let step = job.map_or(self.step, |job| job.step(self.step, turn.index));
            ends::write_step(bytes, entry.ty.dtype, step);
            return Ok(());
        }
        let data = self.data.get(input).copied().flatten().filter(|data| data.len() == bytes.len());
        crate::feed::copy(bytes, data.ok_or_else(wrong)?);
        Ok(())
    }

    fn read(&mut self, output: usize, bytes: &[u8]) -> Result<(), Error> {
        self.outputs.keep(output, bytes)
    }
}
