//! Depthwise convolution of one plane, row by row: for strides and extents that [`crate::bands`] leaves out.

use pulp::{Arch, Simd, WithSimd};

use crate::columns::Geometry;

/// Adds to `y` what the input plane `x` gives.
pub(crate) fn forward(geo: &Geometry, x: &[f32], w: &[f32], y: &mut [f32]) {
    Arch::new().dispatch(Gather { geo, x, w, y });
}

/// Adds to `dx` what the gradient `dy` of one output plane gives.
pub(crate) fn grad_input(geo: &Geometry, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    Arch::new().dispatch(Scatter { geo, dy, w, dx });
}

/// The gradient of one weight, from one image.
pub(crate) fn grad_weight(geo: &Geometry, dy: &[f32], x: &[f32], tap: usize) -> f64 {
    Arch::new().dispatch(Dot { geo, dy, x, tap })
}

/// Calls `f` with every pair of an output row and a kernel position that meets the input there: the position,
/// the first output pixel and their number, and the first input pixel.
#[inline(always)]
fn meetings(g: &Geometry, mut f: impl FnMut(usize, usize, usize, usize)) {
    let [kh, kw] = g.kernel;
    for oy in 0..g.output[0] {
        for i in 0..kh {
            let row = (oy * g.strides[0] + i * g.dilations[0]).checked_sub(g.pads[0]);
            let Some(row) = row.filter(|&r| r < g.input[0]) else { continue };
            for j in 0..kw {
                let [begin, end] = g.columns_inside(j);
                if begin < end {
                    let col = begin * g.strides[1] + j * g.dilations[1] - g.pads[1];
                    f(i * kw + j, oy * g.output[1] + begin, end - begin, row * g.input[1] + col);
                }
            }
        }
    }
}

/// `y += w * x` over all meetings.
struct Gather<'a> {
    geo: &'a Geometry,
    x: &'a [f32],
    w: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Gather<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Gather { geo, x, w, y } = self;
        meetings(geo, |tap, to, len, from| {
            let (w, y) = (w[tap], &mut y[to..to + len]);
            match geo.strides[1] {
                1 => y.iter_mut().zip(&x[from..from + len]).for_each(|(y, x)| *y += w * x),
                s => y.iter_mut().zip(x[from..].iter().step_by(s)).for_each(|(y, x)| *y += w * x),
            }
        });
    }
}

/// `dx += w * dy` over all meetings.
struct Scatter<'a> {
    geo: &'a Geometry,
    dy: &'a [f32],
    w: &'a [f32],
    dx: &'a mut [f32],
}

impl WithSimd for Scatter<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Scatter { geo, dy, w, dx } = self;
        meetings(geo, |tap, from, len, to| {
            let (w, dy) = (w[tap], &dy[from..from + len]);
            match geo.strides[1] {
                1 => dx[to..to + len].iter_mut().zip(dy).for_each(|(dx, dy)| *dx += w * dy),
                s => dx[to..].iter_mut().step_by(s).zip(dy).for_each(|(dx, dy)| *dx += w * dy),
            }
        });
    }
}

/// Partial sums of a dot product.
const LANES: usize = 16;

/// The sum of `dy * x` over the meetings of one kernel position.
struct Dot<'a> {
    geo: &'a Geometry,
    dy: &'a [f32],
    x: &'a [f32],
    tap: usize,
}

impl WithSimd for Dot<'_> {
    type Output = f64;
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Dot { geo: g, dy, x, tap } = self;
        let (i, j) = (tap / g.kernel[1], tap % g.kernel[1]);
        let [begin, end] = g.columns_inside(j);
        if begin >= end {
            return 0.0;
        }
        let col = begin * g.strides[1] + j * g.dilations[1] - g.pads[1];
        let mut total = 0.0f64;
        for oy in 0..g.output[0] {
            let row = (oy * g.strides[0] + i * g.dilations[0]).checked_sub(g.pads[0]);
            let Some(row) = row.filter(|&r| r < g.input[0]) else { continue };
            let dy = &dy[oy * g.output[1] + begin..oy * g.output[1] + end];
            let x = &x[row * g.input[1] + col..];
            let mut lanes = [0.0f32; LANES];
            if g.strides[1] == 1 {
                let (x, (blocks, rest)) = (&x[..dy.len()], dy.as_chunks::<LANES>());
                let (xs, x_rest) = x.as_chunks::<LANES>();
                for (dy, x) in blocks.iter().zip(xs) {
                    for l in 0..LANES {
                        lanes[l] += dy[l] * x[l];
                    }
                }
                lanes.iter_mut().zip(rest.iter().zip(x_rest)).for_each(|(l, (dy, x))| *l += dy * x);
            } else {
                for (k, (dy, x)) in dy.iter().zip(x.iter().step_by(g.strides[1])).enumerate() {
                    lanes[k % LANES] += dy * x;
                }
            }
            total += lanes.iter().map(|&l| f64::from(l)).sum::<f64>();
        }
        total
    }
}
