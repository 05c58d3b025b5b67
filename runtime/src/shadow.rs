//! The shadow run: the unplanned step beside the planned one, which must equal it bit for bit.
//!
//! It is a session of the same kind of device with the plan that plans nothing.

use memc_plan::PlanFile;

use crate::{Device, Error, Feeder, Initial, Programs, Session, cpu, memory, unplanned};

/// An unplanned run.
pub(crate) struct Shadow<'a> {
    /// Absent once the run has ended.
    session: Option<Session<'a>>,
    /// Final bytes of the states, once the run has ended.
    states: Vec<Vec<u8>>,
}

impl<'a> Shadow<'a> {
    /// Starts an unplanned run of a plan's source graph. The CPU's kernels get threads of their own,
    /// `threads` or, for 0, as many as there are; the page-locked host arenas of both runs have at most
    /// `host_mem` bytes.
    ///
    /// # Errors
    /// [`Error::Plan`] for a source that is no valid graph, and [`Error::Memory`] where it does not fit
    /// beside the plan.
    pub(crate) fn start(
        device: &dyn Device,
        file: &PlanFile,
        initial: &'a Initial<'a>,
        feeder: &'a mut Feeder,
        threads: usize,
        host_mem: Option<u64>,
    ) -> Result<Shadow<'a>, Error> {
        let plan = unplanned::plan(file.plan())?;
        let programs = Programs::new(&plan)?;
        let host_bytes = programs.first()?.host_bytes;
        let session = if device.has_reference_kernels() {
            // A program takes one of its device's threads for good.
            let own = cpu::Cpu::new(cpu::Options { threads, ..cpu::Options::default() })?;
            Session::start(&own, &plan, programs, initial, feeder)
        } else {
            let planned = usize::try_from(file.plan().meta.host_bytes).unwrap_or(usize::MAX);
            memory::limit_both(planned, host_bytes, host_mem)
                .and_then(|()| Session::start(device, &plan, programs, initial, feeder))
        };
        let session = session.map_err(|error| match error {
            Error::Memory(text) => Error::Memory(format!(
                "{text}; --verify runs the unplanned step beside the plan, run without it"
            )),
            other => other,
        })?;
        Ok(Shadow { session: Some(session), states: vec![Vec::new(); plan.states.len()] })
    }

    /// Runs one step.
    pub(crate) fn step(&mut self) -> Result<(), Error> {
        self.session.as_mut().map_or(Ok(()), Session::step)
    }

    /// Bytes of the plan's output with this index after the last step.
    pub(crate) fn output(&self, output: usize) -> &[u8] {
        self.session.as_ref().map_or(&[], |session| session.output(output))
    }

    /// Ends the run, after which there are states.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        let Some(session) = self.session.take() else { return Ok(()) };
        session.finish(&mut |state, bytes| {
            self.states.get_mut(state).into_iter().for_each(|kept| bytes.clone_into(kept));
            Ok(())
        })
    }

    /// Bytes of the plan's state with this index at the end.
    pub(crate) fn state(&self, state: usize) -> &[u8] {
        self.states.get(state).map_or(&[], Vec::as_slice)
    }
}
