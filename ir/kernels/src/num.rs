//! What one element of each arithmetic op is.

use bytemuck::Pod;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// Arithmetic of the numeric element types. Integers wrap; division by zero gives zero.
pub(crate) trait Num: Pod + PartialOrd + Send + Sync {
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn relu(self) -> Self;
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    fn pow(self, b: Self) -> Self;
    fn min(self, b: Self) -> Self;
    fn max(self, b: Self) -> Self;
}

impl Num for f32 {
    #[inline(always)]
    fn neg(self) -> f32 {
        -self
    }
    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }
    #[inline(always)]
    fn sign(self) -> f32 {
        if self > 0.0 {
            1.0
        } else if self < 0.0 {
            -1.0
        } else {
            // Zero keeps its sign and NaN stays NaN.
            self
        }
    }
    #[inline(always)]
    fn relu(self) -> f32 {
        if self < 0.0 { 0.0 } else { self }
    }
    #[inline(always)]
    fn add(self, b: f32) -> f32 {
        self + b
    }
    #[inline(always)]
    fn sub(self, b: f32) -> f32 {
        self - b
    }
    #[inline(always)]
    fn mul(self, b: f32) -> f32 {
        self * b
    }
    #[inline(always)]
    fn div(self, b: f32) -> f32 {
        self / b
    }
    #[inline(always)]
    fn pow(self, b: f32) -> f32 {
        if b == 2.0 { self * self } else { libm::powf(self, b) }
    }
    #[inline(always)]
    fn min(self, b: f32) -> f32 {
        if self < b || self.is_nan() { self } else { b }
    }
    #[inline(always)]
    fn max(self, b: f32) -> f32 {
        if self > b || self.is_nan() { self } else { b }
    }
}

