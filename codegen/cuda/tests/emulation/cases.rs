//! Random shapes at which kernels change their form: several blocks and parts, ends that are no multiples,
//! empty axes.

use memc_ir::attr::{F32, Reduction, ScatterMode};
use memc_ir::{DType, OpKind};

use memc_kernels::interp::Tensor;

use crate::common::{Random, Sample, chains, norms, samples};

fn push(all: &mut Vec<Sample>, op: OpKind, operands: Vec<Tensor>) {
    all.push(Sample { op, operands });
}

/// The samples of all ops at several seeds, and those below; without those whose op refuses empty operands.
pub(crate) fn all() -> Vec<Sample> {
    let mut all: Vec<Sample> = [0, 1, 3].into_iter().flat_map(samples).collect();
    all.extend(more());
    all.retain(|s| s.op.infer(&s.operands.iter().map(|t| &t.ty).collect::<Vec<_>>()).is_ok());
    all
}

fn more() -> Vec<Sample> {
    let (r, mut all) = (&mut Random::new(5), Vec::new());
    for _ in 0..2 {
        elementwise(r, &mut all);
        fours(r, &mut all);
        rows(r, &mut all);
        many_rows(r, &mut all);
        products(r, &mut all);
        images(r, &mut all);
        indices(r, &mut all);
    }
    long_rows(r, &mut all);
    empty(r, &mut all);
    wrong_indices(r, &mut all);
    all.extend((0..CHAINS).map(|i| chains::random(r, i % 4 > 0)));
    all.extend((0..NORMS).map(|_| norms::random(r)));
    all
}

/// Random fused ops.
const CHAINS: usize = 120;
/// Random normalisations with steps.
const NORMS: usize = 60;

/// An extent between `low` and `high`, seldom a multiple of anything.
fn extent(r: &mut Random, low: u64, high: u64) -> u64 {
    low + r.below(high - low)
}

fn elementwise(r: &mut Random, all: &mut Vec<Sample>) {
    let (a, b, c) = (extent(r, 2, 9), extent(r, 2, 70), extent(r, 2, 40));
    for dtype in [DType::F32, DType::BF16, DType::I64] {
        let (x, y) = (r.tensor(dtype, &[a, 1, c]), r.tensor(dtype, &[b, 1]));
        push(all, OpKind::Mul {}, vec![x, y]);
        let (cond, x, y) =
            (r.tensor(DType::Bool, &[b, c]), r.tensor(dtype, &[a, 1, 1]), r.tensor(dtype, &[c]));
        push(all, OpKind::Select {}, vec![cond, x, y]);
    }
    for from in DType::ALL {
        for to in DType::ALL {
            let x = r.tensor(from, &[a, c]);
            push(all, OpKind::Cast { to }, vec![x]);
        }
    }
    for perm in [vec![1, 0, 2], vec![2, 1, 0], vec![0, 2, 1]] {
        let x = r.f32(&[a, b, c]);
        push(all, OpKind::Transpose { perm }, vec![x]);
    }
}

/// Innermost axes of which a thread makes four elements at a time.
fn fours(r: &mut Random, all: &mut Vec<Sample>) {
    let (a, b) = (extent(r, 2, 9), 4 * extent(r, 2, 70));
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64, DType::I8, DType::U8] {
        for shape in [vec![a, 3, b], vec![b], vec![a, 1, 1], vec![3, 1], vec![3, b]] {
            let (x, y) = (r.tensor(dtype, &[a, 3, b]), r.tensor(dtype, &shape));
            push(all, OpKind::Max {}, vec![x.clone(), y.clone()]);
            push(all, OpKind::Less {}, vec![y, x]);
        }
    }
    let mut c = || r.positive(&[3]);
    let [scale, bias, mean, inv_std] = [c(), c(), c(), c()];
    let x = r.f32(&[a, 3, b]);
    push(all, OpKind::BatchNorm {}, vec![x.clone(), scale, bias, mean, inv_std]);
    let (w, v, lr) = (r.f32(&[a, 3, b]), r.f32(&[a, 3, b]), r.positive(&[1]));
    let op = OpKind::Momentum { alpha: F32(0.9), beta: F32(0.5), l2: F32(0.01), nesterov: true };
    push(all, op, vec![w, x, v, lr]);
}

