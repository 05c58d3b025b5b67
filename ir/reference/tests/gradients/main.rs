//! Gradients against finite differences in double precision: every row of the op table, then whole models.
//!
//! Every case of [`rows`] weighs the results of one op with random numbers, differentiates the sum, and
//! compares each element with a central difference. A row must have a case. Where a row's gradient must be
//! refused, the case says why.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod elementwise;
mod models;
mod movement;
mod network;
mod support;

use memc_ir::ops::OP_DEFS;
use support::{Case, Expect};

/// The cases of every family.
fn rows() -> Vec<Case> {
    let mut all = Vec::new();
    elementwise::cases(&mut all);
    network::cases(&mut all);
    movement::cases(&mut all);
    all
}

#[test]
fn every_row_has_the_gradient_of_finite_differences() {
    let failed: Vec<String> = rows().iter().filter_map(|case| case.check().err()).collect();
    assert!(failed.is_empty(), "{} cases:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn every_row_is_checked_or_refused_with_a_reason() {
    let all = rows();
    let mut wrong = Vec::new();
    for def in OP_DEFS {
        let cases: Vec<&Case> = all.iter().filter(|c| c.op.mnemonic() == def.mnemonic).collect();
        let checked = cases.iter().any(|c| matches!(c.expect, Expect::Gradients(_)));
        let refused = cases.iter().any(|c| matches!(c.expect, Expect::Refused(_)));
        match (cases.is_empty(), checked, refused) {
            (true, ..) => wrong.push(format!("{}: no case", def.mnemonic)),
            (_, true, true) => wrong.push(format!("{}: both checked and refused", def.mnemonic)),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
