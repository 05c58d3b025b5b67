//! Families of ops: kernels of one family come about equally near to a device's peaks.

use super::{OpKind, is_depthwise};
use crate::types::TensorType;

/// A family of ops.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Family {
    /// Matrix products.
    MatMul,
    /// Convolutions.
    Conv,
    /// Gradients of convolutions by the input, and transposed convolutions.
    ConvGradInput,
    /// Gradients of convolutions by the weight.
    ConvGradWeight,
    /// Convolutions and gradients in which every channel is a group.
    Depthwise,
    /// Pooling and its gradients.
    Pool,
    /// Normalisation and its gradients.
    Norm,
    /// Softmax, cross-entropy and their gradients.
    Softmax,
    /// Element-wise arithmetic.
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
    /// Copies that change shape, order or place of elements.
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

    /// Name in files and reports.
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

    /// True for convolutions of any kind and their gradients.
    pub fn is_convolution(self) -> bool {
        matches!(self, Family::Conv | Family::ConvGradInput | Family::ConvGradWeight | Family::Depthwise)
    }
}

impl OpKind {
    /// The family on operands and results of these types: the row's, made precise for depthwise and fused ops.
    pub fn family(&self, operands: &[&TensorType], results: &[&TensorType]) -> Family {
        let dense = self.def().family;
        let conv = |w: Option<&&TensorType>, x: Option<&&TensorType>| {
            let channels = x.and_then(|x| x.shape.get(1)).copied().unwrap_or(0);
            if w.is_some_and(|w| is_depthwise(&w.shape, channels)) { Family::Depthwise } else { dense }
        };
        match self {
            // That of the step whose kernels come least near to the memory's throughput.
            OpKind::Fused { body, .. } => {
                if let Some(head) = body.head() {
                    return head.op.family(operands, results);
                }
                let has = |family: Family| body.0.iter().any(|step| step.op.def().family == family);
                let dropout = |op: &OpKind| matches!(op, OpKind::Dropout { .. });
                if has(Family::Norm) {
                    Family::Norm
                } else if body.0.iter().any(|step| dropout(&step.op)) {
                    Family::Random
                } else {
                    dense
                }
            }
            OpKind::Conv { .. } => conv(operands.get(1), operands.first()),
            OpKind::ConvGradInput { .. } => conv(operands.get(1), results.first()),
            OpKind::ConvGradWeight { .. } => conv(results.first(), operands.get(1)),
            _ => dense,
        }
    }
}
