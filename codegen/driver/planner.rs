//! Which planner runs, how it is restricted, and what ends it.

use std::time::Duration;

use clap::Args;
use memc_planner::Order;
use memc_planner::bound::Allow;
use memc_planner::planners::{self, Planner, Request};

use crate::exit::Error;
use crate::time::duration;

/// Who plans, and what it may do.
#[derive(Args, Clone)]
pub(crate) struct Search {
    /// Planner: memc, or a published method to compare with; `memc list planners` has them all
    #[arg(long, value_name = "NAME", default_value = "memc")]
    pub(crate) planner: String,
    #[command(flatten)]
    pub(crate) how: How,
}

/// What a planner may do.
#[derive(Args, Clone)]
pub(crate) struct How {
    /// Leave tensors on the device: no swapping
    #[arg(long)]
    pub(crate) no_swap: bool,
    /// Run every op once: no recomputation
    #[arg(long)]
    pub(crate) no_recompute: bool,
    /// Keep the order of the ops
    #[arg(long)]
    pub(crate) fixed_order: bool,
    /// Order in which a model's ops are posed: as given, memory-greedy, or the better of both
    #[arg(long, default_value = "auto", value_parser = ["auto", "given", "greedy"])]
    order: String,
    /// How much to search: 0 is the first plan found, 5 the most
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=5))]
    pub(crate) effort: u32,
    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) search_seed: u64,
    /// Stop each search with the best plan so far after this time, as 10s or 500ms; results then depend on the machine.
    /// A method that makes one plan finishes it
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) time_limit: Option<Duration>,
}

/// The planner of that name.
pub(crate) fn named(name: &str) -> Result<&'static Planner, Error> {
    planners::named(name).ok_or_else(|| {
        let known: Vec<&str> = planners::PLANNERS.iter().map(|p| p.name).collect();
        Error::Usage(format!("unknown planner `{name}` (known: {})", known.join(", ")))
    })
}

impl How {
    /// The order asked for; none: the better of all.
    pub(crate) fn order(&self) -> Option<Order> {
        match self.order.as_str() {
            "given" => Some(Order::Given),
            "greedy" => Some(Order::Greedy),
            _ => Some(Order::Given).filter(|_| self.fixed_order),
        }
    }

    /// What scripts may do.
    pub(crate) fn allow(&self) -> Allow {
        Allow { swap: !self.no_swap, recompute: !self.no_recompute }
    }

    /// What a planner is asked for.
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
