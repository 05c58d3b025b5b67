//! The portfolio: quick algorithms, then local search towards ever lower heights, until the allocation is
//! optimal or the work is done.

use crate::algorithm::{Order, order};
use crate::attempt::Attempt;
use crate::compact::{Compact, components};
use crate::exact::Outcome;
use crate::instance::Instance;
use crate::place::{Fit, in_order, sink};
use crate::repair::{Repair, Style};
use crate::solution::Solution;
use crate::sweep::{Plan, Rule, Stack, sweep};
use crate::work::Work;

/// Goal and effort of a search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Height to stop at; without it, the search goes for the lowest allocation.
    pub capacity: Option<u64>,
    /// Most elementary steps to spend, each some 10 to 50 ns; the quick algorithms run in any case.
    pub work: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Whether to try all quick algorithms, or only those that reach a height the most often.
    pub all: bool,
}

/// Largest effort.
pub const MAX_EFFORT: u8 = 5;

impl Options {
    /// Options for an effort: 0 is the quick algorithms alone, 2 takes about a second, [`MAX_EFFORT`] many
    /// minutes.
    pub fn effort(level: u8) -> Options {
        let work = match level {
            0 => 0,
            1 => 3_000_000,
            2 => 60_000_000,
            3 => 600_000_000,
            4 => 6_000_000_000,
            _ => 60_000_000_000,
        };
        Options { capacity: None, work, seed: 0, all: true }
    }
}

/// Looks for a low allocation. The result depends on instance and options alone, unless `stop` says true,
/// which ends the search early with the best allocation so far.
pub fn solve(instance: &Instance, options: &Options, stop: &dyn Fn() -> bool) -> Solution {
    let mut parts: Vec<Part> = components(instance).into_iter().map(Part::new).collect();
    let bound = |parts: &[Part]| parts.iter().map(|p| p.bound).max().unwrap_or(0);
    let lowest = instance.lower_bound().max(bound(&parts));
    let goal = options.capacity.unwrap_or(0).max(lowest);
    let mut work = Work::new(options.work, stop);
    // The fullest component sets the height that the others have to reach.
    let mut turn: Vec<usize> = (0..parts.len()).collect();
    turn.sort_by_key(|&i| (std::cmp::Reverse(parts[i].bound), i));
    let mut floor = goal;
    for i in turn {
        parts[i].quick(floor, options, &mut work);
        parts[i].search(floor, options, &mut work);
        floor = floor.max(parts[i].height);
    }
    let bound = lowest.max(bound(&parts));
    Solution::assemble(instance, parts.iter().map(|p| (&p.c, &p.offsets)), bound)
}

/// Whether a height is within a few percent of the goal.
fn near(height: u64, goal: u64) -> bool {
    height - goal.min(height) <= goal / 32
}

/// A component and its best allocation so far.
struct Part {
    c: Compact,
    offsets: Vec<u64>,
    height: u64,
    bound: u64,
    /// Allocations to start from.
    bases: Vec<Vec<u64>>,
}

/// Buffers above which orders that look at all overlapping pairs are tried only when sweeps are far from the
/// goal.
const LARGE: usize = 4000;

/// Units of work in the first round of attempts.
const FIRST_EFFORT: u64 = 1 << 17;

/// Factor of work for an attempt at the goal.
const GOAL: u64 = 4;

/// A range of heights is not divided further once it is this power of a half of the bound.
const CLOSE: u32 = 11;

/// Work from which on a descent looks for the lowest allocation; less work ends at the goal.
const DESCENT: u64 = 1 << 22;

/// Work from which on a search within a capacity learns from its conflicts; less does not pay for that.
const LEARN: u64 = 3 << 24;

/// A descent begins with steps of this part of the distance between the allocation and the goal,
const STEPS: u64 = 8;

/// but of no less than this power of a half of the bound, or half of the distance.
const COARSE: u32 = CLOSE - 2;

/// Work of repairing a quick allocation, for each buffer.
const REPAIR: u64 = 128;

impl Part {
    fn new(c: Compact) -> Part {
        Part { bound: c.bound(), offsets: Vec::new(), height: u64::MAX, bases: Vec::new(), c }
    }

    /// Keeps an allocation if it is the lowest; returns whether it is low enough.
    fn offer(&mut self, offsets: Vec<u64>, goal: u64) -> bool {
        let height = self.c.height(&offsets);
        if height < self.height {
            self.height = height;
            self.offsets.clone_from(&offsets);
        }
        self.bases.push(offsets);
        self.height <= goal
    }

