//! Batch and layer normalisation. Statistics are summed in double precision.

use crate::elementwise::apply;
use crate::error::KernelError;
use pulp::{Arch, Simd, WithSimd};

use crate::num::wide::{sum, sums, sums3};
use crate::parallel::{for_images, for_rows, for_rows2, for_rows3, rows_per_chunk};
use crate::view::{Ctx, Src, axis_of};
use crate::walk::{ext, product};

type Done = Result<(), KernelError>;

/// Batch, channels and elements of a plane.
fn planes(shape: &[u64]) -> (usize, usize, usize) {
    (ext(shape[0]), ext(shape[1]), product(&shape[2..]))
}

pub(crate) fn batch_norm_stats(c: &Ctx, results: &mut [&mut [u8]], epsilon: f32) -> Done {
    let x = c.slice::<f32>(0)?;
    let (batch, channels, plane) = planes(&c.types[0].shape);
    let [mean, var, inv_std] = c.outs(results)?;
    let out = [c.out::<f32>(mean)?, c.out(var)?, c.out(inv_std)?];
    let count = batch * plane;
    let channel = |ch: usize, f: &dyn Fn(&[f32]) -> f64| {
        (0..batch).map(|n| f(&x[(n * channels + ch) * plane..][..plane])).sum::<f64>() / count as f64
    };
    for_rows3(out, [1; 3], count, rows_per_chunk(count), |first, mean, var, inv_std| {
        for i in 0..mean.len() {
            let m = channel(first + i, &|x| sum(x, |x| x));
            let v = channel(first + i, &|x| sum(x, |x| (x - m) * (x - m)));
            mean[i] = m as f32;
            var[i] = v as f32;
            inv_std[i] = (1.0 / (v + f64::from(epsilon)).sqrt()) as f32;
        }
    });
    Ok(())
}

pub(crate) fn batch_norm(c: &Ctx, y: &mut [u8]) -> Done {
    let x = c.src::<f32>(0)?;
    let (scale, bias) = (c.slice::<f32>(1)?, c.slice::<f32>(2)?);
    let (mean, inv_std) = (c.slice::<f32>(3)?, c.slice::<f32>(4)?);
    let (_, channels, plane) = planes(&c.types[0].shape);
    for_rows(c.out::<f32>(y)?, plane, plane, |first, y| {
        for (i, y) in y.chunks_exact_mut(plane).enumerate() {
            let (n, ch) = (y.len(), (first + i) % channels);
            let (m, a, b) = (mean[ch], inv_std[ch] * scale[ch], bias[ch]);
            let x = x.lane(((first + i) * plane) as isize, n, 1);
            apply(y, x, x, |_, x, _| normalised(x, m, a, b));
        }
    });
    Ok(())
}

#[inline(always)]
fn normalised(x: f32, mean: f32, factor: f32, bias: f32) -> f32 {
    (x - mean) * factor + bias
}

/// [`batch_norm`] where every operand has one element for each of the result.
pub(crate) fn batch_norm_each(c: &Ctx, y: &mut [u8]) -> Done {
    let x = c.slice::<f32>(0)?;
    let (scale, bias) = (c.slice::<f32>(1)?, c.slice::<f32>(2)?);
    let (mean, inv_std) = (c.slice::<f32>(3)?, c.slice::<f32>(4)?);
    let affine = scale.iter().zip(bias).zip(mean.iter().zip(inv_std));
    for ((y, &x), ((&s, &b), (&m, &r))) in c.out::<f32>(y)?.iter_mut().zip(x).zip(affine) {
        *y = normalised(x, m, r * s, b);
    }
    Ok(())
}

/// Elements of the channels whose sums and gradients are taken one after the other, while they are in cache;
/// and the fewest such channels, so that threads share them.
const BLOCK: usize = 512 << 10;
const FEWEST: usize = 8;

