//! The examples of Fig. 1, 3, 4 and 5, and random problems.

use std::sync::{Arc, Mutex, PoisonError};

use memc_ir::Arena;
use memc_planner::{
    Alive, CommandIx, NoPlan, OpPos, Problem, Progress, Request, StepPos, TensorId, TensorKind, evaluate,
};

use super::engine::Augmented;
use super::graph::{Act, Graph, NONE};
use super::pool::Pool;
use super::{Genes, Individual, PLANNER, POOL, children, cross, first, survivors};
use crate::random::{Precedence, Random};
use crate::samples::{UNIT, device, holds, op, problem, tensor};

/// Fig. 4: five nodes, cut after three. The figure is lost; of the parents the text gives the first three of
/// SCH_2, and that the rest of SCH_1 is 1 before 5.
#[test]
fn fig_4_schedules_are_crossed() {
    let (first, second) = ([1, 2, 3, 4, 5], [2, 3, 4, 5, 1]);
    let index = |order: [u32; 5]| order.map(|node| OpPos(node - 1));
    let child = |a, b| cross(&index(a), &index(b), 3).into_iter().map(|i| i.0 + 1).collect::<Vec<u32>>();
    assert_eq!(child(first, second), [2, 3, 4, 1, 5]);
    assert_eq!(child(second, first), [1, 2, 3, 4, 5]);
}

/// Sec. 5.2: children of topological orders are topological orders.
#[test]
fn crossed_and_mutated_schedules_are_orders() {
    arbtest::arbtest(|u| {
        let p = problem(u)?;
        let precedence = Precedence::new(&p);
        let given: Vec<OpPos> = p.ops.ids().collect();
        let mut random = Random::new(u.arbitrary()?, 0);
        let a = precedence.vary(&given, 1.0, &mut random);
        let b = precedence.vary(&given, 1.0, &mut random);
        let child = cross(&a, &b, u.int_in_range(0..=given.len())?);
        assert!(precedence.allows(&child));
        Ok(())
    });
}

/// Fig. 5: sizes of 1, 2, 3 and 4 MB, 12 MB of memory, cut after the second size.
#[test]
fn fig_5_pools_are_crossed_and_repaired() {
    let parents =
        [Pool { cls: vec![1, 1, 1, 1], cnt: vec![4] }, Pool { cls: vec![1, 2, 2, 2], cnt: vec![8, 1] }];
    assert_eq!(parents[0].extended(), [4, 4, 4, 4]);
    assert_eq!(parents[1].extended(), [8, 1, 1, 1]);
    let [mut one, mut two] = Pool::cross(&parents[0], &parents[1], 2);
    assert_eq!(one, Pool { cls: vec![1, 2, 2, 2], cnt: vec![8, 3] });
    assert_eq!(two, Pool { cls: vec![1, 1, 2, 2], cnt: vec![4, 1] });
    let repaired = |pool: &mut Pool| pool.repair(&pool.objects(&[1, 2, 3, 4]), &[1, 1], 12);
    assert!(repaired(&mut one));
    assert_eq!(one.cnt, [4, 2]);
    assert!(repaired(&mut two));
    assert_eq!(two.cnt, [4, 1], "it fits already");
}

/// Sec. 5.3: a mutated CLS stays a sequence of equal or next classes, one count for each.
#[test]
fn mutated_pools_are_monotonic() {
    let mut random = Random::new(5, 0);
    let mut pool = Pool { cls: vec![1, 1, 2, 3, 3, 3], cnt: vec![2, 7, 1] };
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..500 {
        pool = pool.mutate(0.3, &mut random);
        assert_eq!(pool.cls[0], 1);
        assert!(pool.cls.windows(2).all(|w| w[1] == w[0] || w[1] == w[0] + 1), "{:?}", pool.cls);
        assert_eq!(pool.cnt.len(), pool.cls[5]);
        assert!(pool.cnt.iter().all(|&n| n > 0));
        seen.insert(pool.cls.clone());
    }
    assert_eq!(seen.len(), 32, "every mapping of six sizes is reached");
}

