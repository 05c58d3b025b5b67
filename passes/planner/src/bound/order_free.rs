//! A bound for every order of the ops.
//!
//! While an op runs, a content that an op before it in every order made and an op after it in every order
//! reads is somewhere. What of these contents does not fit beside the op's own tensors is in host memory, or
//! lost: it comes back over the link, or an op is recomputed, and a content that a step makes must have left
//! first. The best trade of the two links and of compute time is a linear program with one constraint each;
//! any weights of the three that sum to one give a bound, and the cheapest contents to be away are a
//! fractional knapsack.

use super::frame::{UNIT, coupling};
use super::{Allow, Infeasible};
use memc_ir::{Arena, Id};
use rayon::prelude::*;

use crate::ids::{OpPos, TensorId};
use crate::problem::{ALIGN, Problem, TensorKind};

/// Ops looked at closely: those with most bytes that do not fit.
const OPS: usize = 16;
/// Weights are multiples of one over this.
const PARTS: u64 = 16;

/// A content of a tensor: what one op writes, or what is there when the step begins.
struct Content {
    tensor: TensorId,
    maker: Option<OpPos>,
    readers: Vec<OpPos>,
    /// Whether it outlives the step.
    stays: bool,
    /// Whether something reads it, in this step or the next.
    returns: bool,
}

/// A lower bound in ns on the step time of all decisions whose first runs are in any order that the problem
/// allows.
pub(super) fn order_free(p: &Problem, capacity: u64, allow: Allow) -> Result<u64, Infeasible> {
    let (op, most) = p.largest_working_set();
    if most > capacity {
        return Err(Infeasible { op, bytes: most });
    }
    let allow = allow.on(&p.device);
    let contents = contents(p);
    let graph = Graph::new(p);
    let live = graph.live_units(p, &contents);
    let over = |v: OpPos| (live[v] + p.working_set_bytes(v) / ALIGN).saturating_sub(capacity / ALIGN);
    let mut ops: Vec<OpPos> = p.ops.ids().collect();
    ops.sort_by_key(|&v| (std::cmp::Reverse(over(v)), v));
    ops.truncate(OPS);
    let away: Vec<(u64, Vec<Away>)> = ops
        .iter()
        .map(|&v| {
            (
                over(v),
                graph
                    .live_at(v, p, &contents)
                    .into_iter()
                    .map(|c| Away::new(p, &contents[c], allow))
                    .collect(),
            )
        })
        .collect();
    for (v, (units, list)) in ops.iter().zip(&away) {
        let can: u64 =
            list.iter().filter(|a| a.copy.is_some() || a.recompute.is_some()).map(|a| a.units).sum();
        if can < *units {
            return Err(Infeasible { op: *v, bytes: capacity / ALIGN * ALIGN + (units - can) * ALIGN });
        }
    }
    let (forced_in, forced_out) = forced(p, &contents);
    let parts: Vec<(u64, u64)> = (0..=PARTS).flat_map(|a| (0..=PARTS - a).map(move |b| (a, b))).collect();
    let least = |&(a, b): &(u64, u64)| {
        let weights = Weights::new(a, b, coupling(p));
        let base = u128::from(p.compute_ns()) * weights.compute
            + u128::from(forced_in) * weights.to_device
            + u128::from(forced_out) * weights.to_host;
        base + away.iter().map(|(units, list)| weights.cheapest(*units, list)).max().unwrap_or(0)
    };
    let best = parts.par_iter().map(least).max().unwrap_or(0);
    let unit = u128::from(PARTS * UNIT);
    Ok(u64::try_from(best.div_ceil(unit)).unwrap_or(u64::MAX))
}

fn contents(p: &Problem) -> Vec<Content> {
    let mut out: Vec<Content> = Vec::new();
    for (t, tensor) in p.tensors.iter() {
        let mut current =
            Content { tensor: t, maker: None, readers: Vec::new(), stays: false, returns: false };
        let begin = out.len();
        for &at in &tensor.touches {
            let op = &p.ops[at];
            if op.reads.contains(&t) {
                current.readers.push(at);
            }
            if op.writes.contains(&t) {
                let next =
                    Content { tensor: t, maker: Some(at), readers: Vec::new(), stays: false, returns: false };
                out.push(std::mem::replace(&mut current, next));
            }
        }
        // A tensor that nothing touches costs nothing.
        current.stays = tensor.persistent() && !tensor.touches.is_empty();
        out.push(current);
        let first_is_read = out.get(begin).is_some_and(|c| !c.readers.is_empty());
        for c in &mut out[begin..] {
            c.returns = !c.readers.is_empty() || c.stays && first_is_read;
        }
    }
    out
}

/// Time in ns of the copies that all decisions make: inputs that are read, and outputs.
fn forced(p: &Problem, contents: &[Content]) -> (u64, u64) {
    let arrives =
        |c: &&Content| c.maker.is_none() && !c.readers.is_empty() && p.tensors[c.tensor].kind.arrives();
    let inputs = contents.iter().filter(arrives).map(|c| p.device.h2d_ns(p.tensors[c.tensor].size));
    let outputs = p.ops.ids().flat_map(|at| p.certain_copies(at)).map(|(_, bytes)| p.device.d2h_ns(bytes));
    (inputs.sum(), outputs.sum())
}

/// Precedence of ops.
struct Graph {
    before: Arena<OpPos, Vec<OpPos>>,
}

/// Which of up to 64 ops come after, and before, every op.
struct Reach {
    first: OpPos,
    /// Bit `k`: op `first + k` comes after.
    after: Arena<OpPos, u64>,
    /// Bit `k`: op `first + k` comes before.
    before: Arena<OpPos, u64>,
}

