//! Scalar arithmetic of each element type, and loops over many elements.

pub(crate) mod philox;
pub(crate) mod special;
pub(crate) mod wide;

use bytemuck::Pod;

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

/// Elements that can be summed, and the type of their sums.
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
