//! Certified bounds: step times that no plan can beat.

use memc_ir::Bytes;
use memc_planner::Allow;
use memc_planner::bound::{Bound, Infeasible, bound};
use serde::Serialize;

use crate::error::Error;
use crate::instance::{Instance, and_reserve};
use crate::report::over;
use crate::watch::{Event, Watch};

/// Bounds for each set of permissions. Times in ns.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "names say what and in which unit")]
pub struct BoundReport {
    pub problem: String,
    /// The budget.
    pub gpu_mem_bytes: u64,
    /// Step when nothing waits.
    pub ideal_ns: u64,
    /// Whether some plan fits.
    pub feasible: bool,
    /// Reason why none does.
    pub why: Option<String>,
    pub bounds: Vec<BoundRow>,
}

/// Bounds for one set of permissions.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "names say what and in which unit")]
pub struct BoundRow {
    pub swap: bool,
    pub recompute: bool,
    pub feasible: bool,
    /// Bound on plans that keep the given order.
    pub fixed_order_ns: Option<u64>,
    pub fixed_order_over_ideal: Option<f64>,
    /// Bound on all plans.
    pub order_free_ns: Option<u64>,
    pub order_free_over_ideal: Option<f64>,
    /// Bytes that an op has to have on the device, where that is more than the budget.
    pub least_bytes: Option<u64>,
    /// Reason why nothing fits: in the given order where the row is feasible, else in any.
    pub why: Option<String>,
}

impl BoundReport {
    /// The error of a budget that no plan fits.
    pub fn failure(&self) -> Option<Error> {
        self.why.clone().map(Error::no_fit)
    }
}

/// Bounds on steps within a budget, for what `most` permits.
///
/// With both permissions there are three rows: swapping alone, recomputation alone, both.
pub fn bounds(instance: &Instance, budget: u64, most: Allow, watch: &dyn Watch) -> BoundReport {
    let capacity = instance.capacity(budget);
    let numbers = instance.given().numbers();
    watch.event(Event::Stage("bounding"));
    let found: Vec<(Allow, Result<Bound, Infeasible>)> =
        permitted(most).into_iter().map(|allow| (allow, bound(numbers, capacity, allow))).collect();
    let failures: Option<Vec<(Allow, &Infeasible)>> =
        found.iter().map(|(allow, b)| Some((*allow, b.as_ref().err()?))).collect();
    let least = failures.and_then(|all| all.into_iter().min_by_key(|f| f.1.bytes));
    let none = least.map(|(allow, e)| format!("nothing fits {}: {}", Bytes(budget), why(instance, allow, e)));
    let ideal_ns = numbers.compute_ns();
    let row = |(allow, b): &(Allow, Result<Bound, Infeasible>)| {
        let over = |ns: Option<u64>| over(ns?, ideal_ns);
        let failure = b.as_ref().map_or_else(Some, |b| b.fixed_order.as_ref().err());
        let b = b.as_ref().ok();
        let (fixed, free) = (b.and_then(|b| b.fixed_order.ok()), b.map(|b| b.order_free_ns));
        BoundRow {
            swap: allow.swap,
            recompute: allow.recompute,
            feasible: b.is_some(),
            fixed_order_ns: fixed,
            fixed_order_over_ideal: over(fixed),
            order_free_ns: free,
            order_free_over_ideal: over(free),
            least_bytes: failure.map(|e| e.bytes + instance.reserve_bytes),
            why: failure.map(|e| why(instance, *allow, e)),
        }
    };
    BoundReport {
        problem: numbers.name.clone(),
        gpu_mem_bytes: budget,
        ideal_ns,
        feasible: none.is_none(),
        why: none,
        bounds: found.iter().map(row).collect(),
    }
}

/// Sets of permissions to bound, the freest last.
fn permitted(most: Allow) -> Vec<Allow> {
    let all = [(true, false), (false, true), (true, true)];
    let within = |&(swap, recompute): &(bool, bool)| Allow {
        swap: swap && most.swap,
        recompute: recompute && most.recompute,
        ..most
    };
    let mut out: Vec<Allow> = all.iter().map(within).collect();
    if !most.swap || !most.recompute {
        out.drain(..2);
    }
    out
}

/// The op that does not fit, and its bytes.
fn why(instance: &Instance, allow: Allow, e: &Infeasible) -> String {
    let p = instance.given().numbers();
    let op = p.ops.get(e.op).map_or("the step", |op| op.label.as_str());
    // Of an op that does not fit by itself, it does not matter what the link could do for others.
    let others = p.ops.get(e.op).is_some_and(|_| p.working_set_bytes(e.op) < e.bytes);
    let note =
        instance.cut_off(allow).filter(|_| others).map_or_else(String::new, |note| format!("; {note}"));
    let (bytes, reserve) = (Bytes(e.bytes + instance.reserve_bytes), and_reserve(instance.reserve_bytes));
    format!("{op} has to have {bytes} on the device{reserve}{note}")
}
