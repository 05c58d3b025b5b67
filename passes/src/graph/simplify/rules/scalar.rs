//! Arithmetic identities.

use egg::Id;
use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, OpKind, TensorType};

use crate::graph::simplify::rule::{Found, RuleDef, Term};

/// A constant with one element, which broadcasts to anything.
fn constant(dtype: DType, value: Scalar) -> Term {
    Term::Op(OpKind::Fill { dtype, shape: Vec::new(), value }, Vec::new())
}

fn is_number(value: Option<Scalar>, int: i64, float: f32) -> bool {
    match value {
        Some(Scalar::Int(v)) => v == int,
        Some(Scalar::Float(v)) => v == F32(float),
        None => false,
    }
}

pub(super) const NEUTRAL_ELEMENT: RuleDef = RuleDef {
    name: "neutral-element",
    doc: "x * 1, x / 1, x ^ 1, x - 0 and x + 0 are x. Exact: IEEE 754 rounds the exact result, which is x. \
          The float zero is +0 when subtracted and -0 when added, since -0 + 0 is +0.",
    on: &["mul", "div", "pow", "sub", "add"],
    rewrite: |f, offers| {
        let Some([a, b]) = f.pair() else { return };
        let neutral = |c: Id| match f.kind {
            OpKind::Mul {} | OpKind::Div {} | OpKind::Pow {} => is_number(f.scalar(c), 1, 1.0),
            OpKind::Sub {} => is_number(f.scalar(c), 0, 0.0),
            _ => is_number(f.scalar(c), 0, -0.0),
        };
        if neutral(b) && f.type_of(a) == f.ty {
            offers.push(Term::Class(a));
        }
        if matches!(f.kind, OpKind::Mul {} | OpKind::Add {}) && neutral(a) && f.type_of(b) == f.ty {
            offers.push(Term::Class(b));
        }
    },
};

pub(super) const POW_TO_MUL: RuleDef = RuleDef {
    name: "pow-to-mul",
    doc: "x ^ 2 is x * x. Exact: the power of 2 is defined as that product.",
    on: &["pow"],
    rewrite: |f, offers| {
        if let Some([x, e]) = f.pair()
            && is_number(f.scalar(e), 2, 2.0)
        {
            offers.push(Term::op(OpKind::Mul {}, &[x, x]));
        }
    },
};

pub(super) const DIV_BY_POWER_OF_TWO: RuleDef = RuleDef {
    name: "div-by-power-of-two",
    doc: "x / c is x * (1 / c) for a normal float c whose reciprocal is normal and exact. Exact: both round \
          the same real number once.",
    on: &["div"],
    rewrite: |f, offers| {
        if let Some([x, c]) = f.pair()
            && let Some(Scalar::Float(F32(c))) = f.scalar(c)
            && c.is_normal()
            && c.to_bits() & ((1 << 23) - 1) == 0
            && (1.0 / c).is_normal()
        {
            let by = constant(DType::F32, Scalar::Float(F32(1.0 / c)));
            offers.push(Term::Op(OpKind::Mul {}, vec![Term::Class(x), by]));
        }
    },
};

pub(super) const NEG_OF_NEG: RuleDef = RuleDef {
    name: "neg-of-neg",
    doc: "-(-x) is x. Exact: a float's negation flips its sign bit; integers wrap.",
    on: &["neg"],
    rewrite: |f, offers| {
        for (kind, inner) in f.operands.iter().flat_map(|&x| f.defs(x)) {
            if matches!(kind, OpKind::Neg {}) {
                offers.push(Term::Class(inner[0]));
            }
        }
    },
};

/// The operands of negations among the terms of a class.
fn negated(f: &Found<'_>, id: Id) -> Vec<Id> {
    f.defs(id).filter(|(k, _)| matches!(k, OpKind::Neg {})).map(|(_, x)| x[0]).collect()
}

