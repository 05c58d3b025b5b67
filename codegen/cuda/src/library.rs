//! Ops as one call of a library: matrix products for cuBLASLt, convolutions for cuDNN.
//!
//! A [`LibraryCall`] is data: the computation in terms of row-major tensors, without the library's own
//! descriptors. An op is one only where the library computes the same:
//!
//! - elements are `f32`, `f16` or `bf16`, products are summed in `f32`, and the sum is rounded once, as
//!   `memc-kernels` do;
//! - a product's batches lie one stride apart in both operands, or are one matrix for all, and `c` of a
//!   `gemm` is a whole matrix, or a row that is added as it is;
//! - a convolution's padding at the far edges reaches no further than symmetric padding would, since cuDNN
//!   knows no other, and a bias is added to `f32` alone: in 16 bits the sum would be rounded before it and
//!   after;
//! - a fused op applies an [`Epilogue`] that cuBLASLt has to a product. cuBLASLt has GELU by the hyperbolic
//!   tangent alone. It takes ReLU's gradient from bits of its own, where ops take it from the result that the
//!   next product needs anyway. A library's ReLU may make zero of NaN;
//! - the operand that is summed beside a product has its sums' axis outermost, as cuBLASLt reads it then, and
//!   the product is not scaled, as cuBLASLt does not say that the sum would not be.
//!
//! Everything else runs as generated kernels, and so do pooling, normalisation and whatever else cuDNN has:
//! these move bytes and hardly compute, so that a library gains nothing, and fused with their neighbours they
//! move fewer.

use std::ops::RangeInclusive;

use memc_ir::ops::fused::{Arg, Body};
use memc_ir::ops::{BiasGrad, conv_output_extent};
use memc_ir::{DType, OpKind, SLOT_ALIGN, TensorType};

use crate::forms::{Form, forms};
use crate::index_space::{IndexSpace, broadcast};

/// Alignment of the bytes of operands and results.
pub const PLACE_ALIGN: u64 = SLOT_ALIGN;
/// Alignment of the workspace that a library is given; it lies within the workspace that a plan lists.
pub const WORKSPACE_ALIGN: u64 = 256;

/// Bytes that a library takes to align the tensors that it keeps in a workspace: cuDNN 9 asks for up to 32.
const ALIGNING: u64 = 64;

/// Most workspace of a call in every plan: what NVIDIA recommends for its largest GPUs (cuBLAS documentation,
/// `cublasSetWorkspace`).
const ENOUGH: u64 = 32 << 20;
/// Most workspace that a convolution may have: what it has in every plan, to that with which transforms of
/// whole tensors fit, Winograd's and Fourier's. The end is Paddle's default
/// (`FLAGS_conv_workspace_size_limit`).
pub const CONV_WORKSPACE: RangeInclusive<u64> = ENOUGH..=512 << 20;

/// An op as one call of a library; operands are the op's, in its order.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LibraryCall {
    /// A matrix product.
    Product(Product),
    /// A convolution or one of its gradients.
    Convolution(Convolution),
}

/// `y = alpha * a * b + beta * c`, for each of `batch` pairs of matrices. Matrices are dense and row-major;
/// those of `y` lie one after another.
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
    /// Addend.
    pub addend: Addend,
    /// Epilogue, applied to the sum.
    pub epilogue: Epilogue,
}

/// Function of each element of a product and its addend, applied before it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// `max(0, .)`.
    Relu,
    /// GELU by the hyperbolic tangent. Its argument may be kept, as the first of two results.
    Gelu {
        /// Whether the argument is kept.
        is_kept: bool,
    },
    /// It is the gradient of that GELU at the last operand, a matrix like `y`.
    GeluGrad,
    /// Nothing, and the sum of `a` over `k` is a second result, of `m` elements.
    SumA,
    /// Nothing, and the sum of `b` over `k` is a second result, of `n` elements.
    SumB,
}

/// Addend of a product.
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

/// Result of a convolution call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// `y` from `x`, `w` and, where there is one, a bias.
    Forward {
        /// Whether there is a bias of one element for each channel of `y`.
        has_bias: bool,
        /// Whether ReLU is applied to `y`.
        is_rectified: bool,
    },
    /// The gradient of `x`, from those of `y` and from `w`.
    GradInput,
    /// The gradient of `w`, from those of `y` and from `x`.
    GradWeight,
}

/// A 2-D cross-correlation, or a gradient of it, on dense tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Convolution {
    /// Result that is computed.
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

