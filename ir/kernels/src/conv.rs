//! 2-D convolution and its gradients: matrix products with panels, or with tiles, of the column matrix.
//!
//! [`crate::dense`] has the products with panels, which need no workspace but for sums. For others, tiles and
//! lanes are those of [`im2col_tiling`]: a lane has one tile of columns in the workspace. A pointwise
//! convolution needs none, because its column matrix is the image. Where a batch has fewer images than there
//! are lanes, channels are cut into parts that run side by side.

use memc_ir::ops::{MAX_LANES, im2col_tiling, is_depthwise};
use rayon::prelude::*;

use crate::columns::{ConvAttrs, Geometry, col2im, im2col};
use crate::dense::{self, GradPart, GradShifted, Part, Transpose, Weights};
use crate::depthwise::Depthwise;
use crate::error::KernelError;
use crate::matmul::multiply;
use crate::matrix::Mat;
use crate::panels::Rows;
use crate::parallel::for_chunks;
use crate::view::Ctx;
use crate::walk::ext;

type Done = Result<(), KernelError>;

/// Multiply-adds below which images are not processed side by side.
const SMALL: usize = 1 << 17;

/// Multiply-adds of a part, at least.
const PART: usize = 1 << 18;
/// Parts of all images side by side, at most.
const PARTS: usize = 16;
/// Weights of a group, at most, that are read turned round. Every panel reads them all, a few at a time, so
/// more do not stay in cache.
const FAR: usize = 1 << 20;
/// Rows of a part that packs columns of its own, at least.
const FEWEST: usize = 16;

/// Order of the sums that make the gradient of the weights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sum {
    /// By lanes: a row for every output channel, from tiles of columns.
    Rows,
    /// By lanes: a column for every output channel, from tiles of columns; transposed in the end.
    Columns,
    /// By lanes: a column for every output channel, without tiles; transposed in the end.
    Lanes,
    /// By parts of the channels: a column for every output channel, without tiles; transposed in the end.
    Parts,
}

/// Extents of one convolution; `channels` and `m` are input and output channels of one group.
struct Plan {
    geo: Geometry,
    batch: usize,
    groups: usize,
    channels: usize,
    m: usize,
    /// Rows of the column matrix of a group.
    rows: usize,
    /// Output pixels.
    pixels: usize,
    tile: usize,
    lanes: usize,
    pointwise: bool,
    parallel: bool,
}

impl Plan {
    fn new(c: &Ctx, a: &ConvAttrs, x: &[u64], w: &[u64], y: &[u64]) -> Result<Plan, KernelError> {
        let groups = usize::try_from(a.groups).ok().filter(|&g| g > 0).ok_or_else(|| c.fail("no groups"))?;
        let t = im2col_tiling(x[0], w[1] * w[2] * w[3], y[2] * y[3]);
        let pointwise = w[2..] == [1, 1] && a.strides == [1, 1] && a.pads.iter().all(|&p| p == 0);
        let (batch, m, rows, pixels) = (ext(x[0]), ext(w[0]) / groups, ext(t.rows), ext(t.pixels));
        let work = [batch, groups, m, rows, pixels].into_iter().fold(1, usize::saturating_mul);
        Ok(Plan {
            geo: Geometry::new(a, x, w, y),
            batch,
            groups,
            channels: ext(w[1]),
            m,
            rows,
            pixels,
            tile: ext(t.tile),
            lanes: ext(t.lanes),
            pointwise,
            parallel: work >= SMALL,
        })
    }

    /// Input elements of one image and of one group of it.
    fn input(&self) -> (usize, usize) {
        let group = self.channels * self.geo.input[0] * self.geo.input[1];
        (group * self.groups, group)
    }

    /// Output elements of one image and of one group of it.
    fn output(&self) -> (usize, usize) {
        (self.m * self.pixels * self.groups, self.m * self.pixels)
    }

    /// Columns of one lane, in elements.
    fn columns(&self) -> usize {
        if self.pointwise { 0 } else { self.rows * self.tile }
    }

