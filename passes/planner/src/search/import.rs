//! Decisions of other planners as genotypes to search on from.

use super::recompute;
use super::state::{Permissions, State};
use crate::access_sequence::{AccessSequence, Step};
use crate::decisions::{Action, Decisions, Resident};
use crate::evaluate::evaluate;
use crate::ids::{GapIx, StepPos, TensorId};
use crate::problem::Problem;

/// The steps of decisions, with the same gaps swapped; `None` where no genotype has their meaning.
pub(super) fn import<'a>(
    p: &'a Problem,
    d: &Decisions,
    capacity: u64,
    may: Permissions,
) -> Option<State<'a>> {
    let mut steps = Vec::new();
    let mut drops: Vec<(TensorId, i32)> = Vec::new();
    for action in &d.actions {
        match action {
            Action::Run(run) if !run.recompute => steps.push(Step::first(run.op)),
            Action::Run(run) => {
                // A recomputation is for tensors that appear, or for one that is updated in place.
                let op = &p.ops[run.op];
                let in_place = op.writes.iter().copied().filter(|t| op.reads.contains(t));
                let wanted: Vec<TensorId> = run.at.iter().map(|place| place.0).chain(in_place).collect();
                let (&first, others) = wanted.split_first()?;
                let step = others.iter().fold(Step::again(run.op, first), |step, &t| step.with(p, t));
                if !others.is_empty() && (op.updates() || !wanted.iter().all(|&t| step.makes(p, t))) {
                    return None;
                }
                steps.push(step);
            }
            Action::Drop(t) => drops.push((*t, steps.len() as i32)),
            Action::In(_) | Action::Out(_) => {}
        }
    }
    let sequence = AccessSequence::new(p, steps);
    // Nothing else runs between the steps that make one content again.
    let inside = recompute::inside(p, &sequence.steps);
    let last = recompute::lasts(&recompute::heads(p, sequence.steps.iter()));
    let several = |i: StepPos| sequence.steps[i].also != 0 && last[i] != i;
    if sequence.steps.iter().any(|(i, step)| inside[i] && step.recompute.is_none() || several(i)) {
        return None;
    }
    let mut s = State::new(p, sequence, capacity, may);
    for (t, at) in drops {
        let gaps = s.genotype.sequence.gaps_of(t);
        let left = |g: &GapIx| {
            let gap = &s.genotype.sequence.gaps[*g];
            s.open[*g] && gap.from < at && at <= gap.to
        };
        if let Some(g) = gaps.clone().find(left) {
            s.set(g, true);
        }
    }
    for (&t, resident) in &d.residents {
        if matches!(resident, Resident::Both(_)) && s.may_shadow(t) {
            s.set_shadow(t, true);
        }
    }
    s.commit();
    evaluate(p, s.genotype.decisions(p)).is_ok().then_some(s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Draw, Seed, sample};

    /// The decisions of a genotype, read back, are that genotype.
    #[test]
    fn what_a_choice_does_is_read_again() {
        let may = Permissions { allow: crate::Allow::ALL, shadow: true };
        let mut swapped = 0;
        for seed in 0..200 {
            let mut draw = Seed(seed);
            let Some(s) = sample(&mut draw, 10) else { continue };
            let (p, capacity) = (&s.problem, s.capacity);
            let order = AccessSequence::of_order(p, p.ops.ids());
            let mut chosen = State::new(p, order, capacity, may);
            for g in chosen.open.ids().filter(|_| draw.below(2) == 0) {
                chosen.set(g, chosen.open[g]);
            }
            let read = import(p, &chosen.genotype.decisions(p), capacity, may).expect("it can be said");
            assert_eq!(read.genotype.sequence, chosen.genotype.sequence, "seed {seed}");
            for g in chosen.open.ids().filter(|&g| chosen.open[g]) {
                assert_eq!(
                    read.swapped(g),
                    chosen.swapped(g),
                    "seed {seed}: {:?}",
                    chosen.genotype.sequence.gaps[g]
                );
                swapped += usize::from(read.swapped(g));
            }
        }
        assert!(swapped > 50, "{swapped}");
    }
}
