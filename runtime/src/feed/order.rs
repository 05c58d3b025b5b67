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

/// The image of `x` under a pseudo-random permutation of `0..n`: the swap-or-not shuffle (Hoang, Morris and
/// Rogaway, "An enciphering scheme based on a card shuffle", 2012). It takes no memory, however much data
/// there is.
fn permuted(x: u64, n: u64, key: u64) -> u64 {
    if n < 2 || x >= n {
        return x;
    }
    let bits = u64::from(u64::BITS - (n - 1).leading_zeros());
    let rounds = 64 + 8 * bits;
    let mut x = x;
    for round in 0..rounds {
        let round_key = mix(key.wrapping_add(round));
        let shift = round_key % n;
        // `shift - x` modulo `n`.
        let partner = if shift >= x { shift - x } else { n - (x - shift) };
        if mix(round_key ^ mix(x.max(partner))) >> 63 == 1 {
            x = partner;
        }
    }
    x
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

    /// All orders of few units come about equally often.
    #[test]
    fn few_units_come_in_any_order() {
        const SEEDS: u64 = 24_000;
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..SEEDS {
            let order = Order { units: 4, batch: 1, micros: 1, shuffle: Some(seed) };
            let pass: Vec<u64> = (1..=4).map(|step| order.unit(step, 0, 0)).collect();
            *counts.entry(pass).or_insert(0u64) += 1;
        }
        let expected = SEEDS as f64 / 24.0;
        let chi: f64 = counts.values().map(|&n| (n as f64 - expected).powi(2) / expected).sum();
        // 23 degrees of freedom: a uniform shuffle exceeds this once in 10,000 times.
        assert!(counts.len() == 24 && chi < 55.0, "{} orders, chi square {chi}", counts.len());
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
