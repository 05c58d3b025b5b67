//! A choice of gaps by duals: most room for the cost of copies and of recomputed ops, until the step fits.

use std::collections::BTreeMap;

use memc_ir::{Arena, Ids};

use super::duals::Duals;
use super::recompute::{self, Chain, Dropped, Wanted};
use super::state::State;
use crate::ids::{GapIx, StepPos, TensorId};

/// Means by which a gap's bytes are freed.
#[derive(Clone, PartialEq, Debug)]
enum Eviction {
    /// Copies there and back.
    Swap {
        /// The tensor's gap across steps, where the copy to the host is better made than in this gap.
        wrap: Option<GapIx>,
        /// Whether the tensor is to be on both sides when a step begins.
        shadow: bool,
    },
    /// Its op is recomputed, for which other bytes have to be there.
    Recompute(Chain),
}

/// A way of freeing bytes, and what it costs.
#[derive(Clone, PartialEq, Debug)]
struct Candidate {
    gap: GapIx,
    eviction: Eviction,
    cost: f64,
}

impl Candidate {
    fn gaps(&self) -> ([GapIx; 2], usize) {
        match self.eviction {
            Eviction::Swap { wrap: Some(wrap), .. } => ([self.gap, wrap], 2),
            _ => ([self.gap, self.gap], 1),
        }
    }
}

/// Of this many steps each, one more candidate is taken at a time.
const BATCH: usize = 2048;

/// Times that the steps are changed for one choice.
const ROUNDS: usize = 12;

/// Swaps gaps, and runs ops again, until every step fits, then keeps again those that are not needed; false
/// when that cannot be. Adds to `work` how many gaps and steps it looked at.
///
/// Each is chosen by the bytes over capacity that it takes away, summed over steps, for its cost.
pub(crate) fn greedy(s: &mut State<'_>, duals: &Duals, work: &mut u64) -> bool {
    greedy_by(s, duals, work, BATCH)
}

/// As [`greedy`], with one more candidate at a time of so many steps each.
fn greedy_by(s: &mut State<'_>, duals: &Duals, work: &mut u64, steps: usize) -> bool {
    for round in 0..ROUNDS {
        let mut wanted = Vec::new();
        // A recomputation may call for others; copies do not.
        let recompute = round < ROUNDS / 2 || !s.may.allow.swap;
        let fits = Round::new(s, duals, recompute).choose(work, &mut wanted, steps);
        if !fits {
            return false;
        }
        if wanted.is_empty() {
            relax(s, duals);
            return true;
        }
        wanted.sort_unstable();
        s.restructure(&wanted, &Arena::default(), duals.reach);
        *work += 8 * (s.steps() + s.open.len()) as u64;
    }
    false
}

/// Choices on one list of steps. Ops to recompute are accounted for, and put in when all is chosen.
struct Round<'s, 'a> {
    s: &'s mut State<'a>,
    duals: &'s Duals,
    /// Bytes that recomputed ops free and take: from, to, bytes freed.
    estimates: Vec<(StepPos, StepPos, i128)>,
    gone: Arena<GapIx, bool>,
    recompute: bool,
    /// For every step, the sum of the bytes over capacity before it; one more entry at the end.
    over: Arena<StepPos, f64>,
}

impl<'s, 'a> Round<'s, 'a> {
    fn new(s: &'s mut State<'a>, duals: &'s Duals, recompute: bool) -> Self {
        let (gaps, n) = (s.open.len(), s.steps());
        Round {
            s,
            duals,
            estimates: Vec::new(),
            gone: Arena::filled(false, gaps),
            recompute,
            over: Arena::filled(0.0, n + 1),
        }
    }

