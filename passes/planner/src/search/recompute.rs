//! Running ops again: what a content that was given up takes to be there once more, and steps put in or taken
//! out.

use memc_ir::{Arena, Id};

use super::share::NEAR;
use super::state::StepId;
use crate::access_sequence::{AccessSequence, Step, Touch};
use crate::ids::{GapIx, OpPos, StepPos, TensorId};
use crate::problem::{Problem, TensorKind};

/// Longest chain of recomputed contents for one content.
const DEPTH: usize = 24;

/// Most ops in a row that make a content, each but the first in place.
const IN_PLACE: usize = 8;

/// Memory that a chain takes besides the op's own: bytes during steps, half-open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) from: StepPos,
    pub(crate) to: StepPos,
    pub(crate) bytes: u64,
}

/// Ops and tensors that bring a content back before a step.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Chain {
    /// Ops, operands' first.
    pub(crate) ops: Vec<OpPos>,
    /// Other tensors that have to stay.
    pub(crate) extents: Vec<Extent>,
    /// Part of the last op's time that it costs: the rest is for other results of that op.
    pub(crate) part: f64,
    /// See [`Wanted::apart`].
    pub(crate) apart: bool,
}

/// A content that is to be made again before a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Wanted {
    pub(crate) before: StepPos,
    pub(crate) tensor: TensorId,
    /// Whether its op runs for it, even where it runs again for another result shortly before.
    pub(crate) apart: bool,
}

/// For every step whether it is left out; none at all where it is empty.
pub(crate) type Dropped = Arena<StepPos, bool>;

/// Writes that a tensor has seen before an op touches it.
pub(super) fn content(p: &Problem, t: TensorId, op: OpPos) -> usize {
    p.tensors[t].writes.partition_point(|&w| w < op)
}

/// Copy time in ns of a byte, there and back, or what stands for it without a link.
pub(crate) fn ns_per_byte(p: &Problem) -> f64 {
    let d = &p.device;
    if d.can_swap() {
        return 1e9 / d.h2d_bytes_per_s as f64 + 1e9 / d.d2h_bytes_per_s as f64;
    }
    let bytes: u64 = p.tensors.values().map(|t| t.bytes).sum();
    p.compute_ns() as f64 / bytes.max(1) as f64
}

/// Steps, and what decides how contents are made again among them.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, 'p> {
    pub(crate) p: &'p Problem,
    pub(crate) s: &'a AccessSequence,
    /// The step of every op's first run.
    pub(crate) ran: &'a Arena<OpPos, StepPos>,
    /// An operand that is gone is made again when that takes at most this many ns for each of its bytes.
    pub(crate) reach: f64,
}

