//! Which crate may depend on which, and what every manifest says.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::repo::{none, read, root};

/// Every crate: name, folder, and the workspace crates it may link. Tests and examples are free.
const CRATES: &[(&str, &str, &[&str])] = &[
    ("memc-ir", "ir", &[]),
    ("memc-kernels", "ir/kernels", &["memc-ir"]),
    ("memc-reference", "ir/reference", &["memc-ir"]),
    ("memc-frontend", "frontend", &["memc-ir", "memc-support"]),
    (
        "memc-python",
        "frontend/python",
        &["memc", "memc-cli", "memc-ir", "memc-plan", "memc-runtime", "memc-support"],
    ),
    ("memc-alloc", "passes/alloc", &[]),
    (
        "memc-passes",
        "passes",
        &["memc-alloc", "memc-baselines", "memc-cuda", "memc-ir", "memc-kernels", "memc-planner"],
    ),
    ("memc-planner", "passes/planner", &["memc-alloc", "memc-ir"]),
    ("memc-baselines", "passes/baselines", &["memc-alloc", "memc-ir", "memc-planner"]),
    ("memc-plan", "codegen/plan", &["memc-ir", "memc-support"]),
    ("memc-lower", "codegen/lower", &["memc-ir", "memc-plan"]),
    ("memc-check", "codegen/check", &["memc-ir", "memc-plan"]),
    ("memc-cuda", "codegen/cuda", &["memc-ir"]),
    ("memc-support", "codegen/support", &[]),
    ("memc-version", "codegen/version", &[]),
    ("memc-gpu", "runtime/gpu", &["memc-cuda", "memc-ir"]),
    (
        "memc-runtime",
        "runtime",
        &[
            "memc-check",
            "memc-cuda",
            "memc-gpu",
            "memc-ir",
            "memc-kernels",
            "memc-plan",
            "memc-support",
            "memc-version",
        ],
    ),
    (
        "memc",
        "codegen/driver",
        &[
            "memc-alloc",
            "memc-baselines",
            "memc-check",
            "memc-frontend",
            "memc-ir",
            "memc-lower",
            "memc-passes",
            "memc-plan",
            "memc-planner",
            "memc-support",
        ],
    ),
    (
        "memc-serve",
        "codegen/serve",
        &["memc", "memc-frontend", "memc-ir", "memc-plan", "memc-runtime", "memc-support"],
    ),
    (
        "memc-cli",
        "",
        &[
            "memc",
            "memc-alloc",
            "memc-baselines",
            "memc-check",
            "memc-frontend",
            "memc-ir",
            "memc-passes",
            "memc-plan",
            "memc-planner",
            "memc-serve",
            "memc-support",
            "memc-version",
        ],
    ),
    (
        "memc-fuzz",
        "tests/fuzz",
        &[
            "memc",
            "memc-alloc",
            "memc-baselines",
            "memc-cli",
            "memc-frontend",
            "memc-ir",
            "memc-passes",
            "memc-plan",
            "memc-planner",
            "memc-runtime",
        ],
    ),
];

/// Crates that decide what a plan is. What proves or runs a plan must work without them.
const COMPILER: &[&str] =
    &["memc", "memc-baselines", "memc-frontend", "memc-lower", "memc-alloc", "memc-passes", "memc-planner"];

/// Published crates that belong to one part of the design.
const HOMES: &[(&str, &[&str])] = &[
    ("clap", &["memc-cli", "memc-runtime"]),
    ("clap_complete", &["memc-cli", "memc-runtime"]),
    ("clap_mangen", &["memc-cli", "memc-runtime"]),
    ("cudarc", &["memc-gpu"]),
    ("egg", &["memc-passes"]),
    ("gemm", &["memc-kernels"]),
    ("httparse", &["memc-runtime"]),
    ("libloading", &["memc-gpu"]),
    ("onnx-protobuf", &["memc-frontend"]),
    ("prost", &["memc-plan"]),
    ("protobuf", &["memc-frontend"]),
    ("pyo3", &["memc-python"]),
];

/// Each member's folder and what it links, workspace crates and others, tests and examples not counted.
fn members() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let base = format!("{}/", text(&metadata["workspace_root"]));
    let mut members = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        let manifest = text(&package["manifest_path"]);
        let folder = manifest.strip_prefix(&base).and_then(|m| m.strip_suffix("Cargo.toml"));
        let folder = folder.expect("members are inside the workspace").trim_end_matches('/').to_owned();
        let linked = list(&package["dependencies"]).into_iter().filter(|d| text(&d["kind"]) != "dev");
        members.insert(text(&package["name"]), (folder, linked.map(|d| text(&d["name"])).collect()));
    }
    members
}

