//! Ops as one call of a library: matrix products for cuBLASLt, convolutions for cuDNN.
//!
//! A [`LibraryCall`] is data: it says what is asked for in the terms of row-major tensors, and nothing of how a library
//! is told. An op is one only where the library's meaning is the op's:
//!
//! - elements are `f32`, `f16` or `bf16`, products are summed in `f32`, and the sum is rounded once, as `memc-kernels` do;
//! - a product's batches lie one stride apart in both operands, or are one matrix for all, and `c` of a `gemm` is a whole
//!   matrix, or a row that is added as it is;
//! - a convolution's padding at the far edges reaches no further than symmetric padding would, since cuDNN knows no other,
//!   and a bias is added to `f32` alone: in 16 bits the sum would be rounded before it and after.
//!
//! Everything else runs as generated kernels, and so do pooling, normalisation and whatever else cuDNN has: these move
//! bytes and hardly compute, so that a library gains nothing, and fused with their neighbours they move fewer.

use memc_ir::ops::conv_output_extent;
use memc_ir::{DType, OpKind, SLOT_ALIGN, TensorType};

use crate::walk::{Walk, broadcast};

/// Alignment of the bytes of operands and results.
pub const PLACE_ALIGN: u64 = SLOT_ALIGN;
/// Alignment of the workspace that a library is given; it lies within the workspace that a plan lists.
pub const WORKSPACE_ALIGN: u64 = 256;

/// Workspace with which libraries find all their fast ways: what NVIDIA recommends for its largest GPUs (cuBLAS
/// documentation, `cublasSetWorkspace`).
const ENOUGH: u64 = 32 << 20;

/// An op as one call of a library; operands are the op's, in its order.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LibraryCall {
    /// A matrix product.
    Product(Product),
    /// A convolution or one of its gradients.
    Convolution(Convolution),
}

/// `y = alpha * a * b + beta * c`, for each of `batch` pairs of matrices. Matrices are dense and row-major; those of `y` lie
/// one after another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Product {
    /// Element type of all operands.
    pub dtype: DType,
    /// Rows of `y`.
    pub m: u32,
    /// Columns of `y`.
    pub n: u32,
    /// Terms of a sum.
    pub k: u32,
    /// Whether `a` is stored as `k` rows of `m`.
    pub trans_a: bool,
    /// Whether `b` is stored as `n` rows of `k`.
    pub trans_b: bool,
    /// Pairs of matrices.
    pub batch: u32,
    /// Elements from one `a` to the next; 0 where one serves all.
    pub stride_a: u64,
    /// Elements from one `b` to the next; 0 where one serves all.
    pub stride_b: u64,
    /// Factor of the product.
    pub alpha: f32,
    /// What is added.
    pub addend: Addend,
}

/// What is added to a product.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Addend {
    /// Nothing.
    None,
    /// The third operand, a matrix like `y`, times `beta`; it may be stored where `y` is.
    Matrix {
        /// The factor.
        beta: f32,
    },
    /// The third operand, `n` elements, to every row.
    Row,
}

/// What a convolution computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// `y` from `x`, `w` and, where there is one, a bias.
    Forward {
        /// Whether there is a bias of one element for each channel of `y`.
        has_bias: bool,
    },
    /// The gradient of `x`, from those of `y` and from `w`.
    GradInput,
    /// The gradient of `w`, from those of `y` and from `x`.
    GradWeight,
}

/// A 2-D cross-correlation, or a gradient of it, on dense tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Convolution {
    /// What is computed.
    pub pass: Pass,
    /// Element type of all operands.
    pub dtype: DType,
    /// Extents of `x`: images, channels, height, width.
    pub x: [i32; 4],
    /// Extents of `w`: channels of `y`, channels of a group of `x`, height, width.
    pub w: [i32; 4],
    /// Extents of `y`: images, channels, height, width.
    pub y: [i32; 4],
    /// Padding at the top and at the left; at the other edges it is as if it were the same.
    pub pads: [i32; 2],
    /// Steps of the window, down and across.
    pub strides: [i32; 2],
    /// Distances of the taps, down and across.
    pub dilations: [i32; 2],
    /// Groups of channels.
    pub groups: i32,
}

