//! Figures of a plan: one form for every command that plans.

use memc_planner::{Allow, Evaluation, NoPlan, Order};
use serde::Serialize;

use crate::error::Error;
use crate::instance::Instance;
use crate::plan::Outcome;

/// Quotient of two figures; `None` where the divisor is 0.
pub fn over(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

/// Outcome of planning in figures. Times in ns; `None` where there is no plan.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "names say what and in which unit")]
pub struct Report {
    pub problem: String,
    pub planner: String,
    /// The budget.
    pub gpu_mem_bytes: u64,
    pub feasible: bool,
    /// Reason why there is no plan.
    pub why: Option<String>,
    /// Formulation of the model's gradients that the plan is of: `own`, `fast`, `lean` or `small`.
    pub formulation: Option<&'static str>,
    /// Order of the candidate that the plan is of.
    pub order: Option<&'static str>,
    /// Whether the plan changes that order.
    pub order_changed: Option<bool>,
    /// Step when nothing waits.
    pub ideal_ns: u64,
    pub step_ns: Option<u64>,
    /// Certified bound on the step.
    pub bound_ns: Option<u64>,
    /// Extent of the bound: `fixed order` or `any order`.
    pub bound_holds_for: Option<&'static str>,
    pub step_over_ideal: Option<f64>,
    pub step_over_bound: Option<f64>,
    /// Bound for plans that keep the order as given, with the plan's ops on the host. A plan that changes the
    /// order may beat it.
    pub given_order_bound_ns: Option<u64>,
    pub step_over_given_order_bound: Option<f64>,
    /// Most bytes in use at once, reserve included.
    pub peak_bytes: Option<u64>,
    pub arena_bytes: Option<u64>,
    pub host_bytes: Option<u64>,
    /// Arena of the unplanned step, reserve included.
    pub unplanned_peak_bytes: u64,
    pub reserve_bytes: u64,
    pub swap_out_bytes: Option<u64>,
    pub swap_in_bytes: Option<u64>,
    /// Ops on the host, and their time.
    pub host_ops: Option<u64>,
    pub host_ns: Option<u64>,
    pub recompute_ns: Option<u64>,
    pub recompute_ops: Option<u64>,
    pub stall_in_ns: Option<u64>,
    pub stall_out_ns: Option<u64>,
    /// Plans that were evaluated.
    pub evaluations: u64,
    pub plan_ns: u64,
    /// Whether a time limit or a request to stop ended the search.
    pub stopped: bool,
    /// Smallest budget with a plan by a quick method or a planner that was asked.
    pub smallest_feasible_bytes: u64,
    /// Whether the planner contradicted itself: a bug.
    #[serde(skip)]
    pub failed: bool,
    /// Figures of the unplanned step.
    #[serde(skip)]
    pub unplanned: Evaluation,
}

impl Report {
    /// Proves a bound and looks for the smallest budget, where those are not known yet.
    pub fn new(instance: &Instance, outcome: &Outcome, allow: Allow) -> Result<Report, Error> {
        let found = outcome.of(instance);
        let e = found.map(|(_, r)| r.evaluation);
        let bound = outcome.bound(instance, allow);
        let given_ns = outcome.bound_in(instance, allow, Some(Order::Given));
        let over_step = |ns: u64| over(e?.step_ns, ns);
        let unplanned = instance.given().kept().evaluation;
        let ideal_ns = instance.ideal_ns();
        Ok(Report {
            problem: instance.name().to_string(),
            planner: outcome.planner.clone(),
            gpu_mem_bytes: outcome.budget,
            feasible: e.is_some(),
            why: match &outcome.plan {
                Ok(_) => None,
                Err(NoPlan::Infeasible(why) | NoPlan::Failed(why)) => Some(why.clone()),
            },
            formulation: found.map(|(o, _)| o.pose.formulation.name()),
            order: found.map(|(o, _)| o.pose.order.name()),
            order_changed: found.map(|(_, r)| !r.decisions.keeps_order()),
            ideal_ns,
            step_ns: e.map(|e| e.step_ns),
            bound_ns: bound.map(|b| b.0),
            bound_holds_for: bound.map(|b| b.1),
            step_over_ideal: over_step(ideal_ns),
            step_over_bound: bound.and_then(|b| over_step(b.0)),
            given_order_bound_ns: given_ns,
            step_over_given_order_bound: given_ns.and_then(over_step),
            peak_bytes: e.map(|e| e.load_bytes + instance.reserve_bytes),
            arena_bytes: e.map(|e| e.dev_bytes),
            host_bytes: e.map(|e| e.host_bytes),
            unplanned_peak_bytes: unplanned.dev_bytes + instance.reserve_bytes,
            reserve_bytes: instance.reserve_bytes,
            swap_out_bytes: e.map(|e| e.swap_out_bytes),
            swap_in_bytes: e.map(|e| e.swap_in_bytes),
            host_ops: found.map(|(o, _)| o.numbers().host_ops.len() as u64),
            host_ns: e.map(|e| e.host_ns),
            recompute_ns: e.map(|e| e.recompute_ns),
            recompute_ops: e.map(|e| e.recompute_ops),
            stall_in_ns: e.map(|e| e.stall_in_ns),
            stall_out_ns: e.map(|e| e.stall_out_ns),
            evaluations: outcome.evaluations,
            plan_ns: outcome.plan_ns,
            stopped: outcome.stopped,
            smallest_feasible_bytes: instance.smallest(allow)?,
            failed: matches!(outcome.plan, Err(NoPlan::Failed(_))),
            unplanned,
        })
    }
}
