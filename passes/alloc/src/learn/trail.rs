//! Knowledge of the learning search: bounds, orders of pairs, and the cause of each.
//!
//! A buffer is seen from below and from above. Side 0 of it is its offset, side 1 the negated offset of its
//! end. The lower bound of a side only grows along a branch, so both are treated alike. A literal says which
//! of two buffers that live at once lies lower. Every bound and every literal is an entry of the trail.

use crate::compact::Compact;

/// A literal: twice the number of a pair, plus one where the second buffer is the lower one.
pub(super) type Lit = u32;

/// Number of an entry of the trail.
pub(super) type At = u32;

pub(super) const OPEN: u8 = 0;
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;

/// Statement of an entry.
#[derive(Clone, Copy)]
pub(super) enum Fact {
    /// A literal is true.
    Lit(Lit),
    /// A side is at least so much. `before` is the entry of its bound until then.
    Bound { side: u32, value: i64, before: At },
}

/// Reason that an entry holds.
#[derive(Clone, Copy)]
pub(super) enum Cause {
    /// A decision, or a fact that holds in any case.
    None,
    /// All other literals of a clause are false.
    Clause(u32),
    /// Two bounds leave no room for the other order. They add up to at least `sum`.
    Pair { first: At, second: At, sum: i64 },
    /// A buffer lies beyond another, whose bound `from` is less by `gap`.
    Order { lit: At, from: At, gap: i64 },
    /// Bounds of the buffers of a section: a range of [`Trail::needs`].
    Section { from: u32, to: u32 },
}

/// A bound at an entry that has to reach a value only.
#[derive(Clone, Copy)]
pub(super) struct Need {
    pub(super) at: At,
    pub(super) value: i64,
}

/// Reason why a branch holds no allocation.
pub(super) enum Conflict {
    /// All literals of a clause are false.
    Clause(u32),
    /// A buffer has no place between the bounds of its sides.
    Crossed(u32),
    /// Bounds of the buffers of a section.
    Section(Vec<Need>),
}

/// A fact, its cause, and the number of decisions before it.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) fact: Fact,
    pub(super) cause: Cause,
    pub(super) level: u32,
}

/// Another buffer that lives at the same time, and the literal that it lies higher.
#[derive(Clone, Copy)]
pub(super) struct Neighbour {
    pub(super) other: u32,
    pub(super) below: Lit,
}

/// Bounds and literals, and how they came to be.
pub(super) struct Trail {
    /// Sizes.
    pub(super) p: Vec<i64>,
    align: Vec<i64>,
    /// Bounds of all sides: twice the buffer, plus the side.
    pub(super) bound: Vec<i64>,
    /// Entry of every bound.
    pub(super) last: Vec<At>,
    /// Value of every literal, as far as it is known.
    pub(super) value: Vec<u8>,
    /// Entry of every pair that is not open.
    pub(super) set_at: Vec<At>,
    pub(super) entries: Vec<Entry>,
    /// Number of entries before every decision.
    pub(super) levels: Vec<u32>,
    /// Bounds that sections rest on.
    pub(super) needs: Vec<Need>,
    needs_before: Vec<u32>,
    pub(super) neighbours: Vec<Vec<Neighbour>>,
    /// The buffers of every pair, in the order of its literal.
    pub(super) pairs: Vec<(u32, u32)>,
    /// The buffers live in every section, and the sections of every buffer.
    pub(super) sections: Vec<Vec<u32>>,
    sections_of: Vec<Vec<u32>>,
    queue: Vec<u32>,
    queued: Vec<bool>,
    /// Whether a section has changed since the search looked at it.
    pub(super) touched: Vec<bool>,
    /// Entries whose consequences are drawn.
    head: usize,
    /// Buffers looked at since the count was last taken.
    pub(super) steps: u64,
}

