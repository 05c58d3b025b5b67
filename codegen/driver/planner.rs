//! Which planner runs, and how it is restricted.

use memc_planner::planners::{self, Planner, Request};

use crate::cli::Search;
use crate::exit::Error;

impl Search {
    /// The planner by its name.
    pub(crate) fn planner(&self) -> Result<&'static Planner, Error> {
        planners::named(&self.planner).ok_or_else(|| {
            let known: Vec<&str> = planners::PLANNERS.iter().map(|p| p.name).collect();
            Error::Usage(format!("unknown planner `{}` (known: {})", self.planner, known.join(", ")))
        })
    }

    /// What it is asked for.
    pub(crate) fn request(&self, capacity: u64) -> Request<'static> {
        Request {
            capacity,
            swap: !self.no_swap,
            recompute: !self.no_recompute,
            fixed_order: self.fixed_order,
            seed: self.search_seed,
            effort: self.effort,
            stop: &|| false,
            watch: &|_| {},
        }
    }
}
