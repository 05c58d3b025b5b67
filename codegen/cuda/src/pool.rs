//! 2-D pooling and its gradients.

use memc_ir::OpKind;

use crate::Call;
use crate::kernel::{Entry, Lowering, blocks, name};

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
                "{axes}{}local at;\ny[i] = down<{t}>(winner(x + plane * in, h, w, row, col, at));\n\
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
        "const idx line = i / (idx){w};\nconst i64 plane = (i64)(line / (idx){h});\n\
         const local row = (local)(line % (idx){h}), col = (local)(i % (idx){w});\n(void)plane;\n"
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
    let mut largest = 1u64;
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
        let [size, kernel, stride, dilation, before, after, outputs] = fields.map(|(_, &value)| value);
        // No position of a window lies further on.
        let reach = [size, kernel.saturating_mul(dilation), outputs.saturating_mul(stride), before, after];
        largest = largest.saturating_mul(reach.into_iter().fold(0, u64::saturating_add));
        let names: Vec<String> = fields.iter().map(|(field, _)| format!("{field}{tag}")).collect();
        for (name, &(_, &value)) in names.iter().zip(&fields) {
            entry = entry.int(name, value);
        }
        let names: Vec<String> = names.iter().map(|name| format!("(local){name}")).collect();
        text.push_str(&format!("const Axis<local> {tag} = {{{}}};\n", names.join(", ")));
    }
    text.push_str("const i64 in = ih * iw;\n(void)in;\n");
    let local = if largest < 1 << 31 { "i32" } else { "i64" };
    Some((entry, format!("typedef {local} local;\n{text}")))
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

/// Most elements of a plane that a warp sums at once, in shared memory.
const BAND: u64 = 4096;
/// Most blocks of a launch along y.
const MOST: u64 = 65535;

/// Indices stay within their plane where operand and result have the same planes, as those of max_pool do.
/// Otherwise all of the result is one plane.
fn max_pool_grad(call: &Call) -> Option<Lowering> {
    let (dy, dx) = (call.operands.first()?, call.results.first()?);
    if dx.numel() == 0 {
        return Some(Lowering::default());
    }
    let t = name(dx.dtype);
    let planes = match (dy.shape.as_slice(), dx.shape.as_slice()) {
        ([n, c, _, _], [m, d, _, _]) if (n, c) == (m, d) => n * c,
        _ => 1,
    };
    let plane = dx.numel() / planes;
    let bands = plane.div_ceil(BAND);
    let entry = Entry::new()
        .operand(0, t, "dy")
        .operand(1, "i64", "indices")
        .result(0, t, "dx")
        .int("planes", planes)
        .int("window", dy.numel() / planes)
        .int("plane", plane)
        .int("band", plane.div_ceil(bands));
    let body = format!("max_pool_grad<{t}, {BAND}>(dy, indices, dx, planes, window, plane, band);");
    // Bands of one plane run side by side, so that they read its outputs once from memory.
    let grid = [blocks(bands), planes.min(MOST) as u32, 1];
    Some(Lowering::of([entry.launch("max_pool_grad", grid, 32, &body)]))
}
