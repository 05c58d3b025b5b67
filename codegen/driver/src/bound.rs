//! Certified bounds: step times that no plan can beat.

use memc_ir::Bytes;
use memc_planner::bound::{Infeasible, bound};
use memc_planner::{Allow, Problem};
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
    watch.event(Event::Stage("bounding"));
    let found: Vec<(Allow, Least)> =
        permitted(most).into_iter().map(|allow| (allow, least(instance, budget, allow))).collect();
    let failures: Option<Vec<&Lack>> = found.iter().map(|(_, b)| b.order_free.as_ref().err()).collect();
    let cheapest = failures.and_then(|all| all.into_iter().min_by_key(|lack| lack.bytes));
    let none = cheapest.map(|lack| format!("nothing fits {}: {}", Bytes(budget), lack.why));
    let ideal_ns = instance.ideal_ns();
    let row = |(allow, b): &(Allow, Least)| {
        let over = |ns: Option<u64>| over(ns?, ideal_ns);
        let (fixed, free) = (b.fixed_order.as_ref().ok().copied(), b.order_free.as_ref().ok().copied());
        let failure = b.order_free.as_ref().err().or(b.fixed_order.as_ref().err());
        BoundRow {
            swap: allow.swap,
            recompute: allow.recompute,
            feasible: free.is_some(),
            fixed_order_ns: fixed,
            fixed_order_over_ideal: over(fixed),
            order_free_ns: free,
            order_free_over_ideal: over(free),
            least_bytes: failure.map(|lack| lack.bytes),
            why: failure.map(|lack| lack.why.clone()),
        }
    };
    BoundReport {
        problem: instance.name().to_string(),
        gpu_mem_bytes: budget,
        ideal_ns,
        feasible: none.is_none(),
        why: none,
        bounds: found.iter().map(row).collect(),
    }
}

/// The least bounds of the candidates, in ns.
struct Least {
    order_free: Result<u64, Lack>,
    fixed_order: Result<u64, Lack>,
}

/// An op that does not fit.
struct Lack {
    /// Bytes that are needed, reserve included.
    bytes: u64,
    why: String,
}

/// The least bounds of the candidates; where none fits, what the one lacks that needs least.
fn least(instance: &Instance, budget: u64, allow: Allow) -> Least {
    let capacity = instance.capacity(budget);
    let bounds = instance.candidates().iter().map(|candidate| {
        let lack = |e: Infeasible| Lack {
            bytes: e.bytes + instance.reserve_bytes,
            why: why(instance, candidate.numbers(), allow, &e),
        };
        match bound(candidate.numbers(), capacity, allow) {
            Ok(b) => Least { order_free: Ok(b.order_free_ns), fixed_order: b.fixed_order.map_err(lack) },
            Err(e) => Least { order_free: Err(lack(e)), fixed_order: Err(lack(e)) },
        }
    });
    let better = |a: Result<u64, Lack>, b: Result<u64, Lack>| match (a, b) {
        (Ok(a), Ok(b)) => Ok(a.min(b)),
        (Err(a), Err(b)) => Err(if b.bytes < a.bytes { b } else { a }),
        (found, Err(_)) | (Err(_), found) => found,
    };
    let join = |a: Least, b: Least| Least {
        order_free: better(a.order_free, b.order_free),
        fixed_order: better(a.fixed_order, b.fixed_order),
    };
    let nothing = || Lack { bytes: 0, why: "no candidate was posed".into() };
    bounds.reduce(join).unwrap_or(Least { order_free: Err(nothing()), fixed_order: Err(nothing()) })
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
fn why(instance: &Instance, p: &Problem, allow: Allow, e: &Infeasible) -> String {
    let op = p.ops.get(e.op).map_or("the step", |op| op.label.as_str());
    // Of an op that does not fit by itself, it does not matter what the link could do for others.
    let others = p.ops.get(e.op).is_some_and(|_| p.working_set_bytes(e.op) < e.bytes);
    let note =
        instance.cut_off(allow).filter(|_| others).map_or_else(String::new, |note| format!("; {note}"));
    let (bytes, reserve) = (Bytes(e.bytes + instance.reserve_bytes), and_reserve(instance.reserve_bytes));
    format!("{op} has to have {bytes} on the device{reserve}{note}")
}
