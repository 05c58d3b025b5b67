//! Optimizer updates.

use bytemuck::Pod;
use memc_ir::{DType, Negligible};

use crate::error::KernelError;
use crate::index::{Index, by_index};
use crate::parallel::{CHUNK, for_chunks, for_rows2, for_rows3};
use crate::view::{Ctx, Src};

type Done = Result<(), KernelError>;

pub(crate) fn sgd(c: &Ctx, w_new: &mut [u8]) -> Done {
    let (w, g, lr) = (c.src::<f32>(0)?, c.slice::<f32>(1)?, c.slice::<f32>(2)?[0]);
    for_chunks(c.out::<f32>(w_new)?, |at, out| {
        copy_chunk(w, at, out);
        out.iter_mut().zip(&g[at..]).for_each(|(w, g)| *w -= lr * g);
    });
    Ok(())
}

fn copy_chunk(from: Src<f32>, at: usize, to: &mut [f32]) {
    if let Src::Slice(from) = from {
        to.copy_from_slice(&from[at..at + to.len()]);
    }
}

/// The gradient with that of `l2 / 2 * w^2`.
#[inline(always)]
fn regularised(g: f32, w: f32, l2: f32) -> f32 {
    if l2 == 0.0 { g } else { g + l2 * w }
}

/// The number, or zero where it is smaller than `least`.
#[inline(always)]
fn unless_below(least: f32, x: f32) -> f32 {
    if x.abs() < least { 0.0 } else { x }
}

/// The step number, operand `i`.
fn step(c: &Ctx, i: usize) -> Result<i64, KernelError> {
    by_index!(c, i, I => Ok(c.slice::<I>(i)?[0].value()))
}

/// Attributes of momentum.
pub(crate) struct Momentum {
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) l2: f32,
    pub(crate) nesterov: bool,
}

/// Source: ONNX, operator `ai.onnx.preview.training.Momentum`, with a step number that counts from 1.
pub(crate) fn momentum(c: &Ctx, results: &mut [&mut [u8]], rule: &Momentum) -> Done {
    let first = c.operands.len() > 4 && step(c, 4)? <= 1;
    let (w, g) = (c.src::<f32>(0)?, c.slice::<f32>(1)?);
    let (v, lr) = (c.src::<f32>(2)?, c.slice::<f32>(3)?[0]);
    let [w_new, v_new] = c.outs(results)?;
    let out = (c.out::<f32>(w_new)?, c.out::<f32>(v_new)?);

    let (alpha, beta) = (rule.alpha, if first { 1.0 } else { rule.beta });
    let none = Negligible::MOMENTUM;
    for_rows2(out, 1, 1, CHUNK, |at, w_out, v_out| {
        copy_chunk(w, at, w_out);
        copy_chunk(v, at, v_out);
        for ((w, v), &g) in w_out.iter_mut().zip(v_out).zip(&g[at..]) {
            let g = unless_below(none.first, regularised(g, *w, rule.l2));
            *v = unless_below(none.first, alpha * *v + beta * g);
            *w -= lr * if rule.nesterov { g + alpha * *v } else { *v };
        }
    });
    Ok(())
}

/// Attributes of adagrad.
pub(crate) struct Adagrad {
    pub(crate) epsilon: f32,
    pub(crate) l2: f32,
    pub(crate) decay: f32,
}

/// Source: ONNX, operator `ai.onnx.preview.training.Adagrad`, with a step number that counts from 1.
pub(crate) fn adagrad(c: &Ctx, results: &mut [&mut [u8]], rule: &Adagrad) -> Done {
    let before = if c.operands.len() > 4 { step(c, 4)?.saturating_sub(1) } else { 0 };
    let (w, g) = (c.src::<f32>(0)?, c.slice::<f32>(1)?);
    let (h, lr) = (c.src::<f32>(2)?, c.slice::<f32>(3)?[0]);
    let [w_new, h_new] = c.outs(results)?;
    let out = (c.out::<f32>(w_new)?, c.out::<f32>(h_new)?);

    let rate = lr / (1.0 + before as f32 * rule.decay);
    let none = Negligible::of_adagrad(rule.epsilon);
    for_rows2(out, 1, 1, CHUNK, |at, w_out, h_out| {
        copy_chunk(w, at, w_out);
        copy_chunk(h, at, h_out);
        for ((w, h), &g) in w_out.iter_mut().zip(h_out).zip(&g[at..]) {
            let g = unless_below(none.first, regularised(g, *w, rule.l2));
            let squared = unless_below(none.squared, g);
            *h = unless_below(none.second, *h + squared * squared);
            *w -= rate * g / (h.sqrt() + rule.epsilon);
        }
    });
    Ok(())
}

