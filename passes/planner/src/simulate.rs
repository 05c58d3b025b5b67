//! The discrete-event model of a step: its streams, each in order, waits between them, copies that slow
//! each other, and kernels, too, with which they share the device's memory.
//!
//! Deterministic in integers. A copy's work is undisturbed time in ns times [`UNIT`], and a nanosecond does
//! [`Device::duplex_rate`] of that while copies run in both directions. A kernel's work is its time beside
//! both in ns times [`UNIT`], and a nanosecond does as much more as less of it is slowed ([`Job::slowdown`]).
//! The host issues a step once the previous step's outputs have arrived and nothing reads its inputs in host
//! memory any more, as a lowered plan does.

use memc_ir::Arena;

use crate::ids::CommandIx;
use crate::place::Stream;
use crate::problem::{Device, SLOWDOWN_UNIT};
use crate::waits::Wait;

/// Work per undisturbed ns.
const UNIT: u64 = SLOWDOWN_UNIT as u64;

/// Number of streams.
const STREAMS: usize = Stream::ALL.len();

/// Steps simulated before the one that counts.
const WARM_UP: u32 = 2;

/// A command with nothing but what time depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// Its queue.
    pub stream: Stream,
    /// Its time in ns, undisturbed.
    pub ns: u64,
    /// By how much a kernel takes longer beside copies, as [`Op::slowdown`](crate::Op::slowdown); of a copy
    /// it means nothing.
    pub slowdown: u32,
    /// Whether the host waits for it before it issues the next step.
    pub gate: bool,
}

/// Time of a command in the step that counts, and the last command that it waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Start in ns since the previous step's end.
    pub start: u64,
    /// End in ns.
    pub end: u64,
    /// Time in ns that its stream was idle before it.
    pub stall: u64,
    /// The command that it waited for last, when it waited.
    pub cause: Option<CommandIx>,
}

/// The timeline of a steady-state step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Timeline {
    /// Time from one step to the next in ns.
    pub step_ns: u64,
    /// Times of all commands.
    pub spans: Arena<CommandIx, Span>,
}

/// Commands as [`simulate`] sees them.
pub type Jobs = Arena<CommandIx, Job>;

/// For every command, the events that it waits for.
pub type Waits = Arena<CommandIx, Vec<Wait>>;

/// A command that no other lets begin: the waits contradict the issue order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadlock(pub CommandIx);

/// Simulates a step that repeats; `waits` has a list for every job.
pub fn simulate(device: &Device, jobs: &Jobs, waits: &Waits) -> Result<Timeline, Deadlock> {
    // A copy may run ahead of its step; what counts is where it lies relative to its own.
    steady(device, jobs, waits, |_, before| before.into_iter().max().unwrap_or(0))
}

/// [`simulate`], with times counted from the one at which the host issues the step: no command is earlier.
pub fn simulate_issued(device: &Device, jobs: &Jobs, waits: &Waits) -> Result<Timeline, Deadlock> {
    let first = |sim: &Sim| sim.spans.values().map(|span| span.start).min().unwrap_or(0);
    steady(device, jobs, waits, |sim, _| if sim.gates == 0 { first(sim) } else { sim.issued })
}

/// Simulates, and counts times from the one that `base` says.
fn steady(
    device: &Device,
    jobs: &Jobs,
    waits: &Waits,
    base: impl Fn(&Sim, [u64; STREAMS]) -> u64,
) -> Result<Timeline, Deadlock> {
    let mut sim = Sim::new(device, jobs, waits);
    let mut ends = [[0u64; STREAMS]; WARM_UP as usize + 1];
    sim.run(&mut ends)?;
    let (last, before) = (ends[WARM_UP as usize], ends[WARM_UP as usize - 1]);
    // A stream may still be catching up with the others; the slowest one sets the pace.
    let step_ns = last.iter().zip(before).map(|(l, b)| l.saturating_sub(b)).max().unwrap_or(0);
    let base = base(&sim, before);
    for span in sim.spans.values_mut() {
        span.start = span.start.saturating_sub(base);
        span.end = span.end.saturating_sub(base);
    }
    Ok(Timeline { step_ns, spans: sim.spans })
}

/// Time at which each stream was done with each step, in ns.
type Ends = [[u64; STREAMS]; WARM_UP as usize + 1];

/// One stream's queue.
#[derive(Clone, Default)]
struct Queue {
    jobs: Vec<CommandIx>,
    /// Step and place in `jobs` of the next job.
    step: u32,
    next: usize,
    /// Awaits of the next job that are known to be met.
    met: usize,
    running: bool,
    /// The work left.
    left: u64,
    /// Of the kernel that runs.
    slowdown: u64,
    /// Time at which the stream became idle.
    idle_since: u64,
    cause: Option<CommandIx>,
}

/// Time in ns for some work. Mostly nothing is slowed, which takes no division.
fn time(work: u64, rate: u64) -> u64 {
    if rate == UNIT { work.div_ceil(UNIT) } else { work.div_ceil(rate) }
}

struct Sim<'a> {
    jobs: &'a Jobs,
    waits: &'a Waits,
    queues: [Queue; STREAMS],
    /// Completions of every job.
    done: Arena<CommandIx, u32>,
    gates: u32,
    gates_done: u32,
    /// Time at which the step that counts was issued.
    issued: u64,
    slow: u64,
    spans: Arena<CommandIx, Span>,
    now: u64,
}

