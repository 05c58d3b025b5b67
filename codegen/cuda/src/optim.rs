//! Optimizer updates: element-wise, with a learning rate and a step number read once by each thread.

use memc_ir::{Negligible, OpKind};

use crate::Call;
use crate::kernel::{Lowering, float};
use crate::map::{Body, map};

/// The gradient with that of `l2 / 2 * w^2`.
fn regularised(l2: f32, none: &Negligible) -> String {
    let g = if l2 == 0.0 { "x1".to_owned() } else { format!("x1 + {} * x0", float(l2)) };
    format!("const f32 g = {};\n", unless_below(none.first, &g))
}

/// The number, or zero where it is smaller than `least`.
fn unless_below(least: f32, x: &str) -> String {
    format!("unless_below({}, {x})", float(least))
}

/// Optimizers; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    let (body, elements) = update(call)?;
    Some(map(call, &body, elements))
}

/// Computation of one element of the parameter, and the number of operands that have such elements; those
/// after them are single numbers.
pub(crate) fn update(call: &Call) -> Option<(Body, usize)> {
    let has_step = |at: usize| call.operands.len() > at;
    Some(match call.op {
        OpKind::Sgd {} => {
            let before = "const f32 lr = up(a2[0]);".into();
            (
                Body {
                    before,
                    lines: String::new(),
                    results: vec!["x0 - lr * x1".into()],
                    ..Body::default()
                },
                2,
            )
        }
        OpKind::Momentum { alpha, beta, l2, nesterov } => {
            let beta = float(beta.0);
            let beta = if has_step(4) { format!("a4[0] <= 1 ? 1.0f : {beta}") } else { beta };
            let before = format!("const f32 lr = up(a3[0]), alpha = {}, beta = {beta};", float(alpha.0));
            let none = Negligible::MOMENTUM;
            let v = unless_below(none.first, "alpha * x2 + beta * g");
            let lines = format!("{}const f32 v = {v};\n", regularised(l2.0, &none));
            let by = if *nesterov { "(g + alpha * v)" } else { "v" };
            (
                Body {
                    before,
                    lines,
                    results: vec![format!("x0 - lr * {by}"), "v".into()],
                    ..Body::default()
                },
                3,
            )
        }
        OpKind::Adagrad { epsilon, l2, decay } => {
            let earlier = if has_step(4) { "(f32)(a4[0] == LOWEST_I64 ? a4[0] : a4[0] - 1)" } else { "0.0f" };
            let before = format!(
                "const f32 rate = up(a3[0]) / (1.0f + {earlier} * {}), epsilon = {};",
                float(decay.0),
                float(epsilon.0)
            );
            let none = Negligible::of_adagrad(epsilon.0);
            let (squared, h) = (unless_below(none.squared, "g"), unless_below(none.second, "x2 + s * s"));
            let lines = format!("{}const f32 s = {squared};\nconst f32 h = {h};\n", regularised(l2.0, &none));
            let w = "x0 - rate * g / (sqrtf(h) + epsilon)".into();
            (Body { before, lines, results: vec![w, "h".into()], ..Body::default() }, 3)
        }
        OpKind::AdamW { .. } => (adamw(call.op)?, 4),
        _ => return None,
    })
}

/// Computation of an update of AdamW.
fn adamw(op: &OpKind) -> Option<Body> {
    let &OpKind::AdamW { alpha, beta, epsilon, weight_decay, bias_correction, decay_first, l2 } = op else {
        return None;
    };
    let (alpha, beta) = (alpha.0, beta.0);
    let mut before = format!(
        "const f32 lr = up(a4[0]), alpha = {}, beta = {}, rest_a = {}, rest_b = {}, \
         epsilon = {}, decay = lr * {};\n\
         f32 first = 1.0f, root = 1.0f;\n",
        float(alpha),
        float(beta),
        float(1.0 - alpha),
        float(1.0 - beta),
        float(epsilon.0),
        float(weight_decay.0)
    );
    if bias_correction {
        before.push_str(
            "if (a5[0] >= 1) {\n  first = (f32)(1.0 - power(alpha, a5[0]));\n  \
             root = (f32)sqrt(1.0 - power(beta, a5[0]));\n}\n",
        );
    }
    // The one form corrects the denominator, the other the step size.
    before.push_str(if decay_first {
        "const f32 rate = lr / first;"
    } else {
        "const f32 rate = lr * root / first;"
    });
    let (early, late) = if decay_first { ("w -= decay * w;\n", "") } else { ("", "w -= decay * w;\n") };
    let scaled = if decay_first { "sqrtf(v) / root" } else { "sqrtf(v)" };
    let none = Negligible::of_adam(epsilon.0);
    let m = unless_below(none.first, "alpha * x2 + rest_a * g");
    let v = unless_below(none.second, "beta * x3 + rest_b * s * s");
    let lines = format!(
        "{}const f32 s = {};\nconst f32 m = {m};\nconst f32 v = {v};\nf32 w = x0;\n\
         {early}w -= rate * m / ({scaled} + epsilon);\n{late}",
        regularised(l2.0, &none),
        unless_below(none.squared, "g")
    );
    Some(Body { before, lines, results: vec!["w".into(), "m".into(), "v".into()], ..Body::default() })
}
