//! Comparing tensors as the standard's own backend test runner does, with narrower tolerances.

use memc_ir::DType;
use memc_ir::attr::Scalar;
use memc_kernels::interp::Tensor;

/// Largest difference of two floats, relative to the expected one. The standard's runner allows 1e-3.
const RELATIVE: f32 = 1e-4;
/// Added to it. The standard's runner has 1e-7, but compares results of the same library.
const ABSOLUTE: f32 = 1e-6;

/// In place of the relative one for 16-bit floats: a unit in the last place.
const HALF: f32 = 1.0 / 1024.0;
const BRAIN: f32 = 1.0 / 128.0;

/// Tests whose expected results are written with fewer digits than floats have; the runner's tolerance holds
/// for them.
const ROUNDED: &[&str] = &["test_averagepool_2d_ceil_last_window_starts_on_pad", "test_gridsample_bicubic"];

/// The relative tolerance for test `name`.
pub(crate) fn tolerance(name: &str) -> f32 {
    if ROUNDED.contains(&name) { 1e-3 } else { RELATIVE }
}

/// Difference of `have` from `want`, if any: the type, an integer or a boolean, or a float by more than
/// `relative` of the expected one. NaN equals NaN, and an infinity only itself.
pub(crate) fn difference(have: &Tensor, want: &Tensor, relative: f32) -> Option<String> {
    if have.ty != want.ty {
        return Some(format!("is {}, not {}", have.ty, want.ty));
    }
    if !have.ty.dtype.is_float() {
        let width = have.ty.dtype.bytes() as usize;
        let mut pairs = have.data.bytes().chunks(width).zip(want.data.bytes().chunks(width));
        let at = pairs.position(|(a, b)| a != b)?;
        return Some(format!("differs in element {at} of {}", have.ty));
    }
    let relative = match have.ty.dtype {
        DType::F16 => HALF,
        DType::BF16 => BRAIN,
        _ => relative,
    };
    let (have, want) = (floats(have), floats(want));
    let at = have.iter().zip(&want).position(|(&a, &b)| !close(a, b, relative))?;
    Some(format!("is {} in element {at}, not {}", have[at], want[at]))
}

/// The elements of a tensor of floats.
fn floats(t: &Tensor) -> Vec<f32> {
    let number = |bytes: &[u8]| match Scalar::from_bytes(bytes, t.ty.dtype) {
        Some(Scalar::Float(x)) => x.0,
        _ => f32::NAN,
    };
    t.data.bytes().chunks(t.ty.dtype.bytes() as usize).map(number).collect()
}

fn close(have: f32, want: f32, relative: f32) -> bool {
    have == want
        || (have.is_nan() && want.is_nan())
        || (want.is_finite() && (have - want).abs() <= ABSOLUTE + relative * want.abs())
}

/// Tolerances are relative, NaN and infinities equal themselves, and nothing else.
#[test]
fn floats_are_close_or_not() {
    let close = |a, b| close(a, b, 1e-4);
    assert!(close(1000.05, 1000.0) && !close(1000.2, 1000.0));
    assert!(close(f32::NAN, f32::NAN) && !close(f32::NAN, 0.0) && !close(0.0, f32::NAN));
    assert!(close(f32::INFINITY, f32::INFINITY) && !close(f32::MAX, f32::INFINITY));
    assert!(!close(f32::INFINITY, f32::NEG_INFINITY) && !close(f32::INFINITY, f32::MAX));
}

/// A tensor of another shape differs even when its elements are equal, and integers must be equal.
#[test]
fn types_and_integers_are_exact() {
    let row = Tensor::f32(&[1, 2], &[1.0, 2.0]).unwrap();
    let column = Tensor::f32(&[2, 1], &[1.0, 2.0]).unwrap();
    assert_eq!(difference(&row, &column, 1.0).unwrap(), "is f32[1,2], not f32[2,1]");
    let (a, b) = (Tensor::i64(&[2], &[1, 2]).unwrap(), Tensor::i64(&[2], &[1, 3]).unwrap());
    assert_eq!(difference(&a, &b, 1.0).unwrap(), "differs in element 1 of i64[2]");
    assert_eq!(difference(&a, &a, 0.0), None);
}
