//! Dropout, whose mask is a function of its key.

use memc_ir::OpKind;
use memc_ir::attr::F32;

use crate::graph::memory::rule::{RuleDef, Term};

pub(super) const DROPOUT_FROM_KEY: RuleDef = RuleDef {
    name: "dropout-from-key",
    doc: "mask_scale(x, random_mask(step)) is dropout(x, step) with the mask's attributes where the scale is \
          1 / (1 - ratio), so that no mask is kept for the gradient. Exact: that is its definition.",
    on: &["mask_scale"],
    rewrite: |f, offers| {
        let (OpKind::MaskScale { scale }, &[x, mask]) = (f.kind, f.operands) else { return };
        for (kind, from) in f.defs(mask, 0) {
            if let (&OpKind::RandomMask { ratio, seed, stream, shape: _ }, &[step]) = (kind, from)
                && *scale == F32(1.0 / (1.0 - ratio.0))
            {
                offers.push((f.class, Term::op(OpKind::Dropout { ratio, seed, stream }, &[x, step])));
            }
        }
    },
};

pub(super) const RELU_GRAD_FROM_DROPOUT: RuleDef = RuleDef {
    name: "relu-grad-from-dropout",
    doc: "relu_grad(dropout(dy), y) is relu_grad(dropout(dy), dropout(y)) with one key, or mask_scale with \
          one mask, so that what the next op keeps anyway says where y is positive. Exact: where an element \
          is dropped its gradient is +0 on both sides; elsewhere a scale of at least 1 leaves y's sign, and \
          NaN, as it is.",
    on: &["relu_grad"],
    rewrite: |f, offers| {
        let &[dy, y] = f.operands else { return };
        for (kind, from) in f.defs(dy, 0) {
            let keeps_signs = match kind {
                OpKind::Dropout { .. } => true,
                OpKind::MaskScale { scale } => scale.0 >= 1.0 && scale.0.is_finite(),
                _ => false,
            };
            if let (true, &[_, key]) = (keeps_signs, from) {
                let dropped = Term::op(kind.clone(), &[y, key]);
                offers.push((f.class, Term::Op(OpKind::ReluGrad {}, 0, vec![Term::Class(dy), dropped])));
            }
        }
    },
};
