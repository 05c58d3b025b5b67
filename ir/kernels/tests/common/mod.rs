//! Calls that cover every op of the table, and running them on chosen bytes.
#![allow(dead_code, reason = "every test program uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

pub(crate) mod chains;
pub(crate) mod naive;
pub(crate) mod norms;

use memc_ir::attr::{F32, Reduction, Scalar, ScatterMode};
use memc_ir::{DType, OpKind, TensorType};
use memc_kernels::interp::{AlignedBytes, Tensor};
use memc_kernels::{Call, KernelError, Operand, execute};

/// An op and operands for it.
pub(crate) struct Sample {
    pub(crate) op: OpKind,
    pub(crate) operands: Vec<Tensor>,
}

/// A generator of reproducible numbers (xorshift64*, Vigna 2016).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    /// Uniform in -2..2.
    pub(crate) fn float(&mut self) -> f32 {
        (self.below(1 << 24) as f32 / (1 << 22) as f32) - 2.0
    }
    pub(crate) fn tensor(&mut self, dtype: DType, shape: &[u64]) -> Tensor {
        let ty = TensorType::new(dtype, shape);
        let mut tensor = Tensor::zeros(ty).unwrap();
        let width = dtype.bytes() as usize;
        for element in tensor.data.bytes_mut().chunks_exact_mut(width) {
            let scalar = match dtype {
                DType::F32 | DType::F16 | DType::BF16 => Scalar::Float(F32(self.float())),
                DType::U8 => Scalar::Int(self.below(21) as i64),
                DType::Bool => Scalar::Int(self.below(2) as i64),
                _ => Scalar::Int(self.below(21) as i64 - 10),
            };
            element.copy_from_slice(&scalar.to_bytes(dtype).unwrap());
        }
        tensor
    }
    pub(crate) fn f32(&mut self, shape: &[u64]) -> Tensor {
        self.tensor(DType::F32, shape)
    }
    /// Floats that are whole numbers from -4 to 4: sums of up to a million of their products are exact in any
    /// order.
    pub(crate) fn whole(&mut self, shape: &[u64]) -> Tensor {
        let ty = TensorType::new(DType::F32, shape);
        let xs: Vec<f32> = (0..ty.numel()).map(|_| self.below(9) as f32 - 4.0).collect();
        Tensor::from_slice(ty, &xs).unwrap()
    }
    /// Positive floats.
    pub(crate) fn positive(&mut self, shape: &[u64]) -> Tensor {
        let ty = TensorType::new(DType::F32, shape);
        let xs: Vec<f32> = (0..ty.numel()).map(|_| self.float().abs() + 0.1).collect();
        Tensor::from_slice(ty, &xs).unwrap()
    }
    /// Indices in `low..high`.
    pub(crate) fn indices(&mut self, shape: &[u64], low: i64, high: i64) -> Tensor {
        let n = shape.iter().product::<u64>();
        let xs: Vec<i64> = (0..n).map(|_| low + self.below((high - low) as u64) as i64).collect();
        Tensor::i64(shape, &xs).unwrap()
    }
}

/// The type of every result.
pub(crate) fn result_types(sample: &Sample) -> Vec<TensorType> {
    let types: Vec<&TensorType> = sample.operands.iter().map(|t| &t.ty).collect();
    sample.op.infer(&types).unwrap_or_else(|e| panic!("{}: {e}", sample.op.mnemonic()))
}

/// Runs a sample with `shared` in-place pairs (operand, result); every other byte starts out poisoned.
pub(crate) fn run(sample: &Sample, shared: &[(usize, usize)]) -> Result<Vec<Tensor>, KernelError> {
    let results = result_types(sample);
    let types: Vec<TensorType> = sample.operands.iter().map(|t| t.ty.clone()).collect();
    let call = Call { op: &sample.op, operand_types: &types, result_types: &results };
    let mut workspace = AlignedBytes::zeroed(call.check()? as usize);
    workspace.bytes_mut().fill(0xaa);
    let mut out: Vec<Tensor> = results.iter().map(|ty| Tensor::zeros(ty.clone()).unwrap()).collect();
    out.iter_mut().for_each(|t| t.data.bytes_mut().fill(0xaa));
    let mut operands: Vec<Operand> = sample.operands.iter().map(|t| Operand::Bytes(t.data.bytes())).collect();
    for &(i, j) in shared {
        out[j].data.bytes_mut().copy_from_slice(sample.operands[i].data.bytes());
        operands[i] = Operand::Result(j);
    }
    let mut bytes: Vec<&mut [u8]> = out.iter_mut().map(|t| t.data.bytes_mut()).collect();
    execute(&call, &operands, &mut bytes, workspace.bytes_mut())?;
    Ok(out)
}