    fn choose(mut self, work: &mut u64, wanted: &mut Vec<Wanted>, steps: usize) -> bool {
        let n = self.s.steps();
        let batch = 1 + n / steps;
        let mut candidates: Option<Vec<Candidate>> = None;
        let fits = loop {
            let s = &*self.s;
            let excess = |i: StepPos| s.least[i].saturating_sub(s.capacity.kept[i]);
            let Some(worst) = s.least.ids().max_by_key(|&i| (excess(i), std::cmp::Reverse(i))) else {
                break true;
            };
            if excess(worst) == 0 {
                break true;
            }
            for i in s.least.ids() {
                self.over[i.next()] = self.over[i] + excess(i) as f64;
            }
            *work += (n + 2 * s.open.len()) as u64;
            let list = candidates.get_or_insert_with(|| {
                let mut list = Vec::new();
                s.p.tensors.ids().for_each(|t| self.of_tensor(t, &mut list));
                list
            });
            // The best, the first of equals first.
            let mut best: Vec<(f64, usize)> = Vec::new();
            for (k, c) in list.iter().enumerate() {
                let Some(area) = self.area(c, worst) else { continue };
                // More than is over capacity is no use.
                let bytes = s.genotype.sequence.gaps[c.gap].bytes.min(excess(worst)) as f64;
                let score = bytes * area / c.cost.max(1.0);
                let place = best.partition_point(|b| b.0 >= score);
                if place < batch {
                    best.truncate(batch - 1);
                    best.insert(place, (score, k));
                }
            }
            // Recomputations together may take less than was estimated for each.
            if best.is_empty() {
                break !wanted.is_empty();
            }
            let mut taken: Vec<TensorId> = Vec::new();
            for c in best.into_iter().map(|(_, k)| list[k].clone()).collect::<Vec<Candidate>>() {
                let tensor = self.s.genotype.sequence.gaps[c.gap].tensor;
                if !taken.contains(&tensor)
                    && (taken.is_empty() || self.s.least[worst] > self.s.capacity.kept[worst])
                {
                    self.take(&c, wanted);
                    taken.push(tensor);
                }
            }
            list.retain(|c| !taken.contains(&self.s.genotype.sequence.gaps[c.gap].tensor));
            taken.into_iter().for_each(|t| self.of_tensor(t, list));
        };
        for (from, to, freed) in std::mem::take(&mut self.estimates) {
            self.free(from, to, -freed);
        }
        fits
    }

    /// Bytes over capacity that a candidate takes away, summed over steps; `None` where it frees nothing at
    /// `worst`.
    fn area(&self, c: &Candidate, worst: StepPos) -> Option<f64> {
        let (gaps, count) = c.gaps();
        let mut area = 0.0;
        let mut here = false;
        for &g in &gaps[..count] {
            for (a, b) in self.s.freed(g) {
                area += self.over[b] - self.over[a];
                here |= a <= worst && worst < b;
            }
        }
        if let Eviction::Recompute(chain) = &c.eviction {
            let bytes = self.s.genotype.sequence.gaps[c.gap].bytes as f64;
            for e in &chain.extents {
                area -= (self.over[e.to] - self.over[e.from.min(e.to)]) * e.bytes as f64 / bytes;
            }
        }
        (here && area > 0.0).then_some(area)
    }

    fn free(&mut self, from: StepPos, to: StepPos, bytes: i128) {
        if from > to {
            return;
        }
        for least in self.s.least.range_mut(from, to) {
            *least = (i128::from(*least) - bytes).max(0) as u64;
        }
    }

    fn take(&mut self, c: &Candidate, wanted: &mut Vec<Wanted>) {
        let gap = self.s.genotype.sequence.gaps[c.gap];
        match &c.eviction {
            Eviction::Swap { shadow, .. } => {
                let (gaps, count) = c.gaps();
                for &g in &gaps[..count] {
                    self.s.set(g, true);
                }
                self.s.set_shadow(gap.tensor, *shadow);
            }
            Eviction::Recompute(chain) => {
                let (before, tensor) = (StepPos::at(gap.to), gap.tensor);
                wanted.push(Wanted { before, tensor, apart: chain.apart });
                self.gone[c.gap] = true;
                self.estimate(StepPos::at(gap.from + 1), StepPos::at(gap.to), i128::from(gap.bytes));
                for e in &chain.extents {
                    self.estimate(e.from, e.to, -i128::from(e.bytes));
                }
            }
        }
    }

    fn estimate(&mut self, from: StepPos, to: StepPos, freed: i128) {
        self.free(from, to, freed);
        self.estimates.push((from, to, freed));
    }