fn rows(r: &mut Random, all: &mut Vec<Sample>) {
    let (a, b, c) = (extent(r, 2, 20), extent(r, 30, 90), extent(r, 130, 700));
    for dtype in [DType::F32, DType::F16, DType::I32, DType::I8] {
        for axes in [vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![1, 2], vec![0, 1, 2]] {
            let x = r.tensor(dtype, &[a, b, 11]);
            push(all, OpKind::ReduceSum { axes: axes.clone(), keepdims: false }, vec![x.clone()]);
            push(all, OpKind::ReduceMax { axes, keepdims: true }, vec![x]);
        }
        let x = r.tensor(dtype, &[2, 7 * c]);
        push(all, OpKind::ReduceMean { axes: vec![1], keepdims: false }, vec![x.clone()]);
        let x = r.tensor(dtype, &[5 * c, 3]);
        push(all, OpKind::ReduceMean { axes: vec![0], keepdims: false }, vec![x]);
    }
    let x = r.f32(&[8000 + c]);
    push(all, OpKind::SumSquares {}, vec![x]);
    for (shape, axis) in [([a, 3, c], 2), ([a, c, 3], 1), ([c, 2, 2], 0)] {
        let (x, dy) = (r.f32(&shape), r.f32(&shape));
        push(all, OpKind::Softmax { axis }, vec![x.clone()]);
        push(all, OpKind::LogSoftmax { axis }, vec![x.clone()]);
        push(all, OpKind::SoftmaxGrad { axis }, vec![dy, x]);
    }
    let (x, dy, scale, bias) = (r.f32(&[b, c]), r.f32(&[b, c]), r.positive(&[c]), r.f32(&[c]));
    push(all, OpKind::LayerNorm { axis: 1, epsilon: F32(1e-5) }, vec![x.clone(), scale.clone(), bias]);
    let (mean, inv_std) = (r.f32(&[b, 1]), r.positive(&[b, 1]));
    push(all, OpKind::LayerNormGrad { axis: 1 }, vec![dy, x, scale, mean, inv_std]);
    let (x, dy, scale) = (r.f32(&[700 + b, 5]), r.f32(&[700 + b, 5]), r.positive(&[5]));
    let (mean, inv_std) = (r.f32(&[700 + b, 1]), r.positive(&[700 + b, 1]));
    push(all, OpKind::LayerNormGrad { axis: 1 }, vec![dy, x, scale, mean, inv_std]);
    for reduction in [Reduction::Mean, Reduction::Sum] {
        let (logits, labels) = (r.f32(&[b, c]), r.indices(&[b], -1, c as i64));
        let op = OpKind::CrossEntropy { reduction, ignore_index: -1 };
        push(all, op, vec![logits.clone(), labels.clone()]);
        let op = OpKind::CrossEntropyGrad { reduction, ignore_index: -1 };
        let dloss = r.f32(&[]);
        push(all, op, vec![dloss, logits, labels]);
    }
}

/// Rows that are taken by warps, or by some lanes of one.
fn many_rows(r: &mut Random, all: &mut Vec<Sample>) {
    let (rows, dtype) = (extent(r, 1024, 1100), [DType::F32, DType::BF16][r.below(2) as usize]);
    for n in [extent(r, 1, 9), extent(r, 33, 70), 8 * extent(r, 5, 15)] {
        for axes in [vec![1], vec![1, 2]] {
            let x = r.tensor(dtype, &[rows, 1, n]);
            push(all, OpKind::ReduceSum { axes: axes.clone(), keepdims: false }, vec![x.clone()]);
            push(all, OpKind::ReduceMax { axes, keepdims: true }, vec![x]);
        }
        let (x, dy) = (r.tensor(dtype, &[rows, n]), r.tensor(dtype, &[rows, n]));
        push(all, OpKind::Softmax { axis: 1 }, vec![x.clone()]);
        push(all, OpKind::LogSoftmax { axis: 1 }, vec![x.clone()]);
        push(all, OpKind::SoftmaxGrad { axis: 1 }, vec![dy.clone(), x.clone()]);
        let (reduction, ignore_index, labels) = (Reduction::Mean, -1, r.indices(&[rows], -1, n as i64));
        push(all, OpKind::CrossEntropy { reduction, ignore_index }, vec![x.clone(), labels]);
        let (scale, bias) = (r.positive(&[n]), r.f32(&[n]));
        let op = OpKind::LayerNorm { axis: 1, epsilon: F32(1e-5) };
        push(all, op, vec![x.clone(), scale.clone(), bias]);
        let (mean, inv_std) = (r.f32(&[rows, 1]), r.positive(&[rows, 1]));
        push(all, OpKind::LayerNormGrad { axis: 1 }, vec![dy, x, scale, mean, inv_std]);
    }
}

