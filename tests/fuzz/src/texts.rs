//! Problems, profiles, decisions, layouts and values of the command line.

use memc::{AllocOptions, Error, Instance, Search, Silent, Size};
use memc_baselines::PLANNERS;
use memc_cli::values;
use memc_ir::recipe::{Loss, Optimizer, OptimizerSpec};
use memc_passes::{DeviceProfile, GRAPH_PIPELINE, Pipeline};
use memc_planner::{Allow, Decisions, evaluate, json};
use memc_runtime::{InputSource, Rate};

use crate::step;

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// A module is parsed, verified, compiled and run.
pub(crate) fn module(data: &[u8]) {
    if let Some(text) = text(data) {
        step::module(text, step::choice(data));
        let _ = (memc_ir::parse_op(text, text), memc_ir::parse_type(text));
    }
}

/// Most tensors, ops and uses of a problem that is planned.
const MAX_ENTRIES: usize = 60;

/// A problem is parsed, printed, bounded and planned by one planner.
pub(crate) fn problem(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let problem = match json::parse(text) {
        Ok(problem) => problem,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let printed = json::print(&problem);
    let again = json::parse(&printed).unwrap_or_else(|e| panic!("a printed problem does not parse: {e}"));
    assert_eq!(json::print(&again), printed, "a problem prints differently once it was parsed");
    if problem.tensors.len() > MAX_ENTRIES || problem.ops.len() > MAX_ENTRIES {
        return;
    }
    let choice = step::choice(data);
    let Some(instance) = step::answer(Instance::of_numbers(problem, &Search::default().poses())) else {
        return;
    };
    let percent = [100.0, 80.0, 60.0, 30.0][choice as usize % 4];
    let Some(budget) = step::answer(instance.bytes(Size::PeakPercent(percent))) else { return };
    let planner = &PLANNERS[(choice >> 2) as usize % PLANNERS.len()];
    let allow = Allow { swap: choice >> 10 & 3 != 0, recompute: choice >> 12 & 3 != 0, ..Allow::ALL };
    let report = memc::bounds(&instance, budget, allow, &Silent);
    assert_eq!(report.feasible, report.why.is_none(), "a bound does not say why nothing fits");
    let search = Search { planner, allow, effort: 0, ..Search::default() };
    let Some(outcome) = step::answer(instance.plan(budget, &search, &Silent)) else { return };
    match outcome.require(&instance, allow) {
        Ok((candidate, plan)) => {
            let text = plan.decisions.print(candidate.numbers());
            let read = Decisions::parse(&text, candidate.numbers());
            let read = read.unwrap_or_else(|e| panic!("printed decisions do not parse: {e}"));
            let again =
                evaluate(candidate.numbers(), read).unwrap_or_else(|e| panic!("a plan is no plan: {e}"));
            assert_eq!(
                again.evaluation.step_ns, plan.evaluation.step_ns,
                "replayed decisions take another time"
            );
            if let Some((bound, _)) = outcome.bound(&instance, allow) {
                assert!(bound <= plan.evaluation.step_ns, "a plan beats its bound of {bound} ns");
            }
        }
        Err(Error::Internal(text)) if text.is_empty() => panic!("a fault without a text"),
        Err(error) => drop(step::answer::<()>(Err(error))),
    }
}

/// A profile is parsed, printed, judged, merged with itself, and asked for times.
pub(crate) fn profile(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let profile = match DeviceProfile::parse(text) {
        Ok(profile) => profile,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let printed = profile.print();
    let again =
        DeviceProfile::parse(&printed).unwrap_or_else(|e| panic!("a printed profile does not parse: {e}"));
    assert_eq!(again.print(), printed, "a profile prints differently once it was parsed");
    let _ = (profile.d2h_ns(1 << 30), profile.h2d_ns(u64::MAX), profile.round_trip_ns(1));
    let types = ["f32[4,8]", "f32[8,16]", "f32[4,16]", "f32[65536,65536]"].map(memc_ir::parse_type);
    let [Ok(a), Ok(b), Ok(c), Ok(large)] = types else { panic!("the types are right") };
    let ops: [(&str, Vec<_>, _); 3] =
        [("matmul", vec![&a, &b], &c), ("relu", vec![&a], &a), ("exp", vec![&large], &large)];
    for (name, operands, result) in ops {
        let op = memc_ir::parse_op(name, "").expect("an op of the table");
        let _ = (profile.op_ns(&op, &operands, &[result]), profile.slowdown(&op, &operands, &[result]));
        let _ = profile.workspace(&op, &operands, &[result]);
    }
    let _ = step::answer(memc::device::merge(vec![profile.clone(), profile]));
}

/// The problem that decisions are read against, and a plan of it.
const PROBLEM: &str = include_str!("../corpus/problem/small.json");

/// Decisions are parsed against a problem, printed and evaluated.
pub(crate) fn decisions(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let problem = json::parse(PROBLEM).expect("the problem of the corpus is right");
    let _ = Decisions::pose_in(text);
    let decisions = match Decisions::parse(text, &problem) {
        Ok(decisions) => decisions,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let printed = decisions.print(&problem);
    let again = Decisions::parse(&printed, &problem)
        .unwrap_or_else(|e| panic!("printed decisions do not parse: {e}"));
    assert_eq!(again.print(&problem), printed, "decisions print differently once they were parsed");
    match evaluate(&problem, decisions) {
        Ok(schedule) => assert!(schedule.evaluation.step_ns > 0 || problem.compute_ns() == 0),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Buffers are read, allocated and checked.
pub(crate) fn layout(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let named = match memc_alloc::csv::read(text) {
        Ok(named) => named,
        Err(error) => return assert!(error.line > 0),
    };
    if named.ids.len() > MAX_ENTRIES {
        return;
    }
    let choice = step::choice(data);
    let capacity = (choice & 1 == 0).then_some(choice >> 40);
    let options = AllocOptions { effort: Some(0), capacity, ..AllocOptions::default() };
    let Some(found) = step::answer(memc::allocate(&named.instance, &options, &Silent)) else { return };
    let height = memc_alloc::check(&named.instance, &found.solution.offsets);
    assert_eq!(height, Ok(found.solution.height), "an allocation is wrong");
}

/// Each line is read as every value that the two programs take; schedules are followed over their steps.
pub(crate) fn options(data: &[u8]) {
    let Some(text) = text(data) else { return };
    for line in text.lines().take(64) {
        if let Ok(Rate::Schedule(schedule)) = line.parse() {
            for step in [0, 1, 2, 1000, u64::MAX] {
                let _ = schedule.rate(step, 0.1);
            }
        }
        let _ = line.parse::<InputSource>();
        if let Ok(loss) = line.parse::<Loss>() {
            let again = loss.to_string().parse::<Loss>();
            assert_eq!(
                again.as_ref().map(ToString::to_string),
                Ok(loss.to_string()),
                "a loss prints wrongly"
            );
        }
        if let Ok(spec) = line.parse::<OptimizerSpec>() {
            let again = spec.to_string().parse::<OptimizerSpec>();
            assert_eq!(again.as_ref(), Ok(&spec), "an optimizer prints wrongly");
            let _ = Optimizer::of(&spec).map(|optimizer| optimizer.describe());
        }
        if line != GRAPH_PIPELINE {
            let _ = Pipeline::parse(line);
        }
        if let Ok(range) = values::range(line) {
            assert!(range.sizes().count() <= 257, "a range has too many points");
        }
        let _ = (values::size(line), values::bytes(line), values::duration(line), values::accumulate(line));
        let _ = (values::sized_dim(line), values::any_dim(line), values::factor(line), values::ratio(line));
        let _ = (values::height(line), values::pair(line));
    }
}
