//! Planning a module: a planner's decisions, carried out.

use memc_ir::{Module, Space, Traffic};
use memc_planner::planners::{self, NoPlan, Planner, Request};
use memc_planner::{Decisions, Evaluation, Realised};

use super::infeasible::Infeasible;
use super::problem::Problem;
use crate::device::DeviceProfile;

/// A problem solved for one budget.
pub struct Planned {
    /// What was decided.
    pub decisions: Decisions,
    /// The mem-phase module with offsets and awaits.
    pub module: Module,
    /// Its modelled cost.
    pub evaluation: Evaluation,
    /// What it runs and copies.
    pub traffic: Traffic,
    /// Height of the device arena in bytes.
    pub dev_bytes: u64,
    /// Height of the host arena in bytes.
    pub host_bytes: u64,
    /// Plans that were tried.
    pub evaluations: u64,
}

/// Carries decisions out: layout, awaits, the modelled cost, and the module.
///
/// Fails when the decisions are impossible; says at which action.
pub fn realise(p: &Problem, decisions: Decisions) -> Result<Planned, String> {
    carry_out(p, memc_planner::realise(&p.numbers, decisions)?, 1)
}

/// Carries out a script that is realised already, found in so many evaluations.
pub fn carry_out(p: &Problem, r: Realised, evaluations: u64) -> Result<Planned, String> {
    let module = super::bufferize(p, &r)?;
    let traffic = module.traffic();
    let (dev_bytes, host_bytes) = (height(&module, Space::Dev), height(&module, Space::Host));
    Ok(Planned {
        decisions: r.decisions,
        module,
        evaluation: r.evaluation,
        traffic,
        dev_bytes,
        host_bytes,
        evaluations,
    })
}

fn height(m: &Module, space: Space) -> u64 {
    let slots = m.slots.values().filter(|s| s.space == space);
    slots.map(|s| s.offset.unwrap_or(0) + s.bytes).max().unwrap_or(0)
}

/// Plans the problem for a device arena of at most `request.capacity` bytes; whatever the planner, nothing is decided when
/// everything fits.
pub fn plan(
    p: &Problem,
    profile: &DeviceProfile,
    planner: &Planner,
    request: &Request<'_>,
) -> Result<Planned, PlanError> {
    let kept = keep_all(p)?;
    if kept.dev_bytes <= request.capacity {
        return Ok(kept);
    }
    match planners::solve(&p.numbers, planner, request) {
        Ok((realised, evaluations)) => carry_out(p, realised, evaluations).map_err(PlanError::Failed),
        Err(NoPlan::Infeasible(_)) => {
            let smallest =
                planners::smallest_feasible(&p.numbers, kept.dev_bytes).map_err(PlanError::Failed)?;
            let total = |bytes: u64| bytes.saturating_add(profile.reserve_bytes);
            let why = Infeasible::new(
                &p.numbers,
                Some(p),
                total(request.capacity),
                profile.reserve_bytes,
                total(smallest),
            );
            Err(PlanError::Infeasible(Box::new(why)))
        }
        Err(NoPlan::Failed(text)) => Err(PlanError::Failed(text)),
    }
}

/// The unplanned step: everything stays on the device.
pub fn keep_all(p: &Problem) -> Result<Planned, PlanError> {
    realise(p, Decisions::keep_all(&p.numbers)).map_err(PlanError::Failed)
}

/// Why there is no plan.
#[derive(Debug)]
pub enum PlanError {
    /// The budget is too small.
    Infeasible(Box<Infeasible>),
    /// The planner contradicted itself; a bug.
    Failed(String),
}

/// The smallest capacity for which a plan is found.
pub fn smallest_feasible(p: &Problem) -> Result<u64, PlanError> {
    planners::smallest_feasible(&p.numbers, keep_all(p)?.dev_bytes).map_err(PlanError::Failed)
}
