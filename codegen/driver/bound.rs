//! `memc bound`.

use clap::Args;
use memc_ir::Bytes;
use memc_planner::Order;
use memc_planner::bound::{Allow, Bound as Bounds, Infeasible, bound};
use serde_json::{Value, json};

use crate::cli::Question;
use crate::exit::Error;
use crate::output::{Progress, emit, table};
use crate::posed::{Posed, pose};
use crate::report::{over, quotient};

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
    let found: Vec<Row> =
        allowed(args).into_iter().map(|allow| (allow, bound(numbers, capacity, allow))).collect();
    progress.done();
    let none = infeasible(&posed, budget, &found);
    if args.json {
        emit(&to_json(&posed, budget, &found, none.as_deref()))?;
        return none.map_or(Ok(()), |why| Err(Error::Said(why)));
    }
    match none {
        Some(why) => Err(Error::Infeasible(why, None)),
        None => emit(&to_text(&posed, budget, &found)),
    }
}

/// Why there is no plan, whatever scripts may do, if there is none.
fn infeasible(posed: &Posed, budget: u64, found: &[Row]) -> Option<String> {
    let failures: Option<Vec<(Allow, &Infeasible)>> =
        found.iter().map(|(allow, b)| Some((*allow, b.as_ref().err()?))).collect();
    let (allow, least) = failures?.into_iter().min_by_key(|f| f.1.bytes)?;
    Some(format!("nothing fits {}: {}", Bytes(budget), why(posed, allow, least)))
}

type Row = (Allow, Result<Bounds, Infeasible>);

/// The bounds of a row in ns: for the given order, and for every order.
fn times(b: &Result<Bounds, Infeasible>) -> [Option<u64>; 2] {
    let b = b.as_ref().ok();
    [b.and_then(|b| b.fixed_order.ok()), b.map(|b| b.order_free_ns)]
}

/// Why nothing fits, in any order or in the given one.
fn failure(b: &Result<Bounds, Infeasible>) -> Option<&Infeasible> {
    b.as_ref().map_or_else(Some, |b| b.fixed_order.as_ref().err())
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
fn why(posed: &Posed, allow: Allow, e: &Infeasible) -> String {
    let p = posed.given().numbers();
    let op = p.ops.get(e.op).map_or("the step", |op| op.label.as_str());
    // Of an op that does not fit by itself, it does not matter what the link could do for others.
    let others = p.ops.get(e.op).is_some_and(|_| p.working_set_bytes(e.op) < e.bytes);
    let note = posed.cut_off(allow).filter(|_| others).map_or_else(String::new, |note| format!("; {note}"));
    let (bytes, reserve) = (Bytes(e.bytes + posed.reserve_bytes), posed.and_reserve());
    format!("{op} has to have {bytes} on the device{reserve}{note}")
}

fn to_text(posed: &Posed, budget: u64, found: &[Row]) -> String {
    let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
    let ideal = posed.given().numbers().compute_ns();
    let cells = |ns: Option<u64>| match ns {
        None => ["infeasible".into(), "-".into()],
        Some(ns) => [ms(ns), quotient(ns, ideal)],
    };
    let row = |(allow, b): &Row| {
        std::iter::once(name(*allow).to_string()).chain(times(b).into_iter().flat_map(cells)).collect()
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    let infeasible = found.iter().filter_map(|(allow, b)| {
        let order = if b.is_ok() { " in the given order" } else { "" };
        Some(format!("{}{order}: {}\n", name(*allow), why(posed, *allow, failure(b)?)))
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

fn to_json(posed: &Posed, budget: u64, found: &[Row], none: Option<&str>) -> String {
    let ideal = posed.given().numbers().compute_ns();
    let row = |(allow, b): &Row| -> Value {
        let over = |ns: Option<u64>| over(ns?, ideal);
        let [fixed, free] = times(b);
        json!({
            "swap": allow.swap, "recompute": allow.recompute, "feasible": b.is_ok(),
            "fixed_order_ns": fixed, "fixed_order_over_ideal": over(fixed),
            "order_free_ns": free, "order_free_over_ideal": over(free),
            "least_bytes": failure(b).map(|e| e.bytes + posed.reserve_bytes),
            "why": failure(b).map(|e| why(posed, *allow, e)),
        })
    };
    let bounds: Vec<Value> = found.iter().map(row).collect();
    let object = json!({
        "problem": posed.given().numbers().name, "gpu_mem_bytes": budget, "ideal_ns": ideal,
        "feasible": none.is_none(), "why": none, "bounds": bounds,
    });
    format!("{object}\n")
}
