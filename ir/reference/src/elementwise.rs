//! Element-wise ops.

use std::cmp::Ordering;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, PI};

use memc_ir::{DType, TensorType};

use crate::error::EvalError;
use crate::tensor::Results;
use crate::tensor::{Data, Tensor64, flat_broadcast, points, wrapped};

pub(crate) fn float(x: &Tensor64, f: impl Fn(f64) -> f64) -> Results {
    Ok(vec![Data::Float(x.f()?.iter().map(|&v| f(v)).collect())])
}

pub(crate) fn integer(x: &Tensor64, f: impl Fn(i64) -> i64) -> Results {
    Ok(vec![Data::Int(x.i()?.iter().map(|&v| wrapped(x.ty.dtype, f(v))).collect())])
}

pub(crate) fn numeric(x: &Tensor64, f: impl Fn(f64) -> f64, g: impl Fn(i64) -> i64) -> Results {
    if x.ty.dtype.is_float() { float(x, f) } else { integer(x, g) }
}

pub(crate) fn pair(x: &[&Tensor64], f: impl Fn(f64, f64) -> f64) -> Results {
    Ok(vec![Data::Float(x[0].f()?.iter().zip(x[1].f()?).map(|(&a, &b)| f(a, b)).collect())])
}

/// `f` or `g` of the elements that broadcasting brings together.
pub(crate) fn arithmetic(
    x: &[&Tensor64],
    y: &TensorType,
    f: impl Fn(f64, f64) -> f64,
    g: impl Fn(i64, i64) -> i64,
) -> Results {
    let all = points(&y.shape);
    let places = all.iter().map(|p| (flat_broadcast(x[0].shape(), p), flat_broadcast(x[1].shape(), p)));
    Ok(vec![match (&x[0].data, &x[1].data) {
        (Data::Float(a), Data::Float(b)) => Data::Float(places.map(|(i, j)| f(a[i], b[j])).collect()),
        (Data::Int(a), Data::Int(b)) => {
            Data::Int(places.map(|(i, j)| wrapped(y.dtype, g(a[i], b[j]))).collect())
        }
        _ => return Err("operands differ in element type".into()),
    }])
}

pub(crate) fn compare(x: &[&Tensor64], y: &TensorType, holds: impl Fn(Option<Ordering>) -> bool) -> Results {
    let order = |p: &Vec<usize>| {
        let (i, j) = (flat_broadcast(x[0].shape(), p), flat_broadcast(x[1].shape(), p));
        match (&x[0].data, &x[1].data) {
            (Data::Float(a), Data::Float(b)) => a[i].partial_cmp(&b[j]),
            (Data::Int(a), Data::Int(b)) => Some(a[i].cmp(&b[j])),
            _ => None,
        }
    };
    Ok(vec![Data::Int(points(&y.shape).iter().map(|p| i64::from(holds(order(p)))).collect())])
}

pub(crate) fn select(x: &[&Tensor64], y: &TensorType) -> Results {
    let cond = x[0].i()?;
    let all = points(&y.shape);
    let places = all.iter().map(|p| {
        let source = if cond[flat_broadcast(x[0].shape(), p)] != 0 { x[1] } else { x[2] };
        (source, flat_broadcast(source.shape(), p))
    });
    Ok(vec![if y.dtype.is_float() {
        Data::Float(places.map(|(t, i)| Ok(t.f()?[i])).collect::<Result<_, EvalError>>()?)
    } else {
        Data::Int(places.map(|(t, i)| Ok(t.i()?[i])).collect::<Result<_, EvalError>>()?)
    }])
}

pub(crate) fn cast(x: &Tensor64, to: DType) -> Results {
    let data = match (&x.data, to) {
        (Data::Float(v), to) if to.is_float() => Data::Float(v.clone()),
        (Data::Int(v), to) if to.is_float() => Data::Float(v.iter().map(|&v| v as f64).collect()),
        (Data::Float(v), DType::Bool) => Data::Int(v.iter().map(|&v| i64::from(v != 0.0)).collect()),
        (Data::Int(v), DType::Bool) => Data::Int(v.iter().map(|&v| i64::from(v != 0)).collect()),
        (Data::Float(v), DType::I32) => Data::Int(v.iter().map(|&v| i64::from(v as i32)).collect()),
        (Data::Float(v), DType::I8) => Data::Int(v.iter().map(|&v| i64::from(v as i8)).collect()),
        (Data::Float(v), DType::U8) => Data::Int(v.iter().map(|&v| i64::from(v as u8)).collect()),
        (Data::Float(v), _) => Data::Int(v.iter().map(|&v| v as i64).collect()),
        (Data::Int(v), to) => Data::Int(v.iter().map(|&v| wrapped(to, v)).collect()),
    };
    Ok(vec![data])
}

pub(crate) fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x } else { x.signum() }
}

pub(crate) fn relu(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

pub(crate) fn min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

pub(crate) fn max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

pub(crate) fn divide(a: i64, b: i64) -> i64 {
    if b == 0 { 0 } else { a.wrapping_div(b) }
}

/// Repeated multiplication; the truncated real power for a negative exponent, and 0 for a power of 0 there.
pub(crate) fn power(a: i64, b: i64) -> i64 {
    if b >= 0 {
        (0..b).fold(1, |y: i64, _| y.wrapping_mul(a))
    } else if a.abs() == 1 {
        if b % 2 == 0 { 1 } else { a }
    } else {
        0
    }
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * P(N(0, 1) <= x)`, or its tanh approximation.
///
/// Source: D. Hendrycks, K. Gimpel, *Gaussian Error Linear Units*, equation 2.
pub(crate) fn gelu(x: f64, tanh: bool) -> f64 {
    if tanh { 0.5 * x * (1.0 + inner(x).tanh()) } else { 0.5 * x * (1.0 + libm::erf(x * FRAC_1_SQRT_2)) }
}

fn inner(x: f64) -> f64 {
    FRAC_2_PI.sqrt() * (x + 0.044715 * x * x * x)
}

/// The derivative of [`gelu`].
pub(crate) fn gelu_slope(x: f64, tanh: bool) -> f64 {
    if tanh {
        let t = inner(x).tanh();
        let slope = FRAC_2_PI.sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope
    } else {
        0.5 * (1.0 + libm::erf(x * FRAC_1_SQRT_2)) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
    }
}
