//! From a conflict to a clause that rules it out: the first unique implication point.

use std::collections::BinaryHeap;

use super::clauses::Clauses;
use super::trail::{At, Cause, Conflict, Fact, Lit, Need, Trail};

/// Memory of the analysis, kept between conflicts.
#[derive(Default)]
pub(super) struct Analysis {
    heap: BinaryHeap<At>,
    /// By entry, whether it is among the reasons, and for bounds the value that is needed.
    seen: Vec<bool>,
    need: Vec<i64>,
    marked: Vec<At>,
    /// By entry, whether it is known to follow from the clause, and the entries for which that was asked.
    state: Vec<u8>,
    visited: Vec<At>,
    /// Levels of the clause.
    levels: Vec<u32>,
    /// Entries that may still be looked at for one literal.
    budget: u32,
    /// Entries in the heap at the level of the conflict.
    open: usize,
    level: u32,
    /// The clause: the asserted literal first.
    pub(super) lits: Vec<Lit>,
    /// The level at which the clause asserts its first literal.
    pub(super) back: u32,
    pub(super) glue: u32,
}

impl Analysis {
    /// Explains a conflict; returns whether there is any decision to blame.
    pub(super) fn explain(&mut self, t: &mut Trail, clauses: &Clauses, conflict: &Conflict) -> bool {
        self.seen.resize(self.seen.len().max(t.entries.len()), false);
        self.need.resize(self.seen.len(), 0);
        self.lits.clear();
        self.level = u32::MAX;
        let mut start: Vec<Need> = Vec::new();
        match conflict {
            Conflict::Clause(c) => {
                let falsified = clauses.lits(*c).iter();
                start.extend(falsified.map(|l| Need { at: t.set_at[*l as usize / 2], value: 0 }));
            }
            Conflict::Crossed(side) => {
                let (a, b) = (*side as usize, *side as usize ^ 1);
                let value = t.bound[b];
                start.push(Need { at: t.last[a], value: 1 - t.p[a / 2] - value });
                start.push(Need { at: t.last[b], value });
            }
            Conflict::Section(needs) => start.extend(needs),
        }
        for need in &mut start {
            need.at = earliest(t, *need);
        }
        self.level = start.iter().map(|n| t.entries[n.at as usize].level).max().unwrap_or(0);
        if self.level == 0 {
            return false;
        }
        self.lits.push(0);
        self.open = 0;
        for need in start {
            self.add(t, need);
        }
        while let Some(at) = self.heap.pop() {
            t.steps += 1;
            let e = t.entries[at as usize];
            if e.level == self.level {
                self.open -= 1;
                if let Fact::Lit(lit) = e.fact
                    && self.open == 0
                {
                    self.lits[0] = lit ^ 1;
                    // Only bounds of earlier levels are left to explain.
                    self.level = u32::MAX;
                    continue;
                }
            }
            self.expand(t, clauses, at);
            if self.open == 0 && self.level != u32::MAX && !self.lower(t) {
                self.clear();
                return false;
            }
        }
        self.finish(t, clauses);
        true
    }

    /// Nothing is left at the level of the conflict: a level below holds it as well. Returns whether one
    /// does.
    fn lower(&mut self, t: &Trail) -> bool {
        let level = |l: &Lit| t.entries[t.set_at[*l as usize / 2] as usize].level;
        let bounds = self.heap.peek().map_or(0, |&at| t.entries[at as usize].level);
        self.level = self.lits[1..].iter().map(level).max().unwrap_or(0).max(bounds);
        if self.level == 0 {
            return false;
        }
        let mut i = 1;
        while i < self.lits.len() {
            if level(&self.lits[i]) == self.level {
                self.heap.push(t.set_at[self.lits.swap_remove(i) as usize / 2]);
            } else {
                i += 1;
            }
        }
        self.open = self.heap.iter().filter(|&&at| t.entries[at as usize].level == self.level).count();
        true
    }

    /// Forgets all entries.
    fn clear(&mut self) {
        for at in self.marked.drain(..) {
            self.seen[at as usize] = false;
        }
        self.heap.clear();
    }

    /// Adds the reasons of an entry.
    fn expand(&mut self, t: &Trail, clauses: &Clauses, at: At) {
        let e = t.entries[at as usize];
        match e.cause {
            Cause::None => {}
            Cause::Clause(c) => {
                for &l in clauses.lits(c) {
                    let other = t.set_at[l as usize / 2];
                    if other != at {
                        self.add(t, Need { at: other, value: 0 });
                    }
                }
            }
            Cause::Pair { first, second, sum } => {
                let Fact::Bound { value, .. } = t.entries[first as usize].fact else { return };
                self.add(t, Need { at: first, value });
                self.add(t, Need { at: second, value: sum - value });
            }
            Cause::Order { lit, from, gap } => {
                let Fact::Bound { side, .. } = e.fact else { return };
                self.add(t, Need { at: lit, value: 0 });
                let value = t.relax(side as usize, self.need[at as usize]) - gap;
                self.add(t, Need { at: from, value });
            }
            Cause::Section { from, to } => {
                for i in from..to {
                    self.add(t, t.needs[i as usize]);
                }
            }
        }
    }

