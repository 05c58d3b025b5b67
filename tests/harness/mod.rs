//! Finding, running, comparing and blessing golden files.

mod case;
pub(crate) mod coverage;
mod kinds;
pub(crate) mod models;
mod numbers;
pub(crate) mod raise;
pub(crate) mod routes;

use std::fs;
use std::path::{Path, PathBuf};

use case::Case;
use libtest_mimic::{Failed, Trial};
use similar::TextDiff;

const BLESS: &str = "MEMC_BLESS=1 cargo test --test golden";

/// The folder of golden files.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// All `.mir` files below `folder`, sorted by path.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|e| e == "mir") {
            found.push(path);
        }
    }
    found
}

/// The cases of every file, with the file's path below the root.
fn all_cases() -> Vec<(String, Vec<Case>)> {
    let root = root();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_string();
        let cases = case::split(&fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|e| panic!("tests/golden/{name}: {e}"));
        (name, cases)
    };
    files(&root).into_iter().map(read).collect()
}

/// Compares a file with what it should hold, or with `MEMC_BLESS` rewrites it.
fn compare_or_bless(path: &Path, have: &str) -> Result<(), String> {
    let want = fs::read_to_string(path).unwrap_or_default();
    if want == have {
        return Ok(());
    }
    #[allow(clippy::disallowed_methods, reason = "the one switch of the test runner")]
    if std::env::var_os("MEMC_BLESS").is_some() {
        return fs::write(path, have).map_err(|e| format!("{}: {e}", path.display()));
    }
    let diff = TextDiff::from_lines(want.as_str(), have);
    let diff = diff.unified_diff().header(&path.display().to_string(), "the compiler's").to_string();
    Err(format!("{diff}\nIf the change is meant: {BLESS}"))
}

/// A test for every file, named like it: compares every case, or with `MEMC_BLESS` rewrites what differs.
pub(crate) fn trials() -> Vec<Trial> {
    let root = root();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_string();
    let trial = |path: PathBuf| Trial::test(name(&path), move || run_file(&path).map_err(Failed::from));
    files(&root).into_iter().map(trial).collect()
}

fn run_file(path: &Path) -> Result<(), String> {
    let cases = case::split(&fs::read_to_string(path).map_err(|e| e.to_string())?)?;
    let texts: Result<Vec<String>, String> =
        cases.iter().map(|c| kinds::run(c).map_err(|e| format!("{}: {e}", c.sentence()))).collect();
    compare_or_bless(path, &case::join(&texts?))
}
