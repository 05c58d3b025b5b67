//! Normalisation: statistics, application and gradients of batch and layer norm, softmax, running averages.

use memc_ir::attr::F32;
use memc_ir::{Def, OpKind, Role, ValueId};

use crate::graph::raise::edit::Editor;
use crate::graph::raise::pattern::nearly;
use crate::graph::raise::rule::{Match, RaiseRule, ensure};
use crate::graph::raise::terms::{Product, complementary};

/// Number of channels when `x` is `[n, c, ...]`.
fn channels(g: &Editor<'_>, x: ValueId) -> Option<u64> {
    g.shape(x).get(1).copied().filter(|_| g.ty(x).dtype.is_float())
}

/// Whether `v`, broadcast against `x` `[n, c, ...]`, has one element for every channel.
fn per_channel(g: &Editor<'_>, v: ValueId, x: ValueId) -> bool {
    let (shape, rank) = (g.shape(v), g.ty(x).rank());
    // Behind as many leading axes as are missing.
    let at = |axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    shape.len() <= rank
        && channels(g, x).is_some_and(|c| (0..rank).all(|i| at(i) == if i == 1 { c } else { 1 }))
}

/// Most views in a row that are looked through.
const MAX_VIEWS: usize = 8;

/// Source of the one element for every channel that `v` has when broadcast against `x` `[n, c, ...]`, in
/// channel order: the value behind all reshapes and broadcasts.
fn channel_source(g: &Editor<'_>, mut v: ValueId, x: ValueId) -> Option<ValueId> {
    for _ in 0..MAX_VIEWS {
        v = match g.def(v) {
            Some((OpKind::Broadcast { .. }, &[inner])) if !per_channel(g, v, x) => inner,
            _ => break,
        };
    }
    ensure(per_channel(g, v, x))?;
    for _ in 0..MAX_VIEWS {
        v = match g.def(v) {
            Some((OpKind::Reshape { .. } | OpKind::Broadcast { .. }, &[inner]))
                if g.ty(inner).numel() == g.ty(v).numel() =>
            {
                inner
            }
            _ => break,
        };
    }
    Some(v)
}

/// The axes that a sum or mean takes together, and whether it keeps them.
fn reduced<'g>(g: &'g Editor<'_>, v: ValueId) -> Option<(&'g [u64], bool)> {
    match g.def(v)?.0 {
        OpKind::ReduceSum { axes, keepdims } | OpKind::ReduceMean { axes, keepdims } => {
            Some((axes, *keepdims))
        }
        _ => None,
    }
}

/// Whether `v` takes together all axes of `x` but the channels.
fn over_channels(g: &Editor<'_>, v: ValueId, x: ValueId) -> bool {
    let rank = g.ty(x).rank() as u64;
    reduced(g, v).is_some_and(|(axes, _)| axes.iter().copied().eq((0..rank).filter(|&a| a != 1)))
}

/// Elements of `x` per channel.
fn per(g: &Editor<'_>, x: ValueId) -> Option<f64> {
    let c = channels(g, x).filter(|&c| c > 0)?;
    Some((g.ty(x).numel() / c) as f64)
}

pub(super) const BATCH_NORM_STATS: RaiseRule = RaiseRule {
    name: "batch-norm-stats",
    doc: "Mean, mean of the squared differences from it, and the reciprocal of that one's root after adding \
          epsilon, for every channel, are `batch_norm_stats`.",
    patterns: &[
        "(reciprocal (sqrt (add (reduce_mean=?var (mul=?square (sub=?c ?x (reduce_mean=?mean ?x)) ?c)) \
         #eps)))",
        "(div 1 (sqrt (add (reduce_mean=?var (mul=?square (sub=?c ?x (reduce_mean=?mean ?x)) ?c)) #eps)))",
    ],
    apply: |g, m| {
        let (x, mean, var) = (m.get("x")?, m.get("mean")?, m.get("var")?);
        ensure(channels(g, x).is_some() && over_channels(g, mean, x) && over_channels(g, var, x))?;
        ensure(per_channel(g, mean, x) && per_channel(g, m.root, x))?;
        let epsilon = F32(g.number(m.get("eps")?)? as f32);
        g.aim_at_first(&[mean]);
        let stats = g.op(OpKind::BatchNormStats { epsilon }, &[x])?;
        for (old, new) in [(mean, *stats.first()?), (var, *stats.get(1)?), (m.root, *stats.get(2)?)] {
            let shape = g.shape(old).to_vec();
            let new = g.reshape(new, &shape)?;
            ensure(g.replace(old, new))?;
        }
        Some(())
    },
};

