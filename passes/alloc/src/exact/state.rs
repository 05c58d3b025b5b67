//! Knowledge of the exact search: where every buffer may begin, and which of two lies lower.
//!
//! Buffers are the tasks, and offsets the time, of a scheduling problem. The buffers live in one section
//! share a machine that holds one at a time. `est` and `lst` are the earliest and latest start. Every change
//! goes to a trail, and is undone when the search turns back.

use crate::compact::Compact;

/// A change to undo.
#[derive(Clone, Copy)]
enum Change {
    Est(u32, i64),
    Lst(u32, i64),
    Order(u32, u32),
}

/// This branch holds no allocation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contradiction;

pub(super) type Step = Result<(), Contradiction>;

const OPEN: u8 = 0;
const LOWER: u8 = 1;
const HIGHER: u8 = 2;

/// Weight that a contradiction between two buffers, and one of a whole machine, adds to a machine.
const PAIR_WEIGHT: f64 = 0.1;
const MACHINE_WEIGHT: f64 = 1.0;

/// Domains, precedences, and the changes that are still to be propagated.
pub(super) struct State {
    /// Sizes.
    pub(super) p: Vec<i64>,
    align: Vec<i64>,
    /// Lowest offset of every buffer.
    pub(super) est: Vec<i64>,
    /// Highest offset of every buffer.
    pub(super) lst: Vec<i64>,
    /// The buffers live in every section.
    pub(super) machines: Vec<Vec<u32>>,
    machines_of: Vec<Vec<u32>>,
    neighbours: Vec<Vec<u32>>,
    order: Vec<u8>,
    trail: Vec<Change>,
    changed: Vec<u32>,
    is_changed: Vec<bool>,
    queue: Vec<u32>,
    is_queued: Vec<bool>,
    /// Whether a machine has changed since the search looked at it.
    pub(super) touched: Vec<bool>,
    /// Contradictions in which every machine took part: hard ones are branched on first.
    pub(super) weight: Vec<f64>,
    /// Buffers looked at since the count was last taken.
    pub(super) steps: u64,
}