impl<'p> View<'_, 'p> {
    /// The ops that make the content of `t` that `op` needs, if it can be recomputed before the step `at`:
    /// one that fills the tensor, and those that update it in place.
    fn makers(&self, t: TensorId, op: OpPos, at: StepPos) -> Option<&'p [OpPos]> {
        let p = self.p;
        let tensor = &p.tensors[t];
        if tensor.kind != TensorKind::Transient || !p.handling(t).recomputes() {
            return None;
        }
        let wanted = content(p, t, op);
        if self.current(t, at) != wanted {
            return None;
        }
        let mut from = wanted.checked_sub(1)?;
        while p.ops[*tensor.writes.get(from)?].reads.contains(&t) {
            from = from.checked_sub(1)?;
        }
        let makers = tensor.writes.get(from..wanted).filter(|makers| makers.len() <= IN_PLACE)?;
        let again = |&w: &OpPos| {
            let maker = &p.ops[w];
            let same = |&y: &TensorId| y == t || self.current(y, at) == content(p, y, w);
            let clobbers = |y: &TensorId| *y != t && maker.reads.contains(y);
            maker.repeatable && !maker.writes.iter().any(clobbers) && maker.reads.iter().all(same)
        };
        makers.iter().all(again).then_some(makers)
    }

    /// Writes that a tensor has seen before a step.
    pub(super) fn current(&self, t: TensorId, at: StepPos) -> usize {
        let writes = &self.p.tensors[t].writes;
        writes.iter().filter(|&&w| self.ran[w] < at).count()
    }

    /// Whether an operand of `op` that is not there any more is better made again than kept.
    fn recomputes(&self, t: TensorId, op: OpPos, at: StepPos) -> bool {
        let most = self.reach * self.p.tensors[t].size as f64;
        let ns = |makers: &[OpPos]| makers.iter().map(|&w| self.p.ops[w].time_ns).sum::<u64>() as f64;
        self.makers(t, op, at).is_some_and(|makers| ns(makers) <= most)
    }

    /// The chains that bring `t` back before the step `at`, which touches it: by a run that makes it besides
    /// another result, and by a run of its own. `away(gap)` says whether a gap is swapped.
    pub(crate) fn chains(
        &self,
        t: TensorId,
        at: StepPos,
        away: &dyn Fn(GapIx) -> bool,
    ) -> [Option<Chain>; 2] {
        let op = self.s.steps[at].op;
        let sharing = self.sharing(t, op);
        let part = sharing.map_or(1.0, |w| self.part(t, w, at));
        let run = sharing.and_then(|w| self.run_before(t, w, at));
        let chain = Chain { ops: Vec::new(), extents: Vec::new(), part, apart: run.is_some() };
        let mut follower = Follower { view: *self, at, away, chain, made: Vec::new() };
        if !follower.follow(t, op, 0) {
            return [None, None];
        }
        let besides = |run: StepPos| {
            let extent = Extent { from: run.next(), to: at, bytes: self.p.tensors[t].bytes };
            Chain { ops: Vec::new(), extents: vec![extent], part: 1.0, apart: false }
        };
        [run.map(besides), Some(follower.chain)]
    }

    /// The steps with `wanted` contents (sorted) made again, and without the steps `dropped`; with `ids`.
    ///
    /// Steps that no longer serve anything are left out. Ids of new steps are counted on from the largest.
    pub(crate) fn edit(
        &self,
        ids: &Arena<StepPos, StepId>,
        wanted: &[Wanted],
        dropped: &Dropped,
    ) -> Vec<(Step, StepId)> {
        let p = self.p;
        let next_id = StepId(ids.values().map(|id| id.0).max().unwrap_or(0).max(p.ops.next_id().0) + 1);
        let there = p.tensors.values().map(|t| t.kind != TensorKind::Transient).collect();
        let heads = heads(p, self.s.steps.iter());
        let lasts = lasts(&heads);
        let mut gone = Arena::filled(false, if dropped.is_empty() { 0 } else { heads.len() });
        for (j, _) in dropped.iter().filter(|(_, dropped)| **dropped) {
            gone[heads[j]] = true;
        }
        let mut skipped = Arena::filled(false, heads.len());
        let mut e = Edit { view: *self, wanted, gone, heads, there, out: Vec::new(), next_id };
        let mut queue = wanted;
        let mut made = Vec::new();
        for ((j, run), &id) in self.s.steps.iter().zip(ids.values()) {
            made.clear();
            while let [wanted, rest @ ..] = queue
                && wanted.before <= j
            {
                e.emit((wanted.tensor, run.op, j), &mut made, 0);
                queue = rest;
            }
            let (head, mut step) = (e.heads[j], *run);
            let mut shared = Vec::new();
            if head == j && step.recompute.is_some() {
                let missing = step.retain(p, |t| !e.there[t]).filter(|_| !e.drops(j));
                skipped[j] = missing.is_none();
                step = missing.unwrap_or(step);
                if missing.is_some() && lasts[j] == j {
                    shared = e.others(step, j, |_, _| false);
                    step = shared.iter().fold(step, |step, &t| step.with(p, t));
                }
            }
            if !skipped[head] {
                e.out.push((step, id));
            }
            let op = &p.ops[step.op];
            for &t in op.reads.iter().chain(op.writes.iter().filter(|&&t| run.makes(p, t))) {
                e.touched(t, j);
            }
            for t in shared {
                e.there[t] = true;
            }
            // A tensor that was made for another's sake stays when it is needed later.
            for &t in made.iter().filter(|t| !op.reads.contains(t)) {
                e.there[t] = e.next(t, j).is_some();
            }
        }
        prune(p, &mut e.out);
        e.out
    }
}