pub(super) const ADD_NEG: RuleDef = RuleDef {
    name: "add-neg",
    doc: "a + -b is a - b, and a - -b is a + b. Exact: IEEE 754 defines subtraction as addition of the \
          negation; integers wrap.",
    on: &["add", "sub"],
    rewrite: |f, offers| {
        let Some([a, b]) = f.pair() else { return };
        let other = if matches!(f.kind, OpKind::Add {}) { OpKind::Sub {} } else { OpKind::Add {} };
        offers.extend(negated(f, b).into_iter().map(|x| Term::op(other.clone(), &[a, x])));
        if matches!(f.kind, OpKind::Add {}) {
            offers.extend(negated(f, a).into_iter().map(|x| Term::op(OpKind::Sub {}, &[b, x])));
        }
    },
};

pub(super) const MUL_OF_NEGS: RuleDef = RuleDef {
    name: "mul-of-negs",
    doc: "-a * -b is a * b, and -a / -b is a / b. Exact: the sign of a product or quotient does not affect \
          its rounding. Integers wrap in products; their quotients are left alone.",
    on: &["mul", "div"],
    rewrite: |f, offers| {
        let Some([a, b]) = f.pair() else { return };
        if matches!(f.kind, OpKind::Div {}) && !f.ty.dtype.is_float() {
            return;
        }
        for x in negated(f, a) {
            offers.extend(negated(f, b).into_iter().map(|y| Term::op(f.kind.clone(), &[x, y])));
        }
    },
};

pub(super) const NEG_INTO_CONSTANT: RuleDef = RuleDef {
    name: "neg-into-constant",
    doc: "-(x * c) is x * -c, and -(x / c) is x / -c for floats. Exact: the sign of a product or quotient \
          does not affect its rounding.",
    on: &["neg"],
    rewrite: |f, offers| {
        for (kind, inner) in f.operands.iter().flat_map(|&x| f.defs(x)) {
            if let (OpKind::Mul {} | OpKind::Div {}, &[x, c]) = (kind, inner)
                && let Some(Scalar::Float(F32(v))) = f.scalar(c)
            {
                // The constant keeps its shape, which may be what gives the result its own.
                let shape = f.type_of(c).shape.clone();
                let minus = OpKind::Fill { dtype: DType::F32, shape, value: Scalar::Float(F32(-v)) };
                offers.push(Term::Op(kind.clone(), vec![Term::Class(x), Term::Op(minus, vec![])]));
            }
        }
    },
};

pub(super) const IDEMPOTENT: RuleDef = RuleDef {
    name: "idempotent",
    doc: "abs, relu and sign of themselves, and abs of a negation, are computed once. Exact: the inner \
          result is a fixed point of the outer op, and abs ignores the sign bit.",
    on: &["abs", "relu", "sign"],
    rewrite: |f, offers| {
        for &x in f.operands {
            for (kind, inner) in f.defs(x) {
                if kind == f.kind {
                    offers.push(Term::Class(x));
                } else if matches!((f.kind, kind), (OpKind::Abs {}, OpKind::Neg {})) {
                    offers.push(Term::op(OpKind::Abs {}, inner));
                }
            }
        }
    },
};

/// Whether every value of `from` has its own counterpart in `to`, of the same number.
fn widens(from: DType, to: DType) -> bool {
    use DType::{BF16, Bool, F16, F32, I8, I32, I64, U8};
    let wider = matches!((from, to), (Bool, _) | (I32, I64) | (F16 | BF16, F32));
    from == to || wider || matches!((from, to), (I8 | U8, I32 | I64 | F32 | F16 | BF16))
}

pub(super) const CAST_OF_CAST: RuleDef = RuleDef {
    name: "cast-of-cast",
    doc: "A cast of a cast is one cast when the first step keeps the number: from bool to anything, from \
          i32 to i64. Exact: the second step sees the same number, and rounds it the same way.",
    on: &["cast"],
    rewrite: |f, offers| {
        for (kind, inner) in f.operands.iter().flat_map(|&x| f.defs(x)) {
            if let OpKind::Cast { to: middle } = kind {
                let from: &TensorType = f.type_of(inner[0]);
                if widens(from.dtype, *middle) {
                    let same = from.dtype == f.ty.dtype;
                    offers.push(if same { Term::Class(inner[0]) } else { Term::op(f.kind.clone(), inner) });
                }
            }
        }
    },
};
