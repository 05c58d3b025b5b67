//! How long a scheme takes: a recurrence over its steps and copies that allocates nothing.
//!
//! The same three streams as the discrete-event model, with two simplifications that make it fast and never optimistic on
//! a full-duplex link: a step, and a copy to the device, waits for every release before it, whether or not it takes those
//! bytes; and copies in opposite directions do not slow each other.

use crate::problem::Problem;
use crate::scheme::Scheme;
use crate::sequence::Gap;

/// Why a step began as late as it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cause {
    /// The step before it.
    #[default]
    Compute,
    /// The copy to the device for a gap.
    In(u32),
    /// The copy to the host for a gap, whose bytes it may take.
    Out(u32),
}

/// Workspace and result of evaluations of schemes over one sequence.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// Time from one step to the next in ns.
    pub step_ns: u64,
    /// Start of every step in ns.
    pub start: Vec<u64>,
    /// End of every step in ns.
    pub end: Vec<u64>,
    /// What every step waited for.
    pub cause: Vec<Cause>,
    /// For every gap that is swapped: start and end of its copy to the host.
    pub out: Vec<(u64, u64)>,
    /// Start and end of its copy to the device.
    pub back: Vec<(u64, u64)>,
    /// What every copy waited for.
    pub out_cause: Vec<Cause>,
    /// What every copy to the device waited for.
    pub back_cause: Vec<Cause>,
    out_head: Vec<u32>,
    back_head: Vec<u32>,
    next_out: Vec<u32>,
    next_back: Vec<u32>,
    /// Latest end of a copy that a step has to wait for: (time, gap), in this step and the next.
    need: [Vec<(u64, u32)>; 2],
    room: [Vec<(u64, u32)>; 2],
}

const NONE: u32 = u32::MAX;

/// Durations of the copies of every gap.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    /// To the host, in ns.
    pub out: Vec<u64>,
    /// To the device, in ns.
    pub back: Vec<u64>,
    /// Gaps in the order in which copies of the same position are issued.
    pub order: Vec<u32>,
}

impl Copies {
    /// Of a sequence's gaps.
    pub fn new(p: &Problem, gaps: &[Gap]) -> Copies {
        let mut order: Vec<u32> = (0..gaps.len() as u32).collect();
        order.sort_by_key(|&g| (gaps[g as usize].to, g));
        Copies {
            out: gaps.iter().map(|g| p.device.d2h_ns(p.tensors[g.tensor as usize].size)).collect(),
            back: gaps.iter().map(|g| p.device.h2d_ns(p.tensors[g.tensor as usize].size)).collect(),
            order,
        }
    }
}

impl Timing {
    /// Evaluates a scheme; `outs` says when each gap's copy to the host is issued.
    pub fn evaluate(&mut self, s: &Scheme, copies: &Copies, outs: &[i32]) -> u64 {
        let n = s.sequence.steps.len();
        self.reset(n, s.swaps.len());
        self.queue(s, copies, outs);
        let mut base = 0;
        let mut clock = Clock::default();
        // Two steps to forget the start; a third where the second still differs from the first.
        for walk in 0..3 {
            let before = clock.compute;
            self.walk(s, copies, &mut clock);
            let step = clock.compute - before;
            base = before;
            if walk > 0 && (step == self.step_ns || walk == 2) {
                self.step_ns = step;
                break;
            }
            self.step_ns = step;
        }
        for t in self.start.iter_mut().chain(&mut self.end) {
            *t = t.saturating_sub(base);
        }
        for span in self.out.iter_mut().chain(&mut self.back) {
            *span = (span.0.saturating_sub(base), span.1.saturating_sub(base));
        }
        self.step_ns
    }

    fn reset(&mut self, n: usize, gaps: usize) {
        let zero = |v: &mut Vec<u64>| {
            v.clear();
            v.resize(n, 0);
        };
        zero(&mut self.start);
        zero(&mut self.end);
        self.cause.clear();
        self.cause.resize(n, Cause::Compute);
        for v in [&mut self.out_cause, &mut self.back_cause] {
            v.clear();
            v.resize(gaps, Cause::Compute);
        }
        for v in [&mut self.out, &mut self.back] {
            v.clear();
            v.resize(gaps, (0, 0));
        }
        for v in [&mut self.out_head, &mut self.back_head] {
            v.clear();
            v.resize(n + 1, NONE);
        }
        for v in [&mut self.next_out, &mut self.next_back] {
            v.clear();
            v.resize(gaps, NONE);
        }
        for v in self.need.iter_mut().chain(&mut self.room) {
            v.clear();
            v.resize(n + 1, (0, NONE));
        }
    }

