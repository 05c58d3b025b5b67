//! Every kernel on the CPU, its text compiled by g++ as it is, against the CPU kernel of its op: under the
//! address and undefined-behaviour sanitizers, with exactly allocated buffers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "what was skipped or run must be seen")]

#[path = "emulation/cases.rs"]
mod cases;
#[path = "../../../ir/kernels/tests/common/mod.rs"]
mod common;
#[path = "emulation/compiler.rs"]
mod compiler;
#[path = "emulation/process.rs"]
mod process;

use std::collections::BTreeSet;

use common::{Random, Sample, chains, norms, result_types, run};
use memc_cuda::{CudaError, Lowering, is_small_update, lower, report};
use memc_ir::ops::OP_DEFS;
use memc_ir::ops::fused::is_head;
use memc_ir::ops::fused_norm::is_norm;
use memc_ir::{DType, OpKind, TensorType};
use memc_kernels::KernelError;
use memc_kernels::interp::Tensor;

use crate::process::{Job, Outcome};

/// Ops that do the CPU kernel's arithmetic in its order: the same bits. Integers are always exact.
fn is_exact(op: &OpKind) -> bool {
    use OpKind::*;
    if let Fused { body, .. } = op {
        return body.0.iter().all(|step| is_exact(&step.op));
    }
    !matches!(
        op,
        Atan {}
            | Sin {}
            | Cos {}
            | Exp {}
            | Log {}
            | Tanh {}
            | Sigmoid {}
            | Erf {}
            | Gelu { .. }
            | GeluGrad { .. }
            | Pow {}
            | MatMul { .. }
            | MatMulBiasGrad { .. }
            | Gemm { .. }
            | Conv { .. }
            | ConvGradInput { .. }
            | ConvGradWeight { .. }
            | BatchNormStats { .. }
            | BatchNormGrad {}
            | LayerNorm { .. }
            | LayerNormGrad { .. }
            | FusedNorm { .. }
            | Softmax { .. }
            | LogSoftmax { .. }
            | SoftmaxGrad { .. }
            | CrossEntropy { .. }
            | CrossEntropyGrad { .. }
            | ReduceSum { .. }
            | ReduceMean { .. }
            | SumSquares {}
            | GatherGrad { .. }
            | RandomNormal { .. }
    )
}

/// Largest error of a float, relative to the largest one of its tensor, or 1: for 16 bits, two neighbours.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 4e-6,
    }
}

fn floats(t: &Tensor) -> Option<Vec<f32>> {
    let halves = || t.data.bytes().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    Some(match t.ty.dtype {
        DType::F32 => t.elements::<f32>()?.to_vec(),
        DType::F16 => halves().map(half_to_float).collect(),
        DType::BF16 => halves().map(|b| f32::from_bits(u32::from(b) << 16)).collect(),
        _ => return None,
    })
}

