//! Measures kernels on typical training shapes; prints one JSON object per line.
//!
//! `cargo run --release -p memc-kernels --example bench [-- name-prefix]`; threads come from
//! `RAYON_NUM_THREADS`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measuring program")]
#![allow(clippy::disallowed_methods, reason = "it reads the clock")]

use std::time::{Duration, Instant};

use memc_ir::attr::{F32, Reduction};
use memc_ir::{DType, OpKind, TensorType};
use memc_kernels::interp::{AlignedBytes, Tensor, eval};
use memc_kernels::{Call, Operand, execute};

fn tensor(shape: &[u64]) -> Tensor {
    let n = shape.iter().product::<u64>();
    let xs: Vec<f32> =
        (0..n).map(|i| (i.wrapping_mul(2_654_435_761) % 1000) as f32 / 500.0 - 0.999).collect();
    Tensor::f32(shape, &xs).unwrap()
}

/// Nanoseconds that the calling thread has spent on a processor, if the system tells: unlike the clock, they
/// do not count the time of other programs.
fn cpu_nanoseconds() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok()
}

fn bench(filter: &str, name: &str, op: OpKind, operands: &[Tensor]) {
    if !name.starts_with(filter) {
        return;
    }
    let types: Vec<TensorType> = operands.iter().map(|t| t.ty.clone()).collect();
    let refs: Vec<&TensorType> = types.iter().collect();
    let results = op.infer(&refs).unwrap();
    let cost = op.cost(&refs, &results.iter().collect::<Vec<_>>());
    let call = Call { op: &op, operand_types: &types, result_types: &results };
    let mut workspace = AlignedBytes::zeroed(call.check().unwrap() as usize);
    let bytes: Vec<Operand> = operands.iter().map(|t| Operand::Bytes(t.data.bytes())).collect();
    let mut out: Vec<Tensor> = results.iter().map(|t| Tensor::zeros(t.clone()).unwrap()).collect();
    let mut out: Vec<&mut [u8]> = out.iter_mut().map(|t| t.data.bytes_mut()).collect();
    let (mut best, begin) = (Duration::MAX, Instant::now());
    let mut runs = 0;
    let busy = cpu_nanoseconds();
    while runs < 5 || begin.elapsed() < Duration::from_millis(300) {
        let start = Instant::now();
        execute(&call, &bytes, &mut out, workspace.bytes_mut()).unwrap();
        best = best.min(start.elapsed());
        runs += 1;
    }
    let busy = cpu_nanoseconds().zip(busy).map(|(end, begin)| (end - begin) as f64 / 1e3 / f64::from(runs));
    let seconds = best.as_secs_f64();
    println!(
        "{{\"kernel\": \"{name}\", \"microseconds\": {:.1}, \"gflops\": {:.2}, \"gbytes\": {:.2}, \
         \"workspace\": {}, \"mean_cpu_microseconds\": {:.1}}}",
        seconds * 1e6,
        cost.flops as f64 / seconds / 1e9,
        (cost.bytes_read + cost.bytes_written) as f64 / seconds / 1e9,
        cost.workspace,
        busy.unwrap_or(f64::NAN)
    );
}

/// Forward and both gradients of `k` x `k` convolution with "same" padding.
fn convolution(filter: &str, n: u64, c: u64, m: u64, size: u64, k: u64, stride: u64) {
    grouped(filter, [n, c, m, 1], size, k, stride);
}

/// [`convolution`] of `n` images with `c` channels to `m` in `groups` groups.
fn grouped(filter: &str, [n, c, m, groups]: [u64; 4], size: u64, k: u64, stride: u64) {
    let (strides, pads, dilations) = (vec![stride; 2], vec![k / 2; 4], vec![1; 2]);
    let g = groups as i64;
    let (x, w) = (tensor(&[n, c, size, size]), tensor(&[m, c / groups, k, k]));
    let (s, p, d) = (strides.clone(), pads.clone(), dilations.clone());
    let conv = OpKind::Conv { strides: s, pads: p, dilations: d, groups: g };
    let dy = tensor(&conv.infer(&[&x.ty, &w.ty]).unwrap()[0].shape);
    let depth = if groups > 1 { "_depthwise" } else { "" };
    let name = format!("{c}to{m}_{k}x{k}_s{stride}_{size}_b{n}{depth}");
    bench(filter, &format!("conv_{name}"), conv, &[x.clone(), w.clone()]);
    let (st, p, d) = (strides.clone(), pads.clone(), dilations.clone());
    let op = OpKind::ConvGradInput { strides: st, pads: p, dilations: d, groups: g, size: vec![size; 2] };
    bench(filter, &format!("conv_grad_input_{name}"), op, &[dy.clone(), w]);
    let op = OpKind::ConvGradWeight { strides, pads, dilations, groups: g, kernel: vec![k; 2] };
    bench(filter, &format!("conv_grad_weight_{name}"), op, &[dy, x]);
}