    /// Number of `units` in a part when all take `work` multiply-adds.
    fn part(&self, units: usize, work: usize) -> usize {
        if !self.parallel || self.lanes >= MAX_LANES as usize || units == 0 {
            return units.max(1);
        }
        let parts = (work / PART).clamp(1, PARTS / self.lanes);
        units.div_ceil(parts)
    }

    /// Multiply-adds of a tile of `len` pixels.
    fn work(&self, len: usize) -> usize {
        self.m.saturating_mul(self.rows).saturating_mul(len)
    }

    /// The columns of a tile, by parts of the channels.
    fn im2col(&self, x: &[f32], first: usize, len: usize, columns: &mut [f32]) {
        // Copying an element takes as long as some multiply-adds.
        let part = self.part(self.channels, self.rows.saturating_mul(len).saturating_mul(8));
        let plane = self.geo.input[0] * self.geo.input[1];
        let each = part * (self.rows / self.channels.max(1)) * len;
        if part >= self.channels || each == 0 {
            return im2col(&self.geo, x, first, len, columns);
        }
        columns.par_chunks_mut(each).enumerate().for_each(|(i, columns)| {
            im2col(&self.geo, &x[i * part * plane..], first, len, columns);
        });
    }

    /// Calls `f(first row, rows)` for parts of the rows of `dst`, which has `units` rows, of a product of a
    /// tile.
    fn by_rows(
        &self,
        (dst, units): (&mut [f32], usize),
        len: usize,
        f: impl Fn(usize, &mut [f32]) -> Done + Sync,
    ) -> Done {
        let part = self.part(units, self.work(len));
        if part >= units || dst.is_empty() {
            return f(0, dst);
        }
        let each = part * (dst.len() / units);
        dst.par_chunks_mut(each).enumerate().try_for_each(|(i, dst)| f(i * part, dst))
    }

    /// Number of `units` in a part that packs columns of its own.
    fn direct_part(&self, units: usize) -> usize {
        if self.part(units, self.work(self.pixels)) >= units {
            return units.max(1);
        }
        let parts = (PARTS / self.lanes).min(units / FEWEST).max(1);
        units.div_ceil(parts).next_multiple_of(6)
    }

    /// Calls `f(group of an image, first row, rows)` for parts of the groups of `out`, which have `units`
    /// rows each.
    fn groups(&self, out: &mut [f32], units: usize, f: impl Fn(usize, usize, &mut [f32]) + Sync) {
        let group = out.len() / (self.batch * self.groups).max(1);
        if group == 0 {
            return;
        }
        if !self.parallel {
            return out.chunks_mut(group).enumerate().for_each(|(i, out)| f(i, 0, out));
        }
        let part = self.direct_part(units);
        out.par_chunks_mut(group).enumerate().for_each(|(i, out)| {
            let parts = out.par_chunks_mut(part * (group / units)).enumerate();
            parts.for_each(|(j, out)| f(i, j * part, out));
        });
    }

