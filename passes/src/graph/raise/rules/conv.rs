//! Gradients of convolutions and poolings, spelled as convolutions and scatters.

use memc_ir::attr::ScatterMode;
use memc_ir::{OpKind, ValueId};

use super::movement::used_once;
use crate::graph::raise::edit::Editor;
use crate::graph::raise::layout::{Layout, source};
use crate::graph::raise::pattern::nearly;
use crate::graph::raise::rule::{RaiseRule, ensure};

fn four(g: &Editor<'_>, v: ValueId) -> Option<[u64; 4]> {
    g.shape(v).try_into().ok()
}

pub(super) const CONV_GRAD_WEIGHT: RaiseRule = RaiseRule {
    name: "conv-grad-weight",
    doc: "A convolution of x with dy, whose batch and channel axes are exchanged, with strides for \
          dilations and the reverse, is `conv_grad_weight` with those axes exchanged. With groups, the \
          groups of x's channels come before its batch. How the exchange is spelled does not matter.",
    patterns: &["(conv ?x ?dy)"],
    apply: |g, m| {
        let (swapped_x, swapped_dy) = (m.get("x")?, m.get("dy")?);
        let (OpKind::Conv { strides, pads, dilations, groups }, &[_, _]) = g.def(m.root)? else {
            return None;
        };
        let (dilations, strides) = (strides.clone(), dilations.clone());
        let (pads, groups) = (pads.clone(), *groups);
        let [per_group, grouped_batch, h, w] = four(g, swapped_x)?;
        let [out, batch, oh, ow] = four(g, swapped_dy)?;
        let [_, _, kh, kw] = four(g, m.root)?;
        let g64 = u64::try_from(groups).ok()?;
        let channels = per_group.checked_mul(g64)?;
        ensure(batch.checked_mul(g64) == Some(grouped_batch))?;
        let (image, pixels) = (h.checked_mul(w)?, oh.checked_mul(ow)?);
        let x_order = Layout::new(&[
            (per_group, image),
            (g64, per_group.checked_mul(image)?),
            (batch, channels.checked_mul(image)?),
            (image, 1),
        ]);
        let dy_order = Layout::new(&[(out, pixels), (batch, out.checked_mul(pixels)?), (pixels, 1)]);
        let (x, dy) = (source(g, swapped_x, &x_order)?, source(g, swapped_dy, &dy_order)?);
        // A convolution of a single image with a single channel reads the same either way; leave it be.
        ensure(dy != swapped_dy)?;
        let x = g.reshape(x, &[batch, channels, h, w])?;
        let dy = g.reshape(dy, &[batch, out, oh, ow])?;
        let kind = OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel: vec![kh, kw] };
        let dw = g.op1(kind, &[dy, x])?;
        let y = g.op1(OpKind::Transpose { perm: vec![1, 0, 2, 3] }, &[dw])?;
        ensure(g.replace(m.root, y))
    },
};

pub(super) const CONV_GRAD_WEIGHT_OF_PART: RaiseRule = RaiseRule {
    name: "conv-grad-weight-of-part",
    doc: "The first rows and columns of `conv_grad_weight` are that of a smaller kernel with as many \
          positions, when nothing else reads the rest.",
    patterns: &["(slice (conv_grad_weight=?dw ?dy ?x))"],
    apply: |g, m| {
        let (dw, dy, x) = (m.get("dw")?, m.get("dy")?, m.get("x")?);
        let (OpKind::Slice { starts, steps, .. }, _) = g.def(m.root)? else { return None };
        ensure(starts.iter().all(|&s| s == 0) && steps.iter().all(|&s| s == 1) && used_once(g, dw))?;
        let mut kind = g.def(dw)?.0.clone();
        let OpKind::ConvGradWeight { kernel, .. } = &mut kind else { return None };
        *kernel = g.shape(m.root).get(2..)?.to_vec();
        // Inference refuses a kernel that would have more positions, and types differ if other axes are cut.
        ensure(kind.infer(&[g.ty(dy), g.ty(x)]).ok()?.first() == Some(g.ty(m.root)))?;
        g.aim_at_first(&[dw]);
        let y = g.op1(kind, &[dy, x])?;
        ensure(g.replace(m.root, y))
    },
};

