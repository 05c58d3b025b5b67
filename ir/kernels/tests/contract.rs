//! Promises of every kernel, whatever it computes: in-place runs, thread counts, and refusals.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::BTreeSet;

use common::{Sample, result_types, run, samples};
use memc_ir::ops::OP_DEFS;
use memc_ir::{DType, OpKind, TensorType};
use memc_kernels::interp::{AlignedBytes, Tensor, eval};
use memc_kernels::{Call, KernelError, Operand, execute};

/// Outer extent of samples that are spread over threads.
const LARGE: u64 = 1500;

#[test]
fn the_samples_cover_every_op() {
    let covered: BTreeSet<_> = samples(2).iter().map(|s| s.op.mnemonic()).collect();
    let missing: Vec<_> = OP_DEFS.iter().map(|d| d.mnemonic).filter(|m| !covered.contains(m)).collect();
    assert!(missing.is_empty(), "no sample of {missing:?}");
}

fn describe(sample: &Sample) -> String {
    let types: Vec<_> = sample.operands.iter().map(|t| t.ty.to_string()).collect();
    format!("{} {} on {}", sample.op.mnemonic(), sample.op.attrs_text(), types.join(", "))
}

/// Every set of declared pairs that uses each result at most once.
fn sharings(sample: &Sample) -> Vec<Vec<(usize, usize)>> {
    let results = result_types(sample);
    let types: Vec<&TensorType> = sample.operands.iter().map(|t| &t.ty).collect();
    let pairs = sample.op.inplace_pairs(&types, &results.iter().collect::<Vec<_>>());
    let mut sets = vec![vec![]];
    for pair in pairs {
        for i in 0..sets.len() {
            if !sets[i].iter().any(|&(_, j)| j == pair.1) {
                let mut more = sets[i].clone();
                more.push(pair);
                sets.push(more);
            }
        }
    }
    sets.split_off(1)
}

#[test]
fn in_place_runs_give_the_same_bits() {
    let mut shared = BTreeSet::new();
    for sample in [samples(3), samples(LARGE)].iter().flatten() {
        let want = run(sample, &[]).unwrap();
        for pairs in sharings(sample) {
            let got = run(sample, &pairs).unwrap();
            assert!(got == want, "{} with {pairs:?} shared", describe(sample));
            let batch = sample.op.def().is_batch();
            let declared = |&pair: &(usize, usize)| if batch { (0, 0) } else { pair };
            // The pairs of a fused op depend on its types alone.
            let pairs = if sample.op.def().is_open() { &[] } else { &pairs[..] };
            shared.extend(pairs.iter().map(|pair| (sample.op.mnemonic(), declared(pair))));
        }
    }
    let declared: BTreeSet<_> =
        OP_DEFS.iter().flat_map(|d| d.inplace.iter().map(|&pair| (d.mnemonic, pair))).collect();
    assert_eq!(shared, declared, "every declared pair has a sample");
}

#[test]
fn one_tensor_may_be_both_operands_and_the_result() {
    let binary: Vec<_> = samples(3).into_iter().filter(|s| s.op.def().inplace == [(0, 0), (1, 0)]).collect();
    assert!(binary.len() > 10);
    for mut sample in binary {
        if sample.operands[0].ty != sample.operands[1].ty {
            continue;
        }
        sample.operands[1] = sample.operands[0].clone();
        let want = run(&sample, &[]).unwrap();
        let got = run(&sample, &[(0, 0), (1, 0)]).unwrap();
        assert!(got == want, "{}", describe(&sample));
    }
}

#[test]
fn results_do_not_depend_on_the_thread_count() {
    let all = samples(LARGE);
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| all.iter().map(|s| run(s, &[]).unwrap()).collect::<Vec<_>>())
    };
    let one = on(1);
    for threads in [2, 5] {
        for ((sample, a), b) in all.iter().zip(&one).zip(on(threads)) {
            assert!(*a == b, "{} differs on {threads} threads", describe(sample));
        }
    }
}

#[test]
fn large_samples_agree_with_their_small_parts() {
    // Element-wise results of a large tensor are those of its first rows alone.
    for sample in samples(LARGE) {
        let full: Vec<_> = result_types(&sample);
        let rowwise = sample.op.def().inplace == [(0, 0), (1, 0)]
            && full.len() == 1
            && sample.operands.iter().all(|t| t.ty == full[0]);
        if !rowwise || matches!(sample.op, OpKind::SoftmaxGrad { axis: 0 }) {
            continue;
        }
        let cut = |t: &Tensor| {
            let mut ty = t.ty.clone();
            ty.shape[0] = 2;
            let mut part = Tensor::zeros(ty).unwrap();
            let n = part.data.bytes().len();
            part.data.bytes_mut().copy_from_slice(&t.data.bytes()[..n]);
            part
        };
        let whole = run(&sample, &[]).unwrap();
        let small = Sample { op: sample.op.clone(), operands: sample.operands.iter().map(cut).collect() };
        assert!(run(&small, &[]).unwrap()[0] == cut(&whole[0]), "{}", describe(&sample));
    }
}

