//! Softmax and its gradient.

use memc_ir::{OpKind, TensorType};

use crate::Call;
use crate::kernel::{BLOCK, Entry, Launch, Lowering, blocks, name};
use crate::rows::{RowForm, around, pack, row_parts};

/// Softmax, its logarithm and its gradient; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    match call.op {
        OpKind::Softmax { axis } => softmax(call, *axis, false),
        OpKind::LogSoftmax { axis } => softmax(call, *axis, true),
        OpKind::SoftmaxGrad { axis } => softmax_grad(call, *axis),
        _ => None,
    }
}

/// Where the column of element `i` begins, when columns of `n` elements are `inner` apart.
const COLUMN: &str = "const i64 at = (i64)(i / (idx)inner) * n * inner + (i64)(i % (idx)inner);\n";
/// Bytes of a part's sums.
const PART: u64 = 16;

/// A launch with a thread for each of `count` columns of `n` elements, which are `inner` apart.
pub(crate) fn columns(
    entry: Entry,
    stem: &str,
    count: u64,
    [n, inner]: [u64; 2],
    body: &str,
) -> Option<Launch> {
    entry.int("n", n).int("inner", inner).each_of("columns", stem, count, &format!("{COLUMN}{body}"))
}

/// Long rows cut into parts, where there are few.
pub(crate) struct Cut {
    pub(crate) rows: u64,
    pub(crate) n: u64,
    pub(crate) pack: u64,
    parts: u64,
}

impl Cut {
    /// `None` where a row is not cut.
    pub(crate) fn new(x: &TensorType, rows: u64, n: u64) -> Option<Cut> {
        let parts = row_parts(rows, n);
        (parts > 1).then(|| Cut { rows, n, pack: pack(x.dtype, n), parts })
    }

    /// A launch with a block for each part.
    pub(crate) fn launch(&self, entry: Entry, stem: &str, body: &str) -> Launch {
        let entry = entry.int("rows", self.rows).int("n", self.n);
        entry.launch(stem, [blocks(self.rows), self.parts as u32, 1], BLOCK, body)
    }

    /// The launch that leaves the peaks of all parts at byte `at` of the workspace.
    pub(crate) fn peaks(&self, t: &str, at: u64) -> Launch {
        let entry = Entry::new().operand(0, t, "x").workspace(at, "Peak", "peaks");
        self.launch(entry, "peak_parts", &format!("peak_parts<{t}, {}>(x, peaks, rows, n);", self.pack))
    }

    /// Bytes of the sums of all parts.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows * self.parts * PART
    }
}

fn softmax(call: &Call, axis: i64, log: bool) -> Option<Lowering> {
    let (x, y) = (call.operands.first()?, call.results.first()?);
    let (outer, n, inner) = around(&y.shape, axis)?;
    if y.numel() == 0 {
        return Some(Lowering::default());
    }
    let t = name(x.dtype);
    let entry = Entry::new().operand(0, t, "x").result(0, t, "y");
    if inner != 1 {
        let body = format!("softmax_column<{t}, {log}>(x + at, y + at, n, inner);");
        return Some(Lowering::of(columns(entry, "softmax", outer * inner, [n, inner], &body)));
    }
    if let Some(cut) = Cut::new(x, outer, n) {
        let body = format!("softmax_parts<{t}, {}, {log}>(x, y, peaks, rows, n);", cut.pack);
        let last = cut.launch(entry.workspace(0, "Peak", "peaks"), "softmax_parts", &body);
        return Some(Lowering::of([cut.peaks(t, 0), last]).with_workspace(cut.bytes()));
    }
    let form = RowForm::new(x.dtype, [outer, n], 2);
    let body = format!("softmax_rows<{t}, {}, {log}>(x, y, rows, n);", form.arguments());
    Some(Lowering::of([form.launch(entry, "softmax", [outer, n], &body)]))
}

fn softmax_grad(call: &Call, axis: i64) -> Option<Lowering> {
    let dx = call.results.first()?;
    let (outer, n, inner) = around(&dx.shape, axis)?;
    if dx.numel() == 0 {
        return Some(Lowering::default());
    }
    let t = name(dx.dtype);
    let read = || Entry::new().operand(0, t, "dy").operand(1, t, "y");
    let entry = read().result(0, t, "dx");
    if inner != 1 {
        let body = format!("softmax_grad_column<{t}>(dy + at, y + at, dx + at, n, inner);");
        return Some(Lowering::of(columns(entry, "softmax_grad", outer * inner, [n, inner], &body)));
    }
    if let Some(cut) = Cut::new(dx, outer, n) {
        let body = format!("softmax_grad_sums<{t}, {}>(dy, y, sums, rows, n);", cut.pack);
        let first = cut.launch(read().workspace(0, "Total", "sums"), "softmax_grad_sums", &body);
        let body = format!("softmax_grad_parts<{t}, {}>(dy, y, dx, sums, rows, n);", cut.pack);
        let last = cut.launch(entry.workspace(0, "Total", "sums"), "softmax_grad_parts", &body);
        return Some(Lowering::of([first, last]).with_workspace(cut.bytes()));
    }
    let form = RowForm::new(dx.dtype, [outer, n], 2);
    let body = format!("softmax_grad_rows<{t}, {}>(dy, y, dx, rows, n);", form.arguments());
    Some(Lowering::of([form.launch(entry, "softmax_grad", [outer, n], &body)]))
}
