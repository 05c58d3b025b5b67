//! Ops and tensors of one kind: those that play the same part in every layer.

use std::collections::BTreeMap;

use memc_ir::{Arena, Id};

use super::lns::Random;
use crate::ids::{OpPos, TensorId};
use crate::problem::Problem;

/// The kind of every op and tensor, counted from 0.
#[derive(Default)]
pub(super) struct Kinds {
    /// Of ops whose names are alike but for numbers.
    pub(super) ops: Arena<OpPos, usize>,
    /// Of tensors of one size whose names are.
    pub(super) tensors: Arena<TensorId, usize>,
}

impl Kinds {
    pub(super) fn new(p: &Problem) -> Kinds {
        Kinds {
            ops: numbered(p.ops.values().map(|op| (op.name.as_str(), 0))),
            tensors: numbered(p.tensors.values().map(|t| (t.name.as_str(), t.bytes))),
        }
    }
}

fn numbered<'a, I: Id>(names: impl Iterator<Item = (&'a str, u64)>) -> Arena<I, usize> {
    let mut known: BTreeMap<(String, u64), usize> = BTreeMap::new();
    let number = |(name, bytes): (&str, u64)| {
        let name: String = name.chars().filter(|c| !c.is_ascii_digit()).collect();
        let next = known.len();
        *known.entry((name, bytes)).or_insert(next)
    };
    names.map(number).collect()
}

/// For every member of some kinds a factor that its kind shares: 2 to a power from `-spread` to `spread`.
pub(super) fn factors<I: Id>(kinds: &Arena<I, usize>, spread: f64, random: &mut Random) -> Arena<I, f64> {
    let count = kinds.values().max().map_or(0, |&last| last + 1);
    let factors: Vec<f64> = (0..count).map(|_| 2f64.powf(spread * (2.0 * random.unit() - 1.0))).collect();
    kinds.values().map(|&kind| factors[kind]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::chain;

    /// Ops that play the same part are of one kind, and share a factor.
    #[test]
    fn layers_have_the_same_kinds_and_factors() {
        let p = chain(12, 4096, 1000, 2500);
        let kinds = Kinds::new(&p);
        let factors = factors(&kinds.ops, 2.0, &mut Random(7));
        let mut apart = 0;
        for (a, x) in p.ops.iter() {
            for (b, y) in p.ops.iter() {
                let letters = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
                let same = letters(&x.name) == letters(&y.name);
                assert_eq!(kinds.ops[a] == kinds.ops[b], same, "{} and {}", x.name, y.name);
                assert_eq!(factors[a] == factors[b], same, "{} and {}", x.name, y.name);
                apart += usize::from(!same);
            }
        }
        assert!(apart > 0 && factors.values().all(|f| (0.25..=4.0).contains(f)));
    }
}
