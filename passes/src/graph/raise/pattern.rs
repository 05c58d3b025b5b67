//! Patterns of op trees, written as text, and finding them in a graph.
//!
//! ```text
//! ?x              any value; the same name is the same value everywhere in a pattern
//! #c              a value that repeats one element known at compile time
//! 0.5             such a value with that element, or the f32 next to it
//! (op p ...)      the only result of an op on operands that the inner patterns match; fewer patterns than
//!                 operands leave the last operands open
//! (op:1 p ...)    result 1 of an op with several results
//! (op=?y p ...)   the same, and y names the result
//! ~p              what p describes, seen through any reshapes and broadcasts
//! ```
//!
//! Both orders of operands are tried where the op commutes. Attributes, shapes and relations between
//! constants are left to the rule, which is shown every match until one suits it.

use memc_ir::{OpKind, ValueId};

use super::edit::Editor;
use crate::Contradiction;

/// One node of a pattern.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Pattern {
    Var(&'static str),
    Const(&'static str),
    Number(f64),
    Op { name: &'static str, result: usize, bind: Option<&'static str>, operands: Vec<Pattern> },
    View(Box<Pattern>),
}

impl Pattern {
    /// Reads a pattern; the error describes the fault.
    pub(super) fn parse(text: &'static str) -> Result<Pattern, Contradiction> {
        let (pattern, rest) = parse(text)?;
        if rest.trim().is_empty() {
            Ok(pattern)
        } else {
            Err(format!("pattern `{text}`: `{rest}` is left over").into())
        }
    }

    /// Name of the op at the root.
    pub(super) fn root(&self) -> Option<&'static str> {
        if let Pattern::Op { name, .. } = self { Some(name) } else { None }
    }
}

fn word(text: &'static str) -> (&'static str, &'static str) {
    text.split_at(text.find([' ', '(', ')', '\n']).unwrap_or(text.len()))
}

fn parse(text: &'static str) -> Result<(Pattern, &'static str), Contradiction> {
    let text = text.trim_start();
    if let Some(inner) = text.strip_prefix('~') {
        let (pattern, rest) = parse(inner)?;
        return Ok((Pattern::View(Box::new(pattern)), rest));
    }
    let Some(inner) = text.strip_prefix('(') else {
        let (leaf, rest) = word(text);
        let pattern = if let Some(name) = leaf.strip_prefix('?') {
            Pattern::Var(name)
        } else if let Some(name) = leaf.strip_prefix('#') {
            Pattern::Const(name)
        } else {
            Pattern::Number(leaf.parse().map_err(|_| format!("`{leaf}` is neither a variable nor a number"))?)
        };
        return Ok((pattern, rest));
    };
    let (head, mut rest) = word(inner);
    let (head, bind) = match head.split_once("=?") {
        Some((head, bind)) => (head, Some(bind)),
        None => (head, None),
    };
    let (name, result) = match head.split_once(':') {
        Some((name, i)) => (name, i.parse().map_err(|_| format!("`{head}` names no result"))?),
        None => (head, 0),
    };
    if !memc_ir::ops::OP_DEFS.iter().any(|d| d.mnemonic == name && result < d.results.len()) {
        return Err(format!("there is no op `{head}`").into());
    }
    let mut operands = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(')') {
            return Ok((Pattern::Op { name, result, bind, operands }, after));
        }
        if rest.is_empty() {
            return Err(format!("`({head}` is not closed").into());
        }
        let (operand, after) = parse(rest)?;
        operands.push(operand);
        rest = after;
    }
}

/// Values of a pattern's names in one match.
#[derive(Clone, Debug, Default)]
pub(super) struct Bindings(Vec<(&'static str, ValueId)>);

impl Bindings {
    /// The value called `name`, when the pattern that matched has that name.
    pub(super) fn get(&self, name: &str) -> Option<ValueId> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    }

    fn bind(&mut self, name: &'static str, v: ValueId) -> bool {
        match self.get(name) {
            Some(bound) => bound == v,
            None => {
                self.0.push((name, v));
                true
            }
        }
    }
}

/// Most ways to match one pattern at one value.
const MAX_WAYS: usize = 16;
/// Most views in a row that `~` looks through.
const MAX_VIEWS: usize = 8;

/// Patterns that are still to be matched.
struct Goals<'a> {
    pattern: &'a Pattern,
    value: ValueId,
    rest: Option<&'a Goals<'a>>,
}

