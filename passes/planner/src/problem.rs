//! The planning problem in numbers.
//!
//! A training step is a list of ops in a valid order over tensors with sizes. Nothing here knows what an op
//! computes; what planners may assume of one is in its flags.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use memc_ir::Arena;
pub use memc_ir::SLOT_ALIGN as ALIGN;

use crate::ids::{HostOpIx, OpPos, TensorId};

/// Denominator of [`Op::slowdown`] (fixed point, 1/1024).
pub const SLOWDOWN_UNIT: u32 = 1024;

/// No sum of bytes that planning forms may exceed this.
const MOST: u128 = 1 << 60;

/// No sum of times that planning forms may exceed this many ns, 52 days: the event model counts in parts of a
/// ns.
const MOST_NS: u128 = 1 << 52;

/// The link between device and host, and the device's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Device {
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Copy throughput from host to device in bytes per second; 0: there is no link, nothing can be swapped.
    pub h2d_bytes_per_s: u64,
    /// Copy throughput from device to host in bytes per second; 0 as above.
    pub d2h_bytes_per_s: u64,
    /// Bytes per second of both directions together while both run; 0 or at least their sum: they do not slow
    /// each other.
    pub duplex_bytes_per_s: u64,
    /// Fixed time of every copy in ns.
    pub copy_latency_ns: u64,
}

impl Device {
    /// Whether tensors can move to the host and back.
    pub fn can_swap(&self) -> bool {
        self.h2d_bytes_per_s > 0 && self.d2h_bytes_per_s > 0
    }
    /// Time of a copy of `bytes` from host to device in ns, undisturbed.
    pub fn h2d_ns(&self, bytes: u64) -> u64 {
        self.copy_latency_ns.saturating_add(copy_ns(bytes, self.h2d_bytes_per_s))
    }
    /// Time of a copy of `bytes` from device to host in ns, undisturbed.
    pub fn d2h_ns(&self, bytes: u64) -> u64 {
        self.copy_latency_ns.saturating_add(copy_ns(bytes, self.d2h_bytes_per_s))
    }
    /// Speed of copies while both directions run, from 1 to the undisturbed one of [`SLOWDOWN_UNIT`].
    pub fn duplex_rate(&self) -> u64 {
        let unit = u64::from(SLOWDOWN_UNIT);
        let sum = self.h2d_bytes_per_s.saturating_add(self.d2h_bytes_per_s);
        let both = self.duplex_bytes_per_s;
        if both == 0 || both >= sum {
            return unit;
        }
        (u128::from(both) * u128::from(unit) / u128::from(sum)).max(1) as u64
    }
}

fn copy_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    if bytes_per_s == 0 {
        return 0;
    }
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s));
    u64::try_from(ns).unwrap_or(u64::MAX / 4)
}

/// Kind of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TensorKind {
    /// Lives within a step: it appears at the first op that touches it and dies after the last.
    Transient,
    /// Lives across steps; it may start a step on either side, and the gap after its last use wraps around.
    Persistent,
    /// Arrives in host memory at the start of every step.
    Input,
    /// Lives in host memory across steps, where ops on the host update it; ops on the device only read it.
    Hosted,
}

impl TensorKind {
    /// Spelling in files.
    pub fn name(self) -> &'static str {
        match self {
            TensorKind::Transient => "transient",
            TensorKind::Persistent => "persistent",
            TensorKind::Input => "input",
            TensorKind::Hosted => "hosted",
        }
    }
    /// Whether every step begins with the content in host memory alone.
    pub fn arrives(self) -> bool {
        matches!(self, TensorKind::Input | TensorKind::Hosted)
    }
}

/// Ways in which a tensor may leave the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Handling {
    /// Every way.
    #[default]
    Any,
    /// None: it stays from its first touch to its last, a persistent one always.
    Keep,
    /// By copies to the host and back.
    Swap,
    /// Given up, and recomputed.
    Recompute,
}

