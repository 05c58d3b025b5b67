//! Reductions over axes.

use rayon::prelude::*;

use memc_ir::DType;

use crate::error::KernelError;
use crate::num::{Num, Sum, wide};
use crate::parallel::{CHUNK, INLINE, for_rows};
use crate::view::Ctx;
use crate::walk::{StridedSpace, ext};

type Done = Result<(), KernelError>;

/// Result of a reduction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reducer {
    Sum,
    /// NaN of no elements, or zero for integers.
    Mean,
    /// The lowest value of no elements. NaN wins.
    Max,
}

/// Fold of elements to one: `finish(join(step(start, x0), ...))`.
#[derive(Clone, Copy)]
struct Rule<A, Step, Join, Finish> {
    start: A,
    step: Step,
    join: Join,
    finish: Finish,
}

/// Columns that are reduced together when the innermost axis stays.
const COLUMNS: usize = 64;
/// Most partial results of one long reduction.
const PARTS: usize = 64;

pub(crate) fn reduce(c: &Ctx, y: &mut [u8], axes: &[u64], kind: Reducer) -> Done {
    match c.types[0].dtype {
        DType::F32 => reduce_as::<f32>(c, y, axes, kind),
        DType::I32 => reduce_as::<i32>(c, y, axes, kind),
        DType::I64 => reduce_as::<i64>(c, y, axes, kind),
        other => Err(c.unsupported(other)),
    }
}

fn reduce_as<T: Sum>(c: &Ctx, y: &mut [u8], axes: &[u64], kind: Reducer) -> Done {
    let (x, y) = (c.slice::<T>(0)?, c.out::<T>(y)?);
    let plan = Plan::new(&c.types[0].shape, axes);
    let count = plan.reduced.len();
    let (start, step) = (T::Acc::default(), |a, x: T| T::plus(a, x.wide()));
    match kind {
        Reducer::Sum => plan.run(x, y, Rule { start, step, join: T::plus, finish: T::narrow }),
        Reducer::Mean => plan.run(x, y, Rule { start, step, join: T::plus, finish: |a| T::mean(a, count) }),
        Reducer::Max => {
            plan.run(x, y, Rule { start: T::LOWEST, step: Num::max, join: Num::max, finish: |a: T| a })
        }
    }
    Ok(())
}

pub(crate) fn sum_squares(c: &Ctx, y: &mut [u8]) -> Done {
    let (x, y) = (c.slice::<f32>(0)?, c.out::<f32>(y)?);
    let mut reduced = StridedSpace::new();
    reduced.push(x.len(), [1]);
    let plan = Plan { kept: StridedSpace::new(), reduced, rows: true };
    let step = |a: f64, x: f32| a + f64::from(x) * f64::from(x);
    plan.run(x, y, Rule { start: 0.0, step, join: |a, b| a + b, finish: |a| a as f32 });
    Ok(())
}

/// The result's index space and, for each result, the space of what is reduced to it.
struct Plan {
    kept: StridedSpace<1>,
    reduced: StridedSpace<1>,
    /// Whether the innermost axis is reduced.
    rows: bool,
}

impl Plan {
    fn new(shape: &[u64], axes: &[u64]) -> Self {
        let (mut kept, mut reduced) = (StridedSpace::new(), StridedSpace::new());
        let mut stride: usize = shape.iter().map(|&d| ext(d)).fold(1, usize::saturating_mul);
        let mut rows = true;
        for (a, &d) in shape.iter().enumerate() {
            stride /= ext(d).max(1);
            let is_reduced = axes.contains(&(a as u64));
            if is_reduced {
                reduced.push(ext(d), [stride as isize]);
            } else {
                kept.push(ext(d), [stride as isize]);
            }
            if d != 1 {
                rows = is_reduced;
            }
        }
        Plan { kept, reduced, rows }
    }

