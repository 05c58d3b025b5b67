//! Ops that move or repeat elements.

use memc_ir::TensorType;
use memc_ir::attr::Scalar;

use crate::tensor::Results;
use crate::tensor::{Data, Tensor64, flat, flat_broadcast, points};

/// Element `p` of the result is element `from(p)` of `x`, or `other` where that is `None`.
fn moved(
    x: &Tensor64,
    y: &TensorType,
    other: (f64, i64),
    from: impl Fn(&[usize]) -> Option<Vec<usize>>,
) -> Results {
    let places: Vec<Option<usize>> =
        points(&y.shape).iter().map(|p| from(p).map(|q| flat(x.shape(), &q))).collect();
    Ok(vec![x.pick(&y.shape, &places, other).data])
}

pub(crate) fn transpose(x: &Tensor64, y: &TensorType, perm: &[u64]) -> Results {
    moved(x, y, (0.0, 0), |p| {
        let mut q = vec![0; p.len()];
        perm.iter().zip(p).for_each(|(&axis, &i)| q[axis as usize] = i);
        Some(q)
    })
}

pub(crate) fn broadcast(x: &Tensor64, y: &TensorType) -> Results {
    let places: Vec<Option<usize>> =
        points(&y.shape).iter().map(|p| Some(flat_broadcast(x.shape(), p))).collect();
    Ok(vec![x.pick(&y.shape, &places, (0.0, 0)).data])
}

pub(crate) fn slice(x: &Tensor64, y: &TensorType, starts: &[i64], steps: &[i64]) -> Results {
    moved(x, y, (0.0, 0), |p| {
        Some(p.iter().enumerate().map(|(a, &i)| (starts[a] + i as i64 * steps[a]) as usize).collect())
    })
}

pub(crate) fn concat(x: &[&Tensor64], y: &TensorType, axis: i64) -> Results {
    let axis = axis as usize;
    let (mut floats, mut ints) = (Vec::new(), Vec::new());
    for mut p in points(&y.shape) {
        let mut parts = x.iter();
        let part = loop {
            let part = parts.next().ok_or("the parts are too short")?;
            let extent = part.shape()[axis] as usize;
            if p[axis] < extent {
                break part;
            }
            p[axis] -= extent;
        };
        let i = flat(part.shape(), &p);
        match &part.data {
            Data::Float(v) => floats.push(v[i]),
            Data::Int(v) => ints.push(v[i]),
        }
    }
    Ok(vec![if y.dtype.is_float() { Data::Float(floats) } else { Data::Int(ints) }])
}

/// A scalar attribute as an element of either kind.
fn element(value: Scalar) -> (f64, i64) {
    match value {
        Scalar::Float(v) => (f64::from(v.0), 0),
        Scalar::Int(v) => (v as f64, v),
    }
}

pub(crate) fn pad(x: &Tensor64, y: &TensorType, before: &[u64], value: Scalar) -> Results {
    moved(x, y, element(value), |p| {
        let inside = |a: usize| p[a].checked_sub(before[a] as usize).filter(|&i| i < x.shape()[a] as usize);
        (0..p.len()).map(inside).collect()
    })
}

pub(crate) fn fill(y: &TensorType, value: Scalar) -> Results {
    let (n, (float, int)) = (y.numel() as usize, element(value));
    Ok(vec![if y.dtype.is_float() { Data::Float(vec![float; n]) } else { Data::Int(vec![int; n]) }])
}
