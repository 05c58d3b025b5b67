//! A set of swapped gaps, decoded into a scheme whose copies are hidden as well as memory allows.

use super::again::{self, Chain, View};
use super::decode::Decoder;
use crate::planner::Allow;
use crate::problem::{Kind, Problem};
use crate::scheme::{Scheme, Swap};
use crate::sequence::{Sequence, Step};
use crate::timing::{Copies, Timing};

/// A change of a choice; made again, it is undone.
#[derive(Clone, Copy, Debug)]
enum Change {
    Swap(usize),
    Mirror(u32),
}

/// Permissions of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct May {
    pub(crate) allow: Allow,
    /// Have states on both sides when a step begins.
    pub(crate) mirror: bool,
}

/// Bytes that may be in use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Room {
    /// By what has to be there: what a choice keeps.
    pub(crate) kept: Vec<u64>,
    /// By that and what is on its way.
    pub(crate) all: Vec<u64>,
}

/// A choice of gaps to swap and of ops to run again within a capacity, and its decoding.
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
    pub(crate) p: &'a Problem,
    pub(crate) may: May,
    pub(crate) scheme: Scheme,
    /// For every step a number that stays its own when others come and go.
    pub(crate) ids: Vec<u32>,
    /// For every op, the step at which it runs for the first time.
    pub(crate) ran: Vec<u32>,
    /// For every step, the op that is next to run for the first time; one more entry at the end.
    pub(crate) anchor: Vec<u32>,
    /// When an op runs, and what runs again for it.
    pub(crate) room: Room,
    /// Copy time in ns of a byte, there and back.
    ns_per_byte: f64,
    pub(crate) copies: Copies,
    /// What a copy costs besides its time, in ns: a small one waits in a queue like any other.
    pub(crate) each_ns: f64,
    /// During every step.
    pub(crate) capacity: Room,
    /// Bytes every step needs when swapped tensors are away as long as possible.
    pub(crate) least: Vec<u64>,
    /// Whether each gap may be swapped.
    pub(crate) open: Vec<bool>,
    /// For every gap, when its copy to the host is issued.
    pub(crate) outs: Vec<i32>,
    /// The last evaluation that [`State::time`] was asked for.
    pub(crate) timing: Timing,
    pub(super) trial: Timing,
    /// What [`State::set`] and [`State::mirror`] changed since the last [`State::commit`].
    journal: Vec<Change>,
    /// The state before the first change of the steps since then.
    before: Option<Box<State<'a>>>,
    pub(super) decoder: Decoder,
}

