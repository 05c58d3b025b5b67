//! Every pass, rewrite, verifier rule, checker error and op has a golden that names it.
//!
//! In the golden files, `;!` lines are the command, `;~` lines are expected errors, and other lines are modules.

use memc_ir::RULES;
use memc_ir::ops::OP_DEFS;
use memc_passes::PASSES;

use crate::repo::{files, has_word, none, read, text_files};

/// Path and text of every golden file that holds a module.
fn goldens() -> Vec<(String, String)> {
    let modules = text_files().into_iter().filter(|f| f.starts_with("tests/golden/") && f.ends_with(".mir"));
    modules.map(|path| (read(&path), path)).map(|(text, path)| (path, text)).collect()
}

/// Whether a line of the goldens that starts with `prefix` has `name` as a whole word, `-` being part of words.
fn named(goldens: &[(String, String)], prefix: &str, name: &str) -> bool {
    let name = name.replace('-', "_");
    let lines = goldens.iter().flat_map(|(_, text)| text.lines()).filter(|line| line.starts_with(prefix));
    lines.map(|line| line.replace('-', "_")).any(|line| has_word(&line, &name))
}

/// The names for which `found` does not hold.
fn without<'a>(names: impl Iterator<Item = &'a str>, found: impl Fn(&str) -> bool) -> Vec<String> {
    names.filter(|name| !found(name)).map(str::to_owned).collect()
}

#[test]
fn every_pass_has_a_golden() {
    let goldens = goldens();
    let missing = without(PASSES.iter().map(|p| p.name), |name| named(&goldens, ";!", name));
    none("no golden's command runs these passes", &missing);
}

#[test]
fn every_rewrite_has_a_golden() {
    let goldens = goldens();
    let has_file = |name: &str| goldens.iter().any(|(path, _)| path.ends_with(&format!("/{name}.mir")));
    none(
        "no golden file is named like these rewrites",
        &without(memc_passes::graph::RULES.iter().map(|r| r.name), has_file),
    );
}

#[test]
fn every_verifier_rule_has_a_golden() {
    let goldens = goldens();
    let missing = without(RULES.iter().map(|r| r.code), |code| named(&goldens, ";~", code));
    none("no golden expects a violation of these rules", &missing);
}

#[test]
fn every_op_has_a_golden() {
    let goldens = goldens();
    let lines: Vec<&str> =
        goldens.iter().flat_map(|(_, text)| text.lines()).filter(|line| line.starts_with('%')).collect();
    let computes = |name: &str| {
        let op = |line: &&str| {
            line.split_once(" = ").is_some_and(|(_, rest)| rest.split([' ', ':']).next() == Some(name))
        };
        lines.iter().any(op)
    };
    none("no golden computes these ops", &without(OP_DEFS.iter().map(|d| d.mnemonic), computes));
}

#[test]
fn every_checker_error_has_a_case() {
    let files = files();
    let has_case = |code: &str| {
        let start = format!("codegen/check/tests/cases/{}_", code.to_lowercase());
        files.iter().any(|f| f.starts_with(&start))
    };
    none(
        "no hand-written plan shows these errors",
        &without(memc_check::CODES.iter().map(|(code, _)| *code), has_case),
    );
}
