//! Convolutions as products with the column matrix, which is never stored; for machines without cuDNN.

use memc_ir::{OpKind, TensorType};

use crate::Call;
use crate::kernel::{BLOCK, Entry, Lowering, blocks, name};
use crate::map::{Body, Read, entry, put};
use crate::product::{SIDE, tiles};
use crate::reduce::{parts, row_block};

/// Strides, pads (top, left, bottom, right) and dilations; groups.
type Window<'a> = ([&'a [u64]; 3], i64);

/// Channels of a group, on the side that makes rows, below which tiles would be mostly empty.
const FEW: u64 = 8;

/// Convolutions; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    match call.op {
        OpKind::Conv { .. } => {
            with_epilogue("conv", call, (call.op, call.operands.len()), &Body::of("t0"), &[])
        }
        OpKind::ConvGradInput { strides, pads, dilations, groups, .. } => {
            grad_input(call, ([strides, pads, dilations], *groups))
        }
        OpKind::ConvGradWeight { strides, pads, dilations, groups, .. } => {
            grad_weight(call, ([strides, pads, dilations], *groups))
        }
        _ => None,
    }
}

/// Extents of one convolution.
struct Extents {
    batch: u64,
    groups: u64,
    channels: u64,
    m: u64,
    plane: u64,
    pixels: u64,
    /// Channels of a group times kernel positions.
    depth: u64,
    fields: [u64; 16],
}

const FIELDS: &str =
    "batch, groups, channels, height, width, m, oh, ow, kh, kw, sh, sw, top, left, dilation_h, dilation_w";

impl Extents {
    fn new(x: &TensorType, w: &TensorType, y: &TensorType, ([s, p, d], groups): Window) -> Option<Extents> {
        let &[batch, _, height, width] = x.shape.as_slice() else { return None };
        let &[all_m, channels, kh, kw] = w.shape.as_slice() else { return None };
        let &[_, _, oh, ow] = y.shape.as_slice() else { return None };
        let groups = u64::try_from(groups).ok().filter(|&g| g > 0)?;
        let m = all_m / groups;
        let (&[sh, sw], &[top, left, ..], &[dh, dw]) = (s, p, d) else { return None };
        let fields = [batch, groups, channels, height, width, m, oh, ow, kh, kw, sh, sw, top, left, dh, dw];
        let (plane, pixels, depth) = (height * width, oh * ow, channels * kh * kw);
        Some(Extents { batch, groups, channels, m, plane, pixels, depth, fields })
    }

    /// The type of positions, and the statement that gathers the parameters.
    fn gathered(&self) -> String {
        let [batch, groups, channels, .., kh, kw, sh, sw, top, left, dh, dw] = self.fields;
        let products = [
            [batch, groups * channels, self.plane],
            [batch, groups * self.m, self.pixels],
            [groups * self.m, self.depth, 1],
        ];
        let largest = products.into_iter().map(|p| p.into_iter().fold(1, u64::saturating_mul)).max();
        // No tap of a padded window lies further outside.
        let reach = [kh.saturating_mul(dh), kw.saturating_mul(dw), sh, sw, top, left];
        let reach = reach.into_iter().fold(0, u64::saturating_add).saturating_mul(2);
        let is_small = largest.is_some_and(|n| n < 1 << 30) && reach < 1 << 30;
        let position = if is_small { "i32" } else { "i64" };
        let fields: Vec<String> = FIELDS.split(", ").map(|field| format!("(P){field}")).collect();
        format!("typedef {position} P;\nconst Conv<P> g = {{{}}};\n", fields.join(", "))
    }

    fn params(&self, entry: Entry) -> Entry {
        FIELDS.split(", ").zip(self.fields).fold(entry, |entry, (name, value)| entry.int(name, value))
    }
}

