//! Rules for the pages and the CI script.

use crate::repo::{files, none, read, root, text_files};

/// Folders at the root of somebody's machine.
const MACHINE: &[&str] = &["home", "root", "Users", "work", "mnt"];

/// Hosts that committed text may refer to.
const HOSTS: &[&str] = &[
    "arxiv.org",
    "crates.io",
    "doc.rust-lang.org",
    "docs.rs",
    "github.com",
    "netron.app",
    "onnx.ai",
    "onnxruntime.ai",
    "pytorch.org",
    "rustup.rs",
    "ui.perfetto.dev",
    "www.apache.org",
    "www.w3.org",
];

/// The texts of a page's fenced blocks in `language`.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in read(page).lines() {
        let fence = line.strip_prefix("```");
        open = match (open, fence) {
            (None, Some(named)) => Some((named == language, String::new())),
            (Some((true, block)), Some(_)) => {
                blocks.push(block);
                None
            }
            (Some((false, _)), Some(_)) | (None, None) => None,
            (Some((wanted, block)), None) => Some((wanted, block + line + "\n")),
        };
    }
    blocks
}

/// The lines of a page's `sh` blocks, continued lines joined.
fn shell_lines(page: &str) -> Vec<String> {
    let text = blocks(page, "sh").concat().replace("\\\n", " ");
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn the_readme_runs_the_main_job_in_one_line() {
    let lines = shell_lines("README.md");
    let job = lines.iter().find(|l| {
        l.contains("cargo build --release")
            && l.contains("memc ")
            && l.contains("compile models/")
            && l.contains("memrun")
    });
    let job =
        job.expect("README.md has a sh line with `cargo build --release … memc … compile models/… memrun …`");
    let model =
        job.split_whitespace().find(|word| word.starts_with("models/")).expect("the line names a model");
    assert!(root().join(model).is_file(), "README.md compiles {model}, which is not there");
}

#[test]
fn ci_runs_the_tests_as_the_readme_does() {
    let lines = shell_lines("README.md");
    let test =
        lines.iter().find(|l| l.starts_with("cargo test")).expect("README.md has a sh line `cargo test …`");
    let ci = read(".ci/run");
    assert!(ci.lines().any(|line| line == format!("step {test}")), ".ci/run does not run `{test}`");
}

#[test]
fn ci_lints_as_contributing_says() {
    let ci = read(".ci/run");
    let aliases = read(".cargo/config.toml");
    let lint = aliases.lines().find_map(|l| l.strip_prefix("lint = ")).expect("there is an alias `lint`");
    let lint = format!("step cargo {}", lint.trim_matches('"'));
    assert!(ci.lines().any(|line| line == lint), ".ci/run does not run `cargo lint`: {lint}");
}

#[test]
fn ci_is_executable_and_strict() {
    let ci = read(".ci/run");
    assert!(ci.starts_with("#!/usr/bin/env bash\n") && ci.contains("\nset -euo pipefail\n"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(root().join(".ci/run")).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o111, 0o111, ".ci/run is not executable");
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the environment is what is tested")]
fn ci_does_not_bless() {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    assert!(!(set("CI") && set("MEMC_BLESS")), "MEMC_BLESS rewrites what CI should compare");
}

#[test]
fn committed_text_knows_no_machine() {
    let mut wrong = Vec::new();
    for path in text_files() {
        for (i, line) in read(&path).lines().enumerate() {
            for folder in MACHINE {
                let name = format!("/{folder}/");
                let starts = |(at, _): (usize, &str)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}/)".contains(c))
                };
                if line.match_indices(&name).any(starts) {
                    wrong.push(format!("{path}:{}: {}", i + 1, line.trim()));
                }
            }
        }
    }
    none("a path of somebody's machine", &wrong);
}

