//! Loops compiled for each generation of vector instructions, and run with the widest that the processor has.
//!
//! Results do not depend on the choice: no multiply and add are fused, and sums have a fixed number of lanes.
//!
//! Functions are passed by value and should be small or `inline(always)`. A function that is not inlined is
//! compiled for the plainest processor.

use pulp::{Arch, Simd, WithSimd};

struct Map<'a, T, U, F> {
    x: &'a [T],
    y: &'a mut [U],
    f: F,
}

impl<T: Copy, U, F: Fn(T) -> U> WithSimd for Map<'_, T, U, F> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (y, &x) in self.y.iter_mut().zip(self.x) {
            *y = (self.f)(x);
        }
    }
}

/// `y[i] = f(x[i])`.
pub(crate) fn map<T: Copy, U>(x: &[T], y: &mut [U], f: impl Fn(T) -> U) {
    Arch::new().dispatch(Map { x, y, f });
}

struct MapInPlace<'a, T, F> {
    y: &'a mut [T],
    f: F,
}

impl<T: Copy, F: Fn(T) -> T> WithSimd for MapInPlace<'_, T, F> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for y in self.y {
            *y = (self.f)(*y);
        }
    }
}

/// `y[i] = f(y[i])`.
pub(crate) fn map_in_place<T: Copy>(y: &mut [T], f: impl Fn(T) -> T) {
    Arch::new().dispatch(MapInPlace { y, f });
}

/// Interleaved accumulators of a sum.
pub(crate) const LANES: usize = 16;

struct Fold<'a, T, A, Step, Join> {
    xs: &'a [T],
    start: A,
    step: Step,
    join: Join,
}

impl<T: Copy, A: Copy, Step: Fn(A, T) -> A, Join: Fn(A, A) -> A> WithSimd for Fold<'_, T, A, Step, Join> {
    type Output = A;
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> A {
        let mut acc = [self.start; LANES];
        let (blocks, rest) = self.xs.as_chunks::<LANES>();
        for block in blocks {
            for l in 0..LANES {
                acc[l] = (self.step)(acc[l], block[l]);
            }
        }
        for (a, &x) in acc.iter_mut().zip(rest) {
            *a = (self.step)(*a, x);
        }
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                acc[i] = (self.join)(acc[i], acc[i + width]);
            }
            width /= 2;
        }
        acc[0]
    }
}

/// Folds a slice with interleaved accumulators, combined in a fixed order.
pub(crate) fn fold<T: Copy, A: Copy>(
    xs: &[T],
    start: A,
    step: impl Fn(A, T) -> A,
    join: impl Fn(A, A) -> A,
) -> A {
    Arch::new().dispatch(Fold { xs, start, step, join })
}

/// Sum of `f(x)` in double precision.
pub(crate) fn sum(xs: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    fold(xs, 0.0, |a, x| a + f(f64::from(x)), |a, b| a + b)
}

struct Sums<'a, F> {
    xs: [&'a [f32]; 3],
    f: F,
}

impl<F: Fn(f64, f64, f64) -> [f64; 2]> WithSimd for Sums<'_, F> {
    type Output = [f64; 2];
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [f64; 2] {
        let [(xs, rest_x), (ys, rest_y), (zs, rest_z)] = self.xs.map(|x| x.as_chunks::<LANES>());
        let mut acc = [[0.0f64; LANES]; 2];
        let mut add = |l: usize, x: f32, y: f32, z: f32| {
            let [u, v] = (self.f)(f64::from(x), f64::from(y), f64::from(z));
            acc[0][l] += u;
            acc[1][l] += v;
        };
        for ((x, y), z) in xs.iter().zip(ys).zip(zs) {
            for l in 0..LANES {
                add(l, x[l], y[l], z[l]);
            }
        }
        for (l, ((&x, &y), &z)) in rest_x.iter().zip(rest_y).zip(rest_z).enumerate() {
            add(l, x, y, z);
        }
        acc.map(|a| a.iter().sum())
    }
}

/// Two sums of `f(x, y, z)` over three slices of one length, in double precision.
pub(crate) fn sums3(x: &[f32], y: &[f32], z: &[f32], f: impl Fn(f64, f64, f64) -> [f64; 2]) -> [f64; 2] {
    Arch::new().dispatch(Sums { xs: [x, y, z], f })
}

/// Two sums of `f(x, y)` over two slices of one length, in double precision.
pub(crate) fn sums(x: &[f32], y: &[f32], f: impl Fn(f64, f64) -> [f64; 2]) -> [f64; 2] {
    sums3(x, y, y, |x, y, _| f(x, y))
}
