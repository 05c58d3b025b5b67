//! The closed set of compute ops: one row each in [`table`](self), rules split by family.
//!
//! A row owns the meaning that every phase needs: name, operands, typed attributes, type inference,
//! cost, legal in-place pairs and recomputability. Implementations live where their dependencies live
//! and are kept complete by exhaustive matches over [`OpKind`].

mod conv;
mod elementwise;
mod family;
pub mod fused;
pub mod fused_norm;
mod index;
mod linalg;
mod loss;
mod norm;
mod optim;
mod pool;
mod random;
mod reduce;
mod shape;
mod table;
mod widen;

pub use conv::{Im2colTiling, MAX_LANES, conv_output_extent, im2col_tiling, is_depthwise};
pub use family::Family;
pub use linalg::BiasGrad;
pub use optim::Negligible;
pub use pool::pool_output_extent;
pub use shape::broadcast_shapes;
pub use table::{OP_DEFS, OpKind};
pub use widen::{Piece, Widening};

use crate::error::TypeError;
use crate::types::TensorType;

/// Result types of an op, or the reason why there are none.
type Types = Result<Vec<TensorType>, TypeError>;

/// Cost of one execution of an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Arithmetic operations.
    pub flops: u64,
    /// Bytes read from operands.
    pub bytes_read: u64,
    /// Bytes written to results.
    pub bytes_written: u64,
    /// Scratch bytes in the device arena while the op runs; contents undefined before and after.
    pub workspace: u64,
}

/// Treatment of an op by passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Deterministic function of operands and attributes: may be merged, folded and recomputed.
    Pure,
    /// Same bytes as its operand under another shape: never a kernel, shares the operand's slot.
    View,
}

/// Part that an op can play in a fused op's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fusion {
    /// A step: each element of its one result depends on one element of each operand.
    Step,
    /// The first op, whose result the steps work on.
    Head,
    /// None.
    Alone,
}

/// The static part of an op's row.
#[derive(Debug)]
pub struct OpDef {
    /// Name in the text form.
    pub mnemonic: &'static str,
    /// One-paragraph meaning.
    pub doc: &'static str,
    /// Operand names; a trailing `?` marks an optional last operand, `*` a variadic one.
    pub operands: &'static [&'static str],
    /// Result names; `*` marks one result for each operand, `+` as many as attributes say.
    pub results: &'static [&'static str],
    /// Attribute names.
    pub attrs: &'static [&'static str],
    /// Pairs (operand, result) that may share bytes exactly, when their byte sizes are equal. Where there is
    /// one result for each operand, the pair of the first ones stands for all; where attributes say how many
    /// results there are, see [`OpKind::inplace_pairs`].
    pub inplace: &'static [(usize, usize)],
    /// Treatment by passes.
    pub class: Class,
    /// Family of its kernels; see [`OpKind::family`].
    pub family: Family,
    /// Part in fused ops.
    pub fusion: Fusion,
}

impl OpDef {
    /// Smallest and largest legal number of operands.
    pub fn arity(&self) -> (usize, usize) {
        let n = self.operands.len();
        match self.operands.last() {
            Some(last) if last.ends_with('*') => (n.max(1), usize::MAX),
            Some(last) if last.ends_with('?') => (n - 1, n),
            _ => (n, n),
        }
    }

    /// Whether there is one result for each operand.
    pub fn is_batch(&self) -> bool {
        self.results.iter().any(|r| r.ends_with('*'))
    }

    /// Whether attributes say how many results there are.
    pub fn is_open(&self) -> bool {
        self.results.iter().any(|r| r.ends_with('+'))
    }

    /// Whether operand `i` and result `j` of some op of the row may share bytes; see [`OpKind::may_share`].
    pub fn may_share(&self, (i, j): (usize, usize)) -> bool {
        if self.is_batch() {
            i == j && !self.inplace.is_empty()
        } else {
            self.is_open() || self.inplace.contains(&(i, j))
        }
    }
}

impl OpKind {
    /// Whether the op is a matrix product, a convolution or a gradient of one: each result a sum over an axis
    /// of products.
    pub fn is_contraction(&self) -> bool {
        use OpKind::{Conv, ConvGradInput, ConvGradWeight, Gemm, MatMul, MatMulBiasGrad};
        matches!(
            self,
            MatMul { .. }
                | MatMulBiasGrad { .. }
                | Gemm { .. }
                | Conv { .. }
                | ConvGradInput { .. }
                | ConvGradWeight { .. }
        )
    }

