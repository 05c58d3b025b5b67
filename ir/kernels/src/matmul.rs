//! Matrix products: one checked call into the `gemm` crate, and matmul and gemm on top of it.
//!
//! The inner extent is never split across threads, so that a sum has one order. For the same reason the order
//! does not depend on `trans_a` and `trans_b`: a flag gives the bits that transposing the operand's tensor
//! gives. There is one exception: leading axes of `a` on a `b` without any are more rows only when `a` is not
//! transposed.

use rayon::prelude::*;

use crate::error::KernelError;
use crate::matrix::Mat;
use crate::narrow::{is_narrow, multiply_narrow, panel_rows};
use crate::parallel::for_chunks;
use crate::view::{Ctx, Src};
use crate::walk::{StridedSpace, ext, product};

type Done = Result<(), KernelError>;

/// Elements that a strided matrix spans.
fn span(rows: usize, cols: usize, row: usize, col: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    (rows - 1).checked_mul(row)?.checked_add((cols - 1).checked_mul(col)?)?.checked_add(1)
}

/// Terms of a sum that the `gemm` crate adds up before they meet the result.
///
/// The crate would choose a larger number by extents and cache sizes, and results would differ between
/// machines. It never splits this many.
const DEPTH: usize = 512;

/// `dst = keep * dst + scale * a * b` with `a` `[m, k]`, `b` `[k, n]` and `dst` `[m, n]`, `ld` elements to a
/// row.
///
/// `dst` is not read when `keep` is zero. Errors when a matrix does not fit its slice.
pub(crate) fn multiply(
    c: &Ctx,
    [m, n, k]: [usize; 3],
    (dst, ld, keep): (&mut [f32], usize, f32),
    scale: f32,
    a: Mat,
    b: Mat,
) -> Done {
    let fits = |rows, cols, row, col, len: usize| {
        span(rows, cols, row, col).is_some_and(|s| s <= len) && isize::try_from(len).is_ok()
    };
    if !fits(m, n, ld, 1, dst.len())
        || (m > 1 && ld < n)
        || !fits(m, k, a.row, a.col, a.data.len())
        || !fits(k, n, b.row, b.col, b.data.len())
    {
        return Err(c.fail(format!("a product of extents {m}, {n}, {k} exceeds its tensors")));
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    if k == 0 {
        for row in dst.chunks_mut(ld).take(m) {
            row[..n].iter_mut().for_each(|d| *d = if keep == 0.0 { 0.0 } else { *d * keep });
        }
        return Ok(());
    }
    // Cut evenly: the crate makes an outer product of a rest of one or two terms, which rounds differently.
    let block = k.div_ceil(k.div_ceil(DEPTH));
    for depth in (0..k).step_by(block) {
        let (lhs, rhs) = (&a.data[depth * a.col..], &b.data[depth * b.row..]);
        let keep = if depth == 0 { keep } else { 1.0 };
        #[allow(unsafe_code, reason = "the gemm crate takes raw pointers")]
        // SAFETY: the checks above show that every element addressed by the extents and strides lies within
        // its slice and that the rows of `dst` do not overlap. The extents are non-zero and the strides fit
        // `isize`. `dst` is borrowed mutably, so the operands do not alias it. `lhs` and `rhs` start at
        // column and row `depth`.
        unsafe {
            gemm::gemm(
                m,
                n,
                block.min(k - depth),
                dst.as_mut_ptr(),
                1,
                ld as isize,
                keep != 0.0,
                lhs.as_ptr(),
                a.col as isize,
                a.row as isize,
                rhs.as_ptr(),
                b.col as isize,
                b.row as isize,
                keep,
                scale,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
    Ok(())
}

/// Multiply-adds below which a product is not cut.
const SMALL: usize = 1 << 18;
/// Rows of one panel of a large product.
const PANEL: usize = 128;

/// [`multiply`] into a dense `dst`, in panels of rows side by side.
fn panels(
    c: &Ctx,
    [m, n, k]: [usize; 3],
    (dst, keep): (&mut [f32], f32),
    scale: f32,
    a: Mat,
    b: Mat,
) -> Done {
    if is_narrow([m, n, k]) {
        multiply_narrow([m, n, k], (dst, keep), scale, a, b);
        return Ok(());
    }
    if m.saturating_mul(n).saturating_mul(k) < 2 * SMALL || m <= PANEL / 2 {
        return multiply(c, [m, n, k], (dst, n, keep), scale, a, b);
    }
    let rows = if m <= 2 * PANEL { m.div_ceil(2).next_multiple_of(8) } else { PANEL };
    let rows = panel_rows([m, n, k], rows);
    dst.par_chunks_mut(rows * n).enumerate().try_for_each(|(i, dst)| {
        multiply(c, [dst.len() / n, n, k], (dst, n, keep), scale, a.below(i * rows), b)
    })
}

pub(crate) fn matmul(c: &Ctx, y: &mut [u8], trans_a: bool, trans_b: bool, alpha: f32) -> Done {
    let (a, b, y) = (c.slice::<f32>(0)?, c.slice::<f32>(1)?, c.out::<f32>(y)?);
    let (ta, tb, ty) = (&c.types[0].shape, &c.types[1].shape, &c.results[0].shape);
    let (Some((lead_a, [ra, ca])), Some((lead_b, [_, cb])), Some((lead, [m, n]))) =
        (ta.split_last_chunk::<2>(), tb.split_last_chunk::<2>(), ty.split_last_chunk::<2>())
    else {
        return Err(c.fail("operands need two axes"));
    };
    let k = ext(if trans_a { *ra } else { *ca });
    let (m, n, wa, wb) = (ext(*m), ext(*n), ext(*ca), ext(*cb));
    if y.is_empty() {
        return Ok(());
    }
    if product(lead_b) == 1 && !trans_a {
        // One right-hand side for all: the leading axes are more rows.
        let rows = y.len() / n;
        return panels(
            c,
            [rows, n, k],
            (y, 0.0),
            alpha,
            Mat::dense(a, wa, false),
            Mat::dense(b, wb, trans_b),
        );
    }
    let walk = StridedSpace::broadcast(lead, [lead_a, lead_b]);
    let one = |i: usize, y: &mut [f32]| {
        let (mut ia, mut ib) = (0, 0);
        walk.runs(i, 1, |_, [a, b]| (ia, ib) = (a as usize, b as usize));
        let a = Mat::dense(&a[ia * m * k..][..m * k], wa, trans_a);
        let b = Mat::dense(&b[ib * k * n..][..k * n], wb, trans_b);
        panels(c, [m, n, k], (y, 0.0), alpha, a, b)
    };
    let size = m * n;
    if (y.len() / size).saturating_mul(size * k) < SMALL {
        return y.chunks_exact_mut(size).enumerate().try_for_each(|(i, y)| one(i, y));
    }
    let group = (SMALL / 4 / (size * k).max(1)).max(1);
    y.par_chunks_mut(group * size).enumerate().try_for_each(|(g, y)| {
        y.chunks_exact_mut(size).enumerate().try_for_each(|(i, y)| one(g * group + i, y))
    })
}

pub(crate) fn gemm(c: &Ctx, y: &mut [u8], trans_a: bool, trans_b: bool, alpha: f32, beta: f32) -> Done {
    let (a, b) = (c.slice::<f32>(0)?, c.slice::<f32>(1)?);
    let (bias, y) = (c.src::<f32>(2)?, c.out::<f32>(y)?);
    let (wa, wb) = (ext(c.types[0].shape[1]), ext(c.types[1].shape[1]));
    let [m, n] = [ext(c.results[0].shape[0]), ext(c.results[0].shape[1])];
    let k = ext(c.types[0].shape[if trans_a { 0 } else { 1 }]);
    if let (Src::Slice(bias), true) = (bias, beta != 0.0) {
        let walk = StridedSpace::broadcast(&c.results[0].shape, [&c.types[2].shape]);
        let [step] = walk.inner();
        for_chunks(y, |start, y| {
            walk.runs(start, y.len(), |run, [offset]| {
                let (y, at) = (&mut y[run], offset as usize);
                match step {
                    0 => y.fill(bias[at]),
                    _ => y.copy_from_slice(&bias[at..at + y.len()]),
                }
            });
        });
    }
    panels(c, [m, n, k], (y, beta), alpha, Mat::dense(a, wa, trans_a), Mat::dense(b, wb, trans_b))
}
