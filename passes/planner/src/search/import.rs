//! Scripts of other planners as choices to search on from.

use super::state::{May, State};
use crate::decisions::{Action, Decisions, Home};
use crate::problem::Problem;
use crate::realise::realise;
use crate::sequence::{Sequence, Step};

/// The steps of a script, with the same gaps swapped; `None` where a choice cannot say what the script does.
pub(super) fn import<'a>(p: &'a Problem, d: &Decisions, capacity: u64, may: May) -> Option<State<'a>> {
    let mut steps = Vec::new();
    let mut drops: Vec<(u32, i32)> = Vec::new();
    for action in &d.actions {
        match action {
            Action::Run(run) if !run.again => steps.push(Step { op: run.op, again: None }),
            Action::Run(run) => {
                // A step is run again for one tensor.
                let [(wanted, _)] = run.at[..] else { return None };
                steps.push(Step { op: run.op, again: Some(wanted) });
            }
            Action::Drop(t) => drops.push((*t, steps.len() as i32)),
            Action::In(_) | Action::Out(_) => {}
        }
    }
    let mut s = State::new(p, Sequence::new(p, steps), vec![capacity; p.ops.len()], may);
    for (t, at) in drops {
        let gaps = s.scheme.sequence.gaps_of(t);
        let left = |g: &usize| {
            let gap = &s.scheme.sequence.gaps[*g];
            s.open[*g] && gap.from < at && at <= gap.to
        };
        if let Some(g) = gaps.clone().find(left) {
            s.set(g, true);
        }
    }
    for (&t, home) in &d.homes {
        if matches!(home, Home::Both(_)) && s.may_mirror(t) {
            s.mirror(t, true);
        }
    }
    s.commit();
    realise(p, s.scheme.decisions(p)).is_ok().then_some(s)
}
