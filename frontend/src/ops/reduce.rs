//! Reductions.

use memc_ir::{DType, OpKind};

use crate::error::{Fault, unsupported};
use crate::node::NodeCx;

type Done = Result<(), Fault>;

/// A reduction whose axes are an attribute before opset `axes_input_since` and an input from then on.
pub(crate) fn reduce(
    n: &mut NodeCx<'_, '_>,
    axes_input_since: i64,
    kind: impl FnOnce(Vec<u64>, bool) -> OpKind,
) -> Done {
    let x = n.operand(0)?;
    let rank = n.ty(x).rank();
    let keepdims = n.flag("keepdims", true)?;
    let axes = if n.version >= axes_input_since {
        n.const_ints(1, "axes")?
    } else {
        n.ints("axes")?.map(<[i64]>::to_vec)
    };
    let axes = match axes.filter(|a| !a.is_empty()) {
        Some(axes) => n.axes(&axes, rank)?,
        None if n.flag("noop_with_empty_axes", false)? => return super::shape::identity(n),
        None => (0..rank as u64).collect(),
    };
    if n.ty(x).dtype != DType::Bool {
        return n.finish(kind(axes, keepdims), &[x]);
    }
    let numbers = n.temp(OpKind::Cast { to: DType::I32 }, &[x])?;
    let reduced = n.temp(kind(axes, keepdims), &[numbers])?;
    n.finish(OpKind::Cast { to: DType::Bool }, &[reduced])
}

/// `GlobalAveragePool`.
pub(crate) fn global_average_pool(n: &mut NodeCx<'_, '_>) -> Done {
    global(n, |axes| OpKind::ReduceMean { axes, keepdims: true })
}

/// `GlobalMaxPool`.
pub(crate) fn global_max_pool(n: &mut NodeCx<'_, '_>) -> Done {
    global(n, |axes| OpKind::ReduceMax { axes, keepdims: true })
}

fn global(n: &mut NodeCx<'_, '_>, kind: impl FnOnce(Vec<u64>) -> OpKind) -> Done {
    let x = n.operand(0)?;
    let rank = n.ty(x).rank() as u64;
    if rank < 3 {
        return unsupported(format!("{} has no spatial axes", n.ty(x)));
    }
    n.finish(kind((2..rank).collect()), &[x])
}
