//! `memc sweep`: what memory buys, from budget to budget.

use clap::Args;
use memc_ir::Bytes;
use memc_planner::bound::Allow;
use memc_planner::planners::NoPlan;
use serde_json::{Value, json};

use crate::cli::{Search, Source, Target};
use crate::exit::Error;
use crate::output::{Progress, emit, table};
use crate::planner::named;
use crate::posed::{Posed, pose};
use crate::report::{Report, STOPPED, ms, quotient};
use crate::series::Series;
use crate::size::{self, Range};
use crate::solve::{Outcome, Solved, solve};

#[derive(Args)]
pub(crate) struct Sweep {
    /// A planning problem (.json, memc-problem/1) or a model
    #[command(flatten)]
    pub(crate) source: Source,
    /// Budgets as FROM:TO:STEP, with binary suffixes or as shares of the device: 6G:24G:2G, 40%:100%:10%
    #[arg(long, value_name = "FROM:TO:STEP", value_parser = size::range)]
    pub(crate) gpu_mem: Range,
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) search: Search,
    /// Print a JSON list with an object for each budget, as `memc plan --json` prints it
    #[arg(long)]
    pub(crate) json: bool,
}

/// A budget, what was planned for it, and what cannot be beaten.
struct Point {
    outcome: Outcome,
    /// The certified bound that holds for the plan, in ns, and for what it holds.
    bound: Option<(u64, &'static str)>,
    /// Whether no smaller budget has as fast a step.
    pareto: bool,
}

pub(crate) fn run(args: &Sweep) -> Result<(), Error> {
    let progress = Progress::new(args.json);
    let planner = named(&args.search.planner)?;
    let how = &args.search.how;
    let posed = pose(&args.source, &args.target, how.order(), &progress)?;
    let budgets: Vec<u64> = args.gpu_mem.sizes().map(|s| posed.bytes(s)).collect::<Result<_, _>>()?;
    let (mut points, mut series) = (Vec::new(), Series::default());
    let (step_ns, mut fastest) = (|solved: &Solved| solved.realised.evaluation.step_ns, None::<Solved>);
    for (i, &budget) in budgets.iter().enumerate() {
        progress.about(&format!("{} ({} of {})", Bytes(budget).short(), i + 1, budgets.len()));
        let Some(mut outcome) = series.next(|| solve(&posed, planner, how, budget, &progress))? else {
            progress.left_out(budgets.len() - i, "budget");
            break;
        };
        let found = outcome.plan.as_ref().map_or(u64::MAX, step_ns);
        let pareto = found < fastest.as_ref().map_or(u64::MAX, step_ns);
        // A plan fits in more memory, too.
        if let Some(known) = fastest.take_if(|known| step_ns(known) < found) {
            outcome.plan = Ok(known);
        }
        progress.stage("proving a bound");
        let bound = outcome.bound(&posed, how);
        fastest = outcome.plan.as_ref().ok().cloned();
        points.push(Point { outcome, bound, pareto });
    }
    progress.about("");
    let text = if args.json {
        to_json(&posed, &points, how.allow())?
    } else {
        to_text(&posed, planner.name, &points, how.allow())?
    };
    progress.done();
    emit(&text)?;
    if fastest.is_some() {
        return Ok(());
    }
    let largest = budgets.iter().copied().max().unwrap_or(0);
    let why = format!("{} finds no plan for any of these budgets", planner.name);
    Err(Error::Said(posed.infeasible(&[planner.name], &why, largest, how.allow())?.to_string()))
}

fn to_json(posed: &Posed, points: &[Point], allow: Allow) -> Result<String, Error> {
    let object = |point: &Point| -> Result<Value, Error> {
        let mut object = Report { posed, outcome: &point.outcome, bound: point.bound, allow }.json()?;
        object["pareto"] = point.pareto.into();
        Ok(object)
    };
    let objects = points.iter().map(object).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("{}\n", json!(objects)))
}

/// What holds of a row.
fn notes(of: &[(bool, &str)]) -> String {
    of.iter().filter(|n| n.0).map(|n| n.1).collect::<Vec<_>>().join(", ")
}

fn to_text(posed: &Posed, planner: &str, points: &[Point], allow: Allow) -> Result<String, Error> {
    let (smallest, ideal) = (posed.smallest(allow)?, posed.ideal_ns());
    let row = |point: &Point| -> Vec<String> {
        let dash = || "-".to_string();
        let budget = Bytes(point.outcome.budget).short();
        let Some((_, r)) = point.outcome.of(posed) else {
            let why = match &point.outcome.plan {
                Err(NoPlan::Failed(why)) => format!("failed: {why}"),
                _ if point.outcome.budget < smallest => "below the smallest feasible".into(),
                _ => "no plan found".into(),
            };
            let why = notes(&[(true, &why), (point.outcome.stopped, "stopped")]);
            return vec![budget, dash(), dash(), dash(), dash(), dash(), dash(), dash(), dash(), why];
        };
        let e = &r.evaluation;
        let bound = point.bound.map(|b| b.0);
        vec![
            budget,
            ms(e.step_ns),
            quotient(e.step_ns, ideal),
            bound.map_or_else(dash, |b| quotient(b, ideal)),
            bound.map_or_else(dash, |b| quotient(e.step_ns, b)),
            Bytes(e.load_bytes + posed.reserve_bytes).short(),
            Bytes(e.swap_out_bytes).short(),
            Bytes(e.swap_in_bytes).short(),
            ms(e.recompute_ns),
            notes(&[(point.pareto, "Pareto"), (point.outcome.stopped, "stopped")]),
        ]
    };
    let rows: Vec<Vec<String>> = points.iter().map(row).collect();
    let header =
        ["budget", "step", "/ ideal", "bound", "/ bound", "peak", "swapped out", "in", "recomputed", ""];
    let stopped = if points.iter().any(|p| p.outcome.stopped) { STOPPED } else { "" };
    Ok(format!(
        "{}\n{} by {planner}: ideal {}, unplanned peak {}; smallest feasible {}{}\nbound: the certified one, over the ideal; \
         Pareto: no smaller budget here has as fast a step\n{stopped}",
        table(&header, &rows),
        posed.name(),
        ms(ideal),
        Bytes(posed.given().kept.evaluation.dev_bytes + posed.reserve_bytes).short(),
        Bytes(smallest),
        posed.and_reserve(),
    ))
}