impl Handling {
    /// Whether it may leave by copies.
    pub fn swaps(self) -> bool {
        matches!(self, Handling::Any | Handling::Swap)
    }
    /// Whether it may be given up and recomputed.
    pub fn recomputes(self) -> bool {
        matches!(self, Handling::Any | Handling::Recompute)
    }
}

/// A tensor: bytes with one life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// Unique name.
    pub name: String,
    /// Bytes it occupies, a multiple of [`ALIGN`].
    pub bytes: u64,
    /// Bytes that a copy of it moves.
    pub size: u64,
    /// Kind of the tensor.
    pub kind: TensorKind,
    /// Positions of the ops that read or write it, ascending.
    pub touches: Vec<OpPos>,
    /// Positions of the ops that write it, ascending.
    pub writes: Vec<OpPos>,
}

impl Tensor {
    /// Whether the tensor outlives the step.
    pub fn persistent(&self) -> bool {
        self.kind == TensorKind::Persistent
    }
    /// The first position after `position` that touches the tensor.
    pub fn next_touch(&self, position: OpPos) -> Option<OpPos> {
        self.touches.get(self.touches.partition_point(|&t| t <= position)).copied()
    }
    /// Whether an op strictly between two positions writes the tensor.
    pub fn written_between(&self, first: OpPos, last: OpPos) -> bool {
        self.writes.get(self.writes.partition_point(|&w| w <= first)).is_some_and(|&w| w < last)
    }
}

/// An op that runs, in terms of tensors.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Op {
    /// Unique name.
    pub name: String,
    /// Name for people, such as the node of the source model; need not be unique.
    pub label: String,
    /// Time on the compute stream in ns.
    pub time_ns: u64,
    /// Parts of [`SLOWDOWN_UNIT`] of that time by which it takes longer while copies run in both directions,
    /// as it shares the device's memory with them. Two thirds of it are those of copies to the device.
    pub slowdown: u32,
    /// Tensors read, without repetition.
    pub reads: Vec<TensorId>,
    /// Tensors written, without repetition; one that is read as well is updated in place.
    pub writes: Vec<TensorId>,
    /// Scratch bytes, a multiple of [`ALIGN`].
    pub workspace: u64,
    /// Results of the step that are copied to the host once this op has run: tensor and bytes.
    pub outputs: Vec<(TensorId, u64)>,
    /// Tensors that are copied to the host once this op has run, for ops there.
    pub sends: Vec<TensorId>,
    /// Whether running it again on the same operands gives the same results.
    pub repeatable: bool,
    /// Positions of earlier ops that must run before it, besides those that its tensors imply.
    pub after: Vec<OpPos>,
    /// Time in ns on the host, where it can run there: see [`Problem::with_host_ops`].
    pub host_ns: Option<u64>,
}

/// An op that runs on the host, on tensors in host memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostOp {
    /// Unique name.
    pub name: String,
    /// Name for people.
    pub label: String,
    /// Time on the host in ns.
    pub time_ns: u64,
    /// Tensors read: hosted ones, what ops on the device send, and what never changes.
    pub reads: Vec<TensorId>,
    /// Hosted tensors written.
    pub writes: Vec<TensorId>,
    /// Ops on the device that come before it: those that send what it reads or touch what it writes.
    pub after: Vec<OpPos>,
}

impl Op {
    /// Time in ns beside copies in both directions.
    fn slowest_ns(&self) -> u128 {
        let unit = u128::from(SLOWDOWN_UNIT);
        u128::from(self.time_ns) * (unit + u128::from(self.slowdown)) / unit
    }
    /// Copies to the host that follow it, whatever is decided: tensor and bytes.
    pub fn copies<'a>(
        &'a self,
        tensors: &'a Arena<TensorId, Tensor>,
    ) -> impl Iterator<Item = (TensorId, u64)> + 'a {
        self.outputs.iter().copied().chain(self.sends.iter().map(|&t| (t, tensors[t].size)))
    }
    /// Whether the op updates any tensor in place.
    pub fn updates(&self) -> bool {
        self.writes.iter().any(|t| self.reads.contains(t))
    }
}