    /// First pixel and length of every tile.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (pixels, tile) = (self.pixels, self.tile.max(1));
        (0..pixels).step_by(tile).map(move |p| (p, tile.min(pixels - p)))
    }

    /// Channels of a part of the gradient of the weights that is summed up over all images.
    fn shifted_part(&self) -> usize {
        if self.lanes < MAX_LANES as usize { FEWEST } else { 2 * FEWEST }
    }

    /// Order of the sums for a gradient of `weights` weights.
    fn sum_of(&self, weights: usize) -> Sum {
        if !self.pointwise && dense::shifts(&self.geo) && (self.lanes > 1 || self.columns() >= weights) {
            let many = self.channels >= MAX_LANES as usize * self.shifted_part();
            return if many || self.lanes < MAX_LANES as usize { Sum::Parts } else { Sum::Lanes };
        }
        if self.lanes == 1 || (self.pointwise && self.m >= self.channels) { Sum::Rows } else { Sum::Columns }
    }

    /// Writes the sum of a group's gradients of weights by images `first`, `first + step` and so on, in parts
    /// of `part` channels.
    fn grad_shifted(
        &self,
        group: usize,
        (x, dy): (&[f32], &[f32]),
        [first, step, part]: [usize; 3],
        dw: &mut [f32],
    ) {
        let ((in_image, in_group), (out_image, out_group)) = (self.input(), self.output());
        let (plane, taps) = (self.geo.input[0] * self.geo.input[1], self.rows / self.channels.max(1));
        let one = |(i, out): (usize, &mut [f32])| {
            out.fill(0.0);
            if self.batch <= first {
                return;
            }
            dense::run_shifted(GradShifted {
                geo: &self.geo,
                x: (&x[first * in_image + group * in_group + i * part * plane..], step * in_image),
                dy: (&dy[first * out_image + group * out_group..], step * out_image),
                images: (self.batch - first).div_ceil(step),
                m: self.m,
                out,
            });
        };
        if part >= self.channels {
            return one((0, dw));
        }
        dw.par_chunks_mut(part * taps * self.m).enumerate().for_each(one);
    }

    /// Adds to the gradient of a group's weights what a tile gives, for which `columns` has room.
    fn grad_tile(
        &self,
        sum_of: Sum,
        (x, columns): (&[f32], &mut [f32]),
        (dy, first, len): (&[f32], usize, usize),
        dw: &mut [f32],
    ) {
        let dy = |row: usize| Rows { data: &dy[row * self.pixels + first..], ld: self.pixels };
        if sum_of == Sum::Rows {
            if !self.pointwise {
                self.im2col(x, first, len, columns);
            }
            let matrix: &[f32] = if self.pointwise { x } else { columns };
            let one = |row: usize, out: &mut [f32]| {
                let right = Rows { data: matrix, ld: len };
                dense::run_grad(GradPart { left: dy(row), len, right, m: self.rows, out });
            };
            let part = self.direct_part(self.m);
            if part >= self.m {
                return one(0, dw);
            }
            let parts = dw.par_chunks_mut(part * self.rows).enumerate();
            return parts.for_each(|(i, out)| one(i * part, out));
        }
        let plane = self.geo.input[0] * self.geo.input[1];
        let one = |channel: usize, columns: &mut [f32], out: &mut [f32]| {
            let x = &x[channel * plane..];
            if !self.pointwise {
                im2col(&self.geo, x, first, len, columns);
            }
            let left = Rows { data: if self.pointwise { x } else { columns }, ld: len };
            dense::run_grad(GradPart { left, len, right: dy(0), m: self.m, out });
        };
        let (part, taps) = (self.direct_part(self.channels), self.rows / self.channels.max(1));
        if part >= self.channels || taps == 0 {
            return one(0, columns, dw);
        }
        let parts = dw.par_chunks_mut(part * taps * self.m).enumerate();
        if self.pointwise {
            return parts.for_each(|(i, out)| one(i * part, &mut [], out));
        }
        let columns = columns.par_chunks_mut(part * taps * len);
        parts.zip(columns).for_each(|((i, out), columns)| one(i * part, columns, out));
    }

    /// Writes to `dw` the sum of what the lanes have, of which it has the first's.
    fn collect(&self, sum_of: Sum, sums: &mut [f32], dw: &mut [f32]) {
        let weights = dw.len();
        if sum_of == Sum::Rows {
            return for_chunks(dw, |at, dw| {
                for sum in sums.chunks_exact(weights) {
                    dw.iter_mut().zip(&sum[at..]).for_each(|(d, s)| *d += s);
                }
            });
        }
        let (total, others) = sums.split_at_mut(weights);
        for_chunks(total, |at, total| {
            total.iter_mut().zip(&dw[at..]).for_each(|(t, d)| *t += d);
            for sum in others.chunks_exact(weights) {
                total.iter_mut().zip(&sum[at..]).for_each(|(t, s)| *t += s);
            }
        });
        self.turn(total, dw);
    }

    /// Writes to `dw` the transpose of every group of `total`.
    fn turn(&self, total: &[f32], dw: &mut [f32]) {
        let group = self.m * self.rows;
        for (dw, total) in dw.chunks_exact_mut(group).zip(total.chunks_exact(group)) {
            let each = |(i, to): (usize, &mut [f32])| {
                dense::run_transpose(Transpose { from: total, ld: self.m, first: i * FEWEST, to });
            };
            if self.parallel {
                dw.par_chunks_mut(FEWEST * self.rows).enumerate().for_each(each);
            } else {
                dw.chunks_mut(FEWEST * self.rows).enumerate().for_each(each);
            }
        }
    }

    /// Calls `f(image index, image, columns)` for every image of `out`, lane by lane.
    fn images(
        &self,
        c: &Ctx,
        out: &mut [f32],
        workspace: &mut [u8],
        f: impl Fn(usize, &mut [f32], &mut [f32]) -> Done + Sync,
    ) -> Done {
        if out.is_empty() {
            return Ok(());
        }
        let (image, lane) = (out.len() / self.batch, self.columns());
        if lane == 0 {
            return if self.parallel {
                out.par_chunks_mut(image).enumerate().try_for_each(|(i, out)| f(i, out, &mut []))
            } else {
                out.chunks_mut(image).enumerate().try_for_each(|(i, out)| f(i, out, &mut []))
            };
        }
        let columns = scratch(c, workspace, self.lanes * lane)?;
        if !self.parallel {
            let columns = &mut columns[..lane];
            return out.chunks_mut(image).enumerate().try_for_each(|(i, out)| f(i, out, columns));
        }
        for (round, out) in out.chunks_mut(image * self.lanes).enumerate() {
            let lanes = out.par_chunks_mut(image).zip(columns.par_chunks_mut(lane)).enumerate();
            lanes.try_for_each(|(l, (out, columns))| f(round * self.lanes + l, out, columns))?;
        }
        Ok(())
    }
}

