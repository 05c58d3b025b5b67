//! One instance at many budgets: the worth of memory.

use memc_ir::Bytes;
use serde::Serialize;

use crate::anytime::Anytime;
use crate::error::Error;
use crate::instance::Instance;
use crate::plan::{Search, Solved};
use crate::report::Report;
use crate::watch::{Event, Watch};

/// A budget, and its plan.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The plan in figures.
    #[serde(flatten)]
    pub report: Report,
    /// Whether no smaller budget has as fast a step.
    pub pareto: bool,
}

/// Plans from budget to budget.
pub struct Sweep {
    /// One for each budget, in the order given.
    pub points: Vec<Point>,
    /// Budgets that a request to stop left out.
    pub left_out: usize,
    /// Smallest budget known to have a plan.
    pub smallest_feasible_bytes: u64,
    /// Error where no budget has a plan.
    pub failure: Option<Error>,
}

/// Plans for each budget in turn, ascending. A request to stop ends the sweep once there is a plan.
pub fn sweep(
    instance: &Instance,
    budgets: &[u64],
    search: &Search,
    watch: &dyn Watch,
) -> Result<Sweep, Error> {
    let allow = search.allow;
    let (mut points, mut series) = (Vec::<Point>::new(), Anytime::new(watch));
    let (step_ns, mut fastest) = (|solved: &Solved| solved.schedule.evaluation.step_ns, None::<Solved>);
    for (i, &budget) in budgets.iter().enumerate() {
        let subject = format!("{} ({} of {})", Bytes(budget).short(), i + 1, budgets.len());
        watch.event(Event::Subject(&subject));
        let Some(mut outcome) = series.next(|| instance.plan(budget, search, watch))? else { break };
        let found = outcome.plan.as_ref().map_or(u64::MAX, step_ns);
        let pareto = found < fastest.as_ref().map_or(u64::MAX, step_ns);
        // A plan fits in more memory, too.
        if let Some(known) = fastest.take_if(|known| step_ns(known) < found) {
            outcome.plan = Ok(known);
        }
        watch.event(Event::Stage("proving a bound"));
        let report = Report::new(instance, &outcome, allow)?;
        fastest = outcome.plan.as_ref().ok().cloned();
        points.push(Point { report, pareto });
    }
    watch.event(Event::Subject(""));
    // Plans of later budgets may need less than was known before.
    let smallest_feasible_bytes = instance.smallest(allow)?;
    points.iter_mut().for_each(|p| p.report.smallest_feasible_bytes = smallest_feasible_bytes);
    let mut failure = None;
    if fastest.is_none() {
        let largest = budgets.iter().copied().max().unwrap_or(0);
        let name = search.planner.name;
        let why = format!("{name} finds no plan for any of these budgets");
        failure = Some(instance.infeasible(&[name], &why, largest, allow)?);
    }
    Ok(Sweep { left_out: budgets.len() - points.len(), points, smallest_feasible_bytes, failure })
}
