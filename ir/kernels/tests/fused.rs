//! Fused ops against their steps, one by one: the same bits.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use common::{Random, Sample, chains, norms, result_types, run};
use memc_ir::{DType, TensorType};
use memc_kernels::interp::Tensor;

/// The results of a fused sample, each step by itself.
fn steps(sample: &Sample) -> Vec<Tensor> {
    chains::by_steps(sample, &mut |step| run(&step, &[]).unwrap())
}

/// Equal bits, but for what a NaN carries.
fn same(a: &Tensor, b: &Tensor) -> bool {
    if a == b || a.ty != b.ty {
        return a == b;
    }
    let is_nan: fn(&[u8]) -> bool = match a.ty.dtype {
        DType::F32 => |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_nan(),
        DType::F16 => |b| u16::from_le_bytes([b[0], b[1]]) & 0x7fff > 0x7c00,
        DType::BF16 => |b| u16::from_le_bytes([b[0], b[1]]) & 0x7fff > 0x7f80,
        _ => return false,
    };
    let width = a.ty.dtype.bytes() as usize;
    let pairs = a.data.bytes().chunks(width).zip(b.data.bytes().chunks(width));
    pairs.into_iter().all(|(a, b)| a == b || (is_nan(a) && is_nan(b)))
}

fn describe(sample: &Sample) -> String {
    let types: Vec<String> = sample.operands.iter().map(|t| t.ty.to_string()).collect();
    format!("{} on {}", sample.op.attrs_text(), types.join(", "))
}

/// Runs a sample, plain and with pairs in place, against its steps; returns how many ways it ran.
fn check(r: &mut Random, sample: &Sample) -> usize {
    let types: Vec<&TensorType> = sample.operands.iter().map(|t| &t.ty).collect();
    if let Err(why) = sample.op.infer(&types) {
        panic!("{}: {why}", describe(sample));
    }
    let want = steps(sample);
    let results = result_types(sample);
    let pairs = sample.op.inplace_pairs(&types, &results.iter().collect::<Vec<_>>());
    let mut sets = vec![vec![]];
    for _ in 0..3 {
        // One operand to one result.
        let mut set: Vec<(usize, usize)> = Vec::new();
        for &(i, j) in &pairs {
            if r.below(2) == 0 && set.iter().all(|&(a, b)| a != i && b != j) {
                set.push((i, j));
            }
        }
        if !set.is_empty() {
            sets.push(set);
        }
    }
    for set in &sets {
        let got = run(sample, set).unwrap();
        for (j, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(same(got, want), "result {j} of {} with {set:?} shared", describe(sample));
        }
    }
    sets.len()
}

#[test]
fn a_chain_gives_the_bits_of_its_steps() {
    let r = &mut Random::new(11);
    let mut shared = 0;
    for _ in 0..1500 {
        let sample = chains::random(r, false);
        shared += check(r, &sample) - 1;
    }
    assert!(shared > 500, "{shared}");
    for scale in [0, 1, 3, 1500] {
        for sample in chains::chosen(r, scale) {
            check(r, &sample);
        }
    }
}

#[test]
fn a_normalisation_gives_the_bits_of_its_steps() {
    let r = &mut Random::new(12);
    let mut shared = 0;
    for _ in 0..600 {
        let sample = norms::random(r);
        shared += check(r, &sample) - 1;
    }
    assert!(shared > 500, "{shared}");
    for scale in [0, 1, 3, 1500] {
        for sample in norms::chosen(r, scale) {
            check(r, &sample);
        }
    }
}
