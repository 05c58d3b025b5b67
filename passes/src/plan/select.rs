//! The default planner: a few walks with different knobs, each judged on its modelled timeline; the best one wins.

use std::collections::BTreeSet;

use memc_ir::{Module, Space};
use rayon::prelude::*;

use super::belady::{self, Knobs};
use super::decisions::Decisions;
use super::evaluate::{Evaluation, evaluate};
use super::infeasible::Infeasible;
use super::layout::{self, Algorithm};
use super::prefetch::prefetch;
use super::problem::Problem;
use super::residents::residents;
use super::timepoints::place_awaits;
use crate::device::DeviceProfile;

/// A problem solved for one budget.
pub struct Planned {
    /// What was decided.
    pub decisions: Decisions,
    /// The mem-phase module with offsets and awaits.
    pub module: Module,
    /// Its modelled cost.
    pub evaluation: Evaluation,
    /// Height of the device arena in bytes.
    pub dev_bytes: u64,
    /// Height of the host arena in bytes.
    pub host_bytes: u64,
    /// Plans that were tried.
    pub evaluations: u64,
}

/// Carries decisions out: apply, layout, awaits, and the modelled cost.
///
/// Fails when the decisions are impossible; says at which action.
pub fn realise(p: &Problem, profile: &DeviceProfile, decisions: Decisions) -> Result<Planned, String> {
    let module = super::apply(p, &decisions)?;
    let load = layout::load(&module, Space::Dev);
    let mut best: Option<((u64, u64), Module)> = None;
    for algorithm in Algorithm::ALL {
        let mut laid = module.clone();
        let heights = layout::layout(&mut laid, algorithm);
        if best.as_ref().is_none_or(|(least, _)| heights < *least) {
            best = Some((heights, laid));
        }
        if heights.0 == load {
            break;
        }
    }
    let Some(((dev_bytes, host_bytes), mut module)) = best else {
        return Err("no layout algorithm ran".into());
    };
    place_awaits(&mut module)?;
    let evaluation = evaluate(&module, profile);
    Ok(Planned { decisions, module, evaluation, dev_bytes, host_bytes, evaluations: 1 })
}

/// Plans the problem for a device arena of at most `capacity` bytes; with `None`, keeps everything on the device.
pub fn plan(p: &Problem, profile: &DeviceProfile, capacity: Option<u64>) -> Result<Planned, PlanError> {
    let kept = realise(p, profile, Decisions::keep_all(p)).map_err(PlanError::Failed)?;
    let Some(capacity) = capacity else { return Ok(kept) };
    if kept.dev_bytes <= capacity {
        return Ok(kept);
    }
    let found = if profile.can_swap() { search(p, profile, capacity)? } else { None };
    match found {
        Some(planned) => Ok(planned),
        None => Err(PlanError::Infeasible(Box::new(explain(p, profile, capacity)?))),
    }
}

/// Why there is no plan.
#[derive(Debug)]
pub enum PlanError {
    /// The budget is too small.
    Infeasible(Box<Infeasible>),
    /// The planner contradicted itself; a bug.
    Failed(String),
}

/// How many times the copies' time a recomputation may take; 0 never recomputes.
const RECOMPUTE: [f64; 4] = [0.0, 0.25, 1.0, 4.0];

/// Shares of the capacity to plan for as well: eviction is greedy, and less room sometimes makes it choose better.
const TIGHTER: [u64; 2] = [92, 80];

/// Shares of the capacity that the choice of resident parameters may count on; the rest is for activations.
const SHARES: [u64; 4] = [100, 85, 70, 50];

