//! Ops on the host: each runs once what it waits for is done, in the order in which that is issued.

use memc_ir::Arena;

use crate::access_sequence::AccessSequence;
use crate::ids::{GapIx, HostOpIx, OpPos, StepPos};
use crate::problem::{Problem, TensorKind};

/// Waits of ops on the host, and for them.
#[derive(Clone, Debug, Default)]
pub(super) struct HostOps {
    /// Times in ns.
    ns: Arena<HostOpIx, u64>,
    /// Steps and copies that each waits for.
    awaits: Arena<HostOpIx, u32>,
    /// Steps that ops wait for, ascending.
    steps: Vec<(StepPos, HostOpIx)>,
    /// Gaps with copies to the host that ops wait for, ascending.
    copies: Vec<(GapIx, HostOpIx)>,
    /// For every gap, the op that writes what is copied to the device in it. Empty where there are no ops.
    writers: Arena<GapIx, Option<HostOpIx>>,
}

impl HostOps {
    /// Of a problem, in the steps of a sequence.
    pub(super) fn new(p: &Problem, sequence: &AccessSequence) -> HostOps {
        let mut out = HostOps::default();
        if p.host_ops.is_empty() {
            return out;
        }
        let mut ran: Arena<OpPos, StepPos> = Arena::filled(StepPos(0), p.ops.len());
        for (i, step) in sequence.steps.iter().filter(|(_, step)| step.recompute.is_none()) {
            ran[step.op] = i;
        }
        out.writers = Arena::filled(None, sequence.gaps.len());
        for (h, op) in p.host_ops.iter() {
            out.ns.push(op.time_ns);
            out.steps.extend(op.after.iter().map(|&at| (ran[at], h)));
            let copied =
                op.reads.iter().flat_map(|&t| sequence.gaps_of(t)).filter(|&g| sequence.gaps[g].sent);
            out.copies.extend(copied.map(|g| (g, h)));
            for &t in op.writes.iter().filter(|&&t| p.tensors[t].kind == TensorKind::Hosted) {
                for g in sequence.gaps_of(t).filter(|&g| sequence.gaps[g].arrives()) {
                    out.writers[g] = Some(h);
                }
            }
        }
        out.steps.sort_unstable();
        out.copies.sort_unstable();
        out.awaits = Arena::filled(0, out.ns.len());
        for h in out.steps.iter().map(|x| x.1).chain(out.copies.iter().map(|x| x.1)) {
            out.awaits[h] += 1;
        }
        out
    }

    /// Whether no ops run on the host.
    pub(super) fn is_empty(&self) -> bool {
        self.ns.is_empty()
    }

    /// The ops that wait for a copy to the host.
    pub(super) fn awaiting(&self, gap: GapIx) -> impl Iterator<Item = HostOpIx> {
        let first = self.copies.partition_point(|x| x.0 < gap);
        self.copies[first..].iter().take_while(move |x| x.0 == gap).map(|x| x.1)
    }

    /// The op that writes what is copied to the device in a gap.
    pub(super) fn writer(&self, gap: GapIx) -> Option<HostOpIx> {
        self.writers.get(gap).copied().flatten()
    }
}

/// The ops on the host in a walk.
#[derive(Clone, Debug, Default)]
pub(super) struct HostQueue {
    /// Number of things that each has yet to wait for in this walk.
    left: Arena<HostOpIx, u32>,
    /// Latest end of those that it has waited for.
    ready: Arena<HostOpIx, u64>,
    /// End of its last run; 0 before there is one.
    done: Arena<HostOpIx, u64>,
    /// Of [`HostOps::steps`], those that have passed.
    passed: usize,
}

impl HostQueue {
    /// Before the first walk.
    pub(super) fn reset(&mut self, ops: &HostOps) {
        self.done.clear();
        self.done.resize(ops.ns.len(), 0);
    }

    /// Before every walk.
    pub(super) fn begin(&mut self, ops: &HostOps) {
        self.passed = 0;
        self.left.clone_from(&ops.awaits);
        self.ready.clear();
        self.ready.resize(ops.ns.len(), 0);
    }

    /// End of an op's last run.
    pub(super) fn done(&self, h: HostOpIx) -> u64 {
        self.done[h]
    }

    /// Something that an op waits for ends at a time. `host` is when the host is done with all before.
    pub(super) fn ends(&mut self, ops: &HostOps, h: HostOpIx, at: u64, host: &mut u64) {
        self.ready[h] = self.ready[h].max(at);
        self.left[h] -= 1;
        if self.left[h] == 0 {
            *host = self.ready[h].max(*host) + ops.ns[h];
            self.done[h] = *host;
        }
    }

    /// A step ends at a time.
    pub(super) fn step_ends(&mut self, ops: &HostOps, i: StepPos, at: u64, host: &mut u64) {
        while let Some(&(_, h)) = ops.steps.get(self.passed).filter(|x| x.0 == i) {
            self.passed += 1;
            self.ends(ops, h, at, host);
        }
    }
}
