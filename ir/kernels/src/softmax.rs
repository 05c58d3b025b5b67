//! Softmax, its logarithm and its gradient along one axis.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::elementwise::apply;
use crate::error::KernelError;
use crate::num::wide::{LANES, fold, sums};
use crate::num::{Num, special};
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
                Arch::new().dispatch(Row { y, log });
            } else {
                Arch::new().dispatch(Slab { y, inner, log });
            }
        }
    });
}

/// One slab, in place.
struct Slab<'a> {
    y: &'a mut [f32],
    inner: usize,
    log: bool,
}

impl WithSimd for Slab<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Slab { y, inner, log } = self;
        for begin in (0..inner).step_by(COLUMNS) {
            let width = COLUMNS.min(inner - begin);
            let (mut max, mut total) = ([f32::NEG_INFINITY; COLUMNS], [0.0f64; COLUMNS]);
            for y in y.chunks_exact(inner) {
                max.iter_mut().zip(&y[begin..begin + width]).for_each(|(m, &x)| *m = Num::max(*m, x));
            }
            for y in y.chunks_exact_mut(inner) {
                let each = y[begin..begin + width].iter_mut().zip(&max).zip(&mut total);
                for ((x, &max), total) in each {
                    let e = special::exp(*x - max);
                    *total += f64::from(e);
                    *x = if log { *x } else { e };
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
}

/// [`Slab`] for adjacent elements along the axis.
struct Row<'a> {
    y: &'a mut [f32],
    log: bool,
}

impl WithSimd for Row<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Row { y, log } = self;
        let max = fold(y, f32::NEG_INFINITY, Num::max, Num::max);
        let mut total = [0.0f64; LANES];
        for block in y.chunks_mut(LANES) {
            for (x, total) in block.iter_mut().zip(&mut total) {
                let e = special::exp(*x - max);
                *total += f64::from(e);
                *x = if log { *x } else { e };
            }
        }
        let total: f64 = total.iter().sum();
        let last = (if log { libm::log(total) } else { 1.0 / total }) as f32;
        for x in y {
            *x = if log { (*x - max) - last } else { *x * last };
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