fn half_to_float(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

/// Difference between `got` and `want`, if any; none at all is allowed where results are exact.
fn difference(is_exact: bool, got: &Tensor, want: &Tensor) -> Option<String> {
    let (Some(g), Some(w)) = (floats(got), floats(want)) else {
        let at = got.data.bytes().iter().zip(want.data.bytes()).position(|(g, w)| g != w)?;
        return Some(format!("byte {at} differs"));
    };
    let size = w.iter().filter(|w| w.is_finite()).fold(1.0f64, |m, &w| m.max(f64::from(w).abs()));
    let limit = if is_exact { 0.0 } else { tolerance(want.ty.dtype) * size };
    g.iter().zip(&w).enumerate().find_map(|(i, (&g, &w))| {
        let close = f64::from(g - w).abs() <= limit || g == w || (g.is_nan() && w.is_nan());
        (!close).then(|| format!("element {i} is {g:e} instead of {w:e}, largest {size:e}"))
    })
}

fn name_of(sample: &Sample) -> String {
    let types: Vec<String> = sample.operands.iter().map(|t| t.ty.to_string()).collect();
    format!("{} {} {}", sample.op.mnemonic(), sample.op.attrs_text(), types.join(", "))
}

/// Every sample by itself and, in turn, with one of the pairs that may share bytes.
fn jobs(samples: &[Sample]) -> (Vec<Job<'_>>, BTreeSet<&'static str>) {
    let (mut jobs, mut missing) = (Vec::new(), BTreeSet::new());
    for (i, sample) in samples.iter().enumerate() {
        let types: Vec<TensorType> = sample.operands.iter().map(|t| t.ty.clone()).collect();
        let lowering = match lower(&sample.op, &types) {
            Ok(lowering) => lowering,
            Err(CudaError::Missing { op }) => {
                missing.insert(op);
                continue;
            }
            Err(e) => panic!("{}: {e}", name_of(sample)),
        };
        let results = result_types(sample);
        let pairs =
            sample.op.inplace_pairs(&types.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>());
        let pair = if pairs.is_empty() { None } else { Some(pairs[i % pairs.len()]) };
        jobs.push(Job { sample, results: results.clone(), lowering: lowering.clone(), shared: None });
        jobs.extend(pair.map(|shared| Job { sample, results, lowering, shared: Some(shared) }));
    }
    (jobs, missing)
}

#[test]
fn kernels_compute_what_the_cpu_kernels_compute() {
    let all = cases::all();
    let seen: BTreeSet<&str> = all.iter().map(|s| s.op.mnemonic()).collect();
    let unseen: Vec<&str> = OP_DEFS.iter().map(|d| d.mnemonic).filter(|m| !seen.contains(m)).collect();
    assert!(unseen.is_empty(), "no sample of {unseen:?}");
    let (jobs, missing) = jobs(&all);
    assert!(missing.is_empty(), "ops without a kernel: {missing:?}");
    let Some(outcomes) = process::run("emulation", &[], &jobs) else { return };
    assert_eq!(compare(&jobs, &outcomes, is_exact).len(), 9, "ops that refuse an index");
}

/// Where f64 is slow, sums are pairs of f32.
#[test]
fn kernels_compute_the_same_without_fast_f64() {
    let sums =
        |kernel: &str| kernel.contains("reduce") || kernel.contains("norm") || kernel.contains("softmax");
    let sums = |kernel: &str| sums(kernel) || kernel.contains("entropy") || kernel.contains("average_pool");
    let all = cases::all();
    let (mut jobs, _) = jobs(&all);
    jobs.retain(|job| job.lowering.launches.iter().any(|launch| sums(&launch.kernel.name)));
    assert!(jobs.len() > 300, "{} runs", jobs.len());
    let Some(outcomes) = process::run("pairs", &["-DMEMC_SLOW_F64=1"], &jobs) else { return };
    compare(&jobs, &outcomes, |_| false);
}

/// Compares with the CPU kernels; returns the ops that refuse an index.
fn compare(jobs: &[Job], outcomes: &[Outcome], exact: fn(&OpKind) -> bool) -> BTreeSet<&'static str> {
    let (mut wrong, mut refused) = (Vec::new(), BTreeSet::new());
    for (job, got) in jobs.iter().zip(outcomes) {
        // Of an op's reports, the one that comes first in its operand.
        let report = got.reports.iter().filter_map(|&word| report(word)).min();
        let want = match run(job.sample, &[]) {
            Ok(want) => want,
            Err(KernelError::Index { position, value, .. }) => {
                refused.insert(job.sample.op.mnemonic());
                if report != Some((position as u64, value)) {
                    wrong.push(format!("{}: {report:?}, not {value} at {position}", name_of(job.sample)));
                }
                continue;
            }
            Err(e) => panic!("{}: {e}", name_of(job.sample)),
        };
        if let Some(report) = report {
            wrong.push(format!("{}: reports {report:?} of legal indices", name_of(job.sample)));
        }
        for (j, (got, want)) in got.results.iter().zip(&want).enumerate() {
            let why = difference(exact(&job.sample.op), got, want);
            wrong.extend(why.map(|why| {
                format!("{} (in place: {:?}), result {j}: {why}", name_of(job.sample), job.shared)
            }));
        }
    }
    assert!(wrong.is_empty(), "{} of {} runs:\n{}", wrong.len(), jobs.len(), wrong.join("\n"));
    refused
}

