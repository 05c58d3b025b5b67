//! Layer normalisation and its gradient.

use memc_ir::{DType, OpKind};

use crate::Call;
use crate::kernel::{BLOCK, Entry, Launch, Lowering, blocks, float, name};
use crate::reduce::parts;
use crate::rows::{RowForm, pack};

/// Layer normalisation; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    match call.op {
        OpKind::LayerNorm { axis, epsilon } => layer_norm(call, *axis, epsilon.0),
        OpKind::LayerNormGrad { axis } => layer_norm_grad(call, *axis),
        _ => None,
    }
}

/// Rows, and elements of a row, of a tensor normalised over the axes from `axis` on.
pub(crate) fn rows(shape: &[u64], axis: i64) -> Option<(u64, u64)> {
    let (outer, inner) = shape.split_at_checked(usize::try_from(axis).ok()?)?;
    Some((outer.iter().product(), inner.iter().product()))
}

fn layer_norm(call: &Call, axis: i64, epsilon: f32) -> Option<Lowering> {
    let (x, scale) = (call.operands.first()?, call.operands.get(1)?);
    let (rows, n) = rows(&x.shape, axis)?;
    if rows == 0 {
        return Some(Lowering::default());
    }
    let (t, s, bias) = (name(x.dtype), name(scale.dtype), call.operands.len() > 2);
    let entry = Entry::new()
        .operand(0, t, "x")
        .operand(1, s, "scale")
        .operand(if bias { 2 } else { 1 }, s, "bias")
        .result(0, t, "y")
        .result(1, "f32", "mean")
        .result(2, "f32", "inv_std");
    let epsilon = float(epsilon);
    let form = RowForm::new(x.dtype, [rows, n], 1);
    let body = format!(
        "layer_norm_rows<{t}, {s}, {}, {bias}>(x, scale, bias, y, mean, inv_std, rows, n, {epsilon});",
        form.arguments()
    );
    Some(Lowering::of([form.launch(entry, "layer_norm", [rows, n], &body)]))
}

/// A kernel that reads the gradient of what was normalised, its input, and its statistics.
pub(crate) fn of_normalised(t: &str) -> Entry {
    Entry::new().operand(0, t, "dy").operand(1, t, "x").operand(3, "f32", "mean").operand(4, "f32", "inv_std")
}

fn layer_norm_grad(call: &Call, axis: i64) -> Option<Lowering> {
    let [_, x, scale, ..] = call.operands else { return None };
    let (rows, n) = rows(&x.shape, axis)?;
    let (t, s) = (name(x.dtype), name(scale.dtype));
    if n == 0 {
        return Some(Lowering::default());
    }
    // Before dx, which may lie in the bytes of dy or x.
    let form = grad_row(x.dtype, [rows, n]);
    let dy = format!("Elements<{t}, {}>{{dy}}", form.pack);
    let (sums, workspace) = affine(of_normalised(t), "", &dy, x.dtype, [rows, n], s, 1);
    let dx = (rows > 0).then(|| {
        let entry = of_normalised(t).operand(2, s, "scale").result(0, t, "dx");
        let body = format!(
            "layer_norm_grad_rows<{t}, {s}, {}>(dy, x, scale, mean, inv_std, dx, rows, n);",
            form.arguments()
        );
        form.launch(entry, "layer_norm_grad", [rows, n], &body)
    });
    Some(Lowering::of(sums.into_iter().chain(dx)).with_workspace(workspace))
}

/// The form of a row of the gradient, which reads three tensors.
pub(crate) fn grad_row(dtype: DType, extents: [u64; 2]) -> RowForm {
    RowForm::new(dtype, extents, 3)
}

/// The launches of the gradients of scale and bias, results `first` and the next one of type `s`, and their
/// workspace. `lead` has the statements that come first, and `dy` is the function that gives the gradient.
pub(crate) fn affine(
    entry: Entry,
    lead: &str,
    dy: &str,
    dtype: DType,
    [rows, n]: [u64; 2],
    s: &str,
    first: usize,
) -> (Vec<Launch>, u64) {
    let pack = pack(dtype, n);
    let groups = n.div_ceil(32 * pack);
    let parts = parts(groups, rows, 128);
    let entry = entry.workspace(0, "Total", "partial").int("rows", rows).int("n", n).int("parts", parts);
    let body = format!(
        "{lead}layer_norm_affine<{}, {pack}>({dy}, x, mean, inv_std, partial, rows, n, parts);",
        name(dtype)
    );
    let sums = entry.launch("layer_norm_affine", [blocks(groups), parts as u32, 1], BLOCK, &body);
    let body = format!("layer_norm_affine_parts<{s}>(partial, dscale, dbias, (i64)i, (i64)n, parts);");
    let finish = Entry::new()
        .workspace(0, "Total", "partial")
        .result(first, s, "dscale")
        .result(first + 1, s, "dbias")
        .int("parts", parts)
        .each("layer_norm_affine_parts", n, &body);
    ([Some(sums), finish].into_iter().flatten().collect(), n.saturating_mul(parts).saturating_mul(16))
}
