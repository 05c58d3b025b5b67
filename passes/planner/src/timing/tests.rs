//! The fast recurrence against the same one written plainly.

use std::collections::BTreeSet;

use memc_ir::{Arena, Id};

use super::walk::beside;
use super::{Cause, Copies, Timing};
use crate::access_sequence::{AccessSequence, Step};
use crate::evaluate::evaluate;
use crate::genotype::{Genotype, Swap};
use crate::ids::{GapIx, OpPos, StepPos, TensorId};
use crate::problem::{Problem, TensorKind};
use crate::sample::{Draw, Seed, sample};

/// Start, end and cause.
type Span = (u64, u64, Cause);

/// One walk over the step after another, until the time of a step repeats or a third is done.
#[derive(Default)]
struct Plain {
    compute: u64,
    d2h: u64,
    h2d: u64,
    room: (u64, GapIx),
    last: (GapIx, GapIx),
    /// The last copies in this step that may still end later.
    slowable: (Option<GapIx>, Option<GapIx>),
    /// Copies that a position waits for, in this step and the next: end and gap.
    rooms: [Arena<StepPos, (u64, GapIx)>; 2],
    needs: [Arena<StepPos, (u64, GapIx)>; 2],
    steps: Arena<StepPos, Span>,
    outs: Arena<GapIx, Span>,
    backs: Arena<GapIx, Span>,
}

impl Plain {
    /// The time of a step, and when everything runs from the step's beginning on.
    fn evaluate(s: &Genotype, copies: &Copies, outs: &Arena<GapIx, i32>) -> (u64, Plain) {
        let (n, gaps) = (s.sequence.steps.len(), s.swaps.len());
        let none = Arena::filled((0, GapIx(u32::MAX)), n + 1);
        let nothing = (0, 0, Cause::Compute);
        let mut x = Plain {
            rooms: [none.clone(), none.clone()],
            needs: [none.clone(), none.clone()],
            steps: Arena::filled(nothing, n),
            outs: Arena::filled(nothing, gaps),
            backs: Arena::filled(nothing, gaps),
            ..Plain::default()
        };
        let (mut base, mut step_ns) = (0, 0);
        for walk in 0..3 {
            base = x.compute;
            x.rooms = [std::mem::take(&mut x.rooms[1]), none.clone()];
            x.needs = [std::mem::take(&mut x.needs[1]), none.clone()];
            x.walk(s, copies, outs);
            let same = x.compute - base == step_ns;
            step_ns = x.compute - base;
            if walk > 0 && same {
                break;
            }
        }
        for span in x.steps.values_mut().chain(x.outs.values_mut()).chain(x.backs.values_mut()) {
            (span.0, span.1) = (span.0.saturating_sub(base), span.1.saturating_sub(base));
        }
        (step_ns, x)
    }

    fn walk(&mut self, s: &Genotype, copies: &Copies, outs: &Arena<GapIx, i32>) {
        let n = s.sequence.steps.len() as i32;
        self.slowable = (None, None);
        for i in 0..=n {
            for &g in copies.order.iter().filter(|&&g| outs[g].min(n) == i) {
                let back = self.h2d;
                self.out(s, copies, g);
                if let Some(g) = self.slowable.1.filter(|_| self.h2d > back) {
                    self.backs[g].1 = self.h2d;
                    self.needed(s, g);
                }
            }
            if self.rooms[0][StepPos::at(i)].0 > self.room.0 {
                self.room = self.rooms[0][StepPos::at(i)];
            }
            if i == n {
                return;
            }
            for &g in &copies.order {
                let (gap, swap) = (&s.sequence.gaps[g], s.swaps[g]);
                let at = swap.map(|w| if w.back >= n { w.back - n } else { w.back.max(0) });
                if at == Some(i) && !gap.dead {
                    let out = self.d2h;
                    self.back(s, copies, g);
                    if let Some(g) = self.slowable.0.filter(|_| self.d2h > out) {
                        self.outs[g].1 = self.d2h;
                        self.left(s, g);
                    }
                }
            }
            let i = StepPos::at(i);
            let need = self.needs[0][i];
            let mut span = self.earliest();
            if need.0 > span.0 {
                span = (need.0, Cause::In(need.1));
            }
            self.compute = span.0 + s.sequence.ns[i];
            self.steps[i] = (span.0, self.compute, span.1);
            if s.sequence.output_ns[i] > 0 {
                self.d2h = self.d2h.max(self.compute) + s.sequence.output_ns[i];
                self.slowable.0 = None;
            }
        }
    }

