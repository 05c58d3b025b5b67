//! Dense convolution by panels of its column matrix. A panel is written on the stack and meets all weights,
//! so that no column matrix is needed.
//!
//! The gradient of the input, where strides are one, is the convolution of the output's gradient with the
//! kernel turned round.

use pulp::{Arch, Simd, WithSimd};

use crate::columns::{Geometry, halve};
use crate::panels::{DEPTH, Panel, Picked, Rows, WIDE, product, transpose};

/// Rows of a panel that meets weights, at most. The weights of more rows would drive each other out of cache
/// where they are far apart.
const SHALLOW: usize = DEPTH / 2;
/// Kernel positions, at most, and those along one axis.
const TAPS: usize = 64;
const KERNEL: usize = 16;

/// Whether the panels of a convolution are known.
pub(crate) fn fits(g: &Geometry) -> bool {
    let [kh, kw] = g.kernel;
    let small = [g.input, g.strides, g.pads, g.dilations].iter().flatten().all(|&e| e < 1 << 14);
    kh <= KERNEL && kw <= KERNEL && (1..=TAPS).contains(&(kh * kw)) && small && !g.input.contains(&0)
}

/// The convolution whose images are the gradients of the inputs of `g`; nothing where there is none.
pub(crate) fn turned(g: &Geometry) -> Option<Geometry> {
    if g.strides != [1, 1] {
        return None;
    }
    let pad = |a: usize| ((g.kernel[a] - 1) * g.dilations[a]).checked_sub(g.pads[a]);
    Some(Geometry {
        input: g.output,
        kernel: g.kernel,
        output: g.input,
        strides: [1, 1],
        pads: [pad(0)?, pad(1)?],
        dilations: g.dilations,
    })
}

/// Weights of a convolution.
#[derive(Clone, Copy)]
pub(crate) enum Weights<'a> {
    /// One row for every output channel.
    Straight(&'a [f32]),
    /// Those of the convolution whose input gets a gradient: all of a group, the first row that counts, and
    /// the elements for one output channel.
    Turned(&'a [f32], usize, usize),
}

/// A part of one group of one image: adds to the rows of `out` what the image gives.
pub(crate) struct Part<'a> {
    pub(crate) geo: &'a Geometry,
    /// Input planes of the group.
    pub(crate) x: &'a [f32],
    pub(crate) weights: Weights<'a>,
    pub(crate) out: &'a mut [f32],
}

/// Adds up a part of a convolution.
pub(crate) fn run(part: Part) {
    Arch::new().dispatch(part);
}

/// Output pixels of one panel, and where they are.
struct Strip {
    first: usize,
    len: usize,
    /// Runs of pixels in one output row: position in the strip, length, row and column.
    runs: [(usize, usize, usize, usize); WIDE],
    count: usize,
}

impl Strip {
    #[inline(always)]
    fn new(g: &Geometry, first: usize, len: usize) -> Strip {
        let width = g.output[1];
        let mut strip = Strip { first, len, runs: [(0, 0, 0, 0); WIDE], count: 0 };
        let (mut row, mut column, mut at) = (first / width, first % width, 0);
        while at < len {
            let n = (width - column).min(len - at);
            strip.runs[strip.count] = (at, n, row, column);
            strip.count += 1;
            (at, row, column) = (at + n, row + 1, 0);
        }
        strip
    }
}

/// Cuts `pixels` into strips of at most [`WIDE`], all about as long and a multiple of 16 but for the last.
fn strips(pixels: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let left = pixels - first;
        let parts = left.div_ceil(WIDE);
        let len = left.div_ceil(16).div_ceil(parts.max(1)) * 16;
        let at = first;
        first += len.min(left);
        (left > 0).then_some((at, len.min(left)))
    })
}

/// Bits to keep of the pixels of a strip, for every kernel position: none in the padding.
type Masks = [[u32; WIDE]; TAPS];

