//! The paper's figures 6 and 7, reconstructed: the text gives their captions and what they show, not their
//! numbers.

use memc_ir::{Id, Ids};
use memc_planner::{Gap, GapIx, StepPos, Swap, TensorKind, solve};

use super::score::{Areas, Load, aoa, doa, swdoa};
use super::*;
use memc_planner::sample::{Seed, chain, device, op, sample, tensor};

const MB: u64 = 1 << 20;

/// A step of ops of 10 ms; each variable: name, MB, its accesses. A link of 1 MB per ms.
fn step(ops: u32, variables: &[(&str, u64, &[u32])]) -> Problem {
    let tensors = variables.iter().map(|v| tensor(v.0, TensorKind::Transient, v.1 * MB)).collect();
    let ops = (0..ops).map(|i| {
        let touched = |first: bool| -> Vec<u32> {
            let now = |accesses: &[u32]| accesses.contains(&i) && (accesses.first() == Some(&i)) == first;
            let touched = variables.iter().zip(0..).filter(|(v, _)| now(v.2));
            touched.map(|(_, v)| v).collect()
        };
        op(&format!("op{i}"), 10_000_000, &touched(false), &touched(true))
    });
    let mut link = device();
    (link.h2d_bytes_per_s, link.d2h_bytes_per_s) = (1000 * MB, 1000 * MB);
    Problem::new("figure", link, tensors, ops.collect()).expect("the figure is a problem")
}

/// The area under a load between the accesses at a gap's ends, step by step.
fn area(load: &Load, gap: &Gap) -> u128 {
    let step = |i: StepPos| u128::from(load.bytes[i]) * u128::from(load.start[i.next()] - load.start[i]);
    load.absent(gap).iter().flat_map(|&(a, b)| Ids::between(a, b)).map(step).sum()
}

/// Areas are what they are step by step, whatever has been taken out, in gaps that wrap around, too.
#[test]
fn areas_are_sums_over_steps() {
    let mut wraps = 0;
    for seed in 0..50 {
        let Some(s) = sample(&mut Seed(seed), 12) else { continue };
        let p = &s.problem;
        let genotype = Genotype::keep_all(AccessSequence::of_order(p, p.ops.ids()));
        let mut load = Load::new(&genotype);
        let whole = Load::new(&genotype);
        let mut areas = Areas::new(&whole);
        for gap in genotype.sequence.gaps.values().filter(|g| !g.arrives()) {
            for other in genotype.sequence.gaps.values() {
                assert_eq!(areas.of(other), area(&load, other), "seed {seed}");
            }
            areas.remove(gap);
            load.remove(gap);
            wraps += usize::from(gap.wraps(p.ops.len()));
        }
    }
    assert!(wraps > 20, "{wraps}");
}

/// Figure 6: WDOA ranks by the area under the load between the accesses; SWDOA takes the chosen variable out
/// of the load before it ranks the next. Three variables: the second spans the first's peak, so it falls
/// behind the third once the first is gone.
#[test]
fn figure_6_submodular_scores() {
    let p = step(
        12,
        &[("v1", 60, &[0, 9]), ("v2", 10, &[1, 7]), ("v3", 10, &[3, 10]), ("late", 24, &[9, 10, 11])],
    );
    let genotype = Genotype::keep_all(AccessSequence::of_order(&p, p.ops.ids()));
    let load = Load::new(&genotype);
    let gaps: Vec<GapIx> = Ids::first(3).collect();
    let gap = |k: usize| &genotype.sequence.gaps[gaps[k]];
    let areas: Vec<u128> = gaps.iter().map(|&g| area(&load, &genotype.sequence.gaps[g])).collect();
    let by_hand = |steps: std::ops::Range<usize>| -> u128 {
        steps.map(|i| u128::from(load.bytes[StepPos::new(i)]) * 10_000_000).sum()
    };
    assert_eq!(areas, [by_hand(1..9), by_hand(2..7), by_hand(4..10)]);
    let scores = swdoa(&genotype, &load, &gaps);
    assert_eq!(scores[0], areas[0] as f64, "the largest is chosen under the original load");
    assert!(areas[1] < areas[2] && areas[2] < areas[0]);
    // Then v3: op 9, where v1 is accessed, still has all of its load.
    let mut rest = Load::new(&genotype);
    rest.remove(gap(0));
    assert_eq!(scores[2], area(&rest, gap(2)) as f64);
    rest.remove(gap(2));
    assert_eq!(scores[1], area(&rest, gap(1)) as f64);
    assert!(scores[0] >= scores[2] && scores[2] >= scores[1]);
}

