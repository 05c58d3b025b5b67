//! Cases of element-wise ops and optimizer updates.

use memc_ir::attr::F32;
use memc_ir::{DType, OpKind};
use memc_reference::Tensor64;

use crate::support::{Case, Expect, Random};

pub(crate) const SECOND: &str = "second derivatives";
const STEP: &str = "its derivative is zero";
const UPDATE: &str = "optimizer's update";
const FUSED: &str = "after gradients are taken";

pub(crate) fn cases(all: &mut Vec<Case>) {
    let r = &mut Random::new(1);
    unary(r, all);
    binary(r, all);
    integers(r, all);
    gradient_rows(r, all);
    optimizers(r, all);
}

fn unary(r: &mut Random, all: &mut Vec<Case>) {
    use OpKind::*;
    let shape = [2, 3];
    for op in
        [Neg {}, Abs {}, Exp {}, Reciprocal {}, Tanh {}, Sigmoid {}, Erf {}, Relu {}, Atan {}, Sin {}, Cos {}]
    {
        all.push(Case::new(op.clone(), vec![r.nonzero(&shape)]));
        all.push(Case::new(op, vec![r.nonzero(&[])]));
    }
    for op in [Gelu { tanh: false }, Gelu { tanh: true }, Cast { to: DType::F32 }, Copy {}] {
        all.push(Case::new(op, vec![r.nonzero(&shape)]));
    }
    for op in [Log {}, Sqrt {}] {
        all.push(Case::new(op, vec![r.floats(&shape, 0.3, 3.0)]));
    }
    for op in [Sign {}, Floor {}, Ceil {}, Round {}] {
        all.push(Case::refused(op, vec![r.nonzero(&shape)], STEP));
    }
    all.push(Case { expect: Expect::Nothing, ..Case::new(StopGradient {}, vec![r.nonzero(&shape)]) });
    all.push(Case::new(Cast { to: DType::I64 }, vec![r.nonzero(&shape)]));
    all.push(Case::new(Cast { to: DType::F32 }, vec![r.ints(&shape, -3, 3)]));
}

/// Pairs of shapes that broadcast to each other in every way.
const BROADCASTS: [(&[u64], &[u64]); 8] = [
    (&[2, 3], &[2, 3]),
    (&[2, 3], &[3]),
    (&[3], &[2, 3]),
    (&[2, 1], &[1, 3]),
    (&[2, 1, 3], &[4, 1]),
    (&[], &[2, 3]),
    (&[1, 1], &[2]),
    (&[1, 2, 1, 2], &[1, 1, 3, 1]),
];

fn binary(r: &mut Random, all: &mut Vec<Case>) {
    use OpKind::*;
    for (a, b) in BROADCASTS {
        for op in [Add {}, Sub {}, Mul {}, Div {}] {
            let operands = vec![r.nonzero(a), r.nonzero(b)];
            all.push(Case::new(op.clone(), operands.clone()));
            all.push(Case::only(op.clone(), operands.clone(), &[0]));
            all.push(Case::only(op, operands, &[1]));
        }
        all.push(Case::new(Pow {}, vec![r.floats(a, 0.3, 2.0), r.nonzero(b)]));
        for op in [Min {}, Max {}] {
            let operands = vec![r.distinct(a, 0.0), r.distinct(b, 0.02)];
            all.push(Case::new(op.clone(), operands.clone()));
            all.push(Case::only(op.clone(), operands.clone(), &[0]));
            all.push(Case::only(op, operands, &[1]));
        }
        for cond in [&[2, 1][..], b] {
            let broadcasts = memc_ir::ops::broadcast_shapes(cond, a);
            if broadcasts.and_then(|s| memc_ir::ops::broadcast_shapes(&s, b)).is_ok() {
                all.push(Case::new(Select {}, vec![r.bools(cond), r.nonzero(a), r.nonzero(b)]));
            }
        }
    }
    // Of a negative base only the base has a derivative.
    let exponents = Tensor64::floats(&[4], vec![2.0, 3.0, -1.0, 0.0]);
    all.push(Case::only(Pow {}, vec![r.nonzero(&[2, 4]), exponents], &[0]));
}

