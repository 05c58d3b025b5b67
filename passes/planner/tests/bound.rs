//! Bounds against exact optima and random decisions of small random problems.

use memc_ir::Id;
use memc_planner::bound::{Bound, Infeasible, bound, order_free};
use memc_planner::exact::{Judge, optimum};
use memc_planner::sample::{ALLOWED, Draw, Sample, Seed, any, sample};
use memc_planner::{
    AccessSequence, Allow, Command, CommandIx, CommandKind, Decisions, Device, Genotype, Job, Jobs, Op,
    OpPos, Problem, Request, Schedule, Starts, Step, Swap, Tensor, TensorId, TensorKind, Wait, Waits,
    evaluate, plan, simulate, trace,
};

const SWAP: Allow = ALLOWED[0];
const RECOMPUTE: Allow = ALLOWED[1];
const BOTH: Allow = ALLOWED[2];

/// The bound for the given order, in which something fits.
fn fixed(b: Result<Bound, Infeasible>) -> u64 {
    b.and_then(|b| b.fixed_order).expect("feasible")
}

/// Problems with a seed each; the draws that make no problem are left out.
fn samples(count: u64, most: usize) -> impl Iterator<Item = (u64, Sample)> {
    (0..count).filter_map(move |seed| sample(&mut Seed(seed), most).map(|s| (seed, s)))
}

/// Those, and problems of any shape.
fn all_samples(count: u64, most: usize) -> impl Iterator<Item = (u64, Sample)> {
    let others = (0..count).filter_map(move |seed| any(&mut Seed(seed), most).map(|s| (seed, s)));
    samples(count, most).chain(others)
}

#[test]
fn no_bound_exceeds_the_exact_optimum() {
    let (mut found, mut tight) = (0, 0);
    for (seed, s) in all_samples(100, 8) {
        for allow in ALLOWED {
            for fixed_order in [true, false] {
                let best = |limit| optimum(&s.problem, s.capacity, (allow, Judge::Bytes), fixed_order, limit);
                let Ok(b) = bound(&s.problem, s.capacity, allow) else {
                    assert_eq!(best(1), None, "seed {seed} {allow:?}");
                    continue;
                };
                let fixed = b.fixed_order.ok();
                let in_order = fixed.is_none_or(|fixed| b.order_free_ns <= fixed);
                assert!(b.ideal_ns <= b.order_free_ns && in_order, "seed {seed}");
                let Some(o) = best(300) else { continue };
                let least = if fixed_order { fixed.expect("it fits") } else { b.order_free_ns };
                assert!(least <= o.step_ns, "seed {seed} {allow:?} {fixed_order}: {least} > {}", o.step_ns);
                found += 1;
                tight += u32::from(least == o.step_ns);
            }
        }
    }
    assert!(found > 300 && tight > 150, "{found} optima, {tight} of them met");
}

/// Where nothing fits in the given order, a plan in another has a bound all the same.
#[test]
fn what_fits_in_another_order_only_has_a_bound() {
    let mut found = 0;
    for seed in 0..60 {
        let Some(s) = any(&mut Seed(seed), 12) else { continue };
        for allow in ALLOWED {
            let Ok(b) = bound(&s.problem, s.capacity, allow) else { continue };
            if b.fixed_order.is_ok() {
                continue;
            }
            let request = Request { allow, effort: 0, ..Request::new(s.capacity) };
            let Ok(answer) = plan(&s.problem, &request, &Starts::NONE) else { continue };
            let r = evaluate(&s.problem, answer.decisions).expect("it runs");
            assert!(b.order_free_ns <= r.evaluation.step_ns, "seed {seed} {allow:?}: {b:?}");
            found += 1;
        }
    }
    assert!(found > 0);
}

