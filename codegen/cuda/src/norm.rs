//! Softmax, cross-entropy, layer normalisation, and their gradients.

use memc_ir::attr::Reduction;
use memc_ir::{DType, OpKind};

use crate::index_space::strides;
use crate::kernel::{BLOCK, Entry, Launch, Lowering, blocks, float, int, name};
use crate::map::{self, Body, Read, entry, index_space, one_by_one};
use crate::reduce::{parts, row_block};
use crate::rows::RowForm;
use crate::{Call, batch_norm};

/// Normalisations and losses; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    match call.op {
        OpKind::Softmax { axis } => softmax(call, *axis, false),
        OpKind::LogSoftmax { axis } => softmax(call, *axis, true),
        OpKind::SoftmaxGrad { axis } => softmax_grad(call, *axis),
        OpKind::CrossEntropy { reduction, ignore_index } => cross_entropy(call, *reduction, *ignore_index),
        OpKind::CrossEntropyGrad { reduction, ignore_index } => {
            cross_entropy_grad(call, *reduction, *ignore_index)
        }
        OpKind::LayerNorm { axis, epsilon } => layer_norm(call, *axis, epsilon.0),
        OpKind::LayerNormGrad { axis } => layer_norm_grad(call, *axis),
        _ => batch_norm::lower(call),
    }
}

/// Extents before, at and behind `axis`.
pub(crate) fn around(shape: &[u64], axis: i64) -> Option<(u64, u64, u64)> {
    let axis = usize::try_from(axis).ok()?;
    let (outer, rest) = shape.split_at_checked(axis)?;
    let (&extent, inner) = rest.split_first()?;
    Some((outer.iter().product(), extent, inner.iter().product()))
}

/// Rows, and elements of a row, of a tensor normalised over the axes from `axis` on.
pub(crate) fn rows(shape: &[u64], axis: i64) -> Option<(u64, u64)> {
    let (outer, inner) = shape.split_at_checked(usize::try_from(axis).ok()?)?;
    Some((outer.iter().product(), inner.iter().product()))
}

/// A launch with a block for each of `rows` rows.
pub(crate) fn by_rows(entry: Entry, stem: &str, rows: u64, form: &RowForm, body: &str) -> Launch {
    entry.launch(stem, [blocks(rows), 1, 1], form.block, body)
}

/// Where the column of element `i` begins, when columns of `n` elements are `inner` apart.
const COLUMN: &str = "const i64 at = (i64)(i / (idx)inner) * n * inner + (i64)(i % (idx)inner);\n";

fn softmax(call: &Call, axis: i64, log: bool) -> Option<Lowering> {
    let (x, y) = (call.operands.first()?, call.results.first()?);
    let (outer, n, inner) = around(&y.shape, axis)?;
    if y.numel() == 0 {
        return Some(Lowering::default());
    }
    let t = name(x.dtype);
    let entry = Entry::new().operand(0, t, "x").result(0, t, "y").int("n", n);
    Some(Lowering::of(if inner == 1 {
        let form = RowForm::new(x.dtype, n, 2);
        let body = format!("softmax_rows<{t}, {}, {log}>(x, y, rows, n);", form.arguments());
        Some(by_rows(entry.int("rows", outer), "softmax", outer, &form, &body))
    } else {
        let body = format!("{COLUMN}softmax_column<{t}, {log}>(x + at, y + at, n, inner);");
        columns(entry.int("inner", inner), "softmax", outer * inner, &body)
    }))
}

/// A launch with a thread for each of `count` columns.
fn columns(entry: Entry, stem: &str, count: u64, body: &str) -> Option<Launch> {
    entry.each_of("columns", stem, count, body)
}

fn softmax_grad(call: &Call, axis: i64) -> Option<Lowering> {
    let dx = call.results.first()?;
    let (outer, n, inner) = around(&dx.shape, axis)?;
    if dx.numel() == 0 {
        return Some(Lowering::default());
    }
    let t = name(dx.dtype);
    let entry = Entry::new().operand(0, t, "dy").operand(1, t, "y").result(0, t, "dx").int("n", n);
    Some(Lowering::of(if inner == 1 {
        let form = RowForm::new(dx.dtype, n, 2);
        let body = format!("softmax_grad_rows<{t}, {}>(dy, y, dx, rows, n);", form.arguments());
        Some(by_rows(entry.int("rows", outer), "softmax_grad", outer, &form, &body))
    } else {
        let body = format!("{COLUMN}softmax_grad_column<{t}>(dy + at, y + at, dx + at, n, inner);");
        columns(entry.int("inner", inner), "softmax_grad", outer * inner, &body)
    }))
}