/// A step and the device that it is to run on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Problem {
    /// Name for people.
    pub name: String,
    /// The device.
    pub device: Device,
    /// The tensors.
    pub tensors: Arena<TensorId, Tensor>,
    /// The ops in a valid order.
    pub ops: Arena<OpPos, Op>,
    /// The ops that run on the host.
    pub host_ops: Arena<HostOpIx, HostOp>,
    /// Tensors that may not leave in every way.
    pub handling: BTreeMap<TensorId, Handling>,
}

/// Reason that a problem is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

impl Problem {
    /// A problem from its parts: fills in where each tensor is touched, and checks that no sum can overflow.
    ///
    /// Bytes occupied are the sizes rounded up to [`ALIGN`]. Fails on an unknown tensor, a tensor written
    /// twice by one op, an op that must run after a later one, and a step too large to plan; names the op.
    pub fn new(name: &str, device: Device, tensors: Vec<Tensor>, ops: Vec<Op>) -> Result<Problem, Malformed> {
        let (mut tensors, mut ops) = (Arena::from(tensors), Arena::from(ops));
        for t in tensors.values_mut() {
            t.bytes =
                align(t.size.max(1)).ok_or_else(|| Malformed(format!("tensor {} is too large", t.name)))?;
            t.touches.clear();
            t.writes.clear();
        }
        let mut cycle = None;
        for (i, op) in ops.iter_mut() {
            op.workspace = align(op.workspace)
                .ok_or_else(|| Malformed(format!("op {}: its workspace is too large", op.name)))?;
            for &t in op.reads.iter().chain(&op.writes) {
                let tensor = tensors.get_mut(t).ok_or_else(|| {
                    Malformed(format!("op {} refers to an unknown tensor {}", op.name, t.0))
                })?;
                if tensor.touches.last() != Some(&i) {
                    tensor.touches.push(i);
                }
            }
            for &t in &op.writes {
                let tensor = &mut tensors[t];
                if tensor.writes.last() == Some(&i) {
                    return Err(Malformed(format!("op {} writes tensor {} twice", op.name, tensor.name)));
                }
                tensor.writes.push(i);
            }
            if let Some((t, _)) =
                op.outputs.iter().find(|(t, _)| !op.reads.contains(t) && !op.writes.contains(t))
            {
                return Err(Malformed(format!(
                    "op {} hands out tensor {}, which it does not touch",
                    op.name, t.0
                )));
            }
            op.reads.sort_unstable();
            op.reads.dedup();
            if let Some(&late) = op.after.iter().find(|&&a| a >= i) {
                cycle = Some((i, late));
            }
        }
        if let Some((early, late)) = cycle {
            let name = |i: OpPos| ops.get(i).map_or("unknown", |op: &Op| op.name.as_str());
            return Err(Malformed(format!(
                "the ops form a cycle: {} runs before {}, which it must come after; \
                 list ops in execution order",
                name(early),
                name(late)
            )));
        }
        let (name, host_ops, handling) = (name.to_string(), Arena::default(), BTreeMap::new());
        let p = Problem { name, device, tensors, ops, host_ops, handling };
        p.check_size()?;
        Ok(p)
    }

