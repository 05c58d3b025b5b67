//! Pooling and its gradients.

use memc_ir::{Code, Def, OpKind, ValueId};

use super::window::{Window, spatial};
use crate::error::{Fault, unsupported};
use crate::node::NodeCx;

type Done = Result<(), Fault>;

/// The window of a pooling node over an input of shape `shape`, and whether its extent rounds up.
fn read(n: &NodeCx<'_, '_>, shape: &[u64]) -> Result<(Window, bool), Fault> {
    let size = spatial(shape)?;
    let mut window = Window::read(n, None)?;
    window.pad_automatically(n, size)?;
    let ceil = n.flag("ceil_mode", false)? && window.rounding_matters(size);
    Ok((window, ceil))
}

/// `MaxPool`.
pub(crate) fn max_pool(n: &mut NodeCx<'_, '_>) -> Done {
    if n.flag("storage_order", false)? && n.output(1).is_some() {
        return unsupported("column-major indices (`storage_order` = 1) are not supported");
    }
    let x = n.operand(0)?;
    let (Window { kernel, strides, pads, dilations }, ceil) = read(n, &n.ty(x).shape)?;
    n.finish(OpKind::MaxPool { kernel, strides, pads, dilations, ceil }, &[x])
}

/// ONNX Runtime's `MaxPoolGrad(dY, indices)`, whose result has the shape of the pooled tensor.
pub(crate) fn max_pool_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let (dy, indices) = (n.operand(0)?, n.operand(1)?);
    let Some(x) = pooled(n, indices) else {
        return unsupported("its indices do not come from a MaxPool node of this graph");
    };
    let shape = n.ty(x).shape.clone();
    n.finish(OpKind::MaxPoolGrad { shape }, &[dy, indices])
}

/// The operand of the max pooling that computed `indices`.
fn pooled(n: &NodeCx<'_, '_>, indices: ValueId) -> Option<ValueId> {
    let module = &n.cx.module;
    let Def::Op(op, 1) = module.values[indices].def else { return None };
    let op = &module.ops[op];
    matches!(op.code, Code::Compute(OpKind::MaxPool { .. })).then(|| op.operands.first().copied()).flatten()
}

/// `AveragePool`.
pub(crate) fn average_pool(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (window, ceil) = read(n, &n.ty(x).shape)?;
    let Window { kernel, strides, pads, .. } = undilated(window)?;
    let count_pad = n.flag("count_include_pad", false)?;
    n.finish(OpKind::AveragePool { kernel, strides, pads, ceil, count_pad }, &[x])
}

fn undilated(window: Window) -> Result<Window, Fault> {
    if window.dilations == [1, 1] {
        Ok(window)
    } else {
        unsupported("dilated average pooling is not supported")
    }
}

/// ONNX Runtime's `AveragePoolGrad(dY)`. The node does not tell the result's shape: it is that of the tensor
/// whose gradient the result's name says it is, or the declared one.
pub(crate) fn average_pool_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let dy = n.operand(0)?;
    let Some(name) = n.output(0) else { return Ok(()) };
    let paired = gradient_of(name).and_then(|x| n.cx.type_of(x).ok().cloned());
    let Some(ty) = paired.or_else(|| n.cx.declared.get(name).cloned()) else {
        return unsupported(format!(
            "the shape of its result `{name}` is neither declared nor implied by its name"
        ));
    };
    let (window, ceil) = read(n, &ty.shape)?;
    let Window { kernel, strides, pads, .. } = undilated(window)?;
    let count_pad = n.flag("count_include_pad", false)?;
    n.finish(OpKind::AveragePoolGrad { kernel, strides, pads, ceil, count_pad, shape: ty.shape }, &[dy])
}

/// `X` when `name` is `X_grad`, or `X_grad_N` as one of several summands is called.
fn gradient_of(name: &str) -> Option<&str> {
    let base = match name.rsplit_once('_') {
        Some((base, n)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    };
    base.strip_suffix("_grad").or_else(|| name.strip_suffix("_grad"))
}

#[cfg(test)]
mod tests {
    use super::gradient_of;

    /// Gradient names lead back to their tensor, whether or not they are numbered summands.
    #[test]
    fn gradients_name_their_tensor() {
        assert_eq!(gradient_of("/pool/Out_0_grad"), Some("/pool/Out_0"));
        assert_eq!(gradient_of("/pool/Out_0_grad_12"), Some("/pool/Out_0"));
        assert_eq!(gradient_of("/pool/Out_0"), None);
    }
}
