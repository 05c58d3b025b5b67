//! Library calls in plain loops over row-major tensors.
#![allow(clippy::cast_sign_loss, reason = "extents are positive")]

use memc_gpu::{Addend, Convolution, Epilogue, LibraryCall, Pass, Product};
use memc_ir::DType;
use memc_ir::attr::{F32, Scalar};

/// The elements of a tensor as numbers.
pub(crate) fn read(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let number = |element: &[u8]| match Scalar::from_bytes(element, dtype) {
        Some(Scalar::Float(x)) => x.0,
        _ => f32::NAN,
    };
    bytes.chunks(dtype.bytes() as usize).map(number).collect()
}

/// The bytes of numbers, rounded.
pub(crate) fn write(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|&x| Scalar::Float(F32(x)).to_bytes(dtype).unwrap_or_default()).collect()
}

/// The result of a call on these operands.
pub(crate) fn compute<'a>(call: &LibraryCall, operands: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let dtype = match call {
        LibraryCall::Product(p) => p.dtype,
        LibraryCall::Convolution(c) => c.dtype,
    };
    let operands: Vec<Vec<f32>> = operands.map(|bytes| read(dtype, bytes)).collect();
    let results = match call {
        LibraryCall::Product(p) => epilogue(p, product(p, &operands), &operands),
        LibraryCall::Convolution(c) => vec![convolution(c, &operands)],
    };
    results.iter().map(|result| write(dtype, result)).collect()
}

/// The results that are made of a product.
fn epilogue(p: &Product, sums: Vec<f32>, operands: &[Vec<f32>]) -> Vec<Vec<f32>> {
    // By the hyperbolic tangent, as the CPU's kernels have it.
    let inner = |x: f32| 0.797_884_6 * (x + 0.044_715 * x * x * x);
    let gelu = |x: f32| 0.5 * x * (1.0 + inner(x).tanh());
    let slope = |x: f32| {
        let t = inner(x).tanh();
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.797_884_6 * (1.0 + 0.134_145 * x * x)
    };
    let each = |of: &dyn Fn(f32) -> f32| sums.iter().map(|&x| of(x)).collect::<Vec<f32>>();
    match p.epilogue {
        Epilogue::None => vec![sums],
        Epilogue::Relu => vec![each(&|x| x.max(0.0))],
        Epilogue::Gelu { is_kept: false } => vec![each(&gelu)],
        Epilogue::Gelu { is_kept: true } => vec![sums.clone(), each(&gelu)],
        Epilogue::SumA | Epilogue::SumB => {
            let (of, width, at) = match p.epilogue {
                Epilogue::SumA => (&operands[0], p.m, p.trans_a),
                _ => (&operands[1], p.n, !p.trans_b),
            };
            assert!(at, "what is summed over is the outer axis");
            let width = width as usize;
            let sum = |j: usize| of.iter().skip(j).step_by(width).sum();
            vec![sums, (0..width).map(sum).collect()]
        }
        Epilogue::GeluGrad => {
            let at = operands.last().map_or(&[][..], Vec::as_slice);
            vec![sums.iter().zip(at).map(|(dy, &x)| dy * slope(x)).collect()]
        }
    }
}

fn product(p: &Product, operands: &[Vec<f32>]) -> Vec<f32> {
    let [m, n, k, batch] = [p.m, p.n, p.k, p.batch].map(|x| x as usize);
    let mut y = vec![0.0; batch * m * n];
    for z in 0..batch {
        let (a, b) = (&operands[0][z * p.stride_a as usize..], &operands[1][z * p.stride_b as usize..]);
        for i in 0..m {
            for j in 0..n {
                let term = |t: usize| {
                    let x = if p.trans_a { a[t * m + i] } else { a[i * k + t] };
                    x * if p.trans_b { b[j * k + t] } else { b[t * n + j] }
                };
                let at = (z * m + i) * n + j;
                let more = match p.addend {
                    Addend::None => 0.0,
                    Addend::Matrix { beta } => beta * operands[2][at],
                    Addend::Row => operands[2][j],
                };
                y[at] = p.alpha * (0..k).map(term).sum::<f32>() + more;
            }
        }
    }
    y
}

fn convolution(c: &Convolution, operands: &[Vec<f32>]) -> Vec<f32> {
    let [images, channels, h, w] = c.x.map(i64::from);
    let [filters, of_group, kh, kw] = c.w.map(i64::from);
    let [_, _, oh, ow] = c.y.map(i64::from);
    let ([top, left], [down, across], [dh, dw]) =
        (c.pads.map(i64::from), c.strides.map(i64::from), c.dilations.map(i64::from));
    let mut result = match c.pass {
        Pass::Forward { .. } => vec![0.0; (images * filters * oh * ow) as usize],
        Pass::GradInput => vec![0.0; (images * channels * h * w) as usize],
        Pass::GradWeight => vec![0.0; (filters * of_group * kh * kw) as usize],
    };
    let mut each = |n: i64, f: i64, i: i64, j: i64, g: i64, a: i64, b: i64| {
        let (row, col) = (i * down - top + a * dh, j * across - left + b * dw);
        if row < 0 || row >= h || col < 0 || col >= w {
            return;
        }
        let channel = f / (filters / i64::from(c.groups)) * of_group + g;
        let x = (((n * channels + channel) * h + row) * w + col) as usize;
        let tap = (((f * of_group + g) * kh + a) * kw + b) as usize;
        let y = (((n * filters + f) * oh + i) * ow + j) as usize;
        match c.pass {
            Pass::Forward { .. } => result[y] += operands[0][x] * operands[1][tap],
            Pass::GradInput => result[x] += operands[0][y] * operands[1][tap],
            Pass::GradWeight => result[tap] += operands[0][y] * operands[1][x],
        }
    };
    let range = |to: i64| 0..to;
    for n in range(images) {
        for f in range(filters) {
            for (i, j) in range(oh).flat_map(|i| range(ow).map(move |j| (i, j))) {
                for g in range(of_group) {
                    for (a, b) in range(kh).flat_map(|a| range(kw).map(move |b| (a, b))) {
                        each(n, f, i, j, g, a, b);
                    }
                }
            }
        }
    }
    if let Pass::Forward { has_bias: true, is_rectified } = c.pass {
        for (at, y) in result.iter_mut().enumerate() {
            *y += operands[2][at / (oh * ow) as usize % filters as usize];
            *y = if is_rectified { y.max(0.0) } else { *y };
        }
    }
    result
}
