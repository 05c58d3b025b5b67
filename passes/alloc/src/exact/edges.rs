//! Edge finding: buffers of a machine that must lie above, or below, a whole set of others.
//!
//! After J. Carlier and E. Pinson, "An algorithm for solving the job-shop problem", Management Science 35
//! (1989), in the form of P. Vilim, "Global constraints in scheduling" (2007), chapter 4. Take a set of
//! buffers that must end by some offset. A buffer that cannot lie among or below them lies above them all.
//! The same is done upside down. Buffers that lie below or above all others of the machine in any case are
//! left out.

use super::insertion_sort;
use super::state::{Contradiction, State, Step};

/// A task of a machine, the same for both directions.
#[derive(Clone, Copy)]
struct Task {
    est: i64,
    lct: i64,
    p: i64,
    buffer: u32,
}

/// Memory of the propagation, kept between calls.
#[derive(Default)]
pub(super) struct Edges {
    /// The members of every machine, roughly by `est`.
    members: Vec<Vec<u32>>,
    tasks: Vec<Task>,
    bounds: Vec<i64>,
    raised: Vec<i64>,
}

impl Edges {
    pub(super) fn new(s: &State) -> Edges {
        Edges { members: s.machines.clone(), ..Edges::default() }
    }

    /// Propagates one machine; changes queue it again.
    pub(super) fn propagate(&mut self, s: &mut State, machine: usize) -> Step {
        let members = &mut self.members[machine];
        insertion_sort(members, |b| s.est[b as usize]);
        let Some(range) = contested(s, members) else { return Ok(()) };
        self.tasks.clear();
        let task = |&b: &u32| {
            let i = b as usize;
            Task { est: s.est[i], lct: s.lct(i), p: s.p[i], buffer: b }
        };
        self.tasks.extend(members[range].iter().map(task));
        s.steps += 2 * self.tasks.len() as u64;
        find(&self.tasks, &mut self.bounds, &mut self.raised, &mut s.steps)?;
        let mut changed = false;
        for (t, &at) in self.tasks.iter().zip(&self.raised) {
            if at > t.est {
                changed = true;
                s.raise(t.buffer as usize, at)?;
            }
        }
        if changed {
            return Ok(());
        }
        for t in &mut self.tasks {
            (t.est, t.lct) = (-t.lct, -t.est);
        }
        self.tasks.sort_unstable_by_key(|t| t.est);
        find(&self.tasks, &mut self.bounds, &mut self.raised, &mut s.steps)?;
        for (t, &at) in self.tasks.iter().zip(&self.raised) {
            if at > t.est {
                s.lower(t.buffer as usize, -at - t.p)?;
            }
        }
        Ok(())
    }
}

/// The members, by `est`, that are not surely below or above all others.
fn contested(s: &State, members: &[u32]) -> Option<std::ops::Range<usize>> {
    let (mut from, mut to) = (0, members.len());
    // Each buffer is compared with the next one by `est` first, which settles most.
    while from + 1 < to {
        let first = members[from] as usize;
        let surely = |&b: &u32| s.ect(b as usize) > s.lst[first];
        if !members[from + 1..to].iter().all(surely) {
            break;
        }
        from += 1;
    }
    while from + 1 < to {
        let last = members[to - 1] as usize;
        let surely = |&b: &u32| s.ect(last) > s.lst[b as usize];
        if !members[from..to - 1].iter().all(surely) {
            break;
        }
        to -= 1;
    }
    (from + 1 < to).then_some(from..to)
}

/// For every task, sorted by `est`, a lower bound of its start.
fn find(tasks: &[Task], bounds: &mut Vec<i64>, raised: &mut Vec<i64>, steps: &mut u64) -> Step {
    raised.clear();
    raised.extend(tasks.iter().map(|t| t.est));
    bounds.clear();
    bounds.extend(tasks.iter().map(|t| t.lct));
    bounds.sort_unstable();
    bounds.dedup();
    for &bound in bounds.iter().rev() {
        *steps += tasks.len() as u64 / 4;
        // The set holds all that must end by `bound`. Its bytes, and its end at the lowest.
        let (mut bytes, mut end) = (0i64, i64::MIN);
        for t in tasks.iter().rev().filter(|t| t.lct <= bound) {
            bytes += t.p;
            end = end.max(t.est + bytes);
        }
        if end > bound {
            return Err(Contradiction);
        }
        // End of the part of the set passed so far, with the bytes of all of it from there on.
        let (mut from, mut rest) = (i64::MIN, bytes);
        for (t, raised) in tasks.iter().zip(raised.iter_mut()) {
            if t.lct <= bound {
                from = from.max(t.est + rest);
                rest -= t.p;
                continue;
            }
            let inside = rest > 0 && t.est + t.p + rest > bound;
            if inside || from > bound - t.p {
                *raised = (*raised).max(end);
            }
        }
    }
    Ok(())
}