/// Decisions with random swaps and, when allowed, a random recomputation.
fn random_script(p: &Problem, allow: Allow, draw: &mut Seed) -> Option<Schedule> {
    let mut steps: Vec<Step> = p.ops.ids().map(Step::first).collect();
    if allow.recompute && draw.below(2) == 0 {
        let op = OpPos::new(draw.below(p.ops.len() as u64) as usize);
        let results: Vec<TensorId> = p.ops[op]
            .writes
            .iter()
            .copied()
            .filter(|&t| p.tensors[t].kind == TensorKind::Transient)
            .collect();
        if p.ops[op].repeatable && !results.is_empty() {
            let at = op.index() + 1 + draw.below((p.ops.len() - op.index()) as u64) as usize;
            let recompute = Some(results[draw.below(results.len() as u64) as usize]);
            let sets = 1 << p.ops[op].writes.len().min(63);
            let also = if p.ops[op].updates() { 0 } else { draw.below(sets) };
            steps.insert(at, Step { op, recompute, also });
        }
    }
    let mut genotype = Genotype::keep_all(AccessSequence::new(p, steps));
    let steps = genotype.sequence.steps.len();
    for (gap, swap) in genotype.sequence.gaps.values().zip(genotype.swaps.values_mut()) {
        let longest = Swap::longest(gap, steps);
        let long = longest.back - longest.drop;
        if allow.swap && p.device.can_swap() && !gap.arrives() && long > 0 && draw.below(2) == 0 {
            let drop = longest.drop + draw.below(long as u64) as i32;
            let back = longest.back - draw.below((longest.back - drop) as u64) as i32;
            *swap = Some(Swap { drop, back });
        }
    }
    let decisions = genotype.decisions(p);
    trace(p, &decisions).ok()?;
    evaluate(p, decisions).ok()
}

/// Mean time of a step over many, by simulating many steps.
fn mean_ns(p: &Problem, r: &Schedule) -> f64 {
    const STEPS: usize = 256;
    let commands = &r.trace.commands;
    let input: fn(&Problem, &Command) -> bool =
        |p, c| matches!(c.kind, CommandKind::In(t) if p.tensors[t].kind == TensorKind::Input);
    let output: fn(&Problem, &Command) -> bool = |_, c| matches!(c.kind, CommandKind::Output { .. });
    let gates = [input, output].map(|is| commands.iter().rfind(|&(_, c)| is(p, c)).map(|(i, _)| i));
    let (mut jobs, mut lists) = (Jobs::default(), Waits::default());
    let at = |step: usize, command: CommandIx| CommandIx::new(step * commands.len() + command.index());
    for step in 0..STEPS {
        let before = |c: CommandIx| match step.checked_sub(1) {
            Some(before) => Wait { command: at(before, c), previous: false },
            None => Wait { command: at(STEPS - 1, c), previous: true },
        };
        for (c, list) in commands.values().zip(r.waits.values()) {
            let here = |a: &Wait| Wait { command: at(step, a.command), previous: false };
            let mut all: Vec<Wait> =
                list.iter().map(|a| if a.previous { before(a.command) } else { here(a) }).collect();
            all.extend(gates.iter().flatten().map(|&g| before(g)));
            jobs.push(Job { stream: c.stream, ns: c.ns, slowdown: 0, gate: false });
            lists.push(all);
        }
    }
    simulate(&p.device, &jobs, &lists).expect("runs").step_ns as f64 / STEPS as f64
}

#[test]
fn no_script_is_faster_than_the_bound_for_its_arena() {
    let mut judged = 0;
    for (seed, s) in all_samples(120, 10) {
        for allow in ALLOWED {
            let mut draw = Seed(seed.wrapping_mul(977));
            for _ in 0..8 {
                let Some(r) = random_script(&s.problem, allow, &mut draw) else { continue };
                let b = fixed(bound(&s.problem, r.evaluation.dev_bytes, allow));
                // One step may end less than a period after the one before.
                let mean = if b <= r.evaluation.step_ns { b as f64 } else { mean_ns(&s.problem, &r) };
                let script = r.decisions.print(&s.problem);
                assert!(b as f64 <= mean * 1.01, "seed {seed} {allow:?}: {b} > {mean}\n{script}");
                judged += 1;
            }
        }
    }
    assert!(judged > 1000, "{judged}");
}

