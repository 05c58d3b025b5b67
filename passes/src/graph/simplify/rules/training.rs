//! Ops of a training step that exporters spell out.
//!
//! Absent because they would change bits: the mask `select(y <= 0, 0, dy)`, which passes `dy` where `y` is
//! NaN while `relu_grad` does not; a matrix product and an addition as `gemm`, which starts its sums at the
//! addend; sums over axes of extent 1, which turn -0 into +0.

use egg::Id;
use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, OpKind};

use crate::graph::simplify::rule::{Found, RuleDef, Term};

fn is_float(f: &Found<'_>, id: Id, value: f32) -> bool {
    f.scalar(id) == Some(Scalar::Float(F32(value)))
}

/// The operand pairs of products among the terms of a class, in both orders.
fn products(f: &Found<'_>, id: Id) -> Vec<[Id; 2]> {
    let muls = f.defs(id).filter(|(k, _)| matches!(k, OpKind::Mul {}));
    muls.flat_map(|(_, x)| [[x[0], x[1]], [x[1], x[0]]]).collect()
}

pub(super) const RELU_GRAD: RuleDef = RuleDef {
    name: "relu-grad",
    doc: "select(y > 0, dy, 0) is relu_grad(dy, y). Exact: that is its definition, for NaN too.",
    on: &["select"],
    rewrite: |f, offers| {
        let &[cond, dy, zero] = f.operands else { return };
        if !is_float(f, zero, 0.0) || f.type_of(dy) != f.ty {
            return;
        }
        for (kind, inner) in f.defs(cond) {
            if let (OpKind::Greater {}, &[y, c]) = (kind, inner)
                && f.type_of(y) == f.ty
                && (is_float(f, c, 0.0) || is_float(f, c, -0.0))
            {
                offers.push(Term::op(OpKind::ReluGrad {}, &[dy, y]));
            }
        }
    },
};

pub(super) const TANH_GRAD: RuleDef = RuleDef {
    name: "tanh-grad",
    doc: "dy * (1 - y * y) is tanh_grad(dy, y). Exact: the op computes the same steps in the same order.",
    on: &["mul"],
    rewrite: |f, offers| {
        let Some([a, b]) = f.pair() else { return };
        for (dy, slope) in [(a, b), (b, a)] {
            for (kind, inner) in f.defs(slope) {
                let (OpKind::Sub {}, &[one, square]) = (kind, inner) else { continue };
                if !is_float(f, one, 1.0) || f.type_of(dy) != f.ty {
                    continue;
                }
                for [y, z] in products(f, square) {
                    if f.same(y, z) && f.type_of(y) == f.ty {
                        offers.push(Term::op(OpKind::TanhGrad {}, &[dy, y]));
                    }
                }
            }
        }
    },
};

pub(super) const SGD: RuleDef = RuleDef {
    name: "sgd",
    doc: "w - g * c and w + g * -c are sgd(w, g, c) where w is a state that changes. Exact: the op rounds \
          the product, then the difference; negating a factor negates the rounded product.",
    on: &["sub", "add"],
    rewrite: |f, offers| {
        let Some([a, b]) = f.pair() else { return };
        let is_sub = matches!(f.kind, OpKind::Sub {});
        for (w, update) in [(a, b), (b, a)] {
            if !f.facts(w).state || f.type_of(w) != f.ty || f.ty.dtype != DType::F32 || (is_sub && w != a) {
                continue;
            }
            for [g, c] in products(f, update) {
                if f.type_of(g) != f.ty || f.type_of(c).numel() != 1 {
                    continue;
                }
                let rate = match f.scalar(c) {
                    _ if is_sub => Term::Class(c),
                    Some(Scalar::Float(F32(v))) => {
                        let shape = f.type_of(c).shape.clone();
                        let value = Scalar::Float(F32(-v));
                        Term::Op(OpKind::Fill { dtype: DType::F32, shape, value }, Vec::new())
                    }
                    _ => continue,
                };
                offers.push(Term::Op(OpKind::Sgd {}, vec![Term::Class(w), Term::Class(g), rate]));
            }
        }
    },
};
