//! `memc bound`.

use clap::Args;
use memc_ir::Bytes;
use memc_planner::Order;
use memc_planner::bound::{Allow, Bound as Bounds, Infeasible, bound, order_free};
use serde_json::{Value, json};

use crate::cli::Question;
use crate::exit::Error;
use crate::output::{Progress, emit, table};
use crate::posed::{Posed, pose};

#[derive(Args)]
pub(crate) struct Bound {
    #[command(flatten)]
    pub(crate) question: Question,
    /// Only scripts that swap nothing
    #[arg(long)]
    pub(crate) no_swap: bool,
    /// Only scripts that run every op once
    #[arg(long)]
    pub(crate) no_recompute: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Bound) -> Result<(), Error> {
    let progress = Progress::new(args.json);
    let posed = pose(&args.question.source, &args.question.target, Some(Order::Given), &progress)?;
    let budget = posed.budget(args.question.gpu_mem)?;
    let capacity = posed.capacity(budget);
    let numbers = posed.given().numbers();
    progress.stage("bounding");
    let row = |allow| Row {
        allow,
        fixed: bound(numbers, capacity, allow),
        free: order_free(numbers, capacity, allow).ok(),
    };
    let found: Vec<Row> = allowed(args).into_iter().map(row).collect();
    progress.done();
    let least = found.iter().filter_map(|row| row.fixed.as_ref().err()).min_by_key(|e| e.bytes);
    let text = if args.json { to_json(&posed, budget, &found) } else { to_text(&posed, budget, &found) };
    match least {
        Some(e) if found.iter().all(|row| row.free.is_none()) => {
            let text = format!("nothing fits {}: {}", Bytes(budget), why(&posed, e));
            if args.json {
                emit(&to_json(&posed, budget, &found))?;
                return Err(Error::Said(text));
            }
            Err(Error::Infeasible(text, None))
        }
        _ => emit(&text),
    }
}

/// Bounds on what some scripts take.
struct Row {
    allow: Allow,
    /// Of those that keep the given order.
    fixed: Result<Bounds, Infeasible>,
    /// Of all, in ns; none where nothing fits.
    free: Option<u64>,
}

/// What the options leave, the freest last.
fn allowed(args: &Bound) -> Vec<Allow> {
    let all = [(true, false), (false, true), (true, true)];
    let mut out: Vec<Allow> = all
        .iter()
        .map(|&(swap, recompute)| Allow {
            swap: swap && !args.no_swap,
            recompute: recompute && !args.no_recompute,
        })
        .collect();
    if args.no_swap || args.no_recompute {
        out.drain(..2);
    }
    out
}

fn name(allow: Allow) -> &'static str {
    match (allow.swap, allow.recompute) {
        (true, false) => "swap only",
        (false, true) => "recompute only",
        (true, true) => "swap and recompute",
        (false, false) => "neither",
    }
}

/// What does not fit.
fn why(posed: &Posed, e: &Infeasible) -> String {
    let op = posed.given().numbers().ops.get(e.op).map_or("the step", |op| op.label.as_str());
    format!("{} has to have {} on the device", op, Bytes(e.bytes + posed.reserve_bytes))
}

fn ratio(ns: u64, ideal: u64) -> f64 {
    ns as f64 / ideal.max(1) as f64
}

fn to_text(posed: &Posed, budget: u64, found: &[Row]) -> String {
    let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
    let ideal = posed.given().numbers().compute_ns();
    let cells = |ns: Option<u64>| match ns {
        None => ["infeasible".into(), "-".into()],
        Some(ns) => [ms(ns), format!("{:.4}", ratio(ns, ideal))],
    };
    let fixed = |row: &Row| row.fixed.as_ref().ok().map(|b| b.fixed_order_ns);
    let row = |row: &Row| {
        let cells = cells(fixed(row)).into_iter().chain(cells(row.free));
        std::iter::once(name(row.allow).to_string()).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    let infeasible = found.iter().filter_map(|row| {
        let e = row.fixed.as_ref().err()?;
        let order = if row.free.is_some() { " in the given order" } else { "" };
        Some(format!("{}{order}: {}\n", name(row.allow), why(posed, e)))
    });
    let infeasible: String = infeasible.collect();
    format!(
        "{}\n{infeasible}{}: no step is faster in a budget of {}; ideal {}\n",
        table(&["", "given order", "/ ideal", "every order", "/ ideal"], &rows),
        posed.given().numbers().name,
        Bytes(budget),
        ms(ideal),
    )
}

fn to_json(posed: &Posed, budget: u64, found: &[Row]) -> String {
    let ideal = posed.given().numbers().compute_ns();
    let row = |row: &Row| -> Value {
        let over = |ns: Option<u64>| ns.map(|ns| ratio(ns, ideal));
        let fixed = row.fixed.as_ref().ok().map(|b| b.fixed_order_ns);
        json!({
            "swap": row.allow.swap, "recompute": row.allow.recompute, "feasible": row.free.is_some(),
            "fixed_order_ns": fixed, "fixed_order_over_ideal": over(fixed),
            "order_free_ns": row.free, "order_free_over_ideal": over(row.free),
            "least_bytes": row.fixed.as_ref().err().map(|e| e.bytes + posed.reserve_bytes),
        })
    };
    let bounds: Vec<Value> = found.iter().map(row).collect();
    let object = json!({
        "problem": posed.given().numbers().name, "gpu_mem_bytes": budget, "ideal_ns": ideal, "bounds": bounds,
    });
    format!("{object}\n")
}
