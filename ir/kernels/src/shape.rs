//! Data movement: reshape, transpose, broadcast, slice, concat, pad, fill. Elements move by width, unread.

use bytemuck::Pod;
use memc_ir::MAX_RANK;
use memc_ir::attr::Scalar;
use rayon::prelude::*;

use crate::error::KernelError;
use crate::parallel::{CHUNK, INLINE, for_chunks, for_rows};
use crate::view::{Ctx, Operand, Src, around, axis_of};
use crate::walk::{StridedSpace, ext};

type Done = Result<(), KernelError>;

/// Calls a generic function with the unsigned integer as wide as `dtype`.
macro_rules! by_width {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype.bytes() {
            1 => $f::<u8>($($arg),*),
            2 => $f::<u16>($($arg),*),
            4 => $f::<u32>($($arg),*),
            _ => $f::<u64>($($arg),*),
        }
    };
}
pub(crate) use by_width;

/// An element as raw bits.
pub(crate) trait Bits: Pod + Default + Send + Sync {}
impl Bits for u8 {}
impl Bits for u16 {}
impl Bits for u32 {}
impl Bits for u64 {}

/// Copies bytes with the memory bandwidth of all threads.
pub(crate) fn copy<T: Bits>(from: &[T], to: &mut [T]) {
    for_chunks(to, |at, to| to.copy_from_slice(&from[at..at + to.len()]));
}

pub(crate) fn reshape(c: &Ctx, y: &mut [u8]) -> Done {
    if let Src::Slice(x) = c.src::<u8>(0)? {
        copy(x, y);
    }
    Ok(())
}

/// `y[i] = x[base + walk(i)]` for every point of the walk.
fn gather_strided<T: Bits>(c: &Ctx, y: &mut [u8], base: isize, walk: &StridedSpace<1>) -> Done {
    let x = c.slice::<T>(0)?;
    let [step] = walk.inner();
    if let Some((rows, [1])) = walk.around_inner()
        && step > 1
    {
        transpose_blocks(x, c.out::<T>(y)?, base, walk, rows);
        return Ok(());
    }
    for_chunks(c.out::<T>(y)?, |start, y| {
        walk.runs(start, y.len(), |run, [offset]| {
            let y = &mut y[run];
            let at = (base + offset) as usize;
            match step {
                1 => y.copy_from_slice(&x[at..at + y.len()]),
                0 => y.fill(x[at]),
                2.. => y.iter_mut().zip(x[at..].iter().step_by(step as usize)).for_each(|(y, &x)| *y = x),
                _ => {
                    let back = step.unsigned_abs();
                    y.iter_mut().zip(x[..=at].iter().rev().step_by(back)).for_each(|(y, &x)| *y = x);
                }
            }
        });
    });
    Ok(())
}

/// Rows of the result that [`transpose_blocks`] fills together: a cache line of 4-byte elements.
const BLOCK: usize = 16;

/// [`gather_strided`] when adjacent rows of the result, in groups of `rows`, are adjacent in the operand:
/// reads cache lines of the operand whole instead of one element at a time.
fn transpose_blocks<T: Bits>(x: &[T], y: &mut [T], base: isize, walk: &StridedSpace<1>, rows: usize) {
    let [step] = walk.inner();
    let width = walk.inner_extent();
    for_rows(y, width, width.min(CHUNK / BLOCK), |first, y| {
        let (mut row, end) = (first, first + y.len() / width);
        while row < end {
            let block = BLOCK.min(end - row).min(rows - row % rows);
            let y = &mut y[(row - first) * width..][..block * width];
            walk.runs(row * width, 1, |_, [offset]| {
                let from = (base + offset) as usize;
                for col in 0..width {
                    let x = &x[from + col * step as usize..][..block];
                    y[col..].iter_mut().step_by(width).zip(x).for_each(|(y, &x)| *y = x);
                }
            });
            row += block;
        }
    });
}

/// Row-major strides of a shape.
fn strides(shape: &[u64]) -> [isize; MAX_RANK] {
    let mut strides = [0; MAX_RANK];
    let mut next = 1usize;
    for (a, &d) in shape.iter().enumerate().rev() {
        strides[a] = next as isize;
        next = next.saturating_mul(ext(d));
    }
    strides
}

pub(crate) fn transpose(c: &Ctx, y: &mut [u8], perm: &[u64]) -> Done {
    let from = strides(&c.types[0].shape);
    let mut walk = StridedSpace::new();
    for (&d, &p) in c.results[0].shape.iter().zip(perm) {
        walk.push(ext(d), [from[ext(p)]]);
    }
    by_width!(c.types[0].dtype, gather_strided(c, y, 0, &walk))
}

pub(crate) fn broadcast(c: &Ctx, y: &mut [u8]) -> Done {
    let walk = StridedSpace::broadcast(&c.results[0].shape, [&c.types[0].shape]);
    by_width!(c.types[0].dtype, gather_strided(c, y, 0, &walk))
}

