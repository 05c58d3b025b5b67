//! A normalisation with element-wise steps before and behind it: each row by one team, which makes what is
//! normalised, sums it, and makes the results, with the sums of the kernels of the single ops. The gradients
//! of scale and bias come first; what they read is made with them.

use std::fmt::Write;

use memc_ir::ops::fused::{self, Step};
use memc_ir::ops::fused_norm::{From, Part, Parts};
use memc_ir::{OpKind, TensorType};

use crate::Call;
use crate::fused::{Source, chain};
use crate::index_space::broadcast;
use crate::kernel::{Entry, Launch, Lowering, float, name};
use crate::map::{Body, Read, by_four, entry, index_space, one_by_one};
use crate::norm::{affine, grad_row, rows};
use crate::rows::RowForm;

/// Variable with the value of the norm.
const VALUE: &str = "value";

/// A normalisation with steps; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    let OpKind::FusedNorm { body, outs } = call.op else { return None };
    let types: Vec<&TensorType> = call.operands.iter().collect();
    let parts = Parts::of(&types, body, outs).ok()?;
    let norm = Norm::new(call, &parts)?;
    match parts.norm.op {
        OpKind::LayerNorm { epsilon, .. } => norm.forward(epsilon.0),
        OpKind::LayerNormGrad { .. } => norm.backward(),
        _ => None,
    }
}

fn steps(part: &Part) -> (&[Step], &[u64]) {
    match &part.op {
        OpKind::Fused { body: fused::Body(steps), outs } => (steps, outs),
        _ => (&[], &[]),
    }
}

/// The address of what a part reads.
fn address(from: &From) -> String {
    match from {
        From::Operand(i) => format!("a{i}"),
        From::Result(j) => format!("y{j}"),
    }
}

/// Elements made of elements, and the results where they go.
#[derive(Default)]
struct Stage {
    body: Body,
    reads: Vec<Read>,
    to: Vec<usize>,
}

impl Stage {
    /// Adds a part's steps, the first of them step `first`.
    fn push(&mut self, part: &Part, sources: &[Source], space: &[u64], first: usize) -> Option<()> {
        let (steps, outs) = steps(part);
        let chain = chain(steps, sources, &part.operands, space, first, &mut self.reads)?;
        let results = outs.iter().map(|t| format!("t{}", first as u64 + t));
        let results = std::mem::take(&mut self.body.results).into_iter().chain(results).collect();
        let lines = std::mem::take(&mut self.body.lines) + &chain.lines;
        self.body = Body { lines, results, ..chain };
        self.to.extend(&part.to);
        Some(())
    }
}

/// The op as its kernels see it.
struct Norm<'a> {
    call: &'a Call<'a>,
    norm: &'a Part,
    space: &'a TensorType,
    rows: u64,
    n: u64,
    before: Option<Stage>,
    /// The value of the norm and the steps behind it.
    last: Stage,
}

