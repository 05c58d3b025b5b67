//! The planning passes of the pass table.

use std::fmt;

use memc_alloc::Algorithm;
use memc_ir::{Module, Phase};
use memc_planner::{Decisions, NoPlan, Request, evaluate, solve};

use super::alloc::{allocate, lowest};
use super::events::place_waits;
use super::problem::Problem;
use crate::error::{Infeasible, PassError};
use crate::options::{OptionDef, Options};
use crate::pipeline::{PassCx, PassDef};

/// `apply{decisions=FILE}`.
pub(crate) const APPLY: PassDef = PassDef {
    name: "apply",
    summary: "carries out a decision file: order, resident slots, swaps, recomputation, addresses",
    phases: (Phase::Graph, Phase::Mem),
    options: APPLY_OPTIONS,
    run: run_apply,
};
const APPLY_OPTIONS: &[OptionDef] =
    &[OptionDef { name: "decisions", default: "", doc: "file with the decisions" }];

/// `alloc{algo=best-fit}`.
pub(crate) const ALLOC: PassDef = PassDef {
    name: "alloc",
    summary: "gives every slot without an offset one",
    phases: (Phase::Mem, Phase::Mem),
    options: ALLOC_OPTIONS,
    run: run_alloc,
};
const ALLOC_OPTIONS: &[OptionDef] = &[OptionDef {
    name: "algo",
    default: "best-fit",
    doc: "search, or an algorithm of memc-alloc: best-fit, first-fit, size-class, smartpool, ...",
}];

/// `plan{capacity=N}`.
pub(crate) const PLAN: PassDef = PassDef {
    name: "plan",
    summary: "chooses swaps and recomputation for an arena of `capacity` bytes and carries them out",
    phases: (Phase::Graph, Phase::Mem),
    options: PLAN_OPTIONS,
    run: run_plan,
};
const PLAN_OPTIONS: &[OptionDef] = &[
    OptionDef { name: "capacity", default: "", doc: "bytes of the device arena" },
    OptionDef { name: "planner", default: "memc", doc: "planner, see `memc list planners`" },
];

/// `events`.
pub(crate) const EVENTS: PassDef = PassDef {
    name: "events",
    summary: "places the waits that the allocation needs between streams",
    phases: (Phase::Mem, Phase::Mem),
    options: &[],
    run: |m, _, _| place_waits(m).map_err(|e| PassError::Usage(e.to_string())),
};

/// `bufferize`.
pub(crate) const BUFFERIZE: PassDef = PassDef {
    name: "bufferize",
    summary: "gives every value a slot, in place where the row allows it; everything stays on the device",
    phases: (Phase::Graph, Phase::Mem),
    options: &[],
    run: run_bufferize,
};

fn run_bufferize(m: &mut Module, _: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let p = Problem::new(m, cx.profile)?;
    *m = super::apply(&p, &Decisions::keep_all(&p.numbers))?;
    Ok(())
}

fn run_apply(m: &mut Module, options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let file = options.get(APPLY_OPTIONS, "decisions")?;
    let text = (cx.read_file)(file)?;
    let order = Options(vec![("algo".into(), Decisions::pose_in(&text).order.name().into())]);
    (crate::graph::schedule_ops::PASS.run)(m, &order, cx)?;
    let p = Problem::new(m, cx.profile)?;
    let at = |e: &dyn fmt::Display| PassError::Usage(format!("{file}: {e}"));
    let decisions = memc_planner::read(&p.numbers, &text).map_err(|e| at(&e))?;
    *m = super::apply(&p, &decisions).map_err(|e| at(&e))?;
    // The decisions are the user's, and so are faults of the module that they lead to.
    memc_ir::verify(m).map_err(|d| PassError::Usage(format!("{file}: invalid module:\n{d}")))
}

fn run_alloc(m: &mut Module, options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let name = options.get(ALLOC_OPTIONS, "algo")?;
    let sizes = match Algorithm::named(name) {
        Some(algorithm) => allocate(m, algorithm)?,
        None if name == "search" => lowest(m)?,
        None => return Err(PassError::Usage(format!("unknown allocation algorithm `{name}`"))),
    };
    for (i, arena) in ["device", "host"].into_iter().enumerate() {
        cx.stats.push(("alloc", format!("{arena} arena bytes"), sizes.height[i]));
        cx.stats.push(("alloc", format!("{arena} load bytes"), sizes.load[i]));
    }
    Ok(())
}

/// Plans the module as it stands: its own order, one capacity, effort 2. Nothing is decided where everything
/// fits.
fn run_plan(m: &mut Module, options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let capacity = options.number(PLAN_OPTIONS, "capacity")?;
    let p = Problem::new(m, cx.profile)?;
    let name = options.get(PLAN_OPTIONS, "planner")?;
    let Some(planner) = memc_baselines::named(name) else {
        return Err(PassError::Usage(format!("unknown planner `{name}`")));
    };
    let kept = evaluate(&p.numbers, Decisions::keep_all(&p.numbers))
        .map_err(|e| PassError::Failed(e.to_string()))?;
    let kept_bytes = kept.evaluation.dev_bytes;
    let plan = if kept_bytes <= capacity {
        kept
    } else {
        match solve(&p.numbers, planner, &Request::new(capacity)) {
            Ok((plan, _)) => plan,
            Err(NoPlan::Failed(text)) => return Err(PassError::Failed(text)),
            Err(NoPlan::Infeasible(_)) => {
                let smallest = memc_baselines::smallest_feasible(&p.numbers, kept_bytes)
                    .map_err(|e| PassError::Failed(e.to_string()))?;
                let reserve = cx.profile.reserve_bytes;
                let [budget, smallest] = [capacity, smallest].map(|bytes| bytes.saturating_add(reserve));
                let report = Infeasible::new(&p.numbers, Some(&p), budget, reserve, smallest);
                return Err(PassError::Infeasible(Box::new(report)));
            }
        }
    };
    *m = super::bufferize(&p, &plan)?;
    Ok(())
}