    /// Earliest begin of an event that takes bytes, and its cause.
    fn earliest(&self) -> (u64, Cause) {
        if self.room.0 > self.compute {
            (self.room.0, Cause::Out(self.room.1))
        } else {
            (self.compute, Cause::Compute)
        }
    }

    fn out(&mut self, s: &Genotype, copies: &Copies, g: GapIx) {
        let start = self.compute.max(self.d2h);
        let cause = if self.d2h > self.compute { Cause::Out(self.last.0) } else { Cause::Compute };
        self.d2h = beside(start, copies.out[g], &mut self.h2d, copies.duplex);
        self.last.0 = g;
        self.outs[g] = (start, self.d2h, cause);
        self.slowable.0 = Some(g);
        self.left(s, g);
    }

    /// Whoever takes a gap's bytes waits for its copy to the host.
    fn left(&mut self, s: &Genotype, g: GapIx) {
        let n = s.sequence.steps.len() as i32;
        if let Some(swap) = s.swaps[g] {
            let (step, at) = if swap.drop > n { (1, swap.drop - n) } else { (0, swap.drop) };
            let room = &mut self.rooms[step][StepPos::at(at)];
            *room = (*room).max((self.outs[g].1, g));
        }
    }

    fn back(&mut self, s: &Genotype, copies: &Copies, g: GapIx) {
        let n = s.sequence.steps.len() as i32;
        let (to, back) = (s.sequence.gaps[g].to, s.swaps[g].map_or(0, |w| w.back));
        let (mut start, mut cause) = self.earliest();
        if self.outs[g].1 > start && (back < n || to < n) {
            (start, cause) = (self.outs[g].1, Cause::Out(g));
        }
        if self.h2d > start {
            (start, cause) = (self.h2d, Cause::In(self.last.1));
        }
        self.h2d = beside(start, copies.back[g], &mut self.d2h, copies.duplex);
        self.last.1 = g;
        self.backs[g] = (start, self.h2d, cause);
        self.slowable.1 = Some(g);
        self.needed(s, g);
    }

    /// Who needs a gap's tensor waits for its copy to the device.
    fn needed(&mut self, s: &Genotype, g: GapIx) {
        let n = s.sequence.steps.len() as i32;
        let (to, back) = (s.sequence.gaps[g].to, s.swaps[g].map_or(0, |w| w.back));
        let (step, at) = if to >= n { (usize::from(back < n), to - n) } else { (0, to) };
        let need = &mut self.needs[step][StepPos::at(at)];
        *need = (*need).max((self.backs[g].1, g));
    }
}

/// The ops in order, some of them again later.
fn steps(p: &Problem, draw: &mut Seed) -> Vec<Step> {
    let mut steps: Vec<Step> = p.ops.ids().map(Step::first).collect();
    for op in p.ops.ids() {
        let writes = &p.ops[op].writes;
        if p.ops[op].repeatable && draw.below(4) == 0 && !writes.is_empty() {
            let recompute = Some(writes[draw.below(writes.len() as u64) as usize]);
            let at = op.index() + 1 + draw.below((p.ops.len() - op.index()) as u64) as usize;
            let also = if p.ops[op].updates() { 0 } else { draw.below(1 << writes.len().min(63)) };
            steps.insert(at, Step { op, recompute, also });
        }
    }
    steps
}

/// Swaps some gaps, each for a part of it, and keeps some states on both sides.
fn genotype(p: &Problem, draw: &mut Seed) -> Genotype {
    let mut s = Genotype::keep_all(AccessSequence::new(p, steps(p, draw)));
    let n = s.sequence.steps.len();
    let share = 1 + draw.below(4);
    for (gap, swap) in s.sequence.gaps.values().zip(s.swaps.values_mut()) {
        let longest = Swap::longest(gap, n);
        if !gap.arrives() && longest.back > longest.drop && draw.below(4) < share {
            let drop = longest.drop + draw.below((longest.back - longest.drop) as u64) as i32;
            let back = longest.back - draw.below((longest.back - drop) as u64) as i32;
            *swap = Some(Swap { drop, back });
        }
    }
    for (tensor, shadowed) in p.tensors.values().zip(s.shadowed.values_mut()) {
        *shadowed = tensor.persistent() && draw.below(2) == 0;
    }
    s.early = draw.below(2) == 0;
    s
}

