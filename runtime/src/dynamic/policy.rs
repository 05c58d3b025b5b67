//! Decisions while a step runs: which tensor leaves the device, how, and which comes back ahead of its use.
//!
//! DELTA (Tang et al., 2022): the filter takes the tensor with the least value of equation 1, 2 or 3. The
//! director, equation 4, drops it where computing it again takes no longer than a copy at 35 % of the
//! bandwidth (equations 5 and 6). The prefetcher, algorithm 4, brings tensors back in the backward pass. From
//! three quarters of memory on tensors leave early, in the forward pass alone. DTR (Kirisame et al., 2021):
//! the tensor with the least cost by bytes and staleness is dropped; its cost is that of its dropped
//! neighbourhood. Times are measured as ops run.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::flow::{Origin, Tensor};
use super::memory::Memory;

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// DELTA with the filter of equation 1, bytes times staleness.
    Delta,
    /// DELTA with the filter of equation 2: the stalest.
    DeltaLru,
    /// DELTA with the filter of equation 3: the largest.
    DeltaGreedy,
    /// DTR, which copies nothing.
    Dtr,
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let names = || Policy::ALL.map(Policy::name).join(", ");
        let found = Policy::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| format!("expected one of {}", names()))
    }
}

/// Part of the bandwidth that counts.
const BANDWIDTH: f64 = 0.35;
/// Tensors that came back and wait for their use at most.
const AT_ONCE: usize = 4;

/// The way in which a tensor leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// It is computed again when it is needed.
    Dropped,
    /// It is copied to host memory.
    Offloaded,
}

impl Policy {
    /// The policies.
    pub const ALL: [Policy; 4] = [Policy::Delta, Policy::DeltaLru, Policy::DeltaGreedy, Policy::Dtr];

    /// Name for the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Delta => "delta",
            Policy::DeltaLru => "delta-lru",
            Policy::DeltaGreedy => "delta-greedy",
            Policy::Dtr => "dtr",
        }
    }

    /// Whether it copies tensors to host memory.
    pub(super) fn copies(self) -> bool {
        self != Policy::Dtr
    }

    /// Whether a tensor that came back for the sake of another one stays until it is chosen to leave.
    pub(super) fn keeps_visitors(self) -> bool {
        self == Policy::Dtr
    }

    /// The tensor that leaves next, none of those that stay, and how; `None` where none may.
    pub(super) fn victim(self, memory: &Memory, at: usize, stay: &[Tensor]) -> Option<(Tensor, Leaves)> {
        let now = memory.now_ns();
        let candidates = memory.held.iter().enumerate().filter(|(tensor, held)| {
            let entry = memory.flow.tensors.get(*tensor);
            let may = entry.is_some_and(|entry| {
                let is_fixed = match entry.origin {
                    Origin::State(_) => true,
                    Origin::Input(_) => !self.copies(),
                    Origin::Op(_) => entry.is_next,
                };
                !is_fixed && entry.bytes > 0
            });
            may && held.device.is_some() && held.pins == 0 && !stay.contains(tensor)
        });
        let scored = candidates.filter_map(|(tensor, held)| {
            let staleness = now.saturating_sub(held.used_ns).max(1) as f64;
            Some((self.score(memory, tensor, staleness)?, tensor))
        });
        let (_, tensor) = scored.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
        Some((tensor, self.leaves(memory, tensor, at)))
    }

    fn score(self, memory: &Memory, tensor: Tensor, staleness: f64) -> Option<f64> {
        let bytes = memory.bytes(tensor) as f64;
        match self {
            Policy::Delta => Some(1.0 / (bytes * staleness)),
            Policy::DeltaLru => Some(1.0 / staleness),
            Policy::DeltaGreedy => Some(1.0 / bytes),
            Policy::Dtr => {
                memory.closure(tensor)?;
                Some(neighbourhood_ns(memory, tensor) as f64 / (bytes * staleness))
            }
        }
    }

    /// The director.
    fn leaves(self, memory: &Memory, tensor: Tensor, at: usize) -> Leaves {
        let is_cheap = |ns: u64| ns as f64 <= swap_ns(memory, tensor) / BANDWIDTH;
        // A tensor that nothing reads again needs no copy.
        let is_over = memory.flow.next_use(tensor, at).is_none();
        let again = memory.recompute_ns(tensor);
        match again {
            _ if has_copy(memory, tensor) => Leaves::Offloaded,
            Some(ns) if !self.copies() || is_over || is_cheap(ns) => Leaves::Dropped,
            _ => Leaves::Offloaded,
        }
    }

    /// Bytes of the device that are to be in use at most before an op runs.
    pub(super) fn goal(self, memory: &Memory, at: usize) -> usize {
        let room = memory.capacity.saturating_sub(memory.homes_end);
        if self.copies() && at < memory.flow.split { memory.capacity - room / 4 } else { memory.capacity }
    }

    /// Whether a tensor in host memory is computed again all the same (algorithm 1): all operands of its op
    /// are on the device.
    pub(super) fn computes_instead(self, memory: &Memory, tensor: Tensor) -> bool {
        let Some(Origin::Op(op)) = memory.flow.tensors.get(tensor).map(|entry| entry.origin) else {
            return false;
        };
        let op = memory.flow.ops.get(op);
        self.copies() && op.is_some_and(|op| op.operands.iter().all(|&operand| memory.is_here(operand)))
    }

    /// Tensors that the prefetcher brings back before an op runs, in the order of use.
    pub(super) fn prefetched(
        self,
        memory: &Memory,
        at: usize,
        ahead: &mut Vec<(Tensor, usize)>,
    ) -> Vec<Tensor> {
        if !self.copies() || at < memory.flow.split {
            return Vec::new();
        }
        ahead.retain(|&(tensor, used)| used > at && memory.is_here(tensor));
        let from = at.saturating_add(1);
        let mut queue: Vec<(usize, Tensor)> = Vec::new();
        for (tensor, held) in memory.held.iter().enumerate() {
            if held.device.is_none() && held.host.is_some() {
                queue.extend(memory.flow.next_use(tensor, from).map(|used| (used, tensor)));
            }
        }
        queue.sort_unstable();
        queue.truncate(AT_ONCE.saturating_sub(ahead.len()));
        ahead.extend(queue.iter().map(|&(used, tensor)| (tensor, used)));
        queue.into_iter().map(|(_, tensor)| tensor).collect()
    }
}

fn has_copy(memory: &Memory, tensor: Tensor) -> bool {
    memory.held(tensor).is_some_and(|held| held.host.is_some())
}

/// Time of one copy in ns.
fn swap_ns(memory: &Memory, tensor: Tensor) -> f64 {
    memory.bytes(tensor) as f64 / memory.copies.bytes_per_ns().max(1e-9)
}

/// Time in ns of a tensor's op, and of those of the dropped tensors around it: its sources, and what is made
/// of it.
fn neighbourhood_ns(memory: &Memory, tensor: Tensor) -> u64 {
    let mut ops: BTreeSet<usize> = memory.closure(tensor).unwrap_or_default().into_iter().collect();
    let (mut open, mut seen) = (vec![tensor], BTreeSet::new());
    while let Some(tensor) = open.pop() {
        let uses = memory.flow.tensors.get(tensor).map_or(&[][..], |entry| &entry.uses);
        for &op in uses {
            let results = memory.flow.ops.get(op).map_or(&[][..], |op| &op.results);
            for &result in results.iter().filter(|&&result| memory.is_dropped(result)) {
                ops.insert(op);
                open.extend(seen.insert(result).then_some(result));
            }
        }
    }
    memory.cost_ns(ops.iter())
}
