//! Gradients of max pooling.

use memc_ir::{DType, OpKind};

use crate::graph::memory::rule::{RuleDef, Term};

pub(super) const INDICES_AS_I32: RuleDef = RuleDef {
    name: "indices-as-i32",
    doc: "The indices of a max_pool are the cast to i64 of their cast to i32, which is half as large. \
          Exact: they are positions in a tensor of fewer than 2^31 elements.",
    on: &["max_pool"],
    rewrite: |f, offers| {
        let &[x] = f.operands else { return };
        if f.result == 1 && f.type_of(x).numel() < 1 << 31 {
            let narrow = Term::op(OpKind::Cast { to: DType::I32 }, &[f.class]);
            offers.push((f.class, Term::Op(OpKind::Cast { to: DType::I64 }, 0, vec![narrow])));
        }
    },
};

pub(super) const MAX_POOL_GRAD_INPUT: RuleDef = RuleDef {
    name: "max-pool-grad-input",
    doc: "max_pool_grad(dy, indices), where indices are those of the max_pool of x, is \
          max_pool_grad_input(dy, x). Exact: that is its definition, for ties and NaN too.",
    on: &["max_pool_grad"],
    rewrite: |f, offers| {
        let &[dy, indices] = f.operands else { return };
        for (kind, from) in f.defs(indices, 1) {
            if let (OpKind::MaxPool { kernel, strides, pads, dilations, ceil }, &[x]) = (kind, from)
                && f.type_of(x) == f.type_of(f.class)
            {
                let (kernel, strides, pads) = (kernel.clone(), strides.clone(), pads.clone());
                let dilations = dilations.clone();
                let kind = OpKind::MaxPoolGradInput { kernel, strides, pads, dilations, ceil: *ceil };
                offers.push((f.class, Term::op(kind, &[dy, x])));
            }
        }
    },
};