/// The op as a call of a library on operands of these types, which must satisfy [`OpKind::infer`]; `None` where it has to be
/// generated.
pub fn library(op: &OpKind, operands: &[TensorType]) -> Option<LibraryCall> {
    let types: Vec<&TensorType> = operands.iter().collect();
    let [y] = <[TensorType; 1]>::try_from(op.infer(&types).ok()?).ok()?;
    let all = || operands.iter().chain([&y]);
    if !y.dtype.is_float() || all().any(|t| t.dtype != y.dtype || t.numel() == 0) {
        return None;
    }
    match op {
        OpKind::MatMul { trans_a, trans_b, alpha } => {
            product(operands, &y, [*trans_a, *trans_b], alpha.0, 0.0).map(LibraryCall::Product)
        }
        OpKind::Gemm { trans_a, trans_b, alpha, beta } => {
            product(operands, &y, [*trans_a, *trans_b], alpha.0, beta.0).map(LibraryCall::Product)
        }
        OpKind::Conv { strides, pads, dilations, groups } => {
            let ([x, w], has_bias) = (operands.first_chunk()?, operands.len() > 2);
            if has_bias && y.dtype != DType::F32 {
                return None;
            }
            convolution(Pass::Forward { has_bias }, [x, w, &y], [strides, pads, dilations], *groups)
        }
        OpKind::ConvGradInput { strides, pads, dilations, groups, .. } => {
            let [dy, w] = operands.first_chunk()?;
            convolution(Pass::GradInput, [&y, w, dy], [strides, pads, dilations], *groups)
        }
        OpKind::ConvGradWeight { strides, pads, dilations, groups, .. } => {
            let [dy, x] = operands.first_chunk()?;
            convolution(Pass::GradWeight, [x, &y, dy], [strides, pads, dilations], *groups)
        }
        _ => None,
    }
}

/// Bytes of workspace that a library may use for an op on operands of these types; 0 for an op that is no library's.
///
/// They are those of the operands and the result, which is what sums in parts, or tensors in another order of axes, take,
/// but no more than NVIDIA recommends; and what aligning their start may cost. The rule knows types alone, so that a
/// library has the same choice, and takes the same way, in every plan.
pub fn allowance(op: &OpKind, operands: &[TensorType]) -> u64 {
    if library(op, operands).is_none() {
        return 0;
    }
    let types: Vec<&TensorType> = operands.iter().collect();
    let results = op.infer(&types).unwrap_or_default();
    let bytes = operands.iter().chain(&results).map(TensorType::bytes).fold(0, u64::saturating_add);
    bytes.min(ENOUGH).next_multiple_of(WORKSPACE_ALIGN) + (WORKSPACE_ALIGN - SLOT_ALIGN)
}

/// An extent that libraries index with 31 bits.
fn extent(size: u64) -> Option<u32> {
    i32::try_from(size).ok()?.try_into().ok()
}

fn product(
    operands: &[TensorType],
    y: &TensorType,
    [trans_a, trans_b]: [bool; 2],
    alpha: f32,
    beta: f32,
) -> Option<Product> {
    let (a, b) = (operands.first()?, operands.get(1)?);
    let (lead_a, &[ra, ca]) = a.shape.split_last_chunk::<2>()?;
    let (lead_b, _) = b.shape.split_last_chunk::<2>()?;
    let (lead, &[mut m, n]) = y.shape.split_last_chunk::<2>()?;
    let k = if trans_a { ra } else { ca };
    let mut batches = lead.to_vec();
    if lead_b.iter().all(|&d| d == 1) && !trans_a {
        // One right-hand side for all: the leading axes are more rows.
        m = m.checked_mul(batches.iter().product())?;
        batches.clear();
    }
    let steps = [broadcast(lead_a, lead.len()), broadcast(lead_b, lead.len())];
    let walk = Walk::new(&batches, &steps);
    let (batch, [step_a, step_b]) = walk.even()?;
    let stride = |step: i64, size: u64| u64::try_from(step).ok()?.checked_mul(size);
    let addend = match operands.get(2) {
        Some(c) if beta != 0.0 => {
            let is_row = matches!(c.shape.as_slice(), &[width] | &[1, width] if width == n);
            if c.shape == y.shape {
                Addend::Matrix { beta }
            } else if is_row && beta == 1.0 {
                Addend::Row
            } else {
                return None;
            }
        }
        _ => Addend::None,
    };
    Some(Product {
        dtype: y.dtype,
        m: extent(m)?,
        n: extent(n)?,
        k: extent(k)?,
        trans_a,
        trans_b,
        batch: extent(batch)?,
        stride_a: stride(step_a, ra * ca)?,
        stride_b: stride(step_b, k * n)?,
        alpha,
        addend,
    })
}

