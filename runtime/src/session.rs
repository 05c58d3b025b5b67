//! A plan on a device, step by step.

use std::{path::Path, sync::Arc};

use memc_ir::{OutputRole, attr::Scalar};
use memc_plan::{Plan, Section, Span};

use crate::ends::{self, Outputs};
use crate::jobs;
use crate::state::Saved;
use crate::{
    Decided, Device, Error, Executor, Feeder, HostSide, Initial, Program, Programs, RefusedCall, StateWriter,
};

/// Takes the bytes of the state with an index.
pub type Sink<'s> = dyn FnMut(usize, &[u8]) -> Result<(), Error> + 's;

/// Supplies the bytes of the state with an index; `false` where it has none.
pub(crate) type States<'s> = dyn FnMut(usize, &mut [u8]) -> Result<bool, Error> + 's;

/// A plan that runs on a device.
pub struct Session<'a> {
    executor: Box<dyn Executor>,
    programs: Programs,
    host: Host<'a>,
    /// Whether the prologues have run.
    is_loaded: bool,
    /// Whether a step may be traced.
    is_traced: bool,
}

/// Stands in for an executor that was given back.
struct Closed;

impl Executor for Closed {
    fn run(&mut self, _section: Section, _host: &mut dyn HostSide) -> Result<(), Error> {
        Err(Error::Internal("the session is closed".to_owned()))
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// The host's end of a run.
struct Host<'a> {
    initial: &'a Initial<'a>,
    feeder: &'a mut Feeder,
    /// The plan, then its buckets.
    parts: Vec<Part>,
    /// Index of the part that runs.
    bucket: usize,
    /// Index of the part of the last step.
    stepped: usize,
    step: u64,
}

/// The plan or one of its buckets.
struct Part {
    program: Arc<Program>,
    outputs: Outputs,
    /// Outputs that are losses, each with its job.
    losses: Vec<(usize, usize)>,
}

impl<'a> Session<'a> {
    /// Reserves the memory and brings the states to their resident slots.
    ///
    /// # Errors
    /// Those of [`Device::open`], [`Initial::write`] and the plan's prologue.
    pub fn start(
        device: &dyn Device,
        plan: &Plan,
        programs: impl Into<Programs>,
        initial: &'a Initial<'a>,
        feeder: &'a mut Feeder,
    ) -> Result<Session<'a>, Error> {
        let mut session = Session::open(device, plan, programs, initial, feeder)?;
        session.load()?;
        Ok(session)
    }

