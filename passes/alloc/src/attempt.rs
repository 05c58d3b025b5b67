//! Attempts at one height: local search and exact search, each continued when there is more work for it.

use crate::compact::Compact;
use crate::exact::{Exact, Outcome};
use crate::repair::{Repair, Style};
use crate::work::Work;

/// Slack in parts of the height from which on local search gets most of the work, and exact search below.
const SLACK: u64 = 50;

/// Buffers up to which exact search always gets most of the work: it ends with an allocation or a proof.
const FEW: usize = 32;

/// Factor by which the favoured search gets more work.
const FAVOUR: u64 = 8;

/// Most allocations that are repaired with care before anything else.
const BASES: usize = 8;

/// The searches for an allocation of one height.
pub(crate) struct Attempt<'a> {
    target: u64,
    slack: bool,
    careful: Vec<Repair<'a>>,
    restless: Option<Repair<'a>>,
    exact: Option<Exact<'a>>,
}

impl<'a> Attempt<'a> {
    /// For `target`, from some allocations, when there is so much work for it.
    pub(crate) fn new(c: &'a Compact, bases: &[Vec<u64>], target: u64, seed: u64, work: u64) -> Attempt<'a> {
        let reachable = target >= c.bound();
        let excess = |base: &Vec<u64>| -> u128 {
            let over = |b: &usize| base[*b] + c.size[*b] > target;
            (0..c.len()).filter(over).map(|b| c.area(b)).sum()
        };
        let mut rank: Vec<(u128, usize)> = bases.iter().map(excess).zip(0..).collect();
        rank.sort_unstable();
        let repair = |n: usize, style| {
            let &(_, i) = rank.get(n).filter(|_| reachable)?;
            Some(Repair::new(c, &bases[i], target, style, seed.wrapping_add(n as u64)))
        };
        Attempt {
            target,
            slack: c.len() > FEW && (target - target.min(c.bound())).saturating_mul(SLACK) >= target,
            careful: (0..BASES).filter_map(|n| repair(n, Style::Careful)).collect(),
            restless: repair(0, Style::Restless),
            exact: Exact::new(c, target, seed, work),
        }
    }

    /// The height.
    pub(crate) fn target(&self) -> u64 {
        self.target
    }

    /// Continues for so much work, several times over.
    pub(crate) fn run(&mut self, effort: u64, work: &mut Work<'_>) -> Outcome {
        let share = effort / (4 * BASES) as u64;
        // Easy allocations and easy refutations take little work.
        if let Some(exact) = &mut self.exact {
            let outcome = limited(work, share, |part| exact.run(part));
            if !matches!(outcome, Outcome::Open) {
                return outcome;
            }
        }
        for repair in &mut self.careful {
            if let Some(found) = limited(work, share, |part| repair.run(part)) {
                return Outcome::Found(found);
            }
        }
        let favoured = effort.saturating_mul(FAVOUR);
        let (restless, exact) = if self.slack { (favoured, effort) } else { (effort, favoured) };
        let found = self.restless.as_mut().and_then(|r| limited(work, restless, |part| r.run(part)));
        match (found, &mut self.exact) {
            (Some(found), _) => Outcome::Found(found),
            (None, Some(e)) => limited(work, exact, |part| e.run(part)),
            (None, None) => Outcome::Open,
        }
    }
}

/// Gives a search a part of the work.
fn limited<T>(work: &mut Work<'_>, units: u64, search: impl FnOnce(&mut Work<'_>) -> T) -> T {
    let mut part = work.part(units);
    let result = search(&mut part);
    work.settle(&part, units);
    result
}
