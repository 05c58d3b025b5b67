//! Worth of crossover: the default planner's memetic search, and independent restarts of its local search,
//! with the same work and several seeds.
//!
//! Usage: `cargo run --release -p memc-baselines --example restarts [effort=2] [seeds=10]
//! [shares=0.5] PROBLEM.json...`
//!
//! A cell is a problem and a share of its unplanned arena. Restarts begin at the same first generation: each
//! of its individuals is improved again and again, with other random numbers. Prints one JSON object per
//! cell: step times in ns by seed, `null` where there is no plan, and the plans evaluated in all.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "a measuring program")]

use std::process::exit;

use memc_baselines::STARTS;
use memc_planner::{Decisions, NoPlan, Problem, Request, evaluate, json, plan};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Step time in ns, if there is a plan, and evaluations.
fn step(p: &Problem, request: &Request<'_>) -> Result<(Option<u64>, u64), Failure> {
    match plan(p, request, &STARTS) {
        Ok(found) => Ok((Some(evaluate(p, found.decisions)?.evaluation.step_ns), found.evaluations)),
        Err(NoPlan::Infeasible(_)) => Ok((None, 0)),
        Err(e) => Err(e.into()),
    }
}

fn cell(p: &Problem, share: f64, effort: u32, seeds: u64) -> Result<Value, Failure> {
    let kept = evaluate(p, Decisions::keep_all(p))?.evaluation.dev_bytes;
    let capacity = (share * kept as f64) as u64;
    let mut row = json!({
        "problem": p.name, "ops": p.ops.len(), "share": share, "capacity": capacity, "effort": effort,
        "ideal_ns": p.compute_ns(),
    });
    for (name, restarts) in [("memetic", false), ("restarts", true)] {
        let (mut steps, mut evaluations) = (Vec::new(), 0);
        for seed in 0..seeds {
            let (ns, n) = step(p, &Request { effort, seed, restarts, ..Request::new(capacity) })?;
            steps.push(ns);
            evaluations += n;
        }
        row[name] = json!({ "step_ns": steps, "evaluations": evaluations });
    }
    Ok(row)
}

fn cells(path: &str, shares: &[f64], effort: u32, seeds: u64) -> Result<(), Failure> {
    let p = json::parse(&std::fs::read_to_string(path)?)?;
    for &share in shares {
        println!("{}", cell(&p, share, effort, seeds)?);
    }
    Ok(())
}

fn main() {
    let (mut effort, mut seeds, mut shares) = (2, 10, vec![0.5]);
    for argument in std::env::args().skip(1) {
        if let Some(n) = argument.strip_prefix("effort=").and_then(|n| n.parse().ok()) {
            effort = n;
        } else if let Some(n) = argument.strip_prefix("seeds=").and_then(|n| n.parse().ok()) {
            seeds = n;
        } else if let Some(list) = argument.strip_prefix("shares=") {
            shares = list.split(',').filter_map(|s| s.parse().ok()).collect();
        } else if let Err(why) = cells(&argument, &shares, effort, seeds) {
            eprintln!("{argument}: {why}");
            exit(1);
        }
    }
}
