//! Tells memc and memrun the commit that they are built from.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success());
        output.and_then(|output| String::from_utf8(output.stdout).ok()).map(|text| text.trim().to_owned())
    };
    // A copy of the sources without their repository has no commit.
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).map(|commit| format!(" ({commit})"));
    println!("cargo::rustc-env=COMMIT={}", commit.unwrap_or_default());
    println!("cargo::rerun-if-changed=Cargo.toml");
    let head =
        git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|path| std::path::Path::new(path).exists());
    head.iter().for_each(|path| println!("cargo::rerun-if-changed={path}"));
}
