//! Gather and scatter.
//!
//! A scatter copies its operand and then writes along the scattered axis: positions that no two threads share
//! are side by side, and each thread goes in the order of the indices. 16-bit floats are added in `f32` in
//! the workspace.

use std::fmt::Write;

use memc_ir::attr::ScatterMode;
use memc_ir::{DType, OpKind, TensorType};

use crate::Call;
use crate::index_space::{IndexSpace, strides};
use crate::kernel::{Arg, BLOCK, Entry, Launch, Lowering, blocks, name, raw};
use crate::product::SIDE;
use crate::reduce::row_block;
use crate::rows::around;
use crate::rows::pack;

/// Gather and scatter; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    match call.op {
        OpKind::Gather { axis } => gather(call, *axis),
        OpKind::GatherGrad { axis, .. } => gather_grad(call, *axis),
        OpKind::GatherElements { axis } => gather_elements(call, *axis),
        OpKind::TopK { axis, k, smallest } => top_k(call, *axis, *k, *smallest),
        OpKind::GatherNd { batch_dims } => gather_nd(call, *batch_dims),
        OpKind::ScatterElements { axis, mode } => scatter_elements(call, *axis, *mode),
        OpKind::ScatterNd { mode, batch_dims } => scatter_nd(call, *mode, *batch_dims),
        _ => None,
    }
}

/// A kernel that reads elements of type `t` by indices of type `i`.
fn gathering(t: &str, i: &str) -> Entry {
    Entry::new().operand(0, t, "data").operand(1, i, "indices").result(0, t, "y")
}

fn gather(call: &Call, axis: i64) -> Option<Lowering> {
    let ([data, indices], [y]) = (call.operands, call.results) else { return None };
    let (_, extent, inner) = around(&data.shape, axis)?;
    let (t, i) = (raw(y.dtype), name(indices.dtype));
    let n = pack(y.dtype, inner);
    let entry = gathering(t, i).int("extent", extent).int("inner", inner).int("count", indices.numel());
    let body = format!(
        "const idx first = i * {n}, row = first / (idx)inner;\n\
         const i64 at = resolve(indices[row % (idx)count], extent);\nPack<{t}, {n}> z = {{}};\n\
         const i64 from = ((i64)(row / (idx)count) * extent + at) * inner + first % (idx)inner;\n\
         if (at >= 0) z = pack<{n}>(data + from);\n\
         put(y + first, z);"
    );
    Some(Lowering::of(entry.each_pack("gather", y.numel(), n, &body)))
}

fn gather_grad(call: &Call, axis: i64) -> Option<Lowering> {
    let ([indices, dy], [y]) = (call.operands, call.results) else { return None };
    let (outer, extent, inner) = around(&y.shape, axis)?;
    if y.numel() == 0 {
        return Some(Lowering::default());
    }
    let extents = [outer, extent, inner];
    let count = indices.numel();
    let looks = count.saturating_mul(extent);
    Some(if looks <= FEW || extent <= FEW_ROWS || count >= 1 << 31 || extent >= 1 << 31 {
        Lowering::of([gather_grad_rows([indices, dy], extents, (blocks(extent), None))])
    } else {
        gather_grad_sorted([indices, dy], extents)
    })
}

/// Most indices that all rows of the result of a gradient of gather look at together.
const FEW: u64 = 1 << 18;
/// Rows of the result that look through all indices.
const FEW_ROWS: u64 = 64;
/// Most indices of one row that a block sorts.
const SORTED: u64 = 256;

/// The launch of the gradient of gather in which rows of the result look through all indices: all of them, or
/// those of a list in the workspace.
fn gather_grad_rows(
    [indices, dy]: [&TensorType; 2],
    [outer, extent, inner]: [u64; 3],
    (rows, list): (u32, Option<u64>),
) -> Launch {
    let (t, i, pack) = (name(dy.dtype), name(indices.dtype), pack(dy.dtype, inner));
    let entry = Entry::new().operand(0, i, "indices").operand(1, t, "dy").result(0, t, "y");
    let entry = entry.int("outer", outer).int("extent", extent).int("inner", inner);
    let mut entry = entry.int("count", indices.numel());
    if let Some(at) = list {
        entry = entry.workspace(at, "u32", "list");
    }
    let list = if list.is_some() { "list" } else { "(const u32*)0" };
    let body =
        format!("gather_grad_rows<{t}, {i}, {pack}>(indices, {list}, dy, y, outer, extent, inner, count);");
    let grid = [rows, inner.div_ceil(32 * pack).min(SIDE) as u32, outer.min(SIDE) as u32];
    entry.launch("gather_grad_rows", grid, BLOCK, &body)
}

