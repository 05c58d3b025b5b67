//! Limits on the work that one import may ask for: constants that nodes compute, unrolled time steps,
//! gradients.
//!
//! A small file must not make a module of any size.

use crate::error::{Fault, unsupported};

/// Room for computed constants beyond what the file's size gives: masks, positions and shape arithmetic of
/// hundreds of layers.
const BASE_BYTES: u64 = 64 << 20;
/// Bytes of computed constants per byte of the file.
const BYTES_PER_FILE_BYTE: u64 = 16;
/// Most room of all micro-steps together, unless the file's size alone gives more.
const MAX_BYTES: u64 = 1 << 30;

/// Bytes that computed constants may still take.
///
/// A node of few bytes may compute a constant of [`MAX_ELEMENTS`](crate::constants::MAX_ELEMENTS) elements,
/// which then lives as long as its name; this keeps an import's memory in proportion to the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allowance {
    total: u64,
    left: u64,
}

impl Allowance {
    /// The allowance of a file of `file_bytes`, imported `micro_steps` times.
    pub(crate) fn new(file_bytes: u64, micro_steps: u32) -> Allowance {
        let once = file_bytes.saturating_mul(BYTES_PER_FILE_BYTE).saturating_add(BASE_BYTES);
        let total = once.saturating_mul(micro_steps.into()).min(once.max(MAX_BYTES));
        Allowance { total, left: total }
    }

    /// Whether `bytes` are left.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        bytes <= self.left
    }

    /// Takes `bytes`, which must be left.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), Fault> {
        let Some(left) = self.left.checked_sub(bytes) else {
            return unsupported(format!(
                "its result is a constant of {bytes} bytes, and the constants that nodes compute may have {} \
                 bytes in all, of which {} are left; fold constants when exporting, or feed large ones as \
                 inputs",
                self.total, self.left
            ));
        };
        self.left = left;
        Ok(())
    }
}

/// Most time steps, over all directions and layers, that recurrent layers of one import may unroll.
const MAX_UNROLLED: u64 = 100_000;

/// Time steps that recurrent layers have unrolled.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Unrolled(u64);

impl Unrolled {
    /// Takes `time` steps in each of `directions`.
    pub(crate) fn take(&mut self, time: u64, directions: u64) -> Result<(), Fault> {
        let total = self.0.saturating_add(time.saturating_mul(directions));
        if total > MAX_UNROLLED {
            return unsupported(format!(
                "unrolling its {time} time steps in {directions} directions exceeds what one model may \
                 unroll, {MAX_UNROLLED} steps; bind a shorter sequence, or train on truncated sequences"
            ));
        }
        self.0 = total;
        Ok(())
    }
}

/// Limit on the ops that all later `Gradient` nodes go through, in sizes of the graph of the first one.
const MAX_SWEEPS: usize = 16;
/// Ops beyond that limit.
const FEW: usize = 100_000;

/// Ops that the `Gradient` nodes of one import have gone through. Each appends some for each of them, so that
/// a small file of nested ones could otherwise ask for a graph of any size.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Swept {
    first: usize,
    total: usize,
}

impl Swept {
    /// Counts `ops` more.
    pub(crate) fn add(&mut self, ops: usize) -> Result<(), Fault> {
        if self.total == 0 {
            self.first = ops;
        }
        self.total = self.total.saturating_add(ops);
        if self.total > self.first.saturating_mul(MAX_SWEEPS).saturating_add(FEW) {
            return unsupported("there are too many Gradient nodes for a graph of this size");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The allowance grows with the file and the micro-steps up to a limit, and never below what is taken.
    #[test]
    fn the_allowance_is_finite() {
        let mut small = Allowance::new(1000, 1);
        assert_eq!(small, Allowance { total: 16_000 + BASE_BYTES, left: 16_000 + BASE_BYTES });
        assert_eq!(small.take(BASE_BYTES), Ok(()));
        assert!(small.has(16_000) && !small.has(16_001));
        assert!(small.take(16_001).expect_err("too much").to_string().contains("of which 16000 are left"));
        assert_eq!(small.take(16_000), Ok(()));
        assert_eq!(Allowance::new(0, 2).total, 2 * BASE_BYTES);
        assert_eq!(Allowance::new(0, 1024).total, MAX_BYTES);
        assert_eq!(Allowance::new(1 << 30, 1024).total, (16 << 30) + BASE_BYTES);
    }
}
