//! 2-D pooling.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::bands::{BAND, Bands, LANES, ROOM, TAPS};
use crate::error::KernelError;
use crate::index::first_illegal;
use crate::parallel::{INLINE, for_rows, for_rows2, rows_per_chunk};
use crate::view::Ctx;
use crate::walk::{ext, product};

type Done = Result<(), KernelError>;

/// Attributes of a pooling window.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a> {
    pub(crate) kernel: &'a [u64],
    pub(crate) strides: &'a [u64],
    /// Top, left, bottom, right.
    pub(crate) pads: &'a [u64],
    pub(crate) dilations: &'a [u64],
}

/// A window along one spatial axis.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pads: [usize; 2],
}

impl Axis {
    fn new(w: &Window, axis: usize, size: u64) -> Self {
        Axis {
            size: ext(size),
            kernel: ext(w.kernel[axis]),
            stride: ext(w.strides[axis]),
            dilation: ext(w.dilations[axis]),
            pads: [ext(w.pads[axis]), ext(w.pads[axis + 2])],
        }
    }

    /// First input position of output `o` and the number of positions, padding left out.
    #[inline(always)]
    fn taps(&self, o: usize) -> (usize, usize) {
        let begin = o * self.stride;
        let skip = self.steps(self.pads[0].saturating_sub(begin));
        let first = begin + skip * self.dilation - self.pads[0];
        let room = self.steps(self.size.saturating_sub(first));
        (first, self.kernel.saturating_sub(skip).min(room))
    }

    /// Taps that cover `len` positions.
    #[inline(always)]
    fn steps(&self, len: usize) -> usize {
        // Divisions by one would take most of the time of a small window.
        if self.dilation == 1 { len } else { len.div_ceil(self.dilation) }
    }

    /// Positions of an undilated window of output `o` that are in the input or its padding.
    fn padded_len(&self, o: usize) -> usize {
        let begin = o * self.stride;
        self.kernel.min((self.pads[0] + self.size + self.pads[1]).saturating_sub(begin))
    }
}

/// The first maximum of a window, or its first NaN, and its position in the plane.
#[inline(always)]
fn winner(
    plane: &[f32],
    (ah, h0, hn): (&Axis, usize, usize),
    (aw, (w0, wn)): (&Axis, (usize, usize)),
) -> (f32, usize) {
    let (mut best, mut at) = (f32::NEG_INFINITY, 0);
    if hn * wn > 0 {
        at = h0 * aw.size + w0;
    }
    for i in 0..if wn > 0 { hn } else { 0 } {
        let from = (h0 + i * ah.dilation) * aw.size + w0;
        for (t, &x) in plane[from..][..(wn - 1) * aw.dilation + 1].iter().enumerate().step_by(aw.dilation) {
            // A number is replaced by a larger one or by NaN, NaN by nothing.
            if !(x <= best || best.is_nan()) {
                (best, at) = (x, from + t);
            }
        }
    }
    (best, at)
}

/// The windows of a max pooling in bands of its input; nothing where they do not fit, or where an offset in a
/// plane does not fit `i32`.
struct Windows {
    bands: Bands,
    /// Place of every tap, and its offset in the plane from the first; then the number of taps.
    taps: [usize; TAPS],
    offsets: [i32; TAPS],
    count: usize,
}

impl Windows {
    fn new(ah: &Axis, aw: &Axis, output: [usize; 2]) -> Option<Windows> {
        let count = ah.kernel.checked_mul(aw.kernel)?;
        let size = i32::try_from(ah.size.checked_mul(aw.size)?).ok()?;
        let reach = [ah, aw].map(|a| a.kernel.saturating_sub(1).saturating_mul(a.dilation));
        let extent = i32::try_from(reach[0].checked_mul(aw.size)?.checked_add(reach[1])?).ok()?;
        if !(1..=TAPS).contains(&count) || size.checked_add(extent).is_none() {
            return None;
        }
        let lead = [ah, aw].map(|a| a.pads[0] as isize);
        let bands = Bands::new([ah.size, aw.size], [ah.stride, aw.stride], lead, output, reach)?;
        let at = |t: usize| [t / aw.kernel * ah.dilation, t % aw.kernel * aw.dilation];
        let known = |t: usize| (t < count).then(|| at(t));
        let taps = std::array::from_fn(|t| known(t).map_or(0, |at| bands.tap(at)));
        let offsets = std::array::from_fn(|t| known(t).map_or(0, |[i, j]| (i * aw.size + j) as i32));
        Some(Windows { bands, taps, offsets, count })
    }

