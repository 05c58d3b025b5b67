//! One walk over a step's commands, and what walks leave for each other.

use memc_ir::{Arena, ids};

use super::Cause;
use super::host::{HostOps, HostQueue};
use crate::ids::{GapIx, StepPos};
use crate::problem::SLOWDOWN_UNIT;

ids! {
    /// A copy to the host.
    pub(super) LeaveIx,
    /// A copy to the device.
    pub(super) ReturnIx,
}

/// No gap.
pub(super) const NO_GAP: GapIx = GapIx(u32::MAX);
/// No step.
pub(super) const NO_STEP: StepPos = StepPos(u32::MAX);
/// No copy to the host.
pub(super) const NO_LEAVE: LeaveIx = LeaveIx(u32::MAX);
/// No copy to the device.
pub(super) const NO_RETURN: ReturnIx = ReturnIx(u32::MAX);

/// Data of a step: the copies issued before it, and the latest ends of copies that it waits
/// for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// End of the last copy to the host whose bytes are given up here.
    pub(super) room: u64,
    /// End of the last copy to the device that the step needs.
    pub(super) need: u64,
    pub(super) room_gap: GapIx,
    pub(super) need_gap: GapIx,
    /// First copies in `leaves` and `returns`.
    pub(super) leave: LeaveIx,
    pub(super) back: ReturnIx,
}

/// Nothing issued, nothing to wait for.
pub(super) const EMPTY: Cell =
    Cell { room: 0, need: 0, room_gap: NO_GAP, need_gap: NO_GAP, leave: NO_LEAVE, back: NO_RETURN };

impl Cell {
    pub(super) fn make_room(&mut self, time: u64, gap: GapIx) {
        if (time, gap) > (self.room, self.room_gap) {
            (self.room, self.room_gap) = (time, gap);
        }
    }

    pub(super) fn wait_for_copy(&mut self, time: u64, gap: GapIx) {
        if (time, gap) > (self.need, self.need_gap) {
            (self.need, self.need_gap) = (time, gap);
        }
    }
}

/// A copy to the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leave {
    pub(super) ns: u64,
    /// Its end in the last walk; 0 before it is made.
    pub(super) done: u64,
    pub(super) gap: GapIx,
    /// The next copy at the same position.
    pub(super) next: LeaveIx,
    /// The step that may take the bytes, if one may.
    pub(super) cell: StepPos,
    /// Whether that is one of the next step.
    pub(super) ahead: bool,
}

/// A copy to the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Return {
    pub(super) ns: u64,
    pub(super) gap: GapIx,
    /// The next copy at the same position.
    pub(super) next: ReturnIx,
    /// The step that needs it.
    pub(super) cell: StepPos,
    /// The copy to the host that must be done.
    pub(super) after: LeaveIx,
    /// Whether the step is one of the next step.
    pub(super) ahead: bool,
}

/// One walk over the step.
pub(super) struct Walk<'a> {
    pub(super) c: Clock,
    pub(super) cells: &'a mut Arena<StepPos, Cell>,
    pub(super) leaves: &'a mut Arena<LeaveIx, Leave>,
    pub(super) returns: &'a Arena<ReturnIx, Return>,
    pub(super) out: &'a mut Arena<GapIx, (u64, u64)>,
    pub(super) back: &'a mut Arena<GapIx, (u64, u64)>,
    pub(super) out_cause: &'a mut Arena<GapIx, Cause>,
    pub(super) back_cause: &'a mut Arena<GapIx, Cause>,
    pub(super) late_room: &'a mut Vec<(StepPos, u64, GapIx)>,
    pub(super) late_need: &'a mut Vec<(StepPos, u64, GapIx)>,
    /// See [`super::Copies`].
    pub(super) duplex: u64,
    pub(super) host_ops: &'a HostOps,
    pub(super) host: &'a mut HostQueue,
    /// The last copies of this walk, which may turn out to end later, and the positions that they were
    /// issued at.
    pub(super) last_leave: (LeaveIx, StepPos),
    pub(super) last_return: (ReturnIx, StepPos),
}

/// Speed of copies that run in one direction alone.
const UNIT: u64 = SLOWDOWN_UNIT as u64;

/// End of a copy of `ns` from `start` on beside copies in the other direction, which end later by what they
/// lose.
pub(super) fn beside(start: u64, ns: u64, other_end: &mut u64, rate: u64) -> u64 {
    let both = other_end.saturating_sub(start).min(ns.saturating_mul(UNIT) / rate.max(1));
    let lost = both - both.saturating_mul(rate) / UNIT;
    *other_end += lost;
    start + ns + lost
}

