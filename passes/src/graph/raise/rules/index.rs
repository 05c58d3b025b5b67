//! Lookups in tables and their gradients.

use memc_ir::attr::{Scalar, ScatterMode};
use memc_ir::{DType, Def, Feed, OpKind, TensorType, ValueId};

use crate::graph::raise::edit::Editor;
use crate::graph::raise::rule::{RaiseRule, ensure};

/// The elements of a constant of integers or booleans.
fn ints(g: &Editor<'_>, v: ValueId) -> Option<Vec<i64>> {
    let data = g.module().const_data(v)?;
    match g.ty(v).dtype {
        DType::Bool => Some(data.iter().map(|&b| b.into()).collect()),
        DType::I32 => data.chunks(4).map(|b| Some(i32::from_le_bytes(b.try_into().ok()?).into())).collect(),
        DType::I64 => data.chunks(8).map(|b| Some(i64::from_le_bytes(b.try_into().ok()?))).collect(),
        _ => None,
    }
}

/// Whether `v` is the constant `[0, 1, ..., n - 1]`; then n.
fn iota(g: &Editor<'_>, v: ValueId) -> Option<u64> {
    let elements = ints(g, v).filter(|_| g.ty(v).rank() == 1)?;
    elements.iter().zip(0..).all(|(&e, i)| e == i).then_some(elements.len() as u64)
}

pub(super) const GATHER_GRAD: RaiseRule = RaiseRule {
    name: "gather-grad",
    doc: "Adding rows into zeros at indices, each a tuple of one number, is `gather_grad` along the first \
          axis; so is writing them where the indices are constants and differ.",
    patterns: &["(scatter_nd 0 ?indices ?rows)"],
    apply: |g, m| {
        let (indices, rows) = (m.get("indices")?, m.get("rows")?);
        let &OpKind::ScatterNd { mode, batch_dims: 0 } = g.def(m.root)?.0 else { return None };
        let distinct = || {
            let mut rows = ints(g, indices)?;
            rows.sort_unstable();
            // A negative index may be another spelling of a row.
            Some(rows.first() >= Some(&0) && rows.windows(2).all(|w| w[0] < w[1]))
        };
        ensure(mode == ScatterMode::Add || mode == ScatterMode::Replace && distinct()?)?;
        let (&1, outer) = g.shape(indices).split_last()? else { return None };
        let outer = outer.to_vec();
        let dim = i64::try_from(*g.shape(m.root).first()?).ok()?;
        let indices = g.reshape(indices, &outer)?;
        let y = g.op1(OpKind::GatherGrad { axis: 0, dim }, &[indices, rows])?;
        ensure(g.replace(m.root, y))
    },
};

pub(super) const GATHER_IN_ORDER: RaiseRule = RaiseRule {
    name: "gather-in-order",
    doc: "Taking elements 0, 1, ... of an axis in order is a slice.",
    patterns: &["(gather ?data ?indices)"],
    apply: |g, m| {
        let data = m.get("data")?;
        let n = iota(g, m.get("indices")?).filter(|&n| n > 0)?;
        let (OpKind::Gather { axis }, _) = g.def(m.root)? else { return None };
        let axis = usize::try_from(*axis).ok()?;
        ensure(n <= *g.shape(data).get(axis)?)?;
        let shape = g.shape(data);
        let mut ends = shape.iter().map(|&d| i64::try_from(d).ok()).collect::<Option<Vec<i64>>>()?;
        *ends.get_mut(axis)? = i64::try_from(n).ok()?;
        let (starts, steps) = (vec![0; ends.len()], vec![1; ends.len()]);
        let y = if n == shape[axis] { data } else { g.op1(OpKind::Slice { starts, ends, steps }, &[data])? };
        ensure(g.replace(m.root, y))
    },
};

pub(super) const GATHER_GRAD_IN_ORDER: RaiseRule = RaiseRule {
    name: "gather-grad-in-order",
    doc: "The gradient of taking elements 0, 1, ... of an axis in order is dy with zeros behind.",
    patterns: &["(gather_grad ?indices ?dy)"],
    apply: |g, m| {
        let dy = m.get("dy")?;
        let n = iota(g, m.get("indices")?)?;
        let (&OpKind::GatherGrad { axis, .. }, _) = g.def(m.root)? else { return None };
        let axis = usize::try_from(axis).ok()?;
        let behind = g.shape(m.root).get(axis)?.checked_sub(n)?;
        let y = if behind == 0 {
            dy
        } else {
            let (before, mut after) = (vec![0; g.ty(dy).rank()], vec![0; g.ty(dy).rank()]);
            *after.get_mut(axis)? = behind;
            let value = Scalar::Float(memc_ir::attr::F32(0.0));
            g.op1(OpKind::Pad { before, after, value }, &[dy])?
        };
        ensure(g.replace(m.root, y))
    },
};