macro_rules! integer {
    ($T:ident) => {
        impl Num for $T {
            #[inline(always)]
            fn neg(self) -> $T {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn abs(self) -> $T {
                self.wrapping_abs()
            }
            #[inline(always)]
            fn sign(self) -> $T {
                self.signum()
            }
            #[inline(always)]
            fn relu(self) -> $T {
                Ord::max(self, 0)
            }
            #[inline(always)]
            fn add(self, b: $T) -> $T {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn sub(self, b: $T) -> $T {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn mul(self, b: $T) -> $T {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn div(self, b: $T) -> $T {
                if b == 0 { 0 } else { self.wrapping_div(b) }
            }
            /// A negative exponent gives the real power truncated, as division does.
            fn pow(self, b: $T) -> $T {
                let (mut base, mut rest, mut result) = (self, b, 1);
                if b < 0 {
                    return match self {
                        1 => 1,
                        -1 if b % 2 == 0 => 1,
                        -1 => -1,
                        _ => 0,
                    };
                }
                while rest > 0 {
                    if rest & 1 == 1 {
                        result = $T::wrapping_mul(result, base);
                    }
                    base = base.wrapping_mul(base);
                    rest >>= 1;
                }
                result
            }
            #[inline(always)]
            fn min(self, b: $T) -> $T {
                Ord::min(self, b)
            }
            #[inline(always)]
            fn max(self, b: $T) -> $T {
                Ord::max(self, b)
            }
        }
    };
}
integer!(i32);
integer!(i64);

/// `1 / (1 + exp(-x))`, without overflow or cancellation on either side.
pub(crate) fn sigmoid(x: f32) -> f32 {
    let z = libm::expf(-x.abs());
    (if x < 0.0 { z } else { 1.0 }) / (1.0 + z)
}

/// sqrt(2 / pi).
const TANH_SCALE: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// Cubic coefficient of the tanh form of gelu (Hendrycks and Gimpel, "Gaussian Error Linear Units", section 2).
const TANH_CUBIC: f64 = 0.044715;

/// `x * Phi(x)`. In double precision, because the tail of the normal distribution amplifies rounding of `x`.
pub(crate) fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * libm::erfc(-x * FRAC_1_SQRT_2)) as f32
}

/// Derivative of [`gelu`]: `Phi(x) + x * phi(x)`.
pub(crate) fn gelu_slope(x: f32) -> f32 {
    let x = f64::from(x);
    let density = libm::exp(-0.5 * x * x) * (0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
    let tail = if density == 0.0 { 0.0 } else { x * density };
    (0.5 * libm::erfc(-x * FRAC_1_SQRT_2) + tail) as f32
}

/// `x / 2 * (1 + tanh(u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, written as `x * sigmoid(2 u)`.
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    let x = f64::from(x);
    let u = TANH_SCALE * (x + TANH_CUBIC * x * x * x);
    let z = libm::exp(-2.0 * u.abs());
    (x * (if u < 0.0 { z } else { 1.0 }) / (1.0 + z)) as f32
}

/// Derivative of [`gelu_tanh`]: `s + 2 x s (1 - s) u'` with `s = sigmoid(2 u)`.
pub(crate) fn gelu_tanh_slope(x: f32) -> f32 {
    let x = f64::from(x);
    let u = TANH_SCALE * (x + TANH_CUBIC * x * x * x);
    let z = libm::exp(-2.0 * u.abs());
    let s = (if u < 0.0 { z } else { 1.0 }) / (1.0 + z);
    // s (1 - s) without cancellation.
    let bell = z / ((1.0 + z) * (1.0 + z));
    let slope = TANH_SCALE * (1.0 + 3.0 * TANH_CUBIC * x * x);
    let tail = if bell == 0.0 { 0.0 } else { 2.0 * x * bell * slope };
    (s + tail) as f32
}

/// Elements that sums are made of, and what they are summed in.
///
/// Floats are summed in double precision, so that a long sum is as accurate as a short one.
pub(crate) trait Sum: Num {
    type Acc: Copy + Send + Sync + Default;
    fn wide(self) -> Self::Acc;
    fn plus(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn narrow(a: Self::Acc) -> Self;
    /// `a / count`; integers truncate, and zero of them give zero.
    fn mean(a: Self::Acc, count: usize) -> Self;
    /// Smallest value.
    const LOWEST: Self;
}

impl Sum for f32 {
    type Acc = f64;
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn plus(a: f64, b: f64) -> f64 {
        a + b
    }
    fn narrow(a: f64) -> f32 {
        a as f32
    }
    fn mean(a: f64, count: usize) -> f32 {
        (a / count as f64) as f32
    }
    const LOWEST: f32 = f32::NEG_INFINITY;
}

macro_rules! integer_sum {
    ($T:ident) => {
        impl Sum for $T {
            type Acc = i64;
            #[inline(always)]
            fn wide(self) -> i64 {
                i64::from(self)
            }
            #[inline(always)]
            fn plus(a: i64, b: i64) -> i64 {
                a.wrapping_add(b)
            }
            fn narrow(a: i64) -> $T {
                a as $T
            }
            fn mean(a: i64, count: usize) -> $T {
                i64::try_from(count).ok().filter(|&n| n > 0).map_or(0, |n| (a / n) as $T)
            }
            const LOWEST: $T = $T::MIN;
        }
    };
}
integer_sum!(i32);
integer_sum!(i64);

const LANES: usize = 8;

/// Folds a slice with eight interleaved accumulators, combined in order.
#[inline(always)]
pub(crate) fn fold<T: Copy, A: Copy>(
    xs: &[T],
    start: A,
    step: impl Fn(A, T) -> A,
    join: impl Fn(A, A) -> A,
) -> A {
    let mut acc = [start; LANES];
    let mut blocks = xs.chunks_exact(LANES);
    for block in &mut blocks {
        for (a, &x) in acc.iter_mut().zip(block) {
            *a = step(*a, x);
        }
    }
    for (a, &x) in acc.iter_mut().zip(blocks.remainder()) {
        *a = step(*a, x);
    }
    let [a, b, c, d, e, f, g, h] = acc;
    join(join(join(a, b), join(c, d)), join(join(e, f), join(g, h)))
}

/// Sum of `f(x)` in double precision.
#[inline(always)]
pub(crate) fn sum(xs: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    fold(xs, 0.0, |a, x| a + f(f64::from(x)), |a, b| a + b)
}

/// Sums of `f(x, y)`, two at a time, in double precision.
#[inline(always)]
pub(crate) fn sums(xs: &[f32], ys: &[f32], f: impl Fn(f64, f64) -> [f64; 2]) -> [f64; 2] {
    const LANES: usize = 4;
    let mut acc = [[0.0f64; LANES]; 2];
    let (mut bx, mut by) = (xs.chunks_exact(LANES), ys.chunks_exact(LANES));
    let mut add = |x: &[f32], y: &[f32]| {
        for (l, (&x, &y)) in x.iter().zip(y).enumerate() {
            let [u, v] = f(f64::from(x), f64::from(y));
            acc[0][l] += u;
            acc[1][l] += v;
        }
    };
    for (x, y) in (&mut bx).zip(&mut by) {
        add(x, y);
    }
    add(bx.remainder(), by.remainder());
    acc.map(|[a, b, c, d]| (a + b) + (c + d))
}
