//! Optimizer updates that write states.

use memc_ir::attr::F32;
use memc_ir::{DType, Def, Feed, OpKind, ValueId};

use crate::graph::raise::edit::Editor;
use crate::graph::raise::rule::{RaiseRule, ensure};
use crate::graph::raise::terms::{Product, complementary, scalar, shortest};

/// Whether all are float states of one type that an update may overwrite.
fn states(g: &Editor<'_>, values: &[ValueId]) -> bool {
    let state = |v: &ValueId| matches!(g.module().values[*v].def, Def::State(_));
    values.iter().all(state)
        && values.windows(2).all(|w| g.ty(w[0]) == g.ty(w[1]))
        && values.first().is_some_and(|&v| g.ty(v).dtype.is_float())
}

/// Whether `v` is a state that the step leaves as `next`.
fn becomes(g: &Editor<'_>, v: ValueId, next: ValueId) -> bool {
    matches!(g.module().values[v].def, Def::State(s) if g.module().states[s].next == Some(next))
}

pub(super) const MOMENTUM: RaiseRule = RaiseRule {
    name: "momentum",
    doc: "v' = mu * v + beta * g and w - lr * v' are `momentum`, where w is a state and v another, \
          whose next value is v'; with w - lr * (beta * g + mu * \
          v') it is Nesterov's.",
    patterns: &[
        "(sgd ?w (add=?v1 (mul ?v #mu) ?g) ?lr)",
        "(sgd ?w (add (mul (add=?v1 (mul ?v #mu) ?g) #mu) ?g) ?lr)",
    ],
    apply: |g, m| {
        let (w, v, v1, step, lr) = (m.get("w")?, m.get("v")?, m.get("v1")?, m.get("g")?, m.get("lr")?);
        // A sum that is not carried on is a decayed weight, say, and takes no memory of its own.
        ensure(states(g, &[w, v]) && w != v && becomes(g, v, v1) && g.ty(step) == g.ty(w))?;
        let alpha = F32(g.number(m.get("mu")?)? as f32);
        let (id, _) = g.result_of(m.root)?;
        let nesterov = g.module().ops[id].operands.get(1) != Some(&v1);
        let scaled = match g.def(step) {
            Some((OpKind::Mul {}, &[x, c])) => g.number(c).filter(|_| g.ty(x) == g.ty(w)).map(|c| (x, c)),
            _ => None,
        };
        let (grad, beta) = scaled.unwrap_or((step, 1.0));
        ensure(beta == 1.0 || !nesterov)?;
        g.aim_at_first(&[v1]);
        let kind = OpKind::Momentum { alpha, beta: F32(beta as f32), l2: F32(0.0), nesterov };
        let &[w_new, v_new] = g.op(kind, &[w, grad, v, lr])?.as_slice() else { return None };
        ensure(g.replace(m.root, w_new))?;
        g.replace(v1, v_new);
        Some(())
    },
};

/// Operands and factors in the updates of both moments.
struct Moments {
    m: ValueId,
    v: ValueId,
    grad: ValueId,
    alpha: f64,
    beta: f64,
}

/// `m * alpha + g * (1 - alpha)` and `v * beta + g * g * (1 - beta)`.
fn moments(g: &Editor<'_>, m1: ValueId, v1: ValueId) -> Option<Moments> {
    let parts = |v: ValueId| match g.def(v) {
        Some((OpKind::Add {}, &[a, b])) => Some([Product::of(g, a), Product::of(g, b)]),
        _ => None,
    };
    let (first, second) = (parts(m1)?, parts(v1)?);
    for [old, new] in [[&first[0], &first[1]], [&first[1], &first[0]]] {
        let ([m], [grad]) = (old.numerator.as_slice(), new.numerator.as_slice()) else { continue };
        for [old2, new2] in [[&second[0], &second[1]], [&second[1], &second[0]]] {
            let [v] = old2.numerator.as_slice() else { continue };
            if first.iter().chain(&second).all(|p| p.denominator.is_empty())
                && new2.numerator.as_slice() == [*grad, *grad]
                && states(g, &[*m, *v])
                && g.ty(*grad) == g.ty(*m)
                && complementary(old.number, new.number)
                && complementary(old2.number, new2.number)
            {
                return Some(Moments { m: *m, v: *v, grad: *grad, alpha: old.number, beta: old2.number });
            }
        }
    }
    None
}

/// The decay and the step number of `1 - decay ^ step`.
fn correction(g: &Editor<'_>, v: ValueId) -> Option<(f64, ValueId)> {
    let (OpKind::Sub {}, &[one, power]) = g.def(v)? else { return None };
    let (OpKind::Pow {}, &[decay, step]) = g.def(power)? else { return None };
    (g.number(one)? == 1.0).then_some((g.number(decay)?, step))
}