impl Trail {
    pub(super) fn new(c: &Compact, capacity: i64) -> Trail {
        let n = c.len();
        let mut sections: Vec<Vec<u32>> = vec![Vec::new(); c.load.len()];
        let mut sections_of: Vec<Vec<u32>> = vec![Vec::new(); n];
        for (b, live) in c.live.iter().enumerate() {
            for s in live.iter().flat_map(|r| r.0..r.1) {
                sections[s as usize].push(b as u32);
                sections_of[b].push(s);
            }
        }
        let mut known: Vec<(u32, u32)> = Vec::new();
        for (s, members) in sections.iter().enumerate() {
            let born = |b: u32| c.live[b as usize].iter().any(|r| r.0 as usize == s);
            for (i, &b) in members.iter().enumerate() {
                // A pair is met where the later of the two is born.
                let new = born(b);
                known.extend(members[..i].iter().filter(|&&o| new || born(o)).map(|&o| (o.min(b), o.max(b))));
            }
        }
        known.sort_unstable();
        known.dedup();
        let mut neighbours: Vec<Vec<Neighbour>> = vec![Vec::new(); n];
        for (i, &(a, b)) in known.iter().enumerate() {
            let lit = 2 * i as Lit;
            neighbours[a as usize].push(Neighbour { other: b, below: lit });
            neighbours[b as usize].push(Neighbour { other: a, below: lit ^ 1 });
        }
        let p: Vec<i64> = c.size.iter().map(|&s| s as i64).collect();
        let align: Vec<i64> = c.align.iter().map(|&a| a as i64).collect();
        let mut bound = Vec::with_capacity(2 * n);
        for b in 0..n {
            let highest = (capacity - p[b]).div_euclid(align[b]) * align[b];
            let (low, high) = c.fixed[b].map_or((0, highest), |at| (at as i64, at as i64));
            bound.extend([low, -(high + p[b])]);
        }
        let entry = |(side, &value): (usize, &i64)| Entry {
            fact: Fact::Bound { side: side as u32, value, before: side as At },
            cause: Cause::None,
            level: 0,
        };
        Trail {
            entries: bound.iter().enumerate().map(entry).collect(),
            last: (0..2 * n as At).collect(),
            value: vec![OPEN; 2 * known.len()],
            set_at: vec![0; known.len()],
            levels: Vec::new(),
            needs: Vec::new(),
            needs_before: Vec::new(),
            queue: (0..sections.len() as u32).collect(),
            queued: vec![true; sections.len()],
            touched: vec![true; sections.len()],
            head: 0,
            steps: 0,
            pairs: known,
            p,
            align,
            bound,
            neighbours,
            sections,
            sections_of,
        }
    }

    pub(super) fn level(&self) -> u32 {
        self.levels.len() as u32
    }

    /// One past the last byte of a buffer in a direction, at the latest.
    pub(super) fn end(&self, b: usize, direction: usize) -> i64 {
        -self.bound[2 * b + 1 - direction]
    }

    /// The literal that `b` comes before a neighbour in a direction.
    pub(super) fn before(n: Neighbour, direction: usize) -> Lit {
        n.below ^ direction as Lit
    }

    /// Makes an open literal true in a new level.
    pub(super) fn decide(&mut self, lit: Lit) {
        self.levels.push(self.entries.len() as u32);
        self.needs_before.push(self.needs.len() as u32);
        self.set(lit, Cause::None);
    }

    /// Makes an open literal true.
    pub(super) fn set(&mut self, lit: Lit, cause: Cause) {
        self.value[lit as usize] = TRUE;
        self.value[lit as usize ^ 1] = FALSE;
        self.set_at[lit as usize / 2] = self.entries.len() as At;
        self.entries.push(Entry { fact: Fact::Lit(lit), cause, level: self.level() });
    }

    /// The next value of a side that its alignment allows.
    fn round(&self, side: usize, value: i64) -> i64 {
        let (b, align) = (side / 2, self.align[side / 2]);
        if align == 1 {
            return value;
        }
        let shift = if side % 2 == 1 { self.p[b] } else { 0 };
        (value + shift + align - 1).div_euclid(align) * align - shift
    }

    /// The least value that [`Trail::round`] brings to another.
    pub(super) fn relax(&self, side: usize, value: i64) -> i64 {
        let align = self.align[side / 2];
        if align == 1 { value } else { self.round(side, value) - align + 1 }
    }

