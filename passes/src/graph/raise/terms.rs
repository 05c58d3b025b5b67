//! Products and scalars: queries about arithmetic, however it is bracketed.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, OpKind, TensorType, ValueId};

use super::edit::Editor;

/// Most factors that a product is taken apart into.
const MAX_FACTORS: usize = 16;
/// Most ops that are taken apart for one product.
const MAX_OPS: usize = 64;

/// A value as `number * numerator... / denominator...`.
#[derive(Debug)]
pub(super) struct Product {
    /// Product of the constant factors.
    pub(super) number: f64,
    /// Factors that are no constants.
    pub(super) numerator: Vec<ValueId>,
    /// Divisors that are no constants.
    pub(super) denominator: Vec<ValueId>,
}

impl Product {
    /// Takes apart products, quotients, negations and reciprocals of floats.
    pub(super) fn of(g: &Editor<'_>, v: ValueId) -> Product {
        let mut product = Product { number: 1.0, numerator: Vec::new(), denominator: Vec::new() };
        product.add(g, v, false, &mut 0);
        product
    }

    fn add(&mut self, g: &Editor<'_>, v: ValueId, below: bool, ops: &mut usize) {
        if let Some(c) = g.number(v) {
            self.number = if below { self.number / c } else { self.number * c };
            return;
        }
        let room = self.numerator.len() + self.denominator.len() < MAX_FACTORS && *ops < MAX_OPS;
        *ops += 1;
        match g.def(v).filter(|_| room && g.ty(v).dtype.is_float()) {
            Some((OpKind::Mul {}, &[a, b])) => {
                self.add(g, a, below, ops);
                self.add(g, b, below, ops);
            }
            Some((OpKind::Div {}, &[a, b])) => {
                self.add(g, a, below, ops);
                self.add(g, b, !below, ops);
            }
            Some((OpKind::Neg {}, &[a])) => {
                self.number = -self.number;
                self.add(g, a, below, ops);
            }
            Some((OpKind::Reciprocal {}, &[a])) => self.add(g, a, !below, ops),
            _ if below => self.denominator.push(v),
            _ => self.numerator.push(v),
        }
    }
}

/// An f32 constant without axes.
pub(super) fn scalar(g: &mut Editor<'_>, value: f64) -> Option<ValueId> {
    g.constant(TensorType::scalar(DType::F32), Scalar::Float(F32(value as f32)))
}

/// The real number that most likely was rounded to this f32: the shortest decimal that rounds to it.
pub(super) fn shortest(value: f64) -> f64 {
    (value as f32).to_string().parse().unwrap_or(value)
}

/// Whether two constants add up to one, up to the rounding of either to f32.
pub(super) fn complementary(a: f64, b: f64) -> bool {
    (a + b - 1.0).abs() <= f64::from(f32::EPSILON) / 2.0
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn a_long_product_is_taken_apart_in_parts() {
        let mut text = "module @m graph\n%v0 = input : f32[4]\n%c = const splat 2.0 : f32[]\n".to_string();
        (1..=1000).for_each(|i| writeln!(text, "%v{i} = mul %v{}, %c : f32[4]", i - 1).unwrap());
        text.push_str("yield output %v1000 as \"y\"\n");
        let mut m = memc_ir::parse(&text).unwrap();
        let y = m.outputs[0].value;
        let g = Editor::new(&mut m, false).unwrap();
        let p = Product::of(&g, y);
        let &[rest] = p.numerator.as_slice() else { panic!("{p:?}") };
        assert_eq!(p.number, 2f64.powi(MAX_OPS as i32));
        assert_eq!(g.module().values[rest].name, format!("v{}", 1000 - MAX_OPS));
    }
}
