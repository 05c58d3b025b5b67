//! Random instances: every algorithm's offsets are an allocation, and bounds are bounds.

use arbtest::arbitrary::{Result, Unstructured};
use memc_alloc::{Algorithm, Buffer, Instance, Options, Range, check, place, solve};

/// Up to `most` buffers in a short time, some with holes, alignments and fixed offsets far above all others.
fn instance(u: &mut Unstructured<'_>, most: usize, plain: bool) -> Result<Instance> {
    let n = u.int_in_range(1..=most)?;
    let mut buffers = Vec::new();
    for i in 0..n {
        let start = u.int_in_range(0..=30u64)?;
        let mut live = vec![Range { start, end: start + u.int_in_range(1..=12u64)? }];
        if !plain && u.ratio(1, 4)? {
            let start = live[0].end + u.int_in_range(0..=6u64)?;
            live.push(Range { start, end: start + u.int_in_range(1..=6u64)? });
        }
        let bytes = u.int_in_range(0..=64u64)?;
        let align = if plain { 1 } else { *u.choose(&[1, 2, 4, 3])? };
        let offset = (!plain && u.ratio(1, 8)?).then_some(600 + 120 * i as u64 * 12);
        buffers.push(Buffer { live, bytes, align, offset: offset.map(|at| at / 12 * 12) });
    }
    Ok(Instance::new(buffers).expect("the generator makes valid instances"))
}

fn validate(instance: &Instance, offsets: &[u64], who: &str) -> u64 {
    let verdict = check(instance, offsets);
    assert!(verdict.is_ok(), "{who}: {verdict:?}\n{instance:?}\n{offsets:?}");
    let height = verdict.unwrap_or(0);
    assert!(height >= instance.lower_bound(), "{who}: below the bound");
    height
}

#[test]
fn every_algorithm_makes_an_allocation() {
    arbtest::arbtest(|u| {
        let instance = instance(u, 40, false)?;
        for algorithm in Algorithm::ALL {
            validate(&instance, &place(&instance, algorithm).offsets, algorithm.name());
        }
        Ok(())
    });
}

#[test]
fn solving_makes_an_allocation_no_higher_than_any_algorithm_and_again_the_same() {
    arbtest::arbtest(|u| {
        let plain = u.ratio(1, 2)?;
        let instance = instance(u, 24, plain)?;
        let options = Options { work: 20_000, ..Options::effort(0) };
        let solution = solve(&instance, &options, &|| false);
        assert_eq!(validate(&instance, &solution.offsets, "solve"), solution.height);
        assert!(solution.height >= solution.bound && solution.bound >= solution.load);
        assert_eq!(solve(&instance, &options, &|| false).offsets, solution.offsets);
        Ok(())
    });
}

/// The lowest height, by trying every order of stacking: some optimal allocation puts each buffer, in order
/// of offsets, as low as those below it allow.
fn exhaustive(instance: &Instance) -> u64 {
    fn stack(instance: &Instance, at: &mut Vec<Option<u64>>, height: u64, best: &mut u64) {
        if height >= *best {
            return;
        }
        let buffers = instance.buffers();
        let meet = |i: usize, j: usize| {
            let (a, b) = (&buffers[i].live, &buffers[j].live);
            a.iter().any(|x| b.iter().any(|y| x.start < y.end && y.start < x.end))
        };
        let mut open = false;
        for i in 0..buffers.len() {
            if at[i].is_some() {
                continue;
            }
            open = true;
            let below =
                (0..buffers.len()).filter(|&j| meet(i, j)).filter_map(|j| Some(at[j]? + buffers[j].bytes));
            let low = below.max().unwrap_or(0).div_ceil(buffers[i].align) * buffers[i].align;
            at[i] = Some(low);
            stack(instance, at, height.max(low + buffers[i].bytes), best);
            at[i] = None;
        }
        if !open {
            *best = height;
        }
    }
    let mut best = u64::MAX;
    stack(instance, &mut vec![None; instance.buffers().len()], 0, &mut best);
    best
}

#[test]
fn small_instances_are_solved_as_trying_everything_does() {
    arbtest::arbtest(|u| {
        let n = u.int_in_range(1..=7)?;
        let mut buffers = Vec::new();
        for _ in 0..n {
            let start = u.int_in_range(0..=6u64)?;
            let mut buffer = Buffer::new(start, start + u.int_in_range(1..=5u64)?, u.int_in_range(1..=9u64)?);
            if u.ratio(1, 5)? {
                let start = buffer.live[0].end + 1;
                buffer.live.push(Range { start, end: start + 1 });
            }
            buffer.align = *u.choose(&[1, 1, 1, 2, 4])?;
            buffers.push(buffer);
        }
        let instance = Instance::new(buffers).expect("the generator makes valid instances");
        let optimum = exhaustive(&instance);
        let options = Options { work: 10_000_000, ..Options::effort(0) };
        let lowest = solve(&instance, &options, &|| false);
        assert_eq!((lowest.height, lowest.bound), (optimum, optimum), "{instance:?}");
        let under = solve(&instance, &Options { capacity: Some(optimum - 1), ..options }, &|| false);
        assert!(under.bound == optimum && under.height >= optimum, "{instance:?}");
        let within = solve(&instance, &Options { capacity: Some(optimum), ..options }, &|| false);
        assert_eq!(within.height, optimum, "{instance:?}");
        Ok(())
    });
}

#[test]
fn a_search_that_is_stopped_at_once_still_has_an_allocation() {
    arbtest::arbtest(|u| {
        let instance = instance(u, 40, false)?;
        let solution = solve(&instance, &Options::effort(5), &|| true);
        assert_eq!(validate(&instance, &solution.offsets, "stopped"), solution.height);
        Ok(())
    });
}
