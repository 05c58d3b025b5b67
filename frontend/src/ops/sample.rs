//! Sampling at positions that are computed: `GridSample` and `AffineGrid`.
//!
//! A sample is a sum over the pixels around its position, along each axis two (linear), four (cubic) or one
//! (nearest). Its gradient reaches the pixels and, through the weights, the positions.

use memc_ir::{DType, OpKind, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};
use crate::tensor::Literal;

/// Attributes of a `GridSample`.
struct Method<'a> {
    mode: &'a str,
    padding: &'a str,
    align_corners: bool,
}

/// Pixels along one axis that samples take: their position as floats, whole and within the image, and weight.
struct Tap {
    at: ValueId,
    /// `None` for one.
    weight: Option<ValueId>,
}

/// `GridSample(X [N, C, ...], grid [N, ..., axes])`.
pub(crate) fn grid_sample(n: &mut NodeCx<'_, '_>) -> Done {
    let (x, grid) = (n.operand(0)?, n.operand(1)?);
    let (image, positions) = (n.ty(x).clone(), n.ty(grid).clone());
    let axes = image.rank().saturating_sub(2);
    let fits = axes >= 1
        && positions.rank() == image.rank()
        && positions.shape.last() == Some(&(axes as u64))
        && positions.shape.first() == image.shape.first();
    if !fits {
        return Err(format!("a grid {positions} does not fit an image {image}").into());
    }
    let method = Method {
        mode: n.text("mode", if n.version < 20 { "bilinear" } else { "linear" })?,
        padding: n.text("padding_mode", "zeros")?,
        align_corners: n.flag("align_corners", false)?,
    };
    let (batch, channels) = (image.shape[0], image.shape[1]);
    let extents = &image.shape[2..];
    let places = &positions.shape[1..positions.rank() - 1];
    let count = |list: &[u64]| list.iter().fold(1u64, |p, &d| p.saturating_mul(d));
    let (pixels, samples) = (count(extents), count(places));
    let flat = n.reshaped(x, &[batch, channels, pixels])?;
    let flat = n.turned(flat, &[0, 2, 1])?;
    let grid = n.reshaped(grid, &[batch, samples, axes as u64])?;
    let mut taps: Vec<Tap> = Vec::new();
    for (axis, &extent) in extents.iter().enumerate() {
        // The grid names the last axis first.
        let last = (axes - 1 - axis) as u64;
        let at = n.cut(grid, 2, last, last + 1, 1)?;
        let at = n.reshaped(at, &[batch, samples])?;
        let along = method.taps(n, at, extent)?;
        taps = combined(n, taps, along, extent)?;
    }
    let mut sum = None;
    for Tap { at, weight } in taps {
        let index = n.cast_to(at, DType::I64)?;
        let index = n.reshaped(index, &[batch, samples, 1])?;
        let mut part = n.temp(OpKind::GatherNd { batch_dims: 1 }, &[flat, index])?;
        if let Some(weight) = weight {
            let weight = n.reshaped(weight, &[batch, samples, 1])?;
            let weight = n.cast_to(weight, image.dtype)?;
            part = n.mul(part, weight)?;
        }
        sum = Some(match sum {
            None => part,
            Some(sum) => n.add(sum, part)?,
        });
    }
    let sum = sum.ok_or("there is nothing to sample")?;
    let y = n.turned(sum, &[0, 2, 1])?;
    let y = n.reshaped(y, &[&[batch, channels], places].concat())?;
    n.yields(0, y);
    Ok(())
}

/// Every pair of `outer` and `inner`: positions in the flattened axes, products of weights.
fn combined(
    n: &mut NodeCx<'_, '_>,
    outer: Vec<Tap>,
    inner: Vec<Tap>,
    extent: u64,
) -> Result<Vec<Tap>, Fault> {
    if outer.is_empty() {
        return Ok(inner);
    }
    let mut all = Vec::new();
    for a in &outer {
        let row = whole(n, a.at)?;
        let width = n.integer("width", i64::try_from(extent).map_err(|_| "an extent is too large")?)?;
        let row = n.mul(row, width)?;
        for b in &inner {
            let column = whole(n, b.at)?;
            let at = n.add(row, column)?;
            let weight = match (a.weight, b.weight) {
                (Some(a), Some(b)) => Some(n.mul(a, b)?),
                (a, b) => a.or(b),
            };
            all.push(Tap { at, weight });
        }
    }
    Ok(all)
}

