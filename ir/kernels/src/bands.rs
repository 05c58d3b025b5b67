//! Windows over one plane without a column matrix: bands of padded rows on the stack.
//!
//! A grid of window positions has some columns more than it needs, as many as a row of the band has. Then
//! every tap of a window reads consecutive elements for consecutive positions, across rows too. For strides
//! of two, a band has its even and odd rows and columns apart. What lies in the grid's surplus columns means
//! nothing.
//!
//! Larger strides and rows that do not fit a band are left to the callers.

use crate::columns::halve;

/// Positions that are computed together.
pub(crate) const LANES: usize = 32;
/// Elements of a band, at most.
pub(crate) const BAND: usize = 6144;
/// Positions of a band, at most.
const POSITIONS: usize = 2048;
/// Positions behind the last that may be read.
pub(crate) const SLACK: usize = 64;
/// Room for the positions of a band.
pub(crate) const ROOM: usize = POSITIONS + SLACK;
/// Taps of a window, at most.
pub(crate) const TAPS: usize = 64;

/// Cut of a plane into bands. Pairs are vertical, horizontal.
pub(crate) struct Bands {
    source: [usize; 2],
    strides: [usize; 2],
    /// Padding at the top and left; negative where windows begin inside.
    lead: [isize; 2],
    /// Rows and columns of window positions.
    grid: [usize; 2],
    /// Positions in a row, surplus columns included.
    pub(crate) width: usize,
    /// Rows of positions in a band.
    pub(crate) rows: usize,
    /// Rows more than that in a band.
    extra: usize,
    /// Elements of the rows and columns of one parity.
    phase: usize,
    /// For columns of each parity: those in the source, and the column of the first of these there.
    inside: [(usize, usize, usize); 2],
}

impl Bands {
    /// The bands for windows whose taps are at most `reach` from their first; nothing where they do not fit.
    pub(crate) fn new(
        source: [usize; 2],
        strides: [usize; 2],
        lead: [isize; 2],
        grid: [usize; 2],
        reach: [usize; 2],
    ) -> Option<Bands> {
        if grid.contains(&0) || source.contains(&0) || strides.iter().any(|s| !(1..=2).contains(s)) {
            return None;
        }
        let [right, extra] = [reach[1] / strides[1], reach[0] / strides[0]];
        let width = grid[1].checked_add(right)?;
        let slack = SLACK + right;
        let room = (BAND / (strides[0] * strides[1])).checked_sub(slack)? / width;
        let most = (POSITIONS / width).min(room.checked_sub(extra)?).min(grid[0]);
        if most == 0 {
            return None;
        }
        let rows = grid[0].div_ceil(grid[0].div_ceil(most));
        let stride = strides[1] as isize;
        let inside = [0, 1].map(|parity: isize| {
            let at = |column: isize| (column + lead[1] - parity + stride - 1).div_euclid(stride);
            let clip = |m: isize| m.clamp(0, width as isize);
            let (begin, end) = (clip(at(0)), clip(at(source[1] as isize)));
            (begin as usize, end as usize, (begin * stride + parity - lead[1]).max(0) as usize)
        });
        let phase = (rows + extra) * width + slack;
        Some(Bands { source, strides, lead, grid, width, rows, extra, phase, inside })
    }

    /// Place in a band of a tap of the first window.
    pub(crate) fn tap(&self, [i, j]: [usize; 2]) -> usize {
        let [sh, sw] = self.strides;
        (i % sh * sw + j % sw) * self.phase + i / sh * self.width + j / sw
    }

    /// First row of positions of every band, and the number of rows.
    pub(crate) fn cuts(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (rows, all) = (self.rows, self.grid[0]);
        (0..all).step_by(rows).map(move |first| (first, rows.min(all - first)))
    }

    /// Loads the band whose positions begin in row `first`. All of `band` holds `pad` where no call wrote.
    #[inline(always)]
    pub(crate) fn load(&self, source: &[f32], first: usize, pad: f32, band: &mut [f32]) {
        let ([height, columns], [sh, sw]) = (self.source, self.strides);
        for parity in 0..sh {
            for k in 0..self.rows + self.extra {
                let row = ((first + k) * sh + parity) as isize - self.lead[0];
                let row = usize::try_from(row).ok().filter(|&r| r < height);
                for (half, &(begin, end, from)) in self.inside[..sw].iter().enumerate() {
                    if begin >= end {
                        continue;
                    }
                    let at = (parity * sw + half) * self.phase + k * self.width;
                    let to = &mut band[at + begin..at + end];
                    let Some(row) = row else {
                        to.fill(pad);
                        continue;
                    };
                    let source = &source[row * columns + from..(row + 1) * columns];
                    if sw == 1 {
                        to.copy_from_slice(&source[..end - begin]);
                    } else {
                        halve(source, to);
                    }
                }
            }
        }
    }
}

/// `out[q]` is the sum over the taps of `weights[t] * band[q + taps[t]]`, on top of `start`, for the first
/// `count` positions.
#[inline(always)]
pub(crate) fn correlate(
    band: &[f32],
    taps: &[usize],
    weights: &[f32],
    start: f32,
    count: usize,
    out: &mut [f32],
) {
    let blocks = out.as_chunks_mut::<LANES>().0.iter_mut().take(count.div_ceil(LANES));
    for (b, out) in blocks.enumerate() {
        let band = &band[b * LANES..];
        let mut sums = [start; LANES];
        for (&tap, &w) in taps.iter().zip(weights) {
            if let Some(x) = band[tap..].first_chunk::<LANES>() {
                sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += w * x);
            }
        }
        *out = sums;
    }
}
