//! Booleans, comparisons and selection.

use egg::Id;
use memc_ir::attr::Scalar;
use memc_ir::{DType, OpKind};

use crate::graph::simplify::rule::{Found, RuleDef, Term};

/// The value that a class of booleans repeats, when it is known.
fn truth(f: &Found<'_>, id: Id) -> Option<bool> {
    match f.scalar(id)? {
        Scalar::Int(v) => Some(v != 0),
        Scalar::Float(_) => None,
    }
}

/// `id` with the result's shape.
fn broadcast(f: &Found<'_>, id: Id) -> Term {
    if f.type_of(id) == f.ty {
        return Term::Class(id);
    }
    Term::op(OpKind::Broadcast { shape: f.ty.shape.clone() }, &[id])
}

pub(super) const NOT_OF_NOT: RuleDef = RuleDef {
    name: "not-of-not",
    doc: "not not x is x. Exact: a boolean is 0 or 1.",
    on: &["not"],
    rewrite: |f, offers| {
        for (kind, inner) in f.operands.iter().flat_map(|&x| f.defs(x)) {
            if matches!(kind, OpKind::Not {}) {
                offers.push(Term::Class(inner[0]));
            }
        }
    },
};

pub(super) const NOT_OF_COMPARE: RuleDef = RuleDef {
    name: "not-of-compare",
    doc: "The negation of an ordering of integers is the opposite ordering. Exact: integers have no NaN, \
          for which both orderings are false.",
    on: &["not"],
    rewrite: |f, offers| {
        for (kind, inner) in f.operands.iter().flat_map(|&x| f.defs(x)) {
            let opposite = match kind {
                OpKind::Less {} => OpKind::GreaterEqual {},
                OpKind::LessEqual {} => OpKind::Greater {},
                OpKind::Greater {} => OpKind::LessEqual {},
                OpKind::GreaterEqual {} => OpKind::Less {},
                _ => continue,
            };
            if !f.type_of(inner[0]).dtype.is_float() {
                offers.push(Term::op(opposite, inner));
            }
        }
    },
};

pub(super) const LOGIC_WITH_CONSTANT: RuleDef = RuleDef {
    name: "logic-with-constant",
    doc: "x and true, x or false, x and x, x or x are x; x and false is false, x or true is true. Exact: a \
          boolean is 0 or 1.",
    on: &["and", "or"],
    rewrite: |f, offers| {
        let Some([a, b]) = f.pair() else { return };
        let neutral = matches!(f.kind, OpKind::And {});
        for (x, c) in [(a, b), (b, a)] {
            if truth(f, c) == Some(neutral) || f.same(x, c) {
                offers.push(broadcast(f, x));
            } else if truth(f, c).is_some() {
                let value = Scalar::Int((!neutral).into());
                let shape = f.ty.shape.clone();
                offers.push(Term::Op(OpKind::Fill { dtype: DType::Bool, shape, value }, Vec::new()));
            }
        }
    },
};

pub(super) const SELECT_BY_CONSTANT: RuleDef = RuleDef {
    name: "select-by-constant",
    doc: "A selection by a constant condition is the operand it selects. Exact: elements are only copied.",
    on: &["select"],
    rewrite: |f, offers| {
        if let &[cond, a, b] = f.operands
            && let Some(first) = truth(f, cond)
        {
            offers.push(broadcast(f, if first { a } else { b }));
        }
    },
};

pub(super) const SELECT_OF_SAME: RuleDef = RuleDef {
    name: "select-of-same",
    doc: "A selection between a value and itself is that value. Exact: elements are only copied.",
    on: &["select"],
    rewrite: |f, offers| {
        if let &[_, a, b] = f.operands
            && f.same(a, b)
        {
            offers.push(broadcast(f, a));
        }
    },
};

pub(super) const SELECT_OF_NOT: RuleDef = RuleDef {
    name: "select-of-not",
    doc: "A selection by a negated condition exchanges its operands instead. Exact: elements are only \
          copied.",
    on: &["select"],
    rewrite: |f, offers| {
        let &[cond, a, b] = f.operands else { return };
        for (kind, inner) in f.defs(cond) {
            if matches!(kind, OpKind::Not {}) {
                offers.push(Term::op(OpKind::Select {}, &[inner[0], b, a]));
            }
        }
    },
};
