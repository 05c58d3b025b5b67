//! Offsets for buffers with known live ranges, by one algorithm or by a search with all of them.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memc_alloc::{Algorithm, Instance as Buffers, MAX_EFFORT, Options, Solution};

use crate::error::Error;
use crate::machine::{now, since};
use crate::watch::{Hold, Watch};

/// Options of [`allocate`].
#[derive(Clone, Debug, Default)]
pub struct AllocOptions {
    /// One algorithm; `None`: a search with all of them.
    pub algorithm: Option<Algorithm>,
    /// Largest height, in the instance's units; `None`: the lowest allocation is looked for.
    pub capacity: Option<u64>,
    /// Effort of the search, from 0 to [`MAX_EFFORT`]; `None`: 2, or the most with a time limit.
    pub effort: Option<u8>,
    /// Time after which the search ends with its best.
    pub time_limit: Option<Duration>,
    /// Seed of choices by chance.
    pub seed: u64,
}

impl AllocOptions {
    fn effort(&self) -> u8 {
        self.effort.unwrap_or(if self.time_limit.is_some() { MAX_EFFORT } else { 2 })
    }
}

/// End of a search before it was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// A request to stop.
    Interrupt,
    /// The time limit.
    Time,
}

/// An allocation that has been checked.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Offsets, height and bounds.
    pub solution: Solution,
    /// Cause of an early end.
    pub ended: Option<End>,
    /// Time that the search took in ns.
    pub solve_ns: u64,
}

/// Gives every buffer an offset.
///
/// Fails with [`Error::NoAllocation`] where none as low as the capacity is found, and with
/// [`Error::Interrupted`] where a request to stop left that open.
pub fn allocate(buffers: &Buffers, options: &AllocOptions, watch: &dyn Watch) -> Result<Allocation, Error> {
    let begun = now();
    let (solution, ended) = {
        let _searching = Hold::begin(watch);
        solve(buffers, options, watch)
    };
    let solve_ns = since(begun);
    memc_alloc::check(buffers, &solution.offsets)
        .map_err(|e| Error::Internal(format!("the allocation is wrong: {e}")))?;
    if let Some(capacity) = options.capacity.filter(|&capacity| solution.height > capacity) {
        if ended == Some(End::Interrupt) && solution.bound <= capacity {
            return Err(Error::Interrupted);
        }
        let why = why(options, capacity, &solution, ended);
        let Solution { height, load, bound, .. } = solution;
        return Err(Error::NoAllocation { capacity, height, load, bound, why });
    }
    Ok(Allocation { solution, ended, solve_ns })
}

/// An allocation, and the cause where the search for it ended early.
fn solve(buffers: &Buffers, options: &AllocOptions, watch: &dyn Watch) -> (Solution, Option<End>) {
    if let Some(algorithm) = options.algorithm {
        return (memc_alloc::place(buffers, algorithm), None);
    }
    let begun = now();
    let search =
        Options { capacity: options.capacity, seed: options.seed, ..Options::effort(options.effort()) };
    let late = AtomicBool::new(false);
    let stop = || {
        if options.time_limit.is_some_and(|limit| begun.elapsed() >= limit) {
            late.store(true, Ordering::Relaxed);
        }
        late.load(Ordering::Relaxed) || watch.stop()
    };
    let solution = match options.capacity {
        Some(capacity) => race(buffers, &search, capacity, &stop),
        None => memc_alloc::solve(buffers, &search, &stop),
    };
    // From here on a request to stop is for the work that follows.
    let ended = match (watch.take_stop(), late.into_inner()) {
        (true, _) => Some(End::Interrupt),
        (false, true) => Some(End::Time),
        (false, false) => None,
    };
    (solution, ended)
}

/// Searches with two seeds at once, until one settles whether there is an allocation.
///
/// The winner depends on the work that both took, not on the machine: a search gives up once it has taken
/// more.
fn race(buffers: &Buffers, options: &Options, capacity: u64, stop: &(dyn Fn() -> bool + Sync)) -> Solution {
    // By search, how often it had asked whether to stop, which it does after equal amounts of work.
    let settled = [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)];
    let search = |i: usize, other: usize| {
        let asked = Cell::new(0);
        let behind = || {
            asked.set(asked.get() + 1);
            stop() || (settled[other].load(Ordering::Relaxed), other) < (asked.get(), i)
        };
        let seed = options.seed.wrapping_mul(2).wrapping_add(i as u64);
        let found = memc_alloc::solve(buffers, &Options { seed, ..*options }, &behind);
        let settles = found.height <= capacity || found.bound > capacity;
        if settles {
            settled[i].store(asked.get(), Ordering::Relaxed);
        }
        ((!settles, if settles { asked.get() } else { found.height }, i), found)
    };
    let (first, second) = rayon::join(|| search(0, 1), || search(1, 0));
    if second.0 < first.0 { second.1 } else { first.1 }
}

/// Reason why no allocation fits the capacity, or a hint how to find one.
fn why(options: &AllocOptions, capacity: u64, found: &Solution, ended: Option<End>) -> String {
    let Solution { height, load, bound, .. } = found;
    if *bound > capacity {
        let proof = if bound > load { "proved" } else { "more is live at once" };
        return format!(": {proof} (load {load}, lowest found {height})");
    }
    if let Some(name) = options.algorithm.map(Algorithm::name) {
        return format!(
            " by {name}; leave --algorithm out to search for one (load {load}, {name} reaches {height})"
        );
    }
    let more = match (ended, options.effort() < MAX_EFFORT) {
        (Some(_), _) => " in time; a longer --time-limit",
        (None, true) => "; more --effort",
        (None, false) => "; another --seed",
    };
    // A search within a capacity has no allocation at all until it has one of that height.
    format!(" was found{more} may find one (load {load}, the quick algorithms' lowest is {height})")
}
