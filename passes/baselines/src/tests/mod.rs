//! Properties of every planner.

mod step;

use memc_planner::sample::{Sample, Seed, any, chain};
use memc_planner::{Action, Allow, Decisions, NoPlan, Request, Resident, evaluate, load, solve, trace};

use super::*;

/// Every planner's decisions on random problems fit random budgets, and do no more than its row and the
/// request allow.
#[test]
fn decisions_are_accepted_and_fit() {
    arbtest::arbtest(|u| {
        let p = if u.arbitrary()? { step::random(u)? } else { samples::problem(u)? };
        let peak =
            evaluate(&p, Decisions::keep_all(&p)).expect("the unplanned step runs").evaluation.load_bytes;
        let least = p.largest_working_set().1;
        let mut request = Request::new(u.int_in_range(least..=peak.max(least))?);
        request.effort = 0;
        request.allow.swap = u.ratio(3, 4)?;
        request.allow.recompute = u.ratio(3, 4)?;
        request.allow.reorder = !u.arbitrary::<bool>()?;
        for planner in PLANNERS.iter().filter(|planner| planner.name != "keep-all") {
            match (planner.plan)(&p, &request) {
                Err(NoPlan::Infeasible(_)) => {}
                Err(NoPlan::Failed(why)) => panic!("{}: {why}", planner.name),
                Ok(found) => {
                    let t = trace(&p, &found.decisions)
                        .unwrap_or_else(|e| panic!("{}: {e}\n{}", planner.name, found.decisions.print(&p)));
                    let (load, name) = (load(&t), planner.name);
                    assert!(load <= request.capacity, "{name}: {load} of {} bytes", request.capacity);
                    assert!(request.allow.reorder || found.decisions.keeps_order(), "{name} reorders");
                    for (t, _) in found
                        .decisions
                        .residents
                        .iter()
                        .filter(|(_, resident)| matches!(resident, Resident::Both(_)))
                    {
                        let returns = |a: &Action| matches!(a, Action::In((back, _)) if back == t);
                        assert!(
                            found.decisions.actions.iter().any(returns),
                            "{name}: a copy that nothing reads"
                        );
                    }
                    let r = evaluate(&p, found.decisions).unwrap_or_else(|e| panic!("{name}: {e}"));
                    let e = r.evaluation;
                    let (swaps, recomputes) =
                        (request.allow.swap && planner.swaps, request.allow.recompute && planner.recomputes);
                    assert!(recomputes || e.recompute_ops == 0, "{name} recomputes");
                    assert!(swaps || e.swap_in_bytes + e.swap_out_bytes == 0, "{name} swaps");
                }
            }
        }
        Ok(())
    })
    .budget_ms(1_500);
}

/// No planner contradicts itself, on any problem at any budget.
#[test]
fn no_planner_fails_on_any_problem() {
    let (mut found, mut failures) = (vec![0; PLANNERS.len()], Vec::new());
    for seed in 0..SEEDS {
        let Sample { problem: p, capacity } = any(&mut Seed(seed), 14).expect("it is a problem");
        // A search ends with its first plan.
        let request = Request { effort: 0, seed, stop: &|| true, ..Request::new(capacity) };
        for (planner, found) in PLANNERS.iter().zip(&mut found) {
            let plan = match (planner.plan)(&p, &request) {
                Err(NoPlan::Infeasible(_)) => continue,
                Err(NoPlan::Failed(why)) => Err(why),
                Ok(found) => evaluate(&p, found.decisions).map_err(|e| e.to_string()),
            };
            match plan {
                Ok(r) if r.evaluation.load_bytes <= capacity => *found += 1,
                Ok(_) if planner.name == "keep-all" => {}
                Ok(r) => failures.push((seed, planner.name, format!("{} bytes", r.evaluation.load_bytes))),
                Err(why) => failures.push((seed, planner.name, why)),
            }
        }
    }
    assert!(failures.is_empty(), "{} failures: {failures:#?}", failures.len());
    assert!(found.iter().all(|&n| n > SEEDS / 10), "{found:?}");
}

/// In steps too large for asking every planner for a plan that fits, the default planner is not behind one
/// either, even without a search of its own.
#[test]
fn no_quick_planner_is_ahead_in_a_large_step() {
    let p = chain(150, 4096, 100, 200);
    let peak = evaluate(&p, Decisions::keep_all(&p)).expect("the unplanned step runs").evaluation.load_bytes;
    for (share, swap) in [(3, true), (4, true), (6, true), (4, false), (5, false), (6, false)] {
        let allow = Allow { swap, ..Allow::ALL };
        let request = Request { allow, effort: 0, ..Request::new(peak * share / 8) };
        let step = |planner| solve(&p, planner, &request).ok().map(|(r, _)| r.evaluation.step_ns);
        let ours = step(named("memc").expect("the default planner"));
        assert!(ours.is_some() || !swap, "no plan in {share}/8 of the peak");
        for planner in PLANNERS.iter().filter(|planner| !SLOW.contains(&planner.name)) {
            let theirs = step(planner);
            let is_ahead = theirs.is_some_and(|theirs| ours.is_none_or(|ours| theirs < ours));
            assert!(!is_ahead, "{}: {theirs:?} before {ours:?}", planner.name);
        }
    }
}

/// Planners that the default one does not ask.
const SLOW: &[&str] = &["home", "swapadvisor"];

/// Problems of [`no_planner_fails_on_any_problem`].
const SEEDS: u64 = 400;

/// With room for everything, no planner that looks at the budget changes the step.
#[test]
fn with_enough_memory_nothing_is_slower_than_computing() {
    let p = chain(6, 4096, 100, 200);
    for planner in PLANNERS.iter().filter(|planner| !STATIC.contains(&planner.name)) {
        let (schedule, _) =
            solve(&p, planner, &Request { effort: 0, ..Request::new(1 << 30) }).expect("there is room");
        assert_eq!(schedule.evaluation.step_ns, p.compute_ns(), "{}", planner.name);
    }
}

/// Planners that ignore the budget.
const STATIC: &[&str] = &["checkpoint-sqrt", "delta", "vdnn-all", "vdnn-conv"];

/// The same request gives the same decisions on one thread and on four.
#[test]
fn decisions_do_not_depend_on_threads() {
    arbtest::arbtest(|u| {
        let p = step::random(u)?;
        let request = Request { effort: 0, ..Request::new(p.largest_working_set().1 * 3 / 2) };
        for planner in PLANNERS {
            let with = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                pool.install(|| (planner.plan)(&p, &request))
            };
            assert_eq!(with(1), with(4), "{}", planner.name);
        }
        Ok(())
    })
    .budget_ms(1_500);
}
