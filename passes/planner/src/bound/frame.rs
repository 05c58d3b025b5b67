//! The periodic step as slots of time between instants, and every tensor as legs between its touches.
//!
//! Slot `2p` is what passes before op `p` starts (waiting, and recomputed ops), slot `2p + 1` its run. Of
//! the two last slots, the first ends when the step's outputs have arrived, and the second with the step's
//! last kernel. Instant `i` is the beginning of slot `i`. Real time is meant, not trace time: a tensor
//! counts where its content is on the device, as a fraction of its copy's work.

use memc_ir::Id;

use super::{Allow, Infeasible};
use crate::ids::{OpPos, TensorId};
use crate::problem::{ALIGN, Problem, SLOWDOWN_UNIT, TensorKind};

/// End of a leg.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum After {
    /// An op that reads the tensor during this slot.
    Read(usize),
    /// An op that writes it: what host memory has is old.
    Write,
    /// The boundary between steps: the content is somewhere.
    Boundary,
    /// The content is not needed again.
    Dead,
}

/// A leg, between two touches of a tensor: half-open instants; the tensor is needed on the device at both
/// ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Leg {
    /// First instant, and first slot.
    pub(super) from: usize,
    /// Instant at which it ends, after the last slot.
    pub(super) to: usize,
    /// Least time in ns of running again what makes the content.
    pub(super) recompute: Option<u64>,
    /// Its end.
    pub(super) after: After,
}

/// Begin of a tensor's legs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begin {
    /// On the device alone.
    Written,
    /// On the device and in host memory.
    Both,
    /// In host memory when the step begins; its copy may begin in this slot of the step before.
    Arrives(usize),
}

/// A tensor that need not stay on the device all its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Item {
    /// The tensor; of several, the first.
    pub(super) tensor: TensorId,
    /// Bytes over [`ALIGN`].
    pub(super) units: u64,
    /// Time of a copy to the host in ns, if it can be copied.
    pub(super) out_ns: Option<u64>,
    /// Time of a copy to the device in ns.
    pub(super) in_ns: Option<u64>,
    /// Whether host memory always has the content.
    pub(super) constant: bool,
    pub(super) begin: Begin,
    pub(super) legs: Vec<Leg>,
}

/// A copy to the host that all decisions make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Output {
    /// First slot in which it may run; all later ones may.
    pub(super) from: usize,
    pub(super) ns: u64,
}

/// The relaxation, but for duals.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    /// Duration of every slot in ns without stalls.
    pub(super) fixed: Vec<u64>,
    /// Whether a slot may last longer, and ops may be recomputed in it.
    pub(super) stall: Vec<bool>,
    /// Units of [`ALIGN`] bytes that are free at every instant once what has to be there is.
    pub(super) room: Vec<u64>,
    pub(super) items: Vec<Item>,
    pub(super) outputs: Vec<Output>,
    /// Thousand-and-twenty-fourths of one direction's rate that a copy in the other direction takes.
    pub(super) coupling: u64,
}

/// Denominator of [`Frame::coupling`], and of the rates of the event simulation.
pub(super) const UNIT: u64 = SLOWDOWN_UNIT as u64;

impl Frame {
    /// The relaxation of a problem in its own order. Fails where what has to be on the device does not fit.
    pub(super) fn new(p: &Problem, capacity: u64, allow: Allow) -> Result<Frame, Infeasible> {
        let n = p.ops.len();
        let mut fixed = vec![0; 2 * n + 2];
        let mut used: Vec<u64> = vec![0; 2 * n + 2];
        for (i, op) in p.ops.iter() {
            fixed[start(i)] = op.time_ns;
            let needs = p.working_set_bytes(i) / ALIGN;
            used[start(i)] += needs;
            used[end(i)] += needs;
        }
        let outputs: Vec<Output> = outputs(p);
        let allow = allow.on(&p.device);
        // The next step's copies begin once the outputs of this one have arrived.
        let gate = match p.ops.values().rposition(|op| !op.outputs.is_empty()) {
            None => 0,
            Some(last) if last + 1 == n => 2 * n + 1,
            Some(last) => 2 * last + 2,
        };
        let builder = Builder { p, allow, gate };
        let mut items = Vec::new();
        for t in p.tensors.ids() {
            if let Some(item) = builder.item(t) {
                // A tensor that cannot leave is on the device.
                if item.movable() {
                    items.push(item);
                } else {
                    item.stay(&mut used);
                }
            }
        }
        let total = capacity / ALIGN;
        if let Some(i) = (0..used.len()).find(|&i| used[i] > total) {
            return Err(Infeasible {
                op: OpPos::new((i.saturating_sub(1) / 2).min(n.saturating_sub(1))),
                bytes: used[i] * ALIGN,
            });
        }
        let room = used.iter().map(|u| total - u).collect();
        let stall = (0..fixed.len()).map(|slot| slot % 2 == 0 || slot > 2 * n).collect();
        Ok(Frame { fixed, stall, room, items, outputs, coupling: coupling(p) })
    }
}

