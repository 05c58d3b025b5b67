//! Measures the speed of evaluation; prints one JSON object per problem.
//!
//! Usage: `cargo run --release -p memc-planner --example evaluator PROBLEM.json...`
//!
//! Memory is half of what everything at once needs, or what the device has if that is less; gaps are swapped,
//! those with most bytes times steps first, until that much suffices or no gap is left. `evaluate` is the
//! recurrence that searches use, `simulate` the discrete-event model, `evaluate` all from decisions to their
//! figures, layout included. One thread. An op-event is an op or a copy of the steady-state step that an
//! evaluation is about; the steps that lead there count for time, not for events. Times are those of the
//! fastest of many batches of repetitions.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "a measuring program")]
#![allow(clippy::disallowed_methods, reason = "it reads the clock")]

use std::hint::black_box;
use std::process::exit;
use std::time::Instant;

use memc_planner::{
    AccessSequence, Copies, Decisions, GapIx, Genotype, Problem, Swap, Timing, evaluate, jobs_and_accesses,
    json, simulate, trace, waits,
};
use serde_json::json;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Time of all batches of calls, and least time of one batch, in seconds.
const SECONDS: (f64, f64) = (1.0, 0.0002);

/// Mean time of a call in ns, in the batch of calls that other programs on the machine disturbed least.
fn time<R>(mut f: impl FnMut() -> R) -> f64 {
    black_box(f());
    let (begin, mut batch, mut least) = (Instant::now(), 1u32, f64::MAX);
    while begin.elapsed().as_secs_f64() < SECONDS.0 {
        let start = Instant::now();
        for _ in 0..batch {
            black_box(f());
        }
        let spent = start.elapsed().as_secs_f64();
        least = least.min(spent / f64::from(batch));
        if spent < SECONDS.1 && batch < 1 << 20 {
            batch *= 2;
        }
    }
    1e9 * least
}

/// Swaps large and long gaps until `capacity` is enough.
fn genotype(p: &Problem, capacity: u64) -> Genotype {
    let sequence = AccessSequence::of_order(p, p.ops.ids());
    let n = sequence.steps.len();
    let mut s = Genotype { early: true, ..Genotype::keep_all(sequence) };
    let mut open: Vec<GapIx> = s
        .swaps
        .ids()
        .filter(|&g| p.device.can_swap() && s.sequence.gaps[g].open() && !s.sequence.gaps[g].arrives())
        .collect();
    open.sort_by_key(|&g| {
        let gap = &s.sequence.gaps[g];
        (std::cmp::Reverse(gap.bytes * (gap.to - gap.from) as u64), g)
    });
    for chunk in open.chunks(16) {
        if s.usage().into_values().max().unwrap_or(0) <= capacity {
            break;
        }
        for &g in chunk {
            s.swaps[g] = Some(Swap::longest(&s.sequence.gaps[g], n));
        }
    }
    s
}

fn report(path: &str) -> Result<serde_json::Value, Failure> {
    let text = std::fs::read_to_string(path)?;
    let p = json::parse(&text)?;
    let kept = evaluate(&p, Decisions::keep_all(&p))?.evaluation.load_bytes;
    let capacity = (kept / 2).min(p.device.memory_bytes);
    let s = genotype(&p, capacity);
    let (copies, outs) = (Copies::new(&p, &s.sequence), s.copies_out(&p));
    let moved =
        outs.values().filter(|&&at| at >= 0).count() + s.swaps.ids().filter(|&g| s.copies_in(g)).count();
    let events = (p.ops.len() + moved) as f64;
    let mut timing = Timing::default();
    let timed = time(|| timing.evaluate(&s, &copies, &outs));
    let decisions = s.decisions(&p);
    let schedule = evaluate(&p, decisions.clone())?;
    let (jobs, accesses) = jobs_and_accesses(&p, &schedule.trace);
    let simulated = time(|| simulate(&p.device, &jobs, &schedule.waits));
    let ms = |ns: f64| ns / 1e6;
    Ok(json!({
        "problem": p.name, "file": path, "ops": p.ops.len(), "copies": moved, "gaps": s.swaps.len(),
        "capacity": capacity,
        "evaluate_us": timed / 1e3,
        "evaluations_per_s": 1e9 / timed,
        "op_events_per_s": 1e9 * events / timed,
        "evaluated_step_ns": timing.step_ns,
        "simulate_us": simulated / 1e3,
        "simulations_per_s": 1e9 / simulated,
        "simulated_op_events_per_s": 1e9 * jobs.len() as f64 / simulated,
        "simulated_step_ns": schedule.evaluation.step_ns,
        "evaluate_ms": ms(time(|| evaluate(&p, decisions.clone()))),
        "decisions_ms": ms(time(|| s.decisions(&p))),
        "trace_ms": ms(time(|| trace(&p, &decisions))),
        "waits_ms": ms(time(|| waits(&accesses))),
    }))
}

fn main() {
    for path in std::env::args().skip(1) {
        match report(&path) {
            Ok(report) => println!("{report}"),
            Err(why) => {
                eprintln!("{path}: {why}");
                exit(1);
            }
        }
    }
}
