//! Plans of planners over time: one JSON object per problem and planner.
//!
//! `curve` has `[seconds, evaluations, step_ns]` for every plan better than those before, from the moment
//! that planning begins. `alive` has `[seconds, evaluations, best, mean, worst]` for every generation of a
//! search with a population, in ns by the planner's own model.
//!
//! Usage: `cargo run --release -p memc-baselines --example curve [planners=memc,NAME,...] [effort=N] [seed=N]
//! [share=S] [memory=BYTES] [swap-only] PROBLEM.json...`; memory is that of the problem's device times the
//! share, unless it is given.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "a measuring program")]
#![allow(clippy::disallowed_methods, reason = "it reads the clock")]

use std::process::exit;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use memc_baselines::named;
use memc_planner::{Alive, Allow, NoPlan, Problem, Progress, Request, json, solve};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Seconds, evaluations, and times of the best plan that is alive, of all on average, and of the worst.
type Generation = (f64, u64, u64, u64, u64);

struct Options {
    planners: Vec<String>,
    effort: u32,
    seed: u64,
    share: f64,
    memory: Option<u64>,
    recompute: bool,
}

fn curve(p: &Problem, name: &str, options: &Options) -> Result<Value, Failure> {
    let capacity = options.memory.unwrap_or((p.device.memory_bytes as f64 * options.share) as u64);
    let planner = named(name).ok_or_else(|| format!("no planner is called {name}"))?;
    let points: Mutex<Vec<(f64, u64, u64)>> = Mutex::default();
    let generations: Mutex<Vec<Generation>> = Mutex::default();
    let begin = Instant::now();
    let watch = |found: Progress| {
        let mut points = points.lock().unwrap_or_else(PoisonError::into_inner);
        if points.last().is_none_or(|last| found.step_ns < last.2) {
            points.push((begin.elapsed().as_secs_f64(), found.evaluations, found.step_ns));
        }
    };
    let alive = |a: &Alive| {
        let (Some(&best), Some(&worst)) = (a.step_ns.iter().min(), a.step_ns.iter().max()) else { return };
        let mean = a.step_ns.iter().sum::<u64>() / a.step_ns.len() as u64;
        let mut generations = generations.lock().unwrap_or_else(PoisonError::into_inner);
        generations.push((begin.elapsed().as_secs_f64(), a.evaluations, best, mean, worst));
    };
    let allow = Allow { recompute: options.recompute, ..Allow::ALL };
    let (effort, seed) = (options.effort, options.seed);
    let request = Request { effort, seed, allow, watch: &watch, alive: &alive, ..Request::new(capacity) };
    let (step_ns, evaluations) = match solve(p, planner, &request) {
        Ok((schedule, evaluations)) => (Some(schedule.evaluation.step_ns), evaluations),
        Err(NoPlan::Infeasible(_)) => (None, 0),
        Err(e) => return Err(e.into()),
    };
    let seconds = begin.elapsed().as_secs_f64();
    let points = points.into_inner().unwrap_or_else(PoisonError::into_inner);
    let generations = generations.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(json!({
        "problem": p.name, "planner": name, "ops": p.ops.len(), "capacity": capacity, "effort": effort,
        "seed": seed, "recompute": options.recompute, "ideal_ns": p.compute_ns(), "step_ns": step_ns,
        "evaluations": evaluations, "seconds": seconds, "first_plan_s": points.first().map(|p| p.0),
        "curve": points, "alive": generations,
    }))
}

fn print(path: &str, options: &Options) -> Result<(), Failure> {
    let p = json::parse(&std::fs::read_to_string(path)?)?;
    for planner in &options.planners {
        println!("{}", curve(&p, planner, options)?);
    }
    Ok(())
}

fn main() {
    let planners = vec!["memc".to_owned()];
    let mut options = Options { planners, effort: 2, seed: 0, share: 1.0, memory: None, recompute: true };
    for argument in std::env::args().skip(1) {
        let (key, value) = argument.split_once('=').unwrap_or((&argument, ""));
        let number = value.parse::<u64>();
        match (key, number, value.parse::<f64>()) {
            ("planners", ..) => options.planners = value.split(',').map(str::to_owned).collect(),
            ("effort", Ok(n), _) => options.effort = n.min(5) as u32,
            ("seed", Ok(n), _) => options.seed = n,
            ("memory", Ok(n), _) => options.memory = Some(n),
            ("share", _, Ok(share)) => options.share = share,
            ("swap-only", ..) => options.recompute = false,
            _ => {
                if let Err(why) = print(&argument, &options) {
                    eprintln!("{argument}: {why}");
                    exit(1);
                }
            }
        }
    }
}
