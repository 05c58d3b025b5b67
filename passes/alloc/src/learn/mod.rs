//! The learning search: it finds an allocation of a given height, or proves that there is none, and never
//! fails twice for the same reason.
//!
//! Lazy clause generation, after O. Ohrimenko, P. J. Stuckey and M. Codish, "Propagation via lazy clause
//! generation", Constraints 14 (2009). Every bound knows its cause (`trail.rs`), that of edge finding too
//! (`sections.rs`). From a conflict follows a clause over the orders of pairs (`explain.rs`), which is kept
//! (`clauses.rs`). The search turns back to where the clause has an effect, past all decisions that took no
//! part. So parts of an instance that do not meet do not undo each other's work. Decisions stack the buffers
//! of one section after the other (`branch.rs`), with restarts.

mod branch;
mod clauses;
mod explain;
mod sections;
mod trail;

use crate::compact::Compact;
use crate::exact::{Outcome, luby};
use crate::work::Work;
use branch::Branch;
use clauses::Clauses;
use explain::Analysis;
use sections::Sections;
use trail::{Cause, Conflict, Fact, OPEN, Trail};

/// Most buffers of a component that is searched.
const MOST_BUFFERS: usize = 1024;

/// Conflicts before the first restart.
const BASE: u64 = 100;

/// Clauses that are kept at first, and how many more after each time some were dropped.
const CLAUSES: usize = 4000;
const MORE: usize = 400;

/// A search for an allocation of one height, which can be continued.
pub(crate) struct Learner<'a> {
    c: &'a Compact,
    trail: Trail,
    clauses: Clauses,
    sections: Sections,
    analysis: Analysis,
    branch: Branch,
    round: u64,
    conflicts: u64,
    /// Clauses from which on some are dropped.
    most: usize,
    infeasible: bool,
}