impl<'a> Sim<'a> {
    fn new(device: &Device, jobs: &'a Jobs, waits: &'a Waits) -> Self {
        let mut queues: [Queue; STREAMS] = Default::default();
        for (i, job) in jobs.iter() {
            queues[job.stream as usize].jobs.push(i);
        }
        Sim {
            jobs,
            waits,
            queues,
            done: Arena::filled(0, jobs.len()),
            gates: jobs.values().filter(|j| j.gate).count() as u32,
            gates_done: 0,
            issued: 0,
            slow: device.duplex_rate(),
            spans: Arena::filled(Span::default(), jobs.len()),
            now: 0,
        }
    }

    fn run(&mut self, ends: &mut Ends) -> Result<(), Deadlock> {
        loop {
            for s in 0..STREAMS {
                self.start(s);
            }
            let runs = |stream: Stream| self.queues[stream as usize].running;
            let (up, down) = (runs(Stream::HostToDevice), runs(Stream::DeviceToHost));
            let copy = if up && down { self.slow } else { UNIT };
            let excess = self.queues[0].slowdown;
            let slowest = UNIT + excess;
            let kernel = match (up, down) {
                (false, false) => slowest,
                (true, false) => UNIT * slowest / (UNIT + excess * 2 / 3),
                (false, true) => UNIT * slowest / (UNIT + excess / 3),
                (true, true) => UNIT,
            };
            let rates = [kernel, copy, copy, UNIT];
            let running = self.queues.iter().zip(rates).filter(|(q, _)| q.running);
            let next = running.map(|(q, rate)| self.now + time(q.left, rate)).min().unwrap_or(u64::MAX);
            if next == u64::MAX {
                let waiting = self.queues.iter().find(|q| q.step <= WARM_UP && q.next < q.jobs.len());
                return match waiting.and_then(|q| q.jobs.get(q.next)) {
                    Some(&job) => Err(Deadlock(job)),
                    None => Ok(()),
                };
            }
            let passed = next - self.now;
            self.now = next;
            for (s, rate) in rates.into_iter().enumerate() {
                let q = &mut self.queues[s];
                if !q.running {
                    continue;
                }
                q.left = q.left.saturating_sub(passed * rate);
                if q.left == 0 {
                    self.finish(s, ends);
                }
            }
        }
    }

    fn start(&mut self, s: usize) {
        let q = &mut self.queues[s];
        if q.running || q.step > WARM_UP || q.next >= q.jobs.len() || self.gates_done < self.gates * q.step {
            return;
        }
        let job = q.jobs[q.next];
        let list = &self.waits[job];
        while let Some(a) = list.get(q.met) {
            if self.done[a.command] + u32::from(a.previous) <= q.step {
                q.cause = Some(a.command);
                return;
            }
            q.met += 1;
        }
        let Job { ns, slowdown, .. } = self.jobs[job];
        q.running = true;
        q.slowdown = if s == 0 { u64::from(slowdown) } else { 0 };
        q.left = ns * (UNIT + q.slowdown);
        if q.step == WARM_UP {
            let stall = self.now - q.idle_since;
            let cause = q.cause.filter(|_| stall > 0);
            self.spans[job] = Span { start: self.now, end: 0, stall, cause };
        }
    }

    fn finish(&mut self, s: usize, ends: &mut Ends) {
        let q = &mut self.queues[s];
        let job = q.jobs[q.next];
        q.running = false;
        q.idle_since = self.now;
        q.met = 0;
        q.cause = None;
        self.done[job] += 1;
        if self.jobs[job].gate {
            self.gates_done += 1;
            if self.gates_done == self.gates * WARM_UP {
                self.issued = self.now;
            }
        }
        ends[q.step as usize][s] = self.now;
        if q.step == WARM_UP {
            self.spans[job].end = self.now;
        }
        q.next += 1;
        if q.next == q.jobs.len() {
            q.next = 0;
            q.step += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: Job = Job { stream: Stream::Compute, ns: 1000, slowdown: UNIT as u32 / 2, gate: false };
    const UP: Job = Job { stream: Stream::HostToDevice, ns: 400, slowdown: 0, gate: false };
    const DOWN: Job = Job { stream: Stream::DeviceToHost, ..UP };

    /// End of each job, with nothing to wait for.
    fn ends(jobs: &[Job]) -> Vec<u64> {
        let device = Device { h2d_bytes_per_s: 1, d2h_bytes_per_s: 1, ..Device::default() };
        let timeline =
            simulate(&device, &jobs.to_vec().into(), &Arena::filled(Vec::new(), jobs.len())).unwrap();
        timeline.spans.values().map(|span| span.end - span.start).collect()
    }

    /// Half as much again beside both copies; a third of that is the copy's to the host.
    #[test]
    fn a_kernel_is_slowed_while_copies_run() {
        let at_once = |copies: &[Job]| ends(&[&[Job { gate: true, ..KERNEL }], copies].concat())[0];
        assert_eq!(at_once(&[]), 1000);
        assert_eq!(at_once(&[UP]), 1100);
        assert_eq!(at_once(&[DOWN]), 1058);
        assert_eq!(at_once(&[UP, DOWN]), 1134);
        assert_eq!(at_once(&[UP, Job { ns: 800, ..DOWN }]), 1191);
        let much = Job { slowdown: 299 * UNIT as u32, ..KERNEL };
        let long = |copy: Job| Job { ns: 1_000_000, gate: true, ..copy };
        assert_eq!(ends(&[much, long(UP), long(DOWN)])[0], 300_000);
        assert_eq!(ends(&[much, long(UP)])[0], 200_392);
    }
}