#[inline(always)]
fn masks(g: &Geometry, strip: &Strip, masks: &mut Masks) {
    let (mut rows, mut columns) = ([0i32; WIDE], [0i32; WIDE]);
    for &(at, n, row, column) in &strip.runs[..strip.count] {
        rows[at..at + n].fill((row * g.strides[0]) as i32 - g.pads[0] as i32);
        for (l, to) in columns[at..at + n].iter_mut().enumerate() {
            *to = ((column + l) * g.strides[1]) as i32 - g.pads[1] as i32;
        }
    }
    let [height, width] = g.input.map(|e| e as u32);
    for i in 0..g.kernel[0] {
        for (j, mask) in masks[i * g.kernel[1]..][..g.kernel[1]].iter_mut().enumerate() {
            let (down, right) = ((i * g.dilations[0]) as i32, (j * g.dilations[1]) as i32);
            for l in 0..WIDE {
                // A negative position is above every extent.
                let row = rows[l].wrapping_add(down) as u32;
                let column = columns[l].wrapping_add(right) as u32;
                mask[l] = if (row < height) & (column < width) { u32::MAX } else { 0 };
            }
        }
    }
}

/// Row of the column matrix: its channel and kernel position.
#[derive(Clone, Copy)]
struct Place {
    channel: usize,
    tap: [usize; 2],
}

impl Place {
    fn new(g: &Geometry, row: usize) -> Place {
        let (taps, width) = (g.kernel[0] * g.kernel[1], g.kernel[1]);
        Place { channel: row / taps, tap: [row % taps / width, row % width] }
    }

    #[inline(always)]
    fn next(&mut self, g: &Geometry) {
        self.tap[1] += 1;
        if self.tap[1] == g.kernel[1] {
            self.tap = [self.tap[0] + 1, 0];
        }
        if self.tap[0] == g.kernel[0] {
            *self = Place { channel: self.channel + 1, tap: [0, 0] };
        }
    }
}

/// Rows of the column matrix from `place` on, for a convolution that keeps the width and has strides of one.
#[inline(always)]
fn shifted(
    g: &Geometry,
    x: &[f32],
    strip: &Strip,
    masks: &Masks,
    place: &mut Place,
    panel: &mut [[f32; WIDE]],
) {
    let plane = g.input[0] * g.input[1];
    for to in panel {
        let [i, j] = place.tap;
        let mask = &masks[i * g.kernel[1] + j];
        let at = (place.channel * plane + strip.first + i * g.dilations[0] * g.input[1] + j * g.dilations[1])
            as isize
            - (g.pads[0] * g.input[1] + g.pads[1]) as isize;
        let near = usize::try_from(at).ok().and_then(|at| x.get(at..)?.first_chunk::<WIDE>());
        if let Some(x) = near {
            for l in 0..WIDE {
                to[l] = f32::from_bits(x[l].to_bits() & mask[l]);
            }
        } else {
            for (l, (to, &mask)) in to.iter_mut().zip(mask).enumerate().take(strip.len) {
                let x = usize::try_from(at + l as isize).ok().and_then(|at| x.get(at));
                *to = x.map_or(0.0, |x| f32::from_bits(x.to_bits() & mask));
            }
        }
        place.next(g);
    }
}

/// Rows of the column matrix from `place` on, for any convolution.
#[inline(always)]
fn gathered(
    g: &Geometry,
    x: &[f32],
    strip: &Strip,
    inside: &[[usize; 2]; KERNEL],
    place: &mut Place,
    panel: &mut [[f32; WIDE]],
) {
    let [height, width] = g.input;
    for to in panel {
        let [i, j] = place.tap;
        let x = &x[place.channel * height * width..][..height * width];
        let [begin, end] = inside[j];
        for &(at, n, row, column) in &strip.runs[..strip.count] {
            let to = &mut to[at..at + n];
            let row = (row * g.strides[0] + i * g.dilations[0]).wrapping_sub(g.pads[0]);
            let (b, e) = (begin.clamp(column, column + n), end.clamp(column, column + n));
            if row >= height || b >= e {
                to.fill(0.0);
                continue;
            }
            to[..b - column].fill(0.0);
            to[e - column..].fill(0.0);
            let to = &mut to[b - column..e - column];
            let from = &x[row * width + b * g.strides[1] + j * g.dilations[1] - g.pads[1]..(row + 1) * width];
            match g.strides[1] {
                1 => to.copy_from_slice(&from[..e - b]),
                2 => halve(from, to),
                s => to.iter_mut().zip(from.iter().step_by(s)).for_each(|(to, &x)| *to = x),
            }
        }
        place.next(g);
    }
}