impl<'a> Learner<'a> {
    /// A search for an allocation no higher than `capacity`. `None` where the component is too large for it.
    pub(crate) fn new(c: &'a Compact, capacity: u64, seed: u64) -> Option<Learner<'a>> {
        if c.len() > MOST_BUFFERS {
            return None;
        }
        let trail = Trail::new(c, capacity.min(i64::MAX as u64) as i64);
        let mut search = Learner {
            c,
            clauses: Clauses::new(trail.value.len()),
            sections: Sections::new(&trail),
            analysis: Analysis::default(),
            branch: Branch::new(&trail, seed),
            round: 0,
            conflicts: 0,
            most: CLAUSES,
            infeasible: capacity < c.bound(),
            trail,
        };
        search.infeasible = search.infeasible || search.root().is_err();
        Some(search)
    }

    /// Searches on.
    pub(crate) fn run(&mut self, work: &mut Work<'_>) -> Outcome {
        while !self.infeasible && work.left() > 0 {
            self.round += 1;
            self.branch.begin(self.c, self.round);
            let limit = self.conflicts + BASE * luby(self.round);
            if let Some(found) = self.descend(limit, work) {
                return Outcome::Found(found);
            }
            if self.clauses.len() > self.most && !self.infeasible {
                self.clauses.reduce(&self.trail);
                self.most += MORE;
            }
        }
        if self.infeasible { Outcome::Infeasible } else { Outcome::Open }
    }

    /// Draws all conclusions before the first decision. Of buffers that differ in nothing, the first lies
    /// lowest.
    fn root(&mut self) -> Result<(), Conflict> {
        let c = self.c;
        let key = |b: usize| (&c.live[b], c.size[b], c.align[b]);
        let mut alike: Vec<usize> = (0..c.len()).filter(|&b| c.fixed[b].is_none()).collect();
        alike.sort_by_key(|&b| key(b));
        for w in alike.windows(2).filter(|w| key(w[0]) == key(w[1])) {
            let pair = self.trail.neighbours[w[0]].iter().find(|n| n.other as usize == w[1]);
            if let Some(lit) = pair.map(|n| n.below).filter(|&lit| self.trail.value[lit as usize] == OPEN) {
                self.trail.set(lit, Cause::None);
            }
        }
        self.propagate(true)
    }

    /// Draws conclusions until there are no more, from sections last or not at all.
    fn propagate(&mut self, sections: bool) -> Result<(), Conflict> {
        loop {
            while let Some((at, fact)) = self.trail.next() {
                match fact {
                    Fact::Lit(lit) => {
                        self.trail.follow(lit, at)?;
                        self.clauses.propagate(&mut self.trail, lit ^ 1)?;
                    }
                    Fact::Bound { side, .. } if self.trail.last[side as usize] == at => {
                        self.trail.pairs(side as usize)?;
                    }
                    Fact::Bound { .. } => {}
                }
            }
            if !sections {
                return Ok(());
            }
            match self.trail.next_section() {
                Some(section) => self.sections.visit(&mut self.trail, section)?,
                None => return Ok(()),
            }
        }
    }

    /// Searches from the root until there were so many conflicts; the root is restored.
    fn descend(&mut self, limit: u64, work: &mut Work<'_>) -> Option<Vec<u64>> {
        loop {
            // A buffer is first laid below all others of its section, which takes several decisions.
            let failed = self.propagate(!self.branch.is_midway()).err();
            let more = work.spend(std::mem::take(&mut self.trail.steps) + 8);
            if let Some(conflict) = failed {
                self.conflicts += 1;
                self.branch.leave();
                if !self.learn(&conflict) {
                    self.infeasible = true;
                    return None;
                }
                continue;
            }
            if !more || self.conflicts >= limit {
                self.branch.leave();
                self.trail.undo(0);
                return None;
            }
            if self.branch.is_midway() {
                match self.branch.further(&self.trail) {
                    Some(lit) => self.trail.decide(lit),
                    None => self.branch.leave(),
                }
                continue;
            }
            let Some(lit) = self.branch.decide(&mut self.trail) else {
                let found = (0..self.c.len()).map(|b| self.trail.bound[2 * b] as u64).collect();
                self.trail.undo(0);
                return Some(found);
            };
            self.trail.decide(lit);
        }
    }

    /// Keeps the clause of a conflict and turns back; returns false where no decision is to blame.
    fn learn(&mut self, conflict: &Conflict) -> bool {
        if !self.analysis.explain(&mut self.trail, &self.clauses, conflict) {
            return false;
        }
        self.trail.undo(self.analysis.back);
        let lits = self.analysis.lits.clone();
        let first = lits[0];
        let cause = match lits.len() {
            1 => Cause::None,
            _ => Cause::Clause(self.clauses.add(lits, self.analysis.glue)),
        };
        self.trail.set(first, cause);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::components;
    use crate::exact::Exact;
    use crate::instance::{Buffer, Instance, Range};
    use crate::random::Random;

    /// Few buffers that often leave no slack, some with holes, alignment or a fixed offset.
    fn instance(random: &mut Random) -> Option<Instance> {
        let mut draw = |n: u64| random.next() / 7 % n;
        let count = 4 + draw(6);
        let mut buffers = Vec::new();
        for i in 0..count {
            let start = draw(8);
            let mut b = Buffer::new(start, start + 1 + draw(6), 1 + draw(9));
            if draw(8) == 0 {
                let after = b.live[0].end + 1;
                b.live.push(Range { start: after, end: after + 1 + draw(3) });
            }
            b.align = if draw(4) == 0 { 2 + draw(3) } else { 1 };
            b.offset = (i == 0 && draw(4) == 0).then(|| b.align * draw(3));
            buffers.push(b);
        }
        Instance::new(buffers).ok()
    }

    #[test]
    fn few_buffers_are_settled_as_by_the_exact_search() {
        let stop = || false;
        let (mut random, mut outcomes) = (Random::new(3), [0, 0]);
        for round in 0..1000 {
            let Some(instance) = instance(&mut random) else { continue };
            for c in components(&instance) {
                for capacity in c.bound()..c.bound() + 4 {
                    let exact = Exact::new(&c, capacity, round, 1 << 40);
                    let exact = exact.map(|mut e| e.run(&mut Work::new(1 << 20, &stop)));
                    let learner = Learner::new(&c, capacity, round);
                    let learned = learner.map(|mut l| l.run(&mut Work::new(1 << 20, &stop)));
                    match (exact, learned) {
                        (Some(Outcome::Infeasible), Some(Outcome::Infeasible)) => outcomes[0] += 1,
                        (Some(Outcome::Found(_)), Some(Outcome::Found(at))) => {
                            outcomes[1] += 1;
                            check(&c, &at, capacity);
                        }
                        (Some(Outcome::Open), _) | (_, Some(Outcome::Open)) => {}
                        other => panic!("{other:?} for {instance:?} within {capacity}"),
                    }
                }
            }
        }
        assert!(outcomes.iter().all(|&n| n > 100), "{outcomes:?}");
    }

    fn check(c: &Compact, at: &[u64], capacity: u64) {
        for b in 0..c.len() {
            assert!(at[b] + c.size[b] <= capacity && at[b].is_multiple_of(c.align[b]));
            assert!(c.fixed[b].is_none_or(|fixed| fixed == at[b]));
            for o in (0..b).filter(|&o| c.meets().is_some_and(|meets| meets[b * c.len() + o])) {
                assert!(at[b] + c.size[b] <= at[o] || at[o] + c.size[o] <= at[b]);
            }
        }
    }
}
