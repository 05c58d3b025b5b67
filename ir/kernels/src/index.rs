//! Gather and scatter. Every index value is checked before the first element moves.

use std::cmp::Ordering;

use bytemuck::Pod;
use memc_ir::attr::ScatterMode;
use memc_ir::{DType, MAX_RANK};
use rayon::prelude::*;

use crate::error::KernelError;
use crate::num::Num;
use crate::parallel::{CHUNK, INLINE, for_chunks, for_rows};
use crate::shape::{Bits, by_width, copy_to_result};
use crate::view::{Ctx, around, axis_of};
use crate::walk::{StridedSpace, ext, product};

type Done = Result<(), KernelError>;

/// Element types of index operands.
pub(crate) trait Index: Pod + Send + Sync {
    fn value(self) -> i64;
}
impl Index for i32 {
    fn value(self) -> i64 {
        i64::from(self)
    }
}
impl Index for i64 {
    fn value(self) -> i64 {
        self
    }
}

/// Calls a generic function with the type of index operand `i`.
macro_rules! by_index {
    ($c:expr, $i:expr, $I:ident => $call:expr) => {
        if $c.types[$i].dtype == DType::I32 {
            type $I = i32;
            $call
        } else {
            type $I = i64;
            $call
        }
    };
}
pub(crate) use by_index;

/// The position that a checked index names; negative ones count from the end.
#[inline(always)]
fn resolve(value: i64, extent: usize) -> usize {
    (if value < 0 { value.wrapping_add(extent as i64) } else { value }) as usize
}

/// The first position whose value is not `legal`, if any.
pub(crate) fn first_illegal<I: Index>(
    values: &[I],
    legal: impl Fn(usize, i64) -> bool + Sync,
) -> Option<usize> {
    let scan = |(chunk, values): (usize, &[I])| {
        let bad = values.iter().enumerate().position(|(i, v)| !legal(chunk * CHUNK + i, v.value()));
        bad.map(|i| chunk * CHUNK + i)
    };
    if values.len() < INLINE {
        values.chunks(CHUNK).enumerate().find_map(scan)
    } else {
        values.par_chunks(CHUNK).enumerate().find_map_first(scan)
    }
}

/// Requires every value of index operand `operand` to name a position below `extent(flat position)`.
fn check<I: Index>(
    c: &Ctx,
    operand: usize,
    values: &[I],
    extent: impl Fn(usize) -> usize + Sync,
) -> Result<(), KernelError> {
    let legal = |at: usize, v: i64| {
        let extent = extent(at) as i64;
        (-extent..extent).contains(&v)
    };
    let Some(position) = first_illegal(values, legal) else { return Ok(()) };
    let high = extent(position) as i64;
    Err(KernelError::Index {
        op: c.op.mnemonic(),
        operand: c.op.def().operands[operand],
        position,
        value: values[position].value(),
        low: -high,
        high,
    })
}

fn gather_as<T: Bits, I: Index>(c: &Ctx, y: &mut [u8], axis: usize) -> Done {
    let (data, indices) = (c.slice::<T>(0)?, c.slice::<I>(1)?);
    let (_, extent, inner) = around(&c.types[0].shape, axis);
    check(c, 1, indices, |_| extent)?;
    let n = indices.len();
    for_rows(c.out::<T>(y)?, inner, inner, |first, rows| {
        for (r, y) in rows.chunks_exact_mut(inner).enumerate() {
            let (outer, j) = ((first + r) / n, (first + r) % n);
            let from = (outer * extent + resolve(indices[j].value(), extent)) * inner;
            y.copy_from_slice(&data[from..from + inner]);
        }
    });
    Ok(())
}

pub(crate) fn gather(c: &Ctx, y: &mut [u8], axis: i64) -> Done {
    let axis = axis_of(c, axis, c.types[0].rank())?;
    fn typed<T: Bits>(c: &Ctx, y: &mut [u8], axis: usize) -> Done {
        by_index!(c, 1, I => gather_as::<T, I>(c, y, axis))
    }
    by_width!(c.types[0].dtype, typed(c, y, axis))
}

/// Parts of the gathered axis that gather_grad fills side by side when nothing is outside that axis.
const GRAD_PARTS: usize = 16;