/// The first `len` elements of the workspace.
fn scratch<'w>(c: &Ctx, workspace: &'w mut [u8], len: usize) -> Result<&'w mut [f32], KernelError> {
    let have = workspace.len();
    match workspace.get_mut(..len.saturating_mul(4)) {
        Some(bytes) => c.out(bytes),
        None => Err(c.fail(format!("the workspace has {have} bytes, wants {}", len.saturating_mul(4)))),
    }
}

/// The convolution of images of shape `x` by a weight of shape `w` to images of shape `y`, if it is
/// depthwise.
fn depthwise(a: &ConvAttrs, x: &[u64], w: &[u64], y: &[u64]) -> Option<Depthwise> {
    is_depthwise(w, x[1]).then(|| Depthwise {
        geo: Geometry::new(a, x, w, y),
        batch: ext(x[0]),
        channels: ext(x[1]),
        multiplier: ext(w[0] / x[1]),
    })
}

pub(crate) fn forward(c: &Ctx, y: &mut [u8], workspace: &mut [u8], attrs: &ConvAttrs) -> Done {
    let (x, w) = (c.slice::<f32>(0)?, c.slice::<f32>(1)?);
    let bias = if c.operands.len() > 2 { Some(c.slice::<f32>(2)?) } else { None };
    if let Some(d) = depthwise(attrs, &c.types[0].shape, &c.types[1].shape, &c.results[0].shape) {
        d.forward(x, w, bias, c.out(y)?);
        return Ok(());
    }
    let p = Plan::new(c, attrs, &c.types[0].shape, &c.types[1].shape, &c.results[0].shape)?;
    let ((image, in_group), (_, out_group)) = (p.input(), p.output());
    if !p.pointwise && dense::fits(&p.geo) {
        p.groups(c.out(y)?, p.m, |i, first, out| {
            let row = i % p.groups * p.m + first;
            for (j, out) in out.chunks_exact_mut(p.pixels).enumerate() {
                out.fill(bias.map_or(0.0, |b| b[row + j]));
            }
            let (x, weights) = (&x[i * in_group..][..in_group], Weights::Straight(&w[row * p.rows..]));
            dense::run(Part { geo: &p.geo, x, weights, out });
        });
        return Ok(());
    }
    let keep = if bias.is_some() { 1.0 } else { 0.0 };
    p.images(c, c.out(y)?, workspace, |i, y, columns| {
        if let Some(bias) = bias {
            y.chunks_exact_mut(p.pixels).zip(bias).for_each(|(y, &b)| y.fill(b));
        }
        for g in 0..p.groups {
            let x = &x[i * image + g * in_group..][..in_group];
            let y = &mut y[g * out_group..][..out_group];
            let w = Mat::dense(&w[g * p.m * p.rows..][..p.m * p.rows], p.rows, false);
            let product = |y: &mut [f32], first: usize, len: usize, columns: Mat| {
                p.by_rows((y, p.m), len, |row, y| {
                    let rows = y.len() / p.pixels;
                    let y = (&mut y[first..], p.pixels, keep);
                    multiply(c, [rows, len, p.rows], y, 1.0, w.below(row), columns)
                })
            };
            if p.pointwise {
                product(y, 0, p.pixels, Mat::dense(x, p.pixels, false))?;
                continue;
            }
            for (first, len) in p.tiles() {
                let columns = &mut columns[..p.rows * len];
                p.im2col(x, first, len, columns);
                product(y, first, len, Mat::dense(columns, len, false))?;
            }
        }
        Ok(())
    })
}