impl Walk<'_> {
    /// Runs a step: its start and end from the beginning of all steps, and what it waited for.
    ///
    /// `HOST`: whether ops run on the host.
    pub(super) fn step<const HOST: bool>(
        &mut self,
        i: StepPos,
        ns: u64,
        output_ns: u64,
    ) -> (u64, u64, Cause) {
        if self.cells[i].back != NO_RETURN {
            self.bring_back::<HOST>(i);
        }
        let (cell, c) = (&mut self.cells[i], &mut self.c);
        let (mut start, mut cause) = (c.compute, Cause::Compute);
        if c.room > start {
            (start, cause) = (c.room, Cause::Out(c.room_gap));
        }
        if cell.need > start {
            (start, cause) = (cell.need, Cause::In(cell.need_gap));
        }
        (cell.need, cell.need_gap) = (0, NO_GAP);
        c.compute = start + ns;
        if output_ns > 0 {
            c.d2h = c.d2h.max(c.compute) + output_ns;
            self.last_leave.0 = NO_LEAVE;
        }
        if HOST {
            let done = if output_ns > 0 { c.d2h } else { c.compute };
            self.host.step_ends(self.host_ops, i, done, &mut c.host);
        }
        (start - c.base, c.compute - c.base, cause)
    }

    /// Issues the copies to the host of a position, and gives up what is to be given up there.
    pub(super) fn leave<const HOST: bool>(&mut self, i: StepPos) {
        let mut k = self.cells[i].leave;
        while let Some(leave) = self.leaves.get_mut(k) {
            let (c, gap) = (&mut self.c, leave.gap);
            let start = c.compute.max(c.d2h);
            self.out_cause[gap] = if c.d2h > c.compute { Cause::Out(c.last_out) } else { Cause::Compute };
            let back = c.h2d;
            c.d2h = beside(start, leave.ns, &mut c.h2d, self.duplex);
            let slowed = c.h2d > back;
            (c.last_out, self.last_leave) = (gap, (k, i));
            leave.done = c.d2h;
            self.out[gap] = (start - c.base, c.d2h - c.base);
            if HOST {
                for h in self.host_ops.awaiting(gap) {
                    self.host.ends(self.host_ops, h, c.d2h, &mut c.host);
                }
            }
            k = leave.next;
            self.give_up();
            if slowed {
                self.slow_return();
            }
        }
        let c = &mut self.c;
        let cell = &mut self.cells[i];
        if cell.room > c.room {
            (c.room, c.room_gap) = (cell.room, cell.room_gap);
        }
        (cell.room, cell.room_gap) = (0, NO_GAP);
    }

    /// Issues the copies to the device of a position.
    fn bring_back<const HOST: bool>(&mut self, i: StepPos) {
        let mut k = self.cells[i].back;
        while let Some(&Return { ns, gap, next, after, .. }) = self.returns.get(k) {
            let c = &mut self.c;
            let (mut start, mut cause) = (c.compute, Cause::Compute);
            if c.room > start {
                (start, cause) = (c.room, Cause::Out(c.room_gap));
            }
            let done = self.leaves.get(after).map_or(0, |l| l.done);
            if done > start {
                (start, cause) = (done, Cause::Out(gap));
            }
            if c.h2d > start {
                (start, cause) = (c.h2d, Cause::In(c.last_in));
            }
            if HOST {
                // The host wrote it in the step before.
                start = self.host_ops.writer(gap).map_or(start, |h| start.max(self.host.done(h)));
            }
            let out = c.d2h;
            c.h2d = beside(start, ns, &mut c.d2h, self.duplex);
            let slowed = c.d2h > out;
            (c.last_in, self.last_return) = (gap, (k, i));
            self.back[gap] = (start - c.base, c.h2d - c.base);
            self.back_cause[gap] = cause;
            k = next;
            self.arrive();
            if slowed {
                self.slow_leave();
            }
        }
    }

    /// The last copy to the host ends later, beside one to the device.
    fn slow_leave(&mut self) {
        let Some(leave) = self.leaves.get_mut(self.last_leave.0) else { return };
        leave.done = self.c.d2h;
        self.out[leave.gap].1 = self.c.d2h - self.c.base;
        self.give_up();
    }

    /// The last copy to the device ends later, beside one to the host.
    fn slow_return(&mut self) {
        let Some(back) = self.returns.get(self.last_return.0) else { return };
        self.back[back.gap].1 = self.c.h2d - self.c.base;
        self.arrive();
    }

    /// Whoever takes the bytes of the last copy to the host waits for its end. A step that has run does so
    /// already, and nothing slows that copy any more.
    fn give_up(&mut self) {
        let (k, issued) = self.last_leave;
        let Some(&Leave { gap, cell, ahead, done, .. }) = self.leaves.get(k) else { return };
        // The position of the next step is behind, unless the copy is made early.
        if ahead && cell >= issued {
            put_last(self.late_room, (cell, done, gap));
        } else if cell != NO_STEP {
            self.cells[cell].make_room(done, gap);
        }
    }

    /// The step that needs the last copy to the device waits for its end, as in [`Walk::give_up`].
    fn arrive(&mut self) {
        let (k, issued) = self.last_return;
        let Some(&Return { gap, cell, ahead, .. }) = self.returns.get(k) else { return };
        if ahead && cell >= issued {
            put_last(self.late_need, (cell, self.c.h2d, gap));
        } else {
            self.cells[cell].wait_for_copy(self.c.h2d, gap);
        }
    }
}

/// Appends a wait, or replaces the last one if it is for the same gap.
fn put_last(list: &mut Vec<(StepPos, u64, GapIx)>, wait: (StepPos, u64, GapIx)) {
    match list.last_mut() {
        Some(last) if last.2 == wait.2 => *last = wait,
        _ => list.push(wait),
    }
}

/// Where the three streams are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// Begin of the step.
    pub(super) base: u64,
    pub(super) compute: u64,
    pub(super) d2h: u64,
    pub(super) h2d: u64,
    pub(super) host: u64,
    pub(super) room: u64,
    pub(super) room_gap: GapIx,
    pub(super) last_out: GapIx,
    pub(super) last_in: GapIx,
}

impl Clock {
    /// Whether the next step cannot notice this one's copies: it will be the same.
    pub(super) fn idle(&self) -> bool {
        self.d2h.max(self.h2d).max(self.host).max(self.room) <= self.compute
    }
}
