//! More workspace for ops, where a finished plan leaves the room for it.

use memc_alloc::Algorithm;
use memc_ir::Arena;

use crate::decisions::{Action, Decisions};
use crate::evaluate::{Schedule, evaluate_by};
use crate::ids::OpPos;
use crate::problem::Problem;

/// Ops that are to have the same, larger workspace: all of them, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Workspace in bytes, a multiple of [`ALIGN`](crate::ALIGN).
    pub bytes: u64,
    /// The ops; their workspace in the problem is not 0.
    pub ops: Vec<OpPos>,
}

/// Grants wishes that raise neither a plan's arena above `capacity` bytes nor its step time: as many as
/// bisection finds, where the wishes of the longest ops come first. An arena that is higher already does not
/// grow.
///
/// All other places stay where they are. The plan's decisions stay as they were, too: those of a plan without
/// the wishes.
pub fn widen(p: &Problem, plan: Schedule, wishes: &[Wish], capacity: u64) -> Schedule {
    let is_more = |w: &&Wish| w.ops.iter().all(|&op| p.ops.get(op).is_some_and(|op| w.bytes > op.workspace));
    let mut larger: Vec<&Wish> = wishes.iter().filter(is_more).collect();
    if larger.is_empty() {
        return plan;
    }
    let ns = |wish: &Wish| wish.ops.iter().map(|&op| p.ops[op].time_ns).max();
    larger.sort_by_key(|wish| std::cmp::Reverse(ns(wish)));
    let decisions = plan.decisions.clone();
    let capacity = capacity.max(plan.evaluation.dev_bytes);
    let mut search = Widening { problem: p.clone(), best: plan, capacity };
    search.grant(&larger);
    Schedule { decisions, ..search.best }
}

struct Widening {
    /// The problem with the wishes that are granted.
    problem: Problem,
    best: Schedule,
    /// Most bytes of the arena.
    capacity: u64,
}

impl Widening {
    /// Grants these wishes together, or else those of each half that can be granted.
    fn grant(&mut self, wishes: &[&Wish]) {
        if wishes.is_empty() || self.grants_all(wishes) || wishes.len() == 1 {
            return;
        }
        let (first, second) = wishes.split_at(wishes.len() / 2);
        self.grant(first);
        self.grant(second);
    }

    fn grants_all(&mut self, wishes: &[&Wish]) -> bool {
        let mut problem = self.problem.clone();
        let mut is_wished = Arena::filled(false, problem.ops.len());
        for wish in wishes {
            for &op in &wish.ops {
                problem.ops[op].workspace = wish.bytes;
                is_wished[op] = true;
            }
        }
        let decisions = without_places(&self.best.decisions, &is_wished);
        let Ok(found) = evaluate_by(&problem, decisions, Algorithm::FirstFit) else { return false };
        let (was, is) = (&self.best.evaluation, &found.evaluation);
        if is.dev_bytes > self.capacity || is.step_ns > was.step_ns {
            return false;
        }
        (self.problem, self.best) = (problem, found);
        true
    }
}

/// Decisions in which the workspaces of some ops have no place.
fn without_places(decisions: &Decisions, ops: &Arena<OpPos, bool>) -> Decisions {
    let mut decisions = decisions.clone();
    for action in &mut decisions.actions {
        if let Action::Run(run) = action
            && ops[run.op]
        {
            run.workspace = run.workspace.map(|_| None);
        }
    }
    decisions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::evaluate;
    use crate::place::{Site, Space};
    use crate::problem::ALIGN;
    use crate::sample::{Seed, any};

    fn workspaces(plan: &Schedule) -> Vec<u64> {
        let of = plan.trace.slots.values().filter(|s| matches!(s.site, Site::Workspace(_)));
        of.map(|s| s.bytes).collect()
    }

    /// A grant costs no time, overlaps nothing, and goes to all ops of a wish. Some wishes are granted and
    /// some are not.
    #[test]
    fn wishes_are_granted_where_they_cost_nothing() {
        let (mut granted, mut refused) = (0, 0);
        for seed in 0..200 {
            let Some(sample) = any(&mut Seed(seed), 30) else { continue };
            let mut p = sample.problem;
            p.ops.values_mut().for_each(|op| op.workspace = ALIGN);
            let plan = evaluate(&p, Decisions::keep_all(&p)).unwrap();
            let (bytes, more) = (5 * ALIGN, seed % 3 * ALIGN);
            let wish = |parity: u32| {
                let ops = p.ops.iter().map(|(op, _)| op).filter(|op| op.0 % 2 == parity).collect();
                Wish { bytes, ops }
            };
            let wide = widen(&p, plan.clone(), &[wish(0), wish(1)], plan.evaluation.dev_bytes + more);
            assert_eq!(wide.decisions, plan.decisions);
            assert!(wide.evaluation.dev_bytes <= plan.evaluation.dev_bytes + more);
            assert!(wide.evaluation.step_ns <= plan.evaluation.step_ns);
            let device: Vec<_> = wide.trace.slots.values().filter(|s| s.space == Space::Dev).collect();
            for (i, a) in device.iter().enumerate() {
                for b in &device[..i] {
                    let (from, to) = (a.offset.unwrap(), b.offset.unwrap());
                    let meet = |&(x, y): &(_, _)| b.live.iter().any(|&(u, v)| x < v && u < y);
                    let apart = from + a.bytes <= to || to + b.bytes <= from;
                    assert!(apart || !a.live.iter().any(meet), "seed {seed}");
                }
            }
            for parity in 0..2 {
                let all: Vec<u64> = workspaces(&wide).into_iter().skip(parity).step_by(2).collect();
                let is_granted = all.iter().all(|&b| b == 5 * ALIGN);
                assert!(is_granted || all.iter().all(|&b| b == ALIGN), "seed {seed}: {all:?}");
                *(if is_granted { &mut granted } else { &mut refused }) += 1;
            }
        }
        assert!(granted > 20 && refused > 20, "{granted} {refused}");
    }

    /// A wish for less than there is changes nothing.
    #[test]
    fn less_is_no_wish() {
        let Some(sample) = any(&mut Seed(1), 30) else { return };
        let plan = evaluate(&sample.problem, Decisions::keep_all(&sample.problem)).unwrap();
        let ops = sample.problem.ops.iter().map(|(op, _)| op).collect();
        let same = widen(&sample.problem, plan.clone(), &[Wish { bytes: 0, ops }], u64::MAX);
        assert_eq!(same, plan);
    }
}