impl WithSimd for Part<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Part { geo: g, x, weights, out } = self;
        let pixels = g.output[0] * g.output[1];
        let rows = out.len() / pixels;
        let taps = g.kernel[0] * g.kernel[1];
        let depth = x.len() / (g.input[0] * g.input[1]) * taps;
        if rows == 0 || depth == 0 {
            return;
        }
        let shift = g.strides == [1, 1] && g.input[1] == g.output[1];
        let mut inside = [[0; 2]; KERNEL];
        inside.iter_mut().enumerate().take(g.kernel[1]).for_each(|(j, to)| *to = g.columns_inside(j));
        let mut panel = [[0.0; WIDE]; SHALLOW];
        let mut bits: Masks = [[0; WIDE]; TAPS];
        let block = depth.div_ceil(depth.div_ceil(SHALLOW));
        for (first, len) in strips(pixels) {
            let strip = Strip::new(g, first, len);
            if shift {
                masks(g, &strip, &mut bits);
            }
            let (mut place, out) = (Place::new(g, 0), &mut out[first..]);
            for k in (0..depth).step_by(block) {
                let from = place;
                let panel = &mut panel[..block.min(depth - k)];
                if shift {
                    shifted(g, x, &strip, &bits, &mut place, panel);
                } else {
                    gathered(g, x, &strip, &inside, &mut place, panel);
                }
                match weights {
                    Weights::Straight(w) => {
                        let left = Rows { data: &w[k..], ld: depth };
                        product(simd, &left, rows, panel, len, (&mut *out, pixels));
                    }
                    Weights::Turned(w, row, ld) => {
                        let columns = turned_columns(g, from, ld, panel.len());
                        let left = Picked { data: &w[row * taps..], columns: &columns, ld: taps };
                        product(simd, &left, rows, panel, len, (&mut *out, pixels));
                    }
                }
            }
        }
    }
}

/// Where the weights for rows of the column matrix from `place` on are, for the first input channel.
#[inline(always)]
fn turned_columns(g: &Geometry, mut place: Place, ld: usize, count: usize) -> [usize; SHALLOW] {
    let last = g.kernel[0] * g.kernel[1] - 1;
    let mut columns = [0; SHALLOW];
    for to in &mut columns[..count] {
        *to = place.channel * ld + last - (place.tap[0] * g.kernel[1] + place.tap[1]);
        place.next(g);
    }
    columns
}

/// A part of the gradient of the weights: adds to the rows of `out`, one for every row of `left` and `m`
/// long, its products with the `m` rows of `right`.
pub(crate) struct GradPart<'a> {
    /// Rows of a column matrix and of the output's gradient, `len` long, one way or the other.
    pub(crate) left: Rows<'a>,
    pub(crate) len: usize,
    pub(crate) right: Rows<'a>,
    pub(crate) m: usize,
    pub(crate) out: &'a mut [f32],
}

/// Adds up a part of the gradient of the weights.
pub(crate) fn run_grad(part: GradPart) {
    Arch::new().dispatch(part);
}

impl WithSimd for GradPart<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let GradPart { left, len, right, m, out } = self;
        if m == 0 {
            return;
        }
        let rows = out.len() / m;
        let block = len.div_ceil(len.div_ceil(DEPTH).max(1)).max(1);
        let mut panel: Panel = [[0.0; WIDE]; DEPTH];
        for (first, width) in strips(m) {
            for k in (0..len).step_by(block) {
                let depth = block.min(len - k);
                let from = (&right.data[first * right.ld + k..], right.ld);
                transpose(from, [width, depth], (panel.as_flattened_mut(), WIDE));
                let left = Rows { data: &left.data[k..], ld: left.ld };
                product(simd, &left, rows, &panel[..depth], width, (&mut out[first..], m));
            }
        }
    }
}