    /// An entry is among the reasons.
    fn add(&mut self, t: &Trail, need: Need) {
        let at = earliest(t, need);
        let e = t.entries[at as usize];
        if e.level == 0 {
            return;
        }
        if self.seen[at as usize] {
            self.need[at as usize] = self.need[at as usize].max(need.value);
            return;
        }
        self.seen[at as usize] = true;
        self.need[at as usize] = need.value;
        self.marked.push(at);
        match e.fact {
            Fact::Lit(lit) if e.level != self.level => self.lits.push(lit ^ 1),
            _ => {
                self.open += usize::from(e.level == self.level);
                self.heap.push(at);
            }
        }
    }

    /// Drops literals that follow from others, and finds the level to turn back to.
    fn finish(&mut self, t: &mut Trail, clauses: &Clauses) {
        self.levels.clear();
        let level = |l: Lit| t.entries[t.set_at[l as usize / 2] as usize].level;
        for &l in &self.lits {
            self.levels.push(level(l));
        }
        self.levels.sort_unstable();
        self.levels.dedup();
        self.state.resize(self.seen.len(), 0);
        let mut lits = std::mem::take(&mut self.lits);
        // Only literals of the clause count as known, not all that were met on the way.
        for &l in &lits {
            let at = t.set_at[l as usize / 2];
            self.state[at as usize] = KNOWN;
            self.visited.push(at);
        }
        let mut kept = 1;
        for i in 1..lits.len() {
            let at = t.set_at[lits[i] as usize / 2];
            self.budget = LOOKS;
            let follows =
                !matches!(t.entries[at as usize].cause, Cause::None) && self.reasons_follow(t, clauses, at);
            if !follows {
                lits[kept] = lits[i];
                kept += 1;
            }
        }
        lits.truncate(kept);
        self.lits = lits;
        for at in self.visited.drain(..) {
            self.state[at as usize] = 0;
        }
        self.clear();
        let level = |l: Lit| t.entries[t.set_at[l as usize / 2] as usize].level;
        let mut levels: Vec<u32> = self.lits.iter().map(|&l| level(l)).collect();
        let second = (1..levels.len()).max_by_key(|&i| levels[i]);
        self.back = second.map_or(0, |i| levels[i]);
        if let Some(i) = second {
            self.lits.swap(1, i);
        }
        levels.sort_unstable();
        levels.dedup();
        self.glue = levels.len() as u32;
    }
}

/// Entries looked at to drop one literal, at most.
const LOOKS: u32 = 100;

/// A literal of the clause, or an entry that follows from them.
const KNOWN: u8 = 1;
/// An entry that rests on others.
const FREE: u8 = 2;

impl Analysis {
    /// Whether an entry follows from literals of the clause.
    fn follows(&mut self, t: &Trail, clauses: &Clauses, at: At) -> bool {
        let e = t.entries[at as usize];
        if e.level == 0 {
            return true;
        }
        match self.state[at as usize] {
            KNOWN => return true,
            FREE => return false,
            _ => {}
        }
        if self.budget == 0 {
            return false;
        }
        self.budget -= 1;
        let follows = !matches!(e.cause, Cause::None)
            && self.levels.binary_search(&e.level).is_ok()
            && self.reasons_follow(t, clauses, at);
        if follows || self.budget > 0 {
            self.state[at as usize] = if follows { KNOWN } else { FREE };
            self.visited.push(at);
        }
        follows
    }

    /// Whether all reasons of an entry follow from literals of the clause.
    fn reasons_follow(&mut self, t: &Trail, clauses: &Clauses, at: At) -> bool {
        match t.entries[at as usize].cause {
            Cause::None => false,
            Cause::Clause(c) => clauses.lits(c).iter().all(|&l| {
                let other = t.set_at[l as usize / 2];
                other == at || self.follows(t, clauses, other)
            }),
            Cause::Pair { first, second, sum } => {
                let Fact::Bound { value, .. } = t.entries[first as usize].fact else { return false };
                let second = earliest(t, Need { at: second, value: sum - value });
                self.follows(t, clauses, first) && self.follows(t, clauses, second)
            }
            Cause::Order { lit, from, .. } => self.follows(t, clauses, lit) && self.follows(t, clauses, from),
            Cause::Section { from, to } => {
                (from..to).all(|i| self.follows(t, clauses, earliest(t, t.needs[i as usize])))
            }
        }
    }
}

/// The first entry that gives a bound the value that is needed.
fn earliest(t: &Trail, need: Need) -> At {
    let mut at = need.at;
    while let Fact::Bound { before, .. } = t.entries[at as usize].fact {
        match t.entries[before as usize].fact {
            Fact::Bound { value, .. } if before != at && value >= need.value => at = before,
            _ => break,
        }
    }
    at
}