/// Fig. 3: three ops, four units of memory: W1 makes room for W3 and W2 for A3. That A1 is still needed at
/// op3 is assumed here, as else its object would be free.
#[test]
fn fig_3_the_least_recent_parameter_makes_room() {
    let [w1, w2, w3, a1, a2, a3] = [0, 1, 2, 3, 4, 5];
    let kinds = [TensorKind::Persistent, TensorKind::Persistent, TensorKind::Persistent];
    let mut tensors: Vec<_> =
        kinds.iter().zip(["w1", "w2", "w3"]).map(|(&k, name)| tensor(name, 1, k)).collect();
    tensors.extend(["a1", "a2", "a3"].map(|name| tensor(name, 1, TensorKind::Transient)));
    let ops =
        vec![op("op1", 1, &[w1], &[a1]), op("op2", 1, &[a1, w2], &[a2]), op("op3", 1, &[a1, a2, w3], &[a3])];
    let p = Problem::new("fig3", device(), tensors, ops).expect("invariant: the example is well-formed");
    let g = Graph::new(&p, 4 * UNIT, true);
    let pool = Pool { cls: vec![1], cnt: vec![4] };
    let moves = g.plan(&[0, 1, 2].map(OpPos), &pool).expect("invariant: four units suffice");
    let enters = |t: u32| {
        moves.acts.iter().find_map(|&(at, act, u)| match act {
            Act::In(b) if u == TensorId(t) => Some((at, b)),
            _ => None,
        })
    };
    let (w1_in, w2_in, w3_in) = (enters(w1), enters(w2), enters(w3));
    let (Some(first), Some(second), Some(third)) = (w1_in, w2_in, w3_in) else { panic!("{moves:?}") };
    assert_eq!((first.0, second.0), (StepPos(0), StepPos(0)), "there is room for what op1 and op2 need");
    assert_eq!(third, (StepPos(1), first.1), "W3 takes W1's place once op1 has run");
    let a3_block = moves.at.iter().find(|&&(_, t, _)| t == TensorId(a3)).map(|a| a.2);
    assert_eq!(a3_block, Some(second.1), "A3 takes W2's place");
    assert!(!moves.acts.iter().any(|&(_, act, _)| act == Act::Out), "parameters are in host memory already");
    // The double pass: W3 is on the device when the first pass ends, but the second has no room for it.
    assert!(moves.resident.values().all(|&resident| resident == NONE));
}

/// Fig. 1(a), with ops after it that stand for the backward pass, so that activations are needed twice.
fn fig_1() -> Problem {
    let [a0, a1, a2, a3, a4, a5, w1, w2, w3, w4] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let units = [1, 1, 2, 1, 1, 2];
    let mut tensors: Vec<_> =
        units.iter().enumerate().map(|(i, &n)| tensor(&format!("a{i}"), n, TensorKind::Transient)).collect();
    // Parameters start in host memory, and their copy there stays good.
    tensors.extend(["w1", "w2", "w3", "w4"].map(|name| tensor(name, 1, TensorKind::Input)));
    let ops = vec![
        op("data", 1, &[], &[a0]),
        op("conv1", 1, &[a0, w1], &[a1]),
        op("conv2", 1, &[a0, w2], &[a2]),
        op("conv3", 1, &[a2, w3], &[a3]),
        op("conv4", 1, &[a3, w4], &[a4]),
        op("concat", 1, &[a1, a4], &[a5]),
        op("backward5", 1, &[a5], &[]),
        op("backward4", 1, &[a4], &[]),
        op("backward1", 1, &[a1], &[]),
        op("backward3", 1, &[a3], &[]),
        op("backward2", 1, &[a2], &[]),
        op("backward0", 1, &[a0], &[]),
    ];
    Problem::new("fig1", device(), tensors, ops).expect("invariant: the example is well-formed")
}

/// End of the last op of Fig. 1, in units of time, in a first step that no other step precedes.
fn fig_1_ends(schedule: [u32; 6], pool: &Pool) -> u64 {
    let p = fig_1();
    let g = Graph::new(&p, 10 * UNIT, true);
    let order: Vec<OpPos> = schedule.into_iter().chain(6..12).map(OpPos).collect();
    let moves = g.plan(&order, pool).expect("invariant: ten units suffice");
    let x = Augmented::new(&g, &order, pool, &moves);
    let mut ends: Arena<CommandIx, u64> = Arena::filled(0, x.jobs.len());
    let mut free = [0; 3];
    for (i, job) in x.jobs.iter() {
        let waited = x.waits[i].iter().filter(|a| !a.previous).map(|a| ends[a.command]);
        let start = waited.max().unwrap_or(0).max(free[job.stream as usize]);
        ends[i] = start + job.ns;
        free[job.stream as usize] = ends[i];
    }
    let concat = order
        .iter()
        .position(|&op| op == OpPos(5))
        .map(|i| x.runs[StepPos(i as u32)])
        .expect("invariant: concat runs");
    ends[concat] / 1000
}

/// Fig. 1(b) to (e): five objects of 2 MB take one unit longer than eight of 1 MB and one of 2 MB with the
/// right branch first, and the left branch first one longer than the right one with the finer pool. What the
/// text does not say: (b), the left branch first with five objects, gains nothing on (c) or (e).
#[test]
fn fig_1_schedules_and_pools_decide_the_time() {
    let coarse = Pool { cls: vec![1, 1], cnt: vec![5] };
    let fine = Pool { cls: vec![1, 2], cnt: vec![8, 1] };
    let (left, right) = ([0, 1, 2, 3, 4, 5], [0, 2, 3, 4, 1, 5]);
    assert_eq!(fig_1_ends(right, &fine), 6, "(d)");
    assert_eq!(fig_1_ends(right, &coarse), 7, "(c)");
    assert_eq!(fig_1_ends(left, &fine), 7, "(e)");
    assert!(fig_1_ends(left, &coarse) >= 7, "(b): {}", fig_1_ends(left, &coarse));
}

