//! Cases of matrix products, convolution, pooling, normalisation and losses.

use crate::elementwise::SECOND;
use memc_ir::attr::{F32, Reduction};
use memc_ir::{OpKind, TensorType};
use memc_reference::{Tensor64, eval};

use crate::support::{Case, Random};

pub(crate) fn cases(all: &mut Vec<Case>) {
    let r = &mut Random::new(2);
    products(r, all);
    convolutions(r, all);
    pools(r, all);
    norms(r, all);
    losses(r, all);
}

/// A matrix under `lead`, stored transposed when asked.
fn matrix(r: &mut Random, lead: &[u64], rows: u64, columns: u64, trans: bool) -> Tensor64 {
    let inner = if trans { [columns, rows] } else { [rows, columns] };
    r.nonzero(&[lead, &inner].concat())
}

fn products(r: &mut Random, all: &mut Vec<Case>) {
    let leads: [(&[u64], &[u64]); 8] = [
        (&[], &[]),
        (&[3], &[]),
        (&[], &[3]),
        (&[2, 3], &[]),
        (&[2, 3], &[1]),
        (&[2, 1], &[1, 3]),
        (&[1, 1], &[1]),
        (&[2], &[2]),
    ];
    let alpha = F32(0.5);
    for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
        for (a, b) in leads {
            let operands = vec![matrix(r, a, 2, 3, trans_a), matrix(r, b, 3, 4, trans_b)];
            all.push(Case::new(OpKind::MatMul { trans_a, trans_b, alpha }, operands));
        }
        for c in [&[][..], &[4], &[1, 4], &[2, 1], &[2, 4]] {
            let operands = vec![matrix(r, &[], 2, 3, trans_a), matrix(r, &[], 3, 4, trans_b), r.nonzero(c)];
            all.push(Case::new(OpKind::Gemm { trans_a, trans_b, alpha, beta: F32(2.0) }, operands));
        }
    }
}

fn infer(op: &OpKind, operands: &[&Tensor64]) -> Vec<TensorType> {
    op.infer(&operands.iter().map(|t| &t.ty).collect::<Vec<_>>()).unwrap()
}

fn convolutions(r: &mut Random, all: &mut Vec<Case>) {
    // Strides, pads, dilations, groups and kernel; the third leaves input at the end that no window reads.
    for (s, p, d, groups, k) in [
        ([1, 1], [0, 0, 0, 0], [1, 1], 1, [1, 1]),
        ([1, 2], [1, 0, 2, 1], [1, 1], 1, [3, 2]),
        ([3, 2], [0, 0, 0, 0], [1, 2], 1, [2, 2]),
        ([1, 1], [1, 1, 1, 1], [2, 1], 2, [2, 3]),
        ([2, 1], [1, 1, 1, 1], [1, 1], 4, [3, 3]),
    ] {
        let (strides, pads, dilations) = (s.to_vec(), p.to_vec(), d.to_vec());
        let (st, pa, di) = (strides.clone(), pads.clone(), dilations.clone());
        let conv = OpKind::Conv { strides: st, pads: pa, dilations: di, groups };
        let x = r.nonzero(&[2, 4, 6, 5]);
        let w = r.nonzero(&[4, 4 / groups as u64, k[0], k[1]]);
        let dy = r.nonzero(&infer(&conv, &[&x, &w])[0].shape);
        all.push(Case::new(conv.clone(), vec![x.clone(), w.clone(), r.nonzero(&[4])]));
        all.push(Case::new(conv, vec![x.clone(), w.clone()]));
        let (st, pa, di) = (strides.clone(), pads.clone(), dilations.clone());
        let op = OpKind::ConvGradInput { strides: st, pads: pa, dilations: di, groups, size: vec![6, 5] };
        all.push(Case::new(op, vec![dy.clone(), w]));
        let op = OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel: k.to_vec() };
        all.push(Case::new(op, vec![dy, x]));
    }
}