/// Rows that are cut into parts, and sums over many losses.
fn long_rows(r: &mut Random, all: &mut Vec<Sample>) {
    for dtype in [DType::F32, DType::BF16] {
        for n in [extent(r, 8192, 14_000), 8 * extent(r, 1030, 2100)] {
            let (x, dy) = (r.tensor(dtype, &[2, n]), r.tensor(dtype, &[2, n]));
            push(all, OpKind::Softmax { axis: 1 }, vec![x.clone()]);
            push(all, OpKind::LogSoftmax { axis: 1 }, vec![x.clone()]);
            push(all, OpKind::SoftmaxGrad { axis: 1 }, vec![dy, x.clone()]);
            for (reduction, low) in [(Reduction::Mean, n as i64 - 20), (Reduction::None, -1)] {
                let labels = r.indices(&[2], low, n as i64);
                let op = OpKind::CrossEntropy { reduction, ignore_index: -1 };
                push(all, op, vec![x.clone(), labels]);
            }
        }
    }
    let positions = extent(r, 17_000, 30_000);
    for reduction in [Reduction::Mean, Reduction::Sum] {
        let (logits, labels) = (r.f32(&[1, 3, positions]), r.indices(&[1, positions], -1, 3));
        let op = OpKind::CrossEntropy { reduction, ignore_index: -1 };
        push(all, op, vec![logits.clone(), labels.clone()]);
        let op = OpKind::CrossEntropyGrad { reduction, ignore_index: -1 };
        push(all, op, vec![r.f32(&[]), logits, labels]);
    }
}

fn products(r: &mut Random, all: &mut Vec<Sample>) {
    for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let (m, n, k) = (extent(r, 1, 140), extent(r, 1, 140), extent(r, 1, 50));
        let (a, b) = (if trans_a { [k, m] } else { [m, k] }, if trans_b { [n, k] } else { [k, n] });
        let (alpha, beta) = (F32(0.5), F32(-1.5));
        let (x, y) = (r.f32(&[&[3, 1], &a[..]].concat()), r.f32(&[&[2], &b[..]].concat()));
        push(all, OpKind::MatMul { trans_a, trans_b, alpha }, vec![x, y]);
        let (x, y, c) = (r.f32(&a), r.f32(&b), r.f32(&[m, 1]));
        push(all, OpKind::Gemm { trans_a, trans_b, alpha, beta }, vec![x, y, c]);
        // Sums in one part and in several.
        for k in [k, extent(r, 300, 900)] {
            let (m, n, sum_b) = (extent(r, 1, 70), extent(r, 1, 70), r.below(2) == 1);
            let (a, b) = (if trans_a { [k, m] } else { [m, k] }, if trans_b { [n, k] } else { [k, n] });
            let dtype = [DType::F32, DType::F32, DType::BF16][r.below(3) as usize];
            let (x, y) = (r.tensor(dtype, &a), r.tensor(dtype, &b));
            push(all, OpKind::MatMulBiasGrad { trans_a, trans_b, alpha, sum_b }, vec![x, y]);
        }
    }
}

