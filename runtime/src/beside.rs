//! The unplanned run beside the planned one, which must equal it bit for bit.
//!
//! Where kernels are those of `memc-kernels`, it is the [`Reference`], which shares nothing with the plan. Other devices
//! have bits of their own: there it is a session of the same device with the plan that plans nothing.

use std::sync::Arc;

use memc_plan::PlanFile;
use rayon::ThreadPool;

use crate::{Device, Error, Feeder, Initial, Program, Reference, Session, cpu, memory, unplanned};

/// An unplanned run.
pub(crate) enum Beside<'a> {
    /// By the CPU's kernels, on this pool.
    Interpreted { reference: Box<Reference>, feeder: &'a mut Feeder, pool: ThreadPool },
    /// On the device; with the states, once it has ended.
    Replayed { session: Option<Session<'a>>, states: Vec<Vec<u8>> },
}

impl<'a> Beside<'a> {
    /// Starts an unplanned run of a plan's source graph; kernels of the CPU run on so many threads, 0 for as many as there
    /// are, and the host arenas of both runs have at most `host_mem` bytes.
    ///
    /// # Errors
    /// [`Error::Plan`] for a source that is no valid graph, and [`Error::Memory`] where it does not fit beside the plan.
    pub(crate) fn start(
        device: &dyn Device,
        file: &PlanFile,
        initial: &'a Initial<'a>,
        feeder: &'a mut Feeder,
        threads: usize,
        host_mem: Option<u64>,
    ) -> Result<Beside<'a>, Error> {
        if device.has_reference_kernels() {
            let (reference, pool) = (Box::new(Reference::new(file, initial)?), cpu::pool(threads)?);
            return Ok(Beside::Interpreted { reference, feeder, pool });
        }
        let plan = unplanned::plan(file.plan())?;
        let program = Arc::new(Program::new(&plan)?);
        let planned = usize::try_from(file.plan().meta.host_bytes).unwrap_or(usize::MAX);
        let session = memory::limit_both(planned, program.host_bytes, host_mem)
            .and_then(|()| Session::start(device, &plan, program, initial, feeder))
            .map_err(|error| match error {
                Error::Memory(text) => Error::Memory(format!(
                    "{text}; --verify runs the unplanned step beside the plan, run without it"
                )),
                other => other,
            })?;
        let states = vec![Vec::new(); plan.states.len()];
        Ok(Beside::Replayed { session: Some(session), states })
    }

    /// Runs the step with this number.
    pub(crate) fn step(&mut self, step: u64) -> Result<(), Error> {
        match self {
            Beside::Interpreted { reference, feeder, pool } => pool.install(|| reference.step(feeder, step)),
            Beside::Replayed { session, .. } => session.as_mut().map_or(Ok(()), Session::step),
        }
    }

    /// Bytes of the plan's output with this index after the last step.
    pub(crate) fn output(&self, output: usize) -> &[u8] {
        match self {
            Beside::Interpreted { reference, .. } => reference.output(output),
            Beside::Replayed { session, .. } => session.as_ref().map_or(&[], |s| s.output(output)),
        }
    }

    /// Ends the run, after which there are states.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        let Beside::Replayed { session, states } = self else { return Ok(()) };
        let Some(session) = session.take() else { return Ok(()) };
        session.finish(&mut |state, bytes| {
            states.get_mut(state).into_iter().for_each(|kept| bytes.clone_into(kept));
            Ok(())
        })
    }

    /// Bytes of the plan's state with this index at the end.
    pub(crate) fn state(&self, state: usize) -> &[u8] {
        match self {
            Beside::Interpreted { reference, .. } => reference.state(state),
            Beside::Replayed { states, .. } => states.get(state).map_or(&[], Vec::as_slice),
        }
    }
}
