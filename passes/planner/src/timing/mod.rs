//! Time of a genotype: a recurrence over its steps and copies that allocates nothing once it has seen
//! the sequence.
//!
//! The same four streams as the discrete-event model, with three simplifications that make it fast. A step,
//! and a copy to the device, waits for every release before it, whether or not it takes those bytes. A copy
//! slows no step, and of the copies in the other direction only the last of the same walk, which an op on the
//! host does not notice. Such an op takes no time where an operand of it went to the host before its last
//! copy there. Without the last two it is never optimistic.
//!
//! The step is walked until its time repeats, at most three times; one walk is enough when it leaves no copy
//! behind that the next step could notice.

mod host;
#[cfg(test)]
mod tests;
mod walk;

use memc_ir::Arena;

use crate::access_sequence::{AccessSequence, Gap};
use crate::genotype::Genotype;
use crate::ids::{GapIx, StepPos};
use crate::problem::Problem;
use host::{HostOps, HostQueue};
use walk::{Cell, Clock, EMPTY, Leave, LeaveIx, NO_LEAVE, NO_RETURN, NO_STEP, Return, ReturnIx, Walk};

/// Reason that a step did not begin earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cause {
    /// The step before it.
    #[default]
    Compute,
    /// The copy to the device for a gap.
    In(GapIx),
    /// The copy to the host for a gap, whose bytes it may take.
    Out(GapIx),
}

/// Workspace and result of evaluations of genotypes over one sequence.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// Time from one step to the next in ns.
    pub step_ns: u64,
    /// Start of every step in ns.
    pub start: Arena<StepPos, u64>,
    /// End of every step in ns.
    pub end: Arena<StepPos, u64>,
    /// Cause of every step's wait.
    pub cause: Arena<StepPos, Cause>,
    /// For every gap that is swapped: start and end of its copy to the host.
    pub out: Arena<GapIx, (u64, u64)>,
    /// Start and end of its copy to the device.
    pub back: Arena<GapIx, (u64, u64)>,
    /// Cause of the wait of every copy to the host.
    pub out_cause: Arena<GapIx, Cause>,
    /// Cause of the wait of every copy to the device.
    pub back_cause: Arena<GapIx, Cause>,
    /// One bit for every place in the order of copies: whether the gap has a copy.
    moved: Vec<u64>,
    cells: Arena<StepPos, Cell>,
    /// The copies of the genotype, the last issued first.
    leaves: Arena<LeaveIx, Leave>,
    returns: Arena<ReturnIx, Return>,
    host: HostQueue,
    /// Waits that the next step inherits at positions that this one has yet to pass: position, time, gap.
    late_room: Vec<(StepPos, u64, GapIx)>,
    late_need: Vec<(StepPos, u64, GapIx)>,
}

/// Durations of the copies of every gap.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    /// To the host, in ns.
    pub out: Arena<GapIx, u64>,
    /// To the device, in ns.
    pub back: Arena<GapIx, u64>,
    /// Gaps in the order in which copies of the same position are issued.
    pub order: Vec<GapIx>,
    /// For every gap, its place in the order.
    rank: Arena<GapIx, usize>,
    /// See [`Device::duplex_rate`](crate::Device::duplex_rate).
    duplex: u64,
    host: HostOps,
}

impl Copies {
    /// Of a sequence's gaps.
    pub fn new(p: &Problem, sequence: &AccessSequence) -> Copies {
        let gaps = &sequence.gaps;
        // A counting sort by the gaps' ends.
        let mut places = vec![0; 2 * sequence.steps.len() + 2];
        let end = |gap: &Gap| gap.to.max(0) as usize;
        gaps.values().for_each(|gap| places[end(gap) + 1] += 1);
        for i in 1..places.len() {
            places[i] += places[i - 1];
        }
        let mut order = vec![GapIx(0); gaps.len()];
        let mut rank = Arena::filled(0, gaps.len());
        for (g, gap) in gaps.iter() {
            let place = &mut places[end(gap)];
            (order[*place], rank[g]) = (g, *place);
            *place += 1;
        }
        Copies {
            out: gaps.values().map(|g| p.device.d2h_ns(p.tensors[g.tensor].size)).collect(),
            back: gaps.values().map(|g| p.device.h2d_ns(p.tensors[g.tensor].size)).collect(),
            order,
            rank,
            duplex: p.device.duplex_rate(),
            host: HostOps::new(p, sequence),
        }
    }
}

impl Timing {
    /// Evaluates a genotype; `outs` says when each gap's copy to the host is issued.
    pub fn evaluate(&mut self, s: &Genotype, copies: &Copies, outs: &Arena<GapIx, i32>) -> u64 {
        self.reset(s.sequence.steps.len(), s.swaps.len());
        self.queue(s, copies, outs);
        self.host.reset(&copies.host);
        let mut clock = Clock { last_out: self.last_out(), ..Clock::default() };
        // Two steps to forget the start; a third where the second still differs from the first.
        for walk in 0..3 {
            let before = clock.compute;
            match copies.host.is_empty() {
                true => self.walk::<false>(s, copies, &mut clock),
                false => self.walk::<true>(s, copies, &mut clock),
            }
            let step = clock.compute - before;
            let same = walk > 0 && step == self.step_ns;
            self.step_ns = step;
            if same || clock.idle() {
                break;
            }
        }
        self.step_ns
    }

    /// Time in ns that the compute stream is idle before a step.
    pub fn stall(&self, step: StepPos) -> u64 {
        self.start[step].saturating_sub(step.previous().map_or(0, |before| self.end[before]))
    }