fn gather_grad_as<I: Index>(c: &Ctx, y: &mut [u8], axis: usize) -> Done {
    let (indices, dy) = (c.slice::<I>(0)?, c.slice::<f32>(1)?);
    let (outer, extent, inner) = around(&c.results[0].shape, axis);
    check(c, 0, indices, |_| extent)?;
    let n = indices.len();
    let y = c.out::<f32>(y)?;
    // Each part scans all indices for those it holds, so every element sums its terms in index order.
    let part = if outer == 1 { extent.div_ceil(GRAD_PARTS) } else { extent };
    if part * inner == 0 {
        return Ok(());
    }
    let fill = |i: usize, y: &mut [f32]| {
        y.fill(0.0);
        let (slab, low) = if outer == 1 { (0, i * part) } else { (i, 0) };
        let held = low..low + y.len() / inner;
        for (j, index) in indices.iter().enumerate() {
            let at = resolve(index.value(), extent);
            if held.contains(&at) {
                let dy = &dy[(slab * n + j) * inner..][..inner];
                y[(at - low) * inner..][..inner].iter_mut().zip(dy).for_each(|(y, dy)| *y += dy);
            }
        }
    };
    if y.len() < INLINE {
        y.chunks_mut(part * inner).enumerate().for_each(|(i, y)| fill(i, y));
    } else {
        y.par_chunks_mut(part * inner).enumerate().for_each(|(i, y)| fill(i, y));
    }
    Ok(())
}

pub(crate) fn gather_grad(c: &Ctx, y: &mut [u8], axis: i64) -> Done {
    let axis = axis_of(c, axis, c.results[0].rank())?;
    by_index!(c, 0, I => gather_grad_as::<I>(c, y, axis))
}

/// Walks `indices` along the elements of `data` that they address, apart from `axis`, whose stride is
/// returned.
fn along(data: &[u64], indices: &[u64], axis: usize) -> (StridedSpace<1>, usize) {
    let mut strides = [0usize; MAX_RANK];
    let mut next = 1usize;
    for (a, &d) in data.iter().enumerate().rev() {
        strides[a] = next;
        next = next.saturating_mul(ext(d));
    }
    let mut walk = StridedSpace::new();
    for (a, &d) in indices.iter().enumerate() {
        walk.push(ext(d), [if a == axis { 0 } else { strides[a] as isize }]);
    }
    (walk, strides[axis])
}

fn gather_elements_as<T: Bits, I: Index>(c: &Ctx, y: &mut [u8], axis: usize) -> Done {
    let (data, indices) = (c.slice::<T>(0)?, c.slice::<I>(1)?);
    let extent = ext(c.types[0].shape[axis]);
    check(c, 1, indices, |_| extent)?;
    let (walk, stride) = along(&c.types[0].shape, &c.types[1].shape, axis);
    let [step] = walk.inner();
    for_chunks(c.out::<T>(y)?, |start, y| {
        walk.runs(start, y.len(), |run, [offset]| {
            let indices = &indices[start..][run.clone()];
            for (i, (y, index)) in y[run].iter_mut().zip(indices).enumerate() {
                let at = (offset + i as isize * step) as usize;
                *y = data[at + resolve(index.value(), extent) * stride];
            }
        });
    });
    Ok(())
}

pub(crate) fn gather_elements(c: &Ctx, y: &mut [u8], axis: i64) -> Done {
    let axis = axis_of(c, axis, c.types[0].rank())?;
    fn typed<T: Bits>(c: &Ctx, y: &mut [u8], axis: usize) -> Done {
        by_index!(c, 1, I => gather_elements_as::<T, I>(c, y, axis))
    }
    by_width!(c.types[0].dtype, typed(c, y, axis))
}

/// Scatters elements one after another in row-major order of the indices.
fn scatter_elements_as<T: Pod, I: Index>(
    c: &Ctx,
    y: &mut [u8],
    axis: usize,
    put: impl Fn(&mut T, T),
) -> Done {
    let (indices, updates) = (c.slice::<I>(1)?, c.slice::<T>(2)?);
    let extent = ext(c.types[0].shape[axis]);
    check(c, 1, indices, |_| extent)?;
    copy_to_result::<u8>(c, 0, y)?;
    let y = c.out::<T>(y)?;
    let (walk, stride) = along(&c.types[0].shape, &c.types[1].shape, axis);
    let [step] = walk.inner();
    walk.runs(0, indices.len(), |run, [offset]| {
        for (i, (index, &u)) in indices[run.clone()].iter().zip(&updates[run]).enumerate() {
            let at = (offset + i as isize * step) as usize;
            put(&mut y[at + resolve(index.value(), extent) * stride], u);
        }
    });
    Ok(())
}

