//! Convolution with one input channel to a group, plane by plane: sums over kernel positions without a column
//! matrix.
//!
//! Output channel `o` meets input channel `o / multiplier` alone, so planes are independent, in one image
//! too. Planes are cut into [`Bands`]; those that do not fit are left to [`crate::depthwise_rows`].

use pulp::{Arch, Simd, WithSimd};

use crate::bands::{BAND, Bands, ROOM, SLACK, TAPS, correlate};
use crate::columns::Geometry;
use crate::depthwise_rows as by_row;
use crate::parallel::for_rows;

/// Extents of a depthwise convolution.
pub(crate) struct Depthwise {
    pub(crate) geo: Geometry,
    pub(crate) batch: usize,
    /// Input channels.
    pub(crate) channels: usize,
    /// Output channels of each.
    pub(crate) multiplier: usize,
}

impl Depthwise {
    fn planes(&self) -> (usize, usize, usize) {
        let size = |e: [usize; 2]| e[0] * e[1];
        (size(self.geo.input), size(self.geo.output), size(self.geo.kernel))
    }

    /// Output channels.
    fn outputs(&self) -> usize {
        self.channels * self.multiplier
    }

    /// The input plane that output plane `o` of all images meets, given all from it on.
    #[inline(always)]
    fn met<'a>(&self, x: &'a [f32], o: usize) -> &'a [f32] {
        let (image, o) = (o / self.outputs(), o % self.outputs());
        let size = self.geo.input[0] * self.geo.input[1];
        &x[(image * self.channels + o / self.multiplier) * size..][..size]
    }

    pub(crate) fn forward(&self, x: &[f32], w: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
        let (_, to, taps) = self.planes();
        let windows = Windows::new(&self.geo);
        for_rows(y, to, work(to * taps), |first, y| {
            if let Some(windows) = &windows {
                return Arch::new().dispatch(Forward { d: self, windows, first, x, w, bias, y });
            }
            for (o, y) in (first..).zip(y.chunks_exact_mut(to)) {
                let channel = o % self.outputs();
                y.fill(bias.map_or(0.0, |b| b[channel]));
                by_row::forward(&self.geo, self.met(x, o), &w[channel * taps..][..taps], y);
            }
        });
    }

    pub(crate) fn grad_input(&self, dy: &[f32], w: &[f32], dx: &mut [f32]) {
        let (to, from, taps) = self.planes();
        let parts = if self.multiplier == 1 { Parts::new(&self.geo) } else { None };
        for_rows(dx, to, work(from * taps * self.multiplier), |first, dx| {
            if let Some(parts) = &parts {
                return Arch::new().dispatch(GradInput { d: self, parts, first, dy, w, dx });
            }
            for (i, dx) in (first..).zip(dx.chunks_exact_mut(to)) {
                dx.fill(0.0);
                for o in i * self.multiplier..(i + 1) * self.multiplier {
                    let w = &w[o % self.outputs() * taps..][..taps];
                    by_row::grad_input(&self.geo, &dy[o * from..][..from], w, dx);
                }
            }
        });
    }

    pub(crate) fn grad_weight(&self, dy: &[f32], x: &[f32], dw: &mut [f32]) {
        let (_, to, taps) = self.planes();
        let windows = Windows::new(&self.geo);
        for_rows(dw, taps, self.batch * work(to * taps), |first, dw| {
            if let Some(windows) = &windows {
                return Arch::new().dispatch(GradWeight { d: self, windows, first, dy, x, dw });
            }
            for (o, dw) in (first..).zip(dw.chunks_exact_mut(taps)) {
                for (tap, d) in dw.iter_mut().enumerate() {
                    let planes = (0..self.batch).map(|n| n * self.outputs() + o);
                    let image =
                        |o: usize| by_row::grad_weight(&self.geo, &dy[o * to..][..to], self.met(x, o), tap);
                    *d = planes.map(image).sum::<f64>() as f32;
                }
            }
        });
    }
}

/// Work of some multiply-adds, in elements of an element-wise op.
fn work(terms: usize) -> usize {
    (terms / 4).max(1)
}

/// The windows of a convolution in bands of its input.
struct Windows {
    bands: Bands,
    /// Place of every tap, and their number.
    taps: [usize; TAPS],
    count: usize,
}

impl Windows {
    fn new(g: &Geometry) -> Option<Windows> {
        let count = g.kernel[0] * g.kernel[1];
        if !(1..=TAPS).contains(&count) {
            return None;
        }
        let reach = [0, 1].map(|a| (g.kernel[a] - 1) * g.dilations[a]);
        let lead = g.pads.map(|p| p as isize);
        let bands = Bands::new(g.input, g.strides, lead, g.output, reach)?;
        let place =
            |t: usize| bands.tap([t / g.kernel[1] * g.dilations[0], t % g.kernel[1] * g.dilations[1]]);
        let taps = std::array::from_fn(|t| if t < count { place(t) } else { 0 });
        Some(Windows { bands, taps, count })
    }
}

