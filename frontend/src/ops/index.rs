//! Gather and scatter.

use memc_ir::OpKind;
use memc_ir::attr::ScatterMode;

use crate::advice::DEPENDS_ON_DATA;
use crate::constants;
use crate::context::{Done, NodeCx};
use crate::error::{Fault, unsupported};

/// `Gather`.
pub(crate) fn gather(n: &mut NodeCx<'_, '_>) -> Done {
    let axis = n.axis(n.int("axis", 0)?, n.operand_type(0)?.rank())?;
    if let (Some(data), Some(indices)) = (n.literal(0), n.literal(1))
        && let Some(y) = constants::gather(&data, &indices)
    {
        return n.fold(0, y);
    }
    let operands = [n.operand(0)?, n.operand(1)?];
    let Some(row) = n.node.padding else {
        return n.finish(OpKind::Gather { axis: axis as i64 }, &operands);
    };
    // The row's value is used, and has no gradient.
    let rows = n.temp(OpKind::Gather { axis: axis as i64 }, &operands)?;
    let fixed = n.temp(OpKind::StopGradient {}, &[rows])?;
    let row = n.number(operands[1], "padding", row as f32)?;
    let mut shape = n.ty(operands[1]).shape.clone();
    let padded = n.temp(OpKind::Equal {}, &[operands[1], row])?;
    shape.resize(n.ty(rows).rank(), 1);
    let padded = n.reshaped(padded, &shape)?;
    n.finish(OpKind::Select {}, &[padded, fixed, rows])
}

/// Microsoft's `GatherGrad(shape, indices, dY)`.
pub(crate) fn gather_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let shape = n.const_ints(0, "shape")?.unwrap_or_default();
    let axis = n.axis(n.int("axis", 0)?, shape.len())?;
    let dim = shape.get(axis).copied().unwrap_or_default();
    let operands = [n.operand(1)?, n.operand(2)?];
    n.finish(OpKind::GatherGrad { axis: axis as i64, dim }, &operands)
}

/// `GatherElements`.
pub(crate) fn gather_elements(n: &mut NodeCx<'_, '_>) -> Done {
    let operands = [n.operand(0)?, n.operand(1)?];
    let axis = n.axis(n.int("axis", 0)?, n.ty(operands[0]).rank())?;
    n.finish(OpKind::GatherElements { axis: axis as i64 }, &operands)
}

/// `GatherND`.
pub(crate) fn gather_nd(n: &mut NodeCx<'_, '_>) -> Done {
    let operands = [n.operand(0)?, n.operand(1)?];
    let batch_dims = n.int("batch_dims", 0)?;
    n.finish(OpKind::GatherNd { batch_dims }, &operands)
}

/// `NonZero` of a constant: a constant.
pub(crate) fn nonzero(n: &mut NodeCx<'_, '_>) -> Done {
    match n.literal(0).and_then(|x| constants::nonzero(&x)) {
        Some(positions) => n.fold(0, positions),
        None => unsupported(format!("it can be imported of small constants only; {DEPENDS_ON_DATA}")),
    }
}

/// `TopK`: values, picked at the positions, and positions.
pub(crate) fn top_k(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let axis = n.axis(n.int("axis", -1)?, n.ty(x).rank())?;
    let k = if n.version < 10 { n.int("k", 0)? } else { single(n.const_ints(1, "k")?)? };
    let (axis, smallest) = (axis as i64, !n.flag("largest", true)?);
    let places = n.temp(OpKind::TopK { axis, k, smallest }, &[x])?;
    if n.output(0).is_some() {
        n.finish_at(0, OpKind::GatherElements { axis }, &[x, places])?;
    }
    n.bind(1, places);
    Ok(())
}

fn single(list: Option<Vec<i64>>) -> Result<i64, Fault> {
    match list.as_deref() {
        Some(&[k]) => Ok(k),
        _ => Err("its k must be one integer".into()),
    }
}

fn mode(n: &NodeCx<'_, '_>) -> Result<ScatterMode, Fault> {
    match n.text("reduction", "none")? {
        "none" => Ok(ScatterMode::Replace),
        "add" => Ok(ScatterMode::Add),
        "mul" => Ok(ScatterMode::Mul),
        "min" => Ok(ScatterMode::Min),
        "max" => Ok(ScatterMode::Max),
        other => Err(format!("there is no reduction `{other}`").into()),
    }
}

/// `ScatterElements`.
pub(crate) fn scatter_elements(n: &mut NodeCx<'_, '_>) -> Done {
    let mode = mode(n)?;
    let operands = [n.operand(0)?, n.operand(1)?, n.operand(2)?];
    let axis = n.axis(n.int("axis", 0)?, n.ty(operands[0]).rank())?;
    n.finish(OpKind::ScatterElements { axis: axis as i64, mode }, &operands)
}

/// `ScatterND`.
pub(crate) fn scatter_nd(n: &mut NodeCx<'_, '_>) -> Done {
    let mode = mode(n)?;
    let operands = [n.operand(0)?, n.operand(1)?, n.operand(2)?];
    n.finish(OpKind::ScatterNd { mode, batch_dims: 0 }, &operands)
}