    fn run<T, A>(
        &self,
        x: &[T],
        y: &mut [T],
        rule: Rule<
            A,
            impl Fn(A, T) -> A + Copy + Sync,
            impl Fn(A, A) -> A + Copy + Sync,
            impl Fn(A) -> T + Copy + Sync,
        >,
    ) where
        T: Num,
        A: Copy + Send + Sync,
    {
        let count = self.reduced.len();
        if !self.rows && count > 0 {
            // At least COLUMNS results in a chunk, or a row's cache lines would be read by several chunks.
            for_rows(y, 1, count.min(CHUNK / COLUMNS), |start, y| self.columns(x, start, y, rule));
        } else if y.len() < PARTS / 4 && count >= INLINE {
            // Few long sums: cut each one.
            self.kept.runs(0, y.len(), |run, [offset]| {
                let [step] = self.kept.inner();
                for (i, y) in y[run].iter_mut().enumerate() {
                    let x = &x[(offset + i as isize * step) as usize..];
                    *y = (rule.finish)(self.long(x, count, rule.start, rule.step, rule.join));
                }
            });
        } else {
            for_rows(y, 1, count, |start, y| {
                let [step] = self.kept.inner();
                self.kept.runs(start, y.len(), |run, [offset]| {
                    for (i, y) in y[run].iter_mut().enumerate() {
                        let at = (offset + i as isize * step) as usize;
                        let x = x.get(at..).unwrap_or_default();
                        *y = (rule.finish)(self.part(x, 0, count, rule.start, rule.step, rule.join));
                    }
                });
            });
        }
    }

    /// Reduces the points `start..start + len` of the elements that belong to one result; they begin at `x`.
    fn part<T: Copy, A: Copy>(
        &self,
        x: &[T],
        start: usize,
        len: usize,
        zero: A,
        step: impl Fn(A, T) -> A + Copy,
        join: impl Fn(A, A) -> A + Copy,
    ) -> A {
        let [stride] = self.reduced.inner();
        let mut acc = zero;
        self.reduced.runs(start, len, |run, [offset]| {
            let x = &x[offset as usize..];
            if stride == 1 {
                acc = join(acc, wide::fold(&x[..run.len()], zero, step, join));
            } else {
                acc = x.iter().step_by(stride as usize).take(run.len()).fold(acc, |a, &x| step(a, x));
            }
        });
        acc
    }

    /// [`Plan::part`] of everything, in at most [`PARTS`] parts side by side.
    fn long<T: Copy + Sync, A: Copy + Send + Sync>(
        &self,
        x: &[T],
        count: usize,
        zero: A,
        step: impl Fn(A, T) -> A + Copy + Sync,
        join: impl Fn(A, A) -> A + Copy + Sync,
    ) -> A {
        let size = count.div_ceil(PARTS).max(CHUNK);
        let mut parts = [zero; PARTS];
        let used = &mut parts[..count.div_ceil(size)];
        used.par_iter_mut().enumerate().for_each(|(i, part)| {
            *part = self.part(x, i * size, size.min(count - i * size), zero, step, join);
        });
        used.iter().fold(zero, |a, &b| join(a, b))
    }

    /// Reduces blocks of adjacent results together, row after row.
    fn columns<T: Num, A: Copy>(
        &self,
        x: &[T],
        start: usize,
        y: &mut [T],
        rule: Rule<A, impl Fn(A, T) -> A + Copy, impl Fn(A, A) -> A + Copy, impl Fn(A) -> T + Copy>,
    ) {
        let [stride] = self.reduced.inner();
        self.kept.runs(start, y.len(), |run, [offset]| {
            for (b, y) in y[run].chunks_mut(COLUMNS).enumerate() {
                let x = &x[offset as usize + b * COLUMNS..];
                let mut acc = [rule.start; COLUMNS];
                let acc = &mut acc[..y.len()];
                self.reduced.runs(0, self.reduced.len(), |rows, [first]| {
                    for r in 0..rows.len() {
                        let row = first as usize + r * stride as usize;
                        for (a, &x) in acc.iter_mut().zip(&x[row..row + y.len()]) {
                            *a = (rule.step)(*a, x);
                        }
                    }
                });
                for (y, &a) in y.iter_mut().zip(&*acc) {
                    *y = (rule.finish)(a);
                }
            }
        });
    }
}
