//! Random tensors and dropout from a counter-based generator.
//!
//! Element `i` of a tensor is made of word `i % 4` of the block that [`philox`] gives for the counter
//! `(i / 4, stream, step)` and the key `seed`. A normal element takes the two words of its half of the block.
//! So an element depends on nothing but its index and the op, however the work is cut, and recomputing gives
//! the same bits.

use std::f64::consts::TAU;

use memc_ir::DType;
use pulp::{Arch, Simd, WithSimd};

use crate::error::KernelError;
use crate::index::{Index, by_index};
use crate::num::philox::philox;
use crate::parallel::for_chunks;
use crate::view::{Ctx, Src};

type Done = Result<(), KernelError>;

/// Words of a block.
const WORDS: usize = 4;
/// 2^32, the number of words there are.
const RANGE: f64 = 4_294_967_296.0;

/// The part of key and counter that is common to all elements.
#[derive(Clone, Copy)]
struct Source {
    key: [u32; 2],
    stream: u32,
    step: u64,
}

impl Source {
    /// `step` is the operand that holds the number of the step.
    fn new(c: &Ctx, seed: i64, stream: i64, step: usize) -> Result<Source, KernelError> {
        let step: i64 = by_index!(c, step, I => c.slice::<I>(step)?[0].value());
        let stream = u32::try_from(stream).map_err(|_| c.fail(format!("stream {stream}")))?;
        Ok(Source { key: [seed as u32, (seed >> 32) as u32], stream, step: step as u64 })
    }

    /// The words of a block. A tensor has less than 2^48 blocks, and steps are counted modulo 2^48.
    #[inline(always)]
    fn block(self, index: u64) -> [u32; WORDS] {
        let high = (index >> 32) as u32 | ((self.step >> 32) as u32) << 16;
        philox([index as u32, high, self.stream, self.step as u32], self.key)
    }
}

/// One chunk, which begins with a block.
struct Chunk<'a, T, F> {
    out: &'a mut [T],
    /// Its first block.
    first: u64,
    source: Source,
    /// Makes a block, or the beginning of one, of its words.
    f: F,
}

impl<T, F: Fn(&mut [T], [u32; WORDS])> WithSimd for Chunk<'_, T, F> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        /// Blocks side by side.
        const SIDE: usize = 8;
        for (group, out) in self.out.chunks_mut(SIDE * WORDS).enumerate() {
            let first = self.first + (group * SIDE) as u64;
            let blocks: [[u32; WORDS]; SIDE] = std::array::from_fn(|i| self.source.block(first + i as u64));
            out.chunks_mut(WORDS).zip(blocks).for_each(|(out, words)| (self.f)(out, words));
        }
    }
}

/// Calls `f` with every block of `out`, whose first element has the index `first`, and its words.
fn blocks<T: Send>(
    out: &mut [T],
    first: usize,
    source: Source,
    f: impl Fn(&mut [T], [u32; WORDS]) + Copy + Sync,
) {
    for_chunks(out, |at, out| {
        Arch::new().dispatch(Chunk { out, first: ((first + at) / WORDS) as u64, source, f });
    });
}

/// The smallest word that keeps an element.
fn threshold(ratio: f32) -> u32 {
    (f64::from(ratio) * RANGE) as u32
}

/// Source of random words: attributes of the op.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    pub(crate) seed: i64,
    pub(crate) stream: i64,
}

pub(crate) fn mask(c: &Ctx, y: &mut [u8], key: Key, ratio: f32) -> Done {
    let (source, low) = (Source::new(c, key.seed, key.stream, 0)?, threshold(ratio));
    blocks(y, c.first, source, |y, words| y.iter_mut().zip(words).for_each(|(y, w)| *y = u8::from(w >= low)));
    Ok(())
}

pub(crate) fn mask_scale(c: &Ctx, y: &mut [u8], scale: f32) -> Done {
    let (x, mask) = (c.src::<f32>(0)?, c.slice::<u8>(1)?);
    for_chunks(c.out::<f32>(y)?, |at, y| {
        copy_chunk(x, at, y);
        y.iter_mut().zip(&mask[at..]).for_each(|(y, &keep)| *y = if keep != 0 { *y * scale } else { 0.0 });
    });
    Ok(())
}

fn copy_chunk(x: Src<f32>, at: usize, y: &mut [f32]) {
    if let Src::Slice(x) = x {
        y.copy_from_slice(&x[at..at + y.len()]);
    }
}

pub(crate) fn dropout(c: &Ctx, y: &mut [u8], key: Key, ratio: f32) -> Done {
    let (source, low) = (Source::new(c, key.seed, key.stream, 1)?, threshold(ratio));
    let scale = 1.0 / (1.0 - ratio);
    let x = c.src::<f32>(0)?;
    for_chunks(c.out::<f32>(y)?, |at, out| {
        copy_chunk(x, at, out);
        let f = |y: &mut [f32], words: [u32; WORDS]| {
            y.iter_mut().zip(words).for_each(|(y, w)| *y = if w >= low { *y * scale } else { 0.0 });
        };
        Arch::new().dispatch(Chunk { out, first: ((c.first + at) / WORDS) as u64, source, f });
    });
    Ok(())
}

/// `low + (high - low) * u` with `u` the upper 24 bits of a word as a fraction, rounded once.
pub(crate) fn uniform(c: &Ctx, y: &mut [u8], key: Key, low: f32, high: f32) -> Done {
    let source = Source::new(c, key.seed, key.stream, 0)?;
    let (low, span) = (f64::from(low), f64::from(high) - f64::from(low));
    blocks(c.out::<f32>(y)?, c.first, source, |y, words| {
        for (y, w) in y.iter_mut().zip(words) {
            *y = (low + span * (f64::from(w >> 8) / f64::from(1u32 << 24))) as f32;
        }
    });
    Ok(())
}

/// Two independent standard normal numbers from two words.
///
/// Source: Box and Muller, "A note on the generation of random normal deviates", 1958.
fn normals([a, b]: [u32; 2]) -> [f64; 2] {
    let unit = |w: u32| (f64::from(w) + 0.5) / RANGE;
    let radius = libm::sqrt(-2.0 * libm::log(unit(a)));
    let (sin, cos) = libm::sincos(TAU * unit(b));
    [radius * cos, radius * sin]
}

pub(crate) fn normal(c: &Ctx, y: &mut [u8], key: Key, mean: f32, scale: f32) -> Done {
    let source = Source::new(c, key.seed, key.stream, 0)?;
    let (mean, scale) = (f64::from(mean), f64::from(scale));
    blocks(c.out::<f32>(y)?, c.first, source, |y, [a, b, c, d]| {
        for (y, words) in y.chunks_mut(2).zip([[a, b], [c, d]]) {
            y.iter_mut().zip(normals(words)).for_each(|(y, n)| *y = (mean + scale * n) as f32);
        }
    });
    Ok(())
}
