//! Planners: what they are asked, what they answer, and [`solve`], which judges all of them alike.
//!
//! [`solve`] evaluates every answer with the one evaluator after the same layout. Where what a planner chose
//! does not fit once it is laid out, it asks again with less room.

use std::fmt;

use memc_alloc::Options;
use memc_ir::Bytes;

use crate::decisions::Decisions;
use crate::evaluate::{Schedule, evaluate_with};
use crate::problem::{Device, Problem};

/// Permissions of a plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Allow {
    /// Copy tensors to the host and back.
    pub swap: bool,
    /// Recompute.
    pub recompute: bool,
    /// Leave the problem's order.
    pub reorder: bool,
    /// Begin a step with a state both on the device and in host memory.
    pub copies: bool,
}

impl Allow {
    /// Every permission.
    pub const ALL: Allow = Allow { swap: true, recompute: true, reorder: true, copies: true };

    /// These permissions on a device: no swapping without a link to the host.
    pub fn on(self, device: &Device) -> Allow {
        Allow { swap: self.swap && device.can_swap(), ..self }
    }
}

/// A question to a planner.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Bytes of the device arena.
    pub capacity: u64,
    /// Permissions of the plan.
    pub allow: Allow,
    /// Seed of everything random.
    pub seed: u64,
    /// Search effort, 0 to 5.
    pub effort: u32,
    /// Whether every child in a search with a population restarts from the first generation, for measuring
    /// what crossover is worth.
    pub restarts: bool,
    /// Says when to stop with the best found so far.
    pub stop: &'a (dyn Fn() -> bool + Sync),
    /// Told of plans that fit, as they are found; from several threads, and not always of better ones.
    pub watch: &'a (dyn Fn(Progress) + Sync),
    /// Told of every generation of a search with a population, in order.
    pub alive: &'a (dyn Fn(&Alive) + Sync),
}

/// A plan that a search has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Time of its step in ns.
    pub step_ns: u64,
    /// Plans that were evaluated by then, by the thread that found it.
    pub evaluations: u64,
}

/// A generation of a search with a population.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Alive {
    /// Plans that were evaluated by then.
    pub evaluations: u64,
    /// Times in ns, by the planner's own model, of the plans in the population that fit.
    pub step_ns: Vec<u64>,
}

impl Request<'_> {
    /// Everything allowed, effort 2, never stopped.
    pub fn new(capacity: u64) -> Request<'static> {
        Request {
            capacity,
            allow: Allow::ALL,
            seed: 0,
            effort: 2,
            restarts: false,
            stop: &|| false,
            watch: &|_| {},
            alive: &|_| {},
        }
    }
}

/// A planner's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// The decisions; offsets may be left out.
    pub decisions: Decisions,
    /// Plans that were evaluated on the way.
    pub evaluations: u64,
}

/// Reason for finding no plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoPlan {
    /// Its method does not reach that budget; says where it ends.
    Infeasible(String),
    /// It contradicted itself: a bug.
    Failed(String),
}

impl fmt::Display for NoPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NoPlan::Infeasible(why) | NoPlan::Failed(why)) = self;
        f.write_str(why)
    }
}

impl std::error::Error for NoPlan {}

