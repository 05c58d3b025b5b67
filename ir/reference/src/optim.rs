//! Optimizer updates.

use crate::error::EvalError;
use crate::tensor::Results;
use crate::tensor::{Data, Tensor64};

/// The step number in operand `i`; 1 where that is absent.
fn step(x: &[&Tensor64], i: usize) -> Result<f64, EvalError> {
    Ok(if let Some(step) = x.get(i) { step.i()?[0] as f64 } else { 1.0 })
}

/// Applies `update` to the elements of `w`, `g` and a state of one tensor.
fn with_one_state(x: &[&Tensor64], l2: f32, update: impl Fn(f64, f64, f64) -> (f64, f64)) -> Results {
    let [w, g, s] = [x[0].f()?, x[1].f()?, x[2].f()?];
    let regularised = |i: usize| g[i] + f64::from(l2) * w[i];
    let (w_new, s_new) = (0..w.len()).map(|i| update(w[i], regularised(i), s[i])).unzip();
    Ok(vec![Data::Float(w_new), Data::Float(s_new)])
}

pub(crate) fn sgd(x: &[&Tensor64]) -> Results {
    let lr = x[2].f()?[0];
    Ok(vec![Data::Float(x[0].f()?.iter().zip(x[1].f()?).map(|(w, g)| w - lr * g).collect())])
}

/// Source: ONNX, `ai.onnx.preview.training.Momentum`, with a step number that counts from 1.
pub(crate) fn momentum(x: &[&Tensor64], [alpha, beta, l2]: [f32; 3], nesterov: bool) -> Results {
    let (lr, alpha) = (x[3].f()?[0], f64::from(alpha));
    let beta = if x.len() > 4 && step(x, 4)? <= 1.0 { 1.0 } else { f64::from(beta) };
    with_one_state(x, l2, |w, g, v| {
        let v = alpha * v + beta * g;
        (w - lr * if nesterov { g + alpha * v } else { v }, v)
    })
}

/// Source: ONNX, `ai.onnx.preview.training.Adagrad`, with a step number that counts from 1.
pub(crate) fn adagrad(x: &[&Tensor64], [epsilon, l2, decay]: [f32; 3]) -> Results {
    let before = (step(x, 4)? - 1.0).max(0.0);
    let rate = x[3].f()?[0] / (1.0 + before * f64::from(decay));
    with_one_state(x, l2, |w, g, h| {
        let h = h + g * g;
        (w - rate * g / (h.sqrt() + f64::from(epsilon)), h)
    })
}

/// Source: ONNX Runtime, contrib operator `AdamWOptimizer`, `adam_mode` 0 (`decay_first`) and 1.
pub(crate) fn adamw(
    x: &[&Tensor64],
    [alpha, beta, epsilon, weight_decay, l2]: [f32; 5],
    bias_correction: bool,
    decay_first: bool,
) -> Results {
    let [w, g, m, v] = [x[0].f()?, x[1].f()?, x[2].f()?, x[3].f()?];
    let [alpha, beta, epsilon, weight_decay, l2] = [alpha, beta, epsilon, weight_decay, l2].map(f64::from);
    let (lr, step) = (x[4].f()?[0], step(x, 5)?);
    let corrects = bias_correction && step >= 1.0;
    let (first, second) = if corrects { (1.0 - alpha.powf(step), 1.0 - beta.powf(step)) } else { (1.0, 1.0) };
    let (mut w_new, mut m_new, mut v_new) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..w.len() {
        let g = g[i] + l2 * w[i];
        let m = alpha * m[i] + (1.0 - alpha) * g;
        let v = beta * v[i] + (1.0 - beta) * g * g;
        w_new.push(if decay_first {
            let decayed = w[i] - lr * weight_decay * w[i];
            decayed - lr * (m / first) / ((v / second).sqrt() + epsilon)
        } else {
            let moved = w[i] - lr * second.sqrt() / first * m / (v.sqrt() + epsilon);
            moved - lr * weight_decay * moved
        });
        m_new.push(m);
        v_new.push(v);
    }
    Ok(vec![Data::Float(w_new), Data::Float(m_new), Data::Float(v_new)])
}
