//! Whether an operand is transposed in memory or through a flag, and which of two products is transposed,
//! does not change a bit: the compiler relies on it when it removes transposes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use common::Random;
use memc_ir::OpKind;
use memc_ir::attr::F32;
use memc_kernels::interp::{Tensor, eval};

/// Extents (m, n, k): few results, one row or column, short sums, long sums, panels with a small rest.
const EXTENTS: &[[u64; 3]] = &[
    [1, 1, 1],
    [1, 7, 5],
    [9, 1, 70],
    [1, 200, 300],
    [300, 1, 20],
    [5, 3, 900],
    [16, 16, 600],
    [40, 50, 2],
    [17, 16, 33],
    [300, 2, 1000],
    [2, 300, 40],
    [257, 3, 700],
    [257, 40, 70],
    [129, 70, 1100],
    [40, 20, 2100],
    [641, 90, 30],
    [20, 30, 513],
    [30, 20, 1026],
];

fn transposed(t: &Tensor) -> Tensor {
    eval(&OpKind::Transpose { perm: vec![1, 0] }, &[t]).unwrap().remove(0)
}

fn bits(t: &Tensor) -> Vec<u32> {
    t.elements::<f32>().unwrap().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn flags_and_transposed_tensors_give_the_same_bits() {
    let r = &mut Random::new(11);
    for &[m, n, k] in EXTENTS {
        let (a, b, c) = (r.f32(&[m, k]), r.f32(&[k, n]), r.f32(&[m, n]));
        let (at, bt) = (transposed(&a), transposed(&b));
        for alpha in [1.0, 0.3].map(F32) {
            let flags = [
                (false, false, &a, &b),
                (true, false, &at, &b),
                (false, true, &a, &bt),
                (true, true, &at, &bt),
            ];
            let product = |(trans_a, trans_b, a, b): (bool, bool, &Tensor, &Tensor)| {
                let y = eval(&OpKind::MatMul { trans_a, trans_b, alpha }, &[a, b]).unwrap().remove(0);
                let gemm = OpKind::Gemm { trans_a, trans_b, alpha, beta: F32(0.7) };
                [bits(&y), bits(&eval(&gemm, &[a, b, &c]).unwrap().remove(0))]
            };
            let want = product(flags[0]);
            for other in &flags[1..] {
                assert!(product(*other) == want, "[{m}, {n}, {k}] with {} {}", other.0, other.1);
            }
        }
    }
}

#[test]
fn the_transpose_of_a_product_is_the_product_of_the_transposes() {
    let r = &mut Random::new(12);
    for &[m, n, k] in EXTENTS {
        let (a, b) = (r.f32(&[m, k]), r.f32(&[k, n]));
        let product = |trans_a, trans_b, a: &Tensor, b: &Tensor| {
            eval(&OpKind::MatMul { trans_a, trans_b, alpha: F32(1.0) }, &[a, b]).unwrap().remove(0)
        };
        let want = bits(&transposed(&product(false, false, &a, &b)));
        assert!(bits(&product(true, true, &b, &a)) == want, "[{m}, {n}, {k}]");
    }
}