pub(crate) fn slice(c: &Ctx, y: &mut [u8], starts: &[i64], steps: &[i64]) -> Done {
    let from = strides(&c.types[0].shape);
    let (mut walk, mut base) = (StridedSpace::new(), 0isize);
    for (a, &d) in c.results[0].shape.iter().enumerate() {
        walk.push(ext(d), [from[a].wrapping_mul(steps[a] as isize)]);
        base = base.wrapping_add(from[a].wrapping_mul(starts[a] as isize));
    }
    by_width!(c.types[0].dtype, gather_strided(c, y, base, &walk))
}

fn concat_as<T: Bits>(c: &Ctx, y: &mut [u8], axis: usize) -> Done {
    let (_, extent, inner) = around(&c.results[0].shape, axis);
    let row = extent * inner;
    // Checked before the copy, which cannot stop half-way on several threads.
    for i in 0..c.operands.len() {
        c.slice::<T>(i)?;
    }
    for_chunks(c.out::<T>(y)?, |start, y| {
        let (mut at, mut part, mut begin) = (start, 0, 0);
        let end = start + y.len();
        while at < end {
            let col = at % row;
            let width = ext(c.types[part].shape[axis]) * inner;
            if col >= begin + width {
                begin += width;
                part += 1;
                continue;
            }
            let from = at / row * width + (col - begin);
            let n = (begin + width - col).min(end - at);
            if let Ok(x) = c.slice::<T>(part) {
                y[at - start..][..n].copy_from_slice(&x[from..from + n]);
            }
            at += n;
            if col + n == row {
                (part, begin) = (0, 0);
            }
        }
    });
    Ok(())
}

pub(crate) fn concat(c: &Ctx, y: &mut [u8], axis: i64) -> Done {
    let axis = axis_of(c, axis, c.results[0].rank())?;
    by_width!(c.types[0].dtype, concat_as(c, y, axis))
}

fn fill_bits(c: &Ctx, y: &mut [u8], value: Scalar) -> Done {
    let dtype = c.results[0].dtype;
    let Some(bits) = value.bits(dtype) else { return Err(c.unsupported(dtype)) };
    match dtype.bytes() {
        1 => for_chunks(y, |_, y| y.fill(bits as u8)),
        2 => for_chunks(c.out::<u16>(y)?, |_, y| y.fill(bits as u16)),
        4 => for_chunks(c.out::<u32>(y)?, |_, y| y.fill(bits as u32)),
        _ => for_chunks(c.out::<u64>(y)?, |_, y| y.fill(bits)),
    }
    Ok(())
}

pub(crate) fn fill(c: &Ctx, y: &mut [u8], value: Scalar) -> Done {
    fill_bits(c, y, value)
}

fn pad_as<T: Bits>(c: &Ctx, y: &mut [u8], before: &[u64]) -> Done {
    let x = c.slice::<T>(0)?;
    let (inside, outside) = (&c.types[0].shape, &c.results[0].shape);
    let from = strides(outside);
    let mut walk = StridedSpace::<1>::new();
    let mut base = 0usize;
    for (a, &d) in inside.iter().enumerate() {
        walk.push(ext(d), [from[a]]);
        base = base.saturating_add(ext(before[a]).saturating_mul(from[a] as usize));
    }
    if x.is_empty() {
        return Ok(());
    }
    // Slabs of the outermost axis are disjoint on both sides.
    let [step] = walk.inner();
    let y = c.out::<T>(y)?;
    let slabs = inside.first().map_or(1, |&d| ext(d));
    let (slab, stride) = (x.len() / slabs, from[0].max(1) as usize);
    let copy = |i: usize, y: &mut [T]| {
        walk.runs(i * slab, slab, |run, [offset]| {
            let x = &x[i * slab..][run];
            let at = base % stride + offset as usize - i * stride;
            match step {
                1 => y[at..at + x.len()].copy_from_slice(x),
                _ => y[at..].iter_mut().step_by(step as usize).zip(x).for_each(|(y, &x)| *y = x),
            }
        });
    };
    if inside.is_empty() {
        y.copy_from_slice(x);
        return Ok(());
    }
    let y = &mut y[base / stride * stride..];
    if x.len() < INLINE || slab < CHUNK / 64 {
        y.chunks_mut(stride).take(slabs).enumerate().for_each(|(i, y)| copy(i, y));
    } else {
        y.par_chunks_mut(stride).take(slabs).enumerate().for_each(|(i, y)| copy(i, y));
    }
    Ok(())
}

pub(crate) fn pad(c: &Ctx, y: &mut [u8], before: &[u64], value: Scalar) -> Done {
    fill_bits(c, y, value)?;
    by_width!(c.types[0].dtype, pad_as(c, y, before))
}

/// Copies operand `i` to the result that it may already share bytes with.
pub(crate) fn copy_to_result<T: Bits>(c: &Ctx, i: usize, y: &mut [T]) -> Done {
    match c.operands[i] {
        Operand::Bytes(_) => copy(c.slice::<T>(i)?, y),
        Operand::Result(_) => {}
    }
    Ok(())
}
