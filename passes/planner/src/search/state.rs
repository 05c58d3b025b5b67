//! A set of swapped gaps, decoded into a genotype whose copies are hidden as well as memory allows.

use memc_ir::{Arena, Id, ids};

use super::decode::Decoder;
use super::recompute::{self, Chain, Dropped, View, Wanted};
use crate::access_sequence::{AccessSequence, Gap, Step};
use crate::genotype::{Genotype, Swap};
use crate::ids::{GapIx, OpPos, StepPos, TensorId};
use crate::planner::Allow;
use crate::problem::{Problem, TensorKind};
use crate::timing::{Copies, Timing};

ids! {
    /// A number of a step that stays its own when others come and go: its op's for a first run, and counted
    /// on from there.
    pub(crate) StepId,
}

/// A change of a choice; made again, it is undone.
#[derive(Clone, Copy, Debug)]
enum Change {
    Swap(GapIx),
    Shadow(TensorId),
}

/// Permissions of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Permissions {
    pub(crate) allow: Allow,
    /// Have states on both sides when a step begins.
    pub(crate) shadow: bool,
}

/// Bytes that may be in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Headroom<K> {
    /// By what has to be there: what a choice keeps.
    pub(crate) kept: Arena<K, u64>,
    /// By that and what is on its way.
    pub(crate) all: Arena<K, u64>,
}

/// A choice of gaps to swap and of ops to recompute within a capacity, and its decoding.
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
    pub(crate) p: &'a Problem,
    pub(crate) may: Permissions,
    pub(crate) genotype: Genotype,
    pub(crate) ids: Arena<StepPos, StepId>,
    /// For every op, the step at which it runs for the first time.
    pub(crate) ran: Arena<OpPos, StepPos>,
    /// For every step, the op that is next to run for the first time; one more entry at the end.
    pub(crate) anchor: Arena<StepPos, OpPos>,
    /// Position of an op, with the recomputations for it.
    pub(crate) headroom: Headroom<OpPos>,
    /// Copy time in ns of a byte, there and back.
    ns_per_byte: f64,
    pub(crate) copies: Copies,
    /// Cost of a copy besides its time, in ns: a small one waits in a queue like any other.
    pub(crate) each_ns: f64,
    /// During every step.
    pub(crate) capacity: Headroom<StepPos>,
    /// Bytes every step needs when swapped tensors are away as long as possible.
    pub(crate) least: Arena<StepPos, u64>,
    /// Whether each gap may be swapped.
    pub(crate) open: Arena<GapIx, bool>,
    /// For every gap, when its copy to the host is issued.
    pub(crate) outs: Arena<GapIx, i32>,
    /// The last evaluation that [`State::time`] was asked for.
    pub(crate) timing: Timing,
    pub(super) trial: Timing,
    /// Changes by [`State::set`] and [`State::mirror`] since the last [`State::commit`].
    journal: Vec<Change>,
    /// The state before the first change of the steps since then.
    before: Option<Box<State<'a>>>,
    pub(super) decoder: Decoder,
}