/// Ways in which `pattern` describes `value`, at most [`MAX_WAYS`].
pub(super) fn matches(g: &Editor<'_>, pattern: &Pattern, value: ValueId) -> Vec<Bindings> {
    let mut found = Vec::new();
    solve(g, Some(&Goals { pattern, value, rest: None }), Bindings::default(), &mut found);
    found
}

fn solve(g: &Editor<'_>, goals: Option<&Goals<'_>>, mut now: Bindings, found: &mut Vec<Bindings>) {
    let Some(&Goals { pattern, value, rest }) = goals else {
        found.push(now);
        return;
    };
    if found.len() >= MAX_WAYS {
        return;
    }
    match pattern {
        Pattern::Var(name) => {
            if now.bind(name, value) {
                solve(g, rest, now, found);
            }
        }
        Pattern::Const(name) => {
            if g.number(value).is_some() && now.bind(name, value) {
                solve(g, rest, now, found);
            }
        }
        Pattern::Number(want) => {
            if g.number(value).is_some_and(|have| nearly(have, *want)) {
                solve(g, rest, now, found);
            }
        }
        Pattern::View(inner) => {
            let mut value = value;
            for _ in 0..MAX_VIEWS {
                solve(g, Some(&Goals { pattern: inner, value, rest }), now.clone(), found);
                match g.def(value) {
                    Some((OpKind::Reshape { .. } | OpKind::Broadcast { .. }, &[x])) => value = x,
                    _ => break,
                }
            }
        }
        Pattern::Op { name, result, bind, operands } => {
            let Some((id, i)) = g.result_of(value) else { return };
            let op = &g.module().ops[id];
            let fits = op.kind().is_some_and(|k| k.mnemonic() == *name);
            if !fits || i != *result || op.operands.len() < operands.len() {
                return;
            }
            if bind.is_some_and(|name| !now.bind(name, value)) {
                return;
            }
            if let ([a, b], &[x, y]) = (operands.as_slice(), op.operands.as_slice())
                && matches!(*name, "add" | "mul" | "min" | "max" | "equal" | "and" | "or")
                && x != y
            {
                let second = Goals { pattern: b, value: x, rest };
                let swapped = Goals { pattern: a, value: y, rest: Some(&second) };
                solve(g, Some(&swapped), now.clone(), found);
            }
            all(g, operands, &op.operands, rest, now, found);
        }
    }
}

/// Matches every pattern with the value beside it, then the rest.
fn all(
    g: &Editor<'_>,
    patterns: &[Pattern],
    values: &[ValueId],
    rest: Option<&Goals<'_>>,
    now: Bindings,
    found: &mut Vec<Bindings>,
) {
    match (patterns, values) {
        ([.., pattern], [.., _]) => {
            // From the back, so that the goals come out in order.
            let n = patterns.len() - 1;
            let goal = Goals { pattern, value: values[n], rest };
            all(g, &patterns[..n], &values[..n], Some(&goal), now, found);
        }
        _ => solve(g, rest, now, found),
    }
}

/// Whether a constant is the f32 nearest to `want`, or a neighbour of that.
///
/// Exporters compute constants in either precision before they round them.
pub(super) fn nearly(have: f64, want: f64) -> bool {
    (have - want).abs() <= want.abs() * f64::from(f32::EPSILON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_are_not_well_formed_are_refused() {
        for text in ["(add ?x", "(add ?x ?y) 1", "(nonsense ?x)", "x", "(add:1 ?x ?y)", "(max_pool:2 ?x)"] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
        let p = Pattern::parse("(mul=?y ~?x (max_pool:1 #c) -0.5)").unwrap();
        assert_eq!(p.root(), Some("mul"));
    }

    #[test]
    fn constants_equal_themselves_and_their_neighbours() {
        assert!(nearly(f64::from(0.1f32), 0.1) && nearly(0.0, 0.0));
        assert!(!nearly(f64::from(0.1f32) + 1e-7, 0.1) && !nearly(1e-30, 0.0));
    }
}
