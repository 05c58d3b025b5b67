//! Every planner on one instance.

use memc_planner::Planner;

use crate::anytime::Anytime;
use crate::error::Error;
use crate::instance::Instance;
use crate::plan::{Outcome, Search};
use crate::report::Report;
use crate::watch::{Event, Watch};

/// Planners side by side.
pub struct Comparison {
    /// One for each planner that was asked: the fastest step first, of equal ones that with less traffic.
    pub reports: Vec<Report>,
    /// Planners that a request to stop left out.
    pub left_out: usize,
    /// Smallest budget known to have a plan by any of them.
    pub smallest_feasible_bytes: u64,
    /// Error where no planner found a plan.
    pub failure: Option<Error>,
}

/// Plans with each planner in turn. A planner without a plan does not end the comparison; a request to stop
/// does, once there is a plan.
pub fn compare(
    instance: &Instance,
    planners: &[&'static Planner],
    budget: u64,
    search: &Search,
    watch: &dyn Watch,
) -> Result<Comparison, Error> {
    let (mut outcomes, mut series) = (Vec::<Outcome>::new(), Anytime::new(watch));
    for (i, planner) in planners.iter().enumerate() {
        let subject = format!("{} ({} of {})", planner.name, i + 1, planners.len());
        watch.event(Event::Subject(&subject));
        let search = Search { planner, ..search.clone() };
        let Some(outcome) = series.next(|| instance.plan(budget, &search, watch))? else { break };
        outcomes.push(outcome);
    }
    watch.event(Event::Subject(""));
    watch.event(Event::Stage("proving a bound"));
    let mut reports = Vec::new();
    for outcome in &outcomes {
        let key = outcome.of(instance).map_or((1, (0, 0, 0)), |(_, plan)| (0, plan.key()));
        reports.push((key, Report::new(instance, outcome, search.allow)?));
    }
    // Equal keys stay in the order asked for.
    reports.sort_by_key(|r| r.0);
    let mut failure = None;
    if !reports.iter().any(|r| r.1.feasible) {
        let asked: Vec<&str> = planners.iter().map(|p| p.name).collect();
        let why = "no planner that was asked finds a plan";
        failure = Some(instance.infeasible(&asked, why, budget, search.allow)?);
    }
    Ok(Comparison {
        left_out: planners.len() - outcomes.len(),
        reports: reports.into_iter().map(|r| r.1).collect(),
        smallest_feasible_bytes: instance.smallest(search.allow)?,
        failure,
    })
}
