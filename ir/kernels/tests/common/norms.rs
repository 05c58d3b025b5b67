//! Calls of normalisations with element-wise steps before and behind them.

use memc_ir::{DType, parse_op};
use memc_kernels::interp::Tensor;

use super::{Random, Sample};

fn norm(body: &str, outs: &str, operands: Vec<Tensor>) -> Sample {
    let op = parse_op("fused_norm", &format!("{{body = \"{body}\", outs = {outs}}}"));
    Sample { op: op.unwrap_or_else(|e| panic!("{body}: {e}")), operands }
}

const FORWARD: &str = "{axis = 2, epsilon = 1e-5}";

/// Normalisations whose results are near to those in double precision, however they are rounded in between.
pub(crate) fn chosen(r: &mut Random, s: u64) -> Vec<Sample> {
    let shape = [s, 3, 16];
    let step = || Tensor::i64(&[1], &[3]).unwrap();
    let scale = r.positive(&[16]);
    let [x, skip, bias] = [r.f32(&shape), r.f32(&shape), r.f32(&[16])];
    let [mean, inv_std] = [r.f32(&[s, 3, 1]), r.positive(&[s, 3, 1])];
    let mask = r.tensor(DType::Bool, &shape);
    vec![
        norm(
            &format!("add(x0, x1); layer_norm(t0, x2, x3) {FORWARD}"),
            "[0, 1]",
            vec![x.clone(), skip.clone(), scale.clone(), bias.clone()],
        ),
        norm(
            &format!(
                "random_mask(x0) {{ratio = 0.25, seed = 7, stream = 1, shape = [{s}, 3, 16]}}; \
                 mask_scale(x1, t0) {{scale = 1.5}}; add(t1, x2); layer_norm(t2, x3) {FORWARD}"
            ),
            "[0, 3]",
            vec![step(), x.clone(), skip.clone(), scale.clone()],
        ),
        norm(
            &format!("layer_norm(x0, x1, x2) {FORWARD}; mul(t0, x3); add(t1, t0)"),
            "[1, 2]",
            vec![x.clone(), scale.clone(), bias, r.f32(&[3, 1])],
        ),
        norm(
            "layer_norm_grad(x0, x1, x2, x3, x4) {axis = 2}; add(t0, x5); mask_scale(t1, x6) {scale = 1.25}",
            "[1, 2]",
            vec![
                r.f32(&shape),
                x.clone(),
                scale.clone(),
                mean.clone(),
                inv_std.clone(),
                skip.clone(),
                mask.clone(),
            ],
        ),
        norm(
            "sub(x0, x1); layer_norm_grad(t0, x2, x3, x4, x5) {axis = 2}",
            "[0, 1]",
            vec![r.f32(&shape), skip, x, scale.clone(), mean, inv_std],
        ),
        norm(
            &format!("mask_scale(x0, x1) {{scale = 2.0}}; layer_norm(t0, x2) {FORWARD}; neg(t1)"),
            "[1, 2]",
            vec![r.tensor(DType::BF16, &shape), mask, scale],
        ),
    ]
}

/// A normalisation of a random type and shape with random steps.
pub(crate) fn random(r: &mut Random) -> Sample {
    let dtype = [DType::F32, DType::F32, DType::F16, DType::BF16][r.below(4) as usize];
    let pick = |r: &mut Random| [1, 2, 3, 5, 8, 24, 37, 140][r.below(8) as usize];
    let (rows, n) = (if r.below(12) == 0 { 0 } else { pick(r) }, pick(r));
    let (shape, stats) = ([2, rows, n], [2, rows, 1]);
    let mut operands: Vec<Tensor> = Vec::new();
    let mut give = |t: Tensor| {
        operands.push(t);
        format!("x{}", operands.len() - 1)
    };
    let mut steps: Vec<String> = Vec::new();
    let mut outs: Vec<usize> = Vec::new();
    let mut value = give(r.tensor(dtype, &shape));
    let mut chain = |r: &mut Random, steps: &mut Vec<String>, outs: &mut Vec<usize>, value: &mut String| {
        for _ in 0..r.below(3) {
            let own = |r: &mut Random| match r.below(3) {
                0 => r.tensor(dtype, &[n]),
                _ => r.tensor(dtype, &shape),
            };
            let next = match r.below(4) {
                0 => format!("neg({value})"),
                1 => {
                    let mask = r.tensor(DType::Bool, &shape);
                    format!("mask_scale({value}, {}) {{scale = 1.5}}", give(mask))
                }
                2 => {
                    let step = Tensor::i64(&[], &[4]).unwrap();
                    format!("dropout({value}, {}) {{ratio = 0.25, seed = 5, stream = 2}}", give(step))
                }
                _ => {
                    let other = own(r);
                    format!("add({}, {value})", give(other))
                }
            };
            *value = format!("t{}", steps.len());
            if r.below(3) == 0 {
                outs.push(steps.len());
            }
            steps.push(next);
        }
    };
    chain(r, &mut steps, &mut outs, &mut value);
    let wide = r.below(2) == 0;
    let row = |r: &mut Random| r.tensor(if wide { DType::F32 } else { dtype }, &[n]);
    let at = steps.len();
    let mut parts = vec![value];
    let forward = r.below(2) == 0;
    outs.extend((r.below(2) == 0).then_some(at));
    // Its operands come last.
    steps.push(String::new());
    let mut last = format!("t{at}");
    chain(r, &mut steps, &mut outs, &mut last);
    if !outs.contains(&(steps.len() - 1)) {
        outs.push(steps.len() - 1);
    }
    let more = if forward {
        vec![row(r); 1 + r.below(2) as usize]
    } else {
        vec![r.tensor(dtype, &shape), row(r), r.f32(&stats), r.positive(&stats)]
    };
    parts.extend((operands.len()..).take(more.len()).map(|x| format!("x{x}")));
    operands.extend(more);
    let parts = parts.join(", ");
    steps[at] = match forward {
        true => format!("layer_norm({parts}) {FORWARD}"),
        false => format!("layer_norm_grad({parts}) {{axis = 2}}"),
    };
    let outs: Vec<String> = outs.iter().map(usize::to_string).collect();
    norm(&steps.join("; "), &format!("[{}]", outs.join(", ")), operands)
}
