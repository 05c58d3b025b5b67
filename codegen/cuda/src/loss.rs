//! Cross-entropy and its gradient.

use memc_ir::attr::Reduction;
use memc_ir::{OpKind, TensorType};

use crate::Call;
use crate::index_space::strides;
use crate::kernel::{BLOCK, Entry, Launch, Lowering, blocks, int, name};
use crate::map::{self, Body, Read, entry, index_space, one_by_one};
use crate::reduce::{parts, row_block};
use crate::rows::{RowForm, around};
use crate::softmax::{Cut, columns};

/// Losses; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    match call.op {
        OpKind::CrossEntropy { reduction, ignore_index } => cross_entropy(call, *reduction, *ignore_index),
        OpKind::CrossEntropyGrad { reduction, ignore_index } => {
            cross_entropy_grad(call, *reduction, *ignore_index)
        }
        _ => None,
    }
}

fn cross_entropy(call: &Call, reduction: Reduction, ignore: i64) -> Option<Lowering> {
    let ([_, labels], [loss, _]) = (call.operands, call.results) else { return None };
    let t = name(loss.dtype);
    // Peaks of parts come behind the losses, parts of the total in their place.
    let at = (labels.numel() * 4).next_multiple_of(64);
    let (mut launches, peaks) = each_loss(call, ignore, at)?;
    if reduction == Reduction::None {
        let entry = Entry::new().workspace(0, "f32", "losses").result(0, t, "loss");
        launches.extend(entry.each("losses", loss.numel(), &format!("loss[i] = down<{t}>(losses[i]);")));
        return Some(Lowering::of(launches).with_workspace(at + peaks));
    }
    let (total, sums) = total(labels, t, reduction == Reduction::Mean, ignore, at);
    launches.extend(total);
    Some(Lowering::of(launches).with_workspace(at + peaks.max(sums)))
}

/// The launches that make the loss of every position, and the bytes that they use from byte `at` of the
/// workspace on.
fn each_loss(call: &Call, ignore: i64, at: u64) -> Option<(Vec<Launch>, u64)> {
    let [logits, labels] = call.operands else { return None };
    let (outer, n, inner) = around(&logits.shape, 1)?;
    let (t, i, ignore) = (name(logits.dtype), name(labels.dtype), int(ignore));
    let entry = Entry::new().operand(0, t, "x").operand(1, i, "labels").result(1, t, "y");
    let entry = entry.workspace(0, "f32", "losses");
    if labels.numel() == 0 {
        return Some((Vec::new(), 0));
    }
    if inner != 1 {
        let body =
            format!("cross_entropy_column<{t}>(x + at, labels[i], y + at, losses + i, n, inner, {ignore});");
        let launch = columns(entry, "cross_entropy", labels.numel(), [n, inner], &body);
        return Some((launch.into_iter().collect(), 0));
    }
    if let Some(cut) = Cut::new(logits, outer, n) {
        let body = format!(
            "cross_entropy_parts<{t}, {i}, {}>(x, labels, y, losses, peaks, rows, n, {ignore});",
            cut.pack
        );
        let last = cut.launch(entry.workspace(at, "Peak", "peaks"), "cross_entropy_parts", &body);
        return Some((vec![cut.peaks(t, at), last], cut.bytes()));
    }
    let form = RowForm::new(logits.dtype, [outer, n], 1);
    let body = format!(
        "cross_entropy_rows<{t}, {i}, {}>(x, labels, y, losses, rows, n, {ignore});",
        form.arguments()
    );
    Some((vec![form.launch(entry, "cross_entropy", [outer, n], &body)], 0))
}

/// Least positions to a part of a sum over all.
const LEAST: u64 = 8192;

/// Blocks that sum over `positions` positions.
fn total_parts(positions: u64) -> u64 {
    parts(1, positions, LEAST)
}

