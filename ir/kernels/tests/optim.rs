//! Optimizer updates against their definitions in double precision, one element at a time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use common::Random;
use common::naive::close;
use memc_ir::OpKind;
use memc_ir::attr::F32;
use memc_kernels::interp::{Tensor, eval};

/// Number of elements of every parameter.
const N: usize = 37;

struct Case {
    w: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    lr: Tensor,
}

impl Case {
    fn new(seed: u64) -> Case {
        let (r, n) = (&mut Random::new(seed), &[N as u64]);
        let lr = Tensor::f32(&[], &[0.125]).unwrap();
        Case { w: r.f32(n), g: r.f32(n), m: r.f32(n), v: r.positive(n), lr }
    }

    /// `f(w, g, m, v, lr)` for every element: one list for each result.
    fn each<const R: usize>(&self, f: impl Fn(f64, f64, f64, f64, f64) -> [f64; R]) -> [Vec<f64>; R] {
        let at = |t: &Tensor, i: usize| f64::from(t.elements::<f32>().unwrap()[i]);
        let mut all = [const { Vec::new() }; R];
        for i in 0..N {
            let results = f(at(&self.w, i), at(&self.g, i), at(&self.m, i), at(&self.v, i), at(&self.lr, 0));
            all.iter_mut().zip(results).for_each(|(all, r)| all.push(r));
        }
        all
    }
}

fn check<const R: usize>(op: &OpKind, operands: &[&Tensor], want: [Vec<f64>; R]) {
    let got = eval(op, operands).unwrap();
    assert_eq!(got.len(), R);
    for (got, want) in got.iter().zip(want) {
        close(got.elements().unwrap(), &want, 1e-6);
    }
}

fn step(n: i64) -> Tensor {
    Tensor::i64(&[], &[n]).unwrap()
}

/// ONNX's Momentum in both modes, and with a factor on the gradient that the first step leaves out.
#[test]
fn momentum_is_that_of_onnx() {
    for (nesterov, number) in
        [(false, None), (true, None), (false, Some(1)), (true, Some(1)), (true, Some(2))]
    {
        let c = Case::new(1);
        let (alpha, beta, l2) = (0.75, 0.5, 0.25);
        let op = OpKind::Momentum { alpha: F32(alpha), beta: F32(beta), l2: F32(l2), nesterov };
        let (alpha, l2) = (f64::from(alpha), f64::from(l2));
        let beta = if number == Some(1) { 1.0 } else { f64::from(beta) };
        let want = c.each(|w, g, m, _, lr| {
            let g = g + l2 * w;
            let m = alpha * m + beta * g;
            [w - lr * if nesterov { g + alpha * m } else { m }, m]
        });
        let number = number.map(step);
        let operands = [&c.w, &c.g, &c.m, &c.lr].into_iter().chain(&number).collect::<Vec<_>>();
        check(&op, &operands, want);
    }
}

/// PyTorch's SGD keeps no momentum before its first step, which is then undamped.
#[test]
fn momentum_is_that_of_pytorch() {
    let mut c = Case::new(2);
    c.m = Tensor::f32(&[N as u64], &[0.0; N]).unwrap();
    let (momentum, dampening) = (0.75, 0.25);
    let op =
        OpKind::Momentum { alpha: F32(momentum), beta: F32(1.0 - dampening), l2: F32(0.0), nesterov: false };
    let at = |t: &Tensor, i: usize| f64::from(t.elements::<f32>().unwrap()[i]);
    let mut buffer: Option<Vec<f64>> = None;
    for number in 1..4 {
        let next = |i: usize| match &buffer {
            None => at(&c.g, i),
            Some(b) => f64::from(momentum) * b[i] + f64::from(1.0 - dampening) * at(&c.g, i),
        };
        let m: Vec<f64> = (0..N).map(next).collect();
        let w: Vec<f64> = (0..N).map(|i| at(&c.w, i) - 0.125 * m[i]).collect();
        let got = eval(&op, &[&c.w, &c.g, &c.m, &c.lr, &step(number)]).unwrap();
        close(got[0].elements().unwrap(), &w, 1e-6);
        close(got[1].elements().unwrap(), &m, 1e-6);
        (c.w, c.m) = (got[0].clone(), got[1].clone());
        buffer = Some(m);
    }
}