/// The op as a call of a library on operands of these types, which must satisfy [`OpKind::infer`]; `None`
/// where it has to be generated.
pub fn library(op: &OpKind, operands: &[TensorType]) -> Option<LibraryCall> {
    let types: Vec<&TensorType> = operands.iter().collect();
    let results = op.infer(&types).ok()?;
    // Of several results of a fused op what is kept comes first.
    let y = if matches!(op, OpKind::MatMulBiasGrad { .. }) { results.first() } else { results.last() };
    let y = y?.clone();
    let all = || operands.iter().chain(&results);
    if !y.dtype.is_float() || all().any(|t| t.dtype != y.dtype || t.numel() == 0) {
        return None;
    }
    match op {
        OpKind::Fused { body, outs } => fused(body, outs, operands, &y),
        OpKind::MatMul { trans_a, trans_b, alpha } => {
            product(operands, &y, [*trans_a, *trans_b], alpha.0, 0.0).map(LibraryCall::Product)
        }
        OpKind::Gemm { trans_a, trans_b, alpha, beta } => {
            product(operands, &y, [*trans_a, *trans_b], alpha.0, beta.0).map(LibraryCall::Product)
        }
        OpKind::MatMulBiasGrad { trans_a, trans_b, alpha, sum_b } => {
            let product = product(operands, &y, [*trans_a, *trans_b], alpha.0, 0.0)?;
            let is_outer = if *sum_b { !product.trans_b } else { product.trans_a };
            let epilogue = if *sum_b { Epilogue::SumB } else { Epilogue::SumA };
            let is_legal = is_outer && product.alpha == 1.0;
            is_legal.then_some(LibraryCall::Product(Product { epilogue, ..product }))
        }
        OpKind::Conv { strides, pads, dilations, groups } => {
            let ([x, w], has_bias) = (operands.first_chunk()?, operands.len() > 2);
            if has_bias && y.dtype != DType::F32 {
                return None;
            }
            convolution(
                Pass::Forward { has_bias, is_rectified: false },
                [x, w, &y],
                [strides, pads, dilations],
                *groups,
            )
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

/// Bytes of workspace that every plan has for a library call; 0 for an op that is no library's.
///
/// The number is that of the operands and the result, which suffices for sums in parts and for tensors in
/// another order of axes, but no more than NVIDIA recommends, plus the cost of aligning the start and the
/// tensors. A product may use as much with the sum of an operand as without.
///
pub fn allowance(op: &OpKind, operands: &[TensorType]) -> u64 {
    if let Some(BiasGrad { product, .. }) = BiasGrad::of(op) {
        return allowance(&product, operands);
    }
    let Some(call) = library(op, operands) else { return 0 };
    let aligning = if matches!(call, LibraryCall::Convolution(_)) { ALIGNING } else { 0 };
    padded(touched(op, operands).saturating_add(aligning).min(ENOUGH))
}

/// Bytes of workspace that a plan has for a library call where there is room: more than [`allowance`] for
/// convolutions, up to `most` within [`CONV_WORKSPACE`]. With the least `most` it is [`allowance`].
///
/// They suffice for Winograd's transforms, with which a 3 by 3 window takes down to a third of the time; for
/// that of the [`forms`] which has parts in the workspace; and for cuDNN's one algorithm for the gradient of
/// the weight that keeps an order, which puts all tensors into another order of axes. A gradient of the
/// weight that has room for none of these is a generated kernel, which takes up to five times as long.
pub fn ample_allowance(op: &OpKind, operands: &[TensorType], most: u64) -> u64 {
    let (usual, most) = (allowance(op, operands), most.min(*CONV_WORKSPACE.end()));
    let call = library(op, operands).filter(|_| most > ENOUGH);
    let Some(LibraryCall::Convolution(c)) = call else { return usual };
    let in_parts = forms(op, operands).iter().map(Form::least_workspace).find(|&bytes| bytes > 0);
    let in_order = Some(touched(op, operands)).filter(|_| c.pass == Pass::GradWeight);
    let fits = |bytes: &u64| bytes.saturating_add(ALIGNING) <= most;
    let least = [in_parts, in_order].into_iter().flatten().filter(fits).min();
    let wanted = c.transformed().filter(fits).or(least);
    wanted.map_or(usual, |bytes| usual.max(padded(bytes + ALIGNING)))
}

/// Bytes of an op's operands and results.
fn touched(op: &OpKind, operands: &[TensorType]) -> u64 {
    let types: Vec<&TensorType> = operands.iter().collect();
    let results = op.infer(&types).unwrap_or_default();
    operands.iter().chain(&results).map(TensorType::bytes).fold(0, u64::saturating_add)
}

/// So many bytes, however the start is to be aligned.
fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(WORKSPACE_ALIGN) + (WORKSPACE_ALIGN - SLOT_ALIGN)
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
    let space = IndexSpace::new(&batches, &steps);
    let (batch, [step_a, step_b]) = space.even()?;
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
        epilogue: Epilogue::None,
    })
}

