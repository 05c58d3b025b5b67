//! The policy maker: chooses tensors to evict, by a copy or by recomputation.
//!
//! A candidate is a tensor's absence between two accesses during the time of peak memory, while usage exceeds
//! the budget. Its free time runs from the end of its copy to the host, begun at the first access, to the
//! latest begin of its copy back. Candidates with the longest free time are swapped as long as that hides the
//! copies. Copies of one direction take the link one after the other. From then on (the hybrid policy) each
//! candidate is swapped or recomputed, whichever costs less, by memory saved per second (MSPS). The cost of a
//! recomputation includes operands that are gone by then. Each choice to recompute changes the cost of the
//! others, so costs are computed anew.
//!
//! The paper is silent on the order of candidates that cannot be hidden. Here the most MSPS comes first, by
//! the cheaper of the two.

use std::collections::{BTreeSet, BinaryHeap};

use memc_ir::Arena;
use memc_planner::{OpPos, Problem, Request, TensorId, TensorKind};

use super::Guide;
use crate::walk::{Eviction, Facts, content, writer};

/// An absence: the ops of the accesses around it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Absence {
    tensor: TensorId,
    from: OpPos,
    to: OpPos,
}

/// Chooses what to evict.
pub(super) struct PolicyMaker<'a> {
    p: &'a Problem,
    facts: &'a Facts,
    capacity: u64,
    swap: bool,
    recompute: bool,
    /// Start of every op in ns; one more entry for the end.
    start: Arena<OpPos, u64>,
    /// Absences that are not chosen.
    left: Vec<Absence>,
    swapped: Vec<Absence>,
    /// Tensors to be computed again, with the absence.
    recomputed: BTreeSet<Absence>,
    pub(super) guide: Guide,
}

