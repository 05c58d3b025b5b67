//! Hand-written plans and the exact report on each.
//!
//! A file of `tests/cases` holds a sentence about the case after `#`, a source module, `---`, a plan, `---`, and the
//! report. Where the plan's text has no source, it gets the module's. `MEMC_BLESS=1` rewrites the reports.

use std::fmt::Write;
use std::path::Path;

use memc_check::{CODES, check};

struct Case {
    module: String,
    plan: String,
    expected: String,
}

fn split(text: &str) -> Case {
    let mut parts = text.split("---\n");
    let mut part = || parts.next().expect("a case has three parts").to_owned();
    Case { module: part(), plan: part(), expected: part() }
}

fn report(case: &Case) -> String {
    let module: String =
        case.module.lines().filter(|line| !line.starts_with('#')).fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        });
    let source = memc_ir::parse(&module).expect("the module parses");
    let mut plan = memc_plan::text::parse(&case.plan).expect("the plan parses");
    let given = case.plan.lines().any(|line| line.starts_with("source "));
    if !given {
        plan.meta.set_source(memc_ir::print(&source));
    }
    match check(&source, &plan) {
        Err(errors) => format!("{errors}\n"),
        Ok(report) => {
            let mut text = format!("accepted: {} commands\n", report.commands);
            for lint in report.lints {
                let _ = writeln!(text, "{lint}");
            }
            text
        }
    }
}

#[test]
fn reports_on_hand_written_plans_are_exact() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    #[allow(clippy::disallowed_methods, reason = "the one switch of the test runner")]
    let bless = std::env::var_os("MEMC_BLESS").is_some();
    let mut failures = String::new();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("the cases are there") {
        let path = entry.expect("a readable folder").path();
        let text = std::fs::read_to_string(&path).expect("a readable case");
        let name = path.file_name().expect("a file name").to_string_lossy().into_owned();
        let case = split(&text);
        let actual = report(&case);
        if let Some((code, _)) = CODES.iter().find(|(code, _)| name.starts_with(&code.to_lowercase())) {
            assert!(actual.contains(code), "{name} does not report {code}:\n{actual}");
        }
        if actual != case.expected {
            if bless {
                let blessed = format!("{}---\n{}---\n{actual}", case.module, case.plan);
                std::fs::write(&path, blessed).expect("a writable case");
            } else {
                let _ = writeln!(failures, "{name}\nexpected\n{}\nactual\n{actual}", case.expected);
            }
        }
        names.push(name);
    }
    assert!(failures.is_empty(), "{failures}run with MEMC_BLESS=1 if the new reports are right");
    for (code, _) in CODES {
        let prefix = format!("{}_", code.to_lowercase());
        assert!(names.iter().any(|name| name.starts_with(&prefix)), "no case for {code}");
    }
}

#[test]
fn the_readme_lists_every_code() {
    let readme = include_str!("../README.md");
    for (code, meaning) in CODES {
        assert!(readme.contains(&format!("| {code}  | {meaning} |")), "{code}");
    }
}
