//! Families of ops: those whose kernels come about equally near to the device's peaks.

use memc_ir::ops::is_depthwise;
use memc_ir::{OpKind, TensorType};

/// A family of ops.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Family {
    /// Matrix products.
    MatMul,
    /// Convolutions.
    Conv,
    /// Their gradients by the input, and transposed convolutions.
    ConvGradInput,
    /// Their gradients by the weight.
    ConvGradWeight,
    /// All three, where every channel is a group of its own.
    Depthwise,
    /// Pooling and its gradients.
    Pool,
    /// Normalisation and its gradients.
    Norm,
    /// Softmax, cross-entropy and their gradients.
    Softmax,
    /// What computes every element by itself.
    ElementWise,
    /// Sums, means and maxima over axes.
    Reduce,
    /// Reading at indices.
    Gather,
    /// Writing and adding at indices.
    Scatter,
    /// Random numbers.
    Random,
    /// Updates of parameters.
    Optimizer,
    /// What moves elements without computing.
    Movement,
}

impl Family {
    /// Every family, in the order of reports.
    pub const ALL: [Family; 15] = [
        Family::MatMul,
        Family::Conv,
        Family::ConvGradInput,
        Family::ConvGradWeight,
        Family::Depthwise,
        Family::Pool,
        Family::Norm,
        Family::Softmax,
        Family::ElementWise,
        Family::Reduce,
        Family::Gather,
        Family::Scatter,
        Family::Random,
        Family::Optimizer,
        Family::Movement,
    ];

    /// Its name in files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Family::MatMul => "matmul",
            Family::Conv => "conv",
            Family::ConvGradInput => "conv-grad-input",
            Family::ConvGradWeight => "conv-grad-weight",
            Family::Depthwise => "depthwise",
            Family::Pool => "pool",
            Family::Norm => "norm",
            Family::Softmax => "softmax",
            Family::ElementWise => "element-wise",
            Family::Reduce => "reduce",
            Family::Gather => "gather",
            Family::Scatter => "scatter",
            Family::Random => "random",
            Family::Optimizer => "optimizer",
            Family::Movement => "movement",
        }
    }

    /// Whether the family is convolutions of any kind.
    pub fn is_convolution(self) -> bool {
        matches!(self, Family::Conv | Family::ConvGradInput | Family::ConvGradWeight | Family::Depthwise)
    }

    /// The family of an op on operands and results of these types.
    pub fn of(op: &OpKind, operands: &[&TensorType], results: &[&TensorType]) -> Family {
        use OpKind::*;
        let conv = |w: Option<&&TensorType>, x: Option<&&TensorType>, dense: Family| {
            let channels = x.and_then(|x| x.shape.get(1)).copied().unwrap_or(0);
            if w.is_some_and(|w| is_depthwise(&w.shape, channels)) { Family::Depthwise } else { dense }
        };
        match op {
            // That of the step whose kernels come least near to the memory's throughput.
            Fused { body, .. } => {
                if let Some(head) = body.head() {
                    return Family::of(&head.op, operands, results);
                }
                let has = |found: fn(&OpKind) -> bool| body.0.iter().any(|step| found(&step.op));
                if has(|op| matches!(op, BatchNorm {})) {
                    Family::Norm
                } else if has(|op| matches!(op, Dropout { .. })) {
                    Family::Random
                } else {
                    Family::ElementWise
                }
            }
            MatMul { .. } | MatMulBiasGrad { .. } | Gemm { .. } => Family::MatMul,
            Conv { .. } => conv(operands.get(1), operands.first(), Family::Conv),
            ConvGradInput { .. } => conv(operands.get(1), results.first(), Family::ConvGradInput),
            ConvGradWeight { .. } => conv(results.first(), operands.get(1), Family::ConvGradWeight),
            MaxPool { .. }
            | MaxPoolGrad { .. }
            | MaxPoolGradInput { .. }
            | AveragePool { .. }
            | AveragePoolGrad { .. } => Family::Pool,
            BatchNormStats { .. }
            | BatchNorm {}
            | BatchNormGrad {}
            | LayerNorm { .. }
            | LayerNormGrad { .. }
            | FusedNorm { .. } => Family::Norm,
            Softmax { .. }
            | LogSoftmax { .. }
            | SoftmaxGrad { .. }
            | CrossEntropy { .. }
            | CrossEntropyGrad { .. } => Family::Softmax,
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
            | MaskScale { .. }
            | MovingAverage { .. } => Family::ElementWise,
            ReduceSum { .. } | ReduceMean { .. } | ReduceMax { .. } | SumSquares {} => Family::Reduce,
            Gather { .. } | GatherElements { .. } | GatherNd { .. } => Family::Gather,
            GatherGrad { .. } | ScatterElements { .. } | ScatterNd { .. } => Family::Scatter,
            RandomMask { .. } | Dropout { .. } | RandomUniform { .. } | RandomNormal { .. } => Family::Random,
            Sgd {} | Momentum { .. } | Adagrad { .. } | AdamW { .. } | Increment { .. } => Family::Optimizer,
            Copy {}
            | Reshape { .. }
            | Transpose { .. }
            | Broadcast { .. }
            | Slice { .. }
            | Concat { .. }
            | Pad { .. }
            | Fill { .. } => Family::Movement,
        }
    }
}