/// The gradient of gather by many indices. The workspace has a number for each row, the positions of the
/// indices in order of rows, and a list of rows that many indices name.
fn gather_grad_sorted(of: [&TensorType; 2], [outer, extent, inner]: [u64; 3]) -> Lowering {
    let [indices, dy] = of;
    let (t, i, count) = (name(dy.dtype), name(indices.dtype), indices.numel());
    let order_at = (extent * 4).next_multiple_of(64);
    let list_at = (order_at + count * 4).next_multiple_of(64);
    let most_listed = count / SORTED;
    let ends = || Entry::new().workspace(0, "u32", "ends");
    let by_index = |entry: Entry, stem: &str, put: &str| {
        let body = format!("const i64 row = resolve(indices[i], extent);\nif (row >= 0) {put};");
        entry.operand(0, i, "indices").int("extent", extent).each(stem, count, &body)
    };
    let zero = ends().each("zero", extent, "ends[i] = 0;");
    let counts = by_index(ends(), "gather_grad_counts", "atomicAdd(ends + row, 1u)");
    let sums = ends().workspace(list_at, "u32", "list").int("extent", extent);
    let sums = sums.launch(
        "gather_grad_ends",
        [1; 3],
        BLOCK,
        &format!("gather_grad_ends<{SORTED}>(ends, list, extent);"),
    );
    // Atomic additions of integers give any order, which the launch of the rows sorts.
    let order = ends().workspace(order_at, "u32", "order");
    let order = by_index(order, "gather_grad_order", "order[atomicAdd(ends + row, 1u)] = (u32)i");
    let entry = ends().workspace(order_at, "u32", "order").operand(1, t, "dy").result(0, t, "y");
    let entry = entry.int("outer", outer).int("extent", extent).int("inner", inner).int("count", count);
    let pack = pack(dy.dtype, inner);
    let body = format!(
        "gather_grad_sorted<{t}, {pack}, {SORTED}>(ends, order, dy, y, outer, extent, inner, count);"
    );
    let grid = [blocks(extent), outer.min(SIDE) as u32, 1];
    let rows = entry.launch("gather_grad", grid, row_block(inner / pack * 4), &body);
    let listed = gather_grad_rows(of, [outer, extent, inner], (blocks(most_listed), Some(list_at)));
    let launches = [zero, counts, Some(sums), order, Some(rows), Some(listed)];
    Lowering::of(launches.into_iter().flatten()).with_workspace(list_at + (most_listed + 1) * 4)
}

/// Strides of `data`, zero along `axis`, and the stride of `axis`.
fn along(data: &TensorType, axis: i64) -> Option<(Vec<i64>, i64)> {
    let mut own = strides(&data.shape);
    let step = std::mem::take(own.get_mut(usize::try_from(axis).ok()?)?);
    Some((own, step))
}

fn gather_elements(call: &Call, axis: i64) -> Option<Lowering> {
    let ([data, indices], [y]) = (call.operands, call.results) else { return None };
    let (own, step) = along(data, axis)?;
    let (_, extent, _) = around(&data.shape, axis)?;
    let (t, i) = (raw(y.dtype), name(indices.dtype));
    let entry = gathering(t, i).int("extent", extent).int("step", step);
    let (entry, mut body) = IndexSpace::new(&y.shape, &[own]).offsets(entry, "o", "i");
    let _ = write!(
        body,
        "const i64 at = resolve(indices[i], extent);\ny[i] = at < 0 ? ({t})0 : data[o0 + at * step];"
    );
    Some(Lowering::of(entry.each("gather_elements", y.numel(), &body)))
}

