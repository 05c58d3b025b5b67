//! Conversions between element types.
//!
//! Floats round to the nearest, ties to even. Numbers that are too large become infinite, and NaN stays NaN.
//! Float to integer truncates and saturates, NaN gives zero. Integers wrap. A boolean is 0 or 1, and every
//! number but zero is true.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::f16;
use half::slice::HalfFloatSliceExt;
use memc_ir::DType;

use crate::error::KernelError;
use crate::num::wide::map;
use crate::parallel::for_rows;
use crate::view::Ctx;
use crate::walk::ext;

type Done = Result<(), KernelError>;

/// An element of `bf16`, the upper half of an `f32`.
#[inline(always)]
fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[inline(always)]
fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // Rounding could carry a NaN to infinity.
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

fn each<T: Pod, U: Pod>(from: &[u8], to: &mut [u8], f: impl Fn(T) -> U) {
    if !from.is_empty() {
        map(cast_slice(from), cast_slice_mut(to), f);
    }
}

/// Writes the elements of a narrow type as `f32` or `i32`.
pub(crate) fn widen(dtype: DType, from: &[u8], to: &mut [u8]) {
    match dtype {
        DType::F16 if !from.is_empty() => {
            cast_slice::<u8, f16>(from).convert_to_f32_slice(cast_slice_mut(to));
        }
        DType::BF16 => each(from, to, bf16_to_f32),
        DType::I8 => each(from, to, |x: i8| i32::from(x)),
        DType::U8 => each(from, to, |x: u8| i32::from(x)),
        _ => {}
    }
}

/// Writes `f32` or `i32` elements as a narrow type.
pub(crate) fn narrow(dtype: DType, from: &[u8], to: &mut [u8]) {
    match dtype {
        DType::F16 if !from.is_empty() => {
            cast_slice_mut::<u8, f16>(to).convert_from_f32_slice(cast_slice(from));
        }
        DType::BF16 => each(from, to, f32_to_bf16),
        DType::I8 => each(from, to, |x: i32| x as i8),
        DType::U8 => each(from, to, |x: i32| x as u8),
        _ => {}
    }
}

/// Elements converted at a time, through `i64` or `f32`.
const BLOCK: usize = 512;

/// Reads elements that are not floats.
fn read_integers(dtype: DType, from: &[u8], to: &mut [i64]) {
    let to: &mut [u8] = cast_slice_mut(to);
    match dtype {
        DType::I64 => to.copy_from_slice(from),
        DType::I32 => each(from, to, |x: i32| i64::from(x)),
        DType::I8 => each(from, to, |x: i8| i64::from(x)),
        DType::U8 => each(from, to, |x: u8| i64::from(x)),
        _ => each(from, to, |x: u8| i64::from(x != 0)),
    }
}

/// The integer cut to 24 bits, the lowest of them set where bits were cut off. Rounding it further gives the
/// bits of rounding the integer once.
fn sticky(x: i64) -> f32 {
    let magnitude = x.unsigned_abs();
    let cut = (u64::BITS - magnitude.leading_zeros()).saturating_sub(f32::MANTISSA_DIGITS);
    let kept = magnitude >> cut;
    let lost = u64::from(kept << cut != magnitude);
    let value = (kept | lost) as f32 * (1u64 << cut) as f32;
    if x < 0 { -value } else { value }
}

fn write_integers(dtype: DType, from: &[i64], to: &mut [u8]) {
    let from: &[u8] = cast_slice(from);
    match dtype {
        DType::F32 => each(from, to, |x: i64| x as f32),
        DType::F16 => each(from, to, |x: i64| f16::from_f32(sticky(x))),
        DType::BF16 => each(from, to, |x: i64| f32_to_bf16(sticky(x))),
        DType::I64 => to.copy_from_slice(from),
        DType::I32 => each(from, to, |x: i64| x as i32),
        DType::I8 => each(from, to, |x: i64| x as i8),
        DType::U8 => each(from, to, |x: i64| x as u8),
        DType::Bool => each(from, to, |x: i64| u8::from(x != 0)),
    }
}

fn write_floats(dtype: DType, from: &[f32], to: &mut [u8]) {
    let from: &[u8] = cast_slice(from);
    match dtype {
        DType::F32 => to.copy_from_slice(from),
        DType::F16 | DType::BF16 => narrow(dtype, from, to),
        DType::I64 => each(from, to, |x: f32| x as i64),
        DType::I32 => each(from, to, |x: f32| x as i32),
        DType::I8 => each(from, to, |x: f32| x as i8),
        DType::U8 => each(from, to, |x: f32| x as u8),
        DType::Bool => each(from, to, |x: f32| u8::from(x != 0.0)),
    }
}

/// Converts elements of one type to another.
fn convert(from: DType, x: &[u8], to: DType, y: &mut [u8]) {
    if from == to {
        return y.copy_from_slice(x);
    }
    let (wx, wy) = (ext(from.bytes()), ext(to.bytes()));
    for (x, y) in x.chunks(BLOCK * wx).zip(y.chunks_mut(BLOCK * wy)) {
        let n = x.len() / wx;
        if from == DType::F32 {
            write_floats(to, cast_slice(x), y);
        } else if from.is_float() {
            let mut floats = [0f32; BLOCK];
            widen(from, x, cast_slice_mut(&mut floats[..n]));
            write_floats(to, &floats[..n], y);
        } else {
            let mut integers = [0i64; BLOCK];
            read_integers(from, x, &mut integers[..n]);
            write_integers(to, &integers[..n], y);
        }
    }
}

pub(crate) fn cast(c: &Ctx, y: &mut [u8]) -> Done {
    let x = c.slice::<u8>(0)?;
    let (from, to) = (c.types[0].dtype, c.results[0].dtype);
    let (wx, wy) = (ext(from.bytes()), ext(to.bytes()));
    for_rows(y, wy, 1, |first, y| convert(from, &x[first * wx..][..y.len() / wy * wx], to, y));
    Ok(())
}
