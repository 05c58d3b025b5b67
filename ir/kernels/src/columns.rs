//! The column matrix of a convolution: row `(c, i, j)` holds, for every output pixel, the input pixel that
//! kernel position `(i, j)` of channel `c` meets there, or zero in the padding.

use crate::walk::ext;

/// Attributes of a convolution.
#[derive(Clone, Copy)]
pub(crate) struct ConvAttrs<'a> {
    pub(crate) strides: &'a [u64],
    /// Top, left, bottom, right.
    pub(crate) pads: &'a [u64],
    pub(crate) dilations: &'a [u64],
    pub(crate) groups: i64,
}

/// Extents of a convolution of one plane. Pairs are vertical, horizontal.
pub(crate) struct Geometry {
    /// Input extent.
    pub(crate) input: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) output: [usize; 2],
    pub(crate) strides: [usize; 2],
    /// Top and left padding.
    pub(crate) pads: [usize; 2],
    pub(crate) dilations: [usize; 2],
}

/// A run of output pixels in one output row, for one row of the column matrix.
struct Run {
    /// Position in the tile.
    at: usize,
    len: usize,
    /// First input column that is met inside the input, and the run's pixels before, and up to, the last
    /// such.
    input: usize,
    valid: [usize; 2],
    /// Input row, unless it is in the padding.
    row: Option<usize>,
}

impl Geometry {
    pub(crate) fn new(a: &ConvAttrs, x: &[u64], w: &[u64], y: &[u64]) -> Self {
        let pair = |s: &[u64]| [ext(s[0]), ext(s[1])];
        Geometry {
            input: pair(&x[2..]),
            kernel: pair(&w[2..]),
            output: pair(&y[2..]),
            strides: pair(a.strides),
            pads: pair(a.pads),
            dilations: pair(a.dilations),
        }
    }

    /// Whether moving to the next output pixel always moves to the next input pixel, across rows too.
    fn is_shift(&self) -> bool {
        self.strides == [1, 1] && self.input[1] == self.output[1]
    }

    /// Calls `f` with the index, channel and kernel position of the first `rows` rows of the column matrix.
    fn rows(&self, rows: usize, mut f: impl FnMut(usize, usize, [usize; 2])) {
        let [kh, kw] = self.kernel;
        for r in 0..rows {
            f(r, r / (kh * kw), [r / kw % kh, r % kw]);
        }
    }

    /// The output columns `begin..end` that meet the input at horizontal kernel position `j`.
    #[inline(always)]
    pub(crate) fn columns_inside(&self, j: usize) -> [usize; 2] {
        let (stride, skip) = (self.strides[1], j * self.dilations[1]);
        let begin = self.pads[1].saturating_sub(skip).div_ceil(stride);
        let end = (self.input[1] + self.pads[1]).saturating_sub(skip).div_ceil(stride);
        let end = end.min(self.output[1]);
        [begin.min(end), end]
    }

    /// Cuts the output pixels `first..first + len` into runs within one output row.
    fn runs(&self, [i, j]: [usize; 2], first: usize, len: usize, mut f: impl FnMut(Run)) {
        let width = self.output[1];
        let [begin, end] = self.columns_inside(j);
        let (mut oy, mut ox, mut at) = (first / width, first % width, 0);
        while at < len {
            let n = (width - ox).min(len - at);
            let row = (oy * self.strides[0] + i * self.dilations[0]).checked_sub(self.pads[0]);
            let valid = [begin.clamp(ox, ox + n) - ox, end.clamp(ox, ox + n) - ox];
            let met = (ox + valid[0]) * self.strides[1] + j * self.dilations[1];
            let input = met.saturating_sub(self.pads[1]);
            f(Run { at, len: n, input, valid, row: row.filter(|&r| r < self.input[0]) });
            at += n;
            ox = 0;
            oy += 1;
        }
    }

    /// Calls `f` with the ranges of tile positions that lie in the left or right padding.
    fn side_padding(&self, j: usize, first: usize, len: usize, mut f: impl FnMut(std::ops::Range<usize>)) {
        let [begin, end] = self.columns_inside(j);
        let width = self.output[1];
        if begin == 0 && end == width {
            return;
        }
        let mut row = first / width * width;
        while row < first + len {
            let clip = |p: usize| p.clamp(first, first + len) - first;
            f(clip(row)..clip(row + begin));
            f(clip(row + end)..clip(row + width));
            row += width;
        }
    }