pub(super) const MAX_POOL_GRAD: RaiseRule = RaiseRule {
    name: "max-pool-grad",
    doc: "Adding dy into zeros at max_pool's indices, made relative to their channel's image by subtracting \
          its first flat position (as a pooling of single elements gives it), is `max_pool_grad`.",
    patterns: &[
        "(scatter_elements 0 ~(sub (max_pool:1=?indices ?x) (slice (max_pool:1=?positions ?z))) ~?dy)",
    ],
    apply: |g, m| {
        let (x, z) = (m.get("x")?, m.get("z")?);
        let (indices, positions, dy) = (m.get("indices")?, m.get("positions")?, m.get("dy")?);
        let (OpKind::ScatterElements { axis: 2, mode: ScatterMode::Add }, operands) = g.def(m.root)? else {
            return None;
        };
        let shape @ [n, c, h, w] = four(g, x)?;
        let [_, _, oh, ow] = four(g, indices)?;
        let image = h.checked_mul(w)?;
        ensure(g.shape(m.root) == [n, c, image] && four(g, z) == Some(shape))?;
        ensure(g.shape(*operands.get(1)?) == [n, c, oh.checked_mul(ow)?] && g.shape(dy) == g.shape(indices))?;
        let (id, _) = g.result_of(positions)?;
        let single = |ks: &[u64], ss: &[u64], ps: &[u64]| {
            ks.iter().chain(ss).all(|&k| k == 1) && ps.iter().all(|&p| p == 0)
        };
        match g.module().ops[id].kind()? {
            OpKind::MaxPool { kernel, strides, pads, .. } => ensure(single(kernel, strides, pads))?,
            _ => return None,
        }
        // The slice takes the first pixel of every channel's image.
        let first = g.users(positions).filter_map(|u| match g.module().ops[u].kind()? {
            OpKind::Slice { starts, ends, steps } => {
                Some((starts.as_slice(), ends.as_slice(), steps.as_slice()))
            }
            _ => None,
        });
        let (n64, c64) = (i64::try_from(n).ok()?, i64::try_from(c).ok()?);
        ensure(first.into_iter().all(|s| s == (&[0; 4], &[n64, c64, 1, 1], &[1; 4])))?;
        let dx = g.op1(OpKind::MaxPoolGrad { shape: shape.to_vec() }, &[dy, indices])?;
        let y = g.reshape(dx, &[n, c, image])?;
        ensure(g.replace(m.root, y))
    },
};

pub(super) const AVERAGE_POOL_GRAD: RaiseRule = RaiseRule {
    name: "average-pool-grad",
    doc: "`conv_grad_input` with one group per channel and a weight whose every element is one part of the \
          kernel is `average_pool_grad` that counts padding.",
    patterns: &["(conv_grad_input ?dy #w)"],
    apply: |g, m| {
        let (dy, w) = (m.get("dy")?, m.get("w")?);
        let (OpKind::ConvGradInput { strides, pads, dilations, groups, .. }, _) = g.def(m.root)? else {
            return None;
        };
        let [channels, 1, kh, kw] = four(g, w)? else { return None };
        ensure(u64::try_from(*groups).ok() == Some(channels) && dilations.iter().all(|&d| d == 1))?;
        ensure(nearly(g.number(w)?, 1.0 / kh.checked_mul(kw)? as f64))?;
        let kind = OpKind::AveragePoolGrad {
            kernel: vec![kh, kw],
            strides: strides.clone(),
            pads: pads.clone(),
            ceil: false,
            count_pad: true,
            shape: g.shape(m.root).to_vec(),
        };
        let y = g.op1(kind, &[dy])?;
        ensure(g.replace(m.root, y))
    },
};
