//! Updates of many small parameters in one launch.
//!
//! A launch takes about as long as an update of some hundred thousand elements; a network has more parameters
//! than that which are smaller. Each row of blocks takes one parameter, so that every element is computed as
//! by a launch of its own.

use std::fmt::Write;

use memc_ir::{OpKind, TensorType};

use crate::Call;
use crate::kernel::{BLOCK, Entry, Launch, blocks, name};
use crate::optim::update;

/// Most updates of a launch: their parameters must fit into the 4 KiB that every architecture has for them.
pub const MOST_UPDATES: usize = 32;
/// Most elements of a parameter that is small.
const SMALL: u64 = 1 << 17;

/// Whether an op is an update of a small parameter, which can share its launch.
pub fn is_small_update(op: &OpKind, operands: &[TensorType]) -> bool {
    let small = operands.first().is_some_and(|w| (1..=SMALL).contains(&w.numel()));
    small && update(&Call { op, operands, results: &[] }).is_some()
}

/// One launch for several small updates by the same op with operands of the same element types, at most
/// [`MOST_UPDATES`]; `None` for anything else. `shapes` has the operand types of each.
///
/// Operand `i` of update `u` is operand `u * operands + i` of the launch, and so are results. No update may
/// touch what another one writes.
pub fn updates(op: &OpKind, shapes: &[&[TensorType]]) -> Option<Launch> {
    let first = *shapes.first()?;
    let same = |other: &&[TensorType]| {
        other.len() == first.len() && other.iter().zip(first).all(|(a, b)| a.dtype == b.dtype)
    };
    if shapes.len() > MOST_UPDATES || !shapes.iter().all(|s| same(s) && is_small_update(op, s)) {
        return None;
    }
    let types: Vec<&TensorType> = first.iter().collect();
    let results = op.infer(&types).ok()?;
    let (body, elements) = update(&Call { op, operands: first, results: &results })?;
    let (mut entry, mut text, mut cases) = (Entry::new(), String::new(), String::new());
    for (t, ty) in first.iter().enumerate() {
        let _ = writeln!(text, "const {}* a{t} = 0;", name(ty.dtype));
    }
    for (j, ty) in results.iter().enumerate() {
        let _ = writeln!(text, "{}* y{j} = 0;", name(ty.dtype));
    }
    for (u, operands) in shapes.iter().enumerate() {
        let _ = write!(cases, "case {u}:");
        for (t, ty) in operands.iter().enumerate() {
            entry = entry.operand(u * first.len() + t, name(ty.dtype), &format!("a{t}_{u}"));
            let _ = write!(cases, " a{t} = a{t}_{u};");
        }
        for (j, ty) in results.iter().enumerate() {
            entry = entry.result(u * results.len() + j, name(ty.dtype), &format!("y{j}_{u}"));
            let _ = write!(cases, " y{j} = y{j}_{u};");
        }
        entry = entry.int(&format!("n_{u}"), operands.first()?.numel());
        let _ = writeln!(cases, " n = n_{u}; break;");
    }
    let _ = write!(
        text,
        "i64 n = 0;\nswitch (blockIdx.y) {{\n{cases}}}\n\
         if (thread_in_grid() >= (u64)n) return;\n{}\n\
         for (u32 i = (u32)thread_in_grid(); i < (u32)n; i += (u32)threads_in_grid()) {{\n",
        body.before
    );
    for t in 0..elements {
        let _ = writeln!(text, "const auto x{t} = up(a{t}[i]);");
    }
    text.push_str(&body.lines);
    for (j, (expression, ty)) in body.results.iter().zip(&results).enumerate() {
        let _ = writeln!(text, "y{j}[i] = down<{}>({expression});", name(ty.dtype));
    }
    text.push('}');
    let largest = shapes.iter().filter_map(|s| s.first()).map(TensorType::numel).max()?;
    let rows = u32::try_from(shapes.len()).ok()?;
    Some(entry.launch("updates", [blocks(largest.div_ceil(BLOCK.into())), rows, 1], BLOCK, &text))
}
