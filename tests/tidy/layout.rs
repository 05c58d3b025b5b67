//! Places, lengths and ends of files.

use std::collections::BTreeSet;

use crate::repo::{files, none, read, rust_files, text_files};

/// The top level: the parts of the compiler, and the files that a repository has.
const TOP: &[&str] = &[
    ".cargo",
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "BENCHMARKS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "clippy.toml",
    "codegen",
    "deny.toml",
    "frontend",
    "ir",
    "models",
    "passes",
    "runtime",
    "rustfmt.toml",
    "tests",
];

/// Most lines of a Rust file.
const MAX_LINES: usize = 600;

#[test]
fn the_top_level_is_the_one_of_the_design() {
    let found: BTreeSet<String> =
        files().iter().map(|f| f.split('/').next().unwrap_or(f).to_owned()).collect();
    let extra = found.iter().filter(|f| !TOP.contains(&f.as_str())).map(|f| format!("{f} does not belong"));
    let missing = TOP.iter().filter(|f| !found.contains(**f)).map(|f| format!("{f} is missing"));
    none("the top level differs", &extra.chain(missing).collect::<Vec<_>>());
}

#[test]
fn rust_files_are_short() {
    let mut wrong = Vec::new();
    for path in rust_files() {
        let lines = read(&path).lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{path} has {lines} lines"));
        }
    }
    none(&format!("files have more than {MAX_LINES} lines"), &wrong);
}

#[test]
fn rust_files_open_by_saying_what_they_are() {
    let says = |text: &str| text.starts_with("//! ") || text.starts_with("#![doc = include_str!(");
    let wrong: Vec<String> = rust_files().into_iter().filter(|f| !says(&read(f))).collect();
    none("a file has no `//!` header", &wrong);
}

#[test]
fn text_is_clean() {
    let mut wrong = Vec::new();
    for path in text_files() {
        let text = read(&path);
        for (i, line) in text.lines().enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                wrong.push(format!("{path}:{}: white space at the end of the line", i + 1));
            }
            if line.contains('\t') && path.ends_with(".rs") {
                wrong.push(format!("{path}:{}: tab", i + 1));
            }
        }
        if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
            wrong.push(format!("{path}: does not end with one newline"));
        }
    }
    none("untidy text", &wrong);
}