/// At least one sample of every op. `scale` multiplies the outer extents, so that a large scale crosses the
/// sizes at which work is spread over threads.
pub(crate) fn samples(scale: u64) -> Vec<Sample> {
    let (r, s) = (&mut Random::new(scale), scale);
    let mut all = Vec::new();
    elementwise(r, s, &mut all);
    updates(r, s, &mut all);
    products(r, s, &mut all);
    networks(r, s, &mut all);
    movement(r, s, &mut all);
    randomness(r, s, &mut all);
    all.extend(chains::chosen(r, s));
    all.extend(norms::chosen(r, s));
    let narrow: Vec<Sample> = all.iter().filter_map(narrowed).collect();
    all.extend(narrow);
    all
}

fn push(all: &mut Vec<Sample>, op: OpKind, operands: Vec<Tensor>) {
    all.push(Sample { op, operands });
}

fn elementwise(r: &mut Random, s: u64, all: &mut Vec<Sample>) {
    let shape = [s, 3, 17];
    use OpKind::*;
    for op in [Neg {}, Abs {}, Sign {}, Relu {}] {
        for dtype in [DType::F32, DType::I32, DType::I64, DType::I8, DType::U8] {
            let x = r.tensor(dtype, &shape);
            push(all, op.clone(), vec![x]);
        }
    }
    for op in [Floor {}, StopGradient {}, Ceil {}, Round {}, Atan {}, Sin {}, Cos {}] {
        let x = r.f32(&shape);
        push(all, op, vec![x]);
    }
    for op in [Exp {}, Reciprocal {}, Tanh {}, Sigmoid {}, Erf {}, Gelu { tanh: false }, Gelu { tanh: true }]
    {
        let x = r.f32(&shape);
        push(all, op, vec![x]);
    }
    for op in [Log {}, Sqrt {}] {
        let x = r.positive(&shape);
        push(all, op, vec![x]);
    }
    push(all, Not {}, vec![r.tensor(DType::Bool, &shape)]);
    for (from, to) in [(DType::F32, DType::I64), (DType::Bool, DType::F32), (DType::I32, DType::I32)] {
        push(all, Cast { to }, vec![r.tensor(from, &shape)]);
    }
    for op in [Add {}, Sub {}, Mul {}, Div {}, Pow {}, Min {}, Max {}] {
        for (dtype, b) in [
            (DType::F32, [s, 3, 17]),
            (DType::I32, [1, 3, 1]),
            (DType::I64, [s, 1, 17]),
            (DType::U8, [1, 1, 17]),
            (DType::I8, [s, 3, 1]),
        ] {
            let (a, b) = (r.tensor(dtype, &shape), r.tensor(dtype, &b));
            push(all, op.clone(), vec![a, b]);
        }
        let (a, b) = (r.f32(&[17]), r.f32(&shape));
        push(all, op, vec![a, b]);
    }
    for op in [Equal {}, Less {}, LessEqual {}, Greater {}, GreaterEqual {}] {
        for (dtype, b) in [(DType::I32, [s, 3, 17]), (DType::F32, [s, 3, 1]), (DType::Bool, [s, 1, 17])] {
            let (a, b) = (r.tensor(dtype, &shape), r.tensor(dtype, &b));
            push(all, op.clone(), vec![a, b]);
        }
    }
    for op in [And {}, Or {}] {
        for b in [vec![3, 1], vec![s, 3, 17]] {
            let (a, b) = (r.tensor(DType::Bool, &shape), r.tensor(DType::Bool, &b));
            push(all, op.clone(), vec![a, b]);
        }
    }
    for (dtype, a) in [(DType::F32, vec![s, 3, 17]), (DType::I64, vec![]), (DType::Bool, vec![17])] {
        let (cond, a, b) = (r.tensor(DType::Bool, &[s, 1, 17]), r.tensor(dtype, &a), r.tensor(dtype, &shape));
        push(all, Select {}, vec![cond, a, b]);
    }
    for op in [ReluGrad {}, TanhGrad {}, SigmoidGrad {}, GeluGrad { tanh: false }, GeluGrad { tanh: true }] {
        let (dy, y) = (r.f32(&shape), r.f32(&shape));
        push(all, op, vec![dy, y]);
    }
    push(all, MovingAverage { momentum: F32(0.9), scale: F32(1.25) }, vec![r.f32(&[s]), r.f32(&[s])]);
}