    /// Candidates for the gaps of a tensor that are kept.
    fn of_tensor(&self, t: TensorId, out: &mut Vec<Candidate>) {
        let (s, duals) = (&*self.s, self.duals);
        let n = s.steps();
        let gaps = s.genotype.sequence.gaps_of(t);
        let kept = |g: GapIx| !s.swapped(g) && !self.gone[g];
        let may_swap = |g: &GapIx| s.open[*g] && kept(*g);
        let useful = |g: GapIx| s.freed(g).iter().any(|&(a, b)| self.over[b] > self.over[a]);
        if !gaps.clone().any(|g| kept(g) && useful(g)) {
            return;
        }
        let wrap = gaps.clone().next_back().filter(|g| may_swap(g) && s.genotype.sequence.gaps[*g].wraps(n));
        let shadowed = s.genotype.shadowed[t];
        let now = duals.cost(s, t, &[], shadowed);
        let may_shadow = s.may_shadow(t) && !shadowed;
        for gap in gaps.filter(|&g| kept(g)) {
            if self.recompute && useful(gap) {
                for chain in s.chains(gap, duals.reach).into_iter().flatten() {
                    let cost = duals.recompute(s.p, &chain);
                    out.push(Candidate { gap, eviction: Eviction::Recompute(chain), cost });
                }
            }
            if !s.open[gap] {
                continue;
            }
            let mut add = |wrap: Option<GapIx>, shadow| {
                let both = [gap, wrap.unwrap_or(gap)];
                let flipped = &both[..if wrap.is_some() { 2 } else { 1 }];
                let cost = duals.cost(s, t, flipped, shadow) - now;
                out.push(Candidate { gap, eviction: Eviction::Swap { wrap, shadow }, cost });
            };
            add(None, shadowed);
            if let Some(wrap) = wrap.filter(|&w| w != gap) {
                add(Some(wrap), shadowed);
                if may_shadow {
                    add(None, true);
                }
            }
        }
    }
}

/// Keeps what need not go: contents that are made again, the longest first, and then swapped gaps, the
/// dearest first.
fn relax(s: &mut State<'_>, duals: &Duals) {
    let dropped = dropped(s);
    if dropped.values().any(|&dropped| dropped) {
        s.restructure(&[], &dropped, duals.reach);
    }
    let mut swapped: Vec<(f64, GapIx)> = Vec::new();
    for g in s.open.ids() {
        let gap = s.genotype.sequence.gaps[g];
        if s.open[g] && s.swapped(g) && !duals.pinned.contains(&s.key(g)) && fits(s, g) {
            let shadowed = s.genotype.shadowed[gap.tensor];
            let now = duals.cost(s, gap.tensor, &[], shadowed);
            swapped.push((now - duals.cost(s, gap.tensor, &[g], shadowed), g));
        }
    }
    swapped.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (_, g) in swapped {
        keep_if_it_fits(s, duals, g);
    }
}

/// For every step, whether it is a recomputation that a choice does without: what it makes can stay instead.
fn dropped(s: &State<'_>) -> Dropped {
    let sequence = &s.genotype.sequence;
    let mut dropped = Arena::filled(false, s.steps());
    if s.steps() == s.p.ops.len() {
        return dropped;
    }
    let heads = recompute::heads(s.p, sequence.steps.iter());
    let mut runs: BTreeMap<StepPos, u64> = BTreeMap::new();
    for (i, _) in sequence.steps.iter().filter(|(_, step)| step.recompute.is_some()) {
        *runs.entry(heads[i]).or_default() += sequence.ns[i];
    }
    let mut runs: Vec<(StepPos, u64)> = runs.into_iter().collect();
    runs.sort_by_key(|&(i, ns)| (std::cmp::Reverse(ns), i));
    let mut least = s.least.clone();
    for (i, _) in runs {
        // The step after which a result would stay.
        let after = |t: TensorId| {
            let touches = sequence.touches_of(t);
            touches[..touches.partition_point(|x| x.step < i)].last().map(|x| x.step.next())
        };
        let made: Option<Vec<(StepPos, u64)>> =
            sequence.steps[i].remade(s.p).map(|t| Some((after(t)?, s.p.tensors[t].bytes))).collect();
        let Some(made) = made else { continue };
        let stay = |k: StepPos| -> u64 {
            made.iter().filter(|&&(after, _)| after <= k).map(|&(_, bytes)| bytes).sum()
        };
        let from = made.iter().map(|&(after, _)| after).min().unwrap_or(i);
        if Ids::between(from, i).all(|k| least[k] + stay(k) <= s.capacity.kept[k]) {
            Ids::between(from, i).for_each(|k| least[k] += stay(k));
            dropped[i] = true;
        }
    }
    dropped
}

