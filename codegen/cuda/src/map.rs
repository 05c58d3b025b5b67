//! Kernels that make each element of their results of one element of every operand.
//!
//! Where the innermost axis allows it a thread makes four neighbours, which it reads and writes at once;
//! otherwise one. It has read all that it needs before it writes, so that results may lie in the bytes of
//! operands.

use std::fmt::Write;

use memc_ir::TensorType;

use crate::Call;
use crate::index_space::{IndexSpace, broadcast};
use crate::kernel::{Entry, Launch, Lowering, name};

/// Computation of one element of the results. Its elements of the reads are `x0`, `x1`, ..., in their wide
/// type.
#[derive(Default)]
pub(crate) struct Body {
    /// Statements of a thread before its first element.
    pub(crate) before: String,
    /// Statements before the four elements from `4 * quad` on, for whatever they share.
    pub(crate) shared: String,
    /// Statements for each element, `word` being its number among those four.
    pub(crate) lines: String,
    /// One expression for each result, in its wide type.
    pub(crate) results: Vec<String>,
    /// Further parameters.
    pub(crate) params: Vec<(String, i64)>,
}

impl Body {
    pub(crate) fn of(expression: impl Into<String>) -> Body {
        Body { results: vec![expression.into()], ..Body::default() }
    }
}

/// A buffer, by the name of its address, with its strides over the shape of the results.
pub(crate) struct Read {
    pub(crate) from: String,
    pub(crate) strides: Vec<i64>,
}

/// Results, by the names of their addresses, with their types.
pub(crate) type To<'a> = [(String, &'a TensorType)];

/// The launch of `body` over all elements of the results; operands broadcast. Operands from `scalars` on are
/// single numbers that only `body.before` reads.
pub(crate) fn map(call: &Call, body: &Body, scalars: usize) -> Lowering {
    let rank = call.results.first().map_or(0, |y| y.rank());
    let read =
        |(t, ty): (usize, &TensorType)| Read { from: format!("a{t}"), strides: broadcast(&ty.shape, rank) };
    let reads: Vec<Read> = call.operands.iter().enumerate().take(scalars).map(read).collect();
    map_reads("map", call, body, &reads)
}

/// A kernel of bodies with the parameters that they know: the address of operand `t` as `a{t}`, that of
/// result `j` as `y{j}`, and their own.
pub(crate) fn entry<'a>(call: &Call, bodies: impl IntoIterator<Item = &'a Body>) -> Entry {
    let mut entry = Entry::new();
    for (t, ty) in call.operands.iter().enumerate() {
        entry = entry.operand(t, name(ty.dtype), &format!("a{t}"));
    }
    for (j, ty) in call.results.iter().enumerate() {
        entry = entry.result(j, name(ty.dtype), &format!("y{j}"));
    }
    for (param, value) in bodies.into_iter().flat_map(|body| &body.params) {
        entry = entry.int(param, *value);
    }
    entry
}

/// [`map`] with the elements of `reads`.
pub(crate) fn map_reads(stem: &str, call: &Call, body: &Body, reads: &[Read]) -> Lowering {
    Lowering::of(launch(stem, entry(call, [body]), &results(call), body, reads))
}

/// The launch of `body` for every element of `to`, whose types have one shape.
pub(crate) fn launch(stem: &str, entry: Entry, to: &To<'_>, body: &Body, reads: &[Read]) -> Option<Launch> {
    let (_, first) = to.first()?;
    let space = index_space(&first.shape, reads);
    if space.by_four() {
        let (entry, text) = by_four(entry, to, body, reads, &space, "o");
        entry.each_four(stem, first.numel(), &body.before, &text)
    } else {
        let (entry, text) = one_by_one(entry, to, body, reads, &space, ["o", "i"]);
        entry.each_after(stem, first.numel(), &body.before, &text)
    }
}

/// All results.
fn results<'a>(call: &Call<'a>) -> Vec<(String, &'a TensorType)> {
    call.results.iter().enumerate().map(|(j, ty)| (format!("y{j}"), ty)).collect()
}

/// Index space of results of this shape, with the strides of the reads.
pub(crate) fn index_space(shape: &[u64], reads: &[Read]) -> IndexSpace {
    IndexSpace::new(shape, &reads.iter().map(|r| r.strides.clone()).collect::<Vec<_>>())
}

/// The statements that make the elements at position `at`, of type `idx`, with the parameters that they need;
/// names of offsets begin with `tag`.
pub(crate) fn one_by_one(
    entry: Entry,
    to: &To<'_>,
    body: &Body,
    reads: &[Read],
    space: &IndexSpace,
    [tag, at]: [&str; 2],
) -> (Entry, String) {
    let (entry, mut text) = space.offsets(entry, tag, at);
    for (r, read) in reads.iter().enumerate() {
        let _ = writeln!(text, "const auto x{r} = up({}[{tag}{r}]);", read.from);
    }
    if !body.shared.is_empty() {
        let _ = writeln!(text, "const u64 quad = {at} / 4;\nconst u32 word = {at} % 4;");
    }
    text.push_str(&body.shared);
    text.push_str(&body.lines);
    for (j, (expression, (_, ty))) in body.results.iter().zip(to).enumerate() {
        let _ = writeln!(text, "const auto z{j} = down<{}>({expression});", name(ty.dtype));
    }
    for (j, (y, _)) in to.iter().enumerate() {
        let _ = writeln!(text, "{y}[{at}] = z{j};");
    }
    (entry, text)
}

/// The function `put(e, t0)`, which makes the elements at position `e` of what a kernel has for it.
pub(crate) fn put(entry: Entry, call: &Call, body: &Body, reads: &[Read]) -> (Entry, String) {
    let space = index_space(call.results.first().map_or(&[], |y| y.shape.as_slice()), reads);
    let (entry, each) = one_by_one(entry, &results(call), body, reads, &space, ["p", "e"]);
    (entry, format!("const auto put = [=](idx e, f32 t0) {{\n{each}}};\n"))
}

/// Statements that make the four elements from `4 * i` on of the results; names of offsets begin with `tag`.
pub(crate) fn by_four(
    entry: Entry,
    to: &To<'_>,
    body: &Body,
    reads: &[Read],
    space: &IndexSpace,
    tag: &str,
) -> (Entry, String) {
    let mut lead = String::from("const idx at = i * 4;\n");
    let (entry, offsets) = space.offsets(entry, tag, "at");
    lead.push_str(&offsets);
    let mut each = String::new();
    for (r, read) in reads.iter().enumerate() {
        if space.is_still(r) {
            let _ = writeln!(lead, "const auto x{r} = up({}[{tag}{r}]);", read.from);
        } else {
            let _ = writeln!(lead, "const auto q{r} = four({} + {tag}{r});", read.from);
            let _ = writeln!(each, "const auto x{r} = up(q{r}.of[word]);");
        }
    }
    if !body.shared.is_empty() {
        lead.push_str("const u64 quad = i;\n");
    }
    lead.push_str(&body.shared);
    each.push_str(&body.lines);
    let mut last = String::new();
    for (j, (expression, (at, ty))) in body.results.iter().zip(to).enumerate() {
        let t = name(ty.dtype);
        let _ = writeln!(lead, "Four<{t}> z{j};");
        let _ = writeln!(each, "z{j}.of[word] = down<{t}>({expression});");
        let _ = writeln!(last, "put({at} + at, z{j});");
    }
    (entry, format!("{lead}#pragma unroll\nfor (u32 word = 0; word < 4; ++word) {{\n{each}}}\n{last}"))
}
