//! The manifest: one row for every node test of the standard.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use similar::TextDiff;

use crate::archive::Test;
use crate::case::Outcome;

const BLESS: &str = "MEMC_BLESS=1 cargo test --test conformance";

/// A row: test, operator, outcome, and the reason or the inputs that are constants.
pub(crate) fn row(test: &Test, outcome: &Outcome) -> [String; 4] {
    let (word, note) = match outcome {
        Outcome::Pass(constants) if constants.is_empty() => ("pass", String::new()),
        Outcome::Pass(constants) => ("pass", format!("constant: {}", constants.join(", "))),
        Outcome::Unsupported(why) | Outcome::Wrong(why) => ("unsupported", why.clone()),
    };
    [test.name.clone(), test.operator.clone(), word.to_string(), note]
}

/// Compares manifest and page with `rows`, or with `MEMC_BLESS` rewrites them.
pub(crate) fn compare(folder: &Path, rows: &[[String; 4]]) {
    let mut text = String::from("test\toperator\toutcome\tnote\n");
    for row in rows {
        writeln!(text, "{}", row.join("\t").trim_end()).unwrap();
    }
    check(&folder.join("manifest.tsv"), &text);
    let page = folder.join("README.md");
    let old = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = old.split_once("<!-- generated -->\n").expect("the page has the start marker");
    let (_, after) = rest.split_once("<!-- end -->").expect("the page has the end marker");
    check(&page, &format!("{before}<!-- generated -->\n{}<!-- end -->{after}", counts(rows)));
}

fn check(path: &Path, want: &str) {
    let have = std::fs::read_to_string(path).unwrap_or_default();
    if have == want {
        return;
    }
    #[allow(clippy::disallowed_methods, reason = "the one switch of the test runner")]
    if std::env::var_os("MEMC_BLESS").is_some() {
        return std::fs::write(path, want).unwrap();
    }
    let diff = TextDiff::from_lines(have.as_str(), want);
    let diff =
        diff.unified_diff().context_radius(0).header(&path.display().to_string(), "outcomes").to_string();
    panic!("{diff}\nIf the change is meant: {BLESS}");
}

/// The counts in words and tables: all tests, reasons, operators.
fn counts(rows: &[[String; 4]]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let mut operators: BTreeMap<&str, (usize, BTreeMap<&str, usize>)> = BTreeMap::new();
    let mut passed = 0;
    for [_, operator, outcome, note] in rows {
        let entry = operators.entry(operator).or_default();
        if outcome == "pass" {
            entry.0 += 1;
            passed += 1;
        } else {
            *entry.1.entry(note).or_default() += 1;
            *reasons.entry(note).or_default() += 1;
        }
    }
    let mut reasons: Vec<(&str, usize)> = reasons.into_iter().collect();
    reasons.sort_by_key(|&(reason, n)| (std::cmp::Reverse(n), reason));
    let mut out = format!(
        "Of the standard's {} tests {passed} pass and {} are not supported:\n\n",
        rows.len(),
        rows.len() - passed
    );
    out += "| tests | not supported |\n| ----- | ------------- |\n";
    for (reason, n) in reasons {
        writeln!(out, "| {n} | {} |", reason.replace('|', "\\|")).unwrap();
    }
    let complete: Vec<&str> =
        operators.iter().filter(|(_, (_, refused))| refused.is_empty()).map(|(&op, _)| op).collect();
    let sentence = |head: &str, words: &[&str]| {
        fold(&format!("{head} {} operators: {}.", words.len(), words.join(", ")))
    };
    writeln!(out, "\n{}", sentence("Every test passes of", &complete)).unwrap();
    out += "\nSome tests pass:\n\n| operator | pass | not supported |\n| -------- | ---- | ------------- |\n";
    for (op, (passed, refused)) in &operators {
        if *passed > 0 && !refused.is_empty() {
            let why: Vec<String> = refused.iter().map(|(why, n)| format!("{n} {why}")).collect();
            writeln!(out, "| {op} | {passed} | {} |", why.join("; ").replace('|', "\\|")).unwrap();
        }
    }
    let none: Vec<&str> =
        operators.iter().filter(|(_, (passed, _))| *passed == 0).map(|(&op, _)| op).collect();
    writeln!(out, "\n{}", sentence("No test passes of", &none)).unwrap();
    out
}

/// The text in lines of at most 110 columns.
fn fold(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= 110 => *line = format!("{line} {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}
