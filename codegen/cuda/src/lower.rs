//! Dispatch of an op to the module that lowers its family.

use memc_ir::OpKind;
use memc_ir::ops::Family;

use crate::error::CudaError;
use crate::kernel::Lowering;
use crate::{
    Call, batch_norm, bias_grad, conv, elementwise, fused, fused_norm, index, loss, norm, optim, pool,
    product, random, reduce, shape, softmax,
};

/// Lowering of an op; `None` where the family has no kernel for it.
type Lower = fn(&Call) -> Option<Lowering>;

pub(crate) fn dispatch(call: &Call) -> Result<Lowering, CudaError> {
    let lower: Lower = match (call.op.def().family, call.op) {
        (_, OpKind::Fused { .. }) => fused::lower,
        (_, OpKind::FusedNorm { .. }) => fused_norm::lower,
        (_, OpKind::MatMulBiasGrad { .. }) => bias_grad::lower,
        (Family::ElementWise, _) | (_, OpKind::Increment { .. }) => elementwise::lower,
        (Family::Optimizer, _) => optim::lower,
        (Family::Reduce, _) => reduce::lower,
        (_, OpKind::CrossEntropy { .. } | OpKind::CrossEntropyGrad { .. }) => loss::lower,
        (_, OpKind::LayerNorm { .. } | OpKind::LayerNormGrad { .. }) => norm::lower,
        (Family::Softmax, _) => softmax::lower,
        (Family::Norm, _) => batch_norm::lower,
        (Family::Movement, _) => shape::lower,
        (Family::Gather | Family::Scatter, _) => index::lower,
        (Family::Random, _) => random::lower,
        (Family::Pool, _) => pool::lower,
        (Family::MatMul, _) => product::lower,
        (Family::Conv | Family::ConvGradInput | Family::ConvGradWeight | Family::Depthwise, _) => conv::lower,
    };
    lower(call).ok_or(CudaError::Missing { op: call.op.mnemonic() })
}