/// Addressing of slices of `data` by index tuples.
struct Tuples<'a> {
    /// Extents that a tuple has an index for.
    addressed: &'a [u64],
    /// Index tuples in all, and elements of the slice that each names.
    count: usize,
    inner: usize,
    /// Tuples and slices of one batch.
    each: usize,
    slices: usize,
}

impl<'a> Tuples<'a> {
    fn new(c: &Ctx<'a>, batch_dims: i64) -> Result<Self, KernelError> {
        let (shape, indices) = (&c.types[0].shape, &c.types[1].shape);
        let Some((&depth, outer)) = indices.split_last() else {
            return Err(c.fail("indices need an axis"));
        };
        let batch = usize::try_from(batch_dims).ok().filter(|&b| b <= outer.len() && b <= shape.len());
        let Some(batch) = batch else { return Err(c.fail("batch axes exceed the rank of an operand")) };
        let Some((addressed, inner)) = shape[batch..].split_at_checked(ext(depth)) else {
            return Err(c.fail("index tuples are longer than the rank of data"));
        };
        let (count, each, inner) = (product(outer), product(&outer[batch..]), product(inner));
        Ok(Tuples { addressed, count, inner, each, slices: product(addressed) })
    }

    /// Checks the index operand.
    fn check<I: Index>(&self, c: &Ctx, indices: &[I]) -> Done {
        check(c, 1, indices, |at| ext(self.addressed[at % self.addressed.len()]))
    }

    /// The first element of the slice that tuple `t` names.
    fn at<I: Index>(&self, t: usize, indices: &[I]) -> usize {
        let depth = self.addressed.len();
        let tuple = indices[t * depth..(t + 1) * depth].iter().zip(self.addressed);
        let slice = tuple.fold(0, |at, (v, &d)| at * ext(d) + resolve(v.value(), ext(d)));
        (t / self.each * self.slices + slice) * self.inner
    }
}

fn gather_nd_as<T: Bits, I: Index>(c: &Ctx, y: &mut [u8], batch_dims: i64) -> Done {
    let (data, indices) = (c.slice::<T>(0)?, c.slice::<I>(1)?);
    let tuples = Tuples::new(c, batch_dims)?;
    tuples.check(c, indices)?;
    let inner = tuples.inner;
    for_rows(c.out::<T>(y)?, inner, inner, |first, y| {
        for (i, y) in y.chunks_exact_mut(inner).enumerate() {
            y.copy_from_slice(&data[tuples.at(first + i, indices)..][..inner]);
        }
    });
    Ok(())
}

pub(crate) fn gather_nd(c: &Ctx, y: &mut [u8], batch_dims: i64) -> Done {
    fn typed<T: Bits>(c: &Ctx, y: &mut [u8], batch_dims: i64) -> Done {
        by_index!(c, 1, I => gather_nd_as::<T, I>(c, y, batch_dims))
    }
    by_width!(c.types[0].dtype, typed(c, y, batch_dims))
}

fn scatter_nd_as<T: Pod, I: Index>(c: &Ctx, y: &mut [u8], batch_dims: i64, put: impl Fn(&mut T, T)) -> Done {
    let (indices, updates) = (c.slice::<I>(1)?, c.slice::<T>(2)?);
    let tuples = Tuples::new(c, batch_dims)?;
    tuples.check(c, indices)?;
    copy_to_result::<u8>(c, 0, y)?;
    let (y, inner) = (c.out::<T>(y)?, tuples.inner);
    for t in 0..tuples.count {
        let updates = &updates[t * inner..(t + 1) * inner];
        y[tuples.at(t, indices)..][..inner].iter_mut().zip(updates).for_each(|(y, &u)| put(y, u));
    }
    Ok(())
}

