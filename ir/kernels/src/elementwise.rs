//! Element-wise ops: unary, broadcasting binary, select, cast.
//!
//! Every loop runs over contiguous result elements; an operand of the loop is a contiguous run, one repeated
//! element, or the result itself when the two share bytes.

use bytemuck::Pod;
use memc_ir::DType;

use crate::error::KernelError;
use crate::num::{Num, wide};
use crate::parallel::for_chunks;
use crate::view::{Ctx, Src};

type Done = Result<(), KernelError>;

/// One operand of a loop over consecutive result elements.
#[derive(Clone, Copy)]
pub(crate) enum Lane<'a, T> {
    /// As many elements as the loop has.
    Run(&'a [T]),
    /// One element for the whole loop.
    One(T),
    /// The result's own elements, read before they are written.
    Same,
}

impl<'a, T: Copy> Src<'a, T> {
    /// The operand of a loop of `len` elements from `offset` on, advancing by `step` (0 or 1).
    #[inline(always)]
    pub(crate) fn lane(self, offset: isize, len: usize, step: isize) -> Lane<'a, T> {
        let offset = offset as usize;
        match self {
            Src::Same => Lane::Same,
            Src::Slice(s) if step == 0 => Lane::One(s[offset]),
            Src::Slice(s) => Lane::Run(&s[offset..offset + len]),
        }
    }
}

/// `out[i] = f(i, a[i], b[i])`.
#[inline(always)]
pub(crate) fn apply<T: Copy>(out: &mut [T], a: Lane<T>, b: Lane<T>, f: impl Fn(usize, T, T) -> T) {
    use Lane::{One, Run, Same};
    let each = out.iter_mut().enumerate();
    match (a, b) {
        (Run(a), Run(b)) => each.zip(a.iter().zip(b)).for_each(|((i, o), (&a, &b))| *o = f(i, a, b)),
        (Run(a), One(b)) => each.zip(a).for_each(|((i, o), &a)| *o = f(i, a, b)),
        (Run(a), Same) => each.zip(a).for_each(|((i, o), &a)| *o = f(i, a, *o)),
        (One(a), Run(b)) => each.zip(b).for_each(|((i, o), &b)| *o = f(i, a, b)),
        (One(a), One(b)) => each.for_each(|(i, o)| *o = f(i, a, b)),
        (One(a), Same) => each.for_each(|(i, o)| *o = f(i, a, *o)),
        (Same, Run(b)) => each.zip(b).for_each(|((i, o), &b)| *o = f(i, *o, b)),
        (Same, One(b)) => each.for_each(|(i, o)| *o = f(i, *o, b)),
        (Same, Same) => each.for_each(|(i, o)| *o = f(i, *o, *o)),
    }
}

/// `y = f(x)`.
pub(crate) fn unary<T: Pod + Send + Sync>(c: &Ctx, y: &mut [u8], f: impl Fn(T) -> T + Copy + Sync) -> Done {
    let y = c.out::<T>(y)?;
    match c.src::<T>(0)? {
        Src::Slice(x) => for_chunks(y, |at, y| wide::map(&x[at..], y, f)),
        Src::Same => for_chunks(y, |_, y| wide::map_in_place(y, f)),
    }
    Ok(())
}

/// `y = f(a, b)`, broadcasting; the result has the operands' element type.
pub(crate) fn binary<T: Pod + Send + Sync>(c: &Ctx, y: &mut [u8], f: impl Fn(T, T) -> T + Sync) -> Done {
    let (a, b) = (c.src::<T>(0)?, c.src::<T>(1)?);
    let walk = c.walk([0, 1]);
    let [sa, sb] = walk.inner();
    for_chunks(c.out::<T>(y)?, |start, y| {
        walk.runs(start, y.len(), |run, [oa, ob]| {
            let n = run.len();
            apply(&mut y[run], a.lane(oa, n, sa), b.lane(ob, n, sb), |_, a, b| f(a, b));
        });
    });
    Ok(())
}

/// `dx = dy * slope(x)`, for a slope that takes more time than the memory.
pub(crate) fn chain(c: &Ctx, dx: &mut [u8], slope: impl Fn(f32) -> f32 + Copy + Sync) -> Done {
    const BLOCK: usize = 256;
    let (dy, x) = (c.src::<f32>(0)?, c.src::<f32>(1)?);
    for_chunks(c.out::<f32>(dx)?, |start, dx| {
        for (b, dx) in dx.chunks_mut(BLOCK).enumerate() {
            let (at, mut slopes) = (start + b * BLOCK, [0.0; BLOCK]);
            let slopes = &mut slopes[..dx.len()];
            wide::map(x.view_at(at, dx), slopes, slope);
            apply(dx, dy.lane(at as isize, slopes.len(), 1), Lane::Run(slopes), |_, dy, s| dy * s);
        }
    });
    Ok(())
}