/// ONNX's Adagrad; its step counts from 0.
#[test]
fn adagrad_is_that_of_onnx() {
    for number in [None, Some(1), Some(5)] {
        let c = Case::new(3);
        let op = OpKind::Adagrad { epsilon: F32(1e-3), l2: F32(0.25), decay: F32(0.5) };
        let count = number.map_or(0.0, |n| n as f64 - 1.0);
        let want = c.each(|w, g, _, h, lr| {
            let g = g + 0.25 * w;
            let h = h + g * g;
            [w - lr / (1.0 + count * 0.5) * g / (h.sqrt() + f64::from(1e-3f32)), h]
        });
        let number = number.map(step);
        let operands = [&c.w, &c.g, &c.v, &c.lr].into_iter().chain(&number).collect::<Vec<_>>();
        check(&op, &operands, want);
    }
}

/// ONNX's Adam is adamw with regularised gradients; its step 0 is not corrected.
#[test]
fn adamw_without_decay_is_adam_of_onnx() {
    for number in [0, 1, 7] {
        let c = Case::new(4);
        let (alpha, beta) = (0.75f32, 0.875f32);
        let op = OpKind::AdamW {
            alpha: F32(alpha),
            beta: F32(beta),
            epsilon: F32(1e-3),
            weight_decay: F32(0.0),
            bias_correction: true,
            decay_first: false,
            l2: F32(0.25),
        };
        let left = |decay: f32| 1.0 - f64::from(decay).powf(number as f64);
        let correction = if number == 0 { 1.0 } else { left(beta).sqrt() / left(alpha) };
        let (alpha, beta) = (f64::from(alpha), f64::from(beta));
        let want = c.each(|w, g, m, v, lr| {
            let g = g + 0.25 * w;
            let (m, v) = (alpha * m + (1.0 - alpha) * g, beta * v + (1.0 - beta) * g * g);
            [w - lr * correction * m / (v.sqrt() + f64::from(1e-3f32)), m, v]
        });
        check(&op, &[&c.w, &c.g, &c.m, &c.v, &c.lr, &step(number)], want);
    }
}

/// Numbers that no parameter feels leave no subnormal numbers behind, and change no parameter.
#[test]
fn negligible_numbers_count_as_zero() {
    let of = |x: f32| Tensor::f32(&[N as u64], &[x; N]).unwrap();
    let (w, lr) = (of(0.5), Tensor::f32(&[], &[1e-3]).unwrap());
    let adamw = OpKind::AdamW {
        alpha: F32(0.9),
        beta: F32(0.999),
        epsilon: F32(1e-8),
        weight_decay: F32(0.0),
        bias_correction: true,
        decay_first: true,
        l2: F32(0.0),
    };
    let momentum = OpKind::Momentum { alpha: F32(0.9), beta: F32(1.0), l2: F32(0.0), nesterov: false };
    for exponent in 18..46 {
        let (tiny, square) = (of(10f32.powi(-exponent)), of(10f32.powi(-2 * exponent)));
        let adam = eval(&adamw, &[&w, &tiny, &tiny, &square, &lr, &step(1000)]).unwrap();
        let moved = eval(&momentum, &[&w, &tiny, &tiny, &lr]).unwrap();
        for results in [adam, moved] {
            let values = |t: &Tensor| t.elements::<f32>().unwrap().to_vec();
            assert_eq!(values(&results[0]), [0.5; N]);
            assert!(results.iter().all(|t| !values(t).iter().any(|x| x.is_subnormal())), "1e-{exponent}");
        }
    }
}