fn index_error(op: OpKind, operands: &[Tensor]) -> (&'static str, i64, i64, i64) {
    match eval(&op, &operands.iter().collect::<Vec<_>>()) {
        Err(KernelError::Index { operand, value, low, high, .. }) => (operand, value, low, high),
        other => panic!("{op:?} must refuse the index, got {other:?}"),
    }
}

#[test]
fn an_index_out_of_range_is_named() {
    let r = &mut common::Random::new(1);
    let data = r.f32(&[3, 4]);
    let at = |v: i64| Tensor::i64(&[1, 1], &[v]).unwrap();
    let mode = memc_ir::attr::ScatterMode::Add;
    let one = r.f32(&[1, 1]);
    for (v, axis, extent) in [(3, 0, 3), (-4, 0, 3), (4, 1, 4), (i64::MAX, 1, 4), (i64::MIN, 1, 4)] {
        let want = ("indices", v, -extent, extent);
        assert_eq!(index_error(OpKind::Gather { axis }, &[data.clone(), at(v)]), want);
        assert_eq!(index_error(OpKind::GatherElements { axis }, &[data.clone(), at(v)]), want);
        let operands = [data.clone(), at(v), one.clone()];
        assert_eq!(index_error(OpKind::ScatterElements { axis, mode }, &operands), want);
    }
    let dy = r.f32(&[1, 1, 5]);
    assert_eq!(index_error(OpKind::GatherGrad { axis: 0, dim: 7 }, &[at(7), dy]), ("indices", 7, -7, 7));
    let tuple = Tensor::i64(&[1, 2], &[2, 4]).unwrap();
    let operands = [data.clone(), tuple, r.f32(&[1])];
    assert_eq!(index_error(OpKind::ScatterNd { mode, batch_dims: 0 }, &operands), ("indices", 4, -4, 4));
    let (dy, indices) = (r.f32(&[1, 1, 1, 1]), Tensor::i64(&[1, 1, 1, 1], &[-1]).unwrap());
    let op = OpKind::MaxPoolGrad { shape: vec![1, 1, 2, 2] };
    assert_eq!(index_error(op, &[dy, indices]), ("indices", -1, 0, 4));
}

#[test]
fn a_label_out_of_range_is_named_and_an_ignored_one_is_not() {
    let r = &mut common::Random::new(1);
    let logits = r.f32(&[2, 3]);
    let labels = Tensor::i64(&[2], &[1, -100]).unwrap();
    let reduction = memc_ir::attr::Reduction::Mean;
    let strict = OpKind::CrossEntropy { reduction, ignore_index: i64::MIN };
    assert_eq!(index_error(strict, &[logits.clone(), labels.clone()]), ("labels", -100, 0, 3));
    let grad = OpKind::CrossEntropyGrad { reduction, ignore_index: 5 };
    let operands = [r.f32(&[]), logits.clone(), labels.clone()];
    assert_eq!(index_error(grad, &operands), ("labels", -100, 0, 3));
    let lenient = OpKind::CrossEntropy { reduction, ignore_index: -100 };
    eval(&lenient, &[&logits, &labels]).unwrap();
}

/// The reason why `execute` refuses a call of `add` on two `f32[16]`.
fn refusal(a: Operand, b: Operand, results: &mut [&mut [u8]], op: &OpKind) -> String {
    let ty = TensorType::new(DType::F32, [16]);
    let types = [ty.clone(), ty];
    let call = Call { op, operand_types: &types, result_types: &types[..1] };
    match execute(&call, &[a, b], results, &mut []) {
        Err(KernelError::Call { reason, .. }) => reason,
        other => panic!("the call must be refused, got {other:?}"),
    }
}