/// Updates that share a launch compute the same bits as each by itself.
#[test]
fn updates_of_one_launch_are_those_of_several() {
    let mut r = Random::new(9);
    let mut batched = Vec::new();
    for sample in common::samples(2) {
        let types: Vec<TensorType> = sample.operands.iter().map(|t| t.ty.clone()).collect();
        if !is_small_update(&sample.op, &types) {
            continue;
        }
        let sizes = [1, 31, 256, 1000 + r.below(2000)];
        let updates: Vec<Sample> = sizes.map(|n| resized(&mut r, &sample, n)).into();
        let shapes: Vec<Vec<TensorType>> =
            updates.iter().map(|u| u.operands.iter().map(|t| t.ty.clone()).collect()).collect();
        let shapes: Vec<&[TensorType]> = shapes.iter().map(Vec::as_slice).collect();
        let launch = updates_of(&sample.op, &shapes);
        let operands = updates.iter().flat_map(|u| u.operands.clone()).collect();
        batched.push((updates, launch, Sample { op: sample.op.clone(), operands }));
    }
    assert!(batched.len() >= 8, "{} samples are updates", batched.len());
    let jobs: Vec<Job> = batched
        .iter()
        .map(|(updates, launch, sample)| Job {
            sample,
            results: updates.iter().flat_map(result_types).collect(),
            lowering: Lowering { launches: vec![launch.clone()], ..Lowering::default() },
            shared: None,
        })
        .collect();
    let Some(outcomes) = process::run("updates", &[], &jobs) else { return };
    for ((updates, _, sample), got) in batched.iter().zip(outcomes) {
        let want = updates.iter().flat_map(|u| run(u, &[]).unwrap());
        for (j, (got, want)) in got.results.iter().zip(want).enumerate() {
            assert_eq!(difference(is_exact(&sample.op), got, &want), None, "{}, result {j}", name_of(sample));
        }
    }
}

/// A normalisation, a product or a convolution with steps has the bits of its own kernel with the steps
/// around it, whose bits are the CPU's.
#[test]
fn what_has_steps_around_it_has_the_bits_of_that_alone() {
    let mut r = Random::new(21);
    let is_core = |op: &OpKind| is_norm(op) || is_head(op);
    let is_known = |sample: &Sample| match &sample.op {
        OpKind::Fused { body, .. } => body.0.iter().skip(1).all(|step| is_exact(&step.op)),
        _ => true,
    };
    let mut fused: Vec<Sample> = (0..40).map(|_| norms::random(&mut r)).collect();
    fused.extend(chains::products(&mut r, 67).into_iter().filter(is_known));
    assert!(fused.len() >= 44, "{}", fused.len());
    let mut alone = Vec::new();
    for sample in &fused {
        chains::by_steps(sample, &mut |step| {
            let results = run(&step, &[]).unwrap();
            if is_core(&step.op) {
                alone.push(step);
            }
            results
        });
    }
    let mut jobs = Vec::new();
    for sample in fused.iter().chain(&alone) {
        let types: Vec<TensorType> = sample.operands.iter().map(|t| t.ty.clone()).collect();
        let (results, lowering) = (result_types(sample), lower(&sample.op, &types).unwrap());
        jobs.push(Job { sample, results, lowering, shared: None });
    }
    let Some(outcomes) = process::run("alone", &[], &jobs) else { return };
    let (got, norms) = outcomes.split_at(fused.len());
    assert_eq!(got.len(), norms.len());
    for ((sample, got), norm) in fused.iter().zip(got).zip(norms) {
        let want = chains::by_steps(sample, &mut |step| match is_core(&step.op) {
            true => norm.results.clone(),
            false => run(&step, &[]).unwrap(),
        });
        assert!(got.results == want, "{}", name_of(sample));
    }
}

/// An update of a parameter of `n` elements; what is one number stays one.
fn resized(r: &mut Random, sample: &Sample, n: u64) -> Sample {
    let parameter = &sample.operands[0].ty;
    let mut resize = |t: &Tensor| match t.ty.shape == parameter.shape {
        true if t.ty.dtype == DType::F32 => r.positive(&[n]),
        true => r.tensor(t.ty.dtype, &[n]),
        false => t.clone(),
    };
    Sample { op: sample.op.clone(), operands: sample.operands.iter().map(&mut resize).collect() }
}

fn updates_of(op: &OpKind, shapes: &[&[TensorType]]) -> memc_cuda::Launch {
    memc_cuda::updates(op, shapes).unwrap_or_else(|| panic!("{} is no update", op.mnemonic()))
}