pub(super) const GATHER_GRAD_OF_ONE: RaiseRule = RaiseRule {
    name: "gather-grad-of-one",
    doc: "dy where a constant mask is true, which it is at one index of one axis, and else 0, is \
          `gather_grad` of that index.",
    patterns: &["(select ?mask ?dy 0)"],
    apply: |g, m| {
        let (mask, dy) = (m.get("mask")?, m.get("dy")?);
        let flags = ints(g, mask)?;
        let at = flags.iter().position(|&f| f != 0)?;
        let shape = g.shape(m.root).to_vec();
        ensure(flags.iter().filter(|&&f| f != 0).count() == 1 && g.ty(dy).dtype.is_float())?;
        let missing = shape.len().checked_sub(g.ty(mask).rank())?;
        let axis = missing + g.shape(mask).iter().position(|&d| d != 1)?;
        ensure(flags.len() as u64 == shape[axis])?;
        // dy is given for the one index, and for every element of the other axes.
        let mut one = shape.clone();
        one[axis] = 1;
        ensure(g.shape(dy) == one)?;
        one.remove(axis);
        let dy = g.reshape(dy, &one)?;
        let index = g.constant(TensorType::scalar(DType::I64), Scalar::Int(i64::try_from(at).ok()?))?;
        let kind =
            OpKind::GatherGrad { axis: i64::try_from(axis).ok()?, dim: i64::try_from(shape[axis]).ok()? };
        let y = g.op1(kind, &[index, dy])?;
        ensure(g.replace(m.root, y))
    },
};

/// Least and greatest element of an index that is fed, when both are known.
///
/// An input's range is implied by its consumers. It is only relied on where the input itself, under any
/// shape, is the index of a lookup along an axis of that extent: a step with another index has no gradient
/// either.
fn bounds(g: &Editor<'_>, v: ValueId) -> Option<(i64, i64)> {
    let mut source = v;
    while let Some((OpKind::Reshape { .. } | OpKind::Broadcast { .. }, &[x])) = g.def(source) {
        source = x;
    }
    let Def::Input(i) = g.module().values[source].def else { return None };
    let Feed::Data { range: Some((low, high)), .. } = g.module().inputs[i].feed else { return None };
    let looked_up = g.users(source).any(|u| {
        let op = &g.module().ops[u];
        match (op.kind(), op.operands.as_slice()) {
            (Some(OpKind::Gather { axis }), &[data, index]) => {
                let extent = usize::try_from(*axis).ok().and_then(|a| g.shape(data).get(a).copied());
                index == source && extent.and_then(|e| i64::try_from(e).ok()) == Some(high)
            }
            _ => false,
        }
    });
    (looked_up && low >= 0 && low < high).then_some((low, high - 1))
}

pub(super) const INDEX_CLAMP: RaiseRule = RaiseRule {
    name: "index-clamp",
    doc: "The larger of a table index and a constant below the table's first row, and the smaller of it and \
          one above the last, are the index.",
    patterns: &["(max ?x #c)", "(min ?x #c)"],
    apply: |g, m| {
        let x = m.get("x")?;
        let (low, high) = bounds(g, x)?;
        let c = g.number(m.get("c")?)?;
        let idle = match g.def(m.root)?.0 {
            OpKind::Max {} => c <= low as f64,
            OpKind::Min {} => c >= high as f64,
            _ => false,
        };
        ensure(idle && g.replace(m.root, x))
    },
};

pub(super) const INDEX_COMPARE: RaiseRule = RaiseRule {
    name: "index-compare",
    doc: "A comparison of a table index with a constant that comes out the same for every row of the table \
          is that truth.",
    patterns: &[
        "(greater_equal ?x #c)",
        "(greater ?x #c)",
        "(less ?x #c)",
        "(less_equal ?x #c)",
        "(equal ?x #c)",
    ],
    apply: |g, m| {
        let (low, high) = bounds(g, m.get("x")?)?;
        let (low, high, c) = (low as f64, high as f64, g.number(m.get("c")?)?);
        let (always, never) = match g.def(m.root)?.0 {
            OpKind::GreaterEqual {} => (low >= c, high < c),
            OpKind::Greater {} => (low > c, high <= c),
            OpKind::Less {} => (high < c, low >= c),
            OpKind::LessEqual {} => (high <= c, low > c),
            OpKind::Equal {} => (low == c && high == c, c < low || c > high),
            _ => (false, false),
        };
        ensure(always || never)?;
        let (shape, value) = (g.shape(m.root).to_vec(), Scalar::Int(always.into()));
        let y = g.op1(OpKind::Fill { dtype: DType::Bool, shape, value }, &[])?;
        ensure(g.replace(m.root, y))
    },
};