/// Whether there is room for a gap's bytes throughout.
fn fits(s: &State<'_>, g: GapIx) -> bool {
    let bytes = s.genotype.sequence.gaps[g].bytes;
    s.freed(g).iter().all(|&(a, b)| Ids::between(a, b).all(|i| s.least[i] + bytes <= s.capacity.kept[i]))
}

/// Keeps a swapped gap when there is room throughout and its tensor's copies cost less for it.
fn keep_if_it_fits(s: &mut State<'_>, duals: &Duals, g: GapIx) {
    let gap = s.genotype.sequence.gaps[g];
    let shadowed = s.genotype.shadowed[gap.tensor];
    if fits(s, g) && duals.cost(s, gap.tensor, &[g], shadowed) < duals.cost(s, gap.tensor, &[], shadowed) {
        s.set(g, false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::Permissions;
    use super::*;
    use crate::access_sequence::AccessSequence;
    use crate::evaluate::evaluate;
    use crate::problem::Problem;
    use crate::sample::{self, ALLOWED};

    /// Layers of the chains, each with a forward and a backward op: two candidates at a time.
    const LAYERS: u32 = 1100;

    /// A chain whose activations have many sizes.
    fn uneven() -> Problem {
        let p = sample::chain(LAYERS, 4096, 3000, 6000);
        let mut tensors: Vec<_> = p.tensors.into_values().collect();
        for (i, t) in tensors.iter_mut().take(LAYERS as usize).enumerate() {
            t.size = 1024 * (1 + (i as u64 * 37) % 11);
        }
        Problem::new("uneven", p.device, tensors, p.ops.into_values().collect())
            .expect("a chain of other sizes")
    }

    /// A choice with so many steps for each candidate more at a time: its step time in ns, the work it took,
    /// and its decisions, which keep to the capacity.
    fn chosen(p: &Problem, capacity: u64, may: Permissions, steps: usize) -> (u64, u64, String) {
        let sequence = AccessSequence::of_order(p, p.ops.ids());
        let mut state = State::new(p, sequence, capacity, may);
        let mut work = 0;
        assert!(greedy_by(&mut state, &Duals::new(p.ops.len(), 1.0), &mut work, steps), "it fits");
        state.commit();
        let time = state.decode(2);
        let decisions = state.genotype.decisions(p);
        let script = decisions.print(p);
        let load = evaluate(p, decisions).expect("the decisions run").evaluation.load_bytes;
        assert!(load <= capacity, "{load} of {capacity}");
        (time, work, script)
    }

    /// Of more than [`BATCH`] steps several candidates are taken at a time: the plan fits, is the same again,
    /// takes less work and is hardly slower than one candidate at a time makes it.
    #[test]
    fn several_candidates_at_a_time_do_nearly_as_well_as_one() {
        let p = uneven();
        assert!(p.ops.len() > BATCH);
        let capacity = p.tensors.values().map(|t| t.bytes).sum::<u64>() * 6 / 10;
        for may in
            [Permissions { allow: ALLOWED[0], shadow: true }, Permissions { allow: ALLOWED[1], shadow: true }]
        {
            let several = chosen(&p, capacity, may, BATCH);
            assert!(several == chosen(&p, capacity, may, BATCH), "{may:?}: not the same again");
            let ((time, work, _), (one, more, _)) = (several, chosen(&p, capacity, may, usize::MAX));
            assert!(work < more * 3 / 4, "{may:?}: {work} of {more}, so not several at a time");
            assert!(time as f64 <= one as f64 * 1.01, "{may:?}: {time} ns, one at a time {one} ns");
            assert!(time > p.compute_ns(), "{may:?}: room has to be made");
        }
    }
}