struct Follower<'a, 'p> {
    view: View<'a, 'p>,
    at: StepPos,
    away: &'a dyn Fn(GapIx) -> bool,
    chain: Chain,
    made: Vec<TensorId>,
}

impl Follower<'_, '_> {
    /// Adds what the content of `t` that `op` needs takes; `false` where it cannot be made.
    fn follow(&mut self, t: TensorId, op: OpPos, depth: usize) -> bool {
        let View { p, s, .. } = self.view;
        let at = self.at;
        let Some(makers) = self.view.makers(t, op, at).filter(|_| depth < DEPTH) else { return false };
        self.made.push(t);
        for (w, y) in makers.iter().flat_map(|&w| p.ops[w].reads.iter().map(move |&y| (w, y))) {
            if self.made.contains(&y) {
                continue;
            }
            let (tensor, touches) = (&p.tensors[y], s.touches_of(y));
            let next = touches.partition_point(|x| x.step < at);
            let bytes = tensor.bytes;
            if tensor.kind != TensorKind::Transient || touches.get(next).is_some_and(|x| !x.fresh) {
                // There, or on its way back from the host earlier than otherwise.
                if let Some(g) = covering(s, y, at).filter(|&g| (self.away)(g)) {
                    let to = StepPos::at(s.gaps[g].to).min(s.steps.next_id());
                    self.chain.extents.push(Extent { from: at, to, bytes });
                }
                continue;
            }
            if self.view.recomputes(y, w, at) && self.follow(y, w, depth + 1) {
                if let Some(later) = touches.get(next) {
                    self.chain.extents.push(Extent { from: at, to: later.step, bytes });
                }
                continue;
            }
            let Some(last) = next.checked_sub(1).and_then(|i| touches.get(i)) else { return false };
            self.chain.extents.push(Extent { from: last.step.next(), to: at, bytes });
        }
        for &w in makers {
            if !self.chain.ops.contains(&w) {
                self.chain.ops.push(w);
            }
        }
        true
    }
}

/// For every step the first of its run: for recomputed ones, that which fills the tensor that later ones
/// update in place.
pub(crate) fn heads<'a>(
    p: &Problem,
    steps: impl Iterator<Item = (StepPos, &'a Step)>,
) -> Arena<StepPos, StepPos> {
    let mut filled = Arena::filled(StepPos(0), p.tensors.len());
    let head = |(i, step): (StepPos, &Step)| match step.recompute {
        Some(t) if p.ops[step.op].reads.contains(&t) => filled[t],
        Some(_) => {
            step.remade(p).for_each(|t| filled[t] = i);
            i
        }
        None => i,
    };
    steps.map(head).collect()
}

/// The ops whose first runs are the next to read a tensor once its content was made again.
pub(crate) fn consumers(p: &Problem, s: &AccessSequence, t: TensorId) -> Vec<OpPos> {
    let mut out = Vec::new();
    let mut again = false;
    for touch in s.touches_of(t) {
        let step = s.steps[touch.step];
        again |= step.recompute.is_some() && step.makes(p, t);
        if step.recompute.is_none() && p.ops[step.op].reads.contains(&t) && std::mem::take(&mut again) {
            out.push(step.op);
        }
    }
    out
}

/// For every head the last of its steps.
pub(crate) fn lasts(heads: &Arena<StepPos, StepPos>) -> Arena<StepPos, StepPos> {
    let mut last = heads.clone();
    for (i, &head) in heads.iter() {
        last[head] = i;
    }
    last
}

