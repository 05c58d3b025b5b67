//! Gather and scatter.

use memc_ir::TensorType;
use memc_ir::attr::ScatterMode;

use crate::elementwise::{max, min};
use crate::error::EvalError;
use crate::tensor::Results;
use crate::tensor::{Data, Tensor64, at, flat, points, resolve, wrapped};

/// Position in a tensor of shape `data` of slice element `p`, whose axes from `axis` on are those of the
/// indices.
fn gathered(data: &[u64], indices: &Tensor64, p: &[usize], axis: usize) -> Result<usize, EvalError> {
    let end = axis + indices.ty.rank();
    let index = indices.i()?[flat(indices.shape(), &p[axis..end])];
    let q = [&p[..axis], &[resolve(index, data[axis])?], &p[end..]].concat();
    Ok(flat(data, &q))
}

pub(crate) fn gather(x: &[&Tensor64], y: &TensorType, axis: i64) -> Results {
    let place = |p: &Vec<usize>| gathered(x[0].shape(), x[1], p, axis as usize).map(Some);
    let places = points(&y.shape).iter().map(place).collect::<Result<Vec<_>, _>>()?;
    Ok(vec![x[0].pick(&y.shape, &places, (0.0, 0)).data])
}

pub(crate) fn gather_grad(x: &[&Tensor64], y: &TensorType, axis: i64) -> Results {
    let mut out = vec![0.0; y.numel() as usize];
    for (p, g) in points(x[1].shape()).iter().zip(x[1].f()?) {
        out[gathered(&y.shape, x[0], p, axis as usize)?] += g;
    }
    Ok(vec![Data::Float(out)])
}

pub(crate) fn top_k(x: &Tensor64, y: &TensorType, axis: usize, smallest: bool) -> Results {
    let shape = x.shape();
    let mut lanes = shape.to_vec();
    lanes[axis] = 1;
    let mut out = vec![0; y.numel() as usize];
    for p in points(&lanes) {
        let place = |i: usize| flat(shape, &at(&p, axis, i));
        let order = |&a: &usize, &b: &usize| {
            let by = match &x.data {
                // NaN is the largest.
                Data::Float(v) => {
                    let (a, b) = (v[place(a)], v[place(b)]);
                    a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal))
                }
                Data::Int(v) => v[place(a)].cmp(&v[place(b)]),
            };
            if smallest { by } else { by.reverse() }
        };
        let mut places: Vec<usize> = (0..shape[axis] as usize).collect();
        places.sort_by(order);
        for (to, from) in places.into_iter().take(y.shape[axis] as usize).enumerate() {
            out[flat(&y.shape, &at(&p, axis, to))] = from as i64;
        }
    }
    Ok(vec![Data::Int(out)])
}

/// Position in `data` that index element `p` names along `axis`.
fn elementwise(data: &[u64], indices: &Tensor64, p: &[usize], axis: usize) -> Result<usize, EvalError> {
    let index = indices.i()?[flat(indices.shape(), p)];
    Ok(flat(data, &at(p, axis, resolve(index, data[axis])?)))
}

pub(crate) fn gather_elements(x: &[&Tensor64], y: &TensorType, axis: i64) -> Results {
    let place = |p: &Vec<usize>| elementwise(x[0].shape(), x[1], p, axis as usize).map(Some);
    let places = points(&y.shape).iter().map(place).collect::<Result<Vec<_>, _>>()?;
    Ok(vec![x[0].pick(&y.shape, &places, (0.0, 0)).data])
}

/// `data` with `updates[i]` put at `places[i]`, one after another.
fn scattered(data: &Tensor64, updates: &Tensor64, places: &[usize], mode: ScatterMode) -> Results {
    Ok(vec![match (&data.data, &updates.data) {
        (Data::Float(x), Data::Float(u)) => {
            let mut y = x.clone();
            for (&i, &u) in places.iter().zip(u) {
                y[i] = match mode {
                    ScatterMode::Replace => u,
                    ScatterMode::Add => y[i] + u,
                    ScatterMode::Mul => y[i] * u,
                    ScatterMode::Min => min(y[i], u),
                    ScatterMode::Max => max(y[i], u),
                };
            }
            Data::Float(y)
        }
        (Data::Int(x), Data::Int(u)) => {
            let mut y = x.clone();
            for (&i, &u) in places.iter().zip(u) {
                let next = match mode {
                    ScatterMode::Replace => u,
                    ScatterMode::Add => y[i].wrapping_add(u),
                    ScatterMode::Mul => y[i].wrapping_mul(u),
                    ScatterMode::Min => y[i].min(u),
                    ScatterMode::Max => y[i].max(u),
                };
                y[i] = wrapped(data.ty.dtype, next);
            }
            Data::Int(y)
        }
        _ => return Err("updates and data differ in element type".into()),
    }])
}

pub(crate) fn scatter_elements(x: &[&Tensor64], axis: i64, mode: ScatterMode) -> Results {
    let place = |p: &Vec<usize>| elementwise(x[0].shape(), x[1], p, axis as usize);
    let places = points(x[1].shape()).iter().map(place).collect::<Result<Vec<_>, _>>()?;
    scattered(x[0], x[2], &places, mode)
}

/// For every element of the slices that index tuples name, its position in a tensor of shape `data`.
fn tuples(data: &[u64], indices: &Tensor64, slices: &[u64], batch: usize) -> Result<Vec<usize>, EvalError> {
    let outer = indices.ty.rank() - 1;
    let depth = indices.shape()[outer] as usize;
    let place = |p: &Vec<usize>| {
        let mut q = p[..batch].to_vec();
        for (i, &extent) in data[batch..batch + depth].iter().enumerate() {
            let index = indices.i()?[flat(indices.shape(), &[&p[..outer], &[i]].concat())];
            q.push(resolve(index, extent)?);
        }
        q.extend(&p[outer..]);
        Ok(flat(data, &q))
    };
    points(slices).iter().map(place).collect()
}

pub(crate) fn gather_nd(x: &[&Tensor64], y: &TensorType, batch_dims: i64) -> Results {
    let places = tuples(x[0].shape(), x[1], &y.shape, batch_dims as usize)?;
    let places: Vec<Option<usize>> = places.into_iter().map(Some).collect();
    Ok(vec![x[0].pick(&y.shape, &places, (0.0, 0)).data])
}

pub(crate) fn scatter_nd(x: &[&Tensor64], mode: ScatterMode, batch_dims: i64) -> Results {
    let places = tuples(x[0].shape(), x[1], x[2].shape(), batch_dims as usize)?;
    scattered(x[0], x[2], &places, mode)
}