    /// Raises the bound of a side.
    pub(super) fn raise(&mut self, side: usize, value: i64, cause: Cause) -> Result<(), Conflict> {
        if value <= self.bound[side] {
            return Ok(());
        }
        let value = self.round(side, value);
        let fact = Fact::Bound { side: side as u32, value, before: self.last[side] };
        self.last[side] = self.entries.len() as At;
        self.bound[side] = value;
        self.entries.push(Entry { fact, cause, level: self.level() });
        let b = side / 2;
        for &s in &self.sections_of[b] {
            self.touched[s as usize] = true;
            if !self.queued[s as usize] {
                self.queued[s as usize] = true;
                self.queue.push(s);
            }
        }
        if value + self.bound[side ^ 1] + self.p[b] > 0 {
            Err(Conflict::Crossed(side as u32))
        } else {
            Ok(())
        }
    }

    /// Draws the conclusions of a literal about bounds.
    pub(super) fn follow(&mut self, lit: Lit, at: At) -> Result<(), Conflict> {
        let (a, b) = self.pairs[lit as usize / 2];
        let (low, high) = if lit.is_multiple_of(2) { (a, b) } else { (b, a) };
        self.push(low as usize, high as usize, 0, at)?;
        self.push(high as usize, low as usize, 1, at)
    }

    /// In a direction `first` comes before `second`, as entry `lit` says.
    fn push(&mut self, first: usize, second: usize, direction: usize, lit: At) -> Result<(), Conflict> {
        let (side, gap) = (2 * first + direction, self.p[first]);
        let cause = Cause::Order { lit, from: self.last[side], gap };
        self.raise(2 * second + direction, self.bound[side] + gap, cause)
    }

    /// Draws the conclusions of the bound of a side about pairs.
    pub(super) fn pairs(&mut self, side: usize) -> Result<(), Conflict> {
        let (b, direction) = (side / 2, side % 2);
        self.steps += self.neighbours[b].len() as u64;
        for k in 0..self.neighbours[b].len() {
            let n = self.neighbours[b][k];
            let (before, o) = (Trail::before(n, direction), n.other as usize);
            match self.value[before as usize] {
                TRUE => self.push(b, o, direction, self.set_at[before as usize / 2])?,
                FALSE => {}
                _ => {
                    let other = 2 * o + 1 - direction;
                    let both = self.p[b] + self.p[o];
                    if self.bound[side] + self.bound[other] + both > 0 {
                        let (first, second) = (self.last[side], self.last[other]);
                        self.set(before ^ 1, Cause::Pair { first, second, sum: 1 - both });
                    }
                }
            }
        }
        Ok(())
    }

    /// The next entry whose conclusions are not drawn.
    pub(super) fn next(&mut self) -> Option<(At, Fact)> {
        let e = self.entries.get(self.head)?;
        self.head += 1;
        Some((self.head as At - 1, e.fact))
    }

    /// The next section to look at.
    pub(super) fn next_section(&mut self) -> Option<usize> {
        let s = self.queue.pop()? as usize;
        self.queued[s] = false;
        Some(s)
    }

    /// Turns back to a level.
    pub(super) fn undo(&mut self, level: u32) {
        for s in self.queue.drain(..) {
            self.queued[s as usize] = false;
        }
        if level >= self.level() {
            return;
        }
        let length = self.levels[level as usize] as usize;
        for e in self.entries.drain(length..).rev() {
            match e.fact {
                Fact::Lit(lit) => {
                    self.value[lit as usize] = OPEN;
                    self.value[lit as usize ^ 1] = OPEN;
                }
                Fact::Bound { side, before, .. } => {
                    self.last[side as usize] = before;
                    for &s in &self.sections_of[side as usize / 2] {
                        self.touched[s as usize] = true;
                    }
                }
            }
        }
        for side in 0..self.last.len() {
            if let Fact::Bound { value, .. } = self.entries[self.last[side] as usize].fact {
                self.bound[side] = value;
            }
        }
        self.needs.truncate(self.needs_before[level as usize] as usize);
        self.needs_before.truncate(level as usize);
        self.levels.truncate(level as usize);
        self.head = self.entries.len();
    }
}
