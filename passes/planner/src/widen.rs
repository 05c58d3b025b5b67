//! More workspace for ops, where a finished plan leaves the room for it.

use memc_ir::Arena;

use crate::decisions::{Action, Decisions};
use crate::evaluate::{Schedule, evaluate};
use crate::ids::OpPos;
use crate::problem::{ALIGN, Problem};

/// Ops that are to have the same, larger workspace: all of them, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Workspace in bytes.
    pub bytes: u64,
    /// The ops; their workspace in the problem is not 0.
    pub ops: Vec<OpPos>,
}

/// Grants wishes that raise neither the arena nor the step time of a plan: as many as bisection finds, where
/// the wishes of the longest ops come first.
///
/// All other places stay where they are. The plan's decisions stay as they were, too: those of a plan without
/// the wishes.
pub fn widen(p: &Problem, plan: Schedule, wishes: &[Wish]) -> Schedule {
    let bytes = |wish: &Wish| wish.bytes.checked_next_multiple_of(ALIGN);
    let is_more = |bytes: u64| move |&op: &OpPos| p.ops.get(op).is_some_and(|op| bytes > op.workspace);
    let larger = wishes.iter().filter(|w| bytes(w).is_some_and(|bytes| w.ops.iter().all(is_more(bytes))));
    let mut larger: Vec<&Wish> = larger.collect();
    let ns = |wish: &Wish| wish.ops.iter().map(|&op| p.ops[op].time_ns).max();
    larger.sort_by_key(|wish| std::cmp::Reverse(ns(wish)));
    let decisions = plan.decisions.clone();
    let mut search = Widening { problem: p.clone(), best: plan };
    search.grant(&larger);
    Schedule { decisions, ..search.best }
}

struct Widening {
    /// The problem with the wishes that are granted.
    problem: Problem,
    best: Schedule,
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
                problem.ops[op].workspace = wish.bytes.next_multiple_of(ALIGN);
                is_wished[op] = true;
            }
        }
        let decisions = without_places(&self.best.decisions, &is_wished);
        let Ok(found) = evaluate(&problem, decisions) else { return false };
        let (was, is) = (&self.best.evaluation, &found.evaluation);
        if is.dev_bytes > was.dev_bytes || is.step_ns > was.step_ns {
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