impl<'a> Norm<'a> {
    fn new(call: &'a Call<'a>, parts: &'a Parts) -> Option<Norm<'a>> {
        let norm = &parts.norm;
        let (OpKind::LayerNorm { axis, .. } | OpKind::LayerNormGrad { axis }) = norm.op else { return None };
        let (space, &held) = (norm.results.first()?, norm.to.first()?);
        let (rows, n) = rows(&space.shape, axis)?;
        let mut before = None;
        if let Some(part) = &parts.before {
            let sources: Vec<Source> = part.from.iter().map(|from| Source::Address(address(from))).collect();
            let mut stage = Stage::default();
            stage.push(part, &sources, &space.shape, 0)?;
            before = Some(stage);
        }
        // Statistics are not read for each element.
        let (each, value) = match (&norm.op, norm.from.len()) {
            (OpKind::LayerNorm { .. }, 2) => (2, "(x0 - m) * r * x1"),
            (OpKind::LayerNorm { .. }, _) => (3, "(x0 - m) * r * x1 + x2"),
            _ => (3, "r * (x0 * x2 - shift - (x1 - m) * slope)"),
        };
        let mut last = Stage::default();
        for (from, ty) in norm.from.iter().zip(&norm.operands).take(each) {
            last.reads.push(Read { from: address(from), strides: broadcast(&ty.shape, space.rank()) });
        }
        last.body.lines = format!("const auto {VALUE} = up(down<{}>({value}));\n", name(space.dtype));
        if !parts.after.as_ref().is_some_and(|after| after.to.contains(&held)) {
            last.body.results.push(VALUE.into());
            last.to.push(held);
        }
        if let Some(after) = &parts.after {
            let source = |from: &From| match from {
                From::Result(_) => Source::Variable(VALUE.into()),
                from => Source::Address(address(from)),
            };
            let sources: Vec<Source> = after.from.iter().map(source).collect();
            let first = parts.before.as_ref().map_or(0, |part| steps(part).0.len()) + 1;
            last.push(after, &sources, &space.shape, first)?;
        }
        Some(Norm { call, norm, space, rows, n, before, last })
    }

    fn entry(&self) -> Entry {
        entry(self.call, self.before.iter().chain([&self.last]).map(|stage| &stage.body))
    }

    /// Statements that give the addresses of the norm's operands these names.
    fn named(&self, names: &[&str]) -> String {
        let mut text = String::new();
        for (name, from) in names.iter().zip(&self.norm.from) {
            let _ = writeln!(text, "const auto* {name} = {};", address(from));
        }
        text
    }

    /// A thread's part of making the elements of `row`.
    fn stage(&self, entry: Entry, stage: &Stage, form: &RowForm, tag: &str) -> (Entry, String) {
        let to: Vec<_> = stage.to.iter().map(|&j| (format!("y{j}"), &self.call.results[j])).collect();
        let indices = index_space(&self.space.shape, &stage.reads);
        let ((entry, text), unit) = if indices.by_four() && self.n.is_multiple_of(4) {
            (by_four(entry, &to, &stage.body, &stage.reads, &indices, tag), "n / 4")
        } else {
            (one_by_one(entry, &to, &stage.body, &stage.reads, &indices, [tag, "i"]), "n")
        };
        let team = form.team();
        let first = format!("idx i = (idx)(row * ({unit})) + {team}::own()");
        let range = format!("{first}; i < (idx)((row + 1) * ({unit})); i += {team}::size()");
        (entry, format!("for ({range}) {{\n{text}}}\n"))
    }

    /// Statements that every thread runs first.
    fn lead(&self, stages: &[&Stage]) -> String {
        let idx = if self.space.numel() < 1 << 31 { "u32" } else { "u64" };
        let before: String = stages.iter().map(|stage| &*stage.body.before).collect();
        format!("typedef {idx} idx;\n{before}")
    }

    /// A kernel that goes through rows: `head` names what `sums` of a row reads, then come the results.
    fn by_rows(&self, stem: &str, form: &RowForm, made: Option<&Stage>, head: &str, sums: &str) -> Launch {
        let mut entry = self.entry();
        let mut text = String::new();
        if let Some(before) = made {
            (entry, text) = self.stage(entry, before, form, "p");
            let _ = writeln!(text, "{}::meet();", form.team());
        }
        let (entry, last) = self.stage(entry, &self.last, form, "o");
        let stages: Vec<&Stage> = made.into_iter().chain([&self.last]).collect();
        let body = format!(
            "{}{head}for (i64 row = {team}::row(); row < rows; row += {team}::step()) {{\n\
             {text}{sums}{last}}}",
            self.lead(&stages),
            team = form.team()
        );
        form.launch(entry, stem, [self.rows, self.n], &body)
    }

    fn forward(&self, epsilon: f32) -> Option<Lowering> {
        let &[_, mean, inv_std] = self.norm.to.as_slice() else { return None };
        let form = RowForm::new(self.space.dtype, [self.rows, self.n], 1);
        let sums = format!(
            "Row<{}, {}> own{{x + row * n, n}};\nown.hold_all();\nf32 m, r;\n\
             layer_norm_statistics(own, {}, m, r);\n\
             if ({}::own() == 0) {{\ny{mean}[row] = m;\ny{inv_std}[row] = r;\n}}\n",
            name(self.space.dtype),
            form.arguments(),
            float(epsilon),
            form.team()
        );
        let head = self.named(&["x"]);
        let launch = || self.by_rows("fused_layer_norm", &form, self.before.as_ref(), &head, &sums);
        Some(Lowering::of((self.rows > 0).then(launch)))
    }

    /// The function `made`, which makes the `pack` elements of the gradient from a position on.
    fn made(&self, entry: Entry, before: &Stage, pack: u64) -> (Entry, String) {
        let to: Vec<_> = before.to.iter().map(|&j| (format!("y{j}"), &self.call.results[j])).collect();
        let indices = index_space(&self.space.shape, &before.reads);
        let (entry, each) = if indices.by_four() && pack.is_multiple_of(4) {
            let (entry, made) = by_four(entry, &to, &before.body, &before.reads, &indices, "p");
            let each = format!(
                "for (u32 q = 0; q < {pack} / 4; ++q) {{\nconst idx i = (idx)(from / 4) + q;\n{made}\
                 const auto back = four(dy + at);\n\
                 for (u32 w = 0; w < 4; ++w) d[4 * q + w] = up(back.of[w]);\n}}"
            );
            (entry, each)
        } else {
            let (entry, made) = one_by_one(entry, &to, &before.body, &before.reads, &indices, ["p", "e"]);
            let each = format!(
                "for (u32 w = 0; w < {pack}; ++w) {{\nconst idx e = (idx)from + w;\n{made}\
                 d[w] = up(dy[e]);\n}}"
            );
            (entry, each)
        };
        let lead = self.lead(&[before]);
        let text =
            format!("{lead}auto made = [&](i64 from, f32 (&d)[{pack}]) {{\n#pragma unroll\n{each}\n}};\n");
        (entry, text)
    }

    fn backward(&self) -> Option<Lowering> {
        let (&[_, dscale, _], scale) = (self.norm.to.as_slice(), self.norm.operands.get(2)?) else {
            return None;
        };
        if self.n == 0 {
            return Some(Lowering::default());
        }
        let names = ["dy", "x", "scale", "mean", "inv_std"];
        let (t, form) = (name(self.space.dtype), grad_row(self.space.dtype, [self.rows, self.n]));
        let mut entry = self.entry();
        let mut text = self.named(&names);
        let mut dy = format!("Elements<{t}, {}>{{dy}}", form.pack);
        if let Some(before) = &self.before {
            let made;
            (entry, made) = self.made(entry, before, form.pack);
            text.push_str(&made);
            dy = "made".into();
        }
        let s = name(scale.dtype);
        let (sums, workspace) = affine(entry, &text, &dy, self.space.dtype, [self.rows, self.n], s, dscale);
        let slopes = format!(
            "const f32 m = mean[row], r = inv_std[row];\nf32 shift, slope;\n\
             GradRow<{t}, {s}, {}> own{{{{dy + row * n, n}}, {{x + row * n, n}}, scale}};\n\
             own.hold_all();\nown.slopes(m, r, shift, slope);\n",
            form.arguments()
        );
        let head = self.named(&names);
        let rows = || self.by_rows("fused_layer_norm_grad", &form, None, &head, &slopes);
        let launches = sums.into_iter().chain((self.rows > 0).then(rows));
        Some(Lowering::of(launches).with_workspace(workspace))
    }
}