/// For every step whether it is one of several that make a content again, or between them, and not first.
pub(crate) fn inside(p: &Problem, steps: &Arena<StepPos, Step>) -> Arena<StepPos, bool> {
    let last = lasts(&heads(p, steps.iter()));
    let mut end = StepPos(0);
    let covered = |(i, &last): (StepPos, &StepPos)| {
        let inside = i <= end && i > StepPos(0);
        end = end.max(if last > i { last } else { StepPos(0) });
        inside
    };
    last.iter().map(covered).collect()
}

/// Leaves out runs whose operands or results have another content there than in the first run.
pub(crate) fn sound(p: &Problem, steps: &mut Vec<(Step, StepId)>) {
    let mut ran = Arena::filled(usize::MAX, p.ops.len());
    for (i, (step, _)) in steps.iter().enumerate() {
        if step.recompute.is_none() {
            ran[step.op] = i;
        }
    }
    let heads = heads(p, steps.iter().enumerate().map(|(i, (step, _))| (StepPos::new(i), step)));
    let last = lasts(&heads);
    let seen = |t: TensorId, i: usize| p.tensors[t].writes.iter().filter(|&&w| ran[w] < i).count();
    let mut wrong = Arena::filled(false, steps.len());
    // For every tensor, the head of the run that is filling it.
    let mut filling: Arena<TensorId, Option<StepPos>> = Arena::filled(None, p.tensors.len());
    for (i, (step, _)) in steps.iter().enumerate() {
        let (at, op) = (StepPos::new(i), &p.ops[step.op]);
        let head = heads[at];
        for &t in op.reads.iter().chain(&op.writes) {
            if let Some(other) = filling[t].filter(|&other| other != head) {
                wrong[other] = true;
            }
        }
        let Some(t) = step.recompute else { continue };
        filling[t] = Some(head).filter(|_| last[head] != at);
        let same = |&y: &TensorId| y == t || seen(y, i) == content(p, y, step.op);
        let also = |y: TensorId| y == t || seen(y, i) == content(p, y, step.op) + 1;
        let current = seen(t, i) == seen(t, head.index()) && step.remade(p).all(also);
        let complete = last[head] != at || seen(t, i) == content(p, t, step.op) + 1;
        wrong[head] |= !current || !complete || !op.reads.iter().all(same);
    }
    let mut i = 0;
    steps.retain(|(step, _)| {
        i += 1;
        step.recompute.is_none() || !wrong[heads[StepPos::new(i - 1)]]
    });
    prune(p, steps);
}

/// The gap of a tensor around a step, which does not touch it.
fn covering(s: &AccessSequence, t: TensorId, at: StepPos) -> Option<GapIx> {
    let n = s.steps.len() as i32;
    let at = at.position();
    let covers = |g: &GapIx| {
        let gap = &s.gaps[*g];
        (gap.from < at && at < gap.to) || (gap.to >= n && at < gap.to - n)
    };
    s.gaps_of(t).find(covers)
}

struct Edit<'a, 'p> {
    view: View<'a, 'p>,
    wanted: &'a [Wanted],
    /// For heads of recomputed steps, whether they are left out; none at all where it is empty.
    gone: Arena<StepPos, bool>,
    heads: Arena<StepPos, StepPos>,
    /// By tensor, whether its content is somewhere.
    there: Arena<TensorId, bool>,
    out: Vec<(Step, StepId)>,
    next_id: StepId,
}

impl Edit<'_, '_> {
    fn drops(&self, step: StepPos) -> bool {
        self.gone.get(self.heads[step]).copied().unwrap_or(false)
    }

    /// After the step `j`: a content is there until it is made anew, or for good when nothing reads it.
    fn touched(&mut self, t: TensorId, j: StepPos) {
        if self.view.p.tensors[t].kind != TensorKind::Transient {
            return;
        }
        self.there[t] = self.next(t, j).is_some_and(|x| !x.fresh && self.wanted(x.step, t).is_none());
    }