    /// Tries the quick algorithms, most successful first, and repairs allocations that are too high.
    fn quick(&mut self, goal: u64, options: &Options, work: &mut Work<'_>) {
        const STACKS: [Stack; 3] = [Stack::LastToDie, Stack::Longest, Stack::Oldest];
        const RULES: [Rule; 4] = [Rule::TwoEnded(1), Rule::Mates, Rule::Best, Rule::TwoEnded(4)];
        const ORDERS: [(Order, Fit); 8] = [
            (Order::Size, Fit::First),
            (Order::Lifetime, Fit::Best),
            (Order::Contention, Fit::First),
            (Order::Size, Fit::Best),
            (Order::Area, Fit::First),
            (Order::Start, Fit::Best),
            (Order::End, Fit::Best),
            (Order::ContentionArea, Fit::Best),
        ];
        if self.c.fixed.iter().all(Option::is_some) {
            self.offer(self.c.fixed.iter().map(|at| at.unwrap_or(0)).collect(), goal);
            return;
        }
        // Many buffers take much longer to place in an order than in a sweep.
        let (rules, stacks) = if options.all || self.c.len() > LARGE {
            (&RULES[..], &STACKS[..])
        } else {
            (&RULES[..1], &STACKS[..1])
        };
        let orders = if options.all { &ORDERS[..] } else { &ORDERS[..3] };
        for &rule in if self.c.has_fixed() { &[] } else { rules } {
            for &stack in stacks {
                if self.offer(sweep(&self.c, Plan { stack, rule }), goal) || work.stopped() {
                    return;
                }
            }
            // An allocation far too high is not repaired, but rearranged.
            if near(self.height, goal) && self.repair(goal, stacks.len(), options, work) {
                return;
            }
        }
        for &(by, fit) in orders {
            if self.c.len() > LARGE && near(self.height, goal) {
                return;
            }
            let found = in_order(&self.c, &order(&self.c, by), fit);
            if self.offer(found, goal) || work.stopped() {
                return;
            }
        }
    }

    /// Searches for lower allocations until one is no higher than `goal`.
    fn search(&mut self, goal: u64, options: &Options, work: &mut Work<'_>) {
        let c = self.c.clone();
        let mut attempts: Vec<Attempt<'_>> = Vec::new();
        let mut effort = FIRST_EFFORT;
        let lowest = options.capacity.is_none() && options.work >= DESCENT;
        while self.height > goal && self.height > self.bound && work.left() > 0 {
            if options.capacity.is_some() && self.bound > goal {
                return;
            }
            // The goal itself first: most components of training steps reach it.
            let mut low = goal.max(self.bound);
            let mut target = low;
            // From the second round on, the lowest allocation is lowered by steps, each halved where it
            // fails.
            let descends = lowest && effort > FIRST_EFFORT;
            let gap = self.height - low;
            let mut step = (gap / STEPS).max((self.bound >> COARSE).min(gap / 2));
            let mut begun = false;
            while self.height > low && work.left() > 0 {
                if attempts.last().is_none_or(|a| a.target() != target) {
                    // The first attempt is the one at the goal, which every round continues.
                    attempts.truncate(usize::from(attempts.first().is_some_and(|a| a.target() == goal)));
                    if attempts.last().is_none_or(|a| a.target() != target) {
                        let mut attempt = Attempt::new(&c, &self.bases, target, options.seed, work.left());
                        if options.capacity.is_some() && options.work >= LEARN {
                            attempt.learn(&c, options.seed);
                        }
                        attempts.push(attempt);
                    }
                }
                // Heights in between matter when the goal is out of reach. Most of the work goes to the goal,
                // or as much to every step down.
                let share = if descends || target == goal { effort * GOAL } else { effort };
                let outcome = attempts.last_mut().map_or(Outcome::Open, |a| a.run(share, work));
                let found = matches!(outcome, Outcome::Found(_));
                match outcome {
                    Outcome::Found(offsets) => {
                        self.offer(sink(&c, &offsets), target);
                    }
                    Outcome::Infeasible => {
                        self.bound = self.bound.max(target + 1);
                        low = self.bound;
                    }
                    Outcome::Open if !descends => low = target,
                    Outcome::Open => {}
                }
                if descends {
                    if begun && !found {
                        step /= 2;
                    }
                    begun = true;
                    if step <= self.bound >> CLOSE {
                        break;
                    }
                    target = self.height.saturating_sub(step).max(low);
                    continue;
                }
                // Close enough for this much work per attempt.
                if options.capacity.is_some_and(|capacity| capacity <= target)
                    || self.height <= low.saturating_add(self.bound >> CLOSE)
                {
                    break;
                }
                target = low + (self.height - low) / 2;
            }
            effort = effort.saturating_mul(if lowest { 2 } else { 4 }).min(1 << 40);
        }
    }

    /// Repairs the last allocations where they are too high.
    fn repair(&mut self, goal: u64, last: usize, options: &Options, work: &mut Work<'_>) -> bool {
        let units = REPAIR * self.c.len() as u64;
        let found = self.bases.iter().rev().take(last).find_map(|base| {
            let mut part = work.part(units);
            let found = Repair::new(&self.c, base, goal, Style::Careful, options.seed).run(&mut part);
            work.settle(&part, units);
            found
        });
        found.is_some_and(|found| self.offer(found, goal))
    }
}
