//! `memc compare`: every planner on one problem.

use clap::Args;
use memc_ir::Bytes;
use memc_planner::bound::Allow;
use memc_planner::planners::{NoPlan, PLANNERS, Planner};
use serde_json::Value;

use crate::cli::{How, Question};
use crate::exit::Error;
use crate::output::{Progress, emit, table};
use crate::planner::named;
use crate::posed::{Posed, pose};
use crate::report::{Report, STOPPED, ms, quotient};
use crate::series::Series;
use crate::solve::solve;

#[derive(Args)]
pub(crate) struct Compare {
    #[command(flatten)]
    pub(crate) question: Question,
    /// Planners to compare, separated by commas [default: all of `memc list planners`]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) planners: Vec<String>,
    #[command(flatten)]
    pub(crate) how: How,
    /// Print a JSON list with an object for each planner, as `memc plan --json` prints it
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Compare) -> Result<(), Error> {
    let progress = Progress::new(args.json);
    let planners: Vec<&Planner> = match args.planners.as_slice() {
        [] => PLANNERS.iter().collect(),
        names => names.iter().map(|n| named(n.trim())).collect::<Result<_, _>>()?,
    };
    let posed = pose(&args.question.source, &args.question.target, args.how.order(), &progress)?;
    let budget = posed.budget(args.question.gpu_mem)?;
    let (mut outcomes, mut series) = (Vec::new(), Series::default());
    for (i, planner) in planners.iter().enumerate() {
        progress.about(&format!("{} ({} of {})", planner.name, i + 1, planners.len()));
        let Some(outcome) = series.next(|| solve(&posed, planner, &args.how, budget, &progress))? else {
            progress.left_out(planners.len() - i, "planner");
            break;
        };
        outcomes.push(outcome);
    }
    progress.about("");
    progress.stage("proving a bound");
    let mut reports: Vec<Report<'_>> = outcomes.iter().map(|o| Report::new(&posed, o, &args.how)).collect();
    // Those of one step time by what they move, then in the order asked for.
    reports.sort_by_key(|r| r.outcome.of(&posed).map_or((1, (0, 0, 0)), |(_, plan)| (0, plan.key())));
    let text = if args.json {
        let objects = reports.iter().map(Report::json).collect::<Result<Vec<Value>, _>>()?;
        format!("{}\n", Value::from(objects))
    } else {
        text(&posed, budget, &reports, args.how.allow())?
    };
    progress.done();
    emit(&text)?;
    if reports.iter().any(|r| r.outcome.plan.is_ok()) {
        return Ok(());
    }
    let asked: Vec<&str> = planners.iter().map(|p| p.name).collect();
    let why = "no planner that was asked finds a plan";
    Err(Error::Said(posed.infeasible(&asked, why, budget, args.how.allow())?.to_string()))
}

fn text(posed: &Posed, budget: u64, reports: &[Report<'_>], allow: Allow) -> Result<String, Error> {
    let mut failures = String::new();
    let mut rows = Vec::new();
    for r in reports {
        let Some((_, plan)) = r.outcome.of(posed) else {
            let verdict = if let Err(NoPlan::Failed(_)) = r.outcome.plan { "failed" } else { "no plan" };
            let early = if r.outcome.stopped { " (search stopped early)" } else { "" };
            let why = r.why().unwrap_or_default();
            failures.push_str(&format!("{}: {verdict}: {why}{early}\n", r.outcome.planner));
            continue;
        };
        let e = &plan.evaluation;
        let mark = if rows.is_empty() { "*" } else { "" };
        let bound = r.bound.map_or_else(|| "-".into(), |b| quotient(e.step_ns, b.0));
        let early = if r.outcome.stopped { ", stopped" } else { "" };
        rows.push(vec![
            format!("{}{mark}", r.outcome.planner),
            ms(e.step_ns),
            quotient(e.step_ns, posed.ideal_ns()),
            bound,
            Bytes(e.load_bytes + posed.reserve_bytes).short(),
            Bytes(e.swap_out_bytes).short(),
            Bytes(e.swap_in_bytes).short(),
            ms(e.recompute_ns),
            format!("{:.2} s{early}", r.outcome.plan_ns as f64 / 1e9),
        ]);
    }
    let header =
        ["planner", "step", "/ ideal", "/ bound", "peak", "swapped out", "in", "recomputed", "plan time"];
    let body = if rows.is_empty() { String::new() } else { table(&header, &rows) + "\n" };
    if !failures.is_empty() {
        failures.push('\n');
    }
    let stopped = if reports.iter().any(|r| r.outcome.stopped) { STOPPED } else { "" };
    Ok(format!(
        "{body}{failures}{} in a budget of {}; ideal {}, unplanned peak {}; smallest feasible {}{}\n\
         / bound: over the certified bound for the order as given, or for any order where a plan has another\n{stopped}",
        posed.name(),
        Bytes(budget),
        ms(posed.ideal_ns()),
        Bytes(posed.given().kept.evaluation.dev_bytes + posed.reserve_bytes).short(),
        Bytes(posed.smallest(allow)?).short(),
        posed.and_reserve(),
    ))
}