/// While both copy engines run, each does `rate` of its work: a nanosecond does no more than
/// `in + out * (1 - rate) / rate <= 1`, and the same the other way round.
pub(super) fn coupling(p: &Problem) -> u64 {
    let rate = p.device.duplex_rate();
    (UNIT * UNIT.saturating_sub(rate) / rate).min(UNIT)
}

/// Instant at which an op's run begins, and the slot of that run.
fn start(op: OpPos) -> usize {
    2 * op.index() + 1
}

/// Instant at which an op's run ends.
fn end(op: OpPos) -> usize {
    2 * op.index() + 2
}

fn outputs(p: &Problem) -> Vec<Output> {
    let of = |i: OpPos| {
        p.certain_copies(i).map(move |(_, bytes)| Output { from: end(i), ns: p.device.d2h_ns(bytes) })
    };
    p.ops.ids().flat_map(of).collect()
}

impl Item {
    /// Whether anything but staying is possible or something has to be copied.
    fn movable(&self) -> bool {
        if matches!(self.begin, Begin::Arrives(_)) {
            return true;
        }
        let inside = |l: &Leg| l.to > l.from + 1 || l.after == After::Boundary;
        let leaves = |l: &Leg| l.after == After::Dead || self.in_ns.is_some() || l.recompute.is_some();
        self.legs.iter().any(|l| inside(l) && leaves(l))
    }

    /// Counts the tensor at all instants of its legs.
    fn stay(&self, used: &mut [u64]) {
        for leg in &self.legs {
            for u in &mut used[leg.from + 1..leg.to.max(leg.from + 1)] {
                *u += self.units;
            }
            if leg.after == After::Boundary {
                used[0] += self.units;
            }
        }
    }
}

struct Builder<'a> {
    p: &'a Problem,
    allow: Allow,
    /// First slot in which the next step's copies may begin.
    gate: usize,
}

impl Builder<'_> {
    fn item(&self, t: TensorId) -> Option<Item> {
        let (p, tensor) = (self.p, &self.p.tensors[t]);
        let (&first, &last) = (tensor.touches.first()?, tensor.touches.last()?);
        let reads = |at: OpPos| p.ops[at].reads.contains(&t);
        let writes = |at: OpPos| tensor.writes.binary_search(&at).is_ok();
        let constant = tensor.writes.is_empty() && tensor.kind != TensorKind::Transient;
        let mut begin = if constant { Begin::Both } else { Begin::Written };
        let handling = p.handling(t);
        let recomputes = self.allow.recompute && handling.recomputes();
        let swaps = self.allow.swap && handling.swaps();
        let mut legs = Vec::new();
        let leg = |from: usize, to: Option<OpPos>, maker: Option<OpPos>, legs: &mut Vec<Leg>| {
            let recompute = maker.filter(|_| recomputes).and_then(|w| p.share(w, t));
            match to {
                None => legs.push(Leg { from, to: 2 * p.ops.len() + 2, recompute, after: After::Boundary }),
                Some(to) if writes(to) && !reads(to) => {
                    legs.push(Leg { from, to: from, recompute: None, after: After::Dead })
                }
                Some(to) => {
                    let after = if writes(to) { After::Write } else { After::Read(start(to)) };
                    legs.push(Leg { from, to: start(to), recompute, after });
                }
            }
        };
        let maker = |at: OpPos| tensor.writes[..tensor.writes.partition_point(|&w| w <= at)].last().copied();
        // Legs in the order of the period, from a touch after which the state is known.
        let origin = match tensor.kind {
            TensorKind::Persistent => tensor.writes.last().copied().unwrap_or(first),
            _ => first,
        };
        if tensor.kind.arrives() && reads(first) {
            // One on the host is updated there once all of its op's operands have been made.
            let updated = || {
                let ops = p.host_ops.values().filter(|op| op.writes.contains(&t));
                ops.filter_map(|op| op.after.iter().max()).max().map_or(0, |&last| end(last))
            };
            let hosted = tensor.kind == TensorKind::Hosted;
            begin = Begin::Arrives(if hosted { updated() } else { self.gate });
            leg(0, Some(first), None, &mut legs);
        }
        for pair in tensor.touches.windows(2).filter(|w| w[0] >= origin) {
            leg(end(pair[0]), Some(pair[1]), maker(pair[0]), &mut legs);
        }
        if tensor.kind == TensorKind::Persistent {
            leg(end(last), None, maker(last), &mut legs);
            leg(0, Some(first), None, &mut legs);
            for pair in tensor.touches.windows(2).filter(|w| w[0] < origin) {
                leg(end(pair[0]), Some(pair[1]), maker(pair[0]), &mut legs);
            }
        }
        let d = &p.device;
        let arrives = tensor.kind.arrives();
        Some(Item {
            tensor: t,
            units: tensor.bytes / ALIGN,
            out_ns: swaps.then(|| d.d2h_ns(tensor.size)),
            in_ns: (swaps || arrives).then(|| d.h2d_ns(tensor.size)),
            constant,
            begin,
            legs,
        })
    }
}
