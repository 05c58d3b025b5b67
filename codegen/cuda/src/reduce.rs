//! Reductions over axes. A fold that would leave most of a device idle is cut into parts, whose number
//! depends on types only.

use memc_ir::{OpKind, TensorType};

use crate::Call;
use crate::index_space::{IndexSpace, strides};
use crate::kernel::{Arg, BLOCK, Entry, Lowering, blocks, name};
use crate::rows::pack;

/// Blocks that fill a device.
const FULL: u64 = 512;

/// Reductions; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    let ([x], [y]) = (call.operands, call.results) else { return None };
    let all: Vec<u64> = (0..x.rank() as u64).collect();
    let (kind, axes) = match call.op {
        OpKind::ReduceSum { axes, .. } => ("ReduceSum", axes),
        OpKind::ReduceMean { axes, .. } => ("ReduceMean", axes),
        OpKind::ReduceMax { axes, .. } => ("ReduceMax", axes),
        OpKind::SumSquares {} => ("ReduceSquares", &all),
        _ => return None,
    };
    Some(reduce(x, y, axes, kind))
}

/// Threads of a block that takes rows of `n` elements together: whole warps.
pub(crate) fn row_block(n: u64) -> u32 {
    let wanted = u32::try_from(n.div_ceil(4).min(BLOCK.into())).unwrap_or(BLOCK);
    wanted.next_power_of_two().clamp(32, BLOCK)
}

/// Parts that each of `units` folds of `count` elements is cut into, at least `least` elements to a part; no
/// more than a grid has along y.
pub(crate) fn parts(units: u64, count: u64, least: u64) -> u64 {
    (FULL / units.max(1)).min(count / least).max(1)
}

/// Lanes that take a row of `packs` packs together, where rows are short and many; zero where a block does.
fn team(rows: u64, packs: u64) -> u64 {
    if rows >= 1024 && packs <= 256 { packs.next_power_of_two().min(32) } else { 0 }
}

fn reduce(x: &TensorType, y: &TensorType, axes: &[u64], kind: &str) -> Lowering {
    let (mut kept, mut along, mut rows) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()), true);
    for ((a, &d), stride) in (0u64..).zip(&x.shape).zip(strides(&x.shape)) {
        let is_reduced = axes.contains(&a);
        let side = if is_reduced { &mut along } else { &mut kept };
        side.0.push(d);
        side.1.push(stride);
        if d != 1 {
            rows = is_reduced;
        }
    }
    let (kept, along) = (IndexSpace::new(&kept.0, &[kept.1]), IndexSpace::new(&along.0, &[along.1]));
    let (results, count) = (y.numel(), along.len());
    if results == 0 {
        return Lowering::default();
    }
    let most = pack(x.dtype, 0);
    let (inner, outer) = if rows { (&along, &kept) } else { (&kept, &along) };
    let pack = outer.step(inner.neighbours(most));
    let units = if rows { results } else { results.div_ceil(32 * pack) };
    let parts = parts(units, count, if rows { 2048 } else { 128 });
    let rule = format!("{kind}<{}>", name(x.dtype));
    let acc = format!("typename {rule}::Acc");
    let entry = Entry::new()
        .operand(0, name(x.dtype), "x")
        .result(0, name(y.dtype), "y")
        .workspace(0, &acc, "partial")
        .int("results", results)
        .int("count", count);
    let (entry, kept) = kept.offsets(entry, "k", "p");
    let (entry, along) = along.offsets(entry, "r", "p");
    let idx = if x.numel() < 1 << 31 { "u32" } else { "u64" };
    let lanes = if rows && parts == 1 { team(results, count / pack) } else { 0 };
    let (form, block) = match (rows, lanes) {
        (true, 0) => (format!("reduce_rows<{rule}, {pack}, 0>"), row_block(count / pack * 4)),
        (true, _) => (format!("reduce_rows<{rule}, {pack}, {lanes}>"), BLOCK),
        (false, _) => (format!("reduce_columns<{rule}, {pack}>"), BLOCK),
    };
    let in_block = u64::from(BLOCK).checked_div(lanes).unwrap_or(1);
    let body = format!(
        "typedef {idx} idx;\nauto kept = [=](i64 at) {{\nconst idx p = (idx)at;\n(void)p;\n\
         {kept}return k0;\n}};\n\
         auto along = [=](i64 at) {{\nconst idx p = (idx)at;\n(void)p;\n{along}return r0;\n}};\n\
         {form}(x, y, partial, results, count, kept, along);"
    );
    let first = entry.launch("reduce", [blocks(units.div_ceil(in_block)), parts as u32, 1], block, &body);
    let second = (parts > 1).then(|| {
        Entry::new()
            .result(0, name(y.dtype), "y")
            .buffer(Arg::Workspace(0), &acc, "partial")
            .int("results", results)
            .int("count", count)
            .int("parts", parts)
            .launch(
                "reduce_parts",
                [blocks(results), 1, 1],
                32,
                &format!("reduce_parts<{rule}>(y, partial, results, count, parts);"),
            )
    });
    let workspace = if parts > 1 { results.saturating_mul(parts).saturating_mul(8) } else { 0 };
    Lowering::of([Some(first), second].into_iter().flatten()).with_workspace(workspace)
}
