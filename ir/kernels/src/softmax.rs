//! Softmax, its logarithm and its gradient along one axis.

use rayon::prelude::*;

use crate::elementwise::apply;
use crate::error::KernelError;
use crate::num::{Num, fold, sums};
use crate::parallel::{INLINE, for_rows};
use crate::view::{Ctx, Src, around, axis_of};

type Done = Result<(), KernelError>;

/// Columns that are normalised together when the axis is not the innermost one.
const COLUMNS: usize = 64;

pub(crate) fn softmax(c: &Ctx, y: &mut [u8], axis: i64, log: bool) -> Done {
    let axis = axis_of(c, axis, c.results[0].rank())?;
    let (_, extent, inner) = around(&c.results[0].shape, axis);
    normalise(c.src(0)?, c.out(y)?, extent, inner, log);
    Ok(())
}

/// Writes the (log-)softmax of `x` along an axis of `extent` elements, `inner` apart, to `y`.
pub(crate) fn normalise(x: Src<f32>, y: &mut [f32], extent: usize, inner: usize, log: bool) {
    // The work is dominated by the exponential.
    let slab = extent * inner;
    for_rows(y, slab, slab.saturating_mul(4), |first, y| {
        for (i, y) in y.chunks_exact_mut(slab).enumerate() {
            if let Src::Slice(x) = x {
                y.copy_from_slice(&x[(first + i) * slab..][..slab]);
            }
            if inner == 1 {
                row(y, log);
            } else {
                columns(y, inner, log);
            }
        }
    });
}

fn row(y: &mut [f32], log: bool) {
    let max = fold(y, f32::NEG_INFINITY, Num::max, Num::max);
    if log {
        let total: f64 = y.iter().map(|&x| f64::from(libm::expf(x - max))).sum();
        let shift = libm::log(total) as f32;
        y.iter_mut().for_each(|x| *x = (*x - max) - shift);
    } else {
        let mut total = 0.0f64;
        for x in y.iter_mut() {
            *x = libm::expf(*x - max);
            total += f64::from(*x);
        }
        let scale = (1.0 / total) as f32;
        y.iter_mut().for_each(|x| *x *= scale);
    }
}

fn columns(y: &mut [f32], inner: usize, log: bool) {
    for begin in (0..inner).step_by(COLUMNS) {
        let width = COLUMNS.min(inner - begin);
        let (mut max, mut total) = ([f32::NEG_INFINITY; COLUMNS], [0.0f64; COLUMNS]);
        for y in y.chunks_exact(inner) {
            max.iter_mut().zip(&y[begin..begin + width]).for_each(|(m, &x)| *m = Num::max(*m, x));
        }
        for y in y.chunks_exact_mut(inner) {
            let each = y[begin..begin + width].iter_mut().zip(&max).zip(&mut total);
            for ((x, &max), total) in each {
                let e = libm::expf(*x - max);
                *total += f64::from(e);
                if !log {
                    *x = e;
                }
            }
        }
        let last = total.map(|t| (if log { libm::log(t) } else { 1.0 / t }) as f32);
        for y in y.chunks_exact_mut(inner) {
            for ((x, &max), &last) in y[begin..begin + width].iter_mut().zip(&max).zip(&last) {
                *x = if log { (*x - max) - last } else { *x * last };
            }
        }
    }
}

pub(crate) fn softmax_grad(c: &Ctx, dx: &mut [u8], axis: i64) -> Done {
    let (dy, y) = (c.src::<f32>(0)?, c.src::<f32>(1)?);
    let axis = axis_of(c, axis, c.results[0].rank())?;
    let (_, extent, inner) = around(&c.results[0].shape, axis);
    let (slab, dx) = (extent * inner, c.out::<f32>(dx)?);
    if slab == 0 {
        return Ok(());
    }
    let one = |i: usize, dx: &mut [f32]| {
        for begin in (0..inner).step_by(COLUMNS) {
            let width = COLUMNS.min(inner - begin);
            let mut total = [0.0f64; COLUMNS];
            let (dys, ys) = (dy.view_at(i * slab, dx), y.view_at(i * slab, dx));
            for (dy, y) in dys.chunks_exact(inner).zip(ys.chunks_exact(inner)) {
                let dy_y = dy[begin..begin + width].iter().zip(&y[begin..begin + width]);
                total.iter_mut().zip(dy_y).for_each(|(t, (&dy, &y))| *t += f64::from(dy) * f64::from(y));
            }
            let total = total.map(|t| t as f32);
            for (r, dx) in dx.chunks_exact_mut(inner).enumerate() {
                let at = (i * slab + r * inner + begin) as isize;
                let (dy, y) = (dy.lane(at, width, 1), y.lane(at, width, 1));
                apply(&mut dx[begin..begin + width], dy, y, |j, dy, y| (dy - total[j]) * y);
            }
        }
    };
    if inner == 1 {
        let rows = |first: usize, dx: &mut [f32]| {
            for (i, dx) in dx.chunks_exact_mut(extent).enumerate() {
                let at = (first + i) * extent;
                let (dys, ys) = (dy.view_at(at, dx), y.view_at(at, dx));
                let total = sums(dys, ys, |dy, y| [dy * y, 0.0])[0] as f32;
                let (dy, y) = (dy.lane(at as isize, extent, 1), y.lane(at as isize, extent, 1));
                apply(dx, dy, y, |_, dy, y| (dy - total) * y);
            }
        };
        for_rows(dx, extent, extent, rows);
    } else if dx.len() < INLINE {
        dx.chunks_exact_mut(slab).enumerate().for_each(|(i, dx)| one(i, dx));
    } else {
        dx.par_chunks_exact_mut(slab).enumerate().for_each(|(i, dx)| one(i, dx));
    }
    Ok(())
}
