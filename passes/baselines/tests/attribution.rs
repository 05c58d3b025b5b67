//! The account of a step, on plans of planners that differ.

use memc_baselines::PLANNERS;
use memc_planner::attribution::{Back, Cause, account};
use memc_planner::sample::{Sample, Seed, sample};
use memc_planner::{Planner, Request, TensorKind, solve};

/// Copies of gaps are the plan's copies, and stalls add up to the time in which nothing runs.
#[test]
fn an_account_adds_up_to_the_evaluation() {
    let mut seen = [0usize; 3];
    for seed in 0..50u64 {
        let Some(Sample { problem: p, capacity }) = sample(&mut Seed(seed), 24) else { continue };
        let quick =
            |p: &&Planner| ["belady", "odswap", "capuchin", "checkpoint-sqrt", "dtr"].contains(&p.name);
        for planner in PLANNERS.iter().filter(quick) {
            let Ok((r, _)) = solve(&p, planner, &Request { effort: 0, ..Request::new(capacity) }) else {
                continue;
            };
            let a = account(&p, &r);
            let e = &r.evaluation;
            let of = |f: &dyn Fn(&Cause) -> bool| -> u64 {
                a.stalls.iter().filter(|s| f(&s.cause)).map(|s| s.ns).sum()
            };
            assert_eq!(of(&|c| matches!(c, Cause::In(..))), e.stall_in_ns);
            assert_eq!(of(&|c| matches!(c, Cause::Out(_))), e.stall_out_ns);
            let fed = |t: memc_planner::TensorId| p.tensors[t].kind == TensorKind::Input;
            let bytes: u64 = a
                .gaps
                .iter()
                .filter(|g| g.back == Back::Copy && !fed(g.tensor))
                .map(|g| p.tensors[g.tensor].size)
                .sum();
            assert_eq!(bytes, e.swap_in_bytes, "{seed} {}", planner.name);
            for g in &a.gaps {
                seen[g.back as usize] += 1;
                let (_, load) = g.room.unwrap_or_default();
                assert!(load <= capacity, "{seed} {}", planner.name);
            }
        }
    }
    assert!(seen[0] > 50 && seen[1] > 5, "{seen:?}");
}
