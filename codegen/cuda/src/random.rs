//! Random tensors and dropout. A thread makes the four elements of one block of words.

use memc_ir::{OpKind, TensorType};

use crate::Call;
use crate::kernel::{Entry, Lowering, float, int, name};

/// Random ops; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    Some(match call.op {
        OpKind::RandomMask { ratio, seed, stream, .. } => {
            let each = format!("y[i] = b8{{(u8)(words.of[w] >= {}u)}};", threshold(ratio.0));
            draw(call, (*seed, *stream), 0, &each)?
        }
        OpKind::Dropout { ratio, seed, stream } => {
            let scale = float(1.0 / (1.0 - ratio.0));
            let t = name(call.results.first()?.dtype);
            let low = threshold(ratio.0);
            let each = format!("y[i] = down<{t}>(words.of[w] >= {low}u ? up(x[i]) * {scale} : 0.0f);");
            draw(call, (*seed, *stream), 1, &each)?
        }
        OpKind::RandomUniform { seed, stream, low, high, .. } => {
            let (low, high) = (float(low.0), float(high.0));
            let each = format!("y[i] = uniform(words.of[w], (f64){low}, (f64){high} - (f64){low});");
            draw(call, (*seed, *stream), 0, &each)?
        }
        OpKind::RandomNormal { seed, stream, mean, scale, .. } => {
            let (mean, scale) = (float(mean.0), float(scale.0));
            let each = format!(
                "const f64 z = normal(words.of[w / 2 * 2], words.of[w / 2 * 2 + 1], w % 2 == 1);\n\
                 y[i] = (f32)((f64){mean} + (f64){scale} * z);"
            );
            draw(call, (*seed, *stream), 0, &each)?
        }
        _ => return None,
    })
}

/// The smallest word that keeps an element.
pub(crate) fn threshold(ratio: f32) -> u32 {
    (f64::from(ratio) * 4_294_967_296.0) as u32
}

/// Runs `each` for every element `i` with word `w` of `words`; operand `step` holds the number of the step.
fn draw(call: &Call, (seed, stream): (i64, i64), step: usize, each: &str) -> Option<Lowering> {
    let (y, counter): (&TensorType, _) = (call.results.first()?, call.operands.get(step)?);
    let mut entry = Entry::new();
    if step > 0 {
        entry = entry.operand(0, name(y.dtype), "x");
    }
    let entry = entry
        .operand(step, name(counter.dtype), "step")
        .result(0, name(y.dtype), "y")
        .int("n", y.numel())
        .int("stream", stream);
    let body = format!(
        "const Words words = philox(block, (u32)stream, (u64)(i64)step[0], (u64){});\n\
         for (u32 w = 0; w < 4; ++w) {{\nconst i64 i = (i64)block * 4 + w;\nif (i < n) {{ {each} }}\n}}",
        int(seed)
    );
    let body = format!("const u64 block = i;\n{{\n{body}\n}}");
    Some(Lowering::of(entry.each_of("quads", "random", y.numel().div_ceil(4), &body)))
}
