//! Which family lowers which op. A new row of the op table does not compile without a decision here.

use memc_ir::OpKind;

use crate::error::CudaError;
use crate::kernel::Lowering;
use crate::{
    Call, bias_grad, conv, elementwise, fused, fused_norm, index, norm, optim, pool, product, random, reduce,
    shape,
};

/// How a family takes an op.
type Family = fn(&Call) -> Option<Lowering>;

pub(crate) fn dispatch(call: &Call) -> Result<Lowering, CudaError> {
    use OpKind::*;
    let family: Family = match call.op {
        Neg {}
        | Abs {}
        | Sign {}
        | Not {}
        | Floor {}
        | Ceil {}
        | Round {}
        | Sin {}
        | Cos {}
        | Exp {}
        | Log {}
        | Sqrt {}
        | Reciprocal {}
        | Tanh {}
        | Sigmoid {}
        | Erf {}
        | Relu {}
        | Gelu { .. }
        | Cast { .. }
        | Add {}
        | Sub {}
        | Mul {}
        | Div {}
        | Pow {}
        | Min {}
        | Max {}
        | Equal {}
        | Less {}
        | LessEqual {}
        | Greater {}
        | GreaterEqual {}
        | And {}
        | Or {}
        | Select {}
        | ReluGrad {}
        | TanhGrad {}
        | SigmoidGrad {}
        | GeluGrad { .. }
        | MovingAverage { .. }
        | MaskScale { .. }
        | Increment { .. } => elementwise::lower,
        Fused { .. } => fused::lower,
        FusedNorm { .. } => fused_norm::lower,
        Sgd {} | Momentum { .. } | Adagrad { .. } | AdamW { .. } => optim::lower,
        ReduceSum { .. } | ReduceMean { .. } | ReduceMax { .. } | SumSquares {} => reduce::lower,
        Softmax { .. }
        | LogSoftmax { .. }
        | SoftmaxGrad { .. }
        | CrossEntropy { .. }
        | CrossEntropyGrad { .. }
        | LayerNorm { .. }
        | LayerNormGrad { .. }
        | BatchNormStats { .. }
        | BatchNorm {}
        | BatchNormGrad {} => norm::lower,
        Copy {}
        | Reshape { .. }
        | Transpose { .. }
        | Broadcast { .. }
        | Slice { .. }
        | Concat { .. }
        | Pad { .. }
        | Fill { .. } => shape::lower,
        Gather { .. }
        | GatherGrad { .. }
        | GatherElements { .. }
        | ScatterElements { .. }
        | GatherNd { .. }
        | ScatterNd { .. } => index::lower,
        RandomMask { .. } | Dropout { .. } | RandomUniform { .. } | RandomNormal { .. } => random::lower,
        MaxPool { .. }
        | MaxPoolGrad { .. }
        | MaxPoolGradInput { .. }
        | AveragePool { .. }
        | AveragePoolGrad { .. } => pool::lower,
        MatMul { .. } | Gemm { .. } => product::lower,
        MatMulBiasGrad { .. } => bias_grad::lower,
        Conv { .. } | ConvGradInput { .. } | ConvGradWeight { .. } => conv::lower,
    };
    family(call).ok_or(CudaError::Missing { op: call.op.mnemonic() })
}
