//! `Resize` and `Upsample`: along each axis every output element is a weighted sum of a few input elements,
//! whose positions and weights are constants.

use memc_ir::{OpKind, TensorType, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};
use crate::tensor::Literal;

/// Map from positions in the output to positions in the input, and weights of the elements between them.
struct Method<'a> {
    coordinates: &'a str,
    mode: &'a str,
    rounding: &'a str,
    /// The `a` of cubic interpolation (Keys, "Cubic convolution interpolation for digital image processing",
    /// 1981).
    cubic: f64,
    exclude_outside: bool,
    antialias: bool,
    /// Value outside the region of interest.
    outside: f32,
}

/// One axis: its input and output extents, its scale, and the region of interest as parts of the input.
struct Axis {
    input: u64,
    output: u64,
    scale: f64,
    region: [f64; 2],
}

/// `Resize`; up to opset 10 with scales only, which are input 1, and `Upsample`, which is that older form.
pub(crate) fn resize(n: &mut NodeCx<'_, '_>) -> Done {
    let mut x = n.operand(0)?;
    let ty = n.ty(x).clone();
    let old = n.node.op == "Upsample" || n.version < 11;
    let method = Method {
        coordinates: n
            .text("coordinate_transformation_mode", if old { "asymmetric" } else { "half_pixel" })?,
        mode: n.text("mode", "nearest")?,
        rounding: n.text("nearest_mode", if old { "floor" } else { "round_prefer_floor" })?,
        cubic: n.float("cubic_coeff_a", -0.75)?.into(),
        exclude_outside: n.flag("exclude_outside", false)?,
        antialias: n.flag("antialias", false)?,
        outside: n.float("extrapolation_value", 0.0)?,
    };
    if !ty.dtype.is_float() && method.mode != "nearest" {
        return unsupported(format!(
            "{} interpolation of {ty} is not supported; only that of floats is",
            method.mode
        ));
    }
    for (at, axis) in axes(n, &ty, old)? {
        if axis.input == axis.output && axis.scale == 1.0 && axis.region == [0.0, 1.0] {
            continue;
        }
        x = along(n, x, at, &axis, &method)?;
    }
    n.yields(0, x);
    Ok(())
}

/// The axes to resize, with their extents.
fn axes(n: &NodeCx<'_, '_>, ty: &TensorType, old: bool) -> Result<Vec<(usize, Axis)>, Fault> {
    let mut chosen = Vec::new();
    match n.ints("axes")? {
        Some(list) => n.axes(list, ty.rank()).map(|_| ())?,
        None => chosen.extend(0..ty.rank()),
    }
    for &axis in n.ints("axes")?.unwrap_or_default() {
        chosen.push(n.axis(axis, ty.rank())?);
    }
    let floats = |i, what| -> Result<Option<Vec<f32>>, Fault> {
        Ok(n.constant(i, what)?.and_then(|l| l.floats()).filter(|v| !v.is_empty()))
    };
    let scales = match n.node.attrs.get("scales") {
        Some(crate::model::Attr::Floats(v)) => Some(v.clone()),
        _ => floats(if old { 1 } else { 2 }, "scales")?,
    };
    let sizes = if old { None } else { n.const_ints(3, "sizes")?.filter(|v| !v.is_empty()) };
    let region = if old { None } else { floats(1, "roi")? };
    let count = chosen.len();
    let lengths =
        [scales.as_ref().map(Vec::len), sizes.as_ref().map(Vec::len), region.as_ref().map(|r| r.len() / 2)];
    if lengths.iter().flatten().any(|&l| l != count) || (scales.is_none() && sizes.is_none()) {
        return Err(format!("its scales, sizes and region do not fit {count} axes").into());
    }
    let extent = |i: usize| ty.shape[chosen[i]];
    let ratio = |i: usize, sizes: &[i64]| sizes[i] as f64 / extent(i) as f64;
    let uniform = match (n.text("keep_aspect_ratio_policy", "stretch")?, &sizes) {
        ("stretch", _) | (_, None) => None,
        ("not_larger", Some(s)) => (0..count).map(|i| ratio(i, s)).reduce(f64::min),
        ("not_smaller", Some(s)) => (0..count).map(|i| ratio(i, s)).reduce(f64::max),
        (other, _) => return Err(format!("there is no policy `{other}`").into()),
    };
    let mut out = Vec::new();
    for (i, &at) in chosen.iter().enumerate() {
        let input = extent(i);
        let (scale, output) = match (&sizes, &scales, uniform) {
            (Some(_), _, Some(scale)) => (scale, (scale * input as f64 + 0.5).floor()),
            (Some(sizes), _, None) => (ratio(i, sizes), sizes[i] as f64),
            (None, Some(scales), _) => (f64::from(scales[i]), (f64::from(scales[i]) * input as f64).floor()),
            (None, None, _) => (1.0, input as f64),
        };
        let sound = scale.is_finite() && scale > 0.0 && (1.0..1e15).contains(&output);
        if !sound || input == 0 {
            return Err(format!("axis {at} of {ty} cannot be scaled by {scale}").into());
        }
        let part = |j: usize| region.as_ref().and_then(|r| r.get(j)).copied();
        let region = [f64::from(part(i).unwrap_or(0.0)), f64::from(part(i + count).unwrap_or(1.0))];
        out.push((at, Axis { input, output: output as u64, scale, region }));
    }
    Ok(out)
}