/// `y = f(a, b)` as a boolean, broadcasting.
pub(crate) fn compare<T: Pod + Send + Sync>(c: &Ctx, y: &mut [u8], f: impl Fn(T, T) -> bool + Sync) -> Done {
    let (a, b) = (c.slice::<T>(0)?, c.slice::<T>(1)?);
    let walk = c.walk([0, 1]);
    let [sa, sb] = walk.inner();
    for_chunks(y, |start, y| {
        walk.runs(start, y.len(), |run, [oa, ob]| {
            let (n, oa, ob) = (run.len(), oa as usize, ob as usize);
            let y = &mut y[run];
            match (sa, sb) {
                (0, 0) => y.fill(u8::from(f(a[oa], b[ob]))),
                (0, _) => y.iter_mut().zip(&b[ob..ob + n]).for_each(|(y, &b)| *y = u8::from(f(a[oa], b))),
                (_, 0) => y.iter_mut().zip(&a[oa..oa + n]).for_each(|(y, &a)| *y = u8::from(f(a, b[ob]))),
                _ => {
                    let ab = a[oa..oa + n].iter().zip(&b[ob..ob + n]);
                    y.iter_mut().zip(ab).for_each(|(y, (&a, &b))| *y = u8::from(f(a, b)));
                }
            }
        });
    });
    Ok(())
}

/// A comparison.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    Equal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

fn compare_as<T: Pod + PartialOrd + Send + Sync>(c: &Ctx, y: &mut [u8], order: Order) -> Done {
    match order {
        Order::Equal => compare::<T>(c, y, |a, b| a == b),
        Order::Less => compare::<T>(c, y, |a, b| a < b),
        Order::LessEqual => compare::<T>(c, y, |a, b| a <= b),
        Order::Greater => compare::<T>(c, y, |a, b| a > b),
        Order::GreaterEqual => compare::<T>(c, y, |a, b| a >= b),
    }
}

pub(crate) fn comparison(c: &Ctx, y: &mut [u8], order: Order) -> Done {
    match c.types[0].dtype {
        DType::F32 => compare_as::<f32>(c, y, order),
        DType::I32 => compare_as::<i32>(c, y, order),
        DType::I64 => compare_as::<i64>(c, y, order),
        DType::Bool => compare_as::<u8>(c, y, order),
        narrow => Err(c.unsupported(narrow)),
    }
}

/// An arithmetic op on one or two operands.
#[derive(Clone, Copy)]
pub(crate) enum Arith {
    Neg,
    Abs,
    Sign,
    Relu,
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Min,
    Max,
}

fn arith_as<T: Num>(c: &Ctx, y: &mut [u8], op: Arith) -> Done {
    match op {
        Arith::Neg => unary::<T>(c, y, T::neg),
        Arith::Abs => unary::<T>(c, y, T::abs),
        Arith::Sign => unary::<T>(c, y, T::sign),
        Arith::Relu => unary::<T>(c, y, T::relu),
        Arith::Add => binary::<T>(c, y, T::add),
        Arith::Sub => binary::<T>(c, y, T::sub),
        Arith::Mul => binary::<T>(c, y, T::mul),
        Arith::Div => binary::<T>(c, y, T::div),
        Arith::Pow => binary::<T>(c, y, T::pow),
        Arith::Min => binary::<T>(c, y, T::min),
        Arith::Max => binary::<T>(c, y, T::max),
    }
}

pub(crate) fn arith(c: &Ctx, y: &mut [u8], op: Arith) -> Done {
    match c.types[0].dtype {
        DType::F32 => arith_as::<f32>(c, y, op),
        DType::I32 => arith_as::<i32>(c, y, op),
        DType::I64 => arith_as::<i64>(c, y, op),
        other => Err(c.unsupported(other)),
    }
}

/// `f` of two booleans, broadcasting.
pub(crate) fn logic(c: &Ctx, y: &mut [u8], f: impl Fn(bool, bool) -> bool + Sync) -> Done {
    binary::<u8>(c, y, |a, b| u8::from(f(a != 0, b != 0)))
}

fn select_as<T: Pod + Send + Sync>(c: &Ctx, y: &mut [u8]) -> Done {
    let (cond, a, b) = (c.slice::<u8>(0)?, c.src::<T>(1)?, c.src::<T>(2)?);
    let walk = c.walk([0, 1, 2]);
    let [sc, sa, sb] = walk.inner();
    for_chunks(c.out::<T>(y)?, |start, y| {
        walk.runs(start, y.len(), |run, [oc, oa, ob]| {
            let n = run.len();
            let (y, a, b, oc) = (&mut y[run], a.lane(oa, n, sa), b.lane(ob, n, sb), oc as usize);
            if sc == 0 {
                let first = cond[oc] != 0;
                apply(y, a, b, |_, a, b| if first { a } else { b });
            } else {
                let cond = &cond[oc..oc + n];
                apply(y, a, b, |i, a, b| if cond[i] != 0 { a } else { b });
            }
        });
    });
    Ok(())
}

pub(crate) fn select(c: &Ctx, y: &mut [u8]) -> Done {
    match c.types[1].dtype.bytes() {
        1 => select_as::<u8>(c, y),
        2 => select_as::<u16>(c, y),
        4 => select_as::<u32>(c, y),
        _ => select_as::<u64>(c, y),
    }
}