#[test]
fn the_workspace_has_the_crates_of_the_design() {
    let found: Vec<(String, String)> =
        members().into_iter().map(|(name, (folder, _))| (name, folder)).collect();
    let mut expected: Vec<(String, String)> =
        CRATES.iter().map(|(name, folder, _)| ((*name).to_owned(), (*folder).to_owned())).collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn crates_depend_only_in_the_directions_of_the_design() {
    let members = members();
    let mut wrong = Vec::new();
    for (name, _, allowed) in CRATES {
        let Some((_, linked)) = members.get(*name) else { continue };
        let inside = linked.iter().filter(|d| members.contains_key(*d));
        wrong.extend(
            inside.filter(|d| !allowed.contains(&d.as_str())).map(|d| format!("{name} depends on {d}")),
        );
    }
    none("a crate depends on one that its row in ARCHITECTURE.md does not name", &wrong);
}

#[test]
fn the_table_of_the_architecture_is_true() {
    let page = read("ARCHITECTURE.md");
    let mut wrong = Vec::new();
    for (name, folder, allowed) in CRATES.iter().filter(|(_, folder, _)| !folder.is_empty()) {
        let short: Vec<&str> = allowed.iter().map(|a| a.trim_start_matches("memc-")).collect();
        let last = if short.is_empty() { "–".to_owned() } else { short.join(", ") };
        let is_row = |line: &&str| {
            line.starts_with(&format!("| `{name}`")) && line.contains(&format!("| `{folder}/` |"))
        };
        if !page.lines().filter(is_row).any(|line| line.ends_with(&format!("| {last} |"))) {
            wrong.push(format!("{name} in {folder}/ may depend on: {last}"));
        }
    }
    none("ARCHITECTURE.md has no such rows", &wrong);
}

#[test]
fn checker_and_runtime_link_no_compiler() {
    let members = members();
    for start in ["memc-check", "memc-runtime"] {
        let (mut reached, mut open) = (BTreeSet::new(), vec![start.to_owned()]);
        while let Some(name) = open.pop() {
            let linked = members.get(&name).map(|(_, linked)| linked.clone()).unwrap_or_default();
            open.extend(linked.into_iter().filter(|d| members.contains_key(d) && reached.insert(d.clone())));
        }
        assert!(reached.contains("memc-plan"), "{start} reads plans");
        let compiler: Vec<&&str> = COMPILER.iter().filter(|c| reached.contains(**c)).collect();
        assert!(compiler.is_empty(), "{start} links {compiler:?}");
    }
}

#[test]
fn published_crates_stay_in_their_part() {
    let mut wrong = Vec::new();
    for (name, (_, linked)) in members() {
        for (published, homes) in HOMES {
            if linked.contains(*published) && !homes.contains(&name.as_str()) {
                wrong.push(format!("{name} depends on {published}, which only {homes:?} may"));
            }
        }
    }
    none("a published crate leaves its part", &wrong);
}

/// Dependencies of tests by path alone, which cargo leaves out of a package: the other crate links this one.
const BY_PATH: &[(&str, &str)] = &[("memc-cuda", "memc-gpu = { path = \"../../runtime/gpu\" }")];

#[test]
fn manifests_inherit_from_the_workspace() {
    const INHERITED: &[&str] = &["version", "edition", "rust-version", "license", "keywords", "categories"];
    let mut wrong = Vec::new();
    for (name, folder, _) in CRATES {
        let manifest =
            read(&if folder.is_empty() { "Cargo.toml".into() } else { format!("{folder}/Cargo.toml") });
        for key in INHERITED {
            if !manifest.lines().any(|line| line == format!("{key}.workspace = true")) {
                wrong.push(format!("{name}: {key} is not inherited"));
            }
        }
        if !manifest.contains("[lints]\nworkspace = true\n") {
            wrong.push(format!("{name}: lints are not inherited"));
        }
        let mut section = "";
        for line in manifest.lines() {
            section = if line.starts_with('[') { line } else { section };
            let is_dependency = section.ends_with("dependencies]") && section != "[workspace.dependencies]";
            let is_by_path = section == "[dev-dependencies]" && BY_PATH.contains(&(*name, line));
            if is_dependency && line.contains('=') && !line.contains("workspace = true") && !is_by_path {
                wrong.push(format!("{name}: `{line}` has a version of its own"));
            }
        }
    }
    none("a manifest does not inherit", &wrong);
}

#[test]
fn exact_versions_say_why() {
    let manifest = read("Cargo.toml");
    let lines: Vec<&str> = manifest.lines().collect();
    let pinned: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].contains("\"=")).collect();
    assert!(!pinned.is_empty(), "protobuf must be pinned: onnx-protobuf builds with one release only");
    for i in pinned {
        assert!(
            i > 0 && lines[i - 1].starts_with("# "),
            "`{}` has no comment above it that says why",
            lines[i]
        );
    }
    let egg = lines.iter().find(|line| line.starts_with("egg = ")).expect("egg is a dependency");
    assert!(egg.contains("\"deterministic\""), "egg must not iterate hash maps: `{egg}`");
}

#[test]
fn every_dependency_is_published() {
    let lock = read("Cargo.lock");
    let sources: BTreeSet<&str> = lock.lines().filter(|line| line.starts_with("source = ")).collect();
    let published = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    assert_eq!(sources.into_iter().collect::<Vec<_>>(), [published]);
}