fn images(r: &mut Random, all: &mut Vec<Sample>) {
    let (h, w) = (extent(r, 7, 14), extent(r, 7, 14));
    for (channels, m, groups) in [(9, 10, 1), (18, 20, 2), (6, 6, 6), (4, 8, 4), (16, 2, 2)] {
        let strides = vec![1 + r.below(2), 1 + r.below(2)];
        let dilations = vec![1 + r.below(2), 1 + r.below(2)];
        let pads = vec![r.below(3), r.below(3), r.below(3), r.below(3)];
        let (x, weight) = (r.f32(&[3, channels, h, w]), r.f32(&[m, channels / groups, 3, 2]));
        let groups = groups as i64;
        let conv = OpKind::Conv {
            strides: strides.clone(),
            pads: pads.clone(),
            dilations: dilations.clone(),
            groups,
        };
        let Ok(types) = conv.infer(&[&x.ty, &weight.ty]) else { continue };
        let dy = r.f32(&types[0].shape);
        push(all, conv, vec![x.clone(), weight.clone()]);
        let (s, p, d) = (strides.clone(), pads.clone(), dilations.clone());
        let op = OpKind::ConvGradInput { strides: s, pads: p, dilations: d, groups, size: vec![h, w] };
        push(all, op, vec![dy.clone(), weight]);
        let op = OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel: vec![3, 2] };
        push(all, op, vec![dy, x]);
    }
    for ceil in [false, true] {
        let (kernel, strides) = (vec![3, 2 + r.below(2)], vec![1 + r.below(3), 1 + r.below(3)]);
        let (pads, dilations) = (vec![r.below(3), 1, r.below(3), 0], vec![1 + r.below(2), 1]);
        let x = r.f32(&[2, 3, h, w]);
        let (k, s, p) = (kernel.clone(), strides.clone(), pads.clone());
        let pool = OpKind::MaxPool { kernel: k, strides: s, pads: p, dilations: dilations.clone(), ceil };
        let Ok(types) = pool.infer(&[&x.ty]) else { continue };
        push(all, pool, vec![x.clone()]);
        let dy = r.f32(&types[0].shape);
        let (k, s, p) = (kernel.clone(), strides.clone(), pads.clone());
        push(
            all,
            OpKind::MaxPoolGradInput { kernel: k, strides: s, pads: p, dilations, ceil },
            vec![dy, x.clone()],
        );
        let average = OpKind::AveragePool { kernel, strides, pads, ceil, count_pad: ceil };
        let Ok(types) = average.infer(&[&x.ty]) else { continue };
        let dy = r.f32(&types[0].shape);
        if let OpKind::AveragePool { kernel, strides, pads, ceil, count_pad } = average.clone() {
            let shape = x.ty.shape.clone();
            let op = OpKind::AveragePoolGrad { kernel, strides, pads, ceil, count_pad, shape };
            push(all, op, vec![dy]);
        }
        push(all, average, vec![x]);
    }
    let (x, dy) = (r.f32(&[5, 3, h, w]), r.f32(&[5, 3, h, w]));
    push(all, OpKind::BatchNormStats { epsilon: F32(1e-5) }, vec![x.clone()]);
    let [scale, mean, inv_std] = [(); 3].map(|()| r.positive(&[3]));
    push(all, OpKind::BatchNormGrad {}, vec![dy, x, scale, mean, inv_std]);
}

fn indices(r: &mut Random, all: &mut Vec<Sample>) {
    let (rows, width, count) = (extent(r, 3, 30), extent(r, 1, 300), extent(r, 200, 600));
    let (data, index) = (r.f32(&[rows, width]), r.indices(&[count], -(rows as i64), rows as i64));
    push(all, OpKind::Gather { axis: 0 }, vec![data, index.clone()]);
    let dy = r.f32(&[count, width]);
    push(all, OpKind::GatherGrad { axis: 0, dim: rows as i64 }, vec![index, dy]);
    // Many indices: most rows are named by few of them, some by none, one by more than are sorted.
    for (dtype, width) in [(DType::F32, width), (DType::F32, 4 * rows), (DType::F16, 16)] {
        let (rows, few, often) = (extent(r, 300, 400), extent(r, 900, 1500), extent(r, 280, 500));
        let count = few + often;
        let any = |r: &mut Random| r.below(2 * rows) as i64 - rows as i64;
        let index: Vec<i64> = (0..count).map(|j| if j % 3 == 0 { 7 } else { any(r) }).collect();
        let index = Tensor::i64(&[count], &index).unwrap();
        let dy = r.tensor(dtype, &[2, count, width]);
        push(all, OpKind::GatherGrad { axis: 1, dim: rows as i64 }, vec![index, dy]);
    }
    for dtype in [DType::F32, DType::F16, DType::I64] {
        let x = r.tensor(dtype, &[rows, width.min(70), 3]);
        push(all, OpKind::TopK { axis: 1, k: (width.min(70) / 2) as i64, smallest: false }, vec![x.clone()]);
        push(all, OpKind::TopK { axis: 2, k: 2, smallest: true }, vec![x]);
    }
    for mode in ScatterMode::ALL.iter().copied() {
        for dtype in [DType::F32, DType::F16] {
            let (data, index) =
                (r.tensor(dtype, &[rows, 5]), r.indices(&[count, 4], -(rows as i64), rows as i64));
            let updates = r.tensor(dtype, &[count, 4]);
            push(all, OpKind::ScatterElements { axis: 0, mode }, vec![data.clone(), index, updates]);
            let (index, updates) = (r.indices(&[count, 1], 0, rows as i64), r.tensor(dtype, &[count, 5]));
            push(all, OpKind::ScatterNd { mode, batch_dims: 0 }, vec![data, index, updates]);
        }
    }
}