fn cross_entropy(call: &Call, reduction: Reduction, ignore: i64) -> Option<Lowering> {
    let ([logits, labels], [loss, _]) = (call.operands, call.results) else { return None };
    let (outer, n, inner) = around(&logits.shape, 1)?;
    let (t, i, positions) = (name(logits.dtype), name(labels.dtype), labels.numel());
    let ignore = int(ignore);
    let entry = Entry::new()
        .operand(0, t, "x")
        .operand(1, i, "labels")
        .result(1, t, "y")
        .workspace(0, "f32", "losses")
        .int("n", n);
    let each = if positions == 0 {
        None
    } else if inner == 1 {
        let form = RowForm::new(logits.dtype, n, 1);
        let body = format!(
            "cross_entropy_rows<{t}, {i}, {}>(x, labels, y, losses, rows, n, {ignore});",
            form.arguments()
        );
        Some(by_rows(entry.int("rows", outer), "cross_entropy", outer, &form, &body))
    } else {
        let body = format!(
            "{COLUMN}cross_entropy_column<{t}>(x + at, labels[i], y + at, losses + i, n, inner, {ignore});"
        );
        columns(entry.int("inner", inner), "cross_entropy", positions, &body)
    };
    let entry = Entry::new().workspace(0, "f32", "losses").operand(1, i, "labels").result(0, t, "loss");
    let total = if reduction == Reduction::None {
        entry.each("losses", loss.numel(), &format!("loss[i] = down<{t}>(losses[i]);"))
    } else {
        let mean = reduction == Reduction::Mean;
        let body = format!("total_loss<{t}, {i}>(losses, labels, loss, positions, {ignore}, {mean});");
        Some(entry.int("positions", positions).launch("loss", [1; 3], row_block(positions), &body))
    };
    Some(Lowering::of([each, total].into_iter().flatten()).with_workspace(positions * 4))
}

fn cross_entropy_grad(call: &Call, reduction: Reduction, ignore: i64) -> Option<Lowering> {
    let ([_, log_prob, labels], [dx]) = (call.operands, call.results) else { return None };
    let (_, classes, inner) = around(&log_prob.shape, 1)?;
    let (i, ignore) = (name(labels.dtype), int(ignore));
    let is_mean = reduction == Reduction::Mean;
    let reads = [Read { from: "a1".into(), strides: strides(&log_prob.shape) }];
    let space = index_space(&dx.shape, &reads);
    let by_four = space.by_four();
    let count = Entry::new().operand(2, i, "labels").workspace(0, "f32", "share");
    let body = format!(
        "const u64 count = counted(labels, positions, {ignore});\n\
         if (threadIdx.x == 0) share[0] = 1.0f / (f32)(count > 0 ? count : 1);"
    );
    let block = row_block(labels.numel());
    let count = count.int("positions", labels.numel()).launch("count", [1; 3], block, &body);
    let slope = match reduction {
        Reduction::None => "up(a0[position])",
        Reduction::Sum => "up(a0[0])",
        Reduction::Mean => "up(a0[0]) * share[0]",
    };
    let lines = format!(
        "const idx here = {}, lane = here / (idx)inner;\n\
         const i64 position = (i64)(lane / (idx)classes) * inner + (i64)(here % (idx)inner);\n\
         const i64 label = a2[position];\n\
         const f32 hit = label == (i64)(lane % (idx)classes) ? 1.0f : 0.0f;\n\
         const f32 d = label < 0 || label >= classes ? of_bits(0x7fc00000u) \
         : (expf(x0) - hit) * ({slope});\n",
        if by_four { "at + word" } else { "i" }
    );
    let body = Body { lines, results: vec![format!("label == {ignore} ? 0.0f : d")], ..Body::default() };
    let mut entry = entry(call, [&body]).int("classes", classes).int("inner", inner);
    if is_mean {
        entry = entry.workspace(0, "f32", "share");
    }
    let to = [("y0".to_owned(), dx)];
    let grad = if by_four {
        let (entry, text) = map::by_four(entry, &to, &body, &reads, &space, "o");
        entry.each_four("cross_entropy_grad", dx.numel(), "", &text)
    } else {
        let (entry, text) = one_by_one(entry, &to, &body, &reads, &space, ["o", "i"]);
        entry.each("cross_entropy_grad", dx.numel(), &text)
    };
    let launches = is_mean.then_some(count).into_iter().filter(|_| grad.is_some());
    let lowering = Lowering::of(launches.chain(grad.clone()));
    Some(lowering.with_workspace(if is_mean { 4 } else { 0 }))
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
        .result(2, "f32", "inv_std")
        .int("rows", rows)
        .int("n", n);
    let epsilon = float(epsilon);
    let form = RowForm::new(x.dtype, n, 1);
    let body = format!(
        "layer_norm_rows<{t}, {s}, {}, {bias}>(x, scale, bias, y, mean, inv_std, rows, n, {epsilon});",
        form.arguments()
    );
    Some(Lowering::of([by_rows(entry, "layer_norm", rows, &form, &body)]))
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
    let form = grad_row(x.dtype, n);
    let dy = format!("Elements<{t}, {}>{{dy}}", form.pack);
    let (sums, workspace) = affine(of_normalised(t), "", &dy, x.dtype, [rows, n], s, 1);
    let dx = (rows > 0).then(|| {
        let entry = of_normalised(t).operand(2, s, "scale").result(0, t, "dx").int("rows", rows).int("n", n);
        let body = format!(
            "layer_norm_grad_rows<{t}, {s}, {}>(dy, x, scale, mean, inv_std, dx, rows, n);",
            form.arguments()
        );
        by_rows(entry, "layer_norm_grad", rows, &form, &body)
    });
    Some(Lowering::of(sums.into_iter().chain(dx)).with_workspace(workspace))
}

/// The form of a row of the gradient, which reads three tensors.
pub(crate) fn grad_row(dtype: DType, n: u64) -> RowForm {
    RowForm::new(dtype, n, 3)
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
    let pack = grad_row(dtype, n).pack;
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
