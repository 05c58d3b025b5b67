//! Everything stays on the device.

use memc_planner::{Decisions, Found, NoPlan, Planner};

/// The unplanned step.
pub(super) const PLANNER: Planner = Planner {
    name: "keep-all",
    summary: "everything stays on the device",
    source: "the unplanned step",
    swaps: false,
    recomputes: false,
    plan: |p, _| Ok::<_, NoPlan>(Found { decisions: Decisions::keep_all(p), evaluations: 1 }),
};