    /// Reserves the memory and prepares the device; [`Session::load`] comes next.
    ///
    /// # Errors
    /// Those of [`Device::open`].
    pub(crate) fn open(
        device: &dyn Device,
        plan: &Plan,
        programs: impl Into<Programs>,
        initial: &'a Initial<'a>,
        feeder: &'a mut Feeder,
    ) -> Result<Session<'a>, Error> {
        let programs = programs.into();
        let executor = device.open_all(&programs)?;
        let part = |(plan, program): (&Plan, &Arc<Program>)| {
            let losses = plan.outputs.iter().zip(&program.types.outputs).enumerate();
            let losses = losses.filter(|(_, (o, ty))| o.role == OutputRole::Loss && ty.dtype.is_float());
            let losses = losses.map(|(i, (o, _))| (i, jobs::index_of(feeder.jobs(), &o.name))).collect();
            Part { program: program.clone(), outputs: Outputs::of(program), losses }
        };
        let parts = plan.with_buckets().zip(programs.iter()).map(part).collect();
        let host = Host { initial, feeder, parts, bucket: 0, stepped: 0, step: initial.step() };
        Ok(Session { executor, programs, host, is_loaded: false, is_traced: false })
    }

    /// Brings the states to their resident slots, before anything else.
    ///
    /// # Errors
    /// Those of [`Initial::write`] and the plan's prologue.
    pub(crate) fn load(&mut self) -> Result<(), Error> {
        self.prologues(&mut |_, _| Ok(false))
    }

    /// Runs the prologues that have to run: of all buckets, or once they have run, of the present one.
    fn prologues(&mut self, states: &mut States<'_>) -> Result<(), Error> {
        let all = 0..self.host.parts.len();
        let present = self.host.bucket..self.host.bucket.saturating_add(1);
        for bucket in if self.is_loaded { present } else { all } {
            self.select(bucket)?;
            let mut host = Elsewhere { host: &mut self.host, states: Some(&mut *states), sink: None };
            self.executor.run(Section::Prologue, &mut host)?;
        }
        self.is_loaded = true;
        Ok(())
    }

    /// Chooses the bucket that runs from now on.
    fn select(&mut self, bucket: usize) -> Result<(), Error> {
        if bucket != self.host.bucket {
            self.executor.select(bucket)?;
            self.host.bucket = bucket;
        }
        Ok(())
    }

    /// Begins the next step: chooses its bucket.
    fn advance(&mut self) -> Result<(), Error> {
        self.host.step = self.host.step.saturating_add(1);
        if self.host.parts.len() > 1 {
            self.host.feeder.prepare(self.host.step)?;
            self.select(self.host.feeder.bucket())?;
        }
        self.host.stepped = self.host.bucket;
        Ok(())
    }

    /// The bucket of the last step; 0 is the plan itself.
    pub(crate) fn last_bucket(&self) -> usize {
        self.host.stepped
    }

    /// The program of the last step.
    pub(crate) fn program(&self) -> Option<&Arc<Program>> {
        self.programs.of(self.host.stepped)
    }

    /// Notes for the user on how the program runs on the device.
    pub fn notes(&self) -> &[String] {
        self.executor.notes()
    }

    /// Decisions of the last step, where the device decides while it runs.
    pub(crate) fn decided(&self) -> Option<Decided> {
        self.executor.decided()
    }

    /// Calls that the device's libraries refused.
    pub(crate) fn refused(&self) -> &[RefusedCall] {
        self.executor.refused()
    }

    /// Runs one step; of a plan of several jobs, one round.
    ///
    /// # Errors
    /// The first error of any stream; the session is of no use then.
    pub fn step(&mut self) -> Result<(), Error> {
        self.advance()?;
        self.executor.run(Section::Body, &mut self.host)
    }

    /// Takes what [`Session::traced_step`] needs, before the first step.
    ///
    /// # Errors
    /// The device tells no times.
    pub fn prepare_trace(&mut self) -> Result<(), Error> {
        self.is_traced = true;
        self.executor.prepare_trace()
    }

    /// Runs one step, waits for it, and says when its commands ran.
    ///
    /// # Errors
    /// Those of [`Session::step`].
    pub fn traced_step(&mut self) -> Result<Vec<Span>, Error> {
        self.advance()?;
        self.executor.traced(&mut self.host)
    }

    /// Reads and checks the data of the next step.
    ///
    /// # Errors
    /// Those of [`Feeder::prepare`]; the session is as it was.
    pub(crate) fn prepare(&mut self) -> Result<(), Error> {
        self.host.feeder.prepare(self.host.step.saturating_add(1))
    }

    /// Waits until everything that was issued has run.
    ///
    /// # Errors
    /// The first error of any stream.
    pub(crate) fn synchronize(&mut self) -> Result<(), Error> {
        self.executor.synchronize()
    }

    /// The data.
    pub(crate) fn feeder(&self) -> &Feeder {
        self.host.feeder
    }

    /// Writes the states to a file that is not in its place yet; [`Session::reload`] comes next.
    ///
    /// # Errors
    /// Those of [`StateWriter`] and of the epilogue; the session is of no use then.
    pub(crate) fn store(&mut self, path: &Path, plan: &Plan) -> Result<Saved, Error> {
        let mut writer = StateWriter::of_jobs(path, plan, self.host.feeder.jobs(), self.host.step)?;
        let mut sink = |state: usize, bytes: &[u8]| writer.put(state, bytes);
        self.epilogue(&mut sink)?;
        writer.written(plan)
    }

    /// Gives the device's memory back. The states must have been stored.
    pub(crate) fn close(&mut self) {
        self.executor = Box::new(Closed);
    }

    /// Reserves the memory again; [`Session::reload`] comes next.
    ///
    /// # Errors
    /// Those of [`Device::open`]; the session is of no use then.
    pub(crate) fn reopen(&mut self, device: &dyn Device) -> Result<(), Error> {
        self.executor = device.open_all(&self.programs)?;
        (self.host.bucket, self.is_loaded) = (0, false);
        if self.is_traced { self.executor.prepare_trace() } else { Ok(()) }
    }

    /// Goes on from states that `states` supplies, or where it has none from the initial ones.
    ///
    /// # Errors
    /// Those of `states` and of the prologue; the session is of no use then.
    pub(crate) fn reload(&mut self, states: &mut States<'_>) -> Result<(), Error> {
        self.prologues(states)?;
        self.executor.synchronize()
    }

    /// Steps done, those of the resumed run included; of a plan of several jobs, rounds.
    pub fn steps_done(&self) -> u64 {
        self.host.step
    }

    /// Bytes of an output of the last step.
    pub fn output(&self, output: usize) -> &[u8] {
        let part = self.host.parts.get(self.host.stepped);
        part.and_then(|part| part.outputs.get(output)).unwrap_or_default()
    }

    /// Mean of all numbers of all loss outputs of a job in the last round; `None` if it has no loss. The only
    /// job of a plan of one model is 0.
    pub fn loss(&self, job: usize) -> Option<f32> {
        let (mut sum, mut count) = (0.0, 0u32);
        let part = self.host.parts.get(self.host.stepped)?;
        for &(output, _) in part.losses.iter().filter(|(_, of)| *of == job) {
            let Some(ty) = part.program.types.outputs.get(output) else { continue };
            for number in self.output(output).chunks(ty.dtype.bytes() as usize) {
                if let Some(Scalar::Float(x)) = Scalar::from_bytes(number, ty.dtype) {
                    sum += f64::from(x.0);
                    count += 1;
                }
            }
        }
        (count > 0).then(|| (sum / f64::from(count)) as f32)
    }

    /// Ends the run: hands each stored state with its index to `sink`, and waits for everything that was
    /// issued.
    ///
    /// # Errors
    /// The first error of any stream, or of `sink`.
    pub fn finish(mut self, sink: &mut Sink<'_>) -> Result<(), Error> {
        self.epilogue(sink)
    }

    /// Hands each stored state to `sink`, and waits for all that was issued.
    fn epilogue(&mut self, sink: &mut Sink<'_>) -> Result<(), Error> {
        let mut host = Elsewhere { host: &mut self.host, states: None, sink: Some(sink) };
        self.executor.run(Section::Epilogue, &mut host)?;
        self.executor.synchronize()
    }
}

