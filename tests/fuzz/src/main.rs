//! Runs a target on its corpus and on mutants of it, where libFuzzer is not at hand.
//!
//! `memc-fuzz TARGET COUNT [FIRST]` runs mutants with the numbers from FIRST on. `memc-fuzz TARGET FILE...`
//! runs files, and `memc-fuzz list` lists the targets. Each run prints one line of figures. No coverage
//! guides the mutants. The input at hand is in the file that `MEMC_FUZZ_INPUT` names, so that it is there
//! after an abort.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program of the test runner")]

use std::path::Path;
use std::process::ExitCode;

use memc_fuzz::{Limit, TARGETS, Target};

/// Bytes that a target may take.
#[global_allocator]
static MEMORY: Limit = Limit::new(2 << 30);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => {
            TARGETS.iter().for_each(|target| println!("{}\t{}", target.name, target.about));
            ExitCode::SUCCESS
        }
        [name, rest @ ..] if !rest.is_empty() => match Target::named(name) {
            Some(target) => run(target, rest),
            None => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    println!("usage: memc-fuzz list | memc-fuzz TARGET COUNT [FIRST] | memc-fuzz TARGET FILE...");
    ExitCode::from(2)
}

fn run(target: &Target, rest: &[&str]) -> ExitCode {
    let current = std::env::var_os("MEMC_FUZZ_INPUT");
    let mut inputs = 0u64;
    let mut try_out = |data: &[u8]| {
        if let Some(path) = &current {
            std::fs::write(path, data).expect("the input can be written");
        }
        (target.run)(data);
        inputs += 1;
    };
    let numbers: Option<Vec<u64>> = rest.iter().map(|text| text.parse().ok()).collect();
    match numbers.as_deref() {
        Some([count, first @ ..]) => {
            let seeds: Vec<Vec<u8>> = target.corpus().iter().map(|path| read(path)).collect();
            let first = first.first().copied().unwrap_or(0);
            for number in first..first.saturating_add(*count) {
                try_out(&target.mutant(&seeds, number));
            }
        }
        _ => rest.iter().for_each(|path| try_out(&read(Path::new(path)))),
    }
    println!("{{\"target\": \"{}\", \"inputs\": {inputs}, \"peak_bytes\": {}}}", target.name, MEMORY.peak());
    ExitCode::SUCCESS
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("the input can be read")
}
