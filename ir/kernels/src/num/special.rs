//! Exponential functions and their relatives, free of branches so that loops over them vectorise.
//!
//! Everything is computed in double precision, to about ten digits, and rounded once: results are within one
//! unit in the last place, without the care that single precision would take.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LOG2_E};

/// The polynomial with the given coefficients, constant first, at `x`: written out, as a loop would hinder
/// vectors.
macro_rules! polynomial {
    ($x:expr; $c:expr) => { $c };
    ($x:expr; $c:expr, $($rest:expr),+) => { $c + $x * polynomial!($x; $($rest),+) };
}

/// Adding it rounds a small double to an integer, held in the lowest bits of the sum.
const ROUNDER: f64 = 6_755_399_441_055_744.0;
/// ln 2, rounded to 33 bits, and the rest: multiples of the first part by small integers are exact.
const LN2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
/// Beyond this, the exponential of a double rounds to zero or infinity as a single.
const LIMIT: f64 = 700.0;

/// `exp(x)`: Taylor's polynomial on `|x| <= ln 2 / 2`, scaled by a power of two.
#[inline(always)]
fn exp_double(x: f64) -> f64 {
    let x = x.clamp(-LIMIT, LIMIT);
    let shifted = x * LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = x - n * LN2[0] - n * LN2[1];
    let p = polynomial!(r; 1.0, 1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0,
        1.0 / 5_040.0, 1.0 / 40_320.0, 1.0 / 362_880.0, 1.0 / 3_628_800.0);
    p * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    exp_double(f64::from(x)) as f32
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + exp_double(-f64::from(x)))) as f32
}

/// `(exp(2 x) - 1) / (exp(2 x) + 1)`, or two terms of the series where that would cancel.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let x = f64::from(x);
    let e = exp_double(2.0 * x);
    let far = (e - 1.0) / (e + 1.0);
    (if x.abs() < 4e-3 { x - x * x * x / 3.0 } else { far }) as f32
}

/// `[erfc(z), exp(-z^2)]` for `z >= 0`, from `(1 + 2 z) exp(z^2) erfc(z)` as a polynomial in
/// `(z - 3) / (z + 3)` with relative error below 1e-10.
///
/// The form is that of Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in
/// 0 <= x < infinity", Math. Comp. 36 (1981); the coefficients are a Chebyshev interpolation with 64 nodes.
#[inline(always)]
fn erfc_double(z: f64) -> [f64; 2] {
    let t = (z - 3.0) / (z + 3.0);
    let p = polynomial!(t;
        1.253_008_058_268_024_7, -0.135_621_104_494_021_26, -0.047_562_294_126_531_325,
        0.129_645_096_969_015_52, -0.119_273_668_426_646_4, 0.068_308_706_771_667_84,
        -0.023_770_472_039_728_083, 0.002_526_068_867_800_134_5, 0.001_888_505_333_876_565,
        -0.000_771_373_676_022_693_2, -0.000_104_706_335_871_948_83, 0.000_113_246_239_831_684_78,
        4.280_483_022_090_398e-6, -1.105_723_002_797_409_8e-5, -1.196_096_815_054_115e-7);
    let bell = exp_double(-z * z);
    [bell * p / (1.0 + 2.0 * z), bell]
}

/// `1 - erfc(x)`, or the series where that would cancel.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let x = f64::from(x);
    let far = (1.0 - erfc_double(x.abs().min(LIMIT))[0]).copysign(x);
    let s = x * x;
    let p = polynomial!(s; 1.0, -1.0 / 3.0, 1.0 / 10.0, -1.0 / 42.0, 1.0 / 216.0, -1.0 / 1320.0);
    let near = FRAC_2_SQRT_PI * x * p;
    // The bound hides NaN from `far`.
    (if x.abs() < 0.25 || x.is_nan() { near } else { far }) as f32
}

/// The normal distribution's integral up to `x`, and its density at `x`.
#[inline(always)]
fn normal(x: f64) -> [f64; 2] {
    let [erfc, bell] = erfc_double((x * FRAC_1_SQRT_2).abs());
    let tail = 0.5 * erfc;
    [if x < 0.0 { tail } else { 1.0 - tail }, bell * (0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2)]
}

/// `x`, or a finite number that gives the same result where gelu vanishes: minus infinity times zero is NaN.
#[inline(always)]
fn not_below_limit(x: f32) -> f64 {
    let x = f64::from(x);
    if x < -LIMIT { -LIMIT } else { x }
}

/// `x * Phi(x)`.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let x = not_below_limit(x);
    (x * normal(x.min(LIMIT))[0]) as f32
}

/// Derivative of [`gelu`]: `Phi(x) + x * phi(x)`.
#[inline(always)]
pub(crate) fn gelu_slope(x: f32) -> f32 {
    let x = f64::from(x).clamp(-LIMIT, LIMIT);
    let [integral, density] = normal(x);
    (integral + x * density) as f32
}

/// sqrt(2 / pi).
const TANH_SCALE: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// Cubic coefficient of the tanh form of gelu (Hendrycks and Gimpel, "Gaussian Error Linear Units", section
/// 2).
const TANH_CUBIC: f64 = 0.044715;

/// `x / 2 * (1 + tanh(u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, written as `x * sigmoid(2 u)`.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    let x = not_below_limit(x);
    let u = TANH_SCALE * (x + TANH_CUBIC * x * x * x);
    (x / (1.0 + exp_double(-2.0 * u))) as f32
}

/// Derivative of [`gelu_tanh`]: `s + 2 x s (1 - s) u'` with `s = sigmoid(2 u)`.
#[inline(always)]
pub(crate) fn gelu_tanh_slope(x: f32) -> f32 {
    let x = f64::from(x).clamp(-LIMIT, LIMIT);
    let u = TANH_SCALE * (x + TANH_CUBIC * x * x * x);
    let e = exp_double(-2.0 * u);
    let s = 1.0 / (1.0 + e);
    let slope = TANH_SCALE * (1.0 + 3.0 * TANH_CUBIC * x * x);
    // s (1 - s) = s^2 e, without cancellation.
    (s + 2.0 * x * slope * (s * s * e)) as f32
}