pub(crate) fn batch_norm_grad(c: &Ctx, results: &mut [&mut [u8]]) -> Done {
    let (dy, x) = (c.src::<f32>(0)?, c.src::<f32>(1)?);
    let (scale, mean, inv_std) = (c.slice::<f32>(2)?, c.slice::<f32>(3)?, c.slice::<f32>(4)?);
    let (batch, channels, plane) = planes(&c.types[1].shape);
    let [dx, dscale, dbias] = c.outs(results)?;
    let (dx, dscale, dbias) = (c.out::<f32>(dx)?, c.out::<f32>(dscale)?, c.out::<f32>(dbias)?);
    let count = batch * plane;

    let block = (BLOCK / count.max(1)).max(FEWEST);
    let blocks = dscale.chunks_mut(block).zip(dbias.chunks_mut(block));
    for (base, (dscale, dbias)) in (0..).step_by(block).zip(blocks) {
        let (all_dy, all_x) = (dy.view(dx), x.view(dx));
        let channel = |first: usize, dscale: &mut [f32], dbias: &mut [f32]| {
            for i in 0..dscale.len() {
                let ch = base + first + i;
                let m = f64::from(mean[ch]);
                let mut total = [0.0; 2];
                for n in 0..batch {
                    let part = (n * channels + ch) * plane..(n * channels + ch + 1) * plane;
                    let part = sums(&all_dy[part.clone()], &all_x[part], |dy, x| [dy * (x - m), dy]);
                    total = [total[0] + part[0], total[1] + part[1]];
                }
                dscale[i] = (total[0] * f64::from(inv_std[ch])) as f32;
                dbias[i] = total[1] as f32;
            }
        };
        for_rows2((&mut *dscale, &mut *dbias), 1, count, rows_per_chunk(count), channel);

        for_images(dx, channels * plane, |n, image| {
            let image = &mut image[base * plane..(base + dscale.len()) * plane];
            for_rows(image, plane, plane, |first, dx| {
                for (at, dx) in (first..).zip(dx.chunks_exact_mut(plane)) {
                    let ch = base + at;
                    let m = mean[ch];
                    let a = scale[ch] * inv_std[ch];
                    let from_bias = dbias[at] / count as f32;
                    let from_scale = inv_std[ch] * dscale[at] / count as f32;
                    let (at, len) = (((n * channels + ch) * plane) as isize, dx.len());
                    apply(dx, dy.lane(at, len, 1), x.lane(at, len, 1), |_, dy, x| {
                        a * (dy - from_bias - (x - m) * from_scale)
                    });
                }
            });
        });
    }
    Ok(())
}

/// Rows and elements of a row of a tensor normalised over the axes from `axis` on.
fn rows(c: &Ctx, shape: &[u64], axis: i64) -> Result<(usize, usize), KernelError> {
    let axis = axis_of(c, axis, shape.len())?;
    Ok((product(&shape[..axis]), product(&shape[axis..])))
}

pub(crate) fn layer_norm(c: &Ctx, results: &mut [&mut [u8]], axis: i64, epsilon: f32) -> Done {
    let (x, scale) = (c.src::<f32>(0)?, c.slice::<f32>(1)?);
    let bias = if c.operands.len() > 2 { Some(c.slice::<f32>(2)?) } else { None };
    let (_, n) = rows(c, &c.types[0].shape, axis)?;
    let [y, mean, inv_std] = c.outs(results)?;
    let out = [c.out::<f32>(y)?, c.out(mean)?, c.out(inv_std)?];
    for_rows3(out, [n, 1, 1], n, rows_per_chunk(n), |first, y, mean, inv_std| {
        for (i, y) in y.chunks_exact_mut(n).enumerate() {
            if let Src::Slice(x) = x {
                y.copy_from_slice(&x[(first + i) * n..][..n]);
            }
            let m = sum(y, |x| x) / n as f64;
            let v = sum(y, |x| (x - m) * (x - m)) / n as f64;
            let r = (1.0 / (v + f64::from(epsilon)).sqrt()) as f32;
            let m = m as f32;
            (mean[i], inv_std[i]) = (m, r);
            match bias {
                Some(bias) => {
                    let affine = scale.iter().zip(bias);
                    y.iter_mut().zip(affine).for_each(|(y, (&s, &b))| *y = (*y - m) * r * s + b);
                }
                None => y.iter_mut().zip(scale).for_each(|(y, &s)| *y = (*y - m) * r * s),
            }
        }
    });
    Ok(())
}

