//! Every target on its corpus, and on a fixed number of mutants of it.
//!
//! Memory has a limit. An input that breaks a promise stays in the folder that the message names.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use memc_fuzz::{Limit, TARGETS, Target};

/// Bytes that all targets together may take at once.
#[global_allocator]
static MEMORY: Limit = Limit::new(2 << 30);

/// Runs a target on an input, which is kept where the run does not come back.
fn attempt(target: &Target, what: &str, data: &[u8]) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", target.name));
    std::fs::write(&path, data).expect("the input can be kept");
    let run = catch_unwind(AssertUnwindSafe(|| (target.run)(data)));
    assert!(run.is_ok(), "{}: {what} breaks a promise; the input is {}", target.name, path.display());
    std::fs::remove_file(&path).expect("the input can be removed");
}

fn all(name: &str, mutants: u64) {
    let target = Target::named(name).expect("the target exists");
    let corpus = target.corpus();
    assert!(!corpus.is_empty(), "{name} has no corpus");
    let seeds: Vec<Vec<u8>> =
        corpus.iter().map(|p| std::fs::read(p).expect("the corpus can be read")).collect();
    for (path, data) in corpus.iter().zip(&seeds) {
        attempt(target, &path.display().to_string(), data);
    }
    for number in 0..mutants {
        attempt(target, &format!("mutant {number}"), &target.mutant(&seeds, number));
    }
}

/// A test for each target, with so many mutants.
macro_rules! targets {
    ($($name:ident: $mutants:literal),* $(,)?) => {
        $(#[test]
        fn $name() {
            all(stringify!($name), $mutants);
        })*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$(stringify!($name)),*];
            assert!(TARGETS.iter().map(|target| target.name).eq(tested));
        }
    };
}

targets! {
    onnx: 200,
    graph: 200,
    module: 200,
    plan: 200,
    plan_text: 200,
    problem: 200,
    profile: 300,
    decisions: 500,
    layout: 300,
    npy: 300,
    safetensors: 300,
    ort_checkpoint: 300,
    options: 500,
}

/// The allocator of these tests refuses what exceeds its limit, and knows the most that was in use.
#[test]
fn memory_has_a_limit() {
    let mut block: Vec<u8> = Vec::new();
    assert!(block.try_reserve_exact(3 << 30).is_err());
    assert!(block.try_reserve_exact(1 << 20).is_ok());
    assert!(MEMORY.peak() >= 1 << 20 && MEMORY.peak() <= 2 << 30);
}