impl Host<'_> {
    /// The plan or bucket that runs.
    fn part(&self) -> Option<&Part> {
        self.parts.get(self.bucket)
    }
}

/// Error of a bucket that there is not.
fn no_bucket() -> Error {
    Error::Internal("a bucket runs that the plan does not have".to_owned())
}

impl HostSide for Host<'_> {
    fn load(&mut self, state: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let part = self.part().ok_or_else(no_bucket)?;
        ends::load(&part.program, self.initial, (self.bucket, state), bytes)
    }

    fn store(&mut self, _state: usize, _bytes: &[u8]) -> Result<(), Error> {
        Err(Error::Plan("a state is stored before the end".to_owned()))
    }

    fn write(&mut self, input: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.feeder.write(input, self.step, bytes)
    }

    fn read(&mut self, output: usize, bytes: &[u8]) -> Result<(), Error> {
        let part = self.parts.get_mut(self.bucket).ok_or_else(no_bucket)?;
        part.outputs.keep(output, bytes)
    }
}

/// The host's end where states come from elsewhere, or go there.
struct Elsewhere<'h, 'a, 's> {
    host: &'h mut Host<'a>,
    states: Option<&'h mut States<'s>>,
    sink: Option<&'h mut Sink<'s>>,
}

impl HostSide for Elsewhere<'_, '_, '_> {
    fn load(&mut self, state: usize, bytes: &mut [u8]) -> Result<(), Error> {
        if let Some(states) = &mut self.states
            && states(state, bytes)?
        {
            return Ok(());
        }
        self.host.load(state, bytes)
    }

    fn store(&mut self, state: usize, bytes: &[u8]) -> Result<(), Error> {
        match &mut self.sink {
            Some(sink) => sink(state, bytes),
            None => self.host.store(state, bytes),
        }
    }

    fn write(&mut self, input: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.host.write(input, bytes)
    }

    fn read(&mut self, output: usize, bytes: &[u8]) -> Result<(), Error> {
        self.host.read(output, bytes)
    }
}
