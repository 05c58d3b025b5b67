//! Golden files: small modules with the exact text that a part of the compiler makes of them.
//!
//! Every `.mir` file under `tests/golden` holds cases, separated by lines `;----`:
//!
//! ```text
//! ; A sentence that says what the case shows.
//! ;! test opt
//! ;! pass dce,cse
//! module @m graph
//! ...
//! ;= the expected output, line by line
//! ```
//!
//! `;~` lines are diagnostics, under the line they are about. `MEMC_BLESS=1` rewrites `;=` and `;~` lines and
//! nothing else. Each file is a test: `cargo golden op/relu` runs one. A new kind of test is a function in
//! `harness/kinds.rs` and a row in its table.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod harness;

use std::process::ExitCode;

use harness::{coverage, models, raise, routes};
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let whole: [(&str, fn()); 4] = [
        ("every_pass_rule_and_op_has_a_golden", coverage::check),
        ("what_raise_rewrites_computes_the_same_numbers", raise::check),
        ("the_graph_pipeline_keeps_what_the_committed_models_compute", models::check),
        ("all_routes_of_a_model_meet_in_nearly_the_same_step", routes::check),
    ];
    let mut trials = harness::trials();
    trials.extend(whole.map(|(name, check)| {
        Trial::test(name, move || {
            check();
            Ok(())
        })
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