impl<'a> State<'a> {
    /// Nothing swapped but what has to be.
    pub(crate) fn new(p: &'a Problem, sequence: Sequence, capacity: u64, may: May) -> State<'a> {
        let room = vec![capacity; p.ops.len()];
        let room = Room { kept: room.clone(), all: room };
        let mut again = p.ops.len() as u32;
        let id = |step: &Step| {
            again += u32::from(step.again.is_some());
            if step.again.is_some() { again } else { step.op }
        };
        let ids = sequence.steps.iter().map(id).collect();
        State::with_ids(p, sequence, ids, room, may)
    }

    fn with_ids(p: &'a Problem, sequence: Sequence, ids: Vec<u32>, room: Room, may: May) -> State<'a> {
        let copies = Copies::new(p, &sequence.gaps);
        let n = sequence.steps.len();
        let swap = may.allow.on(&p.device).swap;
        let open = sequence.gaps.iter().map(|g| swap && (g.open() || g.wraps(n)) && !g.arrives()).collect();
        let mut ran = vec![0; p.ops.len()];
        let mut anchor = vec![p.ops.len() as u32; n + 1];
        for (i, step) in sequence.steps.iter().enumerate().rev() {
            anchor[i] = anchor[i + 1];
            if step.again.is_none() {
                ran[step.op as usize] = i as u32;
                anchor[i] = step.op;
            }
        }
        let scheme = Scheme { early: true, ..Scheme::keep_all(sequence) };
        let (least, outs) = (scheme.usage(), scheme.copies_out(p));
        let each_ns = copies.back.iter().sum::<u64>() as f64 / copies.back.len().max(1) as f64 * EACH;
        let mut state = State {
            each_ns,
            p,
            may,
            scheme,
            ids,
            ran,
            anchor,
            room,
            ns_per_byte: again::ns_per_byte(p),
            copies,
            capacity: Room::default(),
            least,
            open,
            outs,
            timing: Timing::default(),
            trial: Timing::default(),
            decoder: Decoder::default(),
            journal: Vec::new(),
            before: None,
        };
        state.resize();
        state
    }

    /// The capacity of every step from that of the ops.
    pub(crate) fn resize(&mut self) {
        let steps = &self.anchor[..self.steps()];
        let of = |room: &[u64]| {
            let most = room.iter().copied().max().unwrap_or(0);
            steps.iter().map(|&op| room.get(op as usize).copied().unwrap_or(most)).collect()
        };
        self.capacity = Room { kept: of(&self.room.kept), all: of(&self.room.all) };
    }

    /// The tensor of a gap, and the id of the step that it follows.
    pub(crate) fn key(&self, g: usize) -> (u32, u32) {
        let gap = &self.scheme.sequence.gaps[g];
        (gap.tensor, usize::try_from(gap.from).map_or(u32::MAX, |i| self.ids[i]))
    }

    /// What it takes to make a tensor again at the end of a gap, if that can be.
    pub(crate) fn chain(&self, g: usize, reach: f64) -> Option<Chain> {
        let gap = &self.scheme.sequence.gaps[g];
        let possible = self.may.allow.recompute
            && gap.from >= 0
            && gap.open()
            && !gap.dead
            && self.p.tensors[gap.tensor as usize].kind == Kind::Transient;
        if !possible {
            return None;
        }
        self.view(reach).chain(gap.tensor, gap.to as usize, &|g| self.swapped(g))
    }

    /// The steps, for running ops again: an operand that is gone is made again when that takes at most the part `reach`
    /// of its copies' time.
    fn view(&self, reach: f64) -> View<'_> {
        let (s, reach) = (&self.scheme.sequence, reach * self.ns_per_byte);
        View { p: self.p, s, ran: &self.ran, reach }
    }

    /// Has contents made again before steps (step, tensor; sorted), and leaves steps out.
    pub(crate) fn restructure(&mut self, wanted: &[(u32, u32)], dropped: &[bool], reach: f64) {
        let steps = self.view(reach).edit(&self.ids, wanted, dropped);
        let (steps, ids) = steps.into_iter().unzip();
        self.replace(Sequence::new(self.p, steps), ids);
    }

    /// Has the step `from` run before the step `to` instead.
    pub(crate) fn shift(&mut self, from: usize, to: usize) {
        let mut steps: Vec<(Step, u32)> =
            self.scheme.sequence.steps.iter().copied().zip(self.ids.iter().copied()).collect();
        let step = steps.remove(from);
        steps.insert(if to > from { to - 1 } else { to }, step);
        again::sound(self.p, &mut steps);
        let (steps, ids) = steps.into_iter().unzip();
        self.replace(Sequence::new(self.p, steps), ids);
    }

    /// Takes other steps; what was swapped from a step on still is.
    pub(crate) fn replace(&mut self, sequence: Sequence, ids: Vec<u32>) {
        let room = self.room.clone();
        let mut new = State::with_ids(self.p, sequence, ids, room, self.may);
        for t in 0..self.p.tensors.len() as u32 {
            new.mirror(t, self.scheme.mirrored[t as usize]);
            let mut old =
                self.scheme.sequence.gaps_of(t).filter(|&g| self.open[g] && self.swapped(g)).peekable();
            if old.peek().is_none() {
                continue;
            }
            let old: Vec<(u32, u32)> = old.map(|g| self.key(g)).collect();
            for g in new.scheme.sequence.gaps_of(t) {
                if new.open[g] && old.contains(&new.key(g)) {
                    new.set(g, true);
                }
            }
        }
        new.journal.clear();
        std::mem::swap(&mut new.trial, &mut self.trial);
        let mut old = std::mem::replace(self, new);
        self.before = Some(old.before.take().unwrap_or_else(|| Box::new(old)));
    }

    /// Steps of the sequence.
    pub(crate) fn steps(&self) -> usize {
        self.scheme.sequence.steps.len()
    }

    /// Positions that a swapped gap frees at most, half-open; the second range is in the next step.
    pub(crate) fn freed(&self, g: usize) -> [(usize, usize); 2] {
        let (gap, n) = (&self.scheme.sequence.gaps[g], self.steps());
        let (a, b) = ((gap.from + 1).max(0) as usize, gap.to as usize);
        [(a.min(n), b.min(n)), (0, b.saturating_sub(n))]
    }

    pub(crate) fn swapped(&self, g: usize) -> bool {
        self.scheme.swaps[g].is_some()
    }

    /// Whether a tensor may be on both sides when a step begins.
    pub(crate) fn may_mirror(&self, t: u32) -> bool {
        self.may.mirror
            && self.p.tensors[t as usize].persistent()
            && self.may.allow.swap
            && self.p.device.can_swap()
    }

    /// Has a persistent tensor on both sides when a step begins, or not.
    pub(crate) fn mirror(&mut self, t: u32, mirrored: bool) {
        if self.scheme.mirrored[t as usize] == mirrored {
            return;
        }
        self.journal.push(Change::Mirror(t));
        self.scheme.mirrored[t as usize] = mirrored;
        self.scheme.copies_out_of(self.p, t, &mut self.outs);
    }

    /// Swaps nothing that need not be, and runs nothing again.
    pub(crate) fn clear(&mut self) {
        if self.scheme.sequence.steps.len() > self.p.ops.len() {
            let dropped: Vec<bool> = self.scheme.sequence.steps.iter().map(|s| s.again.is_some()).collect();
            self.restructure(&[], &dropped, 0.0);
        }
        for g in 0..self.open.len() {
            if self.open[g] {
                self.set(g, false);
            }
        }
        for t in 0..self.scheme.mirrored.len() as u32 {
            if self.scheme.mirrored[t as usize] {
                self.mirror(t, false);
            }
        }
    }

    /// Swaps a gap, or keeps it.
    pub(crate) fn set(&mut self, g: usize, swapped: bool) {
        if self.swapped(g) == swapped {
            return;
        }
        self.journal.push(Change::Swap(g));
        let gap = self.scheme.sequence.gaps[g];
        for (from, to) in self.freed(g) {
            for least in &mut self.least[from..to] {
                *least = if swapped { *least - gap.bytes } else { *least + gap.bytes };
            }
        }
        self.scheme.swaps[g] = swapped.then(|| Swap::longest(&gap, self.steps()));
        self.scheme.copies_out_of(self.p, gap.tensor, &mut self.outs);
    }

    /// Forgets how to go back.
    pub(crate) fn commit(&mut self) {
        self.journal.clear();
        self.before = None;
    }

    /// Undoes all that changed since the last [`State::commit`].
    pub(crate) fn rollback(&mut self) {
        if let Some(before) = self.before.take() {
            *self = *before;
        }
        while let Some(change) = self.journal.pop() {
            match change {
                Change::Swap(g) => self.set(g, !self.swapped(g)),
                Change::Mirror(t) => self.mirror(t, !self.scheme.mirrored[t as usize]),
            }
            self.journal.pop();
        }
    }

    /// Evaluates the scheme as it is.
    pub(crate) fn time(&mut self) -> u64 {
        self.timing.evaluate(&self.scheme, &self.copies, &self.outs)
    }
}

/// The part of a mean copy's time that every copy costs besides its own.
const EACH: f64 = 0.25;
