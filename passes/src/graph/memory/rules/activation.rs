//! Gradients of activations.

use memc_ir::OpKind;

use crate::graph::memory::rule::{RuleDef, Term};

pub(super) const RELU_GRAD_FROM_INPUT: RuleDef = RuleDef {
    name: "relu-grad-from-input",
    doc: "relu_grad(dy, relu(x)) is relu_grad(dy, x). Exact: x > 0 where relu(x) > 0 and nowhere else, and \
          a NaN is not greater than 0 on either side.",
    on: &["relu_grad"],
    rewrite: |f, offers| {
        let &[dy, y] = f.operands else { return };
        for (kind, x) in f.defs(y, 0) {
            if let (OpKind::Relu {}, &[x]) = (kind, x) {
                offers.push((f.class, Term::op(OpKind::ReluGrad {}, &[dy, x])));
            }
        }
    },
};

pub(super) const RELU_GRAD_FROM_OUTPUT: RuleDef = RuleDef {
    name: "relu-grad-from-output",
    doc: "relu_grad(dy, x) is relu_grad(dy, relu(x)) where relu(x) is computed anyway. Exact: as \
          relu-grad-from-input.",
    on: &["relu_grad"],
    rewrite: |f, offers| {
        let &[dy, x] = f.operands else { return };
        if let Some(y) = f.known(OpKind::Relu {}, &[x]) {
            offers.push((f.class, Term::op(OpKind::ReluGrad {}, &[dy, y])));
        }
    },
};

pub(super) const RELU_GRAD_FROM_MASK: RuleDef = RuleDef {
    name: "relu-grad-from-mask",
    doc: "relu_grad(dy, y) is select(y > 0, dy, 0), which keeps a byte for each element instead of y. \
          Exact: that is its definition, for NaN too.",
    on: &["relu_grad"],
    rewrite: |f, offers| {
        let &[dy, y] = f.operands else { return };
        let zero = Term::zero(f.type_of(y).dtype);
        let mask = Term::Op(OpKind::Greater {}, 0, vec![Term::Class(y), zero.clone()]);
        offers.push((f.class, Term::Op(OpKind::Select {}, 0, vec![mask, Term::Class(dy), zero])));
    },
};

pub(super) const RELU_GRAD_PAST_MAX_POOL: RuleDef = RuleDef {
    name: "relu-grad-past-max-pool",
    doc: "relu_grad(max_pool_grad(dy, indices), x), where y and indices are the max_pool of x, is \
          max_pool_grad(relu_grad(dy, y), indices): the smaller y says where x is positive. Exact: a \
          gradient reaches only elements that are some window's maximum, and each of these windows has the \
          element in y, so that either all its gradients count or none; the sums are the same or +0.",
    on: &["relu_grad"],
    rewrite: |f, offers| {
        let &[grad, x] = f.operands else { return };
        for (kind, inner) in f.defs(grad, 0) {
            let (OpKind::MaxPoolGrad { .. }, &[dy, indices]) = (kind, inner) else { continue };
            for (pool, from) in f.defs(indices, 1) {
                if matches!(pool, OpKind::MaxPool { .. }) && from.len() == 1 && f.same(from[0], x) {
                    let y = Term::op(pool.clone(), from);
                    let masked = Term::Op(OpKind::ReluGrad {}, 0, vec![Term::Class(dy), y]);
                    offers.push((f.class, Term::Op(kind.clone(), 0, vec![masked, Term::Class(indices)])));
                }
            }
        }
    },
};
