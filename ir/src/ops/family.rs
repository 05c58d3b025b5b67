//! Families of ops. Kernels of one family reach about the same share of a device's peaks.

use super::{OpKind, is_depthwise};
use crate::types::TensorType;

words! {
    /// A family of ops.
    pub enum Family {
        /// Matrix products.
        MatMul = "matmul",
        /// Convolutions.
        Conv = "conv",
        /// Gradients of convolutions by the input, and transposed convolutions.
        ConvGradInput = "conv-grad-input",
        /// Gradients of convolutions by the weight.
        ConvGradWeight = "conv-grad-weight",
        /// Convolutions and gradients in which every channel is a group.
        Depthwise = "depthwise",
        /// Pooling and its gradients.
        Pool = "pool",
        /// Normalisation and its gradients.
        Norm = "norm",
        /// Softmax, cross-entropy and their gradients.
        Softmax = "softmax",
        /// Element-wise arithmetic.
        ElementWise = "element-wise",
        /// Sums, means and maxima over axes.
        Reduce = "reduce",
        /// Reading at indices.
        Gather = "gather",
        /// Writing and adding at indices.
        Scatter = "scatter",
        /// Random numbers.
        Random = "random",
        /// Updates of parameters.
        Optimizer = "optimizer",
        /// Copies that change shape, order or place of elements.
        Movement = "movement",
    }
}

impl Family {
    /// True for convolutions of any kind and their gradients.
    pub fn is_convolution(self) -> bool {
        matches!(self, Family::Conv | Family::ConvGradInput | Family::ConvGradWeight | Family::Depthwise)
    }
}

impl OpKind {
    /// The family on operands and results of these types: that of the row, refined for depthwise and fused
    /// ops.
    pub fn family(&self, operands: &[&TensorType], results: &[&TensorType]) -> Family {
        let dense = self.def().family;
        let conv = |w: Option<&&TensorType>, x: Option<&&TensorType>| {
            let channels = x.and_then(|x| x.shape.get(1)).copied().unwrap_or(0);
            if w.is_some_and(|w| is_depthwise(&w.shape, channels)) { Family::Depthwise } else { dense }
        };
        match self {
            // The family of the step whose kernels reach the smallest share of the memory's throughput.
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
