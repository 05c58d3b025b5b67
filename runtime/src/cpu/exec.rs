//! Running one command on the arenas.

use std::sync::Arc;

use memc_kernels::{Call, execute};

use super::arena::{Arenas, Scratch};
use crate::device::HostSide;
use crate::program::{Action, Launch, Place, Source};
use crate::{Error, Program, StatePlace};

/// Value of undefined bytes in checking mode: NaN in floats, -1 in integers.
pub(crate) const POISON: u8 = 0xff;

/// Runs the commands of one stream.
pub(crate) struct Runner {
    program: Arc<Program>,
    arenas: Arc<Arenas>,
    poison: bool,
    scratch: Scratch,
}

impl Runner {
    pub(crate) fn new(program: Arc<Program>, arenas: Arc<Arenas>, poison: bool) -> Runner {
        Runner { program, arenas, poison, scratch: Scratch::default() }
    }

    /// Runs a launch, copy or free; other actions are the issuing thread's.
    pub(crate) fn run(&mut self, action: &Action) -> Result<(), Error> {
        match action {
            Action::Launch(launch) => self.launch(launch),
            Action::Copy { src, dst } => {
                self.arenas.write(*dst).copy_from_slice(self.arenas.read(*src));
                Ok(())
            }
            Action::Free(place) => {
                if self.poison {
                    self.arenas.write(*place).fill(POISON);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Runs a load, store, write or read, with the host's part; there is no other exchange.
    pub(crate) fn exchange(&self, action: &Action, host: &mut dyn HostSide) -> Result<(), Error> {
        let (program, arenas) = (&self.program, &self.arenas);
        let place = |places: &[Place], i: usize| places.get(i).copied();
        match *action {
            Action::Load(state) => place(&program.resident_slots, state)
                .map_or(Ok(()), |resident| host.load(state, arenas.write(resident))),
            Action::Store(state) => place(&program.resident_slots, state)
                .map_or(Ok(()), |resident| host.store(state, arenas.read(resident))),
            Action::Write(input) => {
                place(&program.slots, input).map_or(Ok(()), |slot| host.write(input, arenas.write(slot)))
            }
            Action::Read(output) => {
                place(&program.results, output).map_or(Ok(()), |slot| host.read(output, arenas.read(slot)))
            }
            _ => Ok(()),
        }
    }

    /// Takes the content of a state, when no stream runs anything.
    pub(super) fn read_state(&self, state: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let content = self.arenas.read(self.resident_slot(state)?);
        let (wants, has) = (bytes.len(), content.len());
        if wants != has {
            return Err(Error::Internal(format!("state {state} has {has} bytes, not {wants}")));
        }
        bytes.copy_from_slice(content);
        Ok(())
    }

    /// Gives a state another content in all of its places, when no stream runs anything.
    pub(super) fn write_state(&mut self, state: usize, bytes: &[u8]) -> Result<(), Error> {
        let resident = self.arenas.write(self.resident_slot(state)?);
        let (gets, has) = (bytes.len(), resident.len());
        if gets != has {
            return Err(Error::Internal(format!("state {state} has {has} bytes, not {gets}")));
        }
        resident.copy_from_slice(bytes);
        let copies = self.program.copies_of(state);
        copies.into_iter().try_for_each(|(_, src, dst)| self.run(&Action::Copy { src, dst }))
    }

    /// See [`crate::Executor::state_place`].
    pub(super) fn state_place(&self, state: usize) -> Result<StatePlace, Error> {
        let address = self.arenas.address(self.resident_slot(state)?);
        Ok(StatePlace { address, is_on_gpu: false, has_copies: !self.program.copies_of(state).is_empty() })
    }

    fn resident_slot(&self, state: usize) -> Result<Place, Error> {
        let resident = self.program.resident_slots.get(state).copied();
        resident.ok_or_else(|| Error::Internal(format!("no state {state}")))
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), Error> {
        let Some(kernel) = self.program.kernels.get(launch.kernel) else {
            return Err(Error::Internal(format!("no kernel {}", launch.kernel)));
        };
        let call = Call { op: &kernel.op, operand_types: &kernel.operands, result_types: &kernel.results };
        let poison = self.poison;
        let done = self.arenas.with_launch(launch, &mut self.scratch, |operands, results, workspace| {
            if poison {
                workspace.fill(POISON);
                // Results that share their bytes with an operand are still to be read.
                for (j, result) in results.iter_mut().enumerate() {
                    if !launch.operands.iter().any(|o| matches!(o, Source::Result(k) if *k == j)) {
                        result.fill(POISON);
                    }
                }
            }
            execute(&call, operands, results, workspace)
        });
        done.map_err(|error| launch.refused(&kernel.op, &error))
    }
}