impl<'a> PolicyMaker<'a> {
    /// Nothing chosen.
    pub(super) fn new(p: &'a Problem, facts: &'a Facts, request: &Request<'_>) -> PolicyMaker<'a> {
        let mut start = Arena::from(vec![0u64]);
        for op in p.ops.values() {
            start.push(start.last().copied().unwrap_or(0) + op.time_ns);
        }
        let mut left = Vec::new();
        for (t, tensor) in p.tensors.iter() {
            for pair in tensor.touches.windows(2) {
                if pair[1] > pair[0].next() && p.ops[pair[1]].reads.contains(&t) {
                    left.push(Absence { tensor: t, from: pair[0], to: pair[1] });
                }
            }
        }
        PolicyMaker {
            p,
            facts,
            capacity: request.capacity,
            swap: request.allow.on(&p.device).swap,
            recompute: request.allow.recompute,
            start,
            left,
            swapped: Vec::new(),
            recomputed: BTreeSet::new(),
            guide: Guide::default(),
        }
    }

    fn bytes(&self, a: &Absence) -> u64 {
        self.p.tensors[a.tensor].bytes
    }

    /// Free time in ns: negative where the copies take longer than the absence.
    fn free_ns(&self, a: &Absence) -> i128 {
        let size = self.p.tensors[a.tensor].size;
        let between = self.start[a.to] - self.start[a.from.next()];
        i128::from(between) - i128::from(self.p.device.d2h_ns(size) + self.p.device.h2d_ns(size))
    }

    /// Time in ns by which a swap cannot be hidden, next to those that are chosen.
    fn swap_ns(&self, a: &Absence) -> u64 {
        let size = |a: &Absence| self.p.tensors[a.tensor].size;
        // To the host: those before it on the link.
        let mut outs: Vec<&Absence> = self.swapped.iter().filter(|b| b.from <= a.from).collect();
        outs.sort_by_key(|b| b.from);
        let mut out = 0;
        for b in outs.into_iter().chain([a]) {
            out = self.start[b.from.next()].max(out) + self.p.device.d2h_ns(size(b));
        }
        // Back: as late as those behind it allow.
        let mut backs: Vec<&Absence> = self.swapped.iter().filter(|b| b.to >= a.to).collect();
        backs.sort_by_key(|b| std::cmp::Reverse(b.to));
        let mut back = u64::MAX;
        for b in backs.into_iter().chain([a]) {
            back = back.min(self.start[b.to]).saturating_sub(self.p.device.h2d_ns(size(b)));
        }
        out.saturating_sub(back)
    }

    /// Time in ns to compute the tensor again for its access, with what is gone by then.
    fn recompute_ns(&self, a: &Absence) -> Option<u64> {
        let want = content(self.p, a.tensor, a.to);
        let transient = self.p.tensors[a.tensor].kind == TensorKind::Transient;
        if !self.recompute || !transient || !self.facts.recomputable(a.tensor, want, a.to) {
            return None;
        }
        let (mut ops, mut open) = (BTreeSet::new(), vec![(a.tensor, want)]);
        while let Some((t, seen)) = open.pop() {
            let op = writer(self.p, t, seen)?;
            if !ops.insert(op) {
                continue;
            }
            for &r in self.p.ops[op].reads.iter().filter(|&&r| self.gone(r, a.to)) {
                open.push((r, content(self.p, r, op)));
            }
        }
        Some(ops.into_iter().map(|op| self.p.ops[op].time_ns).sum())
    }

    /// True if a tensor has to be computed to be read just before a position.
    fn gone(&self, t: TensorId, position: OpPos) -> bool {
        let tensor = &self.p.tensors[t];
        if tensor.kind != TensorKind::Transient {
            return false;
        }
        let k = tensor.touches.partition_point(|&x| x < position);
        match (k.checked_sub(1).and_then(|k| tensor.touches.get(k)), tensor.touches.get(k)) {
            (Some(&from), Some(&to)) => self.recomputed.contains(&Absence { tensor: t, from, to }),
            _ => true,
        }
    }

    /// Chooses absences until the load is estimated to be within the budget; `used` is what is in use at
    /// every op. False when none is left where it is over.
    pub(super) fn choose_more(&mut self, used: &Arena<OpPos, u64>) -> bool {
        let mut used = used.clone();
        let mut any = false;
        let mut order = std::mem::take(&mut self.left);
        if self.swap {
            order.sort_by_key(|a| (std::cmp::Reverse(self.free_ns(a)), *a));
        }
        let mut rest = Vec::new();
        for a in order {
            let hidden = || self.swap && self.free_ns(&a) >= 0 && self.swap_ns(&a) == 0;
            if self.is_over(&used, &a) && hidden() {
                self.take(a, Eviction::Swap, &mut used);
                any = true;
            } else {
                rest.push(a);
            }
        }
        // Costs only grow with what is chosen, so one computed earlier bounds the present value from above.
        let entry = |maker: &Self, k: usize, rest: &[Absence]| {
            let (ns, eviction) = maker.cheaper(&rest[k])?;
            let msps = (u128::from(maker.bytes(&rest[k])) << 32) / u128::from(ns.max(1));
            Some((msps, std::cmp::Reverse(k), eviction))
        };
        let mut heap: BinaryHeap<_> = (0..rest.len()).filter_map(|k| entry(self, k, &rest)).collect();
        let mut taken = vec![false; rest.len()];
        while let Some((_, std::cmp::Reverse(k), _)) = heap.pop() {
            if !self.is_over(&used, &rest[k]) {
                continue;
            }
            let Some(now) = entry(self, k, &rest) else { continue };
            if heap.peek().is_some_and(|next| *next > now) {
                heap.push(now);
                continue;
            }
            self.take(rest[k], now.2, &mut used);
            (taken[k], any) = (true, true);
        }
        self.left = rest.into_iter().zip(taken).filter(|(_, taken)| !taken).map(|(a, _)| a).collect();
        any
    }

    /// The cheaper way to evict, and its overhead in ns.
    fn cheaper(&self, a: &Absence) -> Option<(u64, Eviction)> {
        let swap = self.swap.then(|| (self.swap_ns(a), Eviction::Swap));
        let recompute = self.recompute_ns(a).map(|ns| (ns, Eviction::Recompute));
        swap.into_iter().chain(recompute).min()
    }

    /// True if the absence saves memory where there is too little.
    fn is_over(&self, used: &Arena<OpPos, u64>, a: &Absence) -> bool {
        used.range(a.from.next(), a.to).iter().any(|&u| u > self.capacity)
    }

    fn take(&mut self, a: Absence, eviction: Eviction, used: &mut Arena<OpPos, u64>) {
        let bytes = self.bytes(&a);
        for u in used.range_mut(a.from.next(), a.to) {
            *u = u.saturating_sub(bytes);
        }
        match eviction {
            Eviction::Swap => self.swapped.push(a),
            Eviction::Recompute => {
                self.recomputed.insert(a);
            }
        }
        self.guide.0.entry(a.from).or_default().push((a.tensor, eviction));
    }
}
