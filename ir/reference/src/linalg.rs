//! Matrix products.

use memc_ir::TensorType;

use crate::error::EvalError;
use crate::tensor::Results;
use crate::tensor::{Data, Tensor64, flat_broadcast, points};

/// The element in row `i` and column `j` of the matrix that `t` holds at the leading multi-index `lead`.
fn element(t: &Tensor64, lead: &[usize], i: usize, j: usize, trans: bool) -> Result<f64, EvalError> {
    let (i, j) = if trans { (j, i) } else { (i, j) };
    let (outer, matrix) = t.shape().split_at(t.ty.rank() - 2);
    let at = flat_broadcast(outer, lead);
    Ok(t.f()?[(at * matrix[0] as usize + i) * matrix[1] as usize + j])
}

fn product(x: &[&Tensor64], y: &TensorType, ta: bool, tb: bool, alpha: f32) -> Result<Vec<f64>, EvalError> {
    let a = x[0].shape();
    let inner = a[a.len() - if ta { 2 } else { 1 }] as usize;
    let mut out = Vec::new();
    for p in points(&y.shape) {
        let (lead, ij) = p.split_at(p.len() - 2);
        let mut sum = 0.0;
        for k in 0..inner {
            sum += element(x[0], lead, ij[0], k, ta)? * element(x[1], lead, k, ij[1], tb)?;
        }
        out.push(f64::from(alpha) * sum);
    }
    Ok(out)
}

pub(crate) fn matmul(x: &[&Tensor64], y: &TensorType, ta: bool, tb: bool, alpha: f32) -> Results {
    Ok(vec![Data::Float(product(x, y, ta, tb, alpha)?)])
}

pub(crate) fn gemm(x: &[&Tensor64], y: &TensorType, ta: bool, tb: bool, alpha: f32, beta: f32) -> Results {
    let mut out = product(&x[..2], y, ta, tb, alpha)?;
    let c = x[2].f()?;
    for (v, p) in out.iter_mut().zip(points(&y.shape)) {
        *v += f64::from(beta) * c[flat_broadcast(x[2].shape(), &p)];
    }
    Ok(vec![Data::Float(out)])
}

pub(crate) fn matmul_bias_grad(
    x: &[&Tensor64],
    y: &TensorType,
    [ta, tb]: [bool; 2],
    alpha: f32,
    sum_b: bool,
) -> Results {
    let product = product(x, y, ta, tb, alpha)?;
    // The place of the other axis, and of the one that is summed over.
    let (of, trans) = if sum_b { (x[1], !tb) } else { (x[0], ta) };
    let [rows, columns] = [0, 1].map(|axis| of.shape()[axis] as usize);
    let (kept, summed) = if trans { (columns, rows) } else { (rows, columns) };
    let mut sums = vec![0.0; kept];
    for (i, sum) in sums.iter_mut().enumerate() {
        for k in 0..summed {
            *sum += element(of, &[], i, k, trans)?;
        }
    }
    Ok(vec![Data::Float(product), Data::Float(sums)])
}