/// A row of the planner table.
pub struct Planner {
    /// Name on the command line.
    pub name: &'static str,
    /// The method in one line.
    pub summary: &'static str,
    /// The publication.
    pub source: &'static str,
    /// True if the method moves tensors to the host.
    pub swaps: bool,
    /// True if the method recomputes.
    pub recomputes: bool,
    /// The planner.
    pub plan: fn(&Problem, &Request<'_>) -> Result<Found, NoPlan>,
}

/// Times that a planner is asked, with less room where the layout of what it chose is too high.
pub(crate) const CALLS: usize = 8;

/// Work after which a planner with a plan that fits is not asked for a better one: evaluations times ops.
const WORK: u64 = 10_000_000;

/// Rooms that differ by less than this part of the capacity are not told apart.
const GRAIN: u64 = 500;

/// Work spent on a layout that fits.
const LAYOUT: u64 = 10_000_000;

/// Runs a planner, lays its choice out and evaluates it; the arena's height is at most the capacity.
///
/// If a layout is too high, asks the planner again with less room. Returns the best plan that fits.
pub fn solve(p: &Problem, planner: &Planner, request: &Request<'_>) -> Result<(Schedule, u64), NoPlan> {
    largest(p, request.capacity)?;
    let first = (planner.plan)(p, request)?;
    fit(p, planner, request, first, (LAYOUT, CALLS))
}

/// Bytes of the largest working set, which fits.
fn largest(p: &Problem, capacity: u64) -> Result<u64, NoPlan> {
    let (op, bytes) = p.largest_working_set();
    if bytes <= capacity {
        return Ok(bytes);
    }
    let name = p.ops.get(op).map_or("the step", |op| op.label.as_str());
    let (need, have) = (Bytes(bytes), Bytes(capacity));
    Err(NoPlan::Infeasible(format!("{name} needs {need} at once, there are {have}")))
}

/// Makes a plan that fits of a planner's first answer, and of further ones for less room, with so much work
/// for every layout and at most so many answers.
pub(crate) fn fit(
    p: &Problem,
    planner: &Planner,
    request: &Request<'_>,
    first: Found,
    (layout_work, calls): (u64, usize),
) -> Result<(Schedule, u64), NoPlan> {
    let capacity = request.capacity;
    let (mut evaluations, mut best) = (0, None::<Schedule>);
    // A room between what fits, or is too little for the planner, and what does not.
    let (mut low, mut high, mut room) = (largest(p, capacity)?, capacity, capacity);
    let mut found = Some(first);
    for call in 0..calls {
        let mut less = 0;
        if let Some(found) = found {
            evaluations += found.evaluations;
            let options = Options { capacity: Some(capacity), work: layout_work, seed: 0, all: true };
            let stop = || best.is_some() && (request.stop)();
            let schedule = evaluate_with(p, found.decisions, &options, &stop)?;
            let over = schedule.evaluation.dev_bytes.saturating_sub(capacity);
            if over == 0 {
                low = room;
                if best.as_ref().is_none_or(|b| schedule.key() < b.key()) {
                    best = Some(schedule);
                }
            } else if schedule.evaluation.load_bytes > capacity {
                break;
            } else {
                high = room;
                less = over.max((capacity / 200) << call);
            }
        } else {
            low = room;
        }
        let dear = evaluations.saturating_mul(p.ops.len() as u64) > WORK;
        let enough = best.is_some() && (dear || (request.stop)());
        if call + 1 == calls || high.saturating_sub(low) <= capacity / GRAIN || enough {
            break;
        }
        // Down until something fits, then between what fits and what does not.
        let down = best.is_none() && less > 0 && less < high - low;
        room = if down { high - less } else { low + (high - low) / 2 };
        // A planner counts what it evaluates for one answer.
        let watch = |f: Progress| {
            (request.watch)(Progress { evaluations: evaluations + f.evaluations, ..f });
        };
        let alive = |a: &Alive| {
            let step_ns = a.step_ns.clone();
            (request.alive)(&Alive { evaluations: evaluations + a.evaluations, step_ns });
        };
        let less_room = Request { capacity: room, watch: &watch, alive: &alive, ..*request };
        found = match (planner.plan)(p, &less_room) {
            Ok(found) => Some(found),
            Err(NoPlan::Infeasible(_)) => None,
            Err(e) => return Err(e),
        };
    }
    let none = || format!("{} finds no plan whose layout fits {}", planner.name, Bytes(capacity));
    best.map(|best| (best, evaluations)).ok_or_else(|| NoPlan::Infeasible(none()))
}