/// The convolution that `op` is of the first `n` operands, and for each element of it, `t0`, what `body`
/// makes of it and of the elements of `reads`; `None` where the op is no convolution.
pub(crate) fn with_epilogue(
    stem: &str,
    call: &Call,
    (op, n): (&OpKind, usize),
    body: &Body,
    reads: &[Read],
) -> Option<Lowering> {
    let OpKind::Conv { strides, pads, dilations, groups } = op else { return None };
    let (x, w, y) = (call.operands.first()?, call.operands.get(1)?, call.results.first()?);
    if y.numel() == 0 {
        return Some(Lowering::default());
    }
    let (t, has_bias) = (name(x.dtype), n > 2);
    let bias = if has_bias { "a2" } else { "a1" };
    let e = Extents::new(x, w, y, ([strides, pads, dilations], *groups))?;
    let (entry, put) = put(e.params(entry(call, [body])), call, body, reads);
    let lead = format!("{}{put}{}", body.before, e.gathered());
    Some(Lowering::of(if e.m < FEW {
        let text = format!("conv_forward_at<{t}, {has_bias}>(g, a0, a1, {bias}, put, (P)i);");
        entry.each_after(stem, y.numel(), &lead, &text)
    } else {
        let idx = if y.numel() < 1 << 31 { "u32" } else { "u64" };
        let text =
            format!("typedef {idx} idx;\n{lead}conv_forward<{t}, {has_bias}>(g, a0, a1, {bias}, put);");
        let grid = [blocks(tiles(e.m, e.batch * e.pixels)), 1, e.groups.min(SIDE) as u32];
        Some(entry.launch(stem, grid, BLOCK, &text))
    }))
}

fn grad_input(call: &Call, window: Window) -> Option<Lowering> {
    let ([dy, w], [dx]) = (call.operands, call.results) else { return None };
    if dx.numel() == 0 {
        return Some(Lowering::default());
    }
    let t = name(dx.dtype);
    let entry = Entry::new().operand(0, t, "dy").operand(1, t, "w").result(0, t, "dx");
    let e = Extents::new(dx, w, dy, window)?;
    let (entry, g) = (e.params(entry), e.gathered());
    Some(Lowering::of(if e.channels < FEW {
        let body = format!("{g}conv_grad_input_at<{t}>(g, dy, w, dx, (P)i);");
        entry.each("conv_grad_input", dx.numel(), &body)
    } else {
        let body = format!("{g}conv_grad_input<{t}>(g, dy, w, dx);");
        let grid = [blocks(tiles(e.channels, e.batch * e.plane)), 1, e.groups.min(SIDE) as u32];
        Some(entry.launch("conv_grad_input", grid, BLOCK, &body))
    }))
}

fn grad_weight(call: &Call, window: Window) -> Option<Lowering> {
    let ([dy, x], [dw]) = (call.operands, call.results) else { return None };
    if dw.numel() == 0 {
        return Some(Lowering::default());
    }
    let t = name(dw.dtype);
    let e = Extents::new(x, dw, dy, window)?;
    let (terms, g) = (e.batch * e.pixels, e.gathered());
    let entry = Entry::new().operand(0, t, "dy").operand(1, t, "x");
    if e.m < FEW {
        let body = format!("{g}conv_grad_weight_blocks<{t}>(g, dy, x, dw);");
        let entry = e.params(entry.result(0, t, "dw"));
        let launch = entry.launch("conv_grad_weight", [blocks(dw.numel()), 1, 1], row_block(terms), &body);
        return Some(Lowering::of([launch]));
    }
    let tiles = tiles(e.m, e.depth);
    let parts = parts(tiles.saturating_mul(e.groups), terms, 256);
    let entry = e.params(entry.workspace(0, "f32", "partial").int("parts", parts));
    let body = format!("{g}conv_grad_weight<{t}>(g, dy, x, partial, (P)parts);");
    let grid = [blocks(tiles), 1, e.groups.saturating_mul(parts).min(SIDE) as u32];
    let first = entry.launch("conv_grad_weight", grid, BLOCK, &body);
    let body = format!(
        "f32 sum = partial[i];\nfor (i64 p = 1; p < parts; ++p) sum += partial[p * n + (i64)i];\n\
         dw[i] = down<{t}>(sum);"
    );
    let second = Entry::new().workspace(0, "f32", "partial").result(0, t, "dw").int("parts", parts).each(
        "conv_parts",
        dw.numel(),
        &body,
    );
    let workspace = dw.numel().saturating_mul(parts).saturating_mul(4);
    Some(Lowering::of([Some(first), second].into_iter().flatten()).with_workspace(workspace))
}
