//! The slice of the data that each micro-step reads.
//!
//! Contract: it depends on the number of the step, the length of the data and the seed alone, so that a
//! resumed run reads on as if it had not stopped.

use crate::init::mix;

/// Passes over data of `units` units, of which each micro-step takes `batch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) units: u64,
    pub(super) batch: u64,
    pub(super) micros: u64,
    /// Seed of the shuffling; `None` for the order of the file.
    pub(super) shuffle: Option<u64>,
}

impl Order {
    /// Whole steps of a pass. What is left over is not read in that pass.
    pub(super) fn steps(&self) -> u64 {
        self.units / self.batch.max(1) / self.micros.max(1)
    }

    /// Units that a pass leaves over.
    pub(super) fn left_over(&self) -> u64 {
        self.units - self.steps() * self.batch * self.micros
    }

    /// Pass over the data of the step with number `step`, counted from 0.
    pub(super) fn epoch(&self, step: u64) -> u64 {
        step.saturating_sub(1).checked_div(self.steps()).unwrap_or(0)
    }

    /// The `i`-th unit of a micro-step.
    pub(super) fn unit(&self, step: u64, micro: u64, i: u64) -> u64 {
        let at = step.saturating_sub(1).checked_rem(self.steps()).unwrap_or(0);
        let slice = at.saturating_mul(self.micros).saturating_add(micro);
        let unit = slice.saturating_mul(self.batch).saturating_add(i);
        match self.shuffle {
            None => unit,
            Some(seed) => permuted(unit, self.units, mix(mix(seed).wrapping_add(self.epoch(step)))),
        }
    }
}

/// The image of `x` under a pseudo-random permutation of `0..n`: a Feistel network of four rounds on the
/// smallest even number of bits, repeated until the image is within `n` (Black and Rogaway, "Ciphers with
/// arbitrary finite domains", 2002). It takes no memory, however much data there is.
fn permuted(x: u64, n: u64, key: u64) -> u64 {
    if n < 2 || x >= n {
        return x;
    }
    let half = (u64::BITS - (n - 1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << half) - 1;
    let mut x = x;
    loop {
        let (mut left, mut right) = (x >> half, x & mask);
        for round in 0..4u64 {
            (left, right) = (right, left ^ (mix(key.wrapping_add(mix(right ^ (round << 56)))) & mask));
        }
        x = left << half | right;
        if x < n {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every unit comes once in a pass, passes differ, and so do seeds.
    #[test]
    fn passes_are_permutations() {
        for units in [1u64, 2, 3, 10, 64, 65, 1000] {
            let pass = |epoch: u64, seed: u64| -> Vec<u64> {
                let order = Order { units, batch: 1, micros: 1, shuffle: Some(seed) };
                (0..units).map(|i| order.unit(epoch * units + i + 1, 0, 0)).collect()
            };
            let mut sorted = pass(0, 7);
            sorted.sort_unstable();
            assert_eq!(sorted, (0..units).collect::<Vec<_>>());
            if units >= 10 {
                assert!(pass(0, 7) != pass(1, 7) && pass(0, 7) != pass(0, 8) && pass(0, 7) != sorted);
            }
        }
    }

    /// Batches, micro-steps and passes follow each other; what does not fill a step is left over.
    #[test]
    fn slices_follow_each_other() {
        let order = Order { units: 23, batch: 3, micros: 2, shuffle: None };
        assert_eq!((order.steps(), order.left_over()), (3, 5));
        assert_eq!([order.unit(1, 0, 0), order.unit(1, 1, 0), order.unit(2, 0, 2)], [0, 3, 8]);
        assert_eq!([order.unit(3, 1, 2), order.unit(4, 0, 0), order.unit(7, 1, 1)], [17, 0, 4]);
        assert_eq!([order.epoch(1), order.epoch(3), order.epoch(4), order.epoch(7)], [0, 0, 1, 2]);
    }
}
