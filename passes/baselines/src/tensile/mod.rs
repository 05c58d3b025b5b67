//! TENSILE (Zhang et al., "TENSILE: A Tensor granularity dynamic GPU memory scheduler method towards
//! multitasking dynamic workloads system", 2021), for one job.
//!
//! As published:
//! - Sec. 4.1, Algorithm 1: of the tensors that make up the memory peak the largest is swapped. Its swap-out
//!   starts as early as possible after the access that produced it and ends before the peak. Its swap-in
//!   starts as late as possible before the next access. Where no region is left the search goes on after that
//!   access. Once one gap is swapped, the tensor's other accesses are tried.
//! - Sec. 4.1: one object at a time crosses the link, in either direction, and computation never waits for a
//!   swap.
//! - Sec. 4.1, across iterations: a parameter that the optimizing phase updates leaves after its last access
//!   and is back before the first one of the next iteration. The end of an iteration waits for the copies
//!   that are left.
//! - Sec. 3.1: a tensor that was swapped in stays in host memory, and leaves the next time without a copy.
//! - Sec. 4.2, Algorithm 2: the peak from the accesses and the tasks; inputs are on the device when an
//!   iteration begins.
//! - Sec. 4.4: recomputation when nothing more can be swapped and the peak exceeds memory, by MSPS (bytes
//!   saved per time of recomputation). It recomputes only accesses, and from operands, that are never
//!   released.
//! - Sec. 4.5, Algorithm 3: analyse the peak, swap, analyse anew, until nothing can be swapped; then
//!   recompute.
//!
//! The paper is silent, and here:
//! - the next tensor of Algorithm 1: the peak is analysed anew after each one (the text of Sec. 4.1, not the
//!   loop of the listing);
//! - tensors in use at the peak: they are no candidates, as swapping cannot take them away;
//! - line 21 moves the latest time, its description the earliest: the earliest, or the loop would not
//!   advance;
//! - a swap-in takes its bytes when it starts, not when it ends, since the budget is hard;
//! - copies begin and bytes change hands between ops: a task's times are rounded to ops so that no bytes are
//!   counted too short;
//! - a copy to the host starts after the access at which its tensor is released, not during an earlier one;
//! - a result of a recomputed op that nothing needs takes bytes at that op;
//! - persistent tensors that are only read are treated as parameters;
//! - only the largest swapping ratio, 100 %, as there is one job; op times are given, so none is predicted or
//!   corrected.
//!
//! The method ends where no region of the link hides another copy and no operand of a recomputation is kept.
//! It never lets the computation wait, and so reaches a lower budget only through recomputation.

mod link;
mod recompute;
mod swap;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use memc_ir::Bytes;
use memc_planner::{Found, NoPlan, OpPos, Planner, Problem, Request, StepPos};

/// TENSILE.
pub(super) const PLANNER: Planner = Planner {
    name: "tensile",
    summary: "greedy on the memory peak: swaps that hide behind computation, then recomputation",
    source: "Zhang et al., TENSILE, 2021",
    swaps: true,
    recomputes: true,
    plan,
};

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let mut tasks = swap::Tasks::new(p);
    let mut evaluations = 1;
    let (mut at, mut bytes) = tasks.peak();
    while request.allow.on(&p.device).swap && !(request.stop)() {
        let idle = tasks.idle_at(at);
        if !idle.into_iter().any(|t| tasks.schedule(t, at)) {
            break;
        }
        (at, bytes) = tasks.peak();
        evaluations += 1;
    }
    let mut recomputation = recompute::Recomputation::new(p, &tasks);
    let mut genotype = recomputation.genotype();
    while bytes > request.capacity {
        let step = genotype.sequence.steps.get(at).map_or(OpPos(0), |step| step.op);
        // A recomputation counts with the op that it is for.
        let later = genotype
            .sequence
            .steps
            .range(at, genotype.sequence.steps.next_id())
            .iter()
            .find(|s| s.recompute.is_none())
            .map_or(step, |s| s.op);
        if !request.allow.recompute || (request.stop)() || !recomputation.extend(later) {
            return Err(NoPlan::Infeasible(format!(
                "the smallest memory peak that TENSILE reaches is {}, at {}: no copy of the rest hides \
                 behind computation{}",
                Bytes(bytes),
                p.ops.get(step).map_or("the first op", |op| op.name.as_str()),
                if request.allow.recompute {
                    ", nothing more can be recomputed from what stays on the device"
                } else {
                    ""
                }
            )));
        }
        genotype = recomputation.genotype();
        evaluations += 1;
        let usage = genotype.usage();
        let most = usage.iter().max_by_key(|&(i, &b)| (b, Reverse(i)));
        (at, bytes) = most.map_or((StepPos(0), 0), |(i, &b)| (i, b));
    }
    Ok(Found { decisions: genotype.decisions(p), evaluations })
}
