//! Ops at the types that they have in networks, where every row allows loads of 16 bytes.

use memc_ir::attr::{F32, Reduction};
use memc_ir::{DType, OpKind, TensorType};

/// An op with the types of its operands.
pub(crate) type Call = (OpKind, Vec<TensorType>);

fn ty(dtype: DType, shape: &[u64]) -> TensorType {
    TensorType { dtype, shape: shape.to_vec() }
}

pub(crate) fn all() -> Vec<Call> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        rows(dtype, &mut all);
        [32_000, 1000].iter().for_each(|&classes| losses(dtype, [4096, classes], &mut all));
        // Few long rows are cut into parts.
        losses(dtype, [8, 32_000], &mut all);
        [(64, 112), (256, 56), (512, 28), (1024, 16), (2048, 8)]
            .iter()
            .for_each(|&plane| channels(dtype, plane, &mut all));
        pooling(dtype, &mut all);
        elements(dtype, &mut all);
    }
    all
}

/// Ops whose rows begin at any element: GPT-2's vocabulary, and the last planes of ResNets.
pub(crate) fn odd() -> Vec<Call> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        losses(dtype, [4096, 50_257], &mut all);
        [(1024, 14), (2048, 7)].iter().for_each(|&plane| channels(dtype, plane, &mut all));
    }
    all
}

/// Attention, layer normalisation and losses of transformers.
fn rows(dtype: DType, all: &mut Vec<Call>) {
    let scores = ty(dtype, &[16, 12, 384, 384]);
    all.push((OpKind::Softmax { axis: 3 }, vec![scores.clone()]));
    all.push((OpKind::SoftmaxGrad { axis: 3 }, vec![scores.clone(), scores.clone()]));
    for n in [8192, 1024] {
        let (x, scale) = (ty(dtype, &[6144, n]), ty(DType::F32, &[n]));
        let op = OpKind::LayerNorm { axis: 1, epsilon: F32(1e-5) };
        all.push((op, vec![x.clone(), scale.clone(), scale.clone()]));
        let statistics = ty(DType::F32, &[6144, 1]);
        let operands = vec![x.clone(), x, scale, statistics.clone(), statistics];
        all.push((OpKind::LayerNormGrad { axis: 1 }, operands));
    }
    let x = ty(dtype, &[6144, 1024]);
    for axes in [vec![0], vec![1], vec![0, 1]] {
        all.push((OpKind::ReduceSum { axes, keepdims: false }, vec![x.clone()]));
    }
    all.push((OpKind::SumSquares {}, vec![x.clone()]));
    let indices = ty(DType::I64, &[6144]);
    all.push((OpKind::Gather { axis: 0 }, vec![ty(dtype, &[30_720, 1024]), indices.clone()]));
    all.push((OpKind::GatherGrad { axis: 0, dim: 30_720 }, vec![indices, x]));
    let heads = ty(dtype, &[16, 384, 12, 64]);
    all.push((OpKind::Transpose { perm: vec![0, 2, 1, 3] }, vec![heads]));
}

/// Cross-entropy and softmax over classes.
fn losses(dtype: DType, [rows, classes]: [u64; 2], all: &mut Vec<Call>) {
    let (reduction, ignore_index) = (Reduction::Mean, -100);
    let (logits, labels) = (ty(dtype, &[rows, classes]), ty(DType::I64, &[rows]));
    let op = OpKind::CrossEntropy { reduction, ignore_index };
    all.push((op, vec![logits.clone(), labels.clone()]));
    let op = OpKind::CrossEntropyGrad { reduction, ignore_index };
    all.push((op, vec![ty(dtype, &[]), logits.clone(), labels]));
    all.push((OpKind::LogSoftmax { axis: 1 }, vec![logits.clone()]));
    all.push((OpKind::SoftmaxGrad { axis: 1 }, vec![logits.clone(), logits]));
}

/// Batch normalisation of images with so many channels of planes of this side.
fn channels(dtype: DType, (channels, side): (u64, u64), all: &mut Vec<Call>) {
    let (x, c) = (ty(dtype, &[64, channels, side, side]), ty(DType::F32, &[channels]));
    all.push((OpKind::BatchNormStats { epsilon: F32(1e-5) }, vec![x.clone()]));
    let c = || c.clone();
    all.push((OpKind::BatchNorm {}, vec![x.clone(), c(), c(), c(), c()]));
    all.push((OpKind::BatchNormGrad {}, vec![x.clone(), x, c(), c(), c()]));
}

/// The pooling of ResNets.
fn pooling(dtype: DType, all: &mut Vec<Call>) {
    let (x, y) = (ty(dtype, &[64, 64, 112, 112]), [64, 64, 56, 56]);
    let (kernel, strides, dilations) = (vec![3, 3], vec![2, 2], vec![1, 1]);
    let op = OpKind::MaxPool { kernel, strides, pads: vec![1; 4], dilations, ceil: false };
    all.push((op, vec![x.clone()]));
    all.push((OpKind::MaxPoolGrad { shape: x.shape }, vec![ty(dtype, &y), ty(DType::I64, &y)]));
}

fn elements(dtype: DType, all: &mut Vec<Call>) {
    let (x, bias) = (ty(dtype, &[16, 384, 1024]), ty(dtype, &[1024]));
    all.push((OpKind::Add {}, vec![x.clone(), x.clone()]));
    all.push((OpKind::Add {}, vec![x.clone(), bias]));
    all.push((OpKind::Relu {}, vec![x.clone()]));
    all.push((OpKind::Gelu { tanh: true }, vec![x]));
    let (w, lr, step) = (ty(DType::F32, &[1024, 4096]), ty(DType::F32, &[]), ty(DType::I64, &[]));
    let op = OpKind::Momentum { alpha: F32(0.9), beta: F32(1.0), l2: F32(0.0), nesterov: false };
    all.push((op, vec![w.clone(), w.clone(), w.clone(), lr.clone()]));
    let op = OpKind::AdamW {
        alpha: F32(0.9),
        beta: F32(0.999),
        epsilon: F32(1e-8),
        weight_decay: F32(0.01),
        bias_correction: true,
        decay_first: true,
        l2: F32(0.0),
    };
    all.push((op, vec![w.clone(), w.clone(), w.clone(), w, lr, step]));
}
