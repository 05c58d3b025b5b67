//! Outputs, first states and step numbers: the host's side of sessions and of servers.

use memc_ir::DType;

use crate::{Error, Initial, Program};

/// Bytes of every output of the last round.
#[derive(Debug)]
pub(crate) struct Outputs(Vec<Vec<u8>>);

impl Outputs {
    /// Those of a program, all zero.
    pub(crate) fn of(program: &Program) -> Outputs {
        Outputs(program.results.iter().map(|place| vec![0; place.len]).collect())
    }

    /// The bytes of an output; `None` of one that the program does not have.
    pub(crate) fn get(&self, output: usize) -> Option<&[u8]> {
        self.0.get(output).map(Vec::as_slice)
    }

    /// Keeps the bytes that the device has for an output.
    pub(crate) fn keep(&mut self, output: usize, bytes: &[u8]) -> Result<(), Error> {
        let place = self.0.get_mut(output).filter(|place| place.len() == bytes.len());
        let other = || Error::Internal(format!("output {output} was read with {} bytes", bytes.len()));
        place.ok_or_else(other)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// Writes the first contents of a state of the plan (0) or of one of its buckets.
pub(crate) fn load(
    program: &Program,
    initial: &Initial<'_>,
    (bucket, state): (usize, usize),
    bytes: &mut [u8],
) -> Result<(), Error> {
    match program.types.states.get(state) {
        Some(ty) => initial.write((bucket, state), ty, bytes),
        None => Err(Error::Internal(format!("no state {state}"))),
    }
}

/// Writes the number of a step to an input of one element; the largest number of its type where it is larger.
pub(crate) fn write_step(out: &mut [u8], dtype: DType, step: u64) {
    match dtype {
        DType::F32 => put(out, &(step as f32).to_le_bytes()),
        DType::I32 => put(out, &i32::try_from(step).unwrap_or(i32::MAX).to_le_bytes()),
        _ => put(out, &i64::try_from(step).unwrap_or(i64::MAX).to_le_bytes()),
    }
}

/// Writes as many of the bytes as there is room for.
pub(crate) fn put(out: &mut [u8], bytes: &[u8]) {
    out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}