fn convolution(
    pass: Pass,
    [x, w, y]: [&TensorType; 3],
    [strides, pads, dilations]: [&[u64]; 3],
    groups: i64,
) -> Option<LibraryCall> {
    // cuDNN counts the elements of a tensor in 31 bits.
    let four = |ty: &TensorType| -> Option<[i32; 4]> {
        i32::try_from(ty.numel()).ok()?;
        numbers(&ty.shape)
    };
    let (&[top, left, ..], &[.., h, w_in], &[.., kh, kw], &[.., oh, ow]) =
        (pads, x.shape.as_slice(), w.shape.as_slice(), y.shape.as_slice())
    else {
        return None;
    };
    let (&[sh, sw], &[dh, dw]) = (strides, dilations) else { return None };
    // With as much padding at the far edge as at the near one there must be as many windows; then they are the same.
    let down = conv_output_extent(h, top.checked_mul(2)?, kh, sh, dh);
    let across = conv_output_extent(w_in, left.checked_mul(2)?, kw, sw, dw);
    if (down, across) != (Some(oh), Some(ow)) {
        return None;
    }
    Some(LibraryCall::Convolution(Convolution {
        pass,
        dtype: y.dtype,
        x: four(x)?,
        w: four(w)?,
        y: four(y)?,
        pads: numbers(&[top, left])?,
        strides: numbers(strides)?,
        dilations: numbers(dilations)?,
        groups: i32::try_from(groups).ok()?,
    }))
}

/// That many numbers of 31 bits.
fn numbers<const N: usize>(from: &[u64]) -> Option<[i32; N]> {
    let numbers: Option<Vec<i32>> = from.iter().map(|&x| i32::try_from(x).ok()).collect();
    numbers?.try_into().ok()
}