    fn reset(&mut self, n: usize, gaps: usize) {
        self.cells.clear();
        self.cells.resize(n + 1, EMPTY);
        self.late_room.clear();
        self.late_need.clear();
        if (self.start.len(), self.out.len()) == (n, gaps) {
            // Steps are overwritten; of the gaps, only those of the last genotype have anything.
            for leave in self.leaves.values() {
                self.out[leave.gap] = (0, 0);
                self.out_cause[leave.gap] = Cause::Compute;
            }
            for back in self.returns.values() {
                self.back[back.gap] = (0, 0);
                self.back_cause[back.gap] = Cause::Compute;
            }
        } else {
            self.start = Arena::filled(0, n);
            self.end = Arena::filled(0, n);
            self.cause = Arena::filled(Cause::Compute, n);
            self.out = Arena::filled((0, 0), gaps);
            self.back = Arena::filled((0, 0), gaps);
            self.out_cause = Arena::filled(Cause::Compute, gaps);
            self.back_cause = Arena::filled(Cause::Compute, gaps);
            self.leaves.reserve(gaps);
            self.returns.reserve(gaps);
            self.late_room.reserve(gaps);
            self.late_need.reserve(gaps);
        }
        self.leaves.clear();
        self.returns.clear();
    }

    /// Links the copies of every position, the most urgent first.
    fn queue(&mut self, s: &Genotype, copies: &Copies, outs: &Arena<GapIx, i32>) {
        self.moved.clear();
        self.moved.resize(outs.len().div_ceil(64), 0);
        for ((&out, swap), &rank) in outs.values().zip(s.swaps.values()).zip(copies.rank.values()) {
            if out >= 0 || swap.is_some() {
                self.moved[rank / 64] |= 1 << (rank % 64);
            }
        }
        for word in (0..self.moved.len()).rev() {
            let mut bits = self.moved[word];
            while bits != 0 {
                let bit = bits.ilog2();
                bits ^= 1 << bit;
                let gap = copies.order[64 * word + bit as usize];
                self.link(s, copies, gap, outs[gap]);
            }
        }
    }

    /// Puts a gap's copies before all others at their positions.
    fn link(&mut self, s: &Genotype, copies: &Copies, gap: GapIx, out: i32) {
        let n = s.sequence.steps.len() as i32;
        let swap = s.swaps[gap];
        let mut after = NO_LEAVE;
        if out >= 0 {
            after = self.leaves.next_id();
            let (cell, ahead) = match swap {
                None => (NO_STEP, false),
                Some(w) if w.drop > n => (StepPos::at(w.drop - n), true),
                Some(w) => (StepPos::at(w.drop), false),
            };
            let next = std::mem::replace(&mut self.cells[StepPos::at(out.min(n))].leave, after);
            self.leaves.push(Leave { ns: copies.out[gap], done: 0, gap, next, cell, ahead });
        }
        let Some(swap) = swap else { return };
        let Gap { to, dead, .. } = s.sequence.gaps[gap];
        if !dead {
            let back = s.sequence.step_at(swap.back);
            let next = std::mem::replace(&mut self.cells[back].back, self.returns.next_id());
            let cell = s.sequence.step_at(to);
            // The copy in host memory must be there, unless it is the one that the previous step made.
            let after = if swap.back < n || to < n { after } else { NO_LEAVE };
            let ahead = to >= n && swap.back < n;
            self.returns.push(Return { ns: copies.back[gap], gap, next, cell, after, ahead });
        }
    }

    /// The gap of the last copy to the host in a step.
    fn last_out(&self) -> GapIx {
        let Some(mut k) = self.cells.values().map(|c| c.leave).rfind(|&k| k != NO_LEAVE) else {
            return GapIx(0);
        };
        while self.leaves[k].next != NO_LEAVE {
            k = self.leaves[k].next;
        }
        self.leaves[k].gap
    }

    fn walk<const HOST: bool>(&mut self, s: &Genotype, copies: &Copies, clock: &mut Clock) {
        for (position, time, gap) in self.late_room.drain(..) {
            self.cells[position].make_room(time, gap);
        }
        for (position, time, gap) in self.late_need.drain(..) {
            self.cells[position].wait_for_copy(time, gap);
        }
        let mut walk = Walk {
            c: Clock { base: clock.compute, ..*clock },
            cells: &mut self.cells,
            leaves: &mut self.leaves,
            returns: &self.returns,
            out: &mut self.out,
            back: &mut self.back,
            out_cause: &mut self.out_cause,
            back_cause: &mut self.back_cause,
            late_room: &mut self.late_room,
            late_need: &mut self.late_need,
            duplex: copies.duplex,
            host_ops: &copies.host,
            host: &mut self.host,
            last_leave: (NO_LEAVE, NO_STEP),
            last_return: (NO_RETURN, NO_STEP),
        };
        walk.host.begin(&copies.host);
        let results = self.start.values_mut().zip(self.end.values_mut()).zip(self.cause.values_mut());
        let steps = s.sequence.ns.iter().zip(s.sequence.output_ns.values());
        for (((start, end), cause), ((i, &ns), &output)) in results.zip(steps) {
            walk.leave::<HOST>(i);
            (*start, *end, *cause) = walk.step::<HOST>(i, ns, output);
        }
        // Releases at the end hold up the next step, which takes the bytes.
        walk.leave::<HOST>(s.sequence.steps.next_id());
        *clock = walk.c;
    }
}