impl Graph {
    fn new(p: &Problem) -> Graph {
        Graph { before: p.predecessors() }
    }

    fn reach(&self, first: OpPos, count: usize) -> Reach {
        let n = self.before.len();
        let (mut after, mut before) = (Arena::filled(0u64, n), Arena::filled(0u64, n));
        let bit = |v: OpPos| match v.index().checked_sub(first.index()) {
            Some(k) if k < count => 1u64 << k,
            _ => 0,
        };
        for v in self.before.ids().rev() {
            let all = after[v] | bit(v);
            for &u in &self.before[v] {
                after[u] |= all;
            }
        }
        for v in self.before.ids() {
            for &u in &self.before[v] {
                before[v] |= before[u] | bit(u);
            }
        }
        Reach { first, after, before }
    }

    /// Units that are live while every op runs, its own tensors left out.
    fn live_units(&self, p: &Problem, contents: &[Content]) -> Arena<OpPos, u64> {
        let n = self.before.len();
        let mut out = Arena::filled(0u64, n);
        for first in self.before.ids().step_by(64) {
            let reach = self.reach(first, 64.min(n - first.index()));
            for c in contents {
                let mut live = reach.live(p, c);
                while live != 0 {
                    let v = OpPos(first.0 + live.trailing_zeros());
                    live &= live - 1;
                    if !p.touches(v, c.tensor) {
                        out[v] += p.tensors[c.tensor].bytes / ALIGN;
                    }
                }
            }
        }
        out
    }

    /// The contents that are live while an op runs, those of its own tensors left out.
    fn live_at(&self, v: OpPos, p: &Problem, contents: &[Content]) -> Vec<usize> {
        let reach = self.reach(v, 1);
        (0..contents.len())
            .filter(|&c| reach.live(p, &contents[c]) != 0 && !p.touches(v, contents[c].tensor))
            .collect()
    }
}

impl Problem {
    fn touches(&self, op: OpPos, t: TensorId) -> bool {
        let op = &self.ops[op];
        op.reads.binary_search(&t).is_ok() || op.writes.contains(&t)
    }
}

impl Reach {
    /// Among the ops, those that a content is live at in every order.
    fn live(&self, p: &Problem, c: &Content) -> u64 {
        let made = match c.maker {
            Some(w) => self.after[w],
            // The first content of a transient or an input is on the device from its first touch only.
            None if p.tensors[c.tensor].persistent() => u64::MAX,
            None => c.readers.iter().fold(0, |all, &r| all | self.after[r]),
        };
        let needed = c.readers.iter().fold(0, |all, &r| all | self.before[r]);
        made & if c.stays { u64::MAX } else { needed } & self.ops()
    }

    fn ops(&self) -> u64 {
        let count = (self.after.len() - self.first.index()).min(64);
        if count == 64 { u64::MAX } else { (1 << count) - 1 }
    }
}

/// Cost of a content that is not on the device while an op runs.
struct Away {
    units: u64,
    /// Time of copies to the host and to the device in ns.
    copy: Option<(u64, u64)>,
    /// Share of the time of running its maker again in ns.
    recompute: Option<u64>,
}

impl Away {
    fn new(p: &Problem, c: &Content, allow: Allow) -> Away {
        let tensor = &p.tensors[c.tensor];
        let in_host = c.maker.is_none() && (tensor.kind.arrives() || tensor.writes.is_empty());
        let out =
            if in_host && tensor.kind != TensorKind::Transient { 0 } else { p.device.d2h_ns(tensor.size) };
        let handling = p.handling(c.tensor);
        let copies = allow.swap && handling.swaps() || tensor.kind.arrives() && c.maker.is_none();
        Away {
            units: tensor.bytes / ALIGN,
            copy: copies.then(|| (out, if c.returns { p.device.h2d_ns(tensor.size) } else { 0 })),
            recompute: c
                .maker
                .filter(|_| allow.recompute && handling.recomputes())
                .and_then(|w| p.share(w, c.tensor)),
        }
    }
}

/// Duals of a ns on each stream, in parts.
struct Weights {
    to_host: u128,
    to_device: u128,
    compute: u128,
}

impl Weights {
    fn new(a: u64, b: u64, coupling: u64) -> Weights {
        Weights {
            to_host: u128::from(a * UNIT + b * coupling),
            to_device: u128::from(b * UNIT + a * coupling),
            compute: u128::from((PARTS - a - b) * UNIT),
        }
    }

    /// Least cost of having `units` away.
    fn cheapest(&self, units: u64, list: &[Away]) -> u128 {
        let cost = |a: &Away| {
            let copy =
                a.copy.map(|(out, back)| u128::from(out) * self.to_host + u128::from(back) * self.to_device);
            let recompute = a.recompute.map(|ns| u128::from(ns) * self.compute);
            copy.into_iter().chain(recompute).min().map(|cost| (cost, a.units))
        };
        // Products stay below 2^128 as times and sizes are below 2^60.
        let by_unit = |(cost, size): (u128, u64)| (cost as f64 / size as f64, cost, size);
        let mut costs: Vec<(f64, u128, u64)> = list.iter().filter_map(cost).map(by_unit).collect();
        costs.sort_by(|x, y| x.0.total_cmp(&y.0));
        let (mut left, mut total) = (units, 0u128);
        for (_, cost, size) in costs {
            let part = left.min(size);
            total += if part == size { cost } else { scaled(cost, part, size) };
            left -= part;
            if left == 0 {
                break;
            }
        }
        total
    }
}

/// `cost * part / size`, rounded down.
fn scaled(cost: u128, part: u64, size: u64) -> u128 {
    let (part, size) = (u128::from(part), u128::from(size.max(1)));
    cost / size * part + cost % size * part / size
}