fn updates(r: &mut Random, s: u64, all: &mut Vec<Sample>) {
    let shape = [s, 3, 17];
    use OpKind::*;
    let (w, g, lr) = (r.f32(&shape), r.f32(&shape), r.positive(&[1]));
    push(all, Sgd {}, vec![w.clone(), g.clone(), lr.clone()]);
    let step = || Tensor::i64(&[1], &[3]).unwrap();
    let counters = [(DType::I64, vec![]), (DType::I32, vec![s]), (DType::I64, shape.to_vec())];
    push(all, Increment { by: -3 }, counters.map(|(dtype, shape)| r.tensor(dtype, &shape)).to_vec());
    for (nesterov, operands) in [(false, 4), (true, 5)] {
        let op = Momentum { alpha: F32(0.9), beta: F32(0.5), l2: F32(0.01), nesterov };
        let all_operands = [w.clone(), g.clone(), r.f32(&shape), lr.clone(), step()];
        push(all, op, all_operands[..operands].to_vec());
    }
    for operands in [4, 5] {
        let op = Adagrad { epsilon: F32(1e-6), l2: F32(0.01), decay: F32(0.1) };
        let all_operands = [w.clone(), g.clone(), r.positive(&shape), lr.clone(), step()];
        push(all, op, all_operands[..operands].to_vec());
    }
    for (bias_correction, decay_first, l2) in [(true, false, 0.0), (true, true, 0.02), (false, false, 0.0)] {
        let (m, v) = (r.f32(&shape), r.positive(&shape));
        let op = AdamW {
            alpha: F32(0.9),
            beta: F32(0.999),
            epsilon: F32(1e-6),
            weight_decay: F32(0.01),
            bias_correction,
            decay_first,
            l2: F32(l2),
        };
        push(all, op, vec![w.clone(), g.clone(), m, v, lr.clone(), step()]);
    }
}

fn products(r: &mut Random, s: u64, all: &mut Vec<Sample>) {
    let alpha = F32(0.5);
    let (a, b) = (r.f32(&[s, 1, 5, 9]), r.f32(&[2, 7, 9]));
    push(all, OpKind::MatMul { trans_a: false, trans_b: true, alpha }, vec![a, b]);
    let (a, b) = (r.f32(&[9, 8 * s]), r.f32(&[9, 11]));
    push(all, OpKind::MatMul { trans_a: true, trans_b: false, alpha }, vec![a, b]);
    let (a, b, c) = (r.f32(&[4 * s, 70]), r.f32(&[70, 33]), r.f32(&[33]));
    push(all, OpKind::Gemm { trans_a: false, trans_b: false, alpha, beta: F32(2.0) }, vec![a, b, c]);
    let (a, b, c) = (r.f32(&[4 * s, 70]), r.f32(&[70, 33]), r.f32(&[4 * s, 33]));
    push(all, OpKind::Gemm { trans_a: false, trans_b: false, alpha, beta: F32(-1.0) }, vec![a, b, c]);
    all.extend(chains::bias_grads(r, s));

    let batch = s.min(6);
    for (strides, pads, k, groups) in [
        (vec![1, 1], vec![1, 1, 1, 1], 3, 1),
        (vec![2, 1], vec![0, 1, 2, 0], 3, 2),
        (vec![1, 1], vec![0, 0, 0, 0], 1, 1),
    ] {
        let dilations = vec![1, 1];
        let (x, w, bias) = (r.f32(&[batch, 8, 9, 12]), r.f32(&[6, 8 / groups, k, k]), r.f32(&[6]));
        let g = groups as i64;
        let conv = OpKind::Conv {
            strides: strides.clone(),
            pads: pads.clone(),
            dilations: dilations.clone(),
            groups: g,
        };
        let y = conv.infer(&[&x.ty, &w.ty]).unwrap().remove(0);
        let dy = r.f32(&y.shape);
        push(all, conv.clone(), vec![x.clone(), w.clone()]);
        push(all, conv, vec![x.clone(), w.clone(), bias]);
        let size = vec![9, 12];
        let (st, pa, di) = (strides.clone(), pads.clone(), dilations.clone());
        let op = OpKind::ConvGradInput { strides: st, pads: pa, dilations: di, groups: g, size };
        push(all, op, vec![dy.clone(), w]);
        let op = OpKind::ConvGradWeight { strides, pads, dilations, groups: g, kernel: vec![k, k] };
        push(all, op, vec![dy, x]);
    }
}