#[test]
fn decisions_are_carried_out_within_the_budget() {
    holds(&PLANNER, 4000);
}

/// A seed gives the same decisions on one thread and on four.
#[test]
fn a_seed_gives_the_same_decisions_at_any_thread_count() {
    let p = fig_1();
    let request = Request { effort: 0, seed: 7, ..Request::new(8 * UNIT) };
    let on = |threads: usize, request: &Request<'_>| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|e| e.to_string());
        let found = pool.map(|pool| pool.install(|| (PLANNER.plan)(&p, request)));
        found.expect("invariant: threads start").expect("invariant: eight units suffice")
    };
    assert_eq!(on(1, &request), on(4, &request));
}

/// Eq. 1: the best survives, faster ones more often than slower ones, and one without a time not at all while
/// others do.
#[test]
fn the_fast_survive_more_often() {
    let at = |i: u64| Individual {
        order: Arc::default(),
        pool: Pool::default(),
        time: (i < 280).then_some(1000 + 10 * i),
    };
    let mut alive = [0u32; 288];
    for draw in 0..200 {
        let survivors = survivors((0..288).map(at).collect(), 1000, &mut Random::new(draw, 0));
        assert_eq!(survivors.len(), 144);
        for survivor in survivors {
            let time = survivor.time.expect("invariant: 280 individuals have a time");
            alive[(time - 1000) as usize / 10] += 1;
        }
    }
    assert_eq!(alive[0], 200);
    let part = |from: usize| alive[from..from + 70].iter().sum::<u32>();
    assert!(part(0) > part(70) && part(70) > part(140) && part(140) > part(210), "{alive:?}");
    assert!(part(140) > 0, "diversity remains");
}

/// A search tells of its plans: the last one is the answer, and the generations end with it.
#[test]
fn a_search_tells_what_it_finds() {
    let p = fig_1();
    let told = Mutex::new((Vec::new(), Vec::new()));
    let told = || told.lock().unwrap_or_else(PoisonError::into_inner);
    let watch = |found: Progress| told().0.push((found.evaluations, found.step_ns));
    let alive = |a: &Alive| told().1.push((a.evaluations, a.step_ns.iter().min().copied()));
    let request = Request { effort: 0, watch: &watch, alive: &alive, ..Request::new(8 * UNIT) };
    let found = (PLANNER.plan)(&p, &request).expect("invariant: eight units suffice");
    let step_ns = evaluate(&p, found.decisions).expect("invariant: a plan runs").evaluation.step_ns;
    let told = told();
    assert!(told.0.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 > w[1].1), "{:?}", told.0);
    assert_eq!(told.0.last().map(|t| t.1), Some(step_ns));
    assert_eq!(told.1.last(), Some(&(found.evaluations, Some(step_ns))));
}

/// Fig. 10: the part that is not searched stays as it is.
#[test]
fn one_part_is_searched_alone() {
    let p = fig_1();
    let request = Request { effort: 0, ..Request::new(8 * UNIT) };
    let found = (POOL.plan)(&p, &request).expect("invariant: eight units suffice");
    assert!(found.decisions.keeps_order());
    let genes = Genes { order: true, pool: false };
    let g = Graph::new(&p, 8 * UNIT, true);
    let parents = first(&g, &request, genes);
    let children = children(&g, &request, genes, &parents, 1);
    assert_eq!((parents.len(), children.len()), (144, 144));
    assert!(parents.iter().chain(&children).all(|x| x.pool == parents[0].pool));
}

/// Three ops have few schedules and pools: the search ends long before as many individuals as the effort
/// allows.
#[test]
fn a_search_that_finds_nothing_better_ends() {
    let tensors = ["a", "b", "c"].map(|name| tensor(name, 2, TensorKind::Transient));
    let ops = [op("f", 1, &[], &[0]), op("g", 1, &[0], &[1]), op("h", 1, &[0, 1], &[2])];
    let p = Problem::new("few", device(), tensors.to_vec(), ops.to_vec())
        .expect("invariant: three ops are a problem");
    let found =
        (PLANNER.plan)(&p, &Request { effort: 5, ..Request::new(8 * UNIT) }).expect("invariant: it fits");
    assert!(found.evaluations <= 144 * 210, "{} individuals", found.evaluations);
}

/// A planner that finds no pool says so.
#[test]
fn a_budget_below_every_pool_is_infeasible() {
    let p = fig_1();
    let found = (PLANNER.plan)(&p, &Request::new(3 * UNIT));
    assert!(matches!(found, Err(NoPlan::Infeasible(why)) if why.contains("size-class pools")));
}
