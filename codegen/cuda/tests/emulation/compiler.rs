//! Whether tests that compile kernels for the CPU can run.
#![allow(clippy::print_stderr, reason = "what was skipped must be seen")]

use std::process::{Command, Stdio};

/// Whether there is a compiler. Without one a test is skipped with a word, except where CI is set.
#[allow(clippy::disallowed_methods, reason = "CI must not skip")]
pub(crate) fn has_compiler() -> bool {
    let found =
        Command::new("g++").arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success());
    assert!(found || std::env::var_os("CI").is_none(), "g++ is needed to run kernels on the CPU");
    if !found {
        eprintln!("SKIPPED: kernels on the CPU (there is no g++)");
    }
    found
}