pub(crate) fn grad_input(c: &Ctx, dx: &mut [u8], workspace: &mut [u8], attrs: &ConvAttrs) -> Done {
    let (dy, w) = (c.slice::<f32>(0)?, c.slice::<f32>(1)?);
    if let Some(d) = depthwise(attrs, &c.results[0].shape, &c.types[1].shape, &c.types[0].shape) {
        d.grad_input(dy, w, c.out(dx)?);
        return Ok(());
    }
    let p = Plan::new(c, attrs, &c.results[0].shape, &c.types[1].shape, &c.types[0].shape)?;
    let ((_, in_group), (image, out_group)) = (p.input(), p.output());
    let far = p.m.saturating_mul(p.rows) > FAR;
    let turned = if p.pointwise || far { None } else { dense::turned(&p.geo).filter(dense::fits) };
    if let Some(geo) = turned {
        p.groups(c.out(dx)?, p.channels, |i, first, out| {
            out.fill(0.0);
            let (x, w) = (&dy[i * out_group..][..out_group], &w[i % p.groups * p.m * p.rows..]);
            dense::run(Part { geo: &geo, x, weights: Weights::Turned(w, first, p.rows), out });
        });
        return Ok(());
    }
    p.images(c, c.out(dx)?, workspace, |i, dx, columns| {
        if !p.pointwise {
            dx.fill(0.0);
        }
        for g in 0..p.groups {
            let dx = &mut dx[g * in_group..][..in_group];
            let dy = &dy[i * image + g * out_group..][..out_group];
            let w = Mat::dense(&w[g * p.m * p.rows..][..p.m * p.rows], p.rows, true);
            if p.pointwise {
                let dy = Mat::dense(dy, p.pixels, false);
                p.by_rows((dx, p.channels), p.pixels, |row, dx| {
                    let rows = dx.len() / p.pixels;
                    multiply(c, [rows, p.pixels, p.m], (dx, p.pixels, 0.0), 1.0, w.below(row), dy)
                })?;
                continue;
            }
            for (first, len) in p.tiles() {
                let columns = &mut columns[..p.rows * len];
                let dy = Mat::dense(dy.get(first..).unwrap_or_default(), p.pixels, false);
                let one = |row: usize, columns: &mut [f32], dx: &mut [f32]| {
                    let rows = columns.len() / len;
                    multiply(c, [rows, len, p.m], (columns, len, 0.0), 1.0, w.below(row), dy)?;
                    col2im(&p.geo, columns, first, len, dx);
                    Ok(())
                };
                let (part, taps) = (p.part(p.channels, p.work(len)), p.rows / p.channels.max(1));
                if part >= p.channels || dx.is_empty() || taps == 0 {
                    one(0, columns, dx)?;
                    continue;
                }
                let columns = columns.par_chunks_mut(part * taps * len);
                let parts = columns.zip(dx.par_chunks_mut(part * in_group / p.channels)).enumerate();
                parts.try_for_each(|(i, (columns, dx))| one(i * part * taps, columns, dx))?;
            }
        }
        Ok(())
    })
}