    /// Links the copies of every position, the most urgent first.
    fn queue(&mut self, s: &Scheme, copies: &Copies, outs: &[i32]) {
        let n = s.sequence.steps.len() as i32;
        for &g in copies.order.iter().rev() {
            if outs[g as usize] >= 0 {
                let at = outs[g as usize].min(n) as usize;
                self.next_out[g as usize] = self.out_head[at];
                self.out_head[at] = g;
            }
            let (gap, Some(swap)) = (&s.sequence.gaps[g as usize], s.swaps[g as usize]) else { continue };
            if !gap.dead {
                let back = if swap.back >= n { swap.back - n } else { swap.back.max(0) } as usize;
                self.next_back[g as usize] = self.back_head[back];
                self.back_head[back] = g;
            }
        }
    }

    fn walk(&mut self, s: &Scheme, copies: &Copies, c: &mut Clock) {
        let n = s.sequence.steps.len();
        // What the previous step's copies mean for this one.
        self.need.swap(0, 1);
        self.room.swap(0, 1);
        for v in [&mut self.need[1], &mut self.room[1]] {
            v.fill((0, NONE));
        }
        for i in 0..=n {
            self.outs(s, copies, c, i);
            let room = self.room[0][i];
            if room.0 > c.room.0 {
                c.room = room;
            }
            if i == n {
                // Releases at the end hold up the next step, which takes the bytes.
                break;
            }
            self.backs(s, copies, c, i);
            let (mut start, mut cause) = (c.compute, Cause::Compute);
            if c.room.0 > start {
                (start, cause) = (c.room.0, Cause::Out(c.room.1));
            }
            let need = self.need[0][i];
            if need.0 > start {
                (start, cause) = (need.0, Cause::In(need.1));
            }
            c.compute = start + s.sequence.ns[i];
            (self.start[i], self.end[i], self.cause[i]) = (start, c.compute, cause);
            if s.sequence.output_ns[i] > 0 {
                c.d2h = c.d2h.max(c.compute) + s.sequence.output_ns[i];
            }
        }
    }

    fn outs(&mut self, s: &Scheme, copies: &Copies, c: &mut Clock, i: usize) {
        let n = s.sequence.steps.len() as i32;
        let mut g = self.out_head[i];
        while g != NONE {
            let k = g as usize;
            let start = c.compute.max(c.d2h);
            self.out_cause[k] = if c.d2h > c.compute { Cause::Out(c.last_out) } else { Cause::Compute };
            c.d2h = start + copies.out[k];
            c.last_out = g;
            self.out[k] = (start, c.d2h);
            let next = self.next_out[k];
            let Some(swap) = s.swaps[k] else {
                g = next;
                continue;
            };
            let drop = swap.drop;
            let cell = if drop > n {
                &mut self.room[1][(drop - n) as usize]
            } else {
                &mut self.room[0][drop as usize]
            };
            *cell = (*cell).max((c.d2h, g));
            g = next;
        }
    }

    fn backs(&mut self, s: &Scheme, copies: &Copies, c: &mut Clock, i: usize) {
        let n = s.sequence.steps.len() as i32;
        let mut g = self.back_head[i];
        while g != NONE {
            let k = g as usize;
            let (mut start, mut cause) = (c.compute, Cause::Compute);
            if c.room.0 > start {
                (start, cause) = (c.room.0, Cause::Out(c.room.1));
            }
            // The copy in host memory must be there.
            if self.out[k].1 > start && s.swaps[k].is_some_and(|w| w.back < n || s.sequence.gaps[k].to < n) {
                (start, cause) = (self.out[k].1, Cause::Out(g));
            }
            if c.h2d > start {
                (start, cause) = (c.h2d, Cause::In(c.last_in));
            }
            c.h2d = start + copies.back[k];
            c.last_in = g;
            (self.back[k], self.back_cause[k]) = ((start, c.h2d), cause);
            let (to, back) = (s.sequence.gaps[k].to, s.swaps[k].map_or(0, |w| w.back));
            // Issued for this step unless it runs ahead of the end.
            let cell = if to >= n && back < n {
                &mut self.need[1][(to - n) as usize]
            } else {
                &mut self.need[0][if to >= n { to - n } else { to } as usize]
            };
            *cell = (*cell).max((c.h2d, g));
            g = self.next_back[k];
        }
    }
}

/// Where the three streams are.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    compute: u64,
    d2h: u64,
    h2d: u64,
    room: (u64, u32),
    last_out: u32,
    last_in: u32,
}
