//! Random tensors and dropout, word by word from Philox-4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011).

use std::f64::consts::PI;

use memc_ir::TensorType;

use crate::error::EvalError;
use crate::tensor::Results;
use crate::tensor::{Data, Tensor64};

/// Key, stream and step of one op.
pub(crate) struct Source {
    seed: u64,
    stream: u64,
    step: u64,
}

impl Source {
    pub(crate) fn new(seed: i64, stream: i64, step: &Tensor64) -> Result<Source, EvalError> {
        let step = *step.i()?.first().ok_or("the step has no element")?;
        Ok(Source { seed: seed as u64, stream: stream as u64, step: step as u64 })
    }

    /// The random word of element `i`.
    fn word(&self, i: usize) -> u32 {
        let low = |v: u64| v & 0xffff_ffff;
        let block = (i / 4) as u64;
        let mut c =
            [low(block), block >> 32 | low(self.step >> 32) << 16 & 0xffff_0000, self.stream, low(self.step)];
        let mut k = [low(self.seed), self.seed >> 32];
        for _ in 0..10 {
            let (p, q) = (0xd251_1f53 * c[0], 0xcd9e_8d57 * c[2]);
            c = [(q >> 32) ^ c[1] ^ k[0], low(q), (p >> 32) ^ c[3] ^ k[1], low(p)];
            k = [low(k[0] + 0x9e37_79b9), low(k[1] + 0xbb67_ae85)];
        }
        c[i % 4] as u32
    }

    fn keeps(&self, i: usize, ratio: f32) -> bool {
        u64::from(self.word(i)) >= (f64::from(ratio) * 2f64.powi(32)) as u64
    }
}

pub(crate) fn mask(source: &Source, y: &TensorType, ratio: f32) -> Results {
    Ok(vec![Data::Int((0..y.numel() as usize).map(|i| i64::from(source.keeps(i, ratio))).collect())])
}

pub(crate) fn mask_scale(x: &[&Tensor64], scale: f32) -> Results {
    let pairs = x[0].f()?.iter().zip(x[1].i()?);
    Ok(vec![Data::Float(
        pairs.map(|(v, &keep)| if keep != 0 { v * f64::from(scale) } else { 0.0 }).collect(),
    )])
}

pub(crate) fn dropout(source: &Source, x: &Tensor64, ratio: f32) -> Results {
    let scale = f64::from(1.0 / (1.0 - ratio));
    let one = |(i, v): (usize, &f64)| if source.keeps(i, ratio) { v * scale } else { 0.0 };
    Ok(vec![Data::Float(x.f()?.iter().enumerate().map(one).collect())])
}

pub(crate) fn uniform(source: &Source, y: &TensorType, [low, high]: [f32; 2]) -> Results {
    let (low, high) = (f64::from(low), f64::from(high));
    let one = |i| low + (high - low) * (f64::from(source.word(i) >> 8) / 2f64.powi(24));
    Ok(vec![Data::Float((0..y.numel() as usize).map(one).collect())])
}

/// By the method of Box and Muller, two numbers of each half of a block.
pub(crate) fn normal(source: &Source, y: &TensorType, [mean, scale]: [f32; 2]) -> Results {
    let one = |i: usize| {
        let first = i / 2 * 2;
        let [u, v] = [first, first + 1].map(|i| (f64::from(source.word(i)) + 0.5) / 2f64.powi(32));
        let (radius, angle) = ((-2.0 * u.ln()).sqrt(), 2.0 * PI * v);
        f64::from(mean) + f64::from(scale) * radius * if i == first { angle.cos() } else { angle.sin() }
    };
    Ok(vec![Data::Float((0..y.numel() as usize).map(one).collect())])
}
