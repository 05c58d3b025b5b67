//! The goldens of `raise` as numbers: what a rule leaves computes what was there, on random inputs.

use memc_ir::{Module, parse};
use memc_kernels::interp::Tensor;

use super::all_cases;
use super::kinds::optimised;
use super::numbers::{Feeds, outcome};

/// Random inputs of every case.
const DRAWS: u64 = 4;

/// Largest difference, relative to the largest element: some roundings of sums of a few hundred terms.
const TOLERANCE: f32 = 2e-5;

/// Panics where a case of `golden/raise` computes something else after its passes.
pub(crate) fn check() {
    let mut fired = 0;
    for (file, cases) in all_cases().iter().filter(|(file, _)| file.starts_with("raise/")) {
        for case in cases {
            let text = case.input.join("\n");
            let before = parse(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
            let (after, rules) = optimised(case).unwrap_or_else(|e| panic!("{file}: {e}"));
            fired += usize::from(rules > 0);
            for draw in 0..DRAWS {
                compare(&format!("{file}: {}", case.sentence()), &before, &after, Feeds::Random(draw));
            }
        }
    }
    assert!(fired > 30, "rules fire in {fired} cases");
}

fn compare(name: &str, before: &Module, after: &Module, feeds: Feeds) {
    let (want, have) = (outcome(before, feeds).unwrap(), outcome(after, feeds).unwrap());
    assert_eq!(want.len(), have.len(), "{name}");
    for ((what, want), (_, have)) in want.iter().zip(&have) {
        assert!(close(want, have), "{name}: {what} is\n{have:?}\nand was\n{want:?}");
    }
}

fn close(want: &Tensor, have: &Tensor) -> bool {
    let (Some(a), Some(b)) = (want.elements::<f32>(), have.elements::<f32>()) else {
        return want.data == have.data;
    };
    let largest = a.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    want.ty == have.ty && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= TOLERANCE * largest)
}
