//! Properties of the graph passes on random modules.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use common::{evaluate, random_feeds, random_module, same};
use memc_ir::{Module, OpId, OpKind, Phase, parse, print, verify};
use memc_passes::analysis::peak_live_bytes;
use memc_passes::{DeviceProfile, GRAPH_PIPELINE, PASSES, PROFILES, PassCx, PassDef, Pipeline};

const SEEDS: u64 = 400;

fn run(m: &mut Module, pipeline: &str) -> Vec<(&'static str, String, u64)> {
    run_on(m, pipeline, &PROFILES[0])
}

fn run_on(m: &mut Module, pipeline: &str, profile: &DeviceProfile) -> Vec<(&'static str, String, u64)> {
    let mut cx = PassCx::new(profile);
    Pipeline::parse(pipeline).unwrap().run(m, &mut cx).unwrap();
    cx.stats
}

/// The graph pipeline without the pass that changes rounding; `tests/golden/raise` holds the numbers of that
/// one.
fn exact() -> String {
    GRAPH_PIPELINE.replace("raise,", "")
}

fn check_meaning(pipeline: &str) {
    for seed in 0..SEEDS {
        let before = random_module(seed, 40);
        verify(&before).unwrap();
        let mut after = before.clone();
        run(&mut after, pipeline);
        for round in 0..2 {
            let feeds = random_feeds(&before, seed * 2 + round);
            let (want, have) = (evaluate(&before, &feeds), evaluate(&after, &feeds));
            for (name, want) in &want {
                assert!(
                    same(want, &have[name]),
                    "{pipeline} changes {name} (seed {seed}, round {round})\nwant {want:?}\nhave {:?}\n\
                     before\n{}\nafter\n{}",
                    have[name],
                    print(&before),
                    print(&after),
                );
            }
        }
    }
}

#[test]
fn every_exact_graph_pass_keeps_the_meaning_of_random_modules() {
    const OTHERS: [&str; 4] = ["add-loss", "add-optimizer", "differentiate", "raise"];
    let exact = |p: &&PassDef| p.phases == (Phase::Graph, Phase::Graph) && !OTHERS.contains(&p.name);
    for pass in PASSES.iter().filter(exact) {
        check_meaning(pass.name);
    }
}

#[test]
fn the_exact_part_of_the_graph_pipeline_keeps_the_meaning_of_random_modules() {
    assert!(exact() != GRAPH_PIPELINE);
    check_meaning(&exact());
}

#[test]
fn the_graph_pipeline_is_a_fixpoint() {
    for seed in 0..SEEDS {
        let mut m = random_module(seed, 40);
        run(&mut m, GRAPH_PIPELINE);
        let once = print(&m);
        run(&mut m, GRAPH_PIPELINE);
        let twice = print(&m);
        assert!(once == twice, "seed {seed}\n{once}\n{twice}");
    }
}

#[test]
fn printing_what_passes_leave_and_parsing_it_gives_it_back() {
    for seed in 0..SEEDS {
        let mut m = random_module(seed, 40);
        for pipeline in ["", "canonicalise", "fold", "simplify", GRAPH_PIPELINE, "fuse"] {
            run(&mut m, pipeline);
            let text = print(&m);
            let again = parse(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            verify(&again).unwrap();
            assert_eq!(print(&again), text, "seed {seed}");
        }
    }
}

#[test]
fn ordering_never_raises_the_peak() {
    let mut lowered = 0;
    for seed in 0..SEEDS {
        let mut m = random_module(seed, 60);
        run(&mut m, "dce");
        let peak = |m: &Module| peak_live_bytes(m, DeviceProfile::named("toy").unwrap()).unwrap();
        let before = peak(&m);
        run(&mut m, "schedule-ops{algo=greedy}");
        let after = peak(&m);
        assert!(after.bytes <= before.bytes, "seed {seed}");
        lowered += u64::from(after.bytes < before.bytes);
    }
    assert!(lowered > SEEDS / 10, "the greedy order helps somewhere: {lowered} of {SEEDS}");
}

#[test]
fn fusing_raises_neither_the_peak_nor_the_time() {
    let (mut fewer, mut norms, mut sums, gpu) = (0, 0, 0, DeviceProfile::named("h100").unwrap());
    for seed in 0..SEEDS {
        let mut m = random_module(seed, 60);
        run(&mut m, "dce");
        // With the copies of next states that cannot be written over the old ones.
        let time = |m: &Module| -> u64 {
            let mut m = m.clone();
            run_on(&mut m, "bufferize", gpu);
            let op = |&id: &OpId| {
                let kind = m.ops[id].kind()?;
                Some(gpu.op_ns(kind, &m.operand_types(id), &m.result_types(id)))
            };
            m.order.iter().filter_map(op).sum()
        };
        let kernels = |m: &Module| m.order.iter().filter(|&&op| !m.ops[op].is_view()).count();
        let before = (kernels(&m), time(&m), peak_live_bytes(&m, gpu).unwrap());
        run_on(&mut m, "fuse", gpu);
        let after = (kernels(&m), time(&m), peak_live_bytes(&m, gpu).unwrap());
        assert!(after.2.bytes <= before.2.bytes, "seed {seed}: {:?} became {:?}", before.2, after.2);
        assert!(after.0 < before.0 || after.1 == before.1, "seed {seed}");
        assert!(after.0 == before.0 || after.1 < before.1, "seed {seed}");
        fewer += u64::from(after.0 < before.0);
        let is_norm = |id: &OpId| matches!(m.ops[*id].kind(), Some(OpKind::FusedNorm { .. }));
        norms += u64::from(m.order.iter().any(is_norm));
        let is_sum = |id: &OpId| matches!(m.ops[*id].kind(), Some(OpKind::MatMulBiasGrad { .. }));
        sums += u64::from(m.order.iter().any(is_sum));
    }
    assert!(fewer > SEEDS / 2, "something is fused in most modules: {fewer} of {SEEDS}");
    assert!(sums > SEEDS / 40, "products with sums are, in some: {sums} of {SEEDS}");
    assert!(norms > SEEDS / 40, "normalisations are, in some: {norms} of {SEEDS}");
}

#[test]
fn random_modules_exercise_most_rules() {
    let mut fired: Vec<&str> = Vec::new();
    for seed in 0..SEEDS {
        let mut m = random_module(seed, 40);
        let stats = run(&mut m, GRAPH_PIPELINE);
        for rule in memc_passes::graph::RULES {
            if stats.iter().any(|(pass, what, n)| *pass == "simplify" && what == rule.name && *n > 0) {
                fired.push(rule.name);
            }
        }
    }
    fired.sort_unstable();
    fired.dedup();
    let all = memc_passes::graph::RULES.len();
    println!("{} of {all} rules fired: {}", fired.len(), fired.join(", "));
    assert!(fired.len() * 10 >= all * 8, "only {} of {all} rules: {}", fired.len(), fired.join(", "));
}