#[test]
fn committed_text_refers_to_known_hosts() {
    let mut wrong = Vec::new();
    for path in text_files() {
        for (i, line) in read(&path).lines().enumerate() {
            for (at, scheme) in line.match_indices("https://").chain(line.match_indices("http://")) {
                let rest = &line[at + scheme.len()..];
                let host = rest.split(|c: char| !(c.is_alphanumeric() || ".-".contains(c))).next();
                let host = host.unwrap_or_default().trim_end_matches('.');
                if !host.is_empty() && !HOSTS.contains(&host) {
                    wrong.push(format!("{path}:{}: {host}", i + 1));
                }
            }
        }
    }
    none("a host that is not in the list of tests/tidy/docs.rs", &wrong);
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut wrong = Vec::new();
    for page in files().iter().filter(|f| f.ends_with(".md")) {
        let folder = root().join(page).parent().map(|p| p.to_path_buf()).unwrap_or_default();
        let text = read(page);
        for (at, open) in text.match_indices("](") {
            let target = text[at + open.len()..].split([')', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
                wrong.push(format!("{page}: {target}"));
            }
        }
    }
    none("a link to nothing", &wrong);
}

/// The tests that a page names as `path/file.rs::test`.
fn named_tests(page: &str) -> Vec<(String, String)> {
    let text = read(page);
    let named = text.split('`').filter_map(|code| code.split_once(".rs::"));
    let file = |path: &str| format!("{path}.rs");
    named.map(|(path, test)| (file(path), test.to_owned())).collect()
}

#[test]
fn the_tests_of_the_invariants_are_there() {
    let named = named_tests("ARCHITECTURE.md");
    assert!(!named.is_empty(), "ARCHITECTURE.md names the tests that hold its invariants");
    let mut wrong = Vec::new();
    for (file, test) in named {
        if !read(&file).contains(&format!("fn {test}(")) {
            wrong.push(format!("{file} has no test {test}"));
        }
    }
    none("ARCHITECTURE.md names a test that is not there", &wrong);
}

#[test]
fn every_part_has_its_page() {
    const PAGES: &[&str] = &[
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "codegen/check/README.md",
        "codegen/cli/MANUAL.md",
        "codegen/plan/README.md",
        "frontend/PYTORCH.md",
        "ir/README.md",
        "models/README.md",
        "passes/README.md",
        "passes/baselines/README.md",
        "passes/planner/README.md",
        "runtime/GPU.md",
        "runtime/README.md",
        "tests/README.md",
        "tests/fuzz/README.md",
    ];
    let wrong: Vec<String> = PAGES.iter().filter(|p| read(p).is_empty()).map(|p| p.to_string()).collect();
    none("a page is missing", &wrong);
}

#[test]
fn the_manifest_names_every_model() {
    let manifest = read("models/README.md");
    let mut wrong: Vec<String> = files()
        .iter()
        .filter_map(|f| f.strip_prefix("models/")?.split_once('/'))
        .filter(|(folder, _)| !manifest.contains(&format!("`{folder}")))
        .map(|(folder, _)| folder.to_owned())
        .collect();
    wrong.dedup();
    none("models/README.md does not say where these come from", &wrong);
    let listed = read("models/manifest.tsv");
    let missing = files().into_iter().filter_map(|f| f.strip_prefix("models/").map(str::to_owned));
    let missing =
        missing.filter(|f| f.contains('/') && !f.starts_with("gen/") && !listed.contains(&format!("{f}\t")));
    none("models/manifest.tsv does not list these", &missing.collect::<Vec<_>>());
}

#[test]
fn modules_in_pages_are_valid_and_canonical() {
    let mut found = 0;
    for page in files().iter().filter(|f| f.ends_with(".md")) {
        for block in blocks(page, "mir") {
            let module = memc_ir::parse(&block).unwrap_or_else(|e| panic!("{page}: {e}"));
            memc_ir::verify(&module).unwrap_or_else(|e| panic!("{page}: {e}"));
            assert_eq!(memc_ir::print(&module), block, "{page}");
            found += 1;
        }
    }
    assert!(found > 0, "ir/README.md shows no module");
}