#[test]
fn with_room_for_everything_the_bound_is_the_unplanned_step() {
    let mut ideal = 0;
    for (seed, s) in samples(100, 12) {
        let kept = evaluate(&s.problem, Decisions::keep_all(&s.problem)).expect("keeps all").evaluation;
        for allow in ALLOWED {
            let b = bound(&s.problem, kept.load_bytes, allow).expect("feasible");
            let fixed = b.fixed_order.expect("feasible");
            assert!(fixed <= kept.step_ns, "seed {seed}");
            let copies = s.problem.tensors.values().any(|t| t.kind == TensorKind::Input)
                || s.problem.ops.values().any(|op| !op.outputs.is_empty());
            if !copies {
                assert_eq!((fixed, b.order_free_ns), (b.ideal_ns, b.ideal_ns), "seed {seed}");
                ideal += 1;
            }
        }
    }
    assert!(ideal > 50);
}

#[test]
fn less_memory_never_lowers_the_bound() {
    for (seed, s) in samples(60, 10) {
        for allow in ALLOWED {
            let mut last: Option<(u64, u64)> = None;
            for capacity in (0..8).map(|k| s.capacity + k * 2048) {
                let Ok(b) = bound(&s.problem, capacity, allow) else { continue };
                let Some(now) = b.fixed_order.ok() else { continue };
                if let Some((fixed, free)) = last {
                    assert!(b.order_free_ns <= free, "seed {seed} {allow:?} at {capacity}");
                    // Duals are found by ascent: a little short of the best.
                    let slack = fixed + fixed / 50;
                    assert!(now <= slack, "seed {seed} {allow:?} at {capacity}: {fixed} {b:?}");
                }
                last = Some((now, b.order_free_ns));
            }
        }
    }
}

#[test]
fn below_the_largest_working_set_nothing_is_feasible() {
    for (_, s) in samples(50, 10) {
        let (op, most) = s.problem.largest_working_set();
        for allow in ALLOWED {
            let e = bound(&s.problem, most - 64, allow).expect_err("too small");
            assert!(e.bytes > most - 64);
            let e = order_free(&s.problem, most - 64, allow).expect_err("too small");
            assert_eq!((e.op, e.bytes), (op, most));
            assert_eq!(optimum(&s.problem, most - 64, (allow, Judge::Bytes), true, 10), None);
        }
    }
}

/// A result that an op only reads is handed out once it has run: by the event model and by the bound.
#[test]
fn results_are_handed_out_once_their_op_has_run() {
    let device = Device { d2h_bytes_per_s: 1_000_000_000, ..Device::default() };
    let a = Tensor {
        name: "a".into(),
        bytes: 0,
        size: 6400,
        kind: TensorKind::Transient,
        touches: Vec::new(),
        writes: Vec::new(),
    };
    let make = Op { name: "make".into(), time_ns: 1000, writes: vec![TensorId(0)], ..Op::default() };
    let read = Op {
        name: "read".into(),
        time_ns: 2000,
        reads: vec![TensorId(0)],
        outputs: vec![(TensorId(0), 5000)],
        ..Op::default()
    };
    let p = Problem::new("late", device, vec![a], vec![make, read]).expect("valid");
    let r = evaluate(&p, Decisions::keep_all(&p)).expect("runs");
    let copy = r.trace.commands.iter().find(|(_, c)| matches!(c.kind, CommandKind::Output { .. }));
    let span = r.timeline.spans[copy.expect("a result is handed out").0];
    assert_eq!((span.start, span.end), (3000, 8000));
    let b = fixed(bound(&p, r.evaluation.dev_bytes, BOTH));
    assert!(b <= 8000 && r.evaluation.step_ns == 8000, "{b:?} {:?}", r.evaluation);
}