/// The gradient of the weights of a convolution that keeps the width and has strides of one, from some
/// images: adds to the rows of `out`, one for every channel and kernel position and `m` long.
///
/// A kernel position meets the input at an offset that is the same for all pixels, so no columns are needed.
/// Pixels that meet the padding left or right have zeros in the panel meanwhile.
pub(crate) struct GradShifted<'a> {
    pub(crate) geo: &'a Geometry,
    /// Images, those from the first that counts on, and the distance of those that count, in elements.
    pub(crate) x: (&'a [f32], usize),
    pub(crate) dy: (&'a [f32], usize),
    /// Number of images that count.
    pub(crate) images: usize,
    pub(crate) m: usize,
    pub(crate) out: &'a mut [f32],
}

/// Whether [`GradShifted`] applies.
pub(crate) fn shifts(g: &Geometry) -> bool {
    fits(g) && g.strides == [1, 1] && g.input[1] == g.output[1] && !g.output.contains(&0)
}

/// Adds up a part of the gradient of the weights.
pub(crate) fn run_shifted(part: GradShifted) {
    Arch::new().dispatch(part);
}

impl GradShifted<'_> {
    /// Calls `f` with the rows of a panel, which begins with pixel `first`, that meet the padding left or
    /// right at horizontal kernel position `j`.
    #[inline(always)]
    fn beside(&self, j: usize, first: usize, depth: usize, mut f: impl FnMut(usize)) {
        let ([begin, end], width) = (self.geo.columns_inside(j), self.geo.output[1]);
        let mut row = first / width * width;
        while row < first + depth && (begin > 0 || end < width) {
            for pixel in (row..row + begin).chain(row + end..row + width) {
                if (first..first + depth).contains(&pixel) {
                    f(pixel - first);
                }
            }
            row += width;
        }
    }

    /// The panel's rows that meet the input at a kernel position, and the pixel that the first one meets.
    #[inline(always)]
    fn met(&self, [i, j]: [usize; 2], first: usize, depth: usize) -> (std::ops::Range<usize>, usize) {
        let g = self.geo;
        let plane = (g.input[0] * g.input[1]) as isize;
        let (down, right) = (i * g.dilations[0] * g.input[1], j * g.dilations[1]);
        let at = (first + down + right) as isize - (g.pads[0] * g.input[1] + g.pads[1]) as isize;
        let begin = (-at).clamp(0, depth as isize);
        let end = (plane - at).clamp(begin, depth as isize);
        (begin as usize..end as usize, (at + begin).max(0) as usize)
    }
}

impl WithSimd for GradShifted<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (g, m) = (self.geo, self.m);
        let (plane, pixels) = (g.input[0] * g.input[1], g.output[0] * g.output[1]);
        let ([kh, kw], out) = (g.kernel, std::mem::take(&mut self.out));
        let channels = out.len() / (kh * kw * m);
        let block = pixels.div_ceil(pixels.div_ceil(DEPTH));
        let mut panel: Panel = [[0.0; WIDE]; DEPTH];
        for (column, width) in strips(m) {
            for n in 0..self.images {
                let (x, dy) = (&self.x.0[n * self.x.1..], &self.dy.0[n * self.dy.1 + column * pixels..]);
                for first in (0..pixels).step_by(block) {
                    let (depth, dy) = (block.min(pixels - first), &dy[first..]);
                    transpose((dy, pixels), [width, depth], (panel.as_flattened_mut(), WIDE));
                    for j in 0..kw {
                        self.beside(j, first, depth, |k| panel[k] = [0.0; WIDE]);
                        for i in 0..kh {
                            let (met, at) = self.met([i, j], first, depth);
                            if met.is_empty() {
                                continue;
                            }
                            let left = Rows { data: &x[at..], ld: plane };
                            let out = &mut out[(i * kw + j) * m + column..];
                            product(simd, &left, channels, &panel[met], width, (out, kh * kw * m));
                        }
                        self.beside(j, first, depth, |k| {
                            panel[k]
                                .iter_mut()
                                .zip(dy[k..].iter().step_by(pixels))
                                .for_each(|(to, d)| *to = *d);
                        });
                    }
                }
            }
        }
    }
}

/// Writes the transpose of a dense matrix with rows of `ld` elements, from its column `first` on.
pub(crate) struct Transpose<'a> {
    pub(crate) from: &'a [f32],
    pub(crate) ld: usize,
    pub(crate) first: usize,
    pub(crate) to: &'a mut [f32],
}

/// Writes a part of a transpose.
pub(crate) fn run_transpose(part: Transpose) {
    Arch::new().dispatch(part);
}

impl WithSimd for Transpose<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Transpose { from, ld, first, to } = self;
        let rows = from.len() / ld;
        let columns = to.len() / rows;
        transpose((&from[first..], ld), [rows, columns], (to, rows));
    }
}