pub(super) const BATCH_NORM: RaiseRule = RaiseRule {
    name: "batch-norm",
    doc: "(x - mean) * inv_std * scale + bias with one mean, inverse standard deviation, scale and bias for \
          every channel is `batch_norm`.",
    patterns: &["(add (mul (mul (sub ?x ?mean) ?inv) ?scale) ?bias)"],
    apply: |g, m| {
        let x = m.get("x")?;
        let c = channels(g, x)?;
        let mut operands = vec![x];
        for name in ["scale", "bias", "mean", "inv"] {
            let v = m.get(name)?;
            ensure(per_channel(g, v, x))?;
            operands.push(g.reshape(v, &[c])?);
        }
        let y = g.op1(OpKind::BatchNorm {}, &operands)?;
        ensure(g.replace(m.root, y))
    },
};

pub(super) const BATCH_NORM_GRAD: RaiseRule = RaiseRule {
    name: "batch-norm-grad",
    doc: "(dy - (x - mean) * inv^2 * sum(dy * (x - mean)) / n - sum(dy) / n) * inv * scale is the first \
          result of `batch_norm_grad`, sum(dy) its last and sum(dy * (x - mean)) * inv its second; sums are \
          over all but the channels, n is how many elements they take.",
    patterns: &["(mul (sub (sub ?dy (mul (sub=?c ?x ?mean) ?slope)) ?shift) ?factor)"],
    apply: |g, m| {
        let (dy, x, c, mean) = (m.get("dy")?, m.get("x")?, m.get("c")?, m.get("mean")?);
        ensure(g.ty(dy) == g.ty(x) && g.ty(dy) == g.ty(m.root) && per_channel(g, mean, x))?;
        let (part, channels) = (1.0 / per(g, x)?, channels(g, x)?);

        let shift = Product::of(g, channel_source(g, m.get("shift")?, x)?);
        let (&[sum], []) = (shift.numerator.as_slice(), shift.denominator.as_slice()) else { return None };
        ensure(nearly(shift.number, part) && g.shape(sum) == [channels])?;
        // Where dy reaches two norms, the first one's gradient is the sum already.
        let own = matches!(g.def(sum), Some((OpKind::ReduceSum { .. }, ops)) if *ops == [dy]);
        ensure(if own { over_channels(g, sum, dy) } else { is_dbias(g, sum, dy) })?;

        let slope = Product::of(g, channel_source(g, m.get("slope")?, x)?);
        let (&[a, b, d], []) = (slope.numerator.as_slice(), slope.denominator.as_slice()) else {
            return None;
        };
        // One of the three is the sum, the other two are the inverse standard deviation.
        let (dot, inv) = [(a, b, d), (b, a, d), (d, a, b)].into_iter().find_map(|(dot, inv, again)| {
            (inv == again && over_channels(g, dot, dy)).then_some((dot, inv))
        })?;
        let (OpKind::ReduceSum { .. }, &[product]) = g.def(dot)? else { return None };
        let (OpKind::Mul {}, &[p, q]) = g.def(product)? else { return None };
        ensure((p, q) == (dy, c) || (p, q) == (c, dy))?;
        ensure(nearly(slope.number, part) && g.shape(dot) == [channels] && g.shape(inv) == [channels])?;

        let factor = Product::of(g, channel_source(g, m.get("factor")?, x)?);
        let (&[p, q], []) = (factor.numerator.as_slice(), factor.denominator.as_slice()) else { return None };
        let scale = if p == inv { q } else { p };
        ensure((p == inv || q == inv) && factor.number == 1.0 && g.ty(scale).numel() == channels)?;
        // Both factors were multiplied as vectors, or each was broadcast to the channels.
        ensure(g.shape(scale) == [channels] || per_channel(g, scale, x))?;

        let dscale = user(g, dot, |g, v| {
            let p = Product::of(g, v);
            let own =
                matches!(g.def(v), Some((OpKind::Mul {}, ops)) if ops.contains(&inv) && ops.contains(&dot));
            own && p.number == 1.0 && g.shape(v) == [channels]
        });
        let replaced: Vec<ValueId> = own.then_some(sum).into_iter().chain(dscale).collect();
        g.aim_at_first(&replaced);
        let (mean, scale) = (g.reshape(mean, &[channels])?, g.reshape(scale, &[channels])?);
        let results = g.op(OpKind::BatchNormGrad {}, &[dy, x, scale, mean, inv])?;
        let &[dx, new_dscale, dbias] = results.as_slice() else { return None };
        ensure(g.replace(m.root, dx))?;
        if let Some(old) = dscale {
            g.replace(old, new_dscale);
        }
        if own {
            g.replace(sum, dbias);
        }
        Some(())
    },
};