    /// The first maxima, or first NaNs, of the first `positions` windows of a band, and their offsets from
    /// the windows' first taps; [`NONE`] where no element is above negative infinity.
    #[inline(always)]
    fn winners(&self, band: &[f32], positions: usize, best: &mut [f32], at: &mut [i32]) {
        let blocks = best.as_chunks_mut::<LANES>().0.iter_mut().zip(at.as_chunks_mut::<LANES>().0);
        for (b, (best, at)) in blocks.take(positions.div_ceil(LANES)).enumerate() {
            let (mut most, mut offset) = ([f32::NEG_INFINITY; LANES], [NONE; LANES]);
            for (&tap, &o) in self.taps[..self.count].iter().zip(&self.offsets) {
                let Some(x) = band[tap + b * LANES..].first_chunk::<LANES>() else { continue };
                for l in 0..LANES {
                    // A number is replaced by a larger one or by NaN, NaN by nothing.
                    let wins = !(x[l] <= most[l] || most[l].is_nan());
                    most[l] = if wins { x[l] } else { most[l] };
                    offset[l] = if wins { o } else { offset[l] };
                }
            }
            (*best, *at) = (most, offset);
        }
    }
}

/// Offset of a winner that is not known.
const NONE: i32 = i32::MIN;

/// A max pooling of the planes from `first` on.
struct MaxPool<'a> {
    axes: (&'a Axis, &'a Axis),
    windows: &'a Windows,
    output: [usize; 2],
    first: usize,
    x: &'a [f32],
    y: &'a mut [f32],
    indices: &'a mut [i64],
}

impl WithSimd for MaxPool<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let MaxPool { axes: (ah, aw), windows, output: [oh, ow], first, x, y, indices } = self;
        let bands = &windows.bands;
        let (mut band, mut best, mut at) = ([f32::NEG_INFINITY; BAND], [0.0; ROOM], [0; ROOM]);
        let planes = y.chunks_exact_mut(oh * ow).zip(indices.chunks_exact_mut(oh * ow));
        for (plane, (y, indices)) in (first..).zip(planes) {
            let base = plane * ah.size * aw.size;
            let x = &x[base..][..ah.size * aw.size];
            for (row, rows) in bands.cuts() {
                bands.load(x, row, f32::NEG_INFINITY, &mut band);
                windows.winners(&band, rows * bands.width, &mut best, &mut at);
                let to = y.chunks_exact_mut(ow).zip(indices.chunks_exact_mut(ow)).skip(row).take(rows);
                let from = best.chunks(bands.width).zip(at.chunks(bands.width));
                for (i, ((y, indices), (best, at))) in to.zip(from).enumerate() {
                    y.copy_from_slice(&best[..ow]);
                    let i = row + i;
                    let corner =
                        (base + i * ah.stride * aw.size) as i64 - (ah.pads[0] * aw.size + aw.pads[0]) as i64;
                    let mut unknown = false;
                    for (j, (index, &at)) in indices.iter_mut().zip(at).enumerate() {
                        *index = corner + (j * aw.stride) as i64 + i64::from(at);
                        unknown |= at == NONE;
                    }
                    if unknown {
                        let (h0, hn) = ah.taps(i);
                        for (j, index) in indices.iter_mut().enumerate() {
                            *index = (base + winner(x, (ah, h0, hn), (aw, aw.taps(j))).1) as i64;
                        }
                    }
                }
            }
        }
    }
}

pub(crate) fn max_pool(c: &Ctx, results: &mut [&mut [u8]], window: &Window) -> Done {
    let x = c.slice::<f32>(0)?;
    let (shape, out) = (&c.types[0].shape, &c.results[0].shape);
    let (ah, aw) = (Axis::new(window, 0, shape[2]), Axis::new(window, 1, shape[3]));
    let (oh, ow) = (ext(out[2]), ext(out[3]));
    let [y, indices] = c.outs(results)?;
    let (y, indices) = (c.out::<f32>(y)?, c.out::<i64>(indices)?);
    let windows = Windows::new(&ah, &aw, [oh, ow]);
    let work = ah.kernel * aw.kernel * oh * ow;
    for_rows2((y, indices), oh * ow, work, rows_per_chunk(work), |first, y, indices| {
        if let Some(windows) = &windows {
            let (axes, output) = ((&ah, &aw), [oh, ow]);
            return Arch::new().dispatch(MaxPool { axes, windows, output, first, x, y, indices });
        }
        let rows = y.chunks_exact_mut(ow).zip(indices.chunks_exact_mut(ow)).enumerate();
        for (row, (y, indices)) in rows {
            let (plane, (h0, hn)) = (first + row / oh, ah.taps(row % oh));
            let base = plane * ah.size * aw.size;
            for (j, (y, index)) in y.iter_mut().zip(indices).enumerate() {
                let (best, at) = winner(&x[base..], (&ah, h0, hn), (&aw, aw.taps(j)));
                (*y, *index) = (best, (base + at) as i64);
            }
        }
    });
    Ok(())
}

