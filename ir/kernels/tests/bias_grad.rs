//! A product with the sum of an operand against the two ops, one by one: the same bits.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use common::{Random, Sample, run};
use memc_ir::attr::F32;
use memc_ir::ops::BiasGrad;
use memc_ir::{DType, OpKind};

#[test]
fn a_product_with_a_sum_gives_the_bits_of_both() {
    let r = &mut Random::new(31);
    for i in 0..120 {
        let flag = |bit: u32| i >> bit & 1 == 1;
        let (trans_a, trans_b, sum_b) = (flag(0), flag(1), flag(2));
        // Small ones, products that are cut into panels, and sums that are cut into parts.
        let most = if i < 96 { [40, 40, 60] } else { [300, 200, 3000] };
        let [m, n, k] = most.map(|most| r.below(most));
        let dtype = [DType::F32, DType::F32, DType::F16, DType::BF16][i / 8 % 4];
        let a = r.tensor(dtype, &if trans_a { [k, m] } else { [m, k] });
        let b = r.tensor(dtype, &if trans_b { [n, k] } else { [k, n] });
        let op = OpKind::MatMulBiasGrad { trans_a, trans_b, alpha: F32(0.5), sum_b };
        let BiasGrad { product, sum, of } = BiasGrad::of(&op).unwrap();
        let operands = vec![a, b];
        let mut want = run(&Sample { op: product, operands: operands.clone() }, &[]).unwrap();
        want.extend(run(&Sample { op: sum, operands: vec![operands[of].clone()] }, &[]).unwrap());
        let kept = [m, n][of];
        assert_eq!(want[1].ty.shape, [kept], "what stays is the axis of the result");
        let got = run(&Sample { op: op.clone(), operands }, &[]).unwrap();
        assert!(got == want, "{dtype} {}: {m} by {n} by {k}", op.attrs_text());
    }
}

/// The sum over all leading axes of a tensor has the bits of that over the rows of its elements as a matrix.
#[test]
fn leading_axes_are_summed_as_rows_are() {
    let r = &mut Random::new(32);
    for i in 0..60 {
        let most = if i < 45 { [6, 40, 50] } else { [5, 3000, 3] };
        let [a, b, n] = most.map(|most| r.below(most));
        let dtype = [DType::F32, DType::F16, DType::BF16][i % 3];
        let whole = r.tensor(dtype, &[a, b, n]);
        let mut rows = whole.clone();
        rows.ty.shape = vec![a * b, n];
        let sum = |axes: &[u64], x| {
            let op = OpKind::ReduceSum { axes: axes.to_vec(), keepdims: false };
            run(&Sample { op, operands: vec![x] }, &[]).unwrap()
        };
        assert!(sum(&[0, 1], whole) == sum(&[0], rows), "{dtype}[{a},{b},{n}]");
    }
}