fn networks(r: &mut Random, s: u64, all: &mut Vec<Sample>) {
    let (kernel, strides, pads, dilations) = (vec![3, 2], vec![2, 1], vec![1, 0, 1, 1], vec![1, 1]);
    let x = r.f32(&[s, 3, 8, 7]);
    let shape = x.ty.shape.clone();
    let (k, st, p) = (kernel.clone(), strides.clone(), pads.clone());
    let pool = OpKind::MaxPool { kernel: k, strides: st, pads: p, dilations, ceil: false };
    let pooled = pool.infer(&[&x.ty]).unwrap().remove(0);
    let made = run(&Sample { op: pool.clone(), operands: vec![x.clone()] }, &[]).unwrap();
    push(all, pool, vec![x.clone()]);
    push(all, OpKind::MaxPoolGrad { shape: shape.clone() }, vec![r.f32(&pooled.shape), made[1].clone()]);
    let (kernel_, st, p) = (kernel.clone(), strides.clone(), pads.clone());
    let from_input = OpKind::MaxPoolGradInput {
        kernel: kernel_,
        strides: st,
        pads: p,
        dilations: vec![1, 1],
        ceil: false,
    };
    push(all, from_input, vec![r.f32(&pooled.shape), x.clone()]);
    for count_pad in [false, true] {
        let (k, st, p) = (kernel.clone(), strides.clone(), pads.clone());
        let op = OpKind::AveragePool { kernel: k, strides: st, pads: p, ceil: false, count_pad };
        push(all, op, vec![x.clone()]);
        let (k, st, p, shape) = (kernel.clone(), strides.clone(), pads.clone(), shape.clone());
        let op = OpKind::AveragePoolGrad { kernel: k, strides: st, pads: p, ceil: false, count_pad, shape };
        push(all, op, vec![r.f32(&pooled.shape)]);
    }

    let c = |r: &mut Random| r.positive(&[3]);
    push(all, OpKind::BatchNormStats { epsilon: F32(1e-5) }, vec![x.clone()]);
    let operands = vec![x.clone(), c(r), c(r), c(r), c(r)];
    push(all, OpKind::BatchNorm {}, operands);
    let operands = vec![r.f32(&shape), x.clone(), c(r), c(r), c(r)];
    push(all, OpKind::BatchNormGrad {}, operands);

    let (x, row, stat) = (r.f32(&[s, 5, 6]), r.positive(&[5, 6]), r.positive(&[s, 1, 1]));
    let norm = OpKind::LayerNorm { axis: 1, epsilon: F32(1e-5) };
    push(all, norm.clone(), vec![x.clone(), row.clone()]);
    push(all, norm, vec![x.clone(), row.clone(), r.f32(&[5, 6])]);
    let norm = OpKind::LayerNorm { axis: 2, epsilon: F32(1e-5) };
    push(all, norm, vec![x.clone(), r.positive(&[6]), r.f32(&[6])]);
    let operands = vec![r.f32(&[s, 5, 6]), x.clone(), row, stat.clone(), stat];
    push(all, OpKind::LayerNormGrad { axis: 1 }, operands);
    for axis in [0, 1, 2] {
        push(all, OpKind::Softmax { axis }, vec![x.clone()]);
        push(all, OpKind::LogSoftmax { axis }, vec![x.clone()]);
        push(all, OpKind::SoftmaxGrad { axis }, vec![r.f32(&[s, 5, 6]), x.clone()]);
    }
    let (dtypes, axes) =
        ([DType::F32, DType::I32, DType::I64], [vec![], vec![0], vec![2], vec![0, 2], vec![0, 1, 2]]);
    for (i, axes) in axes.into_iter().enumerate() {
        let x = r.tensor(dtypes[i % 3], &[s, 5, 6]);
        push(all, OpKind::ReduceSum { axes: axes.clone(), keepdims: true }, vec![x.clone()]);
        push(all, OpKind::ReduceMean { axes: axes.clone(), keepdims: false }, vec![x.clone()]);
        push(all, OpKind::ReduceMax { axes, keepdims: false }, vec![x]);
    }
    push(all, OpKind::ReduceSum { axes: vec![0, 1, 2], keepdims: false }, vec![x.clone()]);
    push(all, OpKind::SumSquares {}, vec![x]);

    for shape in [vec![s, 5], vec![s, 5, 3]] {
        let (labels, logits) = (r.indices(&[&[s], &shape[2..]].concat(), 0, 5), r.f32(&shape));
        for reduction in [Reduction::Mean, Reduction::None] {
            let op = OpKind::CrossEntropy { reduction, ignore_index: 2 };
            push(all, op, vec![logits.clone(), labels.clone()]);
            let dloss = r.f32(if reduction == Reduction::None { &labels.ty.shape } else { &[] });
            let op = OpKind::CrossEntropyGrad { reduction, ignore_index: 2 };
            push(all, op, vec![dloss, logits.clone(), labels.clone()]);
        }
    }
}

