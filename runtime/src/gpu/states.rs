//! States of a program between two steps: read, replaced, and where they lie.

use memc_gpu::{Clock, Graphs};
use memc_plan::Space;

use super::places::region;
use super::replay::Replay;
use crate::program::Place;
use crate::{Error, StatePlace};

impl<D: Graphs + Clock> Replay<D> {
    /// The resident slot of a state, when all queues are empty.
    fn resident_slot(&mut self, state: usize) -> Result<Place, Error> {
        self.driver.synchronize()?;
        self.progress.between_steps()?;
        self.check_kernels()?;
        let resident = self.program.resident_slots.get(state).copied();
        resident.ok_or_else(|| Error::Internal(format!("no state {state}")))
    }

    /// The resident slot of a state of so many bytes, when all queues are empty.
    fn sized_slot(&mut self, state: usize, bytes: usize) -> Result<Place, Error> {
        let resident = self.resident_slot(state)?;
        if resident.len == bytes {
            return Ok(resident);
        }
        Err(Error::Internal(format!("state {state} has {} bytes, not {bytes}", resident.len)))
    }

    /// See [`crate::Executor::read_state`].
    pub(super) fn take_state(&mut self, state: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let Place { space, start, len } = self.sized_slot(state, bytes.len())?;
        match space {
            Space::Host => bytes.copy_from_slice(self.driver.host(start, len)?),
            Space::Dev => self.driver.download(start, bytes)?,
        }
        Ok(())
    }

    /// See [`crate::Executor::write_state`].
    pub(super) fn give_state(&mut self, state: usize, bytes: &[u8]) -> Result<(), Error> {
        let Place { space, start, len } = self.sized_slot(state, bytes.len())?;
        match space {
            Space::Host => self.driver.host(start, len)?.copy_from_slice(bytes),
            Space::Dev => self.driver.upload(start, bytes)?,
        }
        for (queue, src, dst) in self.program.copies_of(state) {
            if let Some(stream) = queue.stream() {
                self.driver.copy(stream, region(src), region(dst))?;
                // The next one may read what this one writes, on another queue.
                self.driver.synchronize()?;
            }
        }
        Ok(())
    }

    /// See [`crate::Executor::state_place`].
    pub(super) fn place_of_state(&mut self, state: usize) -> Result<StatePlace, Error> {
        let Place { space, start, len } = self.resident_slot(state)?;
        let address = match space {
            Space::Host => self.driver.host(start, len)?.as_mut_ptr().expose_provenance(),
            Space::Dev => self.driver.device_address(start, len)?,
        };
        let has_copies = !self.program.copies_of(state).is_empty();
        Ok(StatePlace { address, is_on_gpu: space == Space::Dev, has_copies })
    }
}