struct Forward<'a> {
    d: &'a Depthwise,
    windows: &'a Windows,
    first: usize,
    x: &'a [f32],
    w: &'a [f32],
    bias: Option<&'a [f32]>,
    y: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Forward { d, windows: Windows { bands, taps, count }, first, x, w, bias, y } = self;
        let (mut band, mut sums) = ([0.0; BAND], [0.0; ROOM]);
        let [height, columns] = d.geo.output;
        for (o, y) in (first..).zip(y.chunks_exact_mut(height * columns)) {
            let (x, channel) = (d.met(x, o), o % d.outputs());
            let w = &w[channel * count..][..*count];
            let start = bias.map_or(0.0, |b| b[channel]);
            for (row, rows) in bands.cuts() {
                bands.load(x, row, 0.0, &mut band);
                correlate(&band, &taps[..*count], w, start, rows * bands.width, &mut sums);
                let y = y[row * columns..(row + rows) * columns].chunks_exact_mut(columns);
                y.zip(sums.chunks(bands.width)).for_each(|(y, sums)| y.copy_from_slice(&sums[..columns]));
            }
        }
    }
}

/// Lanes of a dot product, and of the sum of such.
const WIDE: usize = SLACK;
const LANES: usize = 16;
/// Positions after which lanes are added up in double precision.
const RUN: usize = 16 * WIDE;

/// Adds to `total` the products of `dy` and `x`, which have a multiple of [`WIDE`] elements.
#[inline(always)]
fn dot(dy: &[f32], x: &[f32], total: &mut [f64; LANES]) {
    for (dy, x) in dy.chunks(RUN).zip(x.chunks(RUN)) {
        let mut wide = [0.0f32; WIDE];
        for (dy, x) in dy.as_chunks::<WIDE>().0.iter().zip(x.as_chunks::<WIDE>().0) {
            for l in 0..WIDE {
                wide[l] += dy[l] * x[l];
            }
        }
        for l in 0..LANES {
            let sum = (wide[l] + wide[l + LANES]) + (wide[l + 2 * LANES] + wide[l + 3 * LANES]);
            total[l] += f64::from(sum);
        }
    }
}

struct GradWeight<'a> {
    d: &'a Depthwise,
    windows: &'a Windows,
    first: usize,
    dy: &'a [f32],
    x: &'a [f32],
    dw: &'a mut [f32],
}

impl WithSimd for GradWeight<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let GradWeight { d, windows: Windows { bands, taps, count }, first, dy, x, dw } = self;
        // The surplus columns of `grid` stay zero.
        let (mut band, mut grid) = ([0.0; BAND], [0.0; ROOM]);
        let [height, columns] = d.geo.output;
        let plane = height * columns;
        for (channel, dw) in (first..).zip(dw.chunks_exact_mut(*count)) {
            let mut totals = [[0.0f64; LANES]; TAPS];
            for o in (0..d.batch).map(|n| n * d.outputs() + channel) {
                let (dy, x) = (&dy[o * plane..][..plane], d.met(x, o));
                for (row, rows) in bands.cuts() {
                    bands.load(x, row, 0.0, &mut band);
                    let from = dy[row * columns..(row + rows) * columns].chunks_exact(columns);
                    for (to, from) in grid.chunks_mut(bands.width).zip(from) {
                        to[..columns].copy_from_slice(from);
                    }
                    let used = rows * bands.width;
                    let all = used.next_multiple_of(WIDE);
                    grid[used..all].fill(0.0);
                    for (&tap, total) in taps[..*count].iter().zip(&mut totals) {
                        dot(&grid[..all], &band[tap..tap + all], total);
                    }
                }
            }
            dw.iter_mut().zip(&totals).for_each(|(d, t)| *d = t.iter().sum::<f64>() as f32);
        }
    }
}

/// Kernel positions along one axis, at most.
const KERNEL: usize = 8;

/// Gradients of the input along one axis: those at `start`, `start + stride` and so on have the same kernel
/// positions.
struct Axis {
    /// For each start and kernel position: the place of the gradient of the output that it meets.
    met: [[Option<usize>; KERNEL]; 2],
    lead: isize,
    reach: usize,
    grid: usize,
}