/// Each thread counts the elements that come before its own.
fn top_k(call: &Call, axis: i64, k: i64, smallest: bool) -> Option<Lowering> {
    let ([x], [_]) = (call.operands, call.results) else { return None };
    let (_, extent, inner) = around(&x.shape, axis)?;
    let t = name(x.dtype);
    let entry = Entry::new()
        .operand(0, t, "x")
        .result(0, "i64", "y")
        .int("extent", extent)
        .int("inner", inner)
        .int("k", u64::try_from(k).ok()?);
    let before = if smallest { "op_before(v, u)" } else { "op_before(u, v)" };
    let behind = if smallest { "op_before(u, v)" } else { "op_before(v, u)" };
    let body = format!(
        "const idx at = i / (idx)inner, lane = i % (idx)inner;\n\
         const i64 own = (i64)(at % (idx)extent), outer = (i64)(at / (idx)extent);\n\
         const {t}* row = x + outer * extent * inner + lane;\nconst auto v = up(row[own * inner]);\n\
         i64 rank = 0;\nfor (i64 j = 0; j < extent; ++j) {{\nconst auto u = up(row[j * inner]);\n\
         rank += {before} || (j < own && !{behind});\n}}\n\
         if (rank < k) y[(outer * k + rank) * inner + lane] = own;"
    );
    Some(Lowering::of(entry.each("top_k", x.numel(), &body)))
}

/// Slices of `data` that index tuples address.
struct Tuples<'a> {
    addressed: &'a [u64],
    /// Batches, tuples of a batch, and elements of a slice.
    batches: u64,
    each: u64,
    inner: u64,
}

impl<'a> Tuples<'a> {
    fn new(data: &'a TensorType, indices: &TensorType, batch_dims: i64) -> Option<Tuples<'a>> {
        let (&depth, outer) = indices.shape.split_last()?;
        let (batch, each) = outer.split_at_checked(usize::try_from(batch_dims).ok()?)?;
        let behind = data.shape.get(batch.len()..)?;
        let (addressed, inner) = behind.split_at_checked(usize::try_from(depth).ok()?)?;
        let product = |shape: &[u64]| shape.iter().product::<u64>();
        Some(Tuples { addressed, batches: product(batch), each: product(each), inner: product(inner) })
    }

    /// Adds the parameters, and statements that define `slice`, the number of the slice that tuple `t` names,
    /// or -1.
    fn slice(&self, mut entry: Entry) -> (Entry, String) {
        let depth = self.addressed.len();
        let mut text = String::from("i64 slice = 0;\n");
        for (a, &extent) in self.addressed.iter().enumerate() {
            entry = entry.int(&format!("d{a}"), extent);
            let _ = writeln!(text, "const i64 at{a} = resolve(indices[(i64)t * {depth} + {a}], d{a});");
            let _ = writeln!(text, "slice = slice < 0 || at{a} < 0 ? -1 : slice * d{a} + at{a};");
        }
        (entry, text)
    }

    fn slices(&self) -> u64 {
        self.addressed.iter().product()
    }
}

fn gather_nd(call: &Call, batch_dims: i64) -> Option<Lowering> {
    let ([data, indices], [y]) = (call.operands, call.results) else { return None };
    let tuples = Tuples::new(data, indices, batch_dims)?;
    let (t, i) = (raw(y.dtype), name(indices.dtype));
    let entry =
        gathering(t, i).int("inner", tuples.inner).int("each", tuples.each).int("slices", tuples.slices());
    let (entry, slice) = tuples.slice(entry);
    let body = format!(
        "const idx t = i / (idx)inner;\n{slice}const i64 batch = (i64)(t / (idx)each) * slices;\n\
         y[i] = slice < 0 ? ({t})0 : data[(batch + slice) * inner + i % (idx)inner];"
    );
    Some(Lowering::of(entry.each("gather_nd", y.numel(), &body)))
}

/// Target of a scatter: the result itself, or its elements as `f32` in the workspace, with the launches
/// before and after.
struct Target {
    at: Arg,
    ctype: &'static str,
    /// The statement that takes update `u` to `to`.
    put: String,
    /// The type of updates.
    update: &'static str,
    before: Option<Launch>,
    after: Option<Launch>,
    workspace: u64,
}

impl Target {
    fn new(call: &Call, mode: ScatterMode) -> Option<Target> {
        let y = call.results.first()?;
        let elements = y.numel();
        let rule = match mode {
            ScatterMode::Replace | ScatterMode::Add => "plus",
            ScatterMode::Mul => "op_mul",
            ScatterMode::Min => "op_min",
            ScatterMode::Max => "op_max",
        };
        let in_place = |ctype, put| Target {
            at: Arg::Result(0),
            ctype,
            put,
            update: ctype,
            before: crate::shape::copy(call).launches.pop(),
            after: None,
            workspace: 0,
        };
        if mode == ScatterMode::Replace {
            return Some(in_place(raw(y.dtype), "*to = u;".into()));
        }
        let t = name(y.dtype);
        if !matches!(y.dtype, DType::F16 | DType::BF16) {
            let put = match mode {
                ScatterMode::Add => "*to = plus(*to, u);".to_owned(),
                _ => format!("*to = down<{t}>({rule}(up(*to), up(u)));"),
            };
            return Some(in_place(t, put));
        }
        let before = Entry::new().operand(0, t, "x").workspace(0, "f32", "sums");
        let after = Entry::new().workspace(0, "f32", "sums").result(0, t, "y");
        Some(Target {
            at: Arg::Workspace(0),
            ctype: "f32",
            put: format!("*to = {rule}(*to, up(u));"),
            update: t,
            before: before.each("widen", elements, "sums[i] = up(x[i]);"),
            after: after.each("narrow", elements, &format!("y[i] = down<{t}>(sums[i]);")),
            workspace: elements.saturating_mul(4),
        })
    }