/// Whether `v` is the gradient of a bias by `batch_norm_grad` of `dy`, which is the sum of dy over all but
/// the channels.
fn is_dbias(g: &Editor<'_>, v: ValueId, dy: ValueId) -> bool {
    g.result_of(v).is_some_and(|(id, result)| {
        let op = &g.module().ops[id];
        matches!(op.kind(), Some(OpKind::BatchNormGrad {})) && result == 2 && op.operands.first() == Some(&dy)
    })
}

/// The one result of a reader of `v` that satisfies `fits`, the first in order of ids.
fn user(g: &Editor<'_>, v: ValueId, fits: impl Fn(&Editor<'_>, ValueId) -> bool) -> Option<ValueId> {
    let result = |id| match g.module().ops[id].results.as_slice() {
        &[r] => Some(r),
        _ => None,
    };
    g.users(v).filter_map(result).find(|&r| fits(g, r))
}

pub(super) const LAYER_NORM: RaiseRule = RaiseRule {
    name: "layer-norm",
    doc: "(x - mean) / sqrt(mean of (x - mean)^2 + epsilon) * scale + bias with means over the last axes is \
          `layer_norm`.",
    patterns: &[
        "(add (mul (div (sub=?c ?x (reduce_mean=?mean ?x)) (sqrt (add (reduce_mean=?var (mul ?c ?c)) \
         #eps))) ?scale) ?bias)",
        "(add (mul (mul (sub=?c ?x (reduce_mean=?mean ?x)) (reciprocal (sqrt (add (reduce_mean=?var (mul ?c \
         ?c)) #eps)))) ?scale) ?bias)",
    ],
    apply: |g, m| {
        let (x, mean, var) = (m.get("x")?, m.get("mean")?, m.get("var")?);
        let (scale, bias) = (m.get("scale")?, m.get("bias")?);
        let rank = g.ty(x).rank() as u64;
        let (axes, keepdims) = reduced(g, mean)?;
        let axis = *axes.first()?;
        ensure(keepdims && axes.iter().copied().eq(axis..rank) && reduced(g, var) == Some((axes, true)))?;
        let inner = g.shape(x).get(axis as usize..)?;
        ensure(g.shape(scale) == inner && g.shape(bias) == inner && g.ty(m.root) == g.ty(x))?;
        let epsilon = F32(g.number(m.get("eps")?)? as f32);
        let kind = OpKind::LayerNorm { axis: i64::try_from(axis).ok()?, epsilon };
        let &[y, ..] = g.op(kind, &[x, scale, bias])?.as_slice() else { return None };
        ensure(g.replace(m.root, y))
    },
};