/// `a` is made, `b` and `c` fill the memory, then `a` is read. Copies of `a` take 4 us each way.
fn one_detour(middle_ns: u64) -> Problem {
    let device =
        Device { h2d_bytes_per_s: 1_000_000_000, d2h_bytes_per_s: 1_000_000_000, ..Device::default() };
    let tensor = |name: &str, size| Tensor {
        name: name.into(),
        bytes: 0,
        size,
        kind: TensorKind::Transient,
        touches: Vec::new(),
        writes: Vec::new(),
    };
    let op = |name: &str, time_ns, reads: &[u32], writes: &[u32]| Op {
        name: name.into(),
        label: name.into(),
        time_ns,
        reads: reads.iter().map(|&t| TensorId(t)).collect(),
        writes: writes.iter().map(|&t| TensorId(t)).collect(),
        repeatable: true,
        ..Op::default()
    };
    let tensors = vec![tensor("a", 4096), tensor("b", 4096), tensor("c", 8192), tensor("d", 1024)];
    let ops = vec![
        op("make a", 3000, &[], &[0]),
        op("make b", 1000, &[], &[1]),
        op("make c", middle_ns, &[1], &[2]),
        op("read a", 1000, &[0, 2], &[3]),
    ];
    Problem::new("detour", device, tensors, ops).expect("valid")
}

#[test]
fn one_detour_costs_what_its_copies_leave_uncovered() {
    let p = one_detour(2000);
    let capacity = 16384;
    // All fits: 4096 (a) + 4096 (b) + 8192 (c).
    assert_eq!(fixed(bound(&p, capacity, BOTH)), 7000);
    // Without a quarter of `a`, during `make c` alone; it leaves during `make b` and comes back before
    // `read a`.
    let capacity = 16384 - 1024;
    assert_eq!(bound(&p, capacity, SWAP).map(|b| b.order_free_ns), Ok(7000));
    let b = fixed(bound(&p, capacity, SWAP));
    // The quarter leaves in 1024 ns, 24 of them after `make b`, and comes back in 1024.
    assert!((8010..=8048).contains(&b), "{b:?}");
    // The real step waits for all of `a`: out during `make b` and 3096 ns longer, in for 4096 ns.
    let o = optimum(&p, capacity, (SWAP, Judge::Bytes), true, 1000).expect("swaps");
    assert_eq!((o.step_ns, o.proven), (7000 + 3096 + 4096, true));
    // Running `make a` again takes 3000 ns, a quarter of it 750 ns.
    let b = fixed(bound(&p, capacity, RECOMPUTE));
    assert!((7740..=7750).contains(&b), "{b:?}");
    assert_eq!(optimum(&p, capacity, (RECOMPUTE, Judge::Bytes), true, 1000).map(|o| o.step_ns), Some(10_000));
    // In another order nothing has to leave.
    assert_eq!(optimum(&p, capacity, (SWAP, Judge::Bytes), false, 1000).map(|o| o.step_ns), Some(7000));
}

#[test]
fn without_a_link_nothing_swaps() {
    let mut p = one_detour(2000);
    p.device.h2d_bytes_per_s = 0;
    let e = bound(&p, 16384 - 1024, SWAP).and_then(|b| b.fixed_order).expect_err("nothing can leave");
    assert_eq!((e.op, e.bytes), (OpPos(2), 16384), "make c");
    assert_eq!(optimum(&p, 16384 - 1024, (SWAP, Judge::Layout), true, 1000), None);
}

#[test]
fn an_optimum_is_a_script_that_fits_and_takes_no_less() {
    for (seed, s) in samples(80, 9) {
        for judge in [Judge::Bytes, Judge::Layout] {
            let Some(o) = optimum(&s.problem, s.capacity, (BOTH, judge), true, 200) else { continue };
            let e = evaluate(&s.problem, o.decisions).expect("decisions").evaluation;
            assert!(e.load_bytes <= s.capacity, "seed {seed}");
            match judge {
                Judge::Layout => assert_eq!((e.dev_bytes <= s.capacity, e.step_ns), (true, o.step_ns)),
                Judge::Bytes => assert!(e.dev_bytes > s.capacity || e.step_ns >= o.step_ns, "seed {seed}"),
            }
        }
    }
}
