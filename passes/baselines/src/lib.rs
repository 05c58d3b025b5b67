//! Published planners, each as in its paper, and the default planner composed with its starting points.
//!
//! Planners read a [`Problem`](memc_planner::Problem) and return [`Decisions`](memc_planner::Decisions). The
//! default planner's search is in `memc-planner`, which knows none of the planners here. [`STARTS`] is the
//! only place that names its starting points.

mod autoswap;
mod belady;
mod capuchin;
mod checkpoint;
mod cost;
mod delta;
mod dtr;
mod home;
mod keep;
mod odswap;
mod random;
#[cfg(test)]
mod samples;
mod smallest;
mod smartpool;
mod superneurons;
mod swapadvisor;
mod tensile;
#[cfg(test)]
mod tests;
mod vdnn;
mod walk;

pub use belady::smallest_feasible;
pub use smallest::smallest;

use memc_planner::{Planner, Starts};

/// The planners that the default planner starts from.
pub static STARTS: Starts<'static> = Starts {
    first: &[&belady::PLANNER],
    quick: &[
        &superneurons::PLANNER,
        &odswap::PLANNER,
        &delta::PLANNER,
        &autoswap::DOA,
        &autoswap::AOA,
        &autoswap::WDOA,
        &autoswap::SWDOA,
        &autoswap::COMBINED,
        &dtr::PLANNER,
        &vdnn::ALL,
        &checkpoint::PLANNER,
    ],
    thorough: &[&capuchin::PLANNER, &tensile::PLANNER],
};

/// The default planner.
const MEMC: Planner = Planner {
    name: "memc",
    summary: "memetic search (genetic, particle swarm, local) over order, swaps, recomputation and layout",
    source: "this project",
    swaps: true,
    recomputes: true,
    plan: |p, request| memc_planner::plan(p, request, &STARTS),
};

/// Every planner, the default first.
pub static PLANNERS: &[Planner] = &[
    MEMC,
    belady::PLANNER,
    smartpool::PLANNER,
    autoswap::COMBINED,
    autoswap::DOA,
    autoswap::AOA,
    autoswap::WDOA,
    autoswap::SWDOA,
    capuchin::PLANNER,
    delta::PLANNER,
    delta::LRU,
    delta::GREEDY,
    vdnn::ALL,
    vdnn::CONV,
    superneurons::PLANNER,
    odswap::PLANNER,
    checkpoint::PLANNER,
    dtr::PLANNER,
    tensile::PLANNER,
    swapadvisor::PLANNER,
    swapadvisor::ORDER,
    swapadvisor::POOL,
    home::PLANNER,
    keep::PLANNER,
];

/// The planner called `name`.
pub fn named(name: &str) -> Option<&'static Planner> {
    PLANNERS.iter().find(|p| p.name == name)
}
