//! Products with a panel that stays in cache: the inner loops of convolutions.
//!
//! A panel is a part of the right-hand matrix, at most [`DEPTH`] rows of [`WIDE`] elements. Every element of
//! the result adds up its terms in the order of the panel's rows, whatever the processor's vectors hold.

use pulp::Simd;

/// Rows of a panel, at most.
pub(crate) const DEPTH: usize = 256;
/// Elements of a panel's row.
pub(crate) const WIDE: usize = 64;

/// A panel on the stack.
pub(crate) type Panel = [[f32; WIDE]; DEPTH];

/// The left-hand matrix of a product.
pub(crate) trait Left {
    /// Element `k` of the `M` rows from `row` on.
    fn column<const M: usize>(&self, row: usize, k: usize) -> [f32; M];
}

/// Rows of `ld` elements.
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) ld: usize,
}

impl Left for Rows<'_> {
    #[inline(always)]
    fn column<const M: usize>(&self, row: usize, k: usize) -> [f32; M] {
        let data = &self.data[row * self.ld + k..];
        std::array::from_fn(|i| data[i * self.ld])
    }
}

/// Elements of row 0 at `columns`, those of further rows `ld` elements on.
pub(crate) struct Picked<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) columns: &'a [usize],
    pub(crate) ld: usize,
}

impl Left for Picked<'_> {
    #[inline(always)]
    fn column<const M: usize>(&self, row: usize, k: usize) -> [f32; M] {
        let data = &self.data[self.columns[k] + row * self.ld..];
        std::array::from_fn(|i| data[i * self.ld])
    }
}

/// Adds the product of `rows` rows of `left` and the panel to the first `width` elements of the rows of
/// `out`, which are `ld` elements apart.
#[inline(always)]
pub(crate) fn product<S: Simd>(
    simd: S,
    left: &impl Left,
    rows: usize,
    panel: &[[f32; WIDE]],
    width: usize,
    (out, ld): (&mut [f32], usize),
) {
    let right = Right { panel, width, ld };
    let mut row = 0;
    while row < rows {
        let out = &mut out[row * ld..];
        row += match rows - row {
            6.. => across::<S, 6>(simd, left, row, &right, out),
            4..=5 => across::<S, 4>(simd, left, row, &right, out),
            2..=3 => across::<S, 2>(simd, left, row, &right, out),
            _ => across::<S, 1>(simd, left, row, &right, out),
        };
    }
}

/// The right-hand matrix, and the distance of the result's rows.
struct Right<'a> {
    panel: &'a [[f32; WIDE]],
    width: usize,
    ld: usize,
}

/// [`product`] for `M` rows; returns their number.
#[inline(always)]
fn across<S: Simd, const M: usize>(
    simd: S,
    left: &impl Left,
    row: usize,
    right: &Right,
    out: &mut [f32],
) -> usize {
    // More sums than registers would be slow.
    let many = if S::REGISTER_COUNT >= 32 { 4 } else { 2 };
    let mut at = 0;
    while at < right.width {
        let vectors = (right.width - at).div_ceil(S::F32_LANES);
        at += match vectors.min(many) {
            4.. => sums::<S, M, 4>(simd, left, row, right, at, out),
            3 => sums::<S, M, 3>(simd, left, row, right, at, out),
            2 => sums::<S, M, 2>(simd, left, row, right, at, out),
            _ => sums::<S, M, 1>(simd, left, row, right, at, out),
        };
    }
    M
}

/// [`product`] for `M` rows and `N` vectors of the panel's rows from `at` on; returns their elements.
#[allow(clippy::needless_range_loop, reason = "sums stay in registers where constants alone index them")]
#[inline(always)]
fn sums<S: Simd, const M: usize, const N: usize>(
    simd: S,
    left: &impl Left,
    row: usize,
    &Right { panel, width, ld }: &Right,
    at: usize,
    out: &mut [f32],
) -> usize {
    let mut sums = [[simd.splat_f32s(0.0); N]; M];
    for (k, right) in panel.iter().enumerate() {
        let Some(right) = S::as_simd_f32s(&right[at..]).0.first_chunk::<N>() else { continue };
        let left = left.column::<M>(row, k);
        for i in 0..M {
            let left = simd.splat_f32s(left[i]);
            for v in 0..N {
                sums[i][v] = simd.mul_add_e_f32s(left, right[v], sums[i][v]);
            }
        }
    }
    let mut tile = [[0.0f32; WIDE]; M];
    for i in 0..M {
        for v in 0..N {
            if let Some(to) = S::as_mut_simd_f32s(&mut tile[i]).0.get_mut(v) {
                *to = sums[i][v];
            }
        }
    }
    let len = N * S::F32_LANES;
    let used = len.min(width - at);
    for (i, sums) in tile.iter().enumerate() {
        let out = &mut out[i * ld + at..][..used];
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
    }
    len
}

/// `to[k][r] = from[r][k]` for `rows` rows of `from`, `depth` long. Rows are `ld` elements apart.
#[inline(always)]
pub(crate) fn transpose(
    (from, ld): (&[f32], usize),
    [rows, depth]: [usize; 2],
    (to, to_ld): (&mut [f32], usize),
) {
    const B: usize = 8;
    for r in (0..rows).step_by(B) {
        for k in (0..depth).step_by(B) {
            if r + B <= rows && k + B <= depth {
                let mut block = [[0.0f32; B]; B];
                for (i, row) in block.iter_mut().enumerate() {
                    row.copy_from_slice(&from[(r + i) * ld + k..][..B]);
                }
                for j in 0..B {
                    if let Some(to) = to[(k + j) * to_ld + r..].first_chunk_mut::<B>() {
                        for i in 0..B {
                            to[i] = block[i][j];
                        }
                    }
                }
            } else {
                for i in r..rows.min(r + B) {
                    for j in k..depth.min(k + B) {
                        to[j * to_ld + i] = from[i * ld + j];
                    }
                }
            }
        }
    }
}
