//! Certified lower bounds on the step time of all decisions.
//!
//! Three, in ns: the ideal (every op once); one for the problem's own order, from a fluid relaxation in which
//! tensors leave and return in fractions; and one for every order. Decisions that keep the order and
//! `capacity` bytes of device arena, and recompute repeatable ops only, take no less per step on average over
//! many steps. Ops on the host stay there, and take no less than their sum. (The difference between the ends
//! of two consecutive steps may be less: copies of one reach into the next.) The bound for the given order
//! follows from any duals of memory and of the links by Lagrangian duality; good duals are sought in floating
//! point, the bound that they give is computed in integers.
//!
//! What is relaxed: copies and residency are fractional; the operands of a recomputed op are there for
//! nothing; the order of copies on a link is free; what no op writes always has a copy in host memory, which
//! has no end. The min-cost flow of kept gaps, whose bytes have to cross the links in a step's time, is this
//! relaxation with one price for each link, and never higher; it is not computed on its own.

mod ascent;
mod coarse;
mod frame;
mod order_free;
mod paths;

use crate::ids::{OpPos, TensorId};
use crate::planner::Allow;
use crate::problem::Problem;
use ascent::{Ascent, ascend, certify};
use frame::Frame;

/// No decisions fit: what has to be on the device at once while an op runs is more than its capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Infeasible {
    /// The op's position.
    pub op: OpPos,
    /// Bytes that have to be there.
    pub bytes: u64,
}

/// Lower bounds on the step time.
#[derive(Clone, PartialEq, Debug)]
pub struct Bound {
    /// Sum of the ops' times in ns.
    pub ideal_ns: u64,
    /// For every order, in ns; at most that for the problem's.
    pub order_free_ns: u64,
    /// For the problem's order, in ns; where no decisions in it fit, one in another may.
    pub fixed_order: Result<u64, Infeasible>,
}

/// Bounds for a device arena of `capacity` bytes, for both orders whatever `allow.reorder` says. Fails where
/// no decisions fit in any order.
pub fn bound(p: &Problem, capacity: u64, allow: Allow) -> Result<Bound, Infeasible> {
    let order_free_ns = order_free(p, capacity, allow)?;
    let fixed_order = Frame::new(p, capacity, allow).map(|frame| {
        let Ascent { chosen, dual } = ascend(&frame);
        certify(&frame.coarse(&chosen, false), &dual).unwrap_or(0).max(order_free_ns)
    });
    Ok(Bound { ideal_ns: p.compute_ns(), order_free_ns, fixed_order })
}

/// The bound for every order alone, in ns. Fails where no decisions fit.
pub fn order_free(p: &Problem, capacity: u64, allow: Allow) -> Result<u64, Infeasible> {
    let host_ns = p.host_ops.values().map(|op| op.time_ns).sum();
    Ok(order_free::order_free(p, capacity, allow)?.max(p.compute_ns()).max(host_ns))
}

impl Problem {
    /// The share of an op's time that running it again costs one of its results, by bytes; `None` where it
    /// may not.
    fn share(&self, op: OpPos, t: TensorId) -> Option<u64> {
        let op = &self.ops[op];
        let bytes = |t: TensorId| u128::from(self.tensors[t].bytes);
        let all: u128 = op.writes.iter().map(|&t| bytes(t)).sum();
        let share = u128::from(op.time_ns) * bytes(t) / all.max(1);
        op.repeatable.then_some(share as u64)
    }
}
