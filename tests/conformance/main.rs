//! The ONNX standard's backend node tests: each one that `manifest.tsv` says passes does, and no other.
//!
//! [README.md](README.md) says what is run and how results are compared. `MEMC_BLESS=1` rewrites the manifest
//! and the page's counts; a test whose numbers are wrong is an error in any case, never something to write
//! down.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod archive;
mod case;
mod compare;
mod damage;
mod gradient;
mod manifest;

use std::path::{Path, PathBuf};

use case::Outcome;
use gradient::Checked;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")
}

/// Every node test of the standard has the outcome that the manifest gives it, and none computes wrong
/// numbers.
#[test]
fn node_tests_come_out_as_the_manifest_says() {
    let tests = archive::read(&folder().join("node_tests.zip"));
    let (mut rows, mut wrong) = (Vec::new(), Vec::new());
    for test in &tests {
        match case::run(test) {
            Outcome::Wrong(why) => wrong.push(format!("{}: {why}", test.name)),
            outcome => rows.push(manifest::row(test, &outcome)),
        }
    }
    assert!(wrong.is_empty(), "{} node tests go wrong\n\n{}\n", wrong.len(), wrong.join("\n"));
    manifest::compare(&folder(), &rows);
}

/// Imported operators have the right derivative with respect to every float input.
#[test]
fn imported_operators_differentiate() {
    let (mut right, mut wrong) = (0, Vec::new());
    for test in &archive::read(&folder().join("node_tests.zip")) {
        match gradient::check(test) {
            Checked::Nothing => {}
            Checked::Right => right += 1,
            Checked::Wrong(why) => wrong.push(format!("{}: {why}", test.name)),
        }
    }
    assert!(wrong.is_empty(), "{} gradients go wrong\n\n{}\n", wrong.len(), wrong.join("\n"));
    assert!(right > 800, "only {right} node tests have a gradient that was checked");
}

/// Damaged copies of the models are refused, or imported as modules that the verifier accepts; nothing
/// panics.
#[test]
fn damaged_models_are_refused_or_sound() {
    let tests = archive::read(&folder().join("node_tests.zip"));
    let accepted: usize =
        tests.iter().enumerate().map(|(i, test)| damage::import_damaged(test, i as u64, 8)).sum();
    assert!(accepted > 1000, "only {accepted} damaged models were accepted, so little was tried");
}