/// A product or a convolution with an epilogue. Of a convolution that is ReLU of what has a bias.
fn fused(body: &Body, outs: &[u64], operands: &[TensorType], y: &TensorType) -> Option<LibraryCall> {
    let ([_, step], head) = (body.0.as_slice(), body.head()?) else { return None };
    let own = operands.get(..head.args.len())?;
    let of_the_head = |more: &[Arg]| step.args.split_first() == Some((&Arg::Step(0), more));
    let product = match library(&head.op, own)? {
        LibraryCall::Product(product) => product,
        LibraryCall::Convolution(c) => {
            let has_bias = c.pass == (Pass::Forward { has_bias: true, is_rectified: false });
            let is_relu = step.op == OpKind::Relu {} && outs == [1] && of_the_head(&[]);
            let pass = Pass::Forward { has_bias, is_rectified: true };
            return (has_bias && is_relu).then_some(LibraryCall::Convolution(Convolution { pass, ..c }));
        }
    };
    let epilogue = match (&step.op, outs) {
        (OpKind::Relu {}, [1]) if of_the_head(&[]) => Epilogue::Relu,
        (OpKind::Gelu { tanh: true }, [1]) if of_the_head(&[]) => Epilogue::Gelu { is_kept: false },
        (OpKind::Gelu { tanh: true }, [0, 1]) if of_the_head(&[]) => Epilogue::Gelu { is_kept: true },
        (OpKind::GeluGrad { tanh: true }, [1])
            if product.addend == Addend::None
                && of_the_head(&[Arg::Operand(2)])
                && operands.get(2).is_some_and(|x| x.shape == y.shape) =>
        {
            Epilogue::GeluGrad
        }
        _ => return None,
    };
    // Its rows must be as far apart as the library asks of them (`cublasLt.h`,
    // `CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD`).
    let is_legal = product.batch == 1 && product.n.is_multiple_of(8);
    let has_more = matches!(epilogue, Epilogue::Gelu { is_kept: true } | Epilogue::GeluGrad);
    (is_legal || !has_more).then_some(LibraryCall::Product(Product { epilogue, ..product }))
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
    // With as much padding at the far edge as at the near one there must be as many windows; then they are
    // the same.
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

/// `N` numbers of 31 bits.
fn numbers<const N: usize>(from: &[u64]) -> Option<[i32; N]> {
    let numbers: Option<Vec<i32>> = from.iter().map(|&x| i32::try_from(x).ok()).collect();
    numbers?.try_into().ok()
}

impl Convolution {
    /// Bytes that Winograd's transforms of tiles of 4 by 4 take, of the two tensors and of the window: 36
    /// numbers for each. None where the window is another than 3 by 3, or elements are not `f32`.
    fn transformed(&self) -> Option<u64> {
        let is_one = |steps: [i32; 2]| steps == [1, 1];
        let is_any = self.w[2..] == [3, 3] && is_one(self.strides) && is_one(self.dilations);
        if !is_any || self.groups != 1 || self.dtype != DType::F32 {
            return None;
        }
        let size = |d: i32| u64::from(d.unsigned_abs());
        let [.., height, width] = if self.pass == Pass::GradInput { self.x } else { self.y };
        let tiles = size(self.x[0]) * size(height).div_ceil(4) * size(width).div_ceil(4);
        let [out, inner] = [size(self.w[0]), size(self.w[1])];
        Some(36 * DType::F32.bytes() * (tiles * (out + inner) + out * inner))
    }
}

impl LibraryCall {
    /// Element type of all operands and results.
    pub fn dtype(&self) -> DType {
        match self {
            LibraryCall::Product(p) => p.dtype,
            LibraryCall::Convolution(c) => c.dtype,
        }
    }

    /// Elements of each operand that is read, in the op's order, and of each result.
    pub fn elements(&self) -> (Vec<u64>, Vec<u64>) {
        match self {
            LibraryCall::Product(p) => {
                let [m, n, k, batch] = [p.m, p.n, p.k, p.batch].map(u64::from);
                let all = |stride: u64, size: u64| stride * (batch - 1) + size;
                let y = batch * m * n;
                let addend = match p.addend {
                    Addend::None => None,
                    Addend::Matrix { .. } => Some(y),
                    Addend::Row => Some(n),
                };
                let (more, kept, sum) = match p.epilogue {
                    Epilogue::None | Epilogue::Relu | Epilogue::Gelu { is_kept: false } => (None, None, None),
                    Epilogue::Gelu { is_kept: true } => (None, Some(y), None),
                    Epilogue::GeluGrad => (Some(y), None, None),
                    Epilogue::SumA => (None, None, Some(m)),
                    Epilogue::SumB => (None, None, Some(n)),
                };
                let operands = [Some(all(p.stride_a, m * k)), Some(all(p.stride_b, k * n)), addend, more];
                (
                    operands.into_iter().flatten().collect(),
                    [kept, Some(y), sum].into_iter().flatten().collect(),
                )
            }
            LibraryCall::Convolution(c) => {
                let all = |extents: [i32; 4]| extents.iter().map(|&d| u64::from(d.unsigned_abs())).product();
                let [x, w, y] = [c.x, c.w, c.y].map(all);
                match c.pass {
                    Pass::Forward { has_bias: false, .. } => (vec![x, w], vec![y]),
                    Pass::Forward { has_bias: true, .. } => {
                        (vec![x, w, u64::from(c.y[1].unsigned_abs())], vec![y])
                    }
                    Pass::GradInput => (vec![y, w], vec![x]),
                    Pass::GradWeight => (vec![y, x], vec![w]),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
