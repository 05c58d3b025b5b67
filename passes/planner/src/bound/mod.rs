//! Certified lower bounds on the step time of every script.
//!
//! Three, in ns: the ideal (every op once); one for the problem's own order, from a fluid relaxation in which tensors
//! leave and return in fractions; and one for every order. No script that keeps to the order and to `capacity` bytes of
//! device arena, and runs again only ops that may, takes less per step on average over many steps. (The difference between
//! the ends of two consecutive steps may be less: copies of one reach into the next.) The bound for the given order
//! follows from any prices of memory and of the links by Lagrangian duality; good prices are sought in floating
//! point, the bound that they give is computed in integers.
//!
//! What is relaxed: copies and residency are fractional; the operands of an op that runs again are there for nothing;
//! the order of copies on a link is free; what no op writes always has a copy in host memory, which has no end. The
//! min-cost flow of kept gaps, whose bytes have to cross the links in a step's time, is this relaxation with one price for
//! each link, and never higher; it is not computed on its own.

mod ascent;
mod coarse;
mod frame;
mod order_free;
mod paths;

use crate::problem::{ALIGN, Problem};
use ascent::{Ascent, ascend, certify};
use frame::Frame;

/// What scripts may do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Allow {
    /// Copy tensors to the host and back.
    pub swap: bool,
    /// Run ops again.
    pub recompute: bool,
}

/// No script fits: what has to be on the device at once while an op runs is more than its capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Infeasible {
    /// The op's position.
    pub op: usize,
    /// Bytes that have to be there.
    pub bytes: u64,
}

/// Lower bounds on the step time, and what led to them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Bound {
    /// Sum of the ops' times in ns.
    pub ideal_ns: u64,
    /// For the problem's order, in ns.
    pub fixed_order_ns: u64,
    /// For every order, in ns; at most [`Bound::fixed_order_ns`].
    pub order_free_ns: u64,
    /// What memory and the links are worth.
    pub prices: Prices,
    /// The relaxation's solution, about: gaps of which a part is away, by tensor.
    pub away: Vec<Away>,
}

/// What the last byte and the last ns are worth, for every position of the order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Prices {
    /// Ns that a byte on the device costs while the op runs; only some positions of a long step have a price.
    pub memory: Vec<f64>,
    /// Ns that a ns of copying to the host costs meanwhile.
    pub to_host: Vec<f64>,
    /// Ns that a ns of copying to the device costs meanwhile.
    pub to_device: Vec<f64>,
}

/// A gap between touches of a tensor that the relaxation uses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Away {
    /// The tensor.
    pub tensor: u32,
    /// Position of the touch that the gap follows; `None`: the beginning of the step.
    pub after: Option<u32>,
    /// Position of the touch that ends it; `None`: the end of the step.
    pub before: Option<u32>,
    /// The part of the tensor, averaged over the gap, that is not on the device: 0 to 1.
    pub part: f64,
}

/// Bounds for a device arena of `capacity` bytes. Fails where no script fits that keeps the problem's order; in another
/// one may, if [`order_free`] has a bound.
pub fn bound(p: &Problem, capacity: u64, allow: Allow) -> Result<Bound, Infeasible> {
    let ideal_ns = p.compute_ns();
    let order_free_ns = order_free(p, capacity, allow)?;
    let frame = Frame::new(p, capacity, allow)?;
    let ascent = ascend(&frame);
    let certified = certify(&frame.coarse(&ascent.chosen, false), &ascent.dual).unwrap_or(ideal_ns);
    Ok(Bound {
        ideal_ns,
        fixed_order_ns: certified.max(order_free_ns),
        order_free_ns,
        prices: prices(p, &frame, &ascent),
        away: away(&frame, &ascent),
    })
}

/// The bound for every order alone, in ns. Fails where no script fits.
pub fn order_free(p: &Problem, capacity: u64, allow: Allow) -> Result<u64, Infeasible> {
    Ok(order_free::order_free(p, capacity, allow)?.max(p.compute_ns()))
}

impl Problem {
    /// The share of an op's time that running it again costs one of its results, by bytes; `None` where it may not.
    fn share(&self, op: u32, t: u32) -> Option<u64> {
        let op = &self.ops[op as usize];
        let bytes = |t: u32| u128::from(self.tensors[t as usize].bytes);
        let all: u128 = op.writes.iter().map(|&t| bytes(t)).sum();
        let share = u128::from(op.time_ns) * bytes(t) / all.max(1);
        op.repeatable.then_some(share as u64)
    }
}

fn prices(p: &Problem, frame: &Frame, ascent: &Ascent) -> Prices {
    let slot_of = frame.slot_of(&ascent.chosen);
    let mut memory = vec![0.0; p.ops.len()];
    for (&instant, &price) in ascent.chosen.iter().zip(&ascent.dual.memory) {
        // What lies between two ops counts for the first.
        if let Some(at) = memory.get_mut((instant.max(1) as usize - 1) / 2) {
            *at += price / ALIGN as f64;
        }
    }
    let of = |list: &[f64]| (0..p.ops.len()).map(|i| list[slot_of[2 * i + 1] as usize]).collect();
    Prices { memory, to_host: of(&ascent.dual.to_host), to_device: of(&ascent.dual.to_device) }
}

fn away(frame: &Frame, ascent: &Ascent) -> Vec<Away> {
    let slot_of = frame.slot_of(&ascent.chosen);
    let last = frame.fixed.len() as u32;
    let mut out = Vec::new();
    for (item, parts) in ascent.frame.items.iter().zip(&ascent.away) {
        for &member in &item.members {
            let fine = &frame.items[member as usize];
            // Legs of tensors that take one way may have different numbers.
            let legs = coarse::coarse_item(fine, &slot_of).legs;
            for (leg, &part) in legs.iter().zip(parts).filter(|(_, part)| **part > 1e-3) {
                let gap = &fine.legs[leg.number as usize];
                let after = (gap.from > 0).then(|| gap.from / 2 - 1);
                let before = (gap.to < last).then(|| (gap.to - 1) / 2);
                out.push(Away { tensor: fine.tensor, after, before, part });
            }
        }
    }
    out.sort_by_key(|a| (a.tensor, a.after, a.before.unwrap_or(u32::MAX)));
    out
}
