//! Products and scalars: what several rules ask about arithmetic, however it is bracketed.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, OpKind, TensorType, ValueId};

use super::edit::Editor;

/// Most factors that a product is taken apart into.
const MAX_FACTORS: usize = 16;

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
        product.add(g, v, false);
        product
    }

    fn add(&mut self, g: &Editor<'_>, v: ValueId, below: bool) {
        if let Some(c) = g.number(v) {
            self.number = if below { self.number / c } else { self.number * c };
            return;
        }
        let room = self.numerator.len() + self.denominator.len() < MAX_FACTORS;
        match g.def(v).filter(|_| room && g.ty(v).dtype.is_float()) {
            Some((OpKind::Mul {}, &[a, b])) => {
                self.add(g, a, below);
                self.add(g, b, below);
            }
            Some((OpKind::Div {}, &[a, b])) => {
                self.add(g, a, below);
                self.add(g, b, !below);
            }
            Some((OpKind::Neg {}, &[a])) => {
                self.number = -self.number;
                self.add(g, a, below);
            }
            Some((OpKind::Reciprocal {}, &[a])) => self.add(g, a, !below),
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
