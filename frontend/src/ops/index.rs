//! Gather and scatter.

use memc_ir::OpKind;
use memc_ir::attr::ScatterMode;

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
    n.finish(OpKind::Gather { axis: axis as i64 }, &operands)
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

fn mode(n: &NodeCx<'_, '_>) -> Result<ScatterMode, Fault> {
    match n.text("reduction", "none")? {
        "none" => Ok(ScatterMode::Replace),
        "add" => Ok(ScatterMode::Add),
        other => unsupported(format!("reduction `{other}` is not supported; `none` and `add` are")),
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