fn one_cast(x: &Tensor, to: DType) -> Tensor {
    eval(&OpKind::Cast { to }, &[x]).unwrap().remove(0)
}

fn main() {
    // On a thread of the pool, so that its processor time is the kernel's when there is one thread.
    rayon::scope(|_| run());
}

fn run() {
    let filter = &std::env::args().nth(1).unwrap_or_default();
    products(filter);
    images(filter);
    tokens(filter);
}

/// Matrix products and convolutions.
fn products(filter: &str) {
    let one = F32(1.0);
    for (m, n, k) in [(512, 512, 512), (1024, 1024, 1024), (1024, 3072, 768), (8, 1000, 512), (64, 64, 64)] {
        let (a, b) = (tensor(&[m, k]), tensor(&[k, n]));
        let op = OpKind::MatMul { trans_a: false, trans_b: false, alpha: one };
        bench(filter, &format!("matmul_{m}x{n}x{k}"), op, &[a, b]);
    }
    let op = OpKind::MatMul { trans_a: false, trans_b: true, alpha: one };
    bench(filter, "matmul_attention", op, &[tensor(&[8, 12, 128, 64]), tensor(&[8, 12, 128, 64])]);
    convolution(filter, 8, 64, 64, 56, 3, 1);
    convolution(filter, 8, 256, 256, 14, 3, 1);
    convolution(filter, 8, 3, 64, 224, 7, 2);
    convolution(filter, 8, 256, 64, 56, 1, 1);
    for (c, m, size, stride) in
        [(3, 8, 32, 1), (8, 8, 32, 1), (16, 16, 16, 1), (16, 32, 16, 2), (64, 64, 4, 1)]
    {
        convolution(filter, 4, c, m, size, 3, stride);
    }
    for batch in [1, 2] {
        convolution(filter, batch, 64, 64, 56, 3, 1);
        convolution(filter, batch, 512, 512, 7, 3, 1);
        convolution(filter, batch, 256, 64, 56, 1, 1);
    }
    for (c, size, stride) in [(32, 112, 1), (96, 112, 2), (144, 56, 1), (960, 7, 1)] {
        grouped(filter, [8, c, c, c], size, 3, stride);
    }
    let (a, b) = (tensor(&[512, 512]), tensor(&[512, 512]));
    let pair = [one_cast(&a, DType::BF16), one_cast(&b, DType::BF16)];
    let op = OpKind::MatMul { trans_a: false, trans_b: false, alpha: one };
    bench(filter, "matmul_bf16_512x512x512", op, &pair);
}