    /// Number of results for that many operands.
    pub fn result_count(&self, operands: usize) -> usize {
        match self {
            OpKind::Fused { outs, .. } => outs.len(),
            // Two results of the norm follow.
            OpKind::FusedNorm { outs, .. } => outs.len() + 2,
            _ if self.def().is_batch() => operands,
            _ => self.def().results.len(),
        }
    }

    /// Result types for the given operand types, or why there are none. Checks arity first.
    pub fn infer(&self, operands: &[&TensorType]) -> Types {
        let (low, high) = self.def().arity();
        if operands.len() < low || operands.len() > high {
            let wants = if low == high { low.to_string() } else { format!("at least {low}") };
            return Err(format!("{} takes {wants} operands, got {}", self.mnemonic(), operands.len()).into());
        }
        if let Some(t) = operands.iter().find(|t| t.checked_numel().is_none()) {
            return Err(format!("operand type {t} is too large").into());
        }
        self.check_floats(operands)?;
        let results = self.infer_unchecked(operands)?;
        match results.iter().find(|t| t.checked_numel().is_none()) {
            Some(t) => Err(format!("result type {t} is too large").into()),
            None => Ok(results),
        }
    }

    /// Requires float operands to have one type, except where the row's own rule says what goes together.
    fn check_floats(&self, operands: &[&TensorType]) -> Result<(), TypeError> {
        use OpKind::{
            Adagrad, AdamW, BatchNorm, BatchNormGrad, Fused, FusedNorm, LayerNorm, LayerNormGrad, Momentum,
            Sgd,
        };
        if matches!(self, BatchNorm {} | BatchNormGrad {} | LayerNorm { .. } | LayerNormGrad { .. })
            || matches!(self, Sgd {} | Momentum { .. } | Adagrad { .. } | AdamW { .. })
            || matches!(self, Fused { .. } | FusedNorm { .. })
        {
            return Ok(());
        }
        let floats = operands.iter().filter(|t| t.dtype.is_float());
        match floats.clone().zip(floats.skip(1)).find(|(a, b)| a.dtype != b.dtype) {
            Some((a, b)) => Err(format!("operands differ in element type: {a} and {b}").into()),
            None => Ok(()),
        }
    }

    /// Cost of one execution on the given types, which must satisfy [`OpKind::infer`].
    pub fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let cost = self.row_cost(operands, results);
        match self.widening(operands, results) {
            Some(widening) => Cost { workspace: widening.workspace(), ..cost },
            None => cost,
        }
    }

    /// Whether operand `i` and result `j` may share bytes when their types have equally many elements of one
    /// type. For a `fused_norm` see [`OpKind::inplace_pairs`].
    pub fn may_share(&self, pair: (usize, usize)) -> bool {
        match self {
            OpKind::Fused { body, .. } if body.head().is_some() => false,
            _ => self.def().may_share(pair),
        }
    }

    /// The in-place pairs (operand, result) that these types allow.
    pub fn inplace_pairs(&self, operands: &[&TensorType], results: &[&TensorType]) -> Vec<(usize, usize)> {
        let same = |&&(i, j): &&(usize, usize)| match (operands.get(i), results.get(j)) {
            (Some(a), Some(b)) => a.dtype == b.dtype && a.numel() == b.numel(),
            _ => false,
        };
        let def = self.def();
        if let OpKind::FusedNorm { body, outs } = self {
            let parts = fused_norm::Parts::of(operands, body, outs);
            return parts.map_or_else(|_| Vec::new(), |parts| parts.inplace_pairs(operands));
        }
        if def.is_batch() {
            return (0..operands.len()).map(|i| (i, i)).filter(|&p| def.may_share(p) && same(&&p)).collect();
        }
        if def.is_open() {
            let all = (0..operands.len()).flat_map(|i| (0..results.len()).map(move |j| (i, j)));
            return all.filter(|&p| self.may_share(p) && same(&&p)).collect();
        }
        def.inplace.iter().filter(same).copied().collect()
    }
}

/// Sum of the operands' and results' bytes, with `flops` operations per result element.
fn streaming(operands: &[&TensorType], results: &[&TensorType], flops: u64) -> Cost {
    Cost {
        flops: results.first().map_or(0, |r| r.numel()).saturating_mul(flops),
        bytes_read: operands.iter().map(|t| t.bytes()).sum(),
        bytes_written: results.iter().map(|t| t.bytes()).sum(),
        workspace: 0,
    }
}