    /// Bounds every sum that planning forms: a tensor is copied at most twice for each op that touches it,
    /// and an op is recomputed at most once for each touch of what it writes.
    fn check_size(&self) -> Result<(), Malformed> {
        let copies = |t: &Tensor| t.touches.len() as u128 + 2;
        let copy =
            |t: &Tensor| u128::from(self.device.h2d_ns(t.size)) + u128::from(self.device.d2h_ns(t.size));
        let runs = |op: &Op| {
            let times: usize = op.writes.iter().map(|&t| self.tensors[t].touches.len() + 1).sum();
            times as u128 + 1
        };
        let outputs = |op: &Op| -> u128 {
            op.outputs.iter().map(|&(_, bytes)| u128::from(self.device.d2h_ns(bytes))).sum()
        };
        let handed_out = |op: &Op| op.outputs.iter().map(|o| u128::from(o.1)).sum::<u128>();
        let bytes = self.tensors.values().map(|t| copies(t) * u128::from(t.bytes)).sum::<u128>()
            + self.ops.values().map(|op| runs(op) * u128::from(op.workspace) + handed_out(op)).sum::<u128>();
        if bytes > MOST {
            let own = |op: &&Op| u128::from(op.workspace) + handed_out(op);
            let op = self.ops.values().max_by_key(own).map(|op| op.label.as_str());
            let tensor = self.tensors.values().max_by_key(|t| t.bytes).map(|t| t.name.as_str());
            return Err(Malformed(format!(
                "the step is too large to plan: its bytes exceed 2^60 \
                 (the op with the most workspace and outputs is {}, the largest tensor {})",
                op.unwrap_or_default(),
                tensor.unwrap_or("none")
            )));
        }
        // An op on the host takes a copy of each operand.
        let on_host = |op: &Op| op.host_ns.map_or(0, u128::from);
        let sent = |op: &Op| op.reads.iter().map(|&t| copy(&self.tensors[t])).sum::<u128>();
        let run_ns = self.ops.values().map(|op| runs(op) * op.slowest_ns() + on_host(op)).sum::<u128>();
        let copy_ns = self.tensors.values().map(|t| copies(t) * copy(t)).sum::<u128>()
            + self.ops.values().map(outputs).sum::<u128>()
            + self.ops.values().filter(|op| op.host_ns.is_some()).map(sent).sum::<u128>();
        if run_ns + copy_ns <= MOST_NS {
            return Ok(());
        }
        let why = if run_ns >= copy_ns {
            let longest = self.ops.values().max_by_key(|op| op.time_ns);
            longest.map(|op| format!("the longest op is {}, of {} ns", op.label, op.time_ns))
        } else {
            let longest = self.tensors.values().max_by_key(|t| copy(t));
            longest.map(|t| {
                let latency = self.device.copy_latency_ns;
                format!("copying {} both ways takes {} ns, a copy's latency is {latency} ns", t.name, copy(t))
            })
        };
        Err(Malformed(format!(
            "the step is too large to plan: its times exceed 2^52 ns, \
             with every copy and repeated run that planning weighs ({})",
            why.unwrap_or_default()
        )))
    }

    /// Tensors an op needs on the device at once, without repetition, ascending.
    pub fn working_set(&self, position: OpPos) -> Vec<TensorId> {
        let op = &self.ops[position];
        let set: BTreeSet<TensorId> = op.reads.iter().chain(&op.writes).copied().collect();
        set.into_iter().collect()
    }

    /// Bytes of an op's working set, workspace included.
    pub fn working_set_bytes(&self, position: OpPos) -> u64 {
        let tensors: u64 = self.working_set(position).iter().map(|&t| self.tensors[t].bytes).sum();
        tensors + self.ops[position].workspace
    }

    /// The position with the largest working set, and its bytes: no budget below that is feasible.
    pub fn largest_working_set(&self) -> (OpPos, u64) {
        let sets = self.ops.ids().map(|i| (i, self.working_set_bytes(i)));
        sets.max_by_key(|&(i, bytes)| (bytes, Reverse(i))).unwrap_or_default()
    }

    /// Whether a tensor leaves the device for ops on the host in a gap of its own: it is not needed again.
    pub(crate) fn leaves_for_host(&self, t: TensorId) -> bool {
        let tensor = &self.tensors[t];
        let sent = |&maker: &OpPos| self.ops[maker].sends.contains(&t);
        tensor.kind == TensorKind::Transient && tensor.writes.last().is_some_and(sent)
    }