fn search(p: &Problem, profile: &DeviceProfile, capacity: u64) -> Result<Option<Planned>, PlanError> {
    let mut homes: Vec<BTreeSet<u32>> =
        SHARES.iter().map(|share| residents(p, capacity / 100 * share)).collect();
    homes.push(BTreeSet::new());
    homes.dedup();
    let knobs = |h: usize| {
        let full = RECOMPUTE.into_iter().map(move |recompute| (h, Knobs { capacity, recompute }));
        full.chain(TIGHTER.map(|share| (h, Knobs { capacity: capacity / 100 * share, recompute: 0.0 })))
    };
    let candidates: Vec<(usize, Knobs)> = (0..homes.len()).flat_map(knobs).collect();
    let plans: Vec<Result<Option<Planned>, String>> =
        candidates.par_iter().map(|&(h, knobs)| attempt(p, profile, &homes[h], knobs)).collect();
    let mut best: Option<Planned> = None;
    let evaluations = plans.len() as u64;
    for planned in plans {
        let Some(planned) = planned.map_err(PlanError::Failed)? else { continue };
        let key = |p: &Planned| {
            (p.evaluation.step_ns, p.evaluation.traffic.swap_in_bytes, p.evaluation.traffic.swap_out_bytes)
        };
        if best.as_ref().is_none_or(|b| key(&planned) < key(b)) {
            best = Some(planned);
        }
    }
    Ok(best.map(|b| Planned { evaluations, ..b }))
}

fn attempt(
    p: &Problem,
    profile: &DeviceProfile,
    homes: &BTreeSet<u32>,
    knobs: Knobs,
) -> Result<Option<Planned>, String> {
    let Ok(mut decisions) = belady::plan(p, profile, homes, knobs) else { return Ok(None) };
    prefetch(p, profile, &mut decisions);
    let planned = realise(p, profile, decisions)?;
    Ok(Some(planned).filter(|r| r.dev_bytes <= knobs.capacity))
}

/// The smallest capacity for which a plan is found: at least the largest working set, found by bisection above it.
pub fn smallest_feasible(p: &Problem, profile: &DeviceProfile) -> Result<u64, PlanError> {
    let (_, bound) = p.largest_working_set();
    let kept = realise(p, profile, Decisions::keep_all(p)).map_err(PlanError::Failed)?.dev_bytes;
    let fits = |capacity: u64| {
        let none = BTreeSet::new();
        attempt(p, profile, &none, Knobs { capacity, recompute: 0.0 })
            .map(|r| r.is_some())
            .map_err(PlanError::Failed)
    };
    if !profile.can_swap() {
        return Ok(kept);
    }
    if kept <= bound || fits(bound)? {
        return Ok(bound.min(kept));
    }
    let (mut low, mut high) = (bound, kept);
    while high - low > memc_ir::SLOT_ALIGN {
        let middle = (low + (high - low) / 2).div_ceil(memc_ir::SLOT_ALIGN) * memc_ir::SLOT_ALIGN;
        if fits(middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

/// Whether an op is an optimizer's: its operands begin with a parameter and its gradient.
fn updates(kind: &memc_ir::OpKind) -> bool {
    kind.def().operands.get(1) == Some(&"g")
}

fn explain(p: &Problem, profile: &DeviceProfile, capacity: u64) -> Result<Infeasible, PlanError> {
    let (position, working_set_bytes) = p.largest_working_set();
    let mut tensors: Vec<(String, String, u64)> = p
        .working_set(position)
        .into_iter()
        .map(|t| &p.tensors[t as usize])
        .map(|t| (t.name.clone(), t.ty.to_string(), t.bytes))
        .collect();
    if p.ops.get(position).is_some_and(|op| op.workspace > 0) {
        tensors.push(("workspace".into(), "bytes".into(), p.ops[position].workspace));
    }
    tensors.sort_by(|a, b| b.2.cmp(&a.2).then(a.0.cmp(&b.0)));
    tensors.truncate(5);
    Ok(Infeasible {
        budget_bytes: capacity.saturating_add(profile.reserve_bytes),
        smallest_bytes: smallest_feasible(p, profile)?.saturating_add(profile.reserve_bytes),
        op: p.ops.get(position).map(|op| op.name.clone()).unwrap_or_default(),
        updates: p.ops.get(position).and_then(|op| p.module.ops[op.op].kind()).is_some_and(updates),
        working_set_bytes,
        tensors,
    })
}