/// The launches of the total of the losses at the begin of the workspace, and the bytes that they use from
/// byte `at` of it on.
fn total(labels: &TensorType, t: &str, mean: bool, ignore: i64, at: u64) -> (Vec<Launch>, u64) {
    let (i, ignore, positions) = (name(labels.dtype), int(ignore), labels.numel());
    let parts = total_parts(positions);
    let block = row_block(positions.div_ceil(parts));
    let entry = Entry::new().workspace(0, "f32", "losses").operand(1, i, "labels");
    let entry = entry.int("positions", positions);
    let sums = format!(
        "const Part part(blockIdx.x, gridDim.x, positions);\nconst Total total = summed(losses, part);\n\
         const u64 count = {};\n",
        if mean { format!("counted(labels, part, {ignore})") } else { "1".into() }
    );
    if parts == 1 {
        let body = format!("{sums}put_loss<{t}>(total, count, loss);");
        return (vec![entry.result(0, t, "loss").launch("loss", [1; 3], block, &body)], 0);
    }
    let (totals, counts) = (("Total", "totals", at), ("u64", "counts", at + parts * 8));
    let with = |entry: Entry| {
        [totals, counts].iter().fold(entry, |entry, &(ctype, name, at)| entry.workspace(at, ctype, name))
    };
    let body = format!(
        "{sums}if (threadIdx.x == 0) {{\ntotals[blockIdx.x] = total;\ncounts[blockIdx.x] = count;\n}}"
    );
    let first = with(entry).launch("loss_parts", [blocks(parts), 1, 1], block, &body);
    let count = if mean { "sum_of_parts(counts, parts)" } else { "1" };
    let body =
        format!("const u64 count = {count};\nput_loss<{t}>(sum_of_parts(totals, parts), count, loss);");
    let entry = with(Entry::new()).int("parts", parts).result(0, t, "loss");
    (vec![first, entry.launch("loss", [1; 3], BLOCK, &body)], parts * 16)
}

/// The launches that leave what a loss has a part of, at the begin of the workspace, and the bytes of all.
fn share(labels: &TensorType, ignore: i64) -> (Vec<Launch>, u64) {
    let (i, ignore, positions) = (name(labels.dtype), int(ignore), labels.numel());
    let parts = total_parts(positions);
    let block = row_block(positions.div_ceil(parts));
    let entry = Entry::new().operand(2, i, "labels").int("positions", positions);
    let count = format!("counted(labels, Part(blockIdx.x, gridDim.x, positions), {ignore})");
    let share = |entry: Entry| entry.workspace(0, "f32", "share");
    if parts == 1 {
        return (
            vec![share(entry).launch("count", [1; 3], block, &format!("put_share({count}, share);"))],
            4,
        );
    }
    let at = 64;
    let body = format!("const u64 count = {count};\nif (threadIdx.x == 0) counts[blockIdx.x] = count;");
    let first =
        entry.workspace(at, "u64", "counts").launch("count_parts", [blocks(parts), 1, 1], block, &body);
    let entry = share(Entry::new().workspace(at, "u64", "counts").int("parts", parts));
    let last = entry.launch("count", [1; 3], BLOCK, "put_share(sum_of_parts(counts, parts), share);");
    (vec![first, last], at + parts * 8)
}

fn cross_entropy_grad(call: &Call, reduction: Reduction, ignore_index: i64) -> Option<Lowering> {
    let ([_, log_prob, labels], [dx]) = (call.operands, call.results) else { return None };
    let (_, classes, inner) = around(&log_prob.shape, 1)?;
    let ignore = int(ignore_index);
    let is_mean = reduction == Reduction::Mean;
    let reads = [Read { from: "a1".into(), strides: strides(&log_prob.shape) }];
    let space = index_space(&dx.shape, &reads);
    let by_four = space.by_four();
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
    let (mut launches, bytes) = if is_mean { share(labels, ignore_index) } else { Default::default() };
    launches.retain(|_| grad.is_some());
    launches.extend(grad);
    Some(Lowering::of(launches).with_workspace(bytes))
}