fn movement(r: &mut Random, s: u64, all: &mut Vec<Sample>) {
    for dtype in DType::ALL {
        let x = r.tensor(dtype, &[s, 4, 6]);
        let zero = if dtype.is_float() { Scalar::Float(F32(0.5)) } else { Scalar::Int(1) };
        push(all, OpKind::Reshape { shape: vec![4, 6 * s] }, vec![x.clone()]);
        push(all, OpKind::Copy {}, vec![x.clone()]);
        push(all, OpKind::Transpose { perm: vec![2, 0, 1] }, vec![x.clone()]);
        push(all, OpKind::Broadcast { shape: vec![2, s, 4, 6] }, vec![r.tensor(dtype, &[s, 1, 6])]);
        let (starts, ends, steps) = (vec![0, 3, 5], vec![s as i64, -1, 0], vec![1, -1, -2]);
        push(all, OpKind::Slice { starts, ends, steps }, vec![x.clone()]);
        push(all, OpKind::Concat { axis: 1 }, vec![x.clone(), r.tensor(dtype, &[s, 1, 6]), x.clone()]);
        let (before, after) = (vec![1, 0, 2], vec![0, 2, 1]);
        push(all, OpKind::Pad { before, after, value: zero }, vec![x.clone()]);
        push(all, OpKind::Fill { dtype, shape: vec![s, 30], value: zero }, vec![]);
        push(all, OpKind::Gather { axis: 1 }, vec![x.clone(), r.indices(&[2, 5], -4, 4)]);
        push(all, OpKind::GatherElements { axis: 1 }, vec![x.clone(), r.indices(&[s, 7, 5], -4, 4)]);
        push(all, OpKind::GatherNd { batch_dims: 1 }, vec![x.clone(), r.indices(&[s, 5, 2], -4, 4)]);
        push(
            all,
            OpKind::GatherNd { batch_dims: 0 },
            vec![r.tensor(dtype, &[4, s]), r.indices(&[7, 1], -4, 4)],
        );
        let (indices, updates) = (r.indices(&[s, 3, 6], -4, 4), r.tensor(dtype, &[s, 3, 6]));
        let tuples = 9 * s.min(1);
        let (pairs, rows) = (r.indices(&[tuples, 2], 0, s.min(4) as i64), r.tensor(dtype, &[tuples, 6]));
        for mode in ScatterMode::ALL.iter().copied() {
            if mode != ScatterMode::Replace && dtype == DType::Bool {
                continue;
            }
            let operands = vec![x.clone(), indices.clone(), updates.clone()];
            push(all, OpKind::ScatterElements { axis: 1, mode }, operands);
            let operands = vec![x.clone(), pairs.clone(), rows.clone()];
            push(all, OpKind::ScatterNd { mode, batch_dims: 0 }, operands);
            let operands = vec![x.clone(), r.indices(&[s, 5, 1], -4, 4), r.tensor(dtype, &[s, 5, 6])];
            push(all, OpKind::ScatterNd { mode, batch_dims: 1 }, operands);
        }
    }
    for dtype in [DType::F32, DType::F16, DType::I32, DType::I64, DType::U8] {
        let x = r.tensor(dtype, &[s, 9, 3]);
        push(all, OpKind::TopK { axis: 1, k: 4, smallest: false }, vec![x.clone()]);
        push(all, OpKind::TopK { axis: 2, k: 3, smallest: true }, vec![x]);
    }
    let (indices, dy) = (r.indices(&[2 * s], -5, 5), r.f32(&[2 * s, 7]));
    push(all, OpKind::GatherGrad { axis: 0, dim: 5 }, vec![indices, dy]);
    let (indices, dy) = (r.indices(&[9], -5, 5), r.f32(&[s, 9, 7]));
    push(all, OpKind::GatherGrad { axis: 1, dim: 5 }, vec![indices, dy]);
    let (indices, dy) = (r.indices(&[9 * s.min(1)], 0, 50 * s as i64), r.f32(&[9 * s.min(1), 16]));
    push(all, OpKind::GatherGrad { axis: 0, dim: 50 * s as i64 }, vec![indices, dy]);
}

