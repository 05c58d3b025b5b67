//! Reductions.

use crate::tensor::Results;
use crate::tensor::{Data, Tensor64, flat, points, wrapped};

/// Folds the elements of `x` over `axes`, in row-major order.
fn fold<T: Copy>(x: &Tensor64, elements: &[T], axes: &[u64], first: T, f: impl Fn(T, T) -> T) -> Vec<T> {
    let is_reduced = |a: usize| axes.contains(&(a as u64));
    let shape: Vec<u64> =
        x.shape().iter().enumerate().map(|(a, &d)| if is_reduced(a) { 1 } else { d }).collect();
    let mut out = vec![first; shape.iter().product::<u64>() as usize];
    for (p, &v) in points(x.shape()).iter().zip(elements) {
        let kept: Vec<usize> =
            p.iter().enumerate().map(|(a, &i)| if is_reduced(a) { 0 } else { i }).collect();
        let place = &mut out[flat(&shape, &kept)];
        *place = f(*place, v);
    }
    out
}

fn integer(x: &Tensor64, v: i64) -> i64 {
    wrapped(x.ty.dtype, v)
}

pub(crate) fn sum(x: &Tensor64, axes: &[u64]) -> Results {
    Ok(vec![match &x.data {
        Data::Float(v) => Data::Float(fold(x, v, axes, 0.0, |a, b| a + b)),
        Data::Int(v) => {
            Data::Int(fold(x, v, axes, 0, i64::wrapping_add).iter().map(|&v| integer(x, v)).collect())
        }
    }])
}

pub(crate) fn mean(x: &Tensor64, axes: &[u64]) -> Results {
    let count: u64 = axes.iter().map(|&a| x.shape()[a as usize]).product();
    Ok(vec![match &x.data {
        Data::Float(v) => {
            let sums = fold(x, v, axes, 0.0, |a, b| a + b);
            Data::Float(sums.iter().map(|s| s / count as f64).collect())
        }
        Data::Int(v) => {
            let sums = fold(x, v, axes, 0, i64::wrapping_add);
            let mean = |s: &i64| if count == 0 { 0 } else { integer(x, s / count as i64) };
            Data::Int(sums.iter().map(mean).collect())
        }
    }])
}

pub(crate) fn max(x: &Tensor64, axes: &[u64]) -> Results {
    let lowest = if x.ty.dtype == memc_ir::DType::I64 { i64::MIN } else { i64::from(i32::MIN) };
    Ok(vec![match &x.data {
        Data::Float(v) => Data::Float(fold(x, v, axes, f64::NEG_INFINITY, crate::elementwise::max)),
        Data::Int(v) => Data::Int(fold(x, v, axes, lowest, Ord::max)),
    }])
}
