//! 2-D pooling and its gradients.

use memc_ir::{DType, OpKind};

use crate::Call;
use crate::kernel::{Arg, Entry, Lowering, name};

/// A pooling window: kernel, strides, pads (top, left, bottom, right) and dilations.
type Window<'a> = [&'a [u64]; 4];

/// Pooling; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    const ONES: &[u64] = &[1, 1];
    match call.op {
        OpKind::MaxPool { kernel, strides, pads, dilations, .. } => {
            let t = name(call.results.first()?.dtype);
            let (x, y) = (&call.operands.first()?.shape, &call.results.first()?.shape);
            let entry = Entry::new().operand(0, t, "x").result(0, t, "y").result(1, "i64", "indices");
            let (entry, axes) = axes(entry, [kernel, strides, pads, dilations], x, y)?;
            let body = format!(
                "{axes}{}i64 at;\ny[i] = down<{t}>(winner(x + plane * in, h, w, row, col, at));\n\
                 indices[i] = plane * in + at;",
                point("oh", "ow")
            );
            Some(Lowering::of(entry.each("max_pool", call.results.first()?.numel(), &body)))
        }
        OpKind::AveragePool { kernel, strides, pads, count_pad, .. } => {
            let t = name(call.results.first()?.dtype);
            let (x, y) = (&call.operands.first()?.shape, &call.results.first()?.shape);
            let entry = Entry::new().operand(0, t, "x").result(0, t, "y");
            let (entry, axes) = axes(entry, [kernel, strides, pads, ONES], x, y)?;
            let body = format!(
                "{axes}{}y[i] = down<{t}>(average(x + plane * in, h, w, row, col, {count_pad}));",
                point("oh", "ow")
            );
            Some(Lowering::of(entry.each("average_pool", call.results.first()?.numel(), &body)))
        }
        OpKind::AveragePoolGrad { kernel, strides, pads, count_pad, .. } => {
            let share = format!("average_share(dy + plane * oh * ow, h, w, row, col, {count_pad})");
            grad(call, [kernel, strides, pads, ONES], &share)
        }
        OpKind::MaxPoolGradInput { kernel, strides, pads, dilations, .. } => {
            let share = "winner_share(dy + plane * oh * ow, x + plane * in, h, w, row, col)";
            grad(call, [kernel, strides, pads, dilations], share)
        }
        OpKind::MaxPoolGrad { .. } => max_pool_grad(call),
        _ => None,
    }
}

/// Statements that find plane, row and column of element `i` of planes of `h` by `w`.
fn point(h: &str, w: &str) -> String {
    format!(
        "const i64 plane = (i64)i / ({h} * {w}), row = (i64)i / {w} % {h}, col = (i64)i % {w};\n\
         (void)plane;\n"
    )
}

/// Adds the parameters of a window over inputs of shape `x` with outputs of shape `y`, and statements that
/// define the axes `h` and `w`, and `in`, the elements of an input plane.
fn axes(
    mut entry: Entry,
    [kernel, strides, pads, dilations]: Window,
    x: &[u64],
    y: &[u64],
) -> Option<(Entry, String)> {
    let mut text = String::new();
    for (a, tag) in ["h", "w"].into_iter().enumerate() {
        let fields = [
            ("i", x.get(a + 2)?),
            ("k", kernel.get(a)?),
            ("s", strides.get(a)?),
            ("d", dilations.get(a)?),
            ("b", pads.get(a)?),
            ("a", pads.get(a + 2)?),
            ("o", y.get(a + 2)?),
        ];
        let names: Vec<String> = fields.iter().map(|(field, _)| format!("{field}{tag}")).collect();
        for (name, &(_, &value)) in names.iter().zip(&fields) {
            entry = entry.int(name, value);
        }
        text.push_str(&format!("const Axis {tag} = {{{}}};\n", names.join(", ")));
    }
    text.push_str("const i64 in = ih * iw;\n(void)in;\n");
    Some((entry, text))
}

fn grad(call: &Call, window: Window, share: &str) -> Option<Lowering> {
    let (dy, dx) = (call.operands.first()?, call.results.first()?);
    let t = name(dx.dtype);
    let mut entry = Entry::new().operand(0, t, "dy").result(0, t, "dx");
    if call.operands.len() > 1 {
        entry = entry.operand(1, t, "x");
    }
    let (entry, axes) = axes(entry, window, &dx.shape, &dy.shape)?;
    let body = format!("{axes}{}dx[i] = down<{t}>({share});", point("ih", "iw"));
    Some(Lowering::of(entry.each("pool_grad", dx.numel(), &body)))
}

/// Indices stay within their plane where operand and result have the same planes, as those of max_pool do: a
/// thread goes through a plane. Otherwise one thread goes through all.
fn max_pool_grad(call: &Call) -> Option<Lowering> {
    let (dy, dx) = (call.operands.first()?, call.results.first()?);
    let t = name(dx.dtype);
    let product = |shape: &[u64]| shape.iter().product::<u64>();
    let planes = match (dy.shape.as_slice(), dx.shape.as_slice()) {
        ([n, c, _, _], [m, d, _, _]) if (n, c) == (m, d) => n * c,
        _ => 1,
    };
    let planes = if planes == 0 { 1 } else { planes };
    let is_rounded = matches!(dx.dtype, DType::F16 | DType::BF16);
    let (sums, workspace) =
        if is_rounded { (Arg::Workspace(0), product(&dx.shape) * 4) } else { (Arg::Result(0), 0) };
    let zero = Entry::new().buffer(sums, "f32", "sums").each("zero", dx.numel(), "sums[i] = 0.0f;");
    let entry = Entry::new()
        .operand(0, t, "dy")
        .operand(1, "i64", "indices")
        .buffer(sums, "f32", "sums")
        .int("window", dy.numel() / planes)
        .int("plane", dx.numel() / planes);
    let body = "for (i64 j = (i64)i * window; j < ((i64)i + 1) * window; ++j) {\n\
                const i64 at = indices[j];\n\
                if (at >= (i64)i * plane && at < ((i64)i + 1) * plane) sums[at] += up(dy[j]);\n}";
    let add =
        if dx.numel() == 0 || dy.numel() == 0 { None } else { entry.each("max_pool_grad", planes, body) };
    let narrow = Entry::new().buffer(sums, "f32", "sums").result(0, t, "dx");
    let narrow = if is_rounded {
        narrow.each("narrow", dx.numel(), &format!("dx[i] = down<{t}>(sums[i]);"))
    } else {
        None
    };
    Some(Lowering::of([zero, add, narrow].into_iter().flatten()).with_workspace(workspace))
}
