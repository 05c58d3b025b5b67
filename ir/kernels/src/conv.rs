//! 2-D convolution and its gradients: im2col in tiles and matrix products.
//!
//! The tiles and lanes are those of [`im2col_tiling`]. A lane has one tile of columns in the workspace; a
//! pointwise convolution needs none, because its column matrix is the image. Where a batch has fewer images
//! than there are lanes, channels are cut into parts that run side by side.

use memc_ir::ops::{MAX_LANES, im2col_tiling, is_depthwise};
use rayon::prelude::*;

use crate::columns::{ConvAttrs, Geometry, col2im, im2col};
use crate::depthwise::Depthwise;
use crate::error::KernelError;
use crate::matmul::multiply;
use crate::matrix::Mat;
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

    /// First pixel and length of every tile.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (pixels, tile) = (self.pixels, self.tile.max(1));
        (0..pixels).step_by(tile).map(move |p| (p, tile.min(pixels - p)))
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
        let Some(Lane { dw, columns }) = slot else { return Ok(()) };
        dw.fill(0.0);
        for i in (l..p.batch).step_by(p.lanes) {
            for g in 0..p.groups {
                let x = &x[i * in_image + g * in_group..][..in_group];
                let dy = &dy[i * out_image + g * out_group..][..out_group];
                let dw = &mut dw[g * p.m * p.rows..][..p.m * p.rows];
                let product = |dw: &mut [f32], first: usize, len: usize, columns: Mat| {
                    let dy = Mat::dense(dy.get(first..).unwrap_or_default(), p.pixels, false);
                    p.by_rows((dw, p.m), len, |row, dw| {
                        let rows = dw.len() / p.rows;
                        multiply(c, [rows, p.rows, len], (dw, p.rows, 1.0), 1.0, dy.below(row), columns)
                    })
                };
                if p.pointwise {
                    product(dw, 0, p.pixels, Mat::dense(x, p.pixels, true))?;
                    continue;
                }
                for (first, len) in p.tiles() {
                    let columns = &mut columns[..p.rows * len];
                    p.im2col(x, first, len, columns);
                    product(dw, first, len, Mat::dense(columns, len, true))?;
                }
            }
        }
        Ok(())
    };
    if p.parallel {
        lanes.par_iter_mut().enumerate().try_for_each(run)?;
    } else {
        lanes.iter_mut().enumerate().try_for_each(run)?;
    }
    for_chunks(dw, |at, dw| {
        for sum in sums.chunks_exact(weights) {
            dw.iter_mut().zip(&sum[at..]).for_each(|(d, s)| *d += s);
        }
    });
    Ok(())
}
