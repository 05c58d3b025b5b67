//! Finds the commit that the sources are of.

use std::path::Path;
use std::process::Command;

/// File that `cargo package` writes beside a package's sources.
const PACKAGED: &str = ".cargo_vcs_info.json";

fn main() {
    let commit = std::fs::read_to_string(PACKAGED).map_or_else(|_| of_checkout(), |info| packaged(&info));
    // A copy of the sources without their repository has no commit.
    let commit = commit.map(|commit| format!(" ({commit})")).unwrap_or_default();
    println!("cargo::rustc-env=COMMIT={commit}");
    println!("cargo::rerun-if-changed=Cargo.toml");
    let head = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|path| Path::new(path).exists());
    head.iter().for_each(|path| println!("cargo::rerun-if-changed={path}"));
}

/// First 12 digits of the commit in `info`, the text of [`PACKAGED`].
fn packaged(info: &str) -> Option<String> {
    let (_, rest) = info.split_once("\"sha1\"")?;
    Some(rest.split('"').nth(1)?.chars().take(12).collect())
}

fn of_checkout() -> Option<String> {
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
