//! Activations and their gradients.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use memc_ir::attr::F32;
use memc_ir::{DType, OpKind, ValueId};

use super::movement::used_once;
use crate::graph::raise::edit::Editor;
use crate::graph::raise::pattern::nearly;
use crate::graph::raise::rule::{RaiseRule, ensure};
use crate::graph::raise::terms::Product;

pub(super) const RELU_GRAD: RaiseRule = RaiseRule {
    name: "relu-grad",
    doc: "dy where y > 0 and else 0 is `relu_grad`, also when the mask is y <= 0: at a NaN in y the \
          gradient becomes 0. A dy that broadcasts is broadcast first.",
    patterns: &["(select (less_equal ?y 0) 0 ?dy)", "(select (greater ?y 0) ?dy 0)"],
    apply: |g, m| {
        let (y, dy) = (m.get("y")?, m.get("dy")?);
        ensure(g.ty(y) == g.ty(m.root) && g.ty(y).dtype.is_float())?;
        let dy = if g.ty(dy) == g.ty(y) {
            dy
        } else {
            let shape = g.shape(y).to_vec();
            g.op1(OpKind::Broadcast { shape }, &[dy])?
        };
        let dx = g.op1(OpKind::ReluGrad {}, &[dy, y])?;
        ensure(g.replace(m.root, dx))
    },
};

pub(super) const SIGMOID_GRAD: RaiseRule = RaiseRule {
    name: "sigmoid-grad",
    doc: "dy * y * (1 - y) is `sigmoid_grad` where y is a sigmoid, however the product is bracketed.",
    patterns: &[
        "(mul ?dy (mul (sigmoid=?y ?x) (sub 1 ?y)))",
        "(mul (mul ?dy (sigmoid=?y ?x)) (sub 1 ?y))",
        "(mul (mul ?dy (sub 1 ?y)) (sigmoid=?y ?x))",
    ],
    apply: |g, m| {
        let (dy, y) = (m.get("dy")?, m.get("y")?);
        ensure(g.ty(dy) == g.ty(y) && g.ty(m.root) == g.ty(y))?;
        let dx = g.op1(OpKind::SigmoidGrad {}, &[dy, y])?;
        ensure(g.replace(m.root, dx))
    },
};

/// The `z` of `1 + f(z)`, where f is called `name`.
fn one_plus(g: &Editor<'_>, v: ValueId, name: &str) -> Option<ValueId> {
    let (OpKind::Add {}, &[a, b]) = g.def(v)? else { return None };
    let (f, one) = if g.number(b).is_some() { (a, b) } else { (b, a) };
    let (kind, &[z]) = g.def(f)? else { return None };
    (kind.mnemonic() == name && g.number(one)? == 1.0).then_some(z)
}

/// Whether `v` is `number` times `factors`, in any order and bracketing.
fn is_product(g: &Editor<'_>, v: ValueId, number: f64, factors: &[ValueId]) -> bool {
    let mut p = Product::of(g, v);
    let mut want = factors.to_vec();
    p.numerator.sort_unstable();
    want.sort_unstable();
    p.denominator.is_empty() && p.numerator == want && nearly(p.number, number)
}

/// Whether `v` is `x^3`.
fn is_cube(g: &Editor<'_>, v: ValueId, x: ValueId) -> bool {
    match g.def(v) {
        Some((OpKind::Pow {}, &[base, e])) => base == x && g.number(e) == Some(3.0),
        _ => is_product(g, v, 1.0, &[x, x, x]),
    }
}

/// Whether `z` is `sqrt(2 / pi) * (x + 0.044715 * x^3)`.
fn is_tanh_argument(g: &Editor<'_>, z: ValueId, x: ValueId) -> bool {
    let p = Product::of(g, z);
    let (&[sum], []) = (p.numerator.as_slice(), p.denominator.as_slice()) else { return false };
    let Some((OpKind::Add {}, &[a, b])) = g.def(sum) else { return false };
    let cube = if a == x { b } else { a };
    let c = Product::of(g, cube);
    let cubic = match (c.numerator.as_slice(), c.denominator.is_empty()) {
        (&[one], true) => is_cube(g, one, x),
        (many, true) => many == [x, x, x],
        _ => false,
    };
    (a == x || b == x) && cubic && nearly(c.number, 0.044_715) && nearly(p.number, (2.0 / PI).sqrt())
}

pub(super) const GELU: RaiseRule = RaiseRule {
    name: "gelu",
    doc: "x / 2 * (1 + erf(x / sqrt(2))) is `gelu`, and with tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)) for \
          the erf its tanh approximation, however products are bracketed.",
    patterns: &["(mul ?a ?b)"],
    apply: |g, m| {
        let p = Product::of(g, m.root);
        let (&[a, b], []) = (p.numerator.as_slice(), p.denominator.as_slice()) else { return None };
        ensure(nearly(p.number, 0.5))?;
        for (x, sum) in [(a, b), (b, a)] {
            let tanh = match (one_plus(g, sum, "erf"), one_plus(g, sum, "tanh")) {
                (Some(z), _) if is_product(g, z, FRAC_1_SQRT_2, &[x]) => false,
                (_, Some(z)) if is_tanh_argument(g, z, x) => true,
                _ => continue,
            };
            ensure(g.ty(x) == g.ty(m.root))?;
            let y = g.op1(OpKind::Gelu { tanh }, &[x])?;
            return ensure(g.replace(m.root, y));
        }
        None
    },
};