fn whole(n: &mut NodeCx<'_, '_>, at: ValueId) -> Made {
    n.cast_to(at, DType::I64)
}

impl Method<'_> {
    /// The taps along an axis of `extent` pixels for positions `at`, from -1 to 1.
    fn taps(&self, n: &mut NodeCx<'_, '_>, at: ValueId, extent: u64) -> Result<Vec<Tap>, Fault> {
        let size = extent as f32;
        let (scale, shift) = if self.align_corners {
            ((size - 1.0) / 2.0, (size - 1.0) / 2.0)
        } else {
            (size / 2.0, (size - 1.0) / 2.0)
        };
        let at = n.scaled(at, "scale", scale)?;
        let mut at = n.shifted(at, "shift", shift)?;
        let cubic = matches!(self.mode, "cubic" | "bicubic");
        if !cubic {
            at = self.inside(n, at, extent)?;
        }
        match self.mode {
            "nearest" => {
                let near = n.temp(OpKind::Round {}, &[at])?;
                let tap = self.tap(n, near, None, extent)?;
                Ok(vec![tap])
            }
            "linear" | "bilinear" => {
                let base = n.temp(OpKind::Floor {}, &[at])?;
                let right = n.sub(at, base)?;
                let one = n.number(at, "one", 1.0)?;
                let left = n.sub(one, right)?;
                let next = n.shifted(base, "one", 1.0)?;
                Ok(vec![self.tap(n, base, Some(left), extent)?, self.tap(n, next, Some(right), extent)?])
            }
            "cubic" | "bicubic" => {
                let base = n.temp(OpKind::Floor {}, &[at])?;
                let ratio = n.sub(at, base)?;
                let mut taps = Vec::new();
                for offset in -1i8..=2 {
                    let place = n.shifted(base, "offset", f32::from(offset))?;
                    let place = self.inside(n, place, extent)?;
                    let weight = cubic_weight(n, ratio, f32::from(offset))?;
                    taps.push(self.tap(n, place, Some(weight), extent)?);
                }
                Ok(taps)
            }
            other => unsupported(format!("mode `{other}` is not supported; nearest, linear and cubic are")),
        }
    }

    /// A tap at whole position `at`, whose weight is zero outside the image.
    fn tap(
        &self,
        n: &mut NodeCx<'_, '_>,
        at: ValueId,
        weight: Option<ValueId>,
        extent: u64,
    ) -> Result<Tap, Fault> {
        let (zero, last) = (n.number(at, "zero", 0.0)?, n.number(at, "last", extent as f32 - 1.0)?);
        let low = n.temp(OpKind::Max {}, &[at, zero])?;
        let inside = n.temp(OpKind::Min {}, &[low, last])?;
        let weight = match self.padding {
            "zeros" => {
                let (from, to) = (
                    n.temp(OpKind::GreaterEqual {}, &[at, zero])?,
                    n.temp(OpKind::LessEqual {}, &[at, last])?,
                );
                let hit = n.temp(OpKind::And {}, &[from, to])?;
                Some(match weight {
                    Some(weight) => n.pick(hit, weight, zero)?,
                    None => {
                        let to = n.ty(at).dtype;
                        n.cast_to(hit, to)?
                    }
                })
            }
            _ => weight,
        };
        Ok(Tap { at: inside, weight })
    }

    /// Positions moved into the image, as the padding asks for.
    fn inside(&self, n: &mut NodeCx<'_, '_>, at: ValueId, extent: u64) -> Made {
        let last = extent as f32 - 1.0;
        let at = match self.padding {
            "zeros" => return Ok(at),
            "border" => at,
            "reflection" => {
                let (low, span) = if self.align_corners { (0.0, last) } else { (-0.5, last + 1.0) };
                reflected(n, at, low, span)?
            }
            other => return Err(Fault::Bad(format!("there is no padding_mode `{other}`"))),
        };
        let (zero, last) = (n.number(at, "zero", 0.0)?, n.number(at, "last", last)?);
        let at = n.temp(OpKind::Max {}, &[at, zero])?;
        n.temp(OpKind::Min {}, &[at, last])
    }
}