/// Attributes of adamw.
pub(crate) struct AdamW {
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) epsilon: f32,
    pub(crate) weight_decay: f32,
    pub(crate) bias_correction: bool,
    pub(crate) decay_first: bool,
    pub(crate) l2: f32,
}

/// `base` to the power of `n`, not negative. Products alone, in an order that depends on `n` alone: kernels
/// on a GPU give the same bits.
fn power(mut base: f64, mut n: i64) -> f64 {
    let mut all = 1.0;
    while n > 0 {
        if n & 1 == 1 {
            all *= base;
        }
        base *= base;
        n >>= 1;
    }
    all
}

impl AdamW {
    /// Divisors of the first moment and of the root of the second moment in step `step`, which counts from 1.
    fn corrections(&self, step: i64) -> [f32; 2] {
        if !self.bias_correction || step < 1 {
            return [1.0, 1.0];
        }
        let left = |decay: f32| 1.0 - power(f64::from(decay), step);
        [left(self.alpha) as f32, left(self.beta).sqrt() as f32]
    }
}

/// Source of the two forms: ONNX Runtime, contrib operator `AdamWOptimizer`, `adam_mode` 0 and 1.
pub(crate) fn adamw(c: &Ctx, results: &mut [&mut [u8]], rule: &AdamW) -> Done {
    let step = step(c, 5)?;
    let (w, g) = (c.src::<f32>(0)?, c.slice::<f32>(1)?);
    let (m, v, lr) = (c.src::<f32>(2)?, c.src::<f32>(3)?, c.slice::<f32>(4)?[0]);
    let [w_new, m_new, v_new] = c.outs(results)?;
    let out = [c.out::<f32>(w_new)?, c.out(m_new)?, c.out(v_new)?];

    let [first, root] = rule.corrections(step);
    let (alpha, beta, epsilon) = (rule.alpha, rule.beta, rule.epsilon);
    let none = Negligible::of_adam(epsilon);
    let decay = lr * rule.weight_decay;
    // Mode 0 corrects the denominator, mode 1 the step size.
    let (rate, root) = if rule.decay_first { (lr / first, root) } else { (lr * root / first, 1.0) };
    for_rows3(out, [1; 3], 1, CHUNK, |at, w_out, m_out, v_out| {
        copy_chunk(w, at, w_out);
        copy_chunk(m, at, m_out);
        copy_chunk(v, at, v_out);
        let moments = m_out.iter_mut().zip(v_out);
        for ((w, (m, v)), &g) in w_out.iter_mut().zip(moments).zip(&g[at..]) {
            let g = unless_below(none.first, regularised(g, *w, rule.l2));
            let squared = unless_below(none.squared, g);
            *m = unless_below(none.first, alpha * *m + (1.0 - alpha) * g);
            *v = unless_below(none.second, beta * *v + (1.0 - beta) * squared * squared);
            if rule.decay_first {
                *w -= decay * *w;
            }
            *w -= rate * *m / (v.sqrt() / root + epsilon);
            if !rule.decay_first {
                *w -= decay * *w;
            }
        }
    });
    Ok(())
}

pub(crate) fn increment(c: &Ctx, results: &mut [&mut [u8]], by: i64) -> Done {
    for (i, y) in results.iter_mut().enumerate() {
        if c.types[i].dtype == DType::I32 {
            add_to::<i32>(c, i, y, |x| x.wrapping_add(by as i32))?;
        } else {
            add_to::<i64>(c, i, y, |x| x.wrapping_add(by))?;
        }
    }
    Ok(())
}

/// Writes `f` of the elements of operand `i`. Counters are few elements: one thread.
fn add_to<T: Pod>(c: &Ctx, i: usize, y: &mut [u8], f: impl Fn(T) -> T) -> Done {
    let x = c.src::<T>(i)?;
    let y = c.out::<T>(y)?;
    if let Src::Slice(x) = x {
        y.copy_from_slice(x);
    }
    y.iter_mut().for_each(|y| *y = f(*y));
    Ok(())
}
