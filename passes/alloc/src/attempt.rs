//! Attempts at one height: local, exact and learning search, each continued when there is more work for it.

use crate::compact::Compact;
use crate::exact::{Exact, Outcome};
use crate::learn::Learner;
use crate::repair::{Repair, Style};
use crate::work::Work;

/// Slack in parts of the height from which on local search gets most of the work, and exact search below.
const SLACK: u64 = 50;

/// Buffers up to which exact search always gets most of the work: it ends with an allocation or a proof.
const FEW: usize = 32;

/// Factor by which the favoured search gets more work.
const FAVOUR: u64 = 8;

/// Parts of the learning search in a round, each with the work of the exact search before it, as multiples of
/// the effort. The exact search is the better one where little work is enough.
const FIRST: [(u64, u64); 2] = [(4, 24), (4, 8)];

/// The same in all rounds after the first.
const LATER: [(u64, u64); 2] = [(1, 16), (1, 16)];

/// Most allocations that are repaired with care before anything else.
const BASES: usize = 8;

/// The searches for an allocation of one height.
pub(crate) struct Attempt<'a> {
    target: u64,
    slack: bool,
    careful: Vec<Repair<'a>>,
    restless: Option<Repair<'a>>,
    exact: Option<Exact<'a>>,
    learner: Option<Learner<'a>>,
    /// Whether the first round has begun.
    begun: bool,
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
            learner: None,
            begun: false,
        }
    }

    /// Adds the learning search, where there is so little slack that local search is not the better one.
    pub(crate) fn learn(&mut self, c: &'a Compact, seed: u64) {
        if !self.slack && self.exact.is_some() {
            self.learner = Learner::new(c, self.target, seed);
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
        if self.learner.is_some() {
            return self.learning(effort, work);
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

    /// The rest of a round with the learning search, which gets most of the work.
    fn learning(&mut self, effort: u64, work: &mut Work<'_>) -> Outcome {
        let parts = if std::mem::replace(&mut self.begun, true) { LATER } else { FIRST };
        for (i, (least, most)) in parts.into_iter().enumerate() {
            let exact = |e: &mut Exact<'_>| limited(work, effort.saturating_mul(least), |part| e.run(part));
            let outcome = self.exact.as_mut().map_or(Outcome::Open, exact);
            if !matches!(outcome, Outcome::Open) {
                return outcome;
            }
            let learn = |l: &mut Learner<'_>| limited(work, effort.saturating_mul(most), |part| l.run(part));
            let outcome = self.learner.as_mut().map_or(Outcome::Open, learn);
            if !matches!(outcome, Outcome::Open) {
                return outcome;
            }
            if i == 0
                && let Some(found) =
                    self.restless.as_mut().and_then(|r| limited(work, effort, |part| r.run(part)))
            {
                return Outcome::Found(found);
            }
        }
        Outcome::Open
    }
}

/// Gives a search a part of the work.
fn limited<T>(work: &mut Work<'_>, units: u64, search: impl FnOnce(&mut Work<'_>) -> T) -> T {
    let mut part = work.part(units);
    let result = search(&mut part);
    work.settle(&part, units);
    result
}