/// Ops on a batch of images.
fn images(filter: &str) {
    let x = tensor(&[8, 64, 56, 56]);
    let half = one_cast(&x, DType::BF16);
    bench(filter, "add_bf16", OpKind::Add {}, &[half.clone(), half.clone()]);
    bench(filter, "gelu_bf16", OpKind::Gelu { tanh: false }, std::slice::from_ref(&half));
    bench(filter, "cast_bf16", OpKind::Cast { to: DType::BF16 }, std::slice::from_ref(&x));
    bench(filter, "cast_f16", OpKind::Cast { to: DType::F16 }, std::slice::from_ref(&x));
    let step = Tensor::i64(&[], &[1]).unwrap();
    let dropout = OpKind::Dropout { ratio: F32(0.1), seed: 1, stream: 2 };
    bench(filter, "dropout", dropout, &[x.clone(), step.clone()]);
    let (seed, stream, shape) = (1, 2, x.ty.shape.clone());
    let normal = OpKind::RandomNormal { seed, stream, shape, mean: F32(0.0), scale: F32(1.0) };
    bench(filter, "random_normal", normal, &[step]);
    let same = [x.clone(), x.clone()];
    let per_channel = || tensor(&[64]);
    bench(filter, "add", OpKind::Add {}, &same);
    bench(filter, "add_bias", OpKind::Add {}, &[x.clone(), tensor(&[64, 1, 1])]);
    bench(filter, "relu", OpKind::Relu {}, &same[..1]);
    bench(filter, "relu_grad", OpKind::ReluGrad {}, &same);
    for (name, op) in [
        ("exp", OpKind::Exp {}),
        ("tanh", OpKind::Tanh {}),
        ("sigmoid", OpKind::Sigmoid {}),
        ("gelu", OpKind::Gelu { tanh: false }),
        ("gelu_tanh", OpKind::Gelu { tanh: true }),
        ("batch_norm_stats", OpKind::BatchNormStats { epsilon: F32(1e-5) }),
        ("sum_squares", OpKind::SumSquares {}),
        ("reduce_sum_channels", OpKind::ReduceSum { axes: vec![0, 2, 3], keepdims: false }),
        ("transpose_nhwc", OpKind::Transpose { perm: vec![0, 2, 3, 1] }),
    ] {
        bench(filter, name, op, &same[..1]);
    }
    bench(filter, "gelu_grad", OpKind::GeluGrad { tanh: false }, &same);
    let norm = [x.clone(), per_channel(), per_channel(), per_channel(), per_channel()];
    bench(filter, "batch_norm", OpKind::BatchNorm {}, &norm);
    let norm = [x.clone(), x.clone(), per_channel(), per_channel(), per_channel()];
    bench(filter, "batch_norm_grad", OpKind::BatchNormGrad {}, &norm);
    let (kernel, strides, pads, dilations) = (vec![3; 2], vec![2; 2], vec![1; 4], vec![1; 2]);
    let op = OpKind::MaxPool { kernel, strides, pads, dilations, ceil: false };
    bench(filter, "max_pool", op, &same[..1]);
}

/// Ops on a batch of token vectors, and an optimizer update.
fn tokens(filter: &str) {
    let (rows, row) = (tensor(&[1024, 768]), tensor(&[768]));
    let stat = tensor(&[1024, 1]);
    let op = OpKind::LayerNorm { axis: 1, epsilon: F32(1e-5) };
    bench(filter, "layer_norm", op, &[rows.clone(), row.clone(), row.clone()]);
    let operands = [rows.clone(), rows.clone(), row, stat.clone(), stat];
    bench(filter, "layer_norm_grad", OpKind::LayerNormGrad { axis: 1 }, &operands);
    let scores = tensor(&[8, 12, 128, 128]);
    bench(filter, "softmax", OpKind::Softmax { axis: 3 }, std::slice::from_ref(&scores));
    bench(filter, "softmax_grad", OpKind::SoftmaxGrad { axis: 3 }, &[scores.clone(), scores]);
    bench(
        filter,
        "reduce_sum_rows",
        OpKind::ReduceSum { axes: vec![0], keepdims: false },
        std::slice::from_ref(&rows),
    );
    bench(
        filter,
        "transpose_heads",
        OpKind::Transpose { perm: vec![0, 2, 1, 3] },
        &[tensor(&[8, 128, 12, 64])],
    );
    let labels = Tensor::i64(&[1024], &(0..1024).map(|i| i * 7 % 768).collect::<Vec<_>>()).unwrap();
    let op = OpKind::CrossEntropy { reduction: Reduction::Mean, ignore_index: -100 };
    bench(filter, "cross_entropy", op, &[rows.clone(), labels.clone()]);
    bench(filter, "gather", OpKind::Gather { axis: 0 }, &[rows.clone(), labels.clone()]);
    bench(filter, "gather_grad", OpKind::GatherGrad { axis: 0, dim: 30522 }, &[labels, rows]);
    let w = tensor(&[1 << 20]);
    let (lr, step) = (tensor(&[1]), Tensor::zeros(TensorType::new(DType::I64, [1])).unwrap());
    let (alpha, beta, epsilon, weight_decay) = (F32(0.9), F32(0.999), F32(1e-6), F32(0.01));
    let (l2, bias_correction, decay_first) = (F32(0.0), false, false);
    let op = OpKind::AdamW { alpha, beta, epsilon, weight_decay, bias_correction, decay_first, l2 };
    bench(
        filter,
        "adamw",
        op.clone(),
        &[w.clone(), w.clone(), w.clone(), w.clone(), lr.clone(), step.clone()],
    );
    let vanishing = Tensor::f32(&[1 << 20], &[1e-20; 1 << 20]).unwrap();
    bench(filter, "adamw_vanishing", op, &[w, vanishing.clone(), vanishing.clone(), vanishing, lr, step]);
}