    /// Whether a content is to be made again before a step, and how.
    fn wanted(&self, before: StepPos, tensor: TensorId) -> Option<&Wanted> {
        let i = self.wanted.partition_point(|w| (w.before, w.tensor) < (before, tensor));
        self.wanted.get(i).filter(|w| (w.before, w.tensor) == (before, tensor))
    }

    /// The next touch of `t` after the step `j` that is not left out.
    fn next(&self, t: TensorId, j: StepPos) -> Option<Touch> {
        self.from(t, j.next())
    }

    /// The first touch of `t` from a step on that is not left out.
    fn from(&self, t: TensorId, at: StepPos) -> Option<Touch> {
        let touches = self.view.s.touches_of(t);
        let later = touches.partition_point(|x| x.step < at);
        touches[later..].iter().find(|x| !self.drops(x.step)).copied()
    }

    /// Other results that a recomputation before the step `at`, or there, is to make as well: those that are
    /// gone, and that are to be made again soon after or pass `also`, by their next touch.
    fn others(&self, step: Step, at: StepPos, also: impl Fn(TensorId, Touch) -> bool) -> Vec<TensorId> {
        let p = self.view.p;
        let op = &p.ops[step.op];
        if op.writes.len() < 2 || op.updates() {
            return Vec::new();
        }
        let soon = |y: TensorId| {
            let next = self.from(y, at).filter(|next| next.step.index() <= at.index() + NEAR);
            next.is_some_and(|next| match self.wanted(next.step, y) {
                Some(wanted) => !wanted.apart,
                None => also(y, next),
            })
        };
        let same = |y: TensorId| self.view.current(y, at) == content(p, y, step.op) + 1;
        let gone = |y: TensorId| !self.there[y] && !step.makes(p, y) && step.with(p, y).makes(p, y);
        op.writes.iter().copied().filter(|&y| gone(y) && soon(y) && same(y)).collect()
    }

    fn emit(
        &mut self,
        (t, op, at): (TensorId, OpPos, StepPos),
        made: &mut Vec<TensorId>,
        depth: usize,
    ) -> bool {
        let View { p, s, .. } = self.view;
        if self.there[t] {
            return true;
        }
        let Some(makers) = self.view.makers(t, op, at).filter(|_| depth < DEPTH) else { return false };
        for &w in makers {
            for &y in &p.ops[w].reads {
                if y != t && !self.there[y] && self.view.recomputes(y, w, at) {
                    self.emit((y, w, at), made, depth + 1);
                }
            }
            let mut step = Step::again(w, t);
            if makers.len() == 1 {
                let also = |y: TensorId, next: Touch| match next.fresh {
                    true => s.steps[next.step].op == w,
                    false => p.ops[op].reads.contains(&y) && self.view.recomputes(y, op, at),
                };
                for y in self.others(step, at, also) {
                    step = step.with(p, y);
                    self.there[y] = true;
                    made.push(y);
                }
            }
            self.out.push((step, self.next_id));
            self.next_id.0 += 1;
        }
        self.there[t] = true;
        made.push(t);
        true
    }
}

/// Leaves out runs that nothing reads.
fn prune(p: &Problem, steps: &mut Vec<(Step, StepId)>) {
    let mut read = Arena::filled(false, p.tensors.len());
    let mut keep = vec![true; steps.len()];
    for (i, (step, _)) in steps.iter_mut().enumerate().rev() {
        let op = &p.ops[step.op];
        if step.recompute.is_some() {
            let Some(wanted) = step.retain(p, |t| read[t]) else {
                keep[i] = false;
                continue;
            };
            *step = wanted;
        }
        for &t in op.writes.iter().filter(|&&t| step.makes(p, t)) {
            read[t] = false;
        }
        for &t in &op.reads {
            read[t] = true;
        }
    }
    let mut keep = keep.into_iter();
    steps.retain(|_| keep.next().unwrap_or(true));
}

#[cfg(test)]
mod tests {
    use super::super::import::import;
    use super::super::state::Permissions;
    use crate::exact::{Judge, optimum};
    use crate::problem::{Device, Problem, TensorKind};
    use crate::sample::{op, tensor};
    use crate::{Allow, Request, Starts, json, plan};