impl<'a> State<'a> {
    /// Nothing swapped but what has to be.
    pub(crate) fn new(
        p: &'a Problem,
        sequence: AccessSequence,
        capacity: u64,
        may: Permissions,
    ) -> State<'a> {
        let headroom = Arena::filled(capacity, p.ops.len());
        State::with_headroom(p, sequence, Headroom { kept: headroom.clone(), all: headroom }, may)
    }

    /// Nothing swapped but what has to be, within some bytes at every op.
    pub(crate) fn with_headroom(
        p: &'a Problem,
        sequence: AccessSequence,
        headroom: Headroom<OpPos>,
        may: Permissions,
    ) -> State<'a> {
        let mut recompute = p.ops.next_id().0;
        let id = |step: &Step| {
            recompute += u32::from(step.recompute.is_some());
            StepId(if step.recompute.is_some() { recompute } else { step.op.0 })
        };
        let ids = sequence.steps.values().map(id).collect();
        State::with_ids(p, sequence, ids, headroom, may)
    }

    fn with_ids(
        p: &'a Problem,
        sequence: AccessSequence,
        ids: Arena<StepPos, StepId>,
        headroom: Headroom<OpPos>,
        may: Permissions,
    ) -> State<'a> {
        let copies = Copies::new(p, &sequence);
        let n = sequence.steps.len();
        let swap = may.allow.on(&p.device).swap;
        let may_swap = |g: &Gap| swap && p.handling(g.tensor).swaps();
        let open = |g: &Gap| (g.open() || g.wraps(n)) && !g.is_forced() && may_swap(g);
        let open = sequence.gaps.values().map(open).collect();
        let mut ran = Arena::filled(StepPos(0), p.ops.len());
        let mut anchor = Arena::filled(p.ops.next_id(), n + 1);
        for (i, step) in sequence.steps.iter().rev() {
            anchor[i] = anchor[i.next()];
            if step.recompute.is_none() {
                ran[step.op] = i;
                anchor[i] = step.op;
            }
        }
        let genotype = Genotype { early: true, ..Genotype::keep_all(sequence) };
        let (least, outs) = (genotype.usage(), genotype.copies_out(p));
        let each_ns = copies.back.values().sum::<u64>() as f64 / copies.back.len().max(1) as f64 * EACH;
        let mut state = State {
            each_ns,
            p,
            may,
            genotype,
            ids,
            ran,
            anchor,
            headroom,
            ns_per_byte: recompute::ns_per_byte(p),
            copies,
            capacity: Headroom { kept: Arena::default(), all: Arena::default() },
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

    /// The capacity of every step from that of the ops. All there is where a recomputation needs more than
    /// the op that it runs for is left with.
    pub(crate) fn resize(&mut self) {
        let steps = self.anchor.values().zip(self.genotype.sequence.needs.values());
        let of = |headroom: &Arena<OpPos, u64>| {
            let most = headroom.values().copied().max().unwrap_or(0);
            let left = |op: OpPos| headroom.get(op).copied().unwrap_or(most);
            steps.clone().map(|(&op, &needs)| if left(op) < needs { most } else { left(op) }).collect()
        };
        self.capacity = Headroom { kept: of(&self.headroom.kept), all: of(&self.headroom.all) };
    }

    /// The tensor of a gap, and the id of the step that it follows.
    pub(crate) fn key(&self, g: GapIx) -> (TensorId, Option<StepId>) {
        let gap = &self.genotype.sequence.gaps[g];
        (gap.tensor, (gap.from >= 0).then(|| self.ids[StepPos::at(gap.from)]))
    }

    /// The chains that recompute a tensor at the end of a gap: by a run that makes it besides, and by one of
    /// its own.
    pub(crate) fn chains(&self, g: GapIx, reach: f64) -> [Option<Chain>; 2] {
        let gap = &self.genotype.sequence.gaps[g];
        let possible = self.may.allow.recompute
            && gap.from >= 0
            && gap.open()
            && !gap.dead
            && self.p.tensors[gap.tensor].kind == TensorKind::Transient;
        if !possible {
            return [None, None];
        }
        self.view(reach).chains(gap.tensor, StepPos::at(gap.to), &|g| self.swapped(g))
    }

    /// The steps, for running ops again: an operand that is gone is made again when that takes at most the
    /// part `reach` of its copies' time.
    fn view(&self, reach: f64) -> View<'_, 'a> {
        let (s, reach) = (&self.genotype.sequence, reach * self.ns_per_byte);
        View { p: self.p, s, ran: &self.ran, reach }
    }

    /// Has contents made again (sorted), and leaves steps out.
    pub(crate) fn restructure(&mut self, wanted: &[Wanted], dropped: &Dropped, reach: f64) {
        let steps = self.view(reach).edit(&self.ids, wanted, dropped);
        self.replace(steps);
    }

    /// Has the step `from` run before the step `to` instead, or before what `to` goes on with.
    pub(crate) fn shift(&mut self, from: StepPos, to: StepPos) {
        let inside = recompute::inside(self.p, &self.genotype.sequence.steps);
        let before = inside.iter().rfind(|&(i, &inside)| i <= to && !inside).map(|(i, _)| i);
        let to = if inside.get(to) == Some(&true) { before.unwrap_or_default() } else { to };
        let steps = self.genotype.sequence.steps.values().copied();
        let mut steps: Vec<(Step, StepId)> = steps.zip(self.ids.values().copied()).collect();
        let (from, to) = (from.index(), to.index());
        let step = steps.remove(from);
        steps.insert(if to > from { to - 1 } else { to }, step);
        recompute::sound(self.p, &mut steps);
        self.replace(steps);
    }

    /// Takes other steps; what was swapped from a step on still is.
    fn replace(&mut self, steps: Vec<(Step, StepId)>) {
        let headroom = self.headroom.clone();
        let ids = steps.iter().map(|step| step.1).collect();
        let sequence = AccessSequence::new(self.p, steps.into_iter().map(|step| step.0).collect());
        let mut new = State::with_ids(self.p, sequence, ids, headroom, self.may);
        for t in self.p.tensors.ids() {
            new.inherit(self, t);
        }
        new.journal.clear();
        std::mem::swap(&mut new.trial, &mut self.trial);
        let mut old = std::mem::replace(self, new);
        self.before = Some(old.before.take().unwrap_or_else(|| Box::new(old)));
    }

    /// Has a tensor on both sides when a step begins, and swaps it, as another choice does from the same
    /// steps on.
    pub(crate) fn inherit(&mut self, from: &State<'_>, t: TensorId) {
        self.set_shadow(t, from.genotype.shadowed[t] && self.may_shadow(t));
        let swapped = from.genotype.sequence.gaps_of(t).filter(|&g| from.open[g] && from.swapped(g));
        let swapped: Vec<(TensorId, Option<StepId>)> = swapped.map(|g| from.key(g)).collect();
        if swapped.is_empty() {
            return;
        }
        for g in self.genotype.sequence.gaps_of(t) {
            if self.open[g] && swapped.contains(&self.key(g)) {
                self.set(g, true);
            }
        }
    }

    /// Steps of the sequence.
    pub(crate) fn steps(&self) -> usize {
        self.genotype.sequence.steps.len()
    }

    /// Positions that a swapped gap frees at most, half-open; the second range is in the next step.
    pub(crate) fn freed(&self, g: GapIx) -> [(StepPos, StepPos); 2] {
        let (gap, n) = (&self.genotype.sequence.gaps[g], self.steps() as i32);
        let at = |position: i32| StepPos::at(position.min(n));
        [(at(gap.from + 1), at(gap.to)), (StepPos(0), at(gap.to - n))]
    }

    pub(crate) fn swapped(&self, g: GapIx) -> bool {
        self.genotype.swaps[g].is_some()
    }

    /// Whether a tensor may be on both sides when a step begins.
    pub(crate) fn may_shadow(&self, t: TensorId) -> bool {
        let allow = &self.may.allow;
        let may = self.may.shadow && allow.copies && allow.swap;
        may && self.p.tensors[t].persistent() && self.p.device.can_swap()
    }

    /// Has a persistent tensor on both sides when a step begins, or not.
    pub(crate) fn set_shadow(&mut self, t: TensorId, shadowed: bool) {
        if self.genotype.shadowed[t] == shadowed {
            return;
        }
        self.journal.push(Change::Shadow(t));
        self.genotype.shadowed[t] = shadowed;
        self.genotype.copies_out_of(self.p, t, &mut self.outs);
    }

    /// Swaps nothing that need not be, and runs nothing again.
    pub(crate) fn clear(&mut self) {
        if self.genotype.sequence.steps.len() > self.p.ops.len() {
            let dropped = self.genotype.sequence.steps.values().map(|s| s.recompute.is_some()).collect();
            self.restructure(&[], &dropped, 0.0);
        }
        for g in self.open.ids() {
            if self.open[g] {
                self.set(g, false);
            }
        }
        for t in self.genotype.shadowed.ids() {
            if self.genotype.shadowed[t] {
                self.set_shadow(t, false);
            }
        }
    }

    /// Swaps a gap, or keeps it.
    pub(crate) fn set(&mut self, g: GapIx, swapped: bool) {
        if self.swapped(g) == swapped {
            return;
        }
        self.journal.push(Change::Swap(g));
        let gap = self.genotype.sequence.gaps[g];
        for (from, to) in self.freed(g) {
            for least in self.least.range_mut(from, to) {
                *least = if swapped { *least - gap.bytes } else { *least + gap.bytes };
            }
        }
        self.genotype.swaps[g] = swapped.then(|| Swap::longest(&gap, self.steps()));
        self.genotype.copies_out_of(self.p, gap.tensor, &mut self.outs);
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
                Change::Shadow(t) => self.set_shadow(t, !self.genotype.shadowed[t]),
            }
            self.journal.pop();
        }
    }

    /// Evaluates the genotype as it is.
    pub(crate) fn time(&mut self) -> u64 {
        self.timing.evaluate(&self.genotype, &self.copies, &self.outs)
    }
}

/// The part of a mean copy's time that every copy costs besides its own.
const EACH: f64 = 0.25;