/// Axes of no elements, where a result has some all the same.
fn empty(r: &mut Random, all: &mut Vec<Sample>) {
    for dtype in [DType::F32, DType::I64, DType::U8] {
        for axes in [vec![1], vec![0]] {
            let x = r.tensor(dtype, &[3, 0]);
            push(all, OpKind::ReduceSum { axes: axes.clone(), keepdims: false }, vec![x.clone()]);
            push(all, OpKind::ReduceMax { axes, keepdims: false }, vec![x]);
        }
    }
    let (trans_a, trans_b, alpha) = (false, false, F32(1.0));
    let (x, y) = (r.f32(&[3, 0]), r.f32(&[0, 5]));
    push(all, OpKind::MatMul { trans_a, trans_b, alpha }, vec![x.clone(), y.clone()]);
    let c = r.f32(&[5]);
    push(all, OpKind::Gemm { trans_a, trans_b, alpha, beta: F32(2.0) }, vec![x.clone(), y.clone(), c]);
    push(all, OpKind::MatMulBiasGrad { trans_a, trans_b, alpha, sum_b: true }, vec![x, y]);
    let (index, dy) = (r.indices(&[0], 0, 1), r.f32(&[0, 7]));
    push(all, OpKind::GatherGrad { axis: 0, dim: 4 }, vec![index, dy]);
}

/// Indices of which some are out of range, for every op that takes them.
fn wrong_indices(r: &mut Random, all: &mut Vec<Sample>) {
    let mode = ScatterMode::Add;
    // Most are legal, so that the first that is not stands anywhere.
    let (x, tuples) = (r.f32(&[6, 9]), r.indices(&[40, 2], -7, 8));
    push(all, OpKind::Gather { axis: 0 }, vec![x.clone(), r.indices(&[700], -7, 8)]);
    push(all, OpKind::GatherGrad { axis: 0, dim: 6 }, vec![r.indices(&[50], -7, 8), r.f32(&[50, 9])]);
    push(all, OpKind::GatherElements { axis: 1 }, vec![x.clone(), r.indices(&[6, 30], -10, 11)]);
    let updates = r.f32(&[6, 30]);
    let op = OpKind::ScatterElements { axis: 1, mode };
    push(all, op, vec![x.clone(), r.indices(&[6, 30], -10, 11), updates]);
    push(all, OpKind::GatherNd { batch_dims: 0 }, vec![x.clone(), tuples.clone()]);
    let updates = r.f32(&[40]);
    push(all, OpKind::ScatterNd { mode, batch_dims: 0 }, vec![x.clone(), tuples, updates]);
    let (reduction, ignore_index, labels) = (Reduction::Mean, -1, r.indices(&[6], -9, 20));
    push(all, OpKind::CrossEntropy { reduction, ignore_index }, vec![x.clone(), labels.clone()]);
    let dloss = r.f32(&[]);
    push(all, OpKind::CrossEntropyGrad { reduction, ignore_index }, vec![dloss, x, labels]);
    let (dy, indices) = (r.f32(&[2, 3, 2, 2]), r.indices(&[2, 3, 2, 2], -30, 120));
    push(all, OpKind::MaxPoolGrad { shape: vec![2, 3, 4, 4] }, vec![dy, indices]);
}
