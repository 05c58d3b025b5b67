//! Matrix products with few results or short sums, summed in one order whatever the layout of the operands.
//!
//! For such products the `gemm` crate chooses its algorithm by the operands' strides, and its algorithms sum
//! in different orders. Results must not depend on whether an operand is stored transposed or read through a
//! flag: otherwise the compiler could not exchange one for the other without changing bits.

use crate::matrix::Mat;

/// Partial sums of one result: term `t` belongs to sum `t % LANES`.
const LANES: usize = 8;
/// Results computed side by side.
const COLUMNS: usize = 64;
/// Most results for which the `gemm` crate may choose by strides.
const FEW: usize = 16 * 16;

/// Whether a product of these extents is one for [`multiply_narrow`].
pub(crate) fn is_narrow([m, n, k]: [usize; 3]) -> bool {
    m <= 1 || n <= 1 || k <= 2 || m.saturating_mul(n) <= FEW
}

/// The number of rows from `rows` on that cuts a product which is not narrow into panels that are not either.
pub(crate) fn panel_rows([m, n, k]: [usize; 3], rows: usize) -> usize {
    let mut rows = rows;
    while rows < m && (is_narrow([rows, n, k]) || (m % rows > 0 && is_narrow([m % rows, n, k]))) {
        rows += 1;
    }
    rows
}

fn total(l: [f32; LANES]) -> f32 {
    ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]))
}

/// `dst = keep * dst + scale * a * b` with `dst` dense; `dst` is not read when `keep` is zero.
pub(crate) fn multiply_narrow(
    [m, n, k]: [usize; 3],
    (dst, keep): (&mut [f32], f32),
    scale: f32,
    a: Mat,
    b: Mat,
) {
    let put = |d: &mut f32, sum: f32| {
        *d = if keep == 0.0 { scale * sum } else { keep * *d + scale * sum };
    };
    if a.col == 1 && b.row == 1 {
        for (i, dst) in dst.chunks_mut(n.max(1)).take(m).enumerate() {
            for (j, d) in dst.iter_mut().enumerate() {
                put(d, dot(&a.data[i * a.row..][..k], &b.data[j * b.col..][..k]));
            }
        }
    } else if b.col == 1 {
        for (i, dst) in dst.chunks_mut(n.max(1)).take(m).enumerate() {
            let factor = |t: usize| a.data[i * a.row + t * a.col];
            for (first, dst) in (0..).step_by(COLUMNS).zip(dst.chunks_mut(COLUMNS)) {
                let sums = row_sums(k, dst.len(), factor, |t| &b.data[t * b.row + first..]);
                dst.iter_mut().zip(sums).for_each(|(d, s)| put(d, s));
            }
        }
    } else {
        // Columns of `a` and `b` are contiguous: the transposed product, by columns of `dst`.
        for j in 0..n {
            let factor = |t: usize| b.data[t * b.row + j * b.col];
            for first in (0..m).step_by(COLUMNS) {
                let len = COLUMNS.min(m - first);
                let sums = row_sums(k, len, factor, |t| &a.data[t * a.col + first * a.row..]);
                for (i, s) in (first..first + len).zip(sums) {
                    put(&mut dst[i * n + j], s);
                }
            }
        }
    }
}

fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (x, y) in x.chunks(LANES).zip(y.chunks(LANES)) {
        for ((l, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *l += x * y;
        }
    }
    total(lanes)
}

/// Sums of `factor(t) * row(t)[i]` over `t` for the first `len` elements of the rows.
fn row_sums<'a>(
    k: usize,
    len: usize,
    factor: impl Fn(usize) -> f32,
    row: impl Fn(usize) -> &'a [f32],
) -> [f32; COLUMNS] {
    let mut lanes = [[0.0f32; COLUMNS]; LANES];
    for t in 0..k {
        let x = factor(t);
        for (l, y) in lanes[t % LANES][..len].iter_mut().zip(&row(t)[..len]) {
            *l += x * y;
        }
    }
    let mut sums = [0.0; COLUMNS];
    for (i, s) in sums[..len].iter_mut().enumerate() {
        *s = total(std::array::from_fn(|l| lanes[l][i]));
    }
    sums
}