/// Figure 5 and section IV-B: DOA is the time between two accesses less the copies, AOA that by the size, and
/// over the size where it is negative.
#[test]
fn absences() {
    let p = step(12, &[("small", 4, &[0, 8]), ("large", 60, &[1, 5])]);
    let genotype = Genotype::keep_all(AccessSequence::of_order(&p, p.ops.ids()));
    let (load, copies) = (Load::new(&genotype), Copies::new(&p, &genotype.sequence));
    let gap = |g: GapIx| (&genotype.sequence.gaps[g], copies.out[g] + copies.back[g]);
    let ((small, small_ns), (large, large_ns)) = (gap(GapIx(0)), gap(GapIx(1)));
    assert_eq!(doa(&load, small, small_ns), 70e6 - 8e6);
    assert_eq!(aoa(&load, small, small_ns), 62e6 * (4 * MB) as f64);
    assert_eq!(doa(&load, large, large_ns), 30e6 - 120e6);
    assert_eq!(aoa(&load, large, large_ns), -90e6 / (60 * MB) as f64);
}

/// Figure 7: a peak of 120 MB, a limit of 60 MB, three variables w1, w2, w3 selected. Copies to the host
/// follow each other, each at the end of its access; copies to the device follow each other and end at their
/// accesses; the plan without delays (LOAD') exceeds the limit, the one with (LOAD'') does not.
#[test]
fn figure_7_schedule() {
    let p = step(
        10,
        &[
            ("w1", 25, &[0, 9]),
            ("w2", 25, &[1, 8]),
            ("w3", 25, &[2, 7]),
            ("x1", 20, &[3, 6]),
            ("x2", 20, &[4, 5]),
            ("x3", 5, &[4, 5]),
        ],
    );
    let mut genotype = Genotype::keep_all(AccessSequence::of_order(&p, p.ops.ids()));
    assert_eq!(genotype.usage().values().max(), Some(&(120 * MB)));
    for g in Ids::first(3) {
        genotype.swaps[g] = Some(Swap::longest(&genotype.sequence.gaps[g], 10));
    }
    let copies = Copies::new(&p, &genotype.sequence);
    let outs = genotype.copies_out(&p);
    let ms = |t: Option<(u64, u64)>| t.map(|(a, b)| (a / 1_000_000, b / 1_000_000));
    let mut free = genotype.clone();
    let planned = schedule::schedule(&mut free, &copies, &outs, u64::MAX);
    assert_eq!(
        planned.values().take(3).map(|p| ms(p.out)).collect::<Vec<_>>(),
        [Some((10, 35)), Some((35, 60)), Some((60, 85))]
    );
    // w3 is needed first, at 70 ms, and w1 last; each ends where the next begins, or at its access.
    assert_eq!(
        planned.values().take(3).map(|p| ms(p.back)).collect::<Vec<_>>(),
        [Some((65, 90)), Some((40, 65)), Some((15, 40))]
    );
    assert!(free.usage().values().max() > Some(&(60 * MB)), "LOAD' exceeds the limit");
    schedule::schedule(&mut genotype, &copies, &outs, 60 * MB);
    assert!(genotype.usage().values().max() <= Some(&(60 * MB)), "LOAD'' does not");
    let step = Timing::default().evaluate(&genotype, &copies, &outs);
    assert!(step > p.compute_ns(), "the delay shows as overhead");
}

/// Selection stops at the limit, and the combined score is never slower than the four on their own (section
/// VI-B.2).
#[test]
fn the_combination_is_no_worse() {
    let p = chain(12, 4 * MB, 3 << 20, 5 << 20);
    for activations in [8u64, 7, 6] {
        let request = Request::new(activations * 4 * MB + 24 * 256);
        let step = |planner: &Planner| {
            let found = (planner.plan)(&p, &request).expect("it fits");
            memc_planner::evaluate(&p, found.decisions).expect("it runs").evaluation.step_ns
        };
        let single = [DOA, AOA, WDOA, SWDOA].iter().map(step).min();
        assert!(Some(step(&COMBINED)) <= single);
    }
    assert!(solve(&p, &COMBINED, &Request::new(7 * MB)).is_err(), "an op needs more than that");
}