impl State {
    /// The problem of placing `c` in `capacity` bytes. Takes `O(n^2)` memory.
    pub(super) fn new(c: &Compact, capacity: i64) -> State {
        let n = c.len();
        let mut machines: Vec<Vec<u32>> = vec![Vec::new(); c.load.len()];
        for (b, live) in c.live.iter().enumerate() {
            for section in live.iter().flat_map(|r| r.0..r.1) {
                machines[section as usize].push(b as u32);
            }
        }
        let mut machines_of: Vec<Vec<u32>> = vec![Vec::new(); n];
        let mut neighbours: Vec<Vec<u32>> = vec![Vec::new(); n];
        for (m, members) in machines.iter().enumerate() {
            let born = |b: u32| c.live[b as usize].iter().any(|r| r.0 as usize == m);
            let (new, old): (Vec<u32>, Vec<u32>) = members.iter().partition(|&&b| born(b));
            for (i, &b) in new.iter().enumerate() {
                for &other in old.iter().chain(&new[..i]) {
                    neighbours[b as usize].push(other);
                    neighbours[other as usize].push(b);
                }
            }
            for &b in members {
                machines_of[b as usize].push(m as u32);
            }
        }
        for list in &mut neighbours {
            list.sort_unstable();
            list.dedup();
        }
        let p: Vec<i64> = c.size.iter().map(|&s| s as i64).collect();
        let align: Vec<i64> = c.align.iter().map(|&a| a as i64).collect();
        let fixed = |b: usize| c.fixed[b].map(|at| at as i64);
        let highest = |b: usize| (capacity - p[b]).div_euclid(align[b]) * align[b];
        State {
            est: (0..n).map(|b| fixed(b).unwrap_or(0)).collect(),
            lst: (0..n).map(|b| fixed(b).unwrap_or(highest(b))).collect(),
            order: vec![OPEN; n * n],
            trail: Vec::new(),
            changed: Vec::new(),
            is_changed: vec![false; n],
            queue: Vec::new(),
            is_queued: vec![false; machines.len()],
            touched: vec![true; machines.len()],
            weight: vec![1.0; machines.len()],
            steps: 0,
            p,
            align,
            machines,
            machines_of,
            neighbours,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.p.len()
    }

    /// First byte after a buffer at its lowest.
    pub(super) fn ect(&self, b: usize) -> i64 {
        self.est[b] + self.p[b]
    }

    /// First byte after a buffer at its highest.
    pub(super) fn lct(&self, b: usize) -> i64 {
        self.lst[b] + self.p[b]
    }

    /// A buffer begins at `at` or above.
    pub(super) fn raise(&mut self, b: usize, at: i64) -> Step {
        if at <= self.est[b] {
            return Ok(());
        }
        let at = if self.align[b] == 1 {
            at
        } else {
            (at + self.align[b] - 1).div_euclid(self.align[b]) * self.align[b]
        };
        if at > self.lst[b] {
            return Err(Contradiction);
        }
        self.trail.push(Change::Est(b as u32, self.est[b]));
        self.est[b] = at;
        self.mark(b);
        Ok(())
    }

    /// A buffer begins at `at` or below.
    pub(super) fn lower(&mut self, b: usize, at: i64) -> Step {
        if at >= self.lst[b] {
            return Ok(());
        }
        let at = if self.align[b] == 1 { at } else { at.div_euclid(self.align[b]) * self.align[b] };
        if at < self.est[b] {
            return Err(Contradiction);
        }
        self.trail.push(Change::Lst(b as u32, self.lst[b]));
        self.lst[b] = at;
        self.mark(b);
        Ok(())
    }

    /// Records that `a` lies lower than `b`, which live at once. Propagation draws the conclusions.
    pub(super) fn precede(&mut self, a: usize, b: usize) -> Step {
        let n = self.len();
        match self.order[a * n + b] {
            LOWER => Ok(()),
            HIGHER => Err(Contradiction),
            _ => {
                self.order[a * n + b] = LOWER;
                self.order[b * n + a] = HIGHER;
                self.trail.push(Change::Order(a as u32, b as u32));
                self.mark_pairs(a);
                Ok(())
            }
        }
    }

    /// Whether `a` is known to lie higher than `b`.
    pub(super) fn is_higher(&self, a: usize, b: usize) -> bool {
        self.order[a * self.len() + b] == HIGHER
    }

    fn mark(&mut self, b: usize) {
        self.mark_pairs(b);
        for &m in &self.machines_of[b] {
            self.touched[m as usize] = true;
            if !self.is_queued[m as usize] {
                self.is_queued[m as usize] = true;
                self.queue.push(m);
            }
        }
    }

    fn mark_pairs(&mut self, b: usize) {
        if !self.is_changed[b] {
            self.is_changed[b] = true;
            self.changed.push(b as u32);
        }
    }

    /// Everything is to be propagated.
    pub(super) fn mark_all(&mut self) {
        (0..self.len()).for_each(|b| self.mark(b));
    }

    /// A point to return to.
    pub(super) fn depth(&self) -> usize {
        self.trail.len()
    }

    /// Undoes all changes since a point, and drops pending propagation.
    pub(super) fn undo(&mut self, depth: usize) {
        let n = self.len();
        while self.trail.len() > depth {
            let touched = match self.trail.pop() {
                Some(Change::Est(b, at)) => {
                    self.est[b as usize] = at;
                    b
                }
                Some(Change::Lst(b, at)) => {
                    self.lst[b as usize] = at;
                    b
                }
                Some(Change::Order(a, b)) => {
                    self.order[a as usize * n + b as usize] = OPEN;
                    self.order[b as usize * n + a as usize] = OPEN;
                    continue;
                }
                None => return,
            };
            for &m in &self.machines_of[touched as usize] {
                self.touched[m as usize] = true;
            }
        }
        for m in self.queue.drain(..) {
            self.is_queued[m as usize] = false;
        }
        for b in self.changed.drain(..) {
            self.is_changed[b as usize] = false;
        }
    }

    /// The next machine to propagate, after all pairs agree.
    pub(super) fn next_machine(&mut self) -> Result<Option<usize>, Contradiction> {
        while let Some(b) = self.changed.pop() {
            self.is_changed[b as usize] = false;
            let b = b as usize;
            self.pairs(b).inspect_err(|_| {
                for i in 0..self.machines_of[b].len() {
                    self.weight[self.machines_of[b][i] as usize] += PAIR_WEIGHT;
                }
            })?;
        }
        let next = self.queue.pop();
        if let Some(m) = next {
            self.is_queued[m as usize] = false;
        }
        Ok(next.map(|m| m as usize))
    }

    /// A machine holds a contradiction.
    pub(super) fn blame(&mut self, machine: usize) {
        self.weight[machine] += MACHINE_WEIGHT;
    }

    /// For each neighbour: which of the two can lie lower, and the consequences.
    fn pairs(&mut self, b: usize) -> Step {
        let n = self.len();
        self.steps += self.neighbours[b].len() as u64;
        for k in 0..self.neighbours[b].len() {
            let other = self.neighbours[b][k] as usize;
            let known = self.order[b * n + other];
            let lower = known != HIGHER && self.ect(b) <= self.lst[other];
            let higher = known != LOWER && self.ect(other) <= self.lst[b];
            let (low, high) = match (lower, higher) {
                (true, true) => continue,
                (false, false) => return Err(Contradiction),
                (true, false) => (b, other),
                (false, true) => (other, b),
            };
            if known == OPEN {
                self.order[low * n + high] = LOWER;
                self.order[high * n + low] = HIGHER;
                self.trail.push(Change::Order(low as u32, high as u32));
            }
            self.raise(high, self.ect(low))?;
            self.lower(low, self.lst[high] - self.p[low])?;
        }
        Ok(())
    }
}
