//! The default planner: everything that is known, and a search.

use super::{Found, NoPlan, Planner, Progress, Request, belady};
use crate::problem::Problem;
use crate::realise::{Realised, realise};
use crate::search::{self, Limits};

/// The default.
pub(super) const PLANNER: Planner = Planner {
    name: "memc",
    summary: "the best of every method known here, searched on from there",
    source: "this project",
    plan,
};

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let mut best: Option<Realised> = None;
    let mut evaluations = 0;
    let mut consider = |r: Realised, evaluations| {
        (request.watch)(Progress { step_ns: r.evaluation.step_ns, evaluations });
        if best.as_ref().is_none_or(|b| r.key() < b.key()) {
            best = Some(r);
        }
    };
    let mut why = String::new();
    match (belady::PLANNER.plan)(p, request) {
        Ok(found) => {
            evaluations += found.evaluations;
            let r = realise(p, found.decisions).map_err(NoPlan::Failed)?;
            if r.evaluation.dev_bytes <= request.capacity {
                consider(r, evaluations);
            }
        }
        Err(NoPlan::Infeasible(text)) => why = text,
        Err(e) => return Err(e),
    }
    let found = search::search(p, request, Limits::effort(request.effort)).map_err(NoPlan::Failed)?;
    evaluations += found.evaluations;
    found.best.into_iter().for_each(|r| consider(r, evaluations));
    match best {
        Some(best) => Ok(Found { decisions: best.decisions, evaluations }),
        None => Err(NoPlan::Infeasible(why)),
    }
}