impl LibraryCall {
    /// Elements of each operand, in the op's order, and of the result, last.
    pub fn elements(&self) -> Vec<u64> {
        match self {
            LibraryCall::Product(p) => {
                let [m, n, k, batch] = [p.m, p.n, p.k, p.batch].map(u64::from);
                let all = |stride: u64, size: u64| stride * (batch - 1) + size;
                let addend = match p.addend {
                    Addend::None => None,
                    Addend::Matrix { .. } => Some(batch * m * n),
                    Addend::Row => Some(n),
                };
                let operands = [Some(all(p.stride_a, m * k)), Some(all(p.stride_b, k * n)), addend];
                operands.into_iter().flatten().chain([batch * m * n]).collect()
            }
            LibraryCall::Convolution(c) => {
                let all = |extents: [i32; 4]| extents.iter().map(|&d| u64::from(d.unsigned_abs())).product();
                let [x, w, y] = [c.x, c.w, c.y].map(all);
                match c.pass {
                    Pass::Forward { has_bias: false } => vec![x, w, y],
                    Pass::Forward { has_bias: true } => vec![x, w, u64::from(c.y[1].unsigned_abs()), y],
                    Pass::GradInput => vec![y, w, x],
                    Pass::GradWeight => vec![y, x, w],
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_ir::attr::F32;

    fn f32s(shape: &[u64]) -> TensorType {
        TensorType::new(DType::F32, shape)
    }

    fn matmul(a: &[u64], b: &[u64], trans_a: bool, trans_b: bool) -> Option<Product> {
        let op = OpKind::MatMul { trans_a, trans_b, alpha: F32(1.0) };
        match library(&op, &[f32s(a), f32s(b)])? {
            LibraryCall::Product(product) => Some(product),
            LibraryCall::Convolution(_) => None,
        }
    }

    fn gemm(c: &[u64], beta: f32) -> Option<Addend> {
        let op = OpKind::Gemm { trans_a: false, trans_b: false, alpha: F32(2.0), beta: F32(beta) };
        match library(&op, &[f32s(&[4, 3]), f32s(&[3, 5]), f32s(c)])? {
            LibraryCall::Product(product) => Some(product.addend),
            LibraryCall::Convolution(_) => None,
        }
    }

    /// Batches are rows, one stride, or one matrix for all; batches of two different strides are no call.
    #[test]
    fn batches_that_lie_evenly_are_calls() {
        let extents = |p: Product| ([p.m, p.n, p.k], p.batch, [p.stride_a, p.stride_b]);
        let product = |a: &[u64], b: &[u64]| matmul(a, b, false, false).map(extents);
        assert_eq!(product(&[4, 3], &[3, 5]), Some(([4, 5, 3], 1, [0, 0])));
        assert_eq!(product(&[2, 6, 4, 3], &[3, 5]), Some(([48, 5, 3], 1, [0, 0])));
        assert_eq!(product(&[2, 6, 4, 3], &[2, 6, 3, 5]), Some(([4, 5, 3], 12, [12, 15])));
        assert_eq!(product(&[4, 3], &[2, 6, 3, 5]), Some(([4, 5, 3], 12, [0, 15])));
        assert_eq!(product(&[2, 6, 4, 3], &[1, 6, 3, 5]), None);
        let turned = matmul(&[2, 3, 4], &[5, 3], true, true).map(extents);
        assert_eq!(turned, Some(([4, 5, 3], 2, [12, 0])));
        assert_eq!(product(&[4, 0], &[0, 5]), None, "nothing to multiply");
        assert_eq!(product(&[1 << 31, 1], &[1, 2]), None, "too many rows");
    }

    /// What is added is a whole matrix, or a row as it is.
    #[test]
    fn addends_of_other_forms_are_no_calls() {
        assert_eq!(gemm(&[4, 5], 0.5), Some(Addend::Matrix { beta: 0.5 }));
        assert_eq!(gemm(&[5], 1.0), Some(Addend::Row));
        assert_eq!(gemm(&[1, 5], 1.0), Some(Addend::Row));
        assert_eq!(gemm(&[5], 0.0), Some(Addend::None));
        assert_eq!(gemm(&[5], 0.5), None);
        assert_eq!((gemm(&[4, 1], 1.0), gemm(&[], 1.0)), (None, None));
    }

    fn conv(size: u64, kernel: u64, pads: [u64; 4], stride: u64, dtype: DType, has_bias: bool) -> bool {
        let op =
            OpKind::Conv { strides: vec![stride; 2], pads: pads.to_vec(), dilations: vec![1, 1], groups: 1 };
        let mut operands =
            vec![TensorType::new(dtype, [2, 3, size, size]), TensorType::new(dtype, [4, 3, kernel, kernel])];
        operands.extend(has_bias.then(|| TensorType::new(dtype, [4])));
        let call = library(&op, &operands);
        assert_eq!(call.is_some(), allowance(&op, &operands) > 0);
        call.is_some()
    }

    /// Padding of which cuDNN's symmetric one has no other windows is a call, other padding and biases in 16 bits are not.
    #[test]
    fn paddings_that_are_as_if_symmetric_are_calls() {
        assert!(conv(8, 3, [1, 1, 1, 1], 1, DType::F32, true));
        assert!(conv(8, 3, [1, 1, 0, 0], 2, DType::F32, false), "the last row is never reached");
        assert!(!conv(8, 3, [0, 0, 1, 1], 2, DType::F32, false));
        assert!(!conv(8, 2, [0, 0, 1, 1], 1, DType::F32, false));
        assert!(conv(8, 3, [1, 1, 1, 1], 1, DType::BF16, false));
        assert!(!conv(8, 3, [1, 1, 1, 1], 1, DType::F16, true));
    }

    /// The allowance holds what the op touches, up to a limit, however the workspace lies.
    #[test]
    fn the_allowance_is_bounded() {
        let op = OpKind::MatMul { trans_a: false, trans_b: false, alpha: F32(1.0) };
        let allowance = |m: u64| allowance(&op, &[f32s(&[m, 64]), f32s(&[64, 64])]);
        assert_eq!(allowance(64), 3 * 64 * 64 * 4 + 192);
        assert_eq!(allowance(1 << 20), (32 << 20) + 192);
        assert_eq!(super::allowance(&OpKind::Relu {}, &[f32s(&[64])]), 0);
    }
}
