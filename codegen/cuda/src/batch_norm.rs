//! Batch normalisation and its gradient. Sums over a channel go by parts, and a second launch joins them.

use memc_ir::{OpKind, TensorType};

use crate::Call;
use crate::elementwise::expression;
use crate::index_space::{channel, strides};
use crate::kernel::{BLOCK, Entry, Launch, Lowering, blocks, float, name};
use crate::map::{self, Body, Read, entry, map_reads};
use crate::norm::of_normalised;
use crate::rows::ChannelForm;

/// Batch normalisation; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    match call.op {
        OpKind::BatchNormStats { epsilon } => stats(call, epsilon.0),
        OpKind::BatchNorm {} => normalise(call),
        OpKind::BatchNormGrad {} => grad(call),
        _ => None,
    }
}

/// Most channels.
const MOST: u64 = 1 << 30;

/// The sums over channels of a batch.
struct Sums {
    batch: u64,
    channels: u64,
    plane: u64,
    form: ChannelForm,
}

impl Sums {
    fn new(x: &TensorType) -> Option<Sums> {
        let [batch, channels, plane @ ..] = x.shape.as_slice() else { return None };
        let (batch, channels, plane) = (*batch, *channels, plane.iter().product());
        // A grid has a block for each channel.
        (channels <= MOST).then(|| Sums {
            batch,
            channels,
            plane,
            form: ChannelForm::new(x.dtype, [batch, channels, plane]),
        })
    }

    fn count(&self) -> u64 {
        self.batch * self.plane
    }

    /// The template arguments behind the types.
    fn arguments(&self) -> String {
        format!("{}, {}", self.form.pack, self.form.is_short)
    }

    /// The launch of `body`, which gets the parts as `partial` at byte `at` of the workspace and the extents
    /// as `g`.
    fn launch(&self, entry: Entry, stem: &str, at: u64, body: &str) -> Launch {
        let fields = [
            ("batch", self.batch),
            ("channels", self.channels),
            ("plane", self.plane),
            ("lanes", self.form.lanes),
            ("image_parts", self.form.image_parts),
            ("plane_parts", self.form.plane_parts),
        ];
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let entry = entry.workspace(at, "Total", "partial");
        let entry = fields.iter().fold(entry, |entry, &(name, value)| entry.int(name, value));
        let grid = [blocks(self.channels), self.form.image_parts as u32, self.form.plane_parts as u32];
        let body = format!("const Channel g = {{{}}};\n{body}", names.join(", "));
        entry.launch(stem, grid, BLOCK, &body)
    }

    /// The launch of `body`, which joins the parts; none where there is one.
    fn join(&self, entry: Entry, stem: &str, at: u64, body: &str) -> Option<Launch> {
        let entry = entry.workspace(at, "Total", "partial").int("parts", self.form.parts());
        (self.form.parts() > 1).then(|| entry.launch(stem, [blocks(self.channels), 1, 1], 32, body))
    }

    /// Bytes of the parts.
    fn bytes(&self) -> u64 {
        if self.form.parts() > 1 { self.channels * self.form.parts() * 16 } else { 0 }
    }
}

fn stats(call: &Call, epsilon: f32) -> Option<Lowering> {
    let x = call.operands.first()?;
    let sums = Sums::new(x)?;
    if sums.channels == 0 {
        return Some(Lowering::default());
    }
    let t = name(x.dtype);
    let entry = || Entry::new().result(0, "f32", "mean").result(1, "f32", "var").result(2, "f32", "inv_std");
    let to = format!("const ChannelStatistics to = {{mean, var, inv_std, {}}};\n", float(epsilon));
    let body = format!("{to}batch_norm_stats<{t}, {}>(x, to, partial, g);", sums.arguments());
    let first = sums.launch(entry().operand(0, t, "x"), "batch_norm_stats", 0, &body);
    let body = format!("{to}batch_norm_stats_parts(to, partial, count, parts);");
    let parts = entry().int("count", sums.count());
    let second = sums.join(parts, "batch_norm_stats_parts", 0, &body);
    Some(Lowering::of([Some(first), second].into_iter().flatten()).with_workspace(sums.bytes()))
}

/// Strides with which operand `operand` is read: one number of a channel, or, of the first `whole` operands,
/// one of each element.
fn read(x: &TensorType, from: &str, whole: bool) -> Read {
    Read { from: from.to_owned(), strides: if whole { strides(&x.shape) } else { channel(&x.shape) } }
}

fn normalise(call: &Call) -> Option<Lowering> {
    let x = call.operands.first()?;
    let reads: Vec<Read> =
        (0..call.operands.len()).map(|operand| read(x, &format!("a{operand}"), operand == 0)).collect();
    let names: Vec<String> = (0..reads.len()).map(|r| format!("x{r}")).collect();
    Some(map_reads("batch_norm", call, &Body::of(expression(call.op, &names)?), &reads))
}

fn grad(call: &Call) -> Option<Lowering> {
    let [_, x, scale, ..] = call.operands else { return None };
    let sums = Sums::new(x)?;
    let (t, s) = (name(x.dtype), name(scale.dtype));
    if sums.channels == 0 {
        return Some(Lowering::default());
    }
    // Before dx, which may lie in the bytes of dy or x.
    let at = (sums.channels * 8).next_multiple_of(64);
    let to = format!("const ChannelGradients<{s}> to = {{inv_std, dscale, dbias, sums}};\n");
    let results =
        |entry: Entry| entry.result(1, s, "dscale").result(2, s, "dbias").workspace(0, "f32", "sums");
    let body = format!("{to}batch_norm_sums<{t}, {s}, {}>(dy, x, mean, to, partial, g);", sums.arguments());
    let first = sums.launch(results(of_normalised(t)), "batch_norm_sums", at, &body);
    let body = format!(
        "{to}channel_parts(blockIdx.x, parts, partial, \
         [=](f64 a, f64 b) {{ to.finish(blockIdx.x, a, b); }});"
    );
    let parts = results(Entry::new().operand(4, "f32", "inv_std"));
    let second = sums.join(parts, "batch_norm_sums_parts", at, &body);
    let launches = [Some(first), second, grad_input(call, x, sums.count())];
    Some(Lowering::of(launches.into_iter().flatten()).with_workspace(at + sums.bytes()))
}

/// The launch that makes the gradient of the input of the sums of each channel.
fn grad_input(call: &Call, x: &TensorType, count: u64) -> Option<Launch> {
    let froms = [("a0", true), ("a1", true), ("a2", false), ("a3", false), ("a4", false)];
    let mut reads: Vec<Read> = froms.iter().map(|&(from, whole)| read(x, from, whole)).collect();
    // The sums of channel `c` stand at `2 * c` and behind that.
    for from in ["sums", "(sums + 1)"] {
        let strides = channel(&x.shape).into_iter().map(|stride| 2 * stride).collect();
        reads.push(Read { from: from.to_owned(), strides });
    }
    let lines = "const f32 shift = x6 / (f32)count, slope = x4 * x5 / (f32)count;\n".to_owned();
    let value = "x2 * x4 * (x0 - shift - (x1 - x3) * slope)".to_owned();
    let body = Body { lines, results: vec![value], ..Body::default() };
    let entry = entry(call, [&body]).workspace(0, "f32", "sums").int("count", count);
    map::launch("batch_norm_grad", entry, &[("y0".to_owned(), call.results.first()?)], &body, &reads)
}
