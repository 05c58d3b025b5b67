//! Worth of each starting point of the default planner: plans with all of them, without each, and
//! without any.
//!
//! Usage: `cargo run --release -p memc-baselines --example ablation [effort=N] [shares=0.5,0.25]
//! [without=NAME,...] PROBLEM.json...`; `without` leaves several out together, and plans no other variant.
//!
//! A cell is a problem and an arena of `smallest + share * (unplanned - smallest)` bytes, `smallest` being
//! what Belady's walks come down to. Every variant searches with the same limits (`Limits::effort`): the work
//! of a start that is left out goes to nobody. Prints one JSON object per cell. `step` has step times in ns,
//! `null` where there is no plan, `cpu_ms` the CPU time of one thread, by the starting point left out (`""`:
//! none, `"*"`: all).
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "a measuring program")]
#![allow(clippy::disallowed_methods, reason = "it reads the clock")]

use std::process::exit;
use std::time::Instant;

use memc_baselines::{STARTS, smallest_feasible};
use memc_planner::{Decisions, NoPlan, Planner, Problem, Request, Starts, evaluate, json, plan};
use serde_json::{Map, Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// CPU time of this thread in seconds; wall time where the system does not tell.
fn seconds(begin: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = text.as_deref().and_then(|t| t.split(' ').next()?.parse::<u64>().ok());
    ns.map_or_else(|| begin.elapsed().as_secs_f64(), |ns| ns as f64 / 1e9)
}

/// Names of all starting points.
fn names() -> Vec<&'static str> {
    let all = STARTS.first.iter().chain(STARTS.quick).chain(STARTS.thorough);
    all.map(|planner| planner.name).collect()
}

/// Step time in ns, if there is a plan, and evaluations, by the default planner with the starts that `keep`
/// accepts.
fn step(
    p: &Problem,
    request: &Request<'_>,
    keep: &dyn Fn(&str) -> bool,
) -> Result<(Option<u64>, u64), Failure> {
    let some = |planners: &[&'static Planner]| -> Vec<&Planner> {
        planners.iter().copied().filter(|planner| keep(planner.name)).collect()
    };
    let (first, quick, thorough) = (some(STARTS.first), some(STARTS.quick), some(STARTS.thorough));
    match plan(p, request, &Starts { first: &first, quick: &quick, thorough: &thorough }) {
        Ok(found) => Ok((Some(evaluate(p, found.decisions)?.evaluation.step_ns), found.evaluations)),
        Err(NoPlan::Infeasible(_)) => Ok((None, 0)),
        Err(e) => Err(e.into()),
    }
}

fn cell(p: &Problem, share: f64, effort: u32, without: &[String]) -> Result<Value, Failure> {
    let kept = evaluate(p, Decisions::keep_all(p))?.evaluation.dev_bytes;
    let smallest = smallest_feasible(p, kept)?;
    let capacity = smallest + (share * kept.saturating_sub(smallest) as f64) as u64;
    let request = Request { effort, ..Request::new(capacity) };
    let (mut steps, mut times, mut evaluations) = (Map::new(), Map::new(), Map::new());
    let outs: Vec<String> = match without {
        [] => ["", "*"].into_iter().chain(names()).map(str::to_owned).collect(),
        several => vec![String::new(), several.join(",")],
    };
    for out in outs {
        let wall = Instant::now();
        let begin = seconds(wall);
        let (ns, n) = step(p, &request, &|name| out != "*" && out.split(',').all(|o| o != name))?;
        times.insert(out.clone(), json!(((seconds(wall) - begin) * 1e3).round()));
        steps.insert(out.clone(), json!(ns));
        evaluations.insert(out, json!(n));
    }
    Ok(json!({
        "problem": p.name, "ops": p.ops.len(), "share": share, "capacity": capacity, "effort": effort,
        "ideal_ns": p.compute_ns(), "step": steps, "evaluations": evaluations, "cpu_ms": times,
    }))
}

fn cells(path: &str, shares: &[f64], effort: u32, without: &[String]) -> Result<(), Failure> {
    let text = std::fs::read_to_string(path)?;
    let p = json::parse(&text)?;
    for &share in shares {
        let mut row = cell(&p, share, effort, without)?;
        row["file"] = json!(path);
        println!("{row}");
    }
    Ok(())
}

fn main() {
    let (mut effort, mut shares, mut without) = (2, vec![0.5, 0.25], Vec::new());
    // One thread, since work is measured.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    for argument in std::env::args().skip(1) {
        if let Some(n) = argument.strip_prefix("effort=").and_then(|n| n.parse().ok()) {
            effort = n;
        } else if let Some(list) = argument.strip_prefix("shares=") {
            shares = list.split(',').filter_map(|s| s.parse().ok()).collect();
        } else if let Some(list) = argument.strip_prefix("without=") {
            without = list.split(',').map(str::to_owned).collect();
        } else {
            let run = || cells(&argument, &shares, effort, &without);
            let done = match &pool {
                Ok(pool) => pool.install(run),
                Err(e) => Err(e.into()),
            };
            if let Err(why) = done {
                eprintln!("{argument}: {why}");
                exit(1);
            }
        }
    }
}
