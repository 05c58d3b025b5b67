//! The exact search: it finds an allocation of a given height, or proves that there is none.
//!
//! Constraint programming. Every section is a machine that holds one buffer at an offset. Pairs and edge
//! finding (`edges.rs`) narrow the domains. A decision says which buffer is the lowest of a section
//! (`search.rs`). The search restarts after numbers of decisions that follow the sequence of Luby, Sinclair
//! and Zuckerman ("Optimal speedup of Las Vegas algorithms", 1993), each time choosing sections in another
//! way.

mod edges;
mod search;
mod state;

use crate::compact::Compact;
use crate::work::Work;
use search::{Choice, End, Search};

/// Most buffers of a component that is searched: precedences take a byte for each pair.
pub(crate) const MOST_BUFFERS: usize = 4000;

/// Outcome of a search.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// An allocation.
    Found(Vec<u64>),
    /// Proof that there is none.
    Infeasible,
    /// The work ended first.
    Open,
}

/// Decisions before the first restart.
const BASE: u64 = 200;

/// Of so many rounds, one chooses sections in the second way and one in the third way.
const OTHERS: u64 = 4;

/// A search for an allocation of one height, which can be continued.
pub(crate) struct Exact<'a> {
    search: Search<'a>,
    round: u64,
    infeasible: bool,
}

impl<'a> Exact<'a> {
    /// A search for an allocation no higher than `capacity`. `None` where the component is too large for it,
    /// or where one look at all its sections takes more than `work`.
    pub(crate) fn new(c: &'a Compact, capacity: u64, seed: u64, work: u64) -> Option<Exact<'a>> {
        if c.len() > MOST_BUFFERS || root_steps(c) > work {
            return None;
        }
        let mut search = Search::new(c, capacity.min(i64::MAX as u64), seed);
        let infeasible = capacity < c.bound() || search.root().is_err();
        Some(Exact { search, round: 0, infeasible })
    }

    /// Searches on.
    pub(crate) fn run(&mut self, work: &mut Work<'_>) -> Outcome {
        while !self.infeasible && work.left() > 0 {
            self.round += 1;
            let choice = match self.round % (2 * OTHERS) {
                OTHERS => Choice::Low,
                0 => Choice::Contradiction,
                _ => Choice::Slack,
            };
            match self.search.descend(self.round, choice, BASE * luby(self.round), work) {
                End::Found(offsets) => return Outcome::Found(offsets),
                End::Infeasible => self.infeasible = true,
                End::Open => {}
            }
        }
        if self.infeasible { Outcome::Infeasible } else { Outcome::Open }
    }
}

/// Steps of propagation in all sections, at most.
fn root_steps(c: &Compact) -> u64 {
    let mut change = vec![0i64; c.load.len() + 1];
    for r in c.live.iter().flatten() {
        change[r.0 as usize] += 1;
        change[r.1 as usize] -= 1;
    }
    let mut members = 0i64;
    let pairs = change.iter().map(|&d| {
        members += d;
        members.unsigned_abs().pow(2)
    });
    pairs.sum::<u64>() / 4
}

/// The sequence 1, 1, 2, 1, 1, 2, 4, ... from 1.
pub(crate) fn luby(mut i: u64) -> u64 {
    loop {
        let bits = 64 - i.leading_zeros();
        if i == (1 << bits) - 1 {
            return 1 << (bits - 1);
        }
        i -= (1 << (bits - 1)) - 1;
    }
}

/// Sorts a list that is nearly sorted.
pub(crate) fn insertion_sort(list: &mut [u32], key: impl Fn(u32) -> i64) {
    for i in 1..list.len() {
        let (x, mut j) = (list[i], i);
        let k = key(x);
        while j > 0 && key(list[j - 1]) > k {
            list[j] = list[j - 1];
            j -= 1;
        }
        list[j] = x;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_luby_sequence_begins_as_published() {
        let sequence: Vec<u64> = (1..=15).map(super::luby).collect();
        assert_eq!(sequence, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}