/// Columns whose sums over the rows are taken together.
const COLUMNS: usize = 64;

/// Sums for the gradients of scale and bias in up to [`COLUMNS`] columns from `at` on, over all rows of `n`.
struct Affine<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    mean: &'a [f32],
    inv_std: &'a [f32],
    at: usize,
    n: usize,
    dscale: &'a mut [f32],
    dbias: &'a mut [f32],
}

impl WithSimd for Affine<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (mut scale, mut bias) = ([0.0f64; COLUMNS], [0.0f64; COLUMNS]);
        let width = self.dscale.len();
        for (row, (&m, &r)) in self.mean.iter().zip(self.inv_std).enumerate() {
            let at = row * self.n + self.at;
            let (m, r) = (f64::from(m), f64::from(r));
            let values = self.dy[at..at + width].iter().zip(&self.x[at..at + width]);
            for ((scale, bias), (&dy, &x)) in scale.iter_mut().zip(&mut bias).zip(values) {
                let dy = f64::from(dy);
                *scale += dy * (f64::from(x) - m) * r;
                *bias += dy;
            }
        }
        self.dscale.iter_mut().zip(scale).for_each(|(d, s)| *d = s as f32);
        self.dbias.iter_mut().zip(bias).for_each(|(d, b)| *d = b as f32);
    }
}

pub(crate) fn layer_norm_grad(c: &Ctx, results: &mut [&mut [u8]], axis: i64) -> Done {
    let (dy, x) = (c.src::<f32>(0)?, c.src::<f32>(1)?);
    let (scale, mean, inv_std) = (c.slice::<f32>(2)?, c.slice::<f32>(3)?, c.slice::<f32>(4)?);
    let (count, n) = rows(c, &c.types[1].shape, axis)?;
    let [dx, dscale, dbias] = c.outs(results)?;
    let (dx, dscale, dbias) = (c.out::<f32>(dx)?, c.out::<f32>(dscale)?, c.out::<f32>(dbias)?);

    let (all_dy, all_x) = (dy.view(dx), x.view(dx));
    for_rows2((dscale, dbias), 1, count, COLUMNS, |first, dscale, dbias| {
        for (b, (dscale, dbias)) in dscale.chunks_mut(COLUMNS).zip(dbias.chunks_mut(COLUMNS)).enumerate() {
            let at = first + b * COLUMNS;
            Arch::new().dispatch(Affine { dy: all_dy, x: all_x, mean, inv_std, at, n, dscale, dbias });
        }
    });

    for_rows(dx, n, n, |first, dx| {
        for (i, dx) in dx.chunks_exact_mut(n).enumerate() {
            let (row, at) = (first + i, (first + i) * n);
            let (m, r) = (mean[row], inv_std[row]);
            let wide_m = f64::from(m);
            let total = sums3(dy.view_at(at, dx), x.view_at(at, dx), scale, |dy, x, s| {
                let term = dy * s;
                [term, term * (x - wide_m)]
            });
            let shift = (total[0] / n as f64) as f32;
            let slope = (total[1] * f64::from(r) * f64::from(r) / n as f64) as f32;
            let (dy, x) = (dy.lane(at as isize, n, 1), x.lane(at as isize, n, 1));
            apply(dx, dy, x, |j, dy, x| r * (dy * scale[j] - shift - (x - m) * slope));
        }
    });
    Ok(())
}