impl Axis {
    fn new(g: &Geometry, axis: usize) -> Option<Axis> {
        let (pad, stride, dilation) = (g.pads[axis], g.strides[axis], g.dilations[axis]);
        if g.kernel[axis] > KERNEL || !(1..=2).contains(&stride) {
            return None;
        }
        let place = |start: usize, i: usize| {
            let (at, rest) = ((start + pad) / stride, (start + pad) % stride);
            let meets = start < stride && i < g.kernel[axis] && i * dilation % stride == rest;
            meets.then(|| at as isize - ((i * dilation - rest) / stride) as isize)
        };
        let met: [[_; KERNEL]; 2] = std::array::from_fn(|s| std::array::from_fn(|i| place(s, i)));
        let all = || met.iter().flatten().flatten();
        let (least, most) = (*all().min()?, *all().max()?);
        Some(Axis {
            met: met.map(|of| of.map(|m| m.map(|m| (m - least) as usize))),
            lead: -least,
            reach: (most - least) as usize,
            grid: g.input[axis].div_ceil(stride),
        })
    }
}

/// The taps of the gradients of the input with the same start on both axes: their places in a band and their
/// kernel positions.
#[derive(Clone, Copy)]
struct Part {
    taps: [usize; TAPS],
    kernel: [usize; TAPS],
    count: usize,
}

/// The gradients of the input as windows of those of the output.
struct Parts {
    bands: Bands,
    parts: [[Part; 2]; 2],
}

impl Parts {
    fn new(g: &Geometry) -> Option<Parts> {
        let [v, h] = [Axis::new(g, 0)?, Axis::new(g, 1)?];
        let bands = Bands::new(g.output, [1, 1], [v.lead, h.lead], [v.grid, h.grid], [v.reach, h.reach])?;
        let part = |a: usize, b: usize| {
            let mut part = Part { taps: [0; TAPS], kernel: [0; TAPS], count: 0 };
            for (i, &row) in v.met[a].iter().enumerate() {
                for (j, &column) in h.met[b].iter().enumerate() {
                    if let (Some(row), Some(column)) = (row, column) {
                        part.taps[part.count] = bands.tap([row, column]);
                        part.kernel[part.count] = i * g.kernel[1] + j;
                        part.count += 1;
                    }
                }
            }
            part
        };
        let parts = [0, 1].map(|a| [0, 1].map(|b| part(a, b)));
        Some(Parts { bands, parts })
    }
}

struct GradInput<'a> {
    d: &'a Depthwise,
    parts: &'a Parts,
    first: usize,
    dy: &'a [f32],
    w: &'a [f32],
    dx: &'a mut [f32],
}

impl WithSimd for GradInput<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let GradInput { d, parts: Parts { bands, parts }, first, dy, w, dx } = self;
        let (mut band, mut sums) = ([0.0; BAND], [[0.0; ROOM]; 2]);
        let ([height, columns], [sh, sw]) = (d.geo.input, d.geo.strides);
        let (_, from, taps) = d.planes();
        for (o, dx) in (first..).zip(dx.chunks_exact_mut(height * columns)) {
            let (dy, w) = (&dy[o * from..][..from], &w[o % d.channels * taps..][..taps]);
            for (row, rows) in bands.cuts() {
                bands.load(dy, row, 0.0, &mut band);
                for (a, parts) in parts[..sh].iter().enumerate() {
                    for (part, sums) in parts[..sw].iter().zip(&mut sums) {
                        let mut weights = [0.0; TAPS];
                        let kernel = &part.kernel[..part.count];
                        weights.iter_mut().zip(kernel).for_each(|(to, &t)| *to = w[t]);
                        correlate(&band, &part.taps[..part.count], &weights, 0.0, rows * bands.width, sums);
                    }
                    let [even, odd] = sums.each_ref().map(|s| s.chunks(bands.width));
                    let dx = dx.chunks_exact_mut(columns).skip(row * sh + a).step_by(sh).take(rows);
                    for (dx, (even, odd)) in dx.zip(even.zip(odd)) {
                        spread(dx, sw, even, odd);
                    }
                }
            }
        }
    }
}

/// Writes a row whose elements come from `even`, or by turns from `even` and `odd`.
#[inline(always)]
fn spread(row: &mut [f32], stride: usize, even: &[f32], odd: &[f32]) {
    if stride == 1 {
        let n = row.len();
        return row.copy_from_slice(&even[..n]);
    }
    let (pairs, last) = row.as_chunks_mut::<2>();
    let n = pairs.len();
    pairs.iter_mut().zip(even.iter().zip(odd)).for_each(|(to, (&a, &b))| *to = [a, b]);
    last.iter_mut().zip(&even[n..]).for_each(|(to, &a)| *to = a);
}
