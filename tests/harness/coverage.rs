//! Goldens that must be there: every pass, verifier rule, parser error, checker error, op, and rewrite rule.

use std::collections::BTreeSet;

use memc_check::CODES;
use memc_ir::ops::OP_DEFS;
use memc_passes::PASSES;
use memc_passes::graph::{RAISE_RULES, RULES as REWRITES, memory};

use super::all_cases;
use super::case::Case;

/// Verifier rules that no text can break; `ir/tests/verify.rs` breaks them.
const NOT_IN_TEXT: &[(&str, &str)] = &[
    ("S1", "the parser hands out ids"),
    ("S2", "every line makes an op of its own"),
    ("S4", "the parser rejects a name that is taken (P3)"),
    ("S5", "every op of a text is in the order"),
];

/// The parser's own codes.
const PARSER: &[&str] = &["P1", "P2", "P3", "P4"];

/// Diagnostics expected anywhere.
fn codes(cases: &[(String, Vec<Case>)]) -> BTreeSet<String> {
    let lines = cases.iter().flat_map(|(_, cases)| cases).flat_map(|c| &c.expected);
    lines.filter_map(|l| Some(l.strip_prefix(";~ ")?.split_once(':')?.0.to_string())).collect()
}

/// Panics with the list of everything that has no golden.
pub(crate) fn check() {
    let cases = all_cases();
    let named = |name: &str| cases.iter().find(|(n, _)| n == name).map(|(_, c)| c.as_slice());
    let mut missing = Vec::new();

    for pass in PASSES {
        let runs = |c: &Case| {
            c.header("pass").is_some_and(|p| p.split([',', '{', '}']).any(|word| word.trim() == pass.name))
        };
        if !cases.iter().flat_map(|(_, c)| c).any(runs) {
            missing.push(format!("pass {}: a case with `;! pass {}`", pass.name, pass.name));
        }
    }

    let found = codes(&cases);
    for rule in memc_ir::RULES {
        let excused = NOT_IN_TEXT.iter().any(|(code, _)| *code == rule.code);
        if excused == found.contains(rule.code) {
            missing.push(if excused {
                format!("rule {}: has a case, so it needs no exception", rule.code)
            } else {
                format!("rule {}: a case with `;~ {}: ...`", rule.code, rule.code)
            });
        }
    }
    missing.extend(PARSER.iter().filter(|c| !found.contains(**c)).map(|c| format!("parser error {c}")));

    for (code, _) in CODES {
        let prefix = format!("check/{}-", code.to_lowercase());
        let reports = |c: &Case| c.expected.iter().any(|l| l.contains(code));
        if !cases.iter().any(|(name, cases)| name.starts_with(&prefix) && cases.iter().any(reports)) {
            missing.push(format!("checker error {code}: a file {prefix}*.mir that reports it"));
        }
    }

    for def in OP_DEFS {
        let file = format!("op/{}.mir", def.mnemonic);
        let cases = named(&file).unwrap_or_default();
        for kind in ["infer", "cost", "run"] {
            if !cases.iter().any(|c| c.kinds().contains(&kind)) {
                missing.push(format!("{file}: a case of kind `{kind}`"));
            }
        }
        let uses = cases.iter().flat_map(|c| &c.input).any(|l| uses_op(l, def.mnemonic));
        let refused = cases.iter().flat_map(|c| &c.expected).any(|l| l.contains(" : error: "));
        if !uses || !refused {
            missing.push(format!("{file}: the op accepted and refused"));
        }
    }

    let rewrites = REWRITES.iter().map(|r| ("simplify", r.name));
    let raised = RAISE_RULES.iter().map(|r| ("raise", r.name));
    let memory = memory::RULES.iter().map(|r| (memory::NAME, r.name));
    for (pass, rule) in rewrites.chain(raised).chain(memory) {
        let file = format!("{pass}/{rule}.mir");
        let (counted, fired) = (format!("; {pass}: "), format!(" {rule}"));
        let fires = |c: &&Case| c.expected.iter().any(|l| l.contains(&counted) && l.ends_with(&fired));
        let cases = named(&file).unwrap_or_default();
        if !cases.iter().any(|c| fires(&c)) {
            missing.push(format!("{file}: a case in which the rule fires, with `;! stats`"));
        }
        if pass != "simplify" && cases.iter().all(|c| fires(&c)) {
            missing.push(format!("{file}: a near miss in which the rule does not fire"));
        }
    }
    assert!(missing.is_empty(), "no golden for\n{}", missing.join("\n"));
}

fn uses_op(line: &str, mnemonic: &str) -> bool {
    line.split_once(" = ").is_some_and(|(_, op)| op.split(' ').next() == Some(mnemonic))
}