/// The number of the step as an integer, when `v` is it.
fn step_number(g: &mut Editor<'_>, v: ValueId) -> Option<ValueId> {
    let source = match g.def(v) {
        Some((OpKind::Cast { .. } | OpKind::Reshape { .. }, &[x])) => x,
        _ => v,
    };
    let Def::Input(i) = g.module().values[source].def else { return None };
    ensure(matches!(g.module().inputs[i].feed, Feed::Step { .. }) && g.ty(source).numel() == 1)?;
    if g.ty(source).dtype.is_int() {
        return Some(source);
    }
    g.op1(OpKind::Cast { to: DType::I64 }, &[source])
}

/// The second moment and its correction in `sqrt(v / c)` or `sqrt(v) / sqrt(c)`.
fn root_of(g: &Editor<'_>, v: ValueId) -> Option<(ValueId, ValueId)> {
    let sqrt = |v: ValueId| match g.def(v) {
        Some((OpKind::Sqrt {}, &[x])) => Some(x),
        _ => None,
    };
    let quotient = |v: ValueId| match (Product::of(g, v), 1.0) {
        (Product { number, numerator, denominator }, one) if number == one => {
            match (numerator.as_slice(), denominator.as_slice()) {
                (&[a], &[b]) => Some((a, b)),
                _ => None,
            }
        }
        _ => None,
    };
    match sqrt(v) {
        Some(x) => quotient(x),
        None => quotient(v).and_then(|(a, b)| Some((sqrt(a)?, sqrt(b)?))),
    }
}

/// Weight decay `d` such that `1 - lr * d` rounds to the constant `factor`: the shortest decimal of at most
/// six digits that does, or else the exact value of the constant.
fn decay(factor: f64, lr: f64) -> f64 {
    let exact = (1.0 - factor) / lr;
    let mut rounded = (0..6usize).filter_map(|digits| format!("{exact:.digits$e}").parse::<f64>().ok());
    rounded.find(|d| (1.0 - lr * d) as f32 == factor as f32).unwrap_or(exact)
}

pub(super) const ADAMW: RaiseRule = RaiseRule {
    name: "adamw",
    doc: "w * (1 - lr * wd) - lr * (m' / (1 - b1^t)) / (sqrt(v' / (1 - b2^t)) + eps) is `adamw` with \
          `decay_first`, where m' = b1 * m + (1 - b1) * g, v' = b2 * v + (1 - b2) * g^2, t is the number of \
          the step, w, m and v are states, and m' and v' are the next values of the last two. Products may \
          be bracketed in any way.",
    patterns: &["(sub ?w ?update)"],
    apply: |g, m| {
        let update = Product::of(g, m.get("update")?);
        let full = |v: &&ValueId| g.ty(**v) == g.ty(m.root);
        // One full-size factor is the first moment, one full-size divisor the root of the second.
        let &m1 = update.numerator.iter().find(full)?;
        let &denominator = update.denominator.iter().find(full)?;
        let but = |all: &[ValueId], one: ValueId| -> Vec<ValueId> {
            let at = all.iter().position(|&v| v == one);
            all.iter().enumerate().filter(|(i, _)| Some(*i) != at).map(|(_, &v)| v).collect()
        };
        let rates = but(&update.numerator, m1);
        let &[c1] = but(&update.denominator, denominator).as_slice() else { return None };
        let (OpKind::Add {}, &[root, eps]) = g.def(denominator)? else { return None };
        let epsilon = g.number(eps)?;
        let (v1, c2) = root_of(g, root)?;
        let old = moments(g, m1, v1)?;
        ensure(becomes(g, old.m, m1) && becomes(g, old.v, v1))?;
        let ((b1, t1), (b2, t2)) = (correction(g, c1)?, correction(g, c2)?);
        ensure(t1 == t2 && b1 == old.alpha && b2 == old.beta && epsilon > 0.0)?;

        let whole = m.get("w")?;
        let (w, weight_decay) = if states(g, &[whole]) {
            (whole, 0.0)
        } else {
            let p = Product::of(g, whole);
            match (p.numerator.as_slice(), p.denominator.as_slice(), rates.as_slice()) {
                (&[w], [], []) => (w, decay(p.number, shortest(update.number))),
                _ => return None,
            }
        };
        ensure(states(g, &[w, old.m]) && (0.0..1.0).contains(&weight_decay))?;
        let lr = match (rates.as_slice(), update.number) {
            (&[lr], 1.0) if g.ty(lr).numel() == 1 => lr,
            ([], number) if number > 0.0 => scalar(g, number)?,
            _ => return None,
        };
        g.aim_at_first(&[m1, v1]);
        let step = step_number(g, t1)?;
        let kind = OpKind::AdamW {
            alpha: F32(old.alpha as f32),
            beta: F32(old.beta as f32),
            epsilon: F32(epsilon as f32),
            weight_decay: F32(weight_decay as f32),
            bias_correction: true,
            decay_first: true,
            l2: F32(0.0),
        };
        let &[w_new, m_new, v_new] = g.op(kind, &[w, old.grad, old.m, old.v, lr, step])?.as_slice() else {
            return None;
        };
        ensure(g.replace(m.root, w_new))?;
        g.replace(m1, m_new);
        g.replace(v1, v_new);
        Some(())
    },
};
