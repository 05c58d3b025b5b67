//! The default planner: everything that is known, and a search.

use super::{Found, NoPlan, Planner, Request, belady};
use crate::decisions::Decisions;
use crate::problem::Problem;
use crate::realise::{Realised, realise};
use crate::search;

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
    let mut consider = |decisions: Decisions| -> Result<(), NoPlan> {
        let r = realise(p, decisions).map_err(NoPlan::Failed)?;
        let key =
            |r: &Realised| (r.evaluation.step_ns, r.evaluation.swap_in_bytes, r.evaluation.swap_out_bytes);
        let fits = r.evaluation.dev_bytes <= request.capacity;
        if fits && best.as_ref().is_none_or(|b| key(&r) < key(b)) {
            best = Some(r);
        }
        Ok(())
    };
    let mut why = String::new();
    match (belady::PLANNER.plan)(p, request) {
        Ok(found) => {
            evaluations += found.evaluations;
            consider(found.decisions)?;
        }
        Err(NoPlan::Infeasible(text)) => why = text,
        Err(e) => return Err(e),
    }
    if let Some((_, scheme)) = search::first(p, request.capacity).filter(|_| request.swap) {
        evaluations += 1;
        consider(scheme.decisions(p))?;
    }
    match best {
        Some(best) => Ok(Found { decisions: best.decisions, evaluations }),
        None => Err(NoPlan::Infeasible(why)),
    }
}