pub(crate) fn max_pool_grad(c: &Ctx, dx: &mut [u8]) -> Done {
    let (dy, indices) = (c.slice::<f32>(0)?, c.slice::<i64>(1)?);
    let dx = c.out::<f32>(dx)?;
    let total = dx.len() as i64;
    if let Some(position) = first_illegal(indices, |_, v| (0..total).contains(&v)) {
        return Err(KernelError::Index {
            op: c.op.mnemonic(),
            operand: c.op.def().operands[1],
            position,
            value: indices[position],
            low: 0,
            high: total,
        });
    }
    let add = |from: usize, dx: &mut [f32], dy: &[f32], indices: &[i64]| {
        dx.fill(0.0);
        for (dy, &at) in dy.iter().zip(indices) {
            dx[at as usize - from] += dy;
        }
    };
    // Indices written by max_pool stay within their plane; then planes are independent.
    let (into, from) = (&c.results[0].shape, &c.types[0].shape);
    let planar = into.len() == 4 && from.len() == 4 && into[..2] == from[..2];
    let (plane, window) = if planar { (product(&into[2..]), product(&from[2..])) } else { (0, 0) };
    let inside = |at: usize, v: i64| v as usize / plane == at / window;
    if plane * window > 0 && dx.len() >= INLINE && first_illegal(indices, inside).is_none() {
        let parts = dy.par_chunks_exact(window).zip(indices.par_chunks_exact(window));
        let planes = dx.par_chunks_exact_mut(plane).zip(parts).enumerate();
        planes.for_each(|(i, (dx, (dy, indices)))| add(i * plane, dx, dy, indices));
    } else {
        add(0, dx, dy, indices);
    }
    Ok(())
}

/// Hands the gradient of every output of a pooling, the first operand, to `add`: with the axes, the number of
/// the plane and the plane's part of `dx`, and the output's position.
fn hand_back(
    c: &Ctx,
    dx: &mut [u8],
    window: &Window,
    add: impl Fn((&Axis, &Axis), (usize, &mut [f32]), (usize, usize), f32) + Sync,
) -> Done {
    let dy = c.slice::<f32>(0)?;
    let (shape, out) = (&c.results[0].shape, &c.types[0].shape);
    let (ah, aw) = (Axis::new(window, 0, shape[2]), Axis::new(window, 1, shape[3]));
    let (oh, ow) = (ext(out[2]), ext(out[3]));
    let plane = ah.size * aw.size;
    for_rows(c.out::<f32>(dx)?, plane, ah.kernel * aw.kernel * oh * ow, |first, dx| {
        dx.fill(0.0);
        for (p, dx) in dx.chunks_exact_mut(plane).enumerate() {
            let dy = &dy[(first + p) * oh * ow..][..oh * ow];
            for (i, dy) in dy.chunks_exact(ow).enumerate() {
                for (j, &dy) in dy.iter().enumerate() {
                    add((&ah, &aw), (first + p, dx), (i, j), dy);
                }
            }
        }
    });
    Ok(())
}

pub(crate) fn max_pool_grad_input(c: &Ctx, dx: &mut [u8], window: &Window) -> Done {
    let x = c.slice::<f32>(1)?;
    hand_back(c, dx, window, |(ah, aw), (plane, dx), (i, j), dy| {
        let (h0, hn) = ah.taps(i);
        dx[winner(&x[plane * dx.len()..][..dx.len()], (ah, h0, hn), (aw, aw.taps(j))).1] += dy;
    })
}

/// Divisor of the average of output (`i`, `j`), whose window has `taps` positions inside the input.
fn divisor(ah: &Axis, aw: &Axis, (i, j): (usize, usize), taps: usize, count_pad: bool) -> f32 {
    (if count_pad { ah.padded_len(i) * aw.padded_len(j) } else { taps }).max(1) as f32
}

pub(crate) fn average_pool(c: &Ctx, y: &mut [u8], window: &Window, count_pad: bool) -> Done {
    let x = c.slice::<f32>(0)?;
    let (shape, out) = (&c.types[0].shape, &c.results[0].shape);
    let (ah, aw) = (Axis::new(window, 0, shape[2]), Axis::new(window, 1, shape[3]));
    let (oh, ow) = (ext(out[2]), ext(out[3]));
    for_rows(c.out::<f32>(y)?, oh * ow, ah.kernel * aw.kernel * oh * ow, |first, y| {
        for (row, y) in y.chunks_exact_mut(ow).enumerate() {
            let (plane, i) = (first + row / oh, row % oh);
            let (h0, hn) = ah.taps(i);
            for (j, y) in y.iter_mut().enumerate() {
                let (w0, wn) = aw.taps(j);
                let mut total = 0.0f64;
                for h in h0..h0 + hn {
                    let from = (plane * ah.size + h) * aw.size + w0;
                    total += x[from..from + wn].iter().map(|&x| f64::from(x)).sum::<f64>();
                }
                *y = total as f32 / divisor(&ah, &aw, (i, j), hn * wn, count_pad);
            }
        }
    });
    Ok(())
}

pub(crate) fn average_pool_grad(c: &Ctx, dx: &mut [u8], window: &Window, count_pad: bool) -> Done {
    hand_back(c, dx, window, |(ah, aw), (_, dx), (i, j), dy| {
        let ((h0, hn), (w0, wn)) = (ah.taps(i), aw.taps(j));
        let share = dy / divisor(ah, aw, (i, j), hn * wn, count_pad);
        for h in h0..h0 + hn {
            dx[h * aw.size + w0..][..wn].iter_mut().for_each(|d| *d += share);
        }
    })
}
