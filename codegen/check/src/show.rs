//! Symbolic values as text: expressions cut at a fixed depth, with the first difference of two symbolic
//! values marked.

use std::collections::BTreeMap;
use std::fmt::Write;

use memc_ir::Module;

use crate::symbolic::{Symbolic, SymbolicId, SymbolicValues};

/// Levels shown below the first difference.
const DEPTH: usize = 2;
/// Levels shown above it.
const CONTEXT: usize = 3;
/// Operands shown of one operator.
const MAX_ARGS: usize = 8;

/// Names for symbolic values that are cut off, such as the values of the source in each step.
pub(crate) type Names = BTreeMap<SymbolicId, String>;

/// Tables that printing looks things up in.
pub(crate) struct Shower<'a> {
    pub(crate) values: &'a SymbolicValues,
    pub(crate) source: &'a Module,
    pub(crate) names: &'a Names,
}

impl Shower<'_> {
    /// `expected` and `actual`, both with the place where they first differ between `«` and `»`.
    pub(crate) fn difference(&self, expected: SymbolicId, actual: SymbolicId) -> (String, String) {
        let mut path = Vec::new();
        let (mut a, mut b) = (expected, actual);
        while let Some((index, next_a, next_b)) = self.only_difference(a, b) {
            path.push(index);
            (a, b) = (next_a, next_b);
        }
        (self.along(expected, &path), self.along(actual, &path))
    }

    /// A symbolic value, cut at a fixed depth.
    pub(crate) fn value(&self, id: SymbolicId) -> String {
        let mut out = String::new();
        self.write(id, DEPTH, &mut out);
        out
    }

    /// The one operand in which two applications of one operator differ.
    fn only_difference(&self, a: SymbolicId, b: SymbolicId) -> Option<(usize, SymbolicId, SymbolicId)> {
        let (
            Symbolic::Apply { sig, result, args },
            Symbolic::Apply { sig: other_sig, result: other_result, args: others },
        ) = (self.values.get(a).0, self.values.get(b).0)
        else {
            return None;
        };
        if (sig, result, args.len()) != (other_sig, other_result, others.len()) {
            return None;
        }
        let mut differing = args.iter().zip(others.iter()).enumerate().filter(|(_, (x, y))| x != y);
        match (differing.next(), differing.next()) {
            (Some((index, (&x, &y))), None) => Some((index, x, y)),
            _ => None,
        }
    }

    /// The symbolic value with the operand that `path` leads to marked, and only the last levels of the path
    /// shown.
    fn along(&self, root: SymbolicId, path: &[usize]) -> String {
        let hidden = path.len().saturating_sub(CONTEXT);
        let (skipped, shown) = path.split_at(hidden);
        let mut at = root;
        for &index in skipped {
            if let Symbolic::Apply { args, .. } = self.values.get(at).0 {
                at = args.get(index).copied().unwrap_or(SymbolicId::POISON);
            }
        }
        let mut out = String::new();
        if hidden > 0 {
            out.push_str("… ");
        }
        self.write_path(at, shown, &mut out);
        out
    }

    fn write_path(&self, id: SymbolicId, path: &[usize], out: &mut String) {
        match (path.split_first(), self.values.get(id).0) {
            (Some((&index, rest)), Symbolic::Apply { args, .. }) => {
                self.write_apply(id, out, |this, i, out| match args.get(i) {
                    Some(&arg) if i == index => this.write_path(arg, rest, out),
                    Some(&arg) => this.write(arg, 0, out),
                    None => {}
                });
            }
            _ => {
                out.push('«');
                self.write(id, DEPTH, out);
                out.push('»');
            }
        }
    }

    fn write(&self, id: SymbolicId, depth: usize, out: &mut String) {
        match self.values.get(id).0 {
            Symbolic::Apply { args, .. } => match (depth, self.names.get(&id)) {
                (0, Some(name)) => out.push_str(name),
                (0, None) => out.push('…'),
                _ => self.write_apply(id, out, |this, i, out| {
                    if let Some(&arg) = args.get(i) {
                        this.write(arg, depth - 1, out);
                    }
                }),
            },
            leaf => self.write_leaf(leaf, out),
        }
    }

    fn write_apply(&self, id: SymbolicId, out: &mut String, mut arg: impl FnMut(&Self, usize, &mut String)) {
        let Symbolic::Apply { sig, result, args } = self.values.get(id).0 else { return };
        let Some(sig) = self.values.sig(*sig) else { return };
        out.push_str(sig.kind.mnemonic());
        if sig.results.len() > 1 {
            let _ = write!(out, "#{result}");
        }
        let attrs = sig.kind.attrs_text();
        if !attrs.is_empty() {
            let _ = write!(out, " {attrs}");
        }
        out.push('(');
        for i in 0..args.len().min(MAX_ARGS) {
            if i > 0 {
                out.push_str(", ");
            }
            arg(self, i, out);
            if let Some(ty) = sig.operands.get(i).filter(|_| is_reshaped(self.values, args.get(i), sig, i)) {
                let _ = write!(out, ": {ty}");
            }
        }
        if args.len() > MAX_ARGS {
            out.push_str(", …");
        }
        out.push(')');
    }

    fn write_leaf(&self, leaf: &Symbolic, out: &mut String) {
        let m = self.source;
        let name = |v| memc_ir::value_name(m, v);
        match leaf {
            Symbolic::Input { input, step } => {
                let value = m.inputs.values().nth(*input as usize).map(|i| name(i.value));
                let _ = write!(out, "{}@{step}", value.unwrap_or_else(|| "?".into()));
            }
            Symbolic::State(state) => {
                let value = m.states.values().nth(*state as usize).map(|s| name(s.value));
                let _ = write!(out, "{}@0", value.unwrap_or_else(|| "?".into()));
            }
            Symbolic::Const(c) => {
                let value = m.consts.values().nth(*c as usize).map(|c| name(c.value));
                out.push_str(&value.unwrap_or_else(|| "?".into()));
            }
            Symbolic::Empty => out.push_str("<no bytes>"),
            Symbolic::Poison | Symbolic::Apply { .. } => out.push('?'),
        }
    }
}

/// Whether operand `i` is used under another type than the operator that made it gave it.
fn is_reshaped(
    values: &SymbolicValues,
    arg: Option<&SymbolicId>,
    sig: &crate::symbolic::Signature,
    i: usize,
) -> bool {
    let Some(Symbolic::Apply { sig: made, result, .. }) = arg.map(|&arg| values.get(arg).0) else {
        return false;
    };
    let made = values.sig(*made).and_then(|made| made.results.get(*result as usize));
    made.is_some() && made != sig.operands.get(i)
}
