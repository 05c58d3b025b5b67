//! Raising: ops of a training step for the many small ops that exporters write for them (idiom recognition).
//!
//! A full step exported to standard ONNX has no gradient ops: a convolution's gradient is a convolution of
//! transposed operands, a pooling's a scatter, a normalisation and an optimizer dozens of element-wise ops,
//! each with its temporaries. The rows of the op table that mean the same take fewer passes over memory and
//! keep fewer tensors alive. After this pass a model's one-file step and its ONNX Runtime artifact are nearly
//! the same graph.
//!
//! Rules are patterns of op trees with side conditions. Each is an identity of real numbers where its
//! conditions hold (and where no intermediate overflows). Unlike the other graph passes this one changes
//! rounding, NaNs and the sign of zero. A plan is checked against its results, so plans stay exact. Values
//! with other uses stay computed. Matching never depends on that: most intermediates of a forward pass are
//! used once more by a backward pass that is raised later in the same sweep.
//!
//! One round visits every op once in order, so that a rule sees its operands rewritten already. Rounds repeat
//! while something changes, at most `rounds` times. Rules look at a bounded number of ops, so a round is
//! linear.

mod edit;
mod layout;
mod pattern;
mod rule;
mod rules;
mod terms;

use std::collections::BTreeMap;

use memc_ir::{Code, Module, OpId, Phase};

use self::edit::Editor;
use self::pattern::{Pattern, matches};
use self::rule::Match;
use super::canonicalise::{Form, form};
use super::compact::compact;
use super::dce::sweep;
use crate::{Contradiction, Fired, OptionDef, Options, PassCx, PassDef, PassError};

pub use rule::RaiseRule;
pub use rules::RAISE_RULES;

pub(crate) const PASS: PassDef = PassDef {
    name: "raise",
    summary: "make gradient, normalisation, loss and optimizer ops of primitive ones",
    phases: (Phase::Graph, Phase::Graph),
    options: OPTIONS,
    run,
};

const OPTIONS: &[OptionDef] = &[
    OptionDef { name: "rounds", default: "6", doc: "most sweeps over the graph" },
    OptionDef { name: "forward", default: "false", doc: "make no op that gradients cannot be taken through" },
    OptionDef { name: "only", default: "all", doc: "the one rule to apply" },
];

/// Rules by the op at the root of a pattern, in table order.
type Table = BTreeMap<&'static str, Vec<(usize, Pattern)>>;

fn table(only: &str) -> Result<Table, PassError> {
    if only != "all" && !RAISE_RULES.iter().any(|r| r.name == only) {
        return Err(PassError::Usage(format!("unknown rule `{only}` (memc list rewrites names them)")));
    }
    let mut table = Table::new();
    for (i, rule) in RAISE_RULES.iter().enumerate().filter(|(_, r)| only == "all" || r.name == only) {
        for text in rule.patterns {
            let wrong = |e: Contradiction| PassError::Failed(format!("rule {}: {e}", rule.name));
            let pattern = Pattern::parse(text).map_err(wrong)?;
            let root = pattern.root().ok_or_else(|| wrong("its pattern has no op at the root".into()))?;
            table.entry(root).or_default().push((i, pattern));
        }
    }
    Ok(table)
}

fn run(m: &mut Module, options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let rounds = options.number(OPTIONS, "rounds")?;
    let forward = match options.get(OPTIONS, "forward")? {
        "true" => true,
        "false" => false,
        other => {
            return Err(PassError::Usage(format!("option `forward` must be true or false, got `{other}`")));
        }
    };
    let table = table(options.get(OPTIONS, "only")?)?;
    let mut counts = vec![0u64; RAISE_RULES.len()];
    for _ in 0..rounds {
        sweep(m);
        let Some(mut editor) = Editor::new(m, forward) else { break };
        let mut fired = Vec::new();
        let mut changed = false;
        for op in editor.ops() {
            changed |= visit(&mut editor, &table, op, &mut fired);
        }
        editor.finish();
        for (rule, at) in fired {
            counts[rule] += 1;
            cx.fired.push(Fired { pass: PASS.name, rule: RAISE_RULES[rule].name, at, count: 1 });
        }
        if !changed {
            break;
        }
    }
    sweep(m);
    compact(m);
    for (rule, n) in RAISE_RULES.iter().zip(counts).filter(|(_, n)| *n > 0) {
        cx.stats.push((PASS.name, rule.name.into(), n));
    }
    Ok(())
}

/// Rewrites at one op; records rule and result name. Returns whether anything changed.
fn visit(editor: &mut Editor<'_>, table: &Table, op: OpId, fired: &mut Vec<(usize, String)>) -> bool {
    if !editor.is_alive(op) {
        return false;
    }
    let mut changed = false;
    if canonical(editor, op) {
        changed = true;
        if !editor.is_alive(op) {
            return true;
        }
    }
    let Some(kind) = editor.module().ops[op].kind() else { return changed };
    let Some(rules) = table.get(kind.mnemonic()) else { return changed };
    for (rule, pattern) in rules {
        for root in editor.module().ops[op].results.clone() {
            let name = editor.module().values[root].name.clone();
            for names in matches(editor, pattern, root) {
                editor.aim(op);
                if (RAISE_RULES[*rule].apply)(editor, &Match { root, names }).is_some() {
                    fired.push((*rule, name));
                    return true;
                }
            }
        }
    }
    changed
}

/// Brings an op to canonical form, since rewriting its operands may have left it without.
fn canonical(editor: &mut Editor<'_>, op: OpId) -> bool {
    let mut changed = false;
    loop {
        let m = editor.module();
        let (Code::Compute(kind), &[result]) = (&m.ops[op].code, m.ops[op].results.as_slice()) else {
            return changed;
        };
        match form(m, kind, &m.ops[op].operands, &m.values[result].ty) {
            None => return changed,
            Some((_, Form::Value(v))) => return editor.replace(result, v) || changed,
            Some((_, Form::Op(kind, operands))) => editor.respell(op, kind, operands),
        }
        changed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_well_formed_and_rules_are_sorted_by_name() {
        assert!(table("all").is_ok_and(|t| !t.is_empty()));
        assert!(RAISE_RULES.is_sorted_by(|a, b| a.name < b.name));
    }
}