    /// Copies to the host that follow an op, whatever is decided, and that no copy of a swap can stand for:
    /// tensor and bytes.
    pub(crate) fn certain_copies(&self, at: OpPos) -> impl Iterator<Item = (TensorId, u64)> + '_ {
        // A tensor that is used again may be copied once, for the op on the host and to make room.
        let last = move |t: &TensorId| {
            let tensor = &self.tensors[*t];
            tensor.kind == TensorKind::Transient && tensor.touches.last() == Some(&at)
        };
        let sends = self.ops[at].sends.iter().copied().filter(last).map(|t| (t, self.tensors[t].size));
        self.ops[at].outputs.iter().copied().chain(sends)
    }

    /// Ways in which a tensor may leave the device.
    pub fn handling(&self, t: TensorId) -> Handling {
        self.handling.get(&t).copied().unwrap_or_default()
    }

    /// Sum of the ops' times in ns: the step time with unlimited memory.
    pub fn compute_ns(&self) -> u64 {
        self.ops.values().map(|op| op.time_ns).sum()
    }

    /// For every position, the positions that must precede it in any order: its operands' writers, and those
    /// whose operands it overwrites. A transient that nothing has written appears at the op that touches it
    /// first, which stays the first.
    pub fn predecessors(&self) -> Arena<OpPos, Vec<OpPos>> {
        let mut writer: Arena<TensorId, Option<OpPos>> = Arena::filled(None, self.tensors.len());
        let mut readers: Arena<TensorId, Vec<OpPos>> = Arena::filled(Vec::new(), self.tensors.len());
        let mut out = Arena::with_capacity(self.ops.len());
        for (i, op) in self.ops.iter() {
            let mut before: BTreeSet<OpPos> = op.after.iter().copied().collect();
            for &t in op.reads.iter().chain(&op.writes) {
                let tensor = &self.tensors[t];
                let appears = tensor.touches.first().filter(|_| tensor.kind == TensorKind::Transient);
                before.extend(writer[t].or(appears.copied()));
            }
            for &t in &op.writes {
                before.append(&mut std::mem::take(&mut readers[t]).into_iter().collect());
                writer[t] = Some(i);
            }
            for &t in op.reads.iter().filter(|t| !op.writes.contains(t)) {
                readers[t].push(i);
            }
            before.remove(&i);
            out.push(before.into_iter().collect());
        }
        out
    }
}

fn align(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGN).filter(|&b| u128::from(b) <= MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transient that appears where it is first read, is read again, then overwritten and read.
    #[test]
    fn what_appears_unwritten_appears_where_it_is_touched_first() {
        let tensor = |name: &str, kind| Tensor {
            name: name.into(),
            bytes: 0,
            size: ALIGN,
            kind,
            touches: Vec::new(),
            writes: Vec::new(),
        };
        let op = |name: &str, reads: &[u32], writes: &[u32]| Op {
            name: name.into(),
            reads: reads.iter().copied().map(TensorId).collect(),
            writes: writes.iter().copied().map(TensorId).collect(),
            ..Op::default()
        };
        let tensors = vec![tensor("mask", TensorKind::Transient), tensor("w", TensorKind::Persistent)];
        let ops = vec![
            op("first", &[0, 1], &[]),
            op("second", &[0], &[]),
            op("other", &[1], &[]),
            op("overwrite", &[], &[0]),
            op("last", &[0], &[]),
        ];
        let p = Problem::new("mask", Device::default(), tensors, ops).expect("valid");
        let before: Vec<Vec<u32>> =
            p.predecessors().values().map(|b| b.iter().map(|op| op.0).collect()).collect();
        assert_eq!(before, [vec![], vec![0], vec![], vec![0, 1], vec![3]]);
    }
}