    /// For a shift: the input pixel that output pixel `first` meets, as a signed position in the plane.
    fn shifted(&self, [i, j]: [usize; 2], first: usize) -> isize {
        let down = (i * self.dilations[0]) as isize - self.pads[0] as isize;
        let right = (j * self.dilations[1]) as isize - self.pads[1] as isize;
        first as isize + down * self.input[1] as isize + right
    }
}

/// The part of `len` positions from `start` on that is in `0..size`: positions skipped, and the range.
fn clip(start: isize, len: usize, size: usize) -> (usize, std::ops::Range<usize>) {
    let size = size as isize;
    let begin = start.clamp(0, size);
    let end = (start + len as isize).clamp(begin, size);
    (((begin - start).max(0) as usize).min(len), begin as usize..end as usize)
}

/// Writes the columns of the output pixels `first..first + len` of the channels in `x`; `len` is not zero.
pub(crate) fn im2col(g: &Geometry, x: &[f32], first: usize, len: usize, columns: &mut [f32]) {
    let plane = g.input[0] * g.input[1];
    g.rows(columns.len() / len, |r, channel, tap| {
        let x = &x[channel * plane..][..plane];
        let out = &mut columns[r * len..][..len];
        if g.is_shift() {
            let (skip, range) = clip(g.shifted(tap, first), len, plane);
            let (head, tail) = out.split_at_mut(skip);
            let (body, tail) = tail.split_at_mut(range.len());
            head.fill(0.0);
            body.copy_from_slice(&x[range]);
            tail.fill(0.0);
            return g.side_padding(tap[1], first, len, |pad| out[pad].fill(0.0));
        }
        g.runs(tap, first, len, |run| {
            let out = &mut out[run.at..][..run.len];
            let Some(row) = run.row else { return out.fill(0.0) };
            let [begin, end] = run.valid;
            out[..begin].fill(0.0);
            out[end..].fill(0.0);
            if begin < end {
                let (out, x) = (&mut out[begin..end], &x[row * g.input[1] + run.input..]);
                match g.strides[1] {
                    1 => out.copy_from_slice(&x[..end - begin]),
                    2 => halve(x, out),
                    s => out.iter_mut().zip(x.iter().step_by(s)).for_each(|(o, &x)| *o = x),
                }
            }
        });
    });
}

/// Writes every second element of `from`, the first one first, until `to` is full.
#[inline(always)]
pub(crate) fn halve(from: &[f32], to: &mut [f32]) {
    let (pairs, rest) = from.as_chunks::<2>();
    to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0]);
    if let (Some(to), Some(last)) = (to.get_mut(pairs.len()), rest.first()) {
        *to = *last;
    }
}

/// Adds the columns of the output pixels `first..first + len` to the channels in `x`. Clobbers `columns`.
pub(crate) fn col2im(g: &Geometry, columns: &mut [f32], first: usize, len: usize, x: &mut [f32]) {
    let plane = g.input[0] * g.input[1];
    g.rows(columns.len() / len, |r, channel, tap| {
        let x = &mut x[channel * plane..][..plane];
        let from = &mut columns[r * len..][..len];
        if g.is_shift() {
            g.side_padding(tap[1], first, len, |pad| from[pad].fill(0.0));
            let (skip, range) = clip(g.shifted(tap, first), len, plane);
            x[range].iter_mut().zip(&from[skip..]).for_each(|(x, d)| *x += d);
            return;
        }
        g.runs(tap, first, len, |run| {
            let Some(row) = run.row else { return };
            let [begin, end] = run.valid;
            if begin < end {
                let from = &from[run.at + begin..run.at + end];
                let x = &mut x[row * g.input[1] + run.input..];
                match g.strides[1] {
                    1 => x.iter_mut().zip(from).for_each(|(x, d)| *x += d),
                    s => x.iter_mut().step_by(s).zip(from).for_each(|(x, d)| *x += d),
                }
            }
        });
    });
}
