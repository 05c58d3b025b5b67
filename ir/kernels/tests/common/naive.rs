//! Tools of naive references: multi-indices, random shapes, comparison.

use arbtest::arbitrary::{Result, Unstructured};
use memc_ir::OpKind;
use memc_kernels::interp::Tensor;

use super::{Random, Sample, run};

/// Time one property may take.
pub(crate) const BUDGET_MS: u64 = 60;

pub(crate) fn one(op: OpKind, operands: &[&Tensor]) -> Tensor {
    let sample = Sample { op, operands: operands.iter().map(|&t| t.clone()).collect() };
    run(&sample, &[]).unwrap_or_else(|e| panic!("{e}")).remove(0)
}

/// All multi-indices of a shape, in row-major order.
pub(crate) fn points(shape: &[u64]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &d in shape {
        all = all.iter().flat_map(|p| (0..d as usize).map(|i| [&p[..], &[i]].concat())).collect();
    }
    all
}

/// Position of a multi-index, aligned to the innermost axes and repeating axes of extent 1.
pub(crate) fn flat(shape: &[u64], at: &[usize]) -> usize {
    let at = &at[at.len() - shape.len()..];
    shape.iter().zip(at).fold(0, |f, (&d, &i)| f * d as usize + if d == 1 { 0 } else { i })
}

pub(crate) fn shape(u: &mut Unstructured, rank: usize, max: u64) -> Result<Vec<u64>> {
    (0..rank).map(|_| u.int_in_range(0..=max).map(|d| if d == 0 && max > 3 { 1 } else { d })).collect()
}

/// A shape that broadcasts to `full`.
pub(crate) fn smaller(u: &mut Unstructured, full: &[u64]) -> Result<Vec<u64>> {
    let skip = u.int_in_range(0..=full.len())?;
    full[skip..].iter().map(|&d| Ok(if u.arbitrary()? { d } else { 1 })).collect()
}

pub(crate) fn random(u: &mut Unstructured) -> Result<Random> {
    Ok(Random::new(u.arbitrary()?))
}

pub(crate) fn close(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(g) - w).abs() <= tolerance * (1.0 + w.abs()), "element {i} is {g}, not {w}");
    }
}
