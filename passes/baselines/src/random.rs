//! Random numbers and random orders of ops, the same on every machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memc_ir::Arena;
use memc_planner::{OpPos, Problem};

/// A generator of random numbers (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Generator of one stream of a seed.
    pub(super) fn new(seed: u64, stream: u64) -> Random {
        let mut r = Random(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Random(r.next() ^ stream)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, end)`; 0 if that is empty.
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// Uniform in `[0, 1)`.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normally distributed (Marsaglia's polar method).
    pub(super) fn normal(&mut self, mean: f64, deviation: f64) -> f64 {
        loop {
            let (u, v) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                return mean + deviation * u * (-2.0 * s.ln() / s).sqrt();
            }
        }
    }
}

/// Pairs of ops of which one must run before the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Precedence {
    /// For every op, the number of ops that must precede it.
    pub(super) before: Arena<OpPos, usize>,
    /// For every op, the ops that it must precede.
    pub(super) after: Arena<OpPos, Vec<OpPos>>,
}

impl Precedence {
    /// Of a problem's ops.
    pub(super) fn new(p: &Problem) -> Precedence {
        let lists = p.predecessors();
        let mut after: Arena<OpPos, Vec<OpPos>> = Arena::filled(Vec::new(), lists.len());
        for (op, list) in lists.iter() {
            for &b in list {
                after[b].push(op);
            }
        }
        Precedence { before: lists.values().map(Vec::len).collect(), after }
    }

    /// An order that follows another, but with a probability takes any ready op instead of the first one.
    pub(super) fn vary(&self, order: &[OpPos], probability: f64, random: &mut Random) -> Vec<OpPos> {
        let mut place: Arena<OpPos, usize> = Arena::filled(0, order.len());
        for (i, &op) in order.iter().enumerate() {
            place[op] = i;
        }
        let mut missing = self.before.clone();
        let mut ready = Vec::new();
        // Where each op is among those that are ready, and their places in the order; those that ran remain
        // in the heap.
        let mut at: Arena<OpPos, Option<usize>> = Arena::filled(None, order.len());
        let mut first = BinaryHeap::new();
        let add = |op: OpPos,
                   ready: &mut Vec<OpPos>,
                   at: &mut Arena<OpPos, Option<usize>>,
                   first: &mut BinaryHeap<Reverse<usize>>| {
            at[op] = Some(ready.len());
            ready.push(op);
            first.push(Reverse(place[op]));
        };
        for op in place.ids().filter(|&op| self.before[op] == 0) {
            add(op, &mut ready, &mut at, &mut first);
        }
        let mut out = Vec::with_capacity(order.len());
        while !ready.is_empty() {
            let any = ready[random.below(ready.len())];
            let op = if random.unit() < probability {
                any
            } else {
                std::iter::from_fn(|| first.pop())
                    .map(|Reverse(place)| order[place])
                    .find(|&op| at[op].is_some())
                    .unwrap_or(any)
            };
            if let Some(hole) = at[op].take() {
                ready.swap_remove(hole);
                if let Some(&moved) = ready.get(hole) {
                    at[moved] = Some(hole);
                }
            }
            out.push(op);
            for &next in &self.after[op] {
                missing[next] -= 1;
                if missing[next] == 0 {
                    add(next, &mut ready, &mut at, &mut first);
                }
            }
        }
        out
    }

    /// True if an order has every op once and none too early.
    #[cfg(test)]
    pub(super) fn allows(&self, order: &[OpPos]) -> bool {
        let mut missing = self.before.clone();
        let mut seen = std::collections::BTreeSet::new();
        order.iter().all(|&op| {
            for &next in &self.after[op] {
                missing[next] -= 1;
            }
            missing[op] == 0 && seen.insert(op)
        }) && seen.len() == self.before.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Precedence, Random};
    use crate::samples;
    use memc_planner::{AccessSequence, Genotype, OpPos, trace};

    #[test]
    fn numbers_are_uniform_and_normal() {
        let mut r = Random::new(3, 1);
        let n = 20_000;
        let mean = (0..n).map(|_| r.unit()).sum::<f64>() / f64::from(n);
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        let draws: Vec<f64> = (0..n).map(|_| r.normal(2.0, 3.0)).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / f64::from(n);
        assert!((mean - 2.0).abs() < 0.1 && (variance - 9.0).abs() < 0.4, "{mean} {variance}");
        let counts = (0..n).fold([0; 7], |mut c, _| {
            c[r.below(7)] += 1;
            c
        });
        assert!(counts.iter().all(|&c| c > 2600 && c < 3100), "{counts:?}");
    }

    #[test]
    fn random_orders_keep_what_must_precede() {
        arbtest::arbtest(|u| {
            let p = samples::problem(u)?;
            let precedence = Precedence::new(&p);
            let mut r = Random::new(u.arbitrary()?, 0);
            let given: Vec<OpPos> = p.ops.ids().collect();
            let order = precedence.vary(&given, 1.0, &mut r);
            assert!(precedence.allows(&order));
            assert!(precedence.allows(&precedence.vary(&order, 0.3, &mut r)));
            assert_eq!(precedence.vary(&order, 0.0, &mut r), order);
            let kept = Genotype::keep_all(AccessSequence::of_order(&p, order)).decisions(&p);
            trace(&p, &kept).expect("an order that keeps what must precede can run");
            Ok(())
        });
    }
}
