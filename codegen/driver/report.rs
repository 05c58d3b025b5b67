//! What a plan costs, as text and as JSON: one form for every command that plans.

use memc_ir::{Bytes, counted};
use memc_planner::bound::Allow;
use memc_planner::planners::NoPlan;
use serde_json::{Value, json};

use crate::cli::How;
use crate::exit::Error;
use crate::output::table;
use crate::posed::Posed;
use crate::solve::Outcome;

/// A time for people.
pub(crate) fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

/// A quotient; none of nothing.
pub(crate) fn over(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

/// A quotient for people.
pub(crate) fn quotient(a: u64, b: u64) -> String {
    over(a, b).map_or_else(|| "-".into(), |q| format!("{q:.4}"))
}

/// What a table says of rows that are marked as stopped.
pub(crate) const STOPPED: &str =
    "stopped: a time limit or an interrupt ended the search; with more time it may find more\n";

/// An outcome and what it is compared with.
pub(crate) struct Report<'a> {
    /// The problem.
    pub(crate) posed: &'a Posed,
    /// What was made of it.
    pub(crate) outcome: &'a Outcome,
    /// The certified bound in ns that holds for the plan, and for what it holds.
    pub(crate) bound: Option<(u64, &'static str)>,
    /// What the planner may do.
    pub(crate) allow: Allow,
}

impl<'a> Report<'a> {
    /// With the bound that holds for the plan.
    pub(crate) fn new(posed: &'a Posed, outcome: &'a Outcome, how: &How) -> Report<'a> {
        Report { posed, outcome, bound: outcome.bound(posed, how), allow: how.allow() }
    }

    /// Why there is no plan.
    pub(crate) fn why(&self) -> Option<&'a str> {
        match &self.outcome.plan {
            Ok(_) => None,
            Err(NoPlan::Infeasible(why) | NoPlan::Failed(why)) => Some(why),
        }
    }

    /// The fields of a JSON report.
    pub(crate) fn json(&self) -> Result<Value, Error> {
        let (posed, outcome) = (self.posed, self.outcome);
        let found = outcome.of(posed);
        let e = found.map(|(_, r)| r.evaluation);
        let over_step = |ns: u64| over(e?.step_ns, ns);
        Ok(json!({
            "problem": posed.name(), "planner": outcome.planner, "gpu_mem_bytes": outcome.budget,
            "feasible": e.is_some(), "why": self.why(), "order": found.map(|(o, _)| o.order.name()),
            "order_changed": found.map(|(_, r)| !r.decisions.keeps_order()),
            "ideal_ns": posed.ideal_ns(), "step_ns": e.map(|e| e.step_ns),
            "bound_ns": self.bound.map(|b| b.0), "bound_holds_for": self.bound.map(|b| b.1),
            "step_over_ideal": over_step(posed.ideal_ns()), "step_over_bound": self.bound.and_then(|b| over_step(b.0)),
            "peak_bytes": e.map(|e| e.load_bytes + posed.reserve_bytes), "arena_bytes": e.map(|e| e.dev_bytes),
            "host_bytes": e.map(|e| e.host_bytes),
            "unplanned_peak_bytes": posed.given().kept.evaluation.dev_bytes + posed.reserve_bytes,
            "reserve_bytes": posed.reserve_bytes,
            "swap_out_bytes": e.map(|e| e.swap_out_bytes), "swap_in_bytes": e.map(|e| e.swap_in_bytes),
            "recompute_ns": e.map(|e| e.recompute_ns), "recompute_ops": e.map(|e| e.recompute_ops),
            "stall_in_ns": e.map(|e| e.stall_in_ns), "stall_out_ns": e.map(|e| e.stall_out_ns),
            "evaluations": outcome.evaluations, "plan_ns": outcome.plan_ns, "stopped": outcome.stopped,
            "smallest_feasible_bytes": posed.smallest(self.allow)?,
        }))
    }

    /// The plan beside the unplanned step; nothing where there is no plan.
    pub(crate) fn text(&self) -> Result<String, Error> {
        let (posed, outcome) = (self.posed, self.outcome);
        let Some((o, r)) = outcome.of(posed) else { return Ok(String::new()) };
        let (e, kept) = (&r.evaluation, &posed.given().kept.evaluation);
        let row = |what: &str, unplanned: String, planned: String| vec![what.to_string(), unplanned, planned];
        let again = format!("{}, {}", counted(e.recompute_ops as usize, "op"), ms(e.recompute_ns));
        let changed = if r.decisions.keeps_order() { "" } else { ", then changed" };
        let rows = [
            row("order of ops", "given".into(), format!("{}{changed}", o.order.name())),
            row("arena", Bytes(kept.dev_bytes).short(), Bytes(e.dev_bytes).short()),
            row("host memory", Bytes(kept.host_bytes).short(), Bytes(e.host_bytes).short()),
            row("step (modelled)", ms(kept.step_ns), ms(e.step_ns)),
            row("swapped out", "-".into(), Bytes(e.swap_out_bytes).short()),
            row("swapped in", "-".into(), Bytes(e.swap_in_bytes).short()),
            row("recomputed", "-".into(), again),
            row("waiting for copies in", "-".into(), ms(e.stall_in_ns)),
            row("waiting for room", "-".into(), ms(e.stall_out_ns)),
        ];
        Ok(format!(
            "{}\n{} by {}: {} in a budget of {}; smallest feasible {}{}\n",
            table(&["", "unplanned", "planned"], &rows),
            posed.name(),
            outcome.planner,
            self.verdict(),
            Bytes(outcome.budget),
            Bytes(posed.smallest(self.allow)?),
            posed.and_reserve(),
        ))
    }

    /// The step's time in terms of the ideal one and of the bound.
    pub(crate) fn verdict(&self) -> String {
        let Some((_, r)) = self.outcome.of(self.posed) else { return "no plan".into() };
        let (step, ideal) = (r.evaluation.step_ns, self.posed.ideal_ns());
        let bound = self.bound.map_or_else(String::new, |(ns, what)| {
            let (step, bound) = (quotient(step, ns), quotient(ns, ideal));
            format!(", {step} of the certified bound ({what}: {bound} of the ideal)")
        });
        let stopped = if self.outcome.stopped { " (search stopped early)" } else { "" };
        format!("{} of the ideal step{bound}{stopped}", quotient(step, ideal))
    }
}
