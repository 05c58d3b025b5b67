//! Distance of the default planner from the exact optimum on small random problems, as one JSON object.
//!
//! Usage: `cargo run --release -p memc-baselines --example gap [PROBLEMS [EFFORT]]`; gaps are parts of the
//! optimum.
#![allow(clippy::print_stdout, reason = "a measuring program")]

#[path = "../tests/optimality/rows.rs"]
mod rows;

use serde_json::json;

/// Problems described, those with the largest gaps first.
const DESCRIBED: usize = 20;

fn main() {
    let argument = |k: usize| std::env::args().nth(k).and_then(|a| a.parse::<u32>().ok());
    let (count, effort) = (argument(1).unwrap_or(200), argument(2).unwrap_or(2));
    let (mut rows, unproven) = rows::rows(count as usize, effort);
    rows.sort_by(|a, b| b.gap().unwrap_or(f64::MAX).total_cmp(&a.gap().unwrap_or(f64::MAX)));
    // Ascending.
    let gaps: Vec<f64> = rows.iter().rev().filter_map(rows::Row::gap).collect();
    let quantile = |part: usize| gaps.get((gaps.len().saturating_sub(1)) * part / 100);
    let above = |most: f64| gaps.iter().filter(|&&g| g > most).count();
    let mean = gaps.iter().map(|g| g.max(0.0)).sum::<f64>() / gaps.len().max(1) as f64;
    let report = json!({
        "problems": rows.len(),
        "left_out_unproven": unproven,
        "effort": effort,
        "without_plan": rows.len() - gaps.len(),
        "mean_gap": mean,
        "worst_gap": gaps.last(),
        "least_gap": gaps.first(),
        "quantiles": {"50": quantile(50), "75": quantile(75), "90": quantile(90),
            "95": quantile(95), "99": quantile(99)},
        "optimal": gaps.len() - above(0.0),
        "above_1_percent": above(0.01),
        "above_5_percent": above(0.05),
        "ops": rows.iter().map(|r| r.sample.problem.ops.len()).sum::<usize>(),
        "worst": rows.iter().take(DESCRIBED).map(rows::Row::describe).collect::<Vec<_>>(),
    });
    println!("{report:#}");
}