    /// A kernel that takes updates there by indices of type `i`.
    fn entry(&self, i: &str) -> Entry {
        Entry::new()
            .operand(1, i, "indices")
            .operand(2, self.update, "updates")
            .buffer(self.at, self.ctype, "y")
    }

    fn lowering(self, scatter: Option<Launch>) -> Lowering {
        let launches = [self.before, scatter, self.after];
        Lowering::of(launches.into_iter().flatten()).with_workspace(self.workspace)
    }
}

fn scatter_elements(call: &Call, axis: i64, mode: ScatterMode) -> Option<Lowering> {
    let [data, indices, _] = call.operands else { return None };
    let target = Target::new(call, mode)?;
    let (own, step) = along(data, axis)?;
    let (_, extent, _) = around(&data.shape, axis)?;
    let (from, stride) = along(indices, axis)?;
    let (_, count, _) = around(&indices.shape, axis)?;
    let mut lanes = indices.shape.clone();
    *lanes.get_mut(usize::try_from(axis).ok()?)? = 1;
    let space = IndexSpace::new(&lanes, &[own, from]);
    let entry = target
        .entry(name(indices.dtype))
        .int("extent", extent)
        .int("step", step)
        .int("count", count)
        .int("stride", stride);
    let (entry, mut body) = space.offsets(entry, "o", "i");
    let _ = write!(
        body,
        "for (i64 j = 0; j < count; ++j) {{\nconst i64 at = resolve(indices[o1 + j * stride], extent);\n\
         if (at < 0) continue;\nconst {} u = updates[o1 + j * stride];\n{}* to = y + o0 + at * step;\n{}\n}}",
        target.update, target.ctype, target.put
    );
    let scatter =
        if indices.numel() == 0 { None } else { entry.each("scatter_elements", space.len(), &body) };
    Some(target.lowering(scatter))
}

fn scatter_nd(call: &Call, mode: ScatterMode, batch_dims: i64) -> Option<Lowering> {
    let [data, indices, updates] = call.operands else { return None };
    let target = Target::new(call, mode)?;
    let tuples = Tuples::new(data, indices, batch_dims)?;
    let entry = target
        .entry(name(indices.dtype))
        .int("inner", tuples.inner)
        .int("each", tuples.each)
        .int("slices", tuples.slices());
    let (entry, slice) = tuples.slice(entry);
    let body = format!(
        "const i64 batch = (i64)(i / (idx)inner), j = (i64)(i % (idx)inner);\n\
         for (i64 t = batch * each; t < (batch + 1) * each; ++t) {{\n{slice}\
         if (slice < 0) continue;\nconst {} u = updates[t * inner + j];\n\
         {}* to = y + (batch * slices + slice) * inner + j;\n{}\n}}",
        target.update, target.ctype, target.put
    );
    let scatter = if updates.numel() == 0 {
        None
    } else {
        entry.each("scatter_nd", tuples.batches * tuples.inner, &body)
    };
    Some(target.lowering(scatter))
}