/// `at` mirrored at `low` and at `low + span` until it lies between them.
fn reflected(n: &mut NodeCx<'_, '_>, at: ValueId, low: f32, span: f32) -> Made {
    if span <= 0.0 {
        return n.scaled(at, "zero", 0.0);
    }
    let from = n.shifted(at, "low", -low)?;
    let from = n.temp(OpKind::Abs {}, &[from])?;
    let width = n.number(at, "span", span)?;
    let turns = n.div(from, width)?;
    let turns = n.temp(OpKind::Floor {}, &[turns])?;
    let whole = n.mul(turns, width)?;
    let extra = n.sub(from, whole)?;
    let half = n.scaled(turns, "half", 0.5)?;
    let floor = n.temp(OpKind::Floor {}, &[half])?;
    let even = n.temp(OpKind::Equal {}, &[half, floor])?;
    let back = n.sub(width, extra)?;
    let at = n.pick(even, extra, back)?;
    n.shifted(at, "low", low)
}

/// Weight of the pixel at distance `|offset - ratio|` by cubic convolution with a = -0.75, as PyTorch has it
/// (Keys, "Cubic convolution interpolation for digital image processing", 1981).
fn cubic_weight(n: &mut NodeCx<'_, '_>, ratio: ValueId, offset: f32) -> Made {
    const A: f32 = -0.75;
    let distance = if offset > 0.0 {
        let offset = n.number(ratio, "offset", offset)?;
        n.sub(offset, ratio)?
    } else {
        n.shifted(ratio, "offset", -offset)?
    };
    // Horner's form of ((A + 2) d - (A + 3)) d d + 1 within one, and of ((A d - 5 A) d + 8 A) d - 4 A beyond.
    let near = offset == 0.0 || offset == 1.0;
    let coefficients = if near { [A + 2.0, -(A + 3.0), 0.0, 1.0] } else { [A, -5.0 * A, 8.0 * A, -4.0 * A] };
    let mut sum = n.scaled(distance, "cubic", coefficients[0])?;
    for (i, &c) in coefficients.iter().enumerate().skip(1) {
        sum = n.shifted(sum, "cubic", c)?;
        if i < 3 {
            sum = n.mul(sum, distance)?;
        }
    }
    Ok(sum)
}

/// `AffineGrid(theta [N, axes, axes + 1], size)`: the positions that an affine map gives the pixels of an
/// image.
pub(crate) fn affine_grid(n: &mut NodeCx<'_, '_>) -> Done {
    let theta = n.operand(0)?;
    let size = n.const_ints(1, "size")?.ok_or("input 1 is missing")?;
    let extents: Option<Vec<u64>> = size.iter().skip(2).map(|&d| u64::try_from(d).ok()).collect();
    let extents =
        extents.filter(|e| (1..=3).contains(&e.len())).ok_or("its size must have three to five numbers")?;
    let axes = extents.len() as u64;
    let ty = n.ty(theta).clone();
    let &[batch, rows, columns] = ty.shape.as_slice() else {
        return Err(format!("theta {ty} must have three axes").into());
    };
    if rows != axes || columns != axes + 1 {
        return Err(format!("theta {ty} does not fit an image of {axes} axes").into());
    }
    let align = n.flag("align_corners", false)?;
    let ones = vec![1u64; extents.len()];
    // Column `j` of theta under every pixel: [N, 1, ..., axes].
    let column = |n: &mut NodeCx<'_, '_>, j: u64| {
        let part = n.cut(theta, 2, j, j + 1, 1)?;
        n.reshaped(part, &[&[batch], ones.as_slice(), &[axes]].concat())
    };
    let mut sum = column(n, axes)?;
    for (axis, &extent) in extents.iter().enumerate() {
        let extent = n.small(extent)?;
        let values: Vec<f32> = (0..extent).map(|i| centre(i, extent, align)).collect();
        let mut shape = vec![1; extents.len() + 2];
        shape[axis + 1] = extent;
        let line = n.constant_value("line", &Literal::from_floats(&shape, &values)?)?;
        let line = n.cast_to(line, ty.dtype)?;
        let scale = column(n, axes - 1 - axis as u64)?;
        let part = n.mul(line, scale)?;
        sum = n.add(part, sum)?;
    }
    n.yields(0, sum);
    Ok(())
}

/// Position of pixel `i` of `extent` between -1 and 1: the outer ones are at the ends if `align`, else half a
/// pixel inside.
fn centre(i: u64, extent: u64, align: bool) -> f32 {
    let (i, extent) = (i as f64, extent as f64);
    let at = match align {
        true if extent > 1.0 => -1.0 + 2.0 * i / (extent - 1.0),
        true => 0.0,
        false => (2.0 * i + 1.0) / extent - 1.0,
    };
    at as f32
}
