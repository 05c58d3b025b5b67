//! Runs the tests of the Python package, on the extension as built from this tree.
//!
//! They need a Python 3 with numpy and pytest; those of training need torch as well. `MEMC_PYTHON` names
//! another interpreter than `python3`. Missing packages are told, and are an error where CI is set.

#![allow(clippy::disallowed_methods, reason = "a machine says by its environment what Python it has")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn python() -> Command {
    Command::new(std::env::var_os("MEMC_PYTHON").unwrap_or_else(|| "python3".into()))
}

/// Whether Python has a module.
fn has(module: &str) -> bool {
    let run = python().args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

/// Says that tests do not run, where they may be left out.
fn skip(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "{what}, and CI must run all tests");
    // Not by `eprintln`, which a test that passes keeps to itself.
    let line = format!("SKIPPED: tests of the Python package ({what})\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The package with its extension, in a folder of its own.
fn package() -> PathBuf {
    // Cargo builds the extension for this test, and puts it beside.
    let test = std::env::current_exe().expect("a test has a path");
    let built = test.parent().expect("a test has a folder");
    let folder = built.join("python-package");
    let package = folder.join("memc");
    std::fs::create_dir_all(&package).expect("a folder can be made");
    for file in std::fs::read_dir(root().join("python/memc")).expect("the package is there") {
        let path = file.expect("the package can be listed").path();
        let name = path.file_name().expect("a file has a name");
        if path.extension().is_some_and(|e| e == "py" || e == "pyi" || e == "typed") {
            std::fs::copy(&path, package.join(name)).expect("a file can be copied");
        }
    }
    let library = format!("{}_native{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    // A new file: one that runs must not change.
    let extension = package.join("_native.abi3.so");
    let _ = std::fs::remove_file(&extension);
    std::fs::copy(built.join(library), extension).expect("the extension was built");
    folder
}

#[test]
fn python_tests_pass() {
    if !has("numpy") || !has("pytest") {
        return skip("python3 has no numpy or no pytest");
    }
    let tests = root().join("tests");
    let files = if has("torch") {
        vec![tests]
    } else {
        skip("python3 has no torch, so training is not tested");
        vec![tests.join("test_native.py")]
    };
    let others = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let paths = [package()].into_iter().chain(std::env::split_paths(&others));
    let paths = std::env::join_paths(paths).expect("folders have no colons");
    let status = python()
        .args(["-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .args(files)
        .env("PYTHONPATH", paths)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .status()
        .expect("Python runs");
    assert!(status.success(), "tests of the Python package failed");
}