pub(super) const GELU_GRAD: RaiseRule = RaiseRule {
    name: "gelu-grad",
    doc: "dy * ((1 + erf(x / sqrt(2))) / 2 + x * exp(-x^2 / 2) / sqrt(2 * pi)) is `gelu_grad`.",
    patterns: &["(mul ?dy (add ?a ?b))"],
    apply: |g, m| {
        let dy = m.get("dy")?;
        for (cdf, pdf) in [(m.get("a")?, m.get("b")?), (m.get("b")?, m.get("a")?)] {
            let p = Product::of(g, cdf);
            let (&[sum], []) = (p.numerator.as_slice(), p.denominator.as_slice()) else { continue };
            let Some(z) = one_plus(g, sum, "erf") else { continue };
            let (q, density) = (Product::of(g, z), Product::of(g, pdf));
            let (&[x], []) = (q.numerator.as_slice(), q.denominator.as_slice()) else { continue };
            let (&[s, t], []) = (density.numerator.as_slice(), density.denominator.as_slice()) else {
                continue;
            };
            let bell = if s == x { t } else { s };
            let Some((OpKind::Exp {}, &[e])) = g.def(bell) else { continue };
            ensure(s == x || t == x)?;
            ensure(nearly(p.number, 0.5) && nearly(q.number, FRAC_1_SQRT_2))?;
            ensure(nearly(density.number, 1.0 / (2.0 * PI).sqrt()) && is_product(g, e, -0.5, &[x, x]))?;
            ensure(g.ty(dy) == g.ty(x) && g.ty(m.root) == g.ty(x))?;
            let dx = g.op1(OpKind::GeluGrad { tanh: false }, &[dy, x])?;
            return ensure(g.replace(m.root, dx));
        }
        None
    },
};

pub(super) const GELU_TANH_GRAD: RaiseRule = RaiseRule {
    name: "gelu-tanh-grad",
    doc: "With t = tanh(z), z = k * (x + c * x^3), k = sqrt(2 / pi) and c = 0.044715, and e = dy * x / 2 * \
          (1 - t^2), the sum of dy * (1 + t) / 2, k * e and 3 * k * c * x^2 * e is `gelu_grad` with `tanh`.",
    patterns: &["(add (add (mul (tanh_grad=?e ?p (tanh=?t ?z)) #k) ?cubic) ?direct)"],
    apply: |g, m| {
        let (e, t, k) = (m.get("e")?, m.get("t")?, (2.0 / PI).sqrt());
        ensure(nearly(g.number(m.get("k")?)?, k))?;
        let direct = Product::of(g, m.get("direct")?);
        let (&[a, b], []) = (direct.numerator.as_slice(), direct.denominator.as_slice()) else { return None };
        let is_sum = |v: ValueId| one_plus(g, v, "tanh") == m.get("z");
        let dy = if is_sum(a) { b } else { a };
        ensure((is_sum(a) || is_sum(b)) && nearly(direct.number, 0.5))?;
        let outer = Product::of(g, m.get("p")?);
        let (&[a, b], []) = (outer.numerator.as_slice(), outer.denominator.as_slice()) else { return None };
        let x = if a == dy { b } else { a };
        ensure((a == dy || b == dy) && nearly(outer.number, 0.5) && is_tanh_argument(g, m.get("z")?, x))?;
        ensure(is_product(g, m.get("cubic")?, 3.0 * k * 0.044_715, &[x, x, e]) && g.ty(t) == g.ty(x))?;
        ensure(g.ty(dy) == g.ty(x) && g.ty(m.root) == g.ty(x))?;
        let dx = g.op1(OpKind::GeluGrad { tanh: true }, &[dy, x])?;
        ensure(g.replace(m.root, dx))
    },
};

pub(super) const MASK_SCALE: RaiseRule = RaiseRule {
    name: "mask-scale",
    doc: "dy times a boolean mask as a float is `mask_scale`, and so is its product with a constant, when \
          nothing else reads the unscaled one. Where the mask is false the result is 0, also for a dy that \
          is not finite.",
    patterns: &[
        "(mul ?dy (cast ?mask))",
        "(mul ?dy (mul (cast ?mask) #c))",
        "(mul (mask_scale=?y ?dy ?mask) #c)",
        "(div (mask_scale=?y ?dy ?mask) #c)",
    ],
    apply: |g, m| {
        let (dy, mask) = (m.get("dy")?, m.get("mask")?);
        ensure(g.ty(dy) == g.ty(m.root) && g.ty(dy).dtype == DType::F32 && g.ty(mask).dtype == DType::Bool)?;
        ensure(g.shape(mask) == g.shape(dy) && g.number(dy).is_none())?;
        let mut scale = m.get("c").map_or(Some(1.0), |c| g.number(c))?;
        if let Some(y) = m.get("y") {
            let OpKind::MaskScale { scale: inner } = *g.def(y)?.0 else { return None };
            ensure(used_once(g, y))?;
            if matches!(g.def(m.root)?.0, OpKind::Div {}) {
                scale = 1.0 / scale;
            }
            scale *= f64::from(inner.0);
        }
        let scale = F32(scale as f32);
        ensure(scale.0.is_finite())?;
        let dx = g.op1(OpKind::MaskScale { scale }, &[dy, mask])?;
        ensure(g.replace(m.root, dx))
    },
};