/// Sum and columns of one lane of grad_weight.
struct Lane<'a> {
    dw: &'a mut [f32],
    columns: &'a mut [f32],
}

pub(crate) fn grad_weight(c: &Ctx, dw: &mut [u8], workspace: &mut [u8], attrs: &ConvAttrs) -> Done {
    let (dy, x) = (c.slice::<f32>(0)?, c.slice::<f32>(1)?);
    if let Some(d) = depthwise(attrs, &c.types[1].shape, &c.results[0].shape, &c.types[0].shape) {
        d.grad_weight(dy, x, c.out(dw)?);
        return Ok(());
    }
    let p = Plan::new(c, attrs, &c.types[1].shape, &c.results[0].shape, &c.types[0].shape)?;
    let ((in_image, in_group), (out_image, out_group)) = (p.input(), p.output());
    let dw = c.out::<f32>(dw)?;
    if dw.is_empty() {
        return Ok(());
    }
    let (weights, lane) = (dw.len(), p.columns());
    let work = scratch(c, workspace, p.lanes * lane + (p.lanes - 1) * weights)?;
    let (columns, sums) = work.split_at_mut(p.lanes * lane);
    let sum_of = p.sum_of(weights);
    if sum_of == Sum::Parts {
        let total = if p.lanes > 1 { &mut sums[..weights] } else { &mut columns[..weights] };
        let part = if p.parallel { p.channels.min(p.shifted_part()) } else { p.channels };
        for (g, total) in total.chunks_exact_mut(p.m * p.rows).enumerate() {
            p.grad_shifted(g, (x, dy), [0, 1, part], total);
        }
        p.turn(&total[..weights], dw);
        return Ok(());
    }

    // Each lane has a sum of its own, whichever thread runs it.
    let mut rest = columns;
    let mut lanes: [Option<Lane>; MAX_LANES as usize] = [const { None }; _];
    let mut targets = Some(&mut *dw).into_iter().chain(sums.chunks_exact_mut(weights));
    for slot in lanes.iter_mut().take(p.lanes) {
        let (first, others) = std::mem::take(&mut rest).split_at_mut(lane);
        rest = others;
        *slot = targets.next().map(|dw| Lane { dw, columns: first });
    }
    let run = |(l, slot): (usize, &mut Option<Lane>)| {
        let Some(Lane { dw, columns }) = slot else { return };
        if sum_of == Sum::Lanes {
            for (g, dw) in dw.chunks_exact_mut(p.m * p.rows).enumerate() {
                p.grad_shifted(g, (x, dy), [l, p.lanes, p.channels], dw);
            }
            return;
        }
        dw.fill(0.0);
        for i in (l..p.batch).step_by(p.lanes) {
            for g in 0..p.groups {
                let x = &x[i * in_image + g * in_group..][..in_group];
                let dy = &dy[i * out_image + g * out_group..][..out_group];
                let dw = &mut dw[g * p.m * p.rows..][..p.m * p.rows];
                if p.pointwise {
                    p.grad_tile(sum_of, (x, &mut []), (dy, 0, p.pixels), dw);
                    continue;
                }
                for (first, len) in p.tiles() {
                    p.grad_tile(sum_of, (x, &mut columns[..p.rows * len]), (dy, first, len), dw);
                }
            }
        }
    };
    if p.parallel {
        lanes.par_iter_mut().enumerate().for_each(run);
    } else {
        lanes.iter_mut().enumerate().for_each(run);
    }
    p.collect(sum_of, sums, dw);
    Ok(())
}
