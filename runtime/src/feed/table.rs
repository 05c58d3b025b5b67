//! Data of an input, of which each step reads another part.

use memc_ir::TensorType;

use super::array::Array;
use super::legal::{self, Legal};
use super::order::Order;
use super::ragged::Ragged;
use crate::Error;
use crate::jobs::Job;

/// Data of an input, and what the present step reads of it.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: String,
    /// The input's type in each bucket.
    pub(super) types: Vec<TensorType>,
    pub(super) units: Units,
    pub(super) order: Order,
    /// Values that kernels accept, in each bucket.
    pub(super) legal: Vec<Vec<Legal>>,
    /// Index of the job that reads it.
    pub(super) job: usize,
    /// One buffer for each micro-step of each of the job's steps in a round, as large as the largest type.
    pub(super) buffers: Vec<Vec<u8>>,
}

/// The units of the data.
#[derive(Debug)]
pub(super) enum Units {
    /// All of one size.
    Even(Array),
    /// Each of its own size.
    Ragged(Ragged),
}

impl Units {
    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Units::Even(array) if array.is_stream())
    }

    /// The file of the first unit, for messages.
    pub(super) fn path(&self) -> &std::path::Path {
        match self {
            Units::Even(array) => array.path(),
            Units::Ragged(ragged) => ragged.path(),
        }
    }
}

impl Table {
    /// Number of the step that buffer `at` is for in a round, and the micro-step within it.
    fn place(&self, job: &Job, round: u64, at: u64) -> (u64, u64) {
        let micros = self.order.micros.max(1);
        (job.step(round, u32::try_from(at / micros).unwrap_or(u32::MAX)), at % micros)
    }

    /// Whether the data of a round fits the input of a bucket.
    pub(super) fn fits(&self, bucket: usize, job: &Job, round: u64) -> bool {
        let (Units::Ragged(ragged), Some(ty)) = (&self.units, self.types.get(bucket)) else { return true };
        (0..self.buffers.len() as u64).all(|at| {
            let (step, micro) = self.place(job, round, at);
            ragged.fits(self.order.unit(step, micro, 0), ty)
        })
    }

    /// Reads the data of a round for a bucket, and checks it. A pipe begins with the step behind `done`.
    pub(super) fn read(&mut self, bucket: usize, job: &Job, round: u64, done: u64) -> Result<(), Error> {
        let before = if self.units.is_stream() { done } else { 0 };
        for at in 0..self.buffers.len() {
            let (number, micro) = self.place(job, round, at as u64);
            let step = number.saturating_sub(before);
            let (Some(buffer), Some(ty)) = (self.buffers.get_mut(at), self.types.get(bucket)) else {
                continue;
            };
            let bytes = usize::try_from(ty.bytes()).unwrap_or(usize::MAX);
            let buffer = buffer.get_mut(..bytes).unwrap_or_default();
            match &mut self.units {
                Units::Ragged(ragged) => ragged.read(self.order.unit(step, micro, 0), ty, buffer)?,
                Units::Even(array) if self.order.shuffle.is_none() => {
                    array.read(self.order.unit(step, micro, 0), buffer)?;
                }
                Units::Even(array) => {
                    let unit = usize::try_from(array.unit_bytes).unwrap_or(usize::MAX).max(1);
                    for (i, part) in (0..).zip(buffer.chunks_mut(unit)) {
                        array.read(self.order.unit(step, micro, i), part)?;
                    }
                }
            }
            let legal = self.legal.get(bucket).map(Vec::as_slice).unwrap_or_default();
            legal::check(legal, &self.name, ty, buffer, number)?;
        }
        Ok(())
    }
}
