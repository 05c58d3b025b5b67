//! A sequence of runs, and the gaps between the touches of every tensor in it: what there is to decide about
//! copies.

use memc_ir::{Arena, Ids};

use crate::ids::{GapIx, OpPos, StepPos, TensorId};
use crate::problem::Problem;

/// One run of an op.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Step {
    /// The op's position in the problem.
    pub op: OpPos,
    /// The tensor that is computed again; `None` when the op runs for the first time.
    pub recompute: Option<TensorId>,
    /// Other results that a recomputation makes: a bit for each of the first 64 tensors that the op writes.
    /// Only ops that update nothing in place have any.
    pub also: u64,
}

impl Step {
    /// An op's first run.
    pub fn first(op: OpPos) -> Step {
        Step { op, recompute: None, also: 0 }
    }

    /// A run that makes one tensor again.
    pub fn again(op: OpPos, tensor: TensorId) -> Step {
        Step { op, recompute: Some(tensor), also: 0 }
    }

    /// Whether a tensor that the op writes has its content from this run; that of others is scratch.
    pub fn makes(&self, p: &Problem, tensor: TensorId) -> bool {
        let also = || results(p, self.op).any(|(bit, t)| t == tensor && self.also & bit != 0);
        self.recompute.is_none_or(|wanted| wanted == tensor) || self.also != 0 && also()
    }

    /// The tensors that a recomputation makes.
    pub(crate) fn remade(self, p: &Problem) -> impl Iterator<Item = TensorId> {
        let also = results(p, self.op).filter(move |(bit, _)| self.also & bit != 0);
        self.recompute.into_iter().chain(also.map(|(_, t)| t))
    }

    /// The recomputation with those alone that pass; `None` where none does.
    pub(crate) fn retain(self, p: &Problem, mut pass: impl FnMut(TensorId) -> bool) -> Option<Step> {
        let mut kept = self.remade(p).filter(|&t| pass(t));
        let first = Step::again(self.op, kept.next()?);
        Some(kept.fold(first, |step, t| step.with(p, t)))
    }

    /// The recomputation that makes another result too, where that has a bit.
    pub(crate) fn with(self, p: &Problem, tensor: TensorId) -> Step {
        let other = |&(_, t): &(u64, TensorId)| t == tensor && self.recompute != Some(t);
        let bit = results(p, self.op).find(other).map_or(0, |(bit, _)| bit);
        Step { also: self.also | bit, ..self }
    }
}

/// The tensors that an op writes, as far as there are bits for them.
pub(crate) fn results(p: &Problem, op: OpPos) -> impl Iterator<Item = (u64, TensorId)> {
    p.ops[op].writes.iter().take(64).enumerate().map(|(k, &t)| (1 << k, t))
}

/// The time between two touches of a tensor, in which it may leave the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The tensor.
    pub tensor: TensorId,
    /// Its bytes.
    pub bytes: u64,
    /// Index of the step after which the gap begins; -1 when it begins with the step.
    pub from: i32,
    /// Index of the step before which it ends; counted on past the end when that is in the next step.
    pub to: i32,
    /// Whether the touch at the gap's beginning gave the tensor a new content.
    pub dirty: bool,
    /// Whether the content is not read at the gap's end.
    pub dead: bool,
    /// Whether the content goes to the host in it, for ops there; the gap ends with the step.
    pub sent: bool,
}

impl Gap {
    /// Whether the tensor starts the gap in host memory, so that it cannot stay.
    pub fn arrives(&self) -> bool {
        self.from < 0
    }
    /// Whether the tensor leaves or arrives in it, whatever is decided.
    pub fn is_forced(&self) -> bool {
        self.arrives() || self.sent
    }
    /// Whether the gap reaches into the next step.
    pub fn wraps(&self, steps: usize) -> bool {
        self.to >= steps as i32
    }
    /// Whether there is any step between the touches.
    pub fn open(&self) -> bool {
        self.to > self.from + 1
    }
}

/// A step that touches a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Touch {
    /// Index of the step.
    pub step: StepPos,
    /// Whether it needs no earlier content: the tensor appears there.
    pub fresh: bool,
    /// Whether it gives the tensor a new content.
    pub wrote: bool,
}

/// A sequence of steps and what follows from it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessSequence {
    /// The steps in order.
    pub steps: Arena<StepPos, Step>,
    /// The gaps, by tensor and then by time; a persistent tensor's last one wraps around.
    pub gaps: Arena<GapIx, Gap>,
    /// The gaps of every tensor.
    gaps_of: Arena<TensorId, (GapIx, GapIx)>,
    /// The touches, by tensor and then by time.
    touches: Vec<Touch>,
    /// For every tensor, its part of the touches, half-open.
    touches_of: Arena<TensorId, (usize, usize)>,
    /// Bytes that every step needs at least: its tensors, workspace, and unwanted results.
    pub needs: Arena<StepPos, u64>,
    /// Times of the steps in ns.
    pub ns: Arena<StepPos, u64>,
    /// For every step, time of the copies of its results to the host in ns.
    pub output_ns: Arena<StepPos, u64>,
}

