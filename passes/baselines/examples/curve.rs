//! Plans of the default planner over time: one JSON object per problem with `[seconds, evaluations, step_ns]`
//! for every plan better than those before, from the moment that planning begins.
//!
//! Usage: `cargo run --release -p memc-baselines --example curve [effort=N] [share=S] [swap-only]
//! PROBLEM.json...`; memory is that of the problem's device times the share.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "a measuring program")]
#![allow(clippy::disallowed_methods, reason = "it reads the clock")]

use std::process::exit;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use memc_baselines::named;
use memc_planner::{Allow, Progress, Request, json, solve};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Options {
    effort: u32,
    share: f64,
    recompute: bool,
}

fn curve(path: &str, options: &Options) -> Result<Value, Failure> {
    let text = std::fs::read_to_string(path)?;
    let p = json::parse(&text)?;
    let capacity = (p.device.memory_bytes as f64 * options.share) as u64;
    let planner = named("memc").ok_or("the default planner is not known")?;
    let points: Mutex<Vec<(f64, u64, u64)>> = Mutex::new(Vec::new());
    let begin = Instant::now();
    let watch = |found: Progress| {
        let mut points = points.lock().unwrap_or_else(PoisonError::into_inner);
        if points.last().is_none_or(|last| found.step_ns < last.2) {
            points.push((begin.elapsed().as_secs_f64(), found.evaluations, found.step_ns));
        }
    };
    let allow = Allow { recompute: options.recompute, ..Allow::ALL };
    let request = Request { effort: options.effort, allow, watch: &watch, ..Request::new(capacity) };
    let (schedule, evaluations) = solve(&p, planner, &request)?;
    let seconds = begin.elapsed().as_secs_f64();
    let step_ns = schedule.evaluation.step_ns;
    let points = points.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(json!({
        "problem": p.name, "ops": p.ops.len(), "capacity": capacity, "effort": options.effort,
        "recompute": options.recompute, "ideal_ns": p.compute_ns(), "step_ns": step_ns,
        "evaluations": evaluations,
        "seconds": seconds, "first_plan_s": points.first().map(|p| p.0), "curve": points,
    }))
}

fn main() {
    let mut options = Options { effort: 2, share: 1.0, recompute: true };
    for argument in std::env::args().skip(1) {
        if let Some(effort) = argument.strip_prefix("effort=").and_then(|n| n.parse().ok()) {
            options.effort = effort;
        } else if let Some(share) = argument.strip_prefix("share=").and_then(|s| s.parse().ok()) {
            options.share = share;
        } else if argument == "swap-only" {
            options.recompute = false;
        } else {
            match curve(&argument, &options) {
                Ok(curve) => println!("{curve}"),
                Err(why) => {
                    eprintln!("{argument}: {why}");
                    exit(1);
                }
            }
        }
    }
}