pub(super) const LAYER_NORM_GRAD: RaiseRule = RaiseRule {
    name: "layer-norm-grad",
    doc: "With g = dy * scale and h = (x - mean) * inv, inv / n * (n * g - sum(g) - h * sum(g * h)) over \
          the last axes of n elements is the first result of `layer_norm_grad`; the sums of dy * h and of \
          dy over the leading axes are its others.",
    patterns: &[
        "(mul ?factor (sub (sub (mul (mul=?g ?dy ?scale) #n) (reduce_sum=?s ?g)) (mul (mul=?h (sub ?x \
         ?mean) ?inv) (reduce_sum=?t (mul ?g ?h)))))",
    ],
    apply: |g, m| {
        let (dy, x, scale) = (m.get("dy")?, m.get("x")?, m.get("scale")?);
        let (mean, inv, s, t, h) = (m.get("mean")?, m.get("inv")?, m.get("s")?, m.get("t")?, m.get("h")?);
        let (axes, keepdims) = reduced(g, s)?;
        let (rank, axis) = (g.ty(x).rank() as u64, *axes.first()?);
        ensure(keepdims && axes.iter().copied().eq(axis..rank) && reduced(g, t) == Some((axes, true)))?;
        let (rows, inner) = g.shape(x).split_at_checked(axis as usize)?;
        let n = inner.iter().product::<u64>() as f64;
        ensure(g.shape(scale) == inner && g.ty(dy) == g.ty(x) && g.ty(m.root) == g.ty(x))?;
        let stats: Vec<u64> = rows.iter().copied().chain(inner.iter().map(|_| 1)).collect();
        ensure(g.shape(mean) == stats && g.shape(inv) == stats)?;
        let factor = Product::of(g, m.get("factor")?);
        ensure(factor.numerator == [inv] && factor.denominator.is_empty())?;
        ensure(g.number(m.get("n")?)? == n && nearly(factor.number, 1.0 / n))?;

        let leading = |v: ValueId, of: ValueId| {
            let (kind, operands) = g.def(v)?;
            let OpKind::ReduceSum { axes, keepdims: false } = kind else { return None };
            (operands == [of] && axes.iter().copied().eq(0..axis)).then_some(v)
        };
        let product = user(g, h, |g, v| matches!(g.def(v), Some((OpKind::Mul {}, ops)) if ops.contains(&dy)));
        let dscale = product.and_then(|p| user(g, p, |_, v| leading(v, p).is_some()));
        let dbias = user(g, dy, |_, v| leading(v, dy).is_some());
        let old: Vec<ValueId> = [dscale, dbias].into_iter().flatten().collect();
        g.aim_at_first(&old);
        let kind = OpKind::LayerNormGrad { axis: i64::try_from(axis).ok()? };
        let &[dx, new_dscale, new_dbias] = g.op(kind, &[dy, x, scale, mean, inv])?.as_slice() else {
            return None;
        };
        ensure(g.replace(m.root, dx))?;
        for (old, new) in [(dscale, new_dscale), (dbias, new_dbias)] {
            old.map(|old| g.replace(old, new));
        }
        Some(())
    },
};

pub(super) const SOFTMAX_GRAD: RaiseRule = RaiseRule {
    name: "softmax-grad",
    doc: "dy * y - y * sum(dy * y) and y * (dy - sum(dy * y)) with the sum over one axis are `softmax_grad`.",
    patterns: &[
        "(sub (mul=?p ?dy ?y) (mul ?y (reduce_sum=?s ?p)))",
        "(mul ?y (sub ?dy (reduce_sum=?s (mul ?dy ?y))))",
    ],
    apply: |g, m: &Match| {
        let (dy, y, s) = (m.get("dy")?, m.get("y")?, m.get("s")?);
        let (&[axis], true) = reduced(g, s)? else { return None };
        let is_softmax = matches!(g.def(y), Some((OpKind::Softmax { axis: a }, _)) if *a == axis as i64);
        ensure(is_softmax && g.ty(dy) == g.ty(y) && g.ty(m.root) == g.ty(y))?;
        let dx = g.op1(OpKind::SoftmaxGrad { axis: axis as i64 }, &[dy, y])?;
        ensure(g.replace(m.root, dx))
    },
};

pub(super) const MOVING_AVERAGE: RaiseRule = RaiseRule {
    name: "moving-average",
    doc: "r * a + b * c is `moving_average` of r and b with the scale c / (1 - a), where r is a buffer and \
          takes the result, and a is between 0 and 1.",
    patterns: &["(add (mul ?r #a) (mul ?b #c))"],
    apply: |g, m| {
        let (r, batch, c) = (m.get("r")?, m.get("b")?, m.get("c")?);
        let Def::State(state) = g.module().values[r].def else { return None };
        let state = &g.module().states[state];
        ensure(state.role == Role::Buffer && state.next == Some(m.root) && g.ty(r) == g.ty(batch))?;
        let (a, b) = (g.number(m.get("a")?)?, g.number(c)?);
        ensure(a > 0.0 && a < 1.0 && b.is_finite())?;
        let scale = if complementary(a, b) { 1.0 } else { (b / (1.0 - a)) as f32 };
        let y = g.op1(OpKind::MovingAverage { momentum: F32(a as f32), scale: F32(scale) }, &[r, batch])?;
        ensure(g.replace(m.root, y))
    },
};