#[test]
fn the_fast_recurrence_is_the_plain_one() {
    // One workspace for all: nothing of a genotype may be left when the next is evaluated.
    let mut timing = Timing::default();
    let (mut evaluated, mut stalled) = (0, 0);
    for seed in 0..800 {
        let mut draw = Seed(seed);
        let Some(sample) = sample(&mut draw, 30) else { continue };
        let p = &sample.problem;
        let s = genotype(p, &mut draw);
        let copies = Copies::new(p, &s.sequence);
        let genotypes = [s.clone(), Genotype::keep_all(s.sequence.clone()), s];
        for s in genotypes {
            let outs = s.copies_out(p);
            let (step_ns, plain) = Plain::evaluate(&s, &copies, &outs);
            assert_eq!(timing.evaluate(&s, &copies, &outs), step_ns, "seed {seed}");
            let ends = timing.start.values().zip(timing.end.values()).zip(timing.cause.values());
            let steps: Arena<StepPos, Span> = ends.map(|((&a, &b), &c)| (a, b, c)).collect();
            let pairs = |a: &Arena<GapIx, (u64, u64)>, c: &Arena<GapIx, Cause>| -> Arena<GapIx, Span> {
                a.values().zip(c.values()).map(|(&(a, b), &c)| (a, b, c)).collect()
            };
            assert_eq!(steps, plain.steps, "seed {seed}");
            assert_eq!(pairs(&timing.out, &timing.out_cause), plain.outs, "seed {seed}");
            assert_eq!(pairs(&timing.back, &timing.back_cause), plain.backs, "seed {seed}");
            evaluated += 1;
            stalled += u32::from(step_ns > s.sequence.compute_ns());
        }
    }
    assert!(evaluated > 1500 && stalled > 500, "{stalled} of {evaluated} wait for copies");
}

/// With ops on the host the recurrence is not faster than the event model, and seldom much slower.
#[test]
fn ops_on_the_host_take_as_long_as_in_the_event_model() {
    let (mut evaluated, mut near, mut awaited) = (0, 0, 0);
    for seed in 0..2000 {
        let mut draw = Seed(seed);
        let Some(mut sample) = sample(&mut draw, 20) else { continue };
        let p = &mut sample.problem;
        p.device.duplex_bytes_per_s = 0;
        for op in p.ops.values_mut() {
            op.host_ns = (!op.repeatable).then(|| (1 + draw.below(20)) * 1000);
        }
        // As of an update: it reads what ops make, and they read what it writes.
        let update = |op: &OpPos| {
            let op = &p.ops[*op];
            let is_made = |t: &TensorId| p.tensors[*t].kind == TensorKind::Transient;
            op.reads.iter().any(is_made) && op.writes.iter().all(|t| p.tensors[*t].touches.len() > 1)
        };
        let able: BTreeSet<OpPos> = p.host_candidates().into_iter().filter(update).collect();
        if able.is_empty() || !p.device.can_swap() {
            continue;
        }
        let p = p.with_host_ops(&able).unwrap().problem;
        let s = Genotype::keep_all(AccessSequence::of_order(&p, p.ops.ids()));
        let step_ns = Timing::default().evaluate(&s, &Copies::new(&p, &s.sequence), &s.copies_out(&p));
        let exact = evaluate(&p, s.decisions(&p)).unwrap().evaluation.step_ns;
        assert!(exact <= step_ns, "seed {seed}: {exact} {step_ns}");
        evaluated += 1;
        near += u32::from(step_ns <= exact + exact / 2);
        awaited += u32::from(exact > p.compute_ns());
    }
    assert!(evaluated > 80 && awaited > 80 && near > 70, "{evaluated} {near} {awaited}");
}