fn randomness(r: &mut Random, s: u64, all: &mut Vec<Sample>) {
    let (ratio, seed, stream, shape) = (F32(0.25), -7, 3, vec![s, 3, 17]);
    let (x, mask, step) = (r.f32(&shape), r.tensor(DType::Bool, &shape), Tensor::i64(&[1], &[3]).unwrap());
    let key = || vec![step.clone()];
    push(all, OpKind::RandomMask { ratio, seed, stream, shape: shape.clone() }, key());
    push(all, OpKind::MaskScale { scale: F32(1.5) }, vec![x.clone(), mask]);
    push(all, OpKind::Dropout { ratio, seed, stream }, vec![x, step.clone()]);
    let (low, high) = (F32(-1.0), F32(2.0));
    push(all, OpKind::RandomUniform { seed, stream, shape: shape.clone(), low, high }, key());
    push(all, OpKind::RandomNormal { seed, stream, shape, mean: F32(1.0), scale: F32(0.5) }, key());
}

/// The sample with floats of 16 bits, where its op takes them.
fn narrowed(sample: &Sample) -> Option<Sample> {
    let floats = sample.operands.iter().any(|t| t.ty.dtype == DType::F32);
    // Every second op in each type, so that all are not run twice more.
    let to = if sample.op.mnemonic().len().is_multiple_of(2) { DType::F16 } else { DType::BF16 };
    let narrow = |t: &Tensor| match t.ty.dtype {
        DType::F32 => naive::one(OpKind::Cast { to }, &[t]),
        _ => t.clone(),
    };
    let mut operands: Vec<Tensor> = sample.operands.iter().map(narrow).collect();
    // Statistics and learning rates stay wide.
    let wide: &[usize] = match &sample.op {
        OpKind::BatchNorm {} | OpKind::BatchNormGrad {} | OpKind::LayerNormGrad { .. } => &[3, 4],
        OpKind::Sgd {} => &[2],
        OpKind::Momentum { .. } | OpKind::Adagrad { .. } => &[3],
        OpKind::AdamW { .. } => &[4],
        _ => &[],
    };
    wide.iter().for_each(|&i| operands[i] = sample.operands[i].clone());
    let types: Vec<&TensorType> = operands.iter().map(|t| &t.ty).collect();
    // A chain may round to 16 bits more than once.
    let once = !matches!(sample.op, OpKind::Fused { .. } | OpKind::FusedNorm { .. });
    (floats && once && sample.op.infer(&types).is_ok()).then(|| Sample { op: sample.op.clone(), operands })
}