/// `x` resized along one axis: the sum over taps of gathered elements times weights.
fn along(n: &mut NodeCx<'_, '_>, x: ValueId, at: usize, axis: &Axis, method: &Method<'_>) -> Made {
    let mut rows = Vec::new();
    for i in 0..n.small(axis.output)? {
        let row = taps(axis, method, i)?;
        n.small(row.len() as u64)?;
        rows.push(row);
    }
    let mut shape = vec![1; n.ty(x).rank()];
    shape[at] = axis.output;
    let mut sum = None;
    for t in 0..rows.iter().map(Vec::len).max().unwrap_or(0) {
        let tap = |row: &Vec<(i64, f64)>| row.get(t).copied().unwrap_or((0, 0.0));
        let places: Vec<i64> = rows.iter().map(|r| tap(r).0).collect();
        let weights: Vec<f32> = rows.iter().map(|r| tap(r).1 as f32).collect();
        let places = n.constant_value("places", &Literal::vector(&places))?;
        let mut part = n.temp(OpKind::Gather { axis: at as i64 }, &[x, places])?;
        if weights.iter().any(|&w| w != 1.0) {
            part = weighted(n, part, &shape, &weights)?;
        }
        sum = Some(match sum {
            None => part,
            Some(sum) => n.add(sum, part)?,
        });
    }
    let sum = sum.ok_or("there is nothing to interpolate")?;
    let empty: Vec<f32> = rows.iter().map(|r| if r.is_empty() { method.outside } else { 0.0 }).collect();
    if empty.iter().all(|&v| v == 0.0) {
        return Ok(sum);
    }
    let empty = n.constant_value("outside", &Literal::from_floats(&shape, &empty)?)?;
    let empty = n.cast_to(empty, n.ty(sum).dtype)?;
    n.add(sum, empty)
}

fn weighted(n: &mut NodeCx<'_, '_>, x: ValueId, shape: &[u64], weights: &[f32]) -> Made {
    let weights = n.constant_value("weights", &Literal::from_floats(shape, weights)?)?;
    let weights = n.cast_to(weights, n.ty(x).dtype)?;
    n.mul(x, weights)
}

/// Positions and weights of the input elements that output element `i` is made of; none outside the region.
fn taps(axis: &Axis, method: &Method<'_>, i: u64) -> Result<Vec<(i64, f64)>, Fault> {
    let (i, input) = (i as f64, axis.input as f64);
    let width = axis.scale * input;
    let at = match method.coordinates {
        "half_pixel" => (i + 0.5) / axis.scale - 0.5,
        "pytorch_half_pixel" if width == 1.0 => -0.5,
        "pytorch_half_pixel" => (i + 0.5) / axis.scale - 0.5,
        "half_pixel_symmetric" => {
            input / 2.0 * (1.0 - axis.output as f64 / width) + (i + 0.5) / axis.scale - 0.5
        }
        "asymmetric" => i / axis.scale,
        "align_corners" if width == 1.0 => 0.0,
        "align_corners" => i * (input - 1.0) / (width - 1.0),
        "tf_crop_and_resize" => {
            let [start, end] = axis.region.map(|r| r * (input - 1.0));
            let at = start + (end - start) * if width == 1.0 { 0.5 } else { i / (width - 1.0) };
            if at < 0.0 || at > input - 1.0 {
                return Ok(Vec::new());
            }
            at
        }
        other => return Err(format!("there is no coordinate transformation `{other}`").into()),
    };
    let base = at.floor();
    let ratio = at - base;
    let last = axis.input as i64 - 1;
    let near = |offset: i64| (base as i64).saturating_add(offset);
    if method.mode == "nearest" {
        let up = match method.rounding {
            _ if ratio == 0.0 => false,
            "round_prefer_floor" => ratio > 0.5,
            "round_prefer_ceil" => ratio >= 0.5,
            "floor" => false,
            "ceil" => true,
            other => return Err(format!("there is no rounding `{other}`").into()),
        };
        return Ok(vec![(near(i64::from(up)).clamp(0, last), 1.0)]);
    }
    // Reducing with antialiasing widens the filter.
    let shrink = if method.antialias { axis.scale.min(1.0) } else { 1.0 };
    let a = method.cubic;
    let (reach, filter): (f64, &dyn Fn(f64) -> f64) = match method.mode {
        "linear" => (1.0, &|d| (1.0 - d).max(0.0)),
        "cubic" => (2.0, &|d| match d {
            _ if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
            _ if d < 2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
            _ => 0.0,
        }),
        other => {
            return unsupported(format!("mode `{other}` is not supported; nearest, linear and cubic are"));
        }
    };
    let reach = (reach / shrink).ceil();
    if reach > 4096.0 {
        return unsupported(format!("a filter over {reach} elements is too wide"));
    }
    let reach = reach as i64;
    let mut taps: Vec<(i64, f64)> =
        (1 - reach..=reach).map(|o| (near(o), filter(((o as f64 - ratio) * shrink).abs()))).collect();
    let inside = |at| (0..=last).contains(&at) || !method.exclude_outside;
    taps.retain(|&(at, w)| w != 0.0 && inside(at));
    let total: f64 = taps.iter().map(|t| t.1).sum();
    Ok(taps.into_iter().map(|(at, w)| (at.clamp(0, last), w / total)).collect())
}
