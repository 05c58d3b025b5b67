//! Random ops: the generator's definition for every element, and the statistics of many.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use common::naive::one;
use common::{Random, Sample, run};
use memc_ir::OpKind;
use memc_ir::attr::F32;
use memc_kernels::interp::Tensor;

/// Many elements, in a shape that no block or chunk divides.
const SHAPE: [u64; 2] = [331, 301];

fn step(n: i64) -> Tensor {
    Tensor::i64(&[], &[n]).unwrap()
}

fn uniform(seed: i64, stream: i64, number: i64) -> Vec<f32> {
    let op = OpKind::RandomUniform { seed, stream, shape: SHAPE.to_vec(), low: F32(0.0), high: F32(1.0) };
    one(op, &[&step(number)]).elements::<f32>().unwrap().to_vec()
}

/// Philox-4x32-10 as its paper writes it down, round by round with 128-bit products.
fn word(index: u64, seed: u64, stream: u32, step: u64) -> u32 {
    let block = index / 4;
    let high = (block >> 32) as u32 + ((step >> 32) as u32) * (1 << 16);
    let mut c = [block as u32, high, stream, step as u32];
    let mut k = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let p = u128::from(0xd2511f53u32) * u128::from(c[0]);
        let q = u128::from(0xcd9e8d57u32) * u128::from(c[2]);
        c = [(q >> 32) as u32 ^ c[1] ^ k[0], q as u32, (p >> 32) as u32 ^ c[3] ^ k[1], p as u32];
        k = [k[0].wrapping_add(0x9e3779b9), k[1].wrapping_add(0xbb67ae85)];
    }
    c[(index % 4) as usize]
}

#[test]
fn element_i_is_made_of_word_i_modulo_four_of_block_i_over_four() {
    let (seed, stream, number) = (-0x1234_5678_9abc_i64, 77, (5i64 << 32) + 9);
    let xs = uniform(seed, stream, number);
    for (i, &x) in xs.iter().enumerate() {
        let w = word(i as u64, seed as u64, stream as u32, number as u64);
        assert_eq!(x, (w >> 8) as f32 / (1 << 24) as f32, "element {i}");
    }
}

#[test]
fn seeds_streams_and_steps_give_other_numbers() {
    let base = uniform(1, 2, 3);
    for other in
        [uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4), uniform(1 << 32, 2, 3), uniform(1, 2, 3 << 32)]
    {
        let equal = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(equal < 3, "{equal} elements are equal");
    }
    assert_eq!(base, uniform(1, 2, 3));
}

#[test]
fn dropout_is_its_mask_applied_bit_for_bit() {
    let x = Random::new(5).f32(&SHAPE);
    for ratio in [0.0, 0.1, 0.5, 0.9] {
        let (ratio, seed, stream) = (F32(ratio), 11, 4);
        let dropped = one(OpKind::Dropout { ratio, seed, stream }, &[&x, &step(6)]);
        let mask = one(OpKind::RandomMask { ratio, seed, stream, shape: SHAPE.to_vec() }, &[&step(6)]);
        let scale = F32(1.0 / (1.0 - ratio.0));
        assert_eq!(dropped, one(OpKind::MaskScale { scale }, &[&x, &mask]), "ratio {ratio:?}");
        let kept = mask.data.bytes().iter().map(|&b| f64::from(b)).sum::<f64>();
        let n = mask.data.bytes().len() as f64;
        // Five standard deviations of a binomial variable.
        let spread = 5.0 * (n * f64::from(ratio.0) * (1.0 - f64::from(ratio.0))).sqrt();
        assert!((kept - n * (1.0 - f64::from(ratio.0))).abs() <= spread, "{kept} of {n} kept at {ratio:?}");
    }
}

#[test]
fn a_masked_element_is_zero_whatever_it_was() {
    let x = Tensor::f32(&[4], &[f32::NAN, f32::INFINITY, -2.0, 3.0]).unwrap();
    let ty = memc_ir::TensorType::new(memc_ir::DType::Bool, [4]);
    let mask = Tensor::from_slice(ty, &[0u8, 0, 1, 0]).unwrap();
    let y = one(OpKind::MaskScale { scale: F32(1.5) }, &[&x, &mask]);
    assert_eq!(y.elements::<f32>().unwrap(), [0.0, 0.0, -3.0, 0.0]);
}

/// The largest distance between the shares of `xs` and of the distribution with integral `f` up to any value
/// (Kolmogorov and Smirnov); below 2 over the root of their number, but for one case in 1500.
fn distance(mut xs: Vec<f64>, f: impl Fn(f64) -> f64) -> f64 {
    xs.sort_by(f64::total_cmp);
    let n = xs.len() as f64;
    let far = |(i, &x): (usize, &f64)| (f(x) - i as f64 / n).abs().max((f(x) - (i + 1) as f64 / n).abs());
    xs.iter().enumerate().map(far).fold(0.0, f64::max) * n.sqrt()
}

#[test]
fn uniform_and_normal_numbers_have_their_distributions() {
    let (seed, stream, shape) = (3, 8, SHAPE.to_vec());
    let op = OpKind::RandomUniform { seed, stream, shape: shape.clone(), low: F32(-1.0), high: F32(3.0) };
    let y = one(op, &[&step(1)]);
    let xs: Vec<f64> = y.elements::<f32>().unwrap().iter().map(|&x| f64::from(x)).collect();
    assert!(xs.iter().all(|x| (-1.0..3.0).contains(x)));
    assert!(distance(xs, |x| (x + 1.0) / 4.0) < 2.0);

    let op = OpKind::RandomNormal { seed, stream, shape, mean: F32(1.0), scale: F32(2.0) };
    let y = one(op, &[&step(1)]);
    let xs: Vec<f64> = y.elements::<f32>().unwrap().iter().map(|&x| (f64::from(x) - 1.0) / 2.0).collect();
    // Neighbours share their words, and are independent nevertheless.
    let product = xs.chunks(2).filter(|p| p.len() == 2).map(|p| p[0] * p[1]).sum::<f64>();
    assert!((product / (xs.len() as f64 / 2.0).sqrt()).abs() < 4.0, "{product}");
    assert!(distance(xs, |x| 0.5 * libm::erfc(-x / 2f64.sqrt())) < 2.0);
}

#[test]
fn an_i32_step_gives_the_numbers_of_an_i64_step() {
    let ty = memc_ir::TensorType::scalar(memc_ir::DType::I32);
    let short = Tensor::from_slice(ty, &[9i32]).unwrap();
    let op = OpKind::RandomMask { ratio: F32(0.5), seed: 1, stream: 0, shape: vec![9] };
    let run = |step: &Tensor| run(&Sample { op: op.clone(), operands: vec![step.clone()] }, &[]).unwrap();
    assert_eq!(run(&short), run(&step(9)));
}