#[test]
fn malformed_calls_are_refused() {
    let (x, mut y) = (AlignedBytes::zeroed(128), AlignedBytes::zeroed(128));
    let add = &OpKind::Add {};
    let good = Operand::Bytes(&x.bytes()[..64]);
    let y = y.bytes_mut();
    let reason = refusal(good, Operand::Bytes(&x.bytes()[..60]), &mut [&mut y[..64]], add);
    assert!(reason.contains("operand 1 has 60 bytes, its type has 64"), "{reason}");
    let reason = refusal(good, Operand::Bytes(&x.bytes()[4..68]), &mut [&mut y[..64]], add);
    assert!(reason.contains("operand 1 is not aligned"), "{reason}");
    let reason = refusal(good, good, &mut [&mut y[32..96]], add);
    assert!(reason.contains("result 0 is not aligned"), "{reason}");
    let reason = refusal(good, good, &mut [], add);
    assert!(reason.contains("got 0 results"), "{reason}");
    let reason = refusal(good, Operand::Result(1), &mut [&mut y[..64]], add);
    assert!(reason.contains("operand 1 may not share bytes with result 1"), "{reason}");
    let reason = refusal(good, good, &mut [&mut y[..64]], &OpKind::Neg {});
    assert!(reason.contains("2 operands"), "{reason}");
}

#[test]
fn a_short_workspace_is_refused() {
    let sample = samples(3).into_iter().find(|s| matches!(s.op, OpKind::ConvGradWeight { .. })).unwrap();
    let types: Vec<_> = sample.operands.iter().map(|t| t.ty.clone()).collect();
    let results = result_types(&sample);
    let call = Call { op: &sample.op, operand_types: &types, result_types: &results };
    let need = call.check().unwrap() as usize;
    let operands: Vec<_> = sample.operands.iter().map(|t| Operand::Bytes(t.data.bytes())).collect();
    let mut dw = Tensor::zeros(results[0].clone()).unwrap();
    let mut workspace = AlignedBytes::zeroed(need);
    execute(&call, &operands, &mut [dw.data.bytes_mut()], workspace.bytes_mut()).unwrap();
    let error = execute(&call, &operands, &mut [dw.data.bytes_mut()], &mut workspace.bytes_mut()[..need - 4]);
    assert!(error.unwrap_err().to_string().contains("workspace has"));
}

#[test]
fn check_refuses_types_that_break_the_rule() {
    let (a, b) = (TensorType::new(DType::F32, [2]), TensorType::new(DType::F32, [3]));
    let bad = Call {
        op: &OpKind::Add {},
        operand_types: &[a.clone(), b.clone()],
        result_types: std::slice::from_ref(&a),
    };
    assert!(bad.check().unwrap_err().to_string().contains("do not broadcast"));
    let bad = Call { op: &OpKind::Neg {}, operand_types: std::slice::from_ref(&a), result_types: &[b] };
    assert!(bad.check().unwrap_err().to_string().contains("result types are f32[2], not f32[3]"));
}

#[test]
fn empty_tensors_and_empty_sums_work() {
    let r = &mut common::Random::new(1);
    let (a, b, c) = (r.f32(&[3, 0]), r.f32(&[0, 2]), r.f32(&[2]));
    let product = OpKind::MatMul { trans_a: false, trans_b: false, alpha: memc_ir::attr::F32(1.0) };
    let y = run(&Sample { op: product, operands: vec![a.clone(), b.clone()] }, &[]).unwrap();
    assert_eq!(y[0].elements::<f32>().unwrap(), [0.0; 6]);
    let one = memc_ir::attr::F32(1.0);
    let gemm = OpKind::Gemm { trans_a: false, trans_b: false, alpha: one, beta: memc_ir::attr::F32(2.0) };
    let y = run(&Sample { op: gemm, operands: vec![a.clone(), b.clone(), c.clone()] }, &[]).unwrap();
    let c = c.elements::<f32>().unwrap();
    assert_eq!(y[0].elements::<f32>().unwrap()[..2], [2.0 * c[0], 2.0 * c[1]]);
    for (axes, want) in [(vec![1], vec![0.0; 3]), (vec![0], vec![])] {
        let op = OpKind::ReduceSum { axes, keepdims: false };
        let y = run(&Sample { op, operands: vec![a.clone()] }, &[]).unwrap();
        assert_eq!(y[0].elements::<f32>().unwrap(), want);
    }
    // Every op that allows an empty batch runs on one.
    let mut ran = 0;
    for sample in samples(0) {
        let types: Vec<_> = sample.operands.iter().map(|t| &t.ty).collect();
        if sample.op.infer(&types).is_ok() {
            run(&sample, &[]).unwrap_or_else(|e| panic!("{}: {e}", describe(&sample)));
            ran += 1;
        }
    }
    assert!(ran > 100, "{ran}");
}
