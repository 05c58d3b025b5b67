//! The default planner against exact optima of small random problems.

mod rows;

use memc_planner::{bound, sample::ALLOWED};
use rows::rows;

/// Problems.
const COUNT: usize = 200;

#[test]
fn plans_of_small_problems_are_near_the_optimum() {
    let (mut rows, _) = rows(COUNT, 2);
    rows.sort_by(|a, b| b.gap().unwrap_or(f64::MAX).total_cmp(&a.gap().unwrap_or(f64::MAX)));
    for row in &rows {
        let (p, capacity) = (&row.sample.problem, row.sample.capacity);
        let bound = bound::order_free(p, capacity, ALLOWED[2]).expect("what has an optimum fits");
        let steps = row.planned.iter().map(|r| r.evaluation.step_ns).chain([row.optimum.step_ns]);
        assert!(steps.min() >= Some(bound), "bound {bound} ns; {}", row.describe());
    }
    let gaps: Vec<f64> = rows.iter().filter_map(|r| r.gap()).map(|g| g.max(0.0)).collect();
    let without = rows.len() - gaps.len();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let worst = gaps.first().copied().unwrap_or_default();
    let lines: Vec<String> = rows.iter().take(40).map(rows::Row::describe).collect();
    assert!(
        without == 0 && mean <= 0.01 && worst <= 0.05,
        "{without} of {COUNT} without a plan, mean gap {:.2} %, worst {:.2} %\n{}",
        100.0 * mean,
        100.0 * worst,
        lines.join("\n")
    );
}