/// The positions of the foremost elements along `axis` of every lane.
fn top_k_as<T: Pod + PartialOrd + Sync>(
    c: &Ctx,
    y: &mut [u8],
    axis: usize,
    smallest: bool,
    nan: fn(T) -> bool,
) -> Done {
    let x = c.slice::<T>(0)?;
    let (outer, extent, inner) = around(&c.types[0].shape, axis);
    let k = ext(c.results[0].shape[axis]);
    let order = |a: &T, b: &T| {
        let by = nan(*a).cmp(&nan(*b)).then(a.partial_cmp(b).unwrap_or(Ordering::Equal));
        if smallest { by } else { by.reverse() }
    };
    if outer * inner * k == 0 {
        return Ok(());
    }
    for_rows(c.out::<i64>(y)?, k * inner, extent * inner, |first, y| {
        for (o, y) in y.chunks_exact_mut(k * inner).enumerate() {
            let x = &x[(first + o) * extent * inner..][..extent * inner];
            if inner == 1 && k == extent {
                y.iter_mut().enumerate().for_each(|(i, y)| *y = i as i64);
                y.sort_unstable_by(|&a, &b| order(&x[a as usize], &x[b as usize]).then(a.cmp(&b)));
                continue;
            }
            for i in 0..inner {
                // Insertion into the sorted positions found so far, behind equal elements.
                for place in 0..extent {
                    let mut to = place.min(k);
                    while to > 0 {
                        let before = y[(to - 1) * inner + i];
                        if order(&x[place * inner + i], &x[before as usize * inner + i]).is_ge() {
                            break;
                        }
                        if to < k {
                            y[to * inner + i] = before;
                        }
                        to -= 1;
                    }
                    if to < k {
                        y[to * inner + i] = place as i64;
                    }
                }
            }
        }
    });
    Ok(())
}

pub(crate) fn top_k(c: &Ctx, y: &mut [u8], axis: i64, smallest: bool) -> Done {
    let axis = axis_of(c, axis, c.types[0].rank())?;
    match c.types[0].dtype {
        DType::F32 => top_k_as::<f32>(c, y, axis, smallest, |v| v.is_nan()),
        DType::I32 => top_k_as::<i32>(c, y, axis, smallest, |_| false),
        DType::I64 => top_k_as::<i64>(c, y, axis, smallest, |_| false),
        DType::I8 => top_k_as::<i8>(c, y, axis, smallest, |_| false),
        DType::U8 => top_k_as::<u8>(c, y, axis, smallest, |_| false),
        other => Err(c.unsupported(other)),
    }
}

fn replace<T>(y: &mut T, u: T) {
    *y = u;
}

/// Effect of an update on an element.
fn combine<T: Num>(mode: ScatterMode) -> fn(&mut T, T) {
    match mode {
        ScatterMode::Replace => replace,
        ScatterMode::Add => |y, u| *y = y.add(u),
        ScatterMode::Mul => |y, u| *y = y.mul(u),
        ScatterMode::Min => |y, u| *y = y.min(u),
        ScatterMode::Max => |y, u| *y = y.max(u),
    }
}

pub(crate) fn scatter_elements(c: &Ctx, y: &mut [u8], axis: i64, mode: ScatterMode) -> Done {
    let axis = axis_of(c, axis, c.types[0].rank())?;
    by_index!(c, 1, I => match (mode, c.types[0].dtype) {
        (ScatterMode::Replace, other) => match other.bytes() {
            1 => scatter_elements_as::<u8, I>(c, y, axis, replace),
            2 => scatter_elements_as::<u16, I>(c, y, axis, replace),
            4 => scatter_elements_as::<u32, I>(c, y, axis, replace),
            _ => scatter_elements_as::<u64, I>(c, y, axis, replace),
        },
        (_, DType::F32) => scatter_elements_as::<f32, I>(c, y, axis, combine(mode)),
        (_, DType::I32) => scatter_elements_as::<i32, I>(c, y, axis, combine(mode)),
        (_, DType::I64) => scatter_elements_as::<i64, I>(c, y, axis, combine(mode)),
        (_, other) => Err(c.unsupported(other)),
    })
}

pub(crate) fn scatter_nd(c: &Ctx, y: &mut [u8], mode: ScatterMode, batch_dims: i64) -> Done {
    by_index!(c, 1, I => match (mode, c.types[0].dtype) {
        (ScatterMode::Replace, other) => match other.bytes() {
            1 => scatter_nd_as::<u8, I>(c, y, batch_dims, replace),
            2 => scatter_nd_as::<u16, I>(c, y, batch_dims, replace),
            4 => scatter_nd_as::<u32, I>(c, y, batch_dims, replace),
            _ => scatter_nd_as::<u64, I>(c, y, batch_dims, replace),
        },
        (_, DType::F32) => scatter_nd_as::<f32, I>(c, y, batch_dims, combine(mode)),
        (_, DType::I32) => scatter_nd_as::<i32, I>(c, y, batch_dims, combine(mode)),
        (_, DType::I64) => scatter_nd_as::<i64, I>(c, y, batch_dims, combine(mode)),
        (_, other) => Err(c.unsupported(other)),
    })
}