    /// A tensor that two ops update in place is lost while others need its room, and all that made it runs
    /// again: without a link there is no other way.
    #[test]
    fn what_is_updated_in_place_is_made_again_as_a_whole() {
        let text = r#"{"format": "memc-problem/1", "device": {"memory_bytes": 20480, "h2d_bytes_per_s": 0,
            "d2h_bytes_per_s": 0, "duplex_total_bytes_per_s": 0, "copy_latency_ns": 0},
            "tensors": [
            {"id": 0, "name": "w", "bytes": 1024, "kind": "persistent"},
            {"id": 1, "name": "scores", "bytes": 8192, "kind": "transient"},
            {"id": 2, "name": "h", "bytes": 1024, "kind": "transient"},
            {"id": 3, "name": "big", "bytes": 16384, "kind": "transient"},
            {"id": 4, "name": "g", "bytes": 1024, "kind": "transient"}],
            "ops": [
            {"id": 0, "name": "product", "time_ns": 100, "reads": [0], "writes": [1]},
            {"id": 1, "name": "mask", "time_ns": 20, "reads": [1], "writes": [1], "repeatable": true},
            {"id": 2, "name": "softmax", "time_ns": 30, "reads": [1], "writes": [1], "repeatable": true},
            {"id": 3, "name": "sum", "time_ns": 10, "reads": [1], "writes": [2]},
            {"id": 4, "name": "grow", "time_ns": 10, "reads": [2], "writes": [3]},
            {"id": 5, "name": "shrink", "time_ns": 10, "reads": [3], "writes": [4]},
            {"id": 6, "name": "update", "time_ns": 10, "reads": [0, 1, 4], "writes": [0]}]}"#;
        let p = json::parse(text).expect("the problem is well-formed");
        let found = plan(&p, &Request::new(20480), &Starts::NONE).expect("there is a plan");
        let schedule = crate::evaluate(&p, found.decisions).expect("it runs");
        assert_eq!((schedule.evaluation.step_ns, schedule.evaluation.recompute_ns), (340, 150));
    }

    /// Two results of an op that are lost while others need their room are made again by one run, and the
    /// search goes on from such decisions.
    #[test]
    fn results_that_are_needed_together_are_made_again_by_one_run() {
        let sizes =
            [("linear", 8192), ("gelu", 8192), ("y", 1024), ("big", 20480), ("dy", 1024), ("dw", 1024)];
        let results = sizes.map(|(name, size)| tensor(name, TensorKind::Transient, size));
        let tensors = [tensor("x", TensorKind::Persistent, 1024)].into_iter().chain(results).collect();
        let ops = vec![
            op("fc", 100, &[0], &[1, 2]),
            op("project", 10, &[2], &[3]),
            op("grow", 10, &[3], &[4]),
            op("shrink", 10, &[4], &[5]),
            op("gelu_grad", 10, &[1, 5], &[6]),
            op("update", 10, &[0, 2, 6], &[0]),
        ];
        let p = Problem::new("mlp", Device::default(), tensors, ops).expect("it is well-formed");
        let found = plan(&p, &Request::new(24576), &Starts::NONE).expect("there is a plan");
        let schedule = crate::evaluate(&p, found.decisions).expect("it runs");
        assert_eq!((schedule.evaluation.step_ns, schedule.evaluation.recompute_ns), (250, 100));
        let may = Permissions { allow: Allow::ALL, shadow: true };
        let state = import(&p, &schedule.decisions, 24576, may).expect("a genotype has its meaning");
        let steps = state.genotype.sequence.steps.values();
        let remade: Vec<_> = steps.flat_map(|step| step.remade(&p)).map(|t| &p.tensors[t].name).collect();
        assert_eq!(remade, ["linear", "gelu"]);
        let exact = optimum(&p, 24576, (Allow::ALL, Judge::Layout), false, 1 << 20).expect("it fits");
        assert_eq!((exact.step_ns, exact.proven), (250, true));
    }
}