fn pools(r: &mut Random, all: &mut Vec<Case>) {
    for (k, s, p, d, ceil) in [
        ([2, 2], [2, 2], [0, 0, 0, 0], [1, 1], false),
        ([3, 2], [2, 1], [1, 0, 1, 1], [1, 1], false),
        ([3, 3], [2, 2], [1, 1, 1, 1], [1, 1], true),
        ([2, 2], [1, 2], [0, 1, 0, 0], [2, 1], false),
    ] {
        let (kernel, strides, pads) = (k.to_vec(), s.to_vec(), p.to_vec());
        let x = r.distinct(&[2, 2, 6, 5], 0.0);
        let shape = x.shape().to_vec();
        let (ke, st, pa) = (kernel.clone(), strides.clone(), pads.clone());
        let max = OpKind::MaxPool { kernel: ke, strides: st, pads: pa, dilations: d.to_vec(), ceil };
        let pooled = eval(&max, &[&x]).unwrap();
        all.push(Case::new(max, vec![x.clone()]));
        let dy = r.nonzero(pooled[0].shape());
        let (ke, st, pa) = (kernel.clone(), strides.clone(), pads.clone());
        let again =
            OpKind::MaxPoolGradInput { kernel: ke, strides: st, pads: pa, dilations: d.to_vec(), ceil };
        all.push(Case::refused(again, vec![dy.clone(), x.clone()], SECOND));
        all.push(Case::new(OpKind::MaxPoolGrad { shape: shape.clone() }, vec![dy, pooled[1].clone()]));
        for count_pad in [false, true] {
            let (ke, st, pa) = (kernel.clone(), strides.clone(), pads.clone());
            let average = OpKind::AveragePool { kernel: ke, strides: st, pads: pa, ceil, count_pad };
            let dy = r.nonzero(&infer(&average, &[&x])[0].shape);
            all.push(Case::new(average, vec![x.clone()]));
            let (kernel, strides, pads) = (kernel.clone(), strides.clone(), pads.clone());
            let shape = shape.clone();
            let op = OpKind::AveragePoolGrad { kernel, strides, pads, ceil, count_pad, shape };
            all.push(Case::new(op, vec![dy]));
        }
    }
}

fn norms(r: &mut Random, all: &mut Vec<Case>) {
    let epsilon = F32(1e-3);
    for shape in [&[3, 2][..], &[2, 3, 4], &[2, 3, 2, 2]] {
        let channels = [shape[1]];
        all.push(Case::new(OpKind::BatchNormStats { epsilon }, vec![r.nonzero(shape)]));
        let mut operands = vec![r.nonzero(shape)];
        operands.extend((0..4).map(|_| r.nonzero(&channels)));
        all.push(Case::new(OpKind::BatchNorm {}, operands.clone()));
        for i in 0..5 {
            all.push(Case::only(OpKind::BatchNorm {}, operands.clone(), &[i]));
        }
        operands.insert(0, r.nonzero(shape));
        operands.pop();
        operands.swap(1, 0);
        let grad = OpKind::BatchNormGrad {};
        all.push(Case::refused(grad, operands, "second derivatives"));
    }
    for (shape, axis) in [(&[3, 4][..], 1), (&[2, 3, 4], 1), (&[2, 3, 4], 2), (&[5], 0)] {
        let inner = &shape[axis as usize..];
        let norm = OpKind::LayerNorm { axis, epsilon };
        let operands = vec![r.nonzero(shape), r.nonzero(inner), r.nonzero(inner)];
        all.push(Case::new(norm.clone(), operands[..2].to_vec()));
        for i in 0..3 {
            all.push(Case::only(norm.clone(), operands.clone(), &[i]));
        }
        let stats = eval(&norm, &operands.iter().collect::<Vec<_>>()).unwrap();
        let (x, scale) = (operands[0].clone(), operands[1].clone());
        all.push(Case::new(norm, operands));
        let operands = vec![r.nonzero(shape), x, scale, stats[1].clone(), stats[2].clone()];
        all.push(Case::refused(OpKind::LayerNormGrad { axis }, operands, "second derivatives"));
    }
    for axis in 0..3 {
        all.push(Case::new(OpKind::Softmax { axis }, vec![r.nonzero(&[2, 3, 4])]));
        all.push(Case::new(OpKind::LogSoftmax { axis }, vec![r.nonzero(&[2, 3, 4])]));
    }
}

fn losses(r: &mut Random, all: &mut Vec<Case>) {
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        for (shape, labels) in [(&[5, 4][..], &[5][..]), (&[2, 4, 3], &[2, 3])] {
            for ignore_index in [i64::MIN, -1] {
                let op = OpKind::CrossEntropy { reduction, ignore_index };
                let labels = r.ints(labels, if ignore_index == -1 { -1 } else { 0 }, 4);
                all.push(Case::new(op, vec![r.nonzero(shape), labels]));
            }
        }
    }
    let (reduction, ignore_index) = (Reduction::Sum, i64::MIN);
    let operands = vec![r.nonzero(&[]), r.nonzero(&[3, 4]), r.ints(&[3], 0, 4)];
    let grad = OpKind::CrossEntropyGrad { reduction, ignore_index };
    all.push(Case::refused(grad, operands, "second derivatives"));
}