impl AccessSequence {
    /// The ops of a problem in the given order, each once.
    pub fn of_order(p: &Problem, order: impl IntoIterator<Item = OpPos>) -> AccessSequence {
        AccessSequence::new(p, order.into_iter().map(Step::first).collect())
    }

    /// A sequence from its steps.
    ///
    /// A step that is recomputed touches its operands and the tensors it is run for; what else it writes is
    /// scratch.
    pub fn new(p: &Problem, steps: Vec<Step>) -> AccessSequence {
        let (n, steps) = (steps.len(), Arena::from(steps));
        let (mut needs, mut ns, mut output_ns) =
            (Arena::with_capacity(n), Arena::with_capacity(n), Arena::with_capacity(n));
        for step in steps.values() {
            let op = &p.ops[step.op];
            let bytes = |t: &TensorId| p.tensors[*t].bytes;
            let fresh = op.writes.iter().filter(|t| !op.reads.contains(t));
            needs.push(op.workspace + op.reads.iter().chain(fresh).map(bytes).sum::<u64>());
            ns.push(op.time_ns);
            // Others that are sent leave in gaps of their own.
            let sent = op.sends.iter().filter(|&&t| !p.leaves_for_host(t)).map(|&t| p.tensors[t].size);
            let copied = op.outputs.iter().map(|&(_, bytes)| bytes).chain(sent);
            let outputs = copied.map(|bytes| p.device.d2h_ns(bytes)).sum();
            output_ns.push(if step.recompute.is_some() { 0 } else { outputs });
        }
        let (touches, touches_of) = touches(p, &steps);
        let mut gaps = Arena::with_capacity(touches.len());
        let mut gaps_of = Arena::with_capacity(p.tensors.len());
        for (t, tensor) in p.tensors.iter() {
            let first = gaps.next_id();
            let (from, to) = touches_of[t];
            let list: &[Touch] = &touches[from..to];
            let gap = |from: i32, to: i32, dirty, dead| Gap {
                tensor: t,
                bytes: tensor.bytes,
                from,
                to,
                dirty,
                dead,
                sent: false,
            };
            if tensor.kind.arrives()
                && let Some(&Touch { step, fresh: false, .. }) = list.first()
            {
                gaps.push(gap(-1, step.position(), false, false));
            }
            for pair in list.windows(2) {
                let (a, b) = (pair[0], pair[1]);
                // A content that appears anew ends no gap, unless the tensor persists and stays where it is.
                if !b.fresh || tensor.persistent() {
                    gaps.push(gap(a.step.position(), b.step.position(), a.wrote, b.fresh));
                }
            }
            if tensor.persistent()
                && let (Some(a), Some(b)) = (list.last(), list.first())
            {
                gaps.push(gap(a.step.position(), b.step.position() + n as i32, a.wrote, b.fresh));
            }
            if let Some(last) = list.last().filter(|_| p.leaves_for_host(t)) {
                let gap = gap(last.step.position(), n as i32, last.wrote, true);
                gaps.push(Gap { sent: true, ..gap });
            }
            gaps_of.push((first, gaps.next_id()));
        }
        AccessSequence { steps, gaps, gaps_of, touches, touches_of, needs, ns, output_ns }
    }

    /// Number of tensors of the problem.
    pub(crate) fn tensors(&self) -> usize {
        self.gaps_of.len()
    }

    /// A tensor's touches.
    pub fn touches_of(&self, t: TensorId) -> &[Touch] {
        let (from, to) = self.touches_of[t];
        &self.touches[from..to]
    }

    /// A tensor's gaps.
    pub fn gaps_of(&self, t: TensorId) -> Ids<GapIx> {
        let (from, to) = self.gaps_of[t];
        Ids::between(from, to)
    }

    /// The step at a position of a gap, also where that is counted on past the end.
    pub fn step_at(&self, position: i32) -> StepPos {
        let n = self.steps.len() as i32;
        StepPos::at(if position >= n { position - n } else { position })
    }

    /// Sum of the steps' times in ns.
    pub fn compute_ns(&self) -> u64 {
        self.ns.values().sum()
    }
}

/// Calls `f` for every touch, in the order of the steps.
fn each_touch(p: &Problem, steps: &Arena<StepPos, Step>, mut f: impl FnMut(TensorId, Touch)) {
    for (step, run) in steps.iter() {
        let op = &p.ops[run.op];
        for &t in &op.reads {
            f(t, Touch { step, fresh: false, wrote: op.writes.contains(&t) });
        }
        for &t in op.writes.iter().filter(|t| !op.reads.contains(t)) {
            if run.makes(p, t) {
                f(t, Touch { step, fresh: true, wrote: true });
            }
        }
    }
}

/// All touches by tensor, and the part of each.
fn touches(p: &Problem, steps: &Arena<StepPos, Step>) -> (Vec<Touch>, Arena<TensorId, (usize, usize)>) {
    let mut parts = Arena::filled((0, 0), p.tensors.len());
    each_touch(p, steps, |t, _| parts[t].1 += 1);
    let mut end = 0;
    for part in parts.values_mut() {
        let count = part.1;
        *part = (end, end);
        end += count;
    }
    let mut out = vec![Touch::default(); end];
    each_touch(p, steps, |t, touch| {
        out[parts[t].1] = touch;
        parts[t].1 += 1;
    });
    (out, parts)
}
