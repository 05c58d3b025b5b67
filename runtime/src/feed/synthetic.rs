//! Made-up data: one batch for each input, the same at every step, so that a training loss falls.
//!
//! Element `i` is made of the 64 bits `mix(key + i)`; see [`crate::init`] for `mix`. Floats are standard
//! normal. Integers are uniform in their range, booleans are fair coins.

use memc_ir::{DType, TensorType};

use crate::Error;
use crate::init::{fill, mix, normal};

/// Key of the data for one micro-step of an input.
pub(super) fn key(seed: u64, source: &str, micro: u32) -> u64 {
    let name = blake3::hash(source.as_bytes());
    let (words, _) = name.as_bytes().as_chunks::<8>();
    let name = words.first().map_or(0, |word| u64::from_le_bytes(*word));
    mix(mix(seed) ^ mix(name.wrapping_add(u64::from(micro))))
}

/// The contents of an input; integers are in the half-open `range`.
pub(super) fn contents(ty: &TensorType, range: (i64, i64), key: u64, input: &str) -> Result<Vec<u8>, Error> {
    let bytes = usize::try_from(ty.bytes()).ok();
    let mut out = Vec::new();
    let room = bytes.map(|bytes| out.try_reserve_exact(bytes));
    let (Some(bytes), Some(Ok(()))) = (bytes, room) else {
        return Err(Error::Memory(format!("input `{input}`: no memory for {ty}")));
    };
    out.resize(bytes, 0);
    let bits = |i: u64| mix(key.wrapping_add(i));
    let integer = |i: u64| within(bits(i), range);
    match ty.dtype {
        DType::F32 => fill(&mut out, |i| (normal(bits(i)) as f32).to_le_bytes()),
        DType::F16 => fill(&mut out, |i| half::f16::from_f64(normal(bits(i))).to_le_bytes()),
        DType::BF16 => fill(&mut out, |i| half::bf16::from_f64(normal(bits(i))).to_le_bytes()),
        DType::I64 => fill(&mut out, |i| integer(i).to_le_bytes()),
        DType::I32 => {
            let clamped = |i| integer(i).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
            fill(&mut out, |i| clamped(i).to_le_bytes());
        }
        DType::I8 => fill(&mut out, |i| (integer(i).clamp(-128, 127) as i8).to_le_bytes()),
        DType::U8 => fill(&mut out, |i| [integer(i).clamp(0, 255) as u8]),
        DType::Bool => fill(&mut out, |i| [(bits(i) >> 63) as u8]),
    }
    Ok(out)
}

/// A number of the half-open range, which is not empty, from 64 random bits: the high part of their product
/// with the range's length (Lemire, "Fast random integer generation in an interval", 2019, without
/// rejection).
fn within(bits: u64, (low, high): (i64, i64)) -> i64 {
    let length = high.wrapping_sub(low) as u64;
    let offset = ((u128::from(bits) * u128::from(length)) >> 64) as u64;
    low.wrapping_add_unsigned(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Floats have mean 0 and variance 1.
    #[test]
    fn floats_are_standard_normal() {
        let bytes = contents(&TensorType::new(DType::F32, [100_000]), (0, 2), 5, "x").unwrap();
        let xs: Vec<f64> =
            bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect();
        let n = xs.len() as f64;
        let (mean, square) = (xs.iter().sum::<f64>() / n, xs.iter().map(|x| x * x).sum::<f64>() / n);
        let fourth = xs.iter().map(|x| x.powi(4)).sum::<f64>() / n;
        assert!(
            mean.abs() < 0.02 && (square - 1.0).abs() < 0.02 && (fourth - 3.0).abs() < 0.2,
            "{mean} {square} {fourth}"
        );
    }

    /// Integers fill exactly their range, also the widest one.
    #[test]
    fn integers_fill_their_range() {
        let bytes = contents(&TensorType::new(DType::I64, [1000]), (-3, 4), 5, "x").unwrap();
        let mut xs: Vec<i64> = bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
        xs.sort_unstable();
        xs.dedup();
        assert_eq!(xs, [-3, -2, -1, 0, 1, 2, 3]);
        assert_eq!(within(u64::MAX, (i64::MIN, i64::MAX)), i64::MAX - 1);
        assert_eq!(within(0, (i64::MIN, i64::MAX)), i64::MIN);
    }

    /// Seed, name and micro-step each change the data.
    #[test]
    fn keys_differ() {
        let keys = [key(0, "x", 0), key(1, "x", 0), key(0, "y", 0), key(0, "x", 1)];
        assert!(keys.iter().enumerate().all(|(i, k)| !keys[..i].contains(k)));
    }
}