fn integers(r: &mut Random, all: &mut Vec<Case>) {
    use OpKind::*;
    for op in [Equal {}, Less {}, LessEqual {}, Greater {}, GreaterEqual {}] {
        all.push(Case::new(op, vec![r.nonzero(&[2, 3]), r.nonzero(&[3])]));
    }
    for op in [And {}, Or {}] {
        all.push(Case::new(op, vec![r.bools(&[2, 3]), r.bools(&[3])]));
    }
    all.push(Case::new(Not {}, vec![r.bools(&[2, 3])]));
    all.push(Case::new(Add {}, vec![r.ints(&[2, 3], 0, 5), r.ints(&[3], 0, 5)]));
}

fn gradient_rows(r: &mut Random, all: &mut Vec<Case>) {
    use OpKind::*;
    let mut pair = || vec![r.nonzero(&[2, 3]), r.nonzero(&[2, 3])];
    // The step of relu_grad in `y` has no slope.
    all.push(Case::only(ReluGrad {}, pair(), &[0]));
    all.push(Case::new(TanhGrad {}, pair()));
    all.push(Case::new(SigmoidGrad {}, pair()));
    all.push(Case::refused(GeluGrad { tanh: false }, pair(), SECOND));
    all.push(Case::refused(GeluGrad { tanh: true }, pair(), SECOND));
    all.push(Case::refused(SoftmaxGrad { axis: 1 }, pair(), SECOND));
    all.push(Case::new(MovingAverage { momentum: F32(0.75), scale: F32(1.25) }, pair()));
}

fn optimizers(r: &mut Random, all: &mut Vec<Case>) {
    let mut four = || (0..4).map(|_| r.floats(&[3], 0.3, 1.0)).collect::<Vec<_>>();
    let lr = || Tensor64::floats(&[], vec![0.1]);
    let (alpha, beta, epsilon, zero) = (F32(0.9), F32(0.5), F32(1e-6), F32(0.0));
    let with = |mut states: Vec<Tensor64>, n: usize| {
        states.truncate(n);
        states.push(lr());
        states
    };
    all.push(Case::refused(OpKind::Sgd {}, with(four(), 2), UPDATE));
    let counters = [Tensor64::ints(&[], vec![3]), Tensor64::ints(&[2], vec![0, -1])];
    all.push(Case::new(OpKind::Increment { by: 2 }, counters.to_vec()));
    let body = "{body = \"mul(x0, x1)\", outs = [0]}";
    all.push(Case::refused(memc_ir::parse_op("fused", body).unwrap(), four()[..2].to_vec(), FUSED));
    let body = "{body = \"neg(x0); layer_norm(t0, x1) {axis = 0, epsilon = 1e-5}\", outs = [1]}";
    all.push(Case::refused(memc_ir::parse_op("fused_norm", body).unwrap(), four()[..2].to_vec(), FUSED));
    let op = OpKind::Momentum { alpha, beta, l2: zero, nesterov: true };
    all.push(Case::refused(op, with(four(), 3), UPDATE));
    let op = OpKind::Adagrad { epsilon, l2: zero, decay: zero };
    all.push(Case::refused(op, with(four(), 3), UPDATE));
    let (weight_decay, l2) = (zero, zero);
    let op =
        OpKind::AdamW { alpha, beta, epsilon, weight_decay, bias_correction: true, decay_first: false, l2 };
    let mut operands = with(four(), 4);
    operands.push(Tensor64::ints(&[], vec![3]));
    all.push(Case::refused(op, operands, UPDATE));
    let op = OpKind::MatMulBiasGrad { trans_a: true, trans_b: false, alpha, sum_b: false };
    all.push(Case::refused(op, vec![r.nonzero(&[2, 3]), r.nonzero(&[2, 4])], FUSED));
}
