//! Walking several strided operands along a dense row-major index space.

use memc_ir::MAX_RANK;
use std::ops::Range;

/// An extent, or a product of extents of a tensor whose bytes are addressable.
pub(crate) fn ext(extent: u64) -> usize {
    usize::try_from(extent).unwrap_or(usize::MAX)
}

/// Product of extents.
pub(crate) fn product(extents: &[u64]) -> usize {
    ext(extents.iter().product())
}

/// An index space with the strides of `N` operands, in elements. Adjacent axes that every operand walks
/// evenly are one axis.
#[derive(Clone, Copy)]
pub(crate) struct StridedSpace<const N: usize> {
    axes: usize,
    dims: [usize; MAX_RANK],
    strides: [[isize; N]; MAX_RANK],
}

impl<const N: usize> StridedSpace<N> {
    /// The space with one point.
    pub(crate) fn new() -> Self {
        StridedSpace { axes: 0, dims: [1; MAX_RANK], strides: [[0; N]; MAX_RANK] }
    }

    /// A line of `n` points that every operand walks in order.
    pub(crate) fn line(n: usize) -> Self {
        let mut walk = StridedSpace::new();
        walk.push(n, [1; N]);
        walk
    }

    /// Adds an axis inside the others.
    pub(crate) fn push(&mut self, dim: usize, strides: [isize; N]) {
        if dim == 1 {
            return;
        }
        if let Some(last) = self.axes.checked_sub(1) {
            let outer = self.strides[last];
            if (0..N).all(|i| outer[i] == strides[i].wrapping_mul(dim as isize)) {
                self.dims[last] *= dim;
                self.strides[last] = strides;
                return;
            }
        }
        self.dims[self.axes] = dim;
        self.strides[self.axes] = strides;
        self.axes += 1;
    }

    /// The space of a result of shape `out` whose operands of the given shapes broadcast.
    pub(crate) fn broadcast(out: &[u64], shapes: [&[u64]; N]) -> Self {
        let mut strides = [[0isize; N]; MAX_RANK];
        for (n, shape) in shapes.iter().enumerate() {
            let mut stride = 1usize;
            for (a, &d) in shape.iter().enumerate().rev() {
                if d != 1 {
                    strides[a + out.len() - shape.len()][n] = stride as isize;
                }
                stride = stride.saturating_mul(ext(d));
            }
        }
        let mut walk = StridedSpace::new();
        for (a, &d) in out.iter().enumerate() {
            walk.push(ext(d), strides[a]);
        }
        walk
    }

    /// Strides of the innermost axis.
    pub(crate) fn inner(&self) -> [isize; N] {
        self.axes.checked_sub(1).map_or([1; N], |last| self.strides[last])
    }

    /// Extent of the innermost axis.
    pub(crate) fn inner_extent(&self) -> usize {
        self.axes.checked_sub(1).map_or(1, |last| self.dims[last])
    }

    /// Extent and strides of the axis around the innermost one.
    pub(crate) fn around_inner(&self) -> Option<(usize, [isize; N])> {
        let axis = self.axes.checked_sub(2)?;
        Some((self.dims[axis], self.strides[axis]))
    }

    /// Number of points.
    pub(crate) fn len(&self) -> usize {
        self.dims[..self.axes].iter().product()
    }

    /// Cuts the points `start..start + len` into runs along the innermost axis and calls `f` with each run's
    /// range, counted from `start`, and every operand's offset at the run's first point.
    #[inline(always)]
    pub(crate) fn runs(&self, start: usize, len: usize, mut f: impl FnMut(Range<usize>, [isize; N])) {
        if len == 0 {
            return;
        }
        let Some(last) = self.axes.checked_sub(1) else {
            return f(0..1, [0; N]);
        };
        let (inner, step) = (self.dims[last], self.strides[last]);
        let (mut row, mut col) = (start / inner, start % inner);
        let mut at = [0usize; MAX_RANK];
        let mut offset = [0isize; N];
        for a in (0..last).rev() {
            at[a] = row % self.dims[a];
            row /= self.dims[a];
            advance(&mut offset, &self.strides[a], at[a] as isize);
        }
        let mut done = 0;
        while done < len {
            let run = (inner - col).min(len - done);
            let mut first = offset;
            advance(&mut first, &step, col as isize);
            f(done..done + run, first);
            done += run;
            col = 0;
            for a in (0..last).rev() {
                at[a] += 1;
                advance(&mut offset, &self.strides[a], 1);
                if at[a] < self.dims[a] {
                    break;
                }
                at[a] = 0;
                advance(&mut offset, &self.strides[a], -(self.dims[a] as isize));
            }
        }
    }
}

/// Moves every offset by `by` times its stride.
#[inline(always)]
fn advance<const N: usize>(offset: &mut [isize; N], strides: &[isize; N], by: isize) {
    for (offset, stride) in offset.iter_mut().zip(strides) {
        *offset += stride * by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_visit_every_point_once_at_its_broadcast_offset() {
        let (out, a, b) = ([2u64, 3, 1, 4], [2u64, 3, 1, 1], [4u64]);
        let walk = StridedSpace::<2>::broadcast(&out, [&a, &b]);
        let step = walk.inner();
        for start in 0..24 {
            let mut seen = Vec::new();
            walk.runs(start, 24 - start, |range, first| {
                for i in 0..range.len() as isize {
                    seen.push((first[0] + i * step[0], first[1] + i * step[1]));
                }
            });
            let want: Vec<_> = (start as isize..24).map(|i| (i / 4, i % 4)).collect();
            assert_eq!(seen, want, "start {start}");
        }
    }

    #[test]
    fn equal_shapes_are_one_run() {
        let s = [3u64, 5, 7];
        let mut runs = 0;
        StridedSpace::<2>::broadcast(&s, [&s, &s]).runs(0, 105, |_, _| runs += 1);
        assert_eq!(runs, 1);
    }
}
