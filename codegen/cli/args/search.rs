//! Device, planner, effort, permissions and files of decisions, which several commands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use glob::Pattern;
use memc::{Error, HostOps, Rewrites};
use memc_planner::{Allow, Formulation, Handling, Order};

use crate::values;

/// The device of a model and the rewrites before planning. A problem names its own device.
#[derive(Args, Clone)]
pub(crate) struct Target {
    /// Device whose times and limits apply to a model: one of `memc list devices`, such as a100-80g, a
    /// profile file (.json), or auto: the GPU of this machine, by its measured profile or its name, and
    /// without a GPU the cpu
    #[arg(long, visible_alias = "profile", value_name = "PROFILE", default_value = "auto")]
    pub(crate) device: String,
    /// Keep every gradient as the model computes it, whatever it needs of the forward pass
    #[arg(hide_short_help = true, long)]
    pub(crate) no_mem_rewrite: bool,
    /// Leave every element-wise op a kernel of its own, for GPUs too; other devices never fuse them
    #[arg(hide_short_help = true, long)]
    pub(crate) no_fuse: bool,
}

/// Options that decisions from a file leave nothing to say to.
const FOR_PLANNERS: [&str; 12] = [
    "decisions",
    "planner",
    "no_swap",
    "no_recompute",
    "fixed_order",
    "order",
    "formulation",
    "no_host_ops",
    "host",
    "keep",
    "swap",
    "recompute",
];

/// Files with decisions.
#[derive(Args, Clone)]
pub(crate) struct DecisionsFiles {
    /// Write the planner's decisions to a file
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(crate) decisions: Option<PathBuf>,
    /// Carry out the decisions in a file instead of planning
    #[arg(hide_short_help = true, long, value_name = "FILE", conflicts_with_all = FOR_PLANNERS)]
    pub(crate) apply: Option<PathBuf>,
}

/// Planner and its permissions.
#[derive(Args, Clone)]
pub(crate) struct Search {
    /// Planner: memc, a memetic search (genetic and particle-swarm) over order, swaps, recomputation and
    /// layout; or a published method to compare with. `memc list planners` has them all
    #[arg(hide_short_help = true, long, value_name = "NAME", default_value = "memc")]
    pub(crate) planner: String,
    #[command(flatten)]
    pub(crate) effort: Effort,
}

/// Permissions of a plan.
#[derive(Args, Clone, Copy)]
pub(crate) struct Permissions {
    /// Leave tensors on the device: no swapping
    #[arg(hide_short_help = true, long)]
    no_swap: bool,
    /// Run every op once: no recomputation
    #[arg(hide_short_help = true, long)]
    no_recompute: bool,
}

/// Permissions and effort of a planner.
#[derive(Args, Clone)]
pub(crate) struct Effort {
    #[command(flatten)]
    pub(crate) permissions: Permissions,
    /// Keep the order of the ops
    #[arg(hide_short_help = true, long)]
    pub(crate) fixed_order: bool,
    /// Order in which a model's ops are posed: as given, memory-greedy, or the better of both
    #[arg(hide_short_help = true, long, default_value = "auto", value_parser = ["auto", "given", "greedy"])]
    pub(crate) order: String,
    /// Formulation of a model's gradients: own, or fast, lean or small, which save fewer activations
    /// [default: the best of all]
    #[arg(hide_short_help = true, long, value_name = "NAME", value_parser = values::formulation)]
    pub(crate) formulation: Option<Formulation>,
    /// Leave these tensors on the device (repeatable)
    #[arg(hide_short_help = true, long, value_name = "GLOB")]
    pub(crate) keep: Vec<Pattern>,
    /// Let these tensors leave the device by copies only (repeatable)
    #[arg(hide_short_help = true, long, value_name = "GLOB", conflicts_with = "no_swap")]
    pub(crate) swap: Vec<Pattern>,
    /// Let these tensors leave the device only to be recomputed (repeatable)
    #[arg(hide_short_help = true, long, value_name = "GLOB", conflicts_with = "no_recompute")]
    pub(crate) recompute: Vec<Pattern>,
    /// Run every op on the device: no update of an optimizer on the host
    #[arg(hide_short_help = true, long)]
    pub(crate) no_host_ops: bool,
    /// Run the updates of these states on the host, where the states then live; given several times, of all
    /// [default: of those with which the step is fastest]
    #[arg(hide_short_help = true, long, value_name = "GLOB", conflicts_with = "no_host_ops")]
    pub(crate) host: Vec<Pattern>,
    /// Search effort: 0 is the first plan found, 5 the most
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=5))]
    pub(crate) effort: u32,
    /// Seed of the search
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 0)]
    pub(crate) search_seed: u64,
    /// Stop each search with the best plan so far after this time, as 10s or 500ms; results then depend on
    /// the machine. A method that makes one plan finishes it
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = values::duration)]
    pub(crate) time_limit: Option<Duration>,
}

impl Target {
    /// The library's target.
    pub(crate) fn target(&self) -> memc::Target {
        let rewrites = Rewrites { memory: !self.no_mem_rewrite, fuse: !self.no_fuse };
        memc::Target { device: self.device.clone(), rewrites }
    }
}

impl Search {
    /// The library's search. Fails where the planner is not known.
    pub(crate) fn search(&self) -> Result<memc::Search, Error> {
        self.effort.search(&self.planner)
    }
}

impl Permissions {
    /// The planner's permissions.
    pub(crate) fn allow(self) -> Allow {
        Allow { swap: !self.no_swap, recompute: !self.no_recompute, ..Allow::ALL }
    }
}

impl Effort {
    /// The library's search by a planner. Fails where it is not known.
    pub(crate) fn search(&self, planner: &str) -> Result<memc::Search, Error> {
        let ways = [(&self.keep, Handling::Keep), (&self.swap, Handling::Swap)];
        let ways = ways.into_iter().chain([(&self.recompute, Handling::Recompute)]);
        let handling: Vec<(Pattern, Handling)> =
            ways.flat_map(|(globs, way)| globs.iter().map(move |glob| (glob.clone(), way))).collect();
        if !handling.is_empty() && planner != memc::Search::default().planner.name {
            return Err(Error::Usage(format!(
                "--keep, --swap and --recompute are for the default planner; {planner} knows nothing of them"
            )));
        }
        Ok(memc::Search {
            handling,
            planner: memc::planner(planner)?,
            allow: Allow { reorder: !self.fixed_order, ..self.permissions.allow() },
            order: match self.order.as_str() {
                "given" => Some(Order::Given),
                "greedy" => Some(Order::Greedy),
                _ => None,
            },
            formulation: self.formulation,
            host: match (self.no_host_ops, &self.host[..]) {
                (true, _) => HostOps::None,
                (false, []) => HostOps::Best,
                (false, patterns) => HostOps::Updating(patterns.to_vec()),
            },
            effort: self.effort,
            seed: self.search_seed,
            time_limit: self.time_limit,
        })
    }
}

impl DecisionsFiles {
    /// The decisions to apply, if any.
    pub(crate) fn apply_file(&self) -> Result<Option<memc::DecisionsFile>, Error> {
        let read = |file: &PathBuf| {
            Ok(memc::DecisionsFile { name: file.display().to_string(), text: memc::read_text(file)? })
        };
        self.apply.as_ref().map(read).transpose()
    }
}
