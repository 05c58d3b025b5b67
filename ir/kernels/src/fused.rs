//! Chains of element-wise ops, evaluated a block at a time by the kernels of the single ops.
//!
//! A block's intermediate results stay in cache, on the stack, each in its own element type. So a step gives
//! the bits that it gives alone. All operands of a block are read before its results are written, and blocks
//! are independent. So any result may lie in the bytes of an operand that is read in the same order.
//!
//! A head is computed whole before all blocks. It goes to the result that it is, or to one of its type, where
//! the steps read it.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use memc_ir::ops::fused::{
    Along, Arg, Body, MAX_ARGS, MAX_OPERANDS, MAX_RESULTS, MAX_STEPS, along, step_dtype,
};
use memc_ir::{DType, OpKind, TensorType};

use crate::call::dispatch;
use crate::convert::{narrow, widen};
use crate::error::KernelError;
use crate::norm;
use crate::parallel::{CHUNK, INLINE};
use crate::view::{Ctx, Operand};
use crate::walk::{StridedSpace, ext, product};

type Done = Result<(), KernelError>;

/// Elements of a block; a multiple of the elements that random ops make at a time.
const BLOCK: usize = 256;
/// Most ways to read operands: each along the space and along channels.
const LOADS: usize = 2 * MAX_OPERANDS;
/// Blocks on the stack, where few are enough, and most blocks there.
const FEW: usize = 8;
const MOST: usize = LOADS + MAX_STEPS;

/// Place of the elements of a block.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// In bytes of their own, in the order of the space.
    Flat(&'a [u8]),
    /// In a result, in the order of the space.
    Shared(usize),
    /// One element for all blocks.
    Single(&'a [u8]),
    /// In this block on the stack.
    Slot(usize),
}

/// An operand that is spread over a block before the steps.
#[derive(Clone, Copy)]
struct Spread<'a> {
    from: &'a [u8],
    walk: StridedSpace<1>,
    width: usize,
    slot: usize,
}

/// A value of the chain: its place and its element type.
#[derive(Clone, Copy)]
struct Value<'a> {
    place: Place<'a>,
    dtype: DType,
}

/// The chain, with a place for every value.
struct Chain<'a> {
    c: &'a Ctx<'a>,
    body: &'a Body,
    spreads: [Option<Spread<'a>>; LOADS],
    /// Operands of each step.
    args: [[Option<Value<'a>>; MAX_ARGS]; MAX_STEPS],
    /// Place of each step's elements.
    steps: [Value<'a>; MAX_STEPS],
    /// The step that each result is.
    outs: [usize; MAX_RESULTS],
    slots: usize,
}

fn width(dtype: DType) -> usize {
    ext(dtype.bytes())
}

pub(crate) fn fused(
    c: &Ctx,
    results: &mut [&mut [u8]],
    workspace: &mut [u8],
    body: &Body,
    outs: &[u64],
) -> Done {
    let head = head(c, results, workspace, body, outs)?;
    let chain = Chain::new(c, body, outs, head)?;
    let mut parts: [&mut [u8]; MAX_RESULTS] = Default::default();
    let count = results.len();
    parts.iter_mut().zip(results).for_each(|(part, result)| *part = result);
    let elements = ext(c.results[0].numel());
    if elements == 0 { Ok(()) } else { chain.split(0, elements, &mut parts[..count]) }
}

/// Computes the head, if there is one, and returns the result that holds it.
fn head(
    c: &Ctx,
    results: &mut [&mut [u8]],
    workspace: &mut [u8],
    body: &Body,
    outs: &[u64],
) -> Result<Option<usize>, KernelError> {
    let Some(step) = body.head() else { return Ok(None) };
    let own = outs.iter().position(|&t| t == 0);
    let same = || c.results.iter().position(|ty| ty.dtype == DType::F32);
    let r = own.or_else(same).ok_or_else(|| c.fail("the head has no result to be in"))?;
    // It reads the first operands, in order.
    let n = step.args.len();
    let own = Ctx {
        op: &step.op,
        types: &c.types[..n],
        results: std::slice::from_ref(&c.results[r]),
        operands: &c.operands[..n],
        ..*c
    };
    dispatch(&own, &mut results[r..=r], workspace)?;
    Ok(Some(r))
}

impl<'a> Chain<'a> {
    fn new(
        c: &'a Ctx<'a>,
        body: &'a Body,
        outs: &[u64],
        head: Option<usize>,
    ) -> Result<Chain<'a>, KernelError> {
        if body.0.len() > MAX_STEPS || c.operands.len() > MAX_OPERANDS || outs.len() > MAX_RESULTS {
            return Err(c.fail("the chain is too long"));
        }
        let nothing = Value { place: Place::Slot(0), dtype: DType::F32 };
        let mut chain = Chain {
            c,
            body,
            spreads: [None; LOADS],
            args: [[None; MAX_ARGS]; MAX_STEPS],
            steps: [nothing; MAX_STEPS],
            outs: [0; MAX_RESULTS],
            slots: 0,
        };
        let mut last = [0; MAX_STEPS];
        for (i, step) in body.0.iter().enumerate() {
            for arg in &step.args {
                if let Arg::Step(t) = *arg {
                    last[t as usize] = i;
                }
            }
        }
        for (out, &t) in chain.outs.iter_mut().zip(outs) {
            *out = ext(t);
            last[*out] = MAX_STEPS;
        }
        let mut loads = [[None; 2]; MAX_OPERANDS];
        let first = usize::from(head.is_some());
        for (i, step) in body.0.iter().enumerate().skip(first) {
            for (k, arg) in step.args.iter().enumerate() {
                chain.args[i][k] = Some(match (*arg, along(&step.op, k)) {
                    // Its place is known once slots are given out.
                    (Arg::Step(_), _) => continue,
                    (Arg::Operand(x), Along::Single) => {
                        let place = match c.operands[x as usize] {
                            Operand::Bytes(bytes) => Place::Single(bytes),
                            Operand::Result(j) => Place::Shared(j),
                        };
                        Value { place, dtype: c.types[x as usize].dtype }
                    }
                    (Arg::Operand(x), way) => {
                        let known = &mut loads[x as usize][usize::from(way == Along::Channel)];
                        let value = match *known {
                            Some(value) => value,
                            None => chain.load(x as usize, way)?,
                        };
                        *known = Some(value);
                        value
                    }
                });
            }
        }
        if let Some(r) = head {
            chain.steps[0] = Value { place: Place::Shared(r), dtype: DType::F32 };
        }
        // Slots behind those of operands are free again once nothing reads their content any more.
        let slots = chain.slots;
        let mut free = [true; MAX_STEPS];
        for (i, step) in body.0.iter().enumerate().skip(first) {
            for (k, arg) in step.args.iter().enumerate() {
                if let Arg::Step(t) = *arg {
                    chain.args[i][k] = Some(chain.steps[t as usize]);
                }
            }
            let dtypes = chain.args[i].map(|v| v.map_or(DType::F32, |v| v.dtype));
            let dtype = step_dtype(&step.op, &dtypes).ok_or_else(|| c.fail("a step has no operand"))?;
            let slot = free.iter().position(|&f| f).ok_or_else(|| c.fail("the chain is too long"))?;
            free[slot] = false;
            chain.steps[i] = Value { place: Place::Slot(slots + slot), dtype };
            chain.slots = chain.slots.max(slots + slot + 1);
            for arg in &step.args {
                let Arg::Step(t) = *arg else { continue };
                if let (Place::Slot(s), true) = (chain.steps[t as usize].place, last[t as usize] == i) {
                    free[s - slots] = true;
                }
            }
        }
        Ok(chain)
    }

    /// A place for the elements of operand `x`, read in the given way.
    fn load(&mut self, x: usize, way: Along) -> Result<Value<'a>, KernelError> {
        let (c, ty) = (self.c, &self.c.types[x]);
        let space: &'a [u64] = &c.results[0].shape;
        let place = match c.operands[x] {
            Operand::Result(j) => Place::Shared(j),
            Operand::Bytes(from) if ty.numel() == c.results[0].numel() => Place::Flat(from),
            Operand::Bytes(from) => {
                let walk = if way == Along::Channel {
                    let mut walk = StridedSpace::new();
                    walk.push(ext(space[0]), [0]);
                    walk.push(ext(space[1]), [1]);
                    walk.push(product(&space[2..]), [0]);
                    walk
                } else {
                    StridedSpace::broadcast(space, [&ty.shape])
                };
                let slot = self.slots;
                self.slots += 1;
                self.spreads[slot] = Some(Spread { from, walk, width: width(ty.dtype), slot });
                Place::Slot(slot)
            }
        };
        Ok(Value { place, dtype: ty.dtype })
    }

    /// Elements `start..start + len`, chunks side by side. The parts of the results begin at `start`.
    fn split(&self, start: usize, len: usize, parts: &mut [&mut [u8]]) -> Done {
        if len < INLINE {
            return if self.slots <= FEW {
                self.run::<FEW>(start, len, parts)
            } else {
                self.run::<MOST>(start, len, parts)
            };
        }
        let half = (len / 2).next_multiple_of(CHUNK);
        let (mut low, mut high): ([&mut [u8]; MAX_RESULTS], [&mut [u8]; MAX_RESULTS]) = Default::default();
        for (j, part) in parts.iter_mut().enumerate() {
            let at = half * width(self.c.results[j].dtype);
            let halves = std::mem::take(part).split_at_mut_checked(at);
            (low[j], high[j]) = halves.ok_or_else(|| self.c.fail("a result is short"))?;
        }
        let n = parts.len();
        let (a, b) = rayon::join(
            || self.split(start, half, &mut low[..n]),
            || self.split(start + half, len - half, &mut high[..n]),
        );
        a.and(b)
    }

    // Its blocks lie on the stack; `split`, which calls itself, must not have them too.
    #[inline(never)]
    fn run<const SLOTS: usize>(&self, start: usize, len: usize, parts: &mut [&mut [u8]]) -> Done {
        let mut stack = [[0u64; BLOCK]; SLOTS];
        let mut slots: [&mut [u8]; SLOTS] = stack.each_mut().map(|s| cast_slice_mut(&mut s[..]));
        for at in (0..len).step_by(BLOCK) {
            let n = BLOCK.min(len - at);
            for spread in self.spreads.iter().flatten() {
                spread.fill(start + at, n, slots[spread.slot]);
            }
            for i in 0..self.body.0.len() {
                let (Place::Slot(slot), w) = (self.steps[i].place, width(self.steps[i].dtype)) else {
                    continue;
                };
                let out = std::mem::take(&mut slots[slot]);
                self.step(i, (start, at, n), parts, &slots, &mut out[..n * w])?;
                slots[slot] = out;
            }
            for (part, &t) in parts.iter_mut().zip(&self.outs) {
                let w = width(self.steps[t].dtype);
                if let Place::Slot(slot) = self.steps[t].place {
                    part[at * w..][..n * w].copy_from_slice(&slots[slot][..n * w]);
                }
            }
        }
        Ok(())
    }

    /// Step `i` on the `n` elements from `at` on of the parts that begin at `start`.
    fn step(
        &self,
        i: usize,
        (start, at, n): (usize, usize, usize),
        parts: &[&mut [u8]],
        slots: &[&mut [u8]],
        out: &mut [u8],
    ) -> Done {
        let (op, dtype) = (&self.body.0[i].op, self.steps[i].dtype);
        let args = self.args[i].iter().flatten();
        let count = args.clone().count();
        // Ops that only move or convert elements take them as they are.
        let as_they_are = matches!(op, OpKind::Select {} | OpKind::Cast { .. });
        let is_wide = |dtype: DType| !as_they_are && dtype.is_narrow();
        let mut room = [[0u32; BLOCK]; MAX_ARGS + 1];
        let [wide_out, wide_args @ ..] = &mut room;
        let mut operands = [Operand::Bytes(&[]); MAX_ARGS];
        let mut types: [TensorType; MAX_ARGS] = std::array::from_fn(|_| TensorType::scalar(DType::F32));
        for (k, (value, wide)) in args.zip(wide_args).enumerate() {
            let w = width(value.dtype);
            let bytes = match value.place {
                Place::Flat(bytes) => &bytes[(start + at) * w..][..n * w],
                Place::Shared(j) => &parts[j][at * w..][..n * w],
                Place::Single(bytes) => bytes,
                Place::Slot(s) => &slots[s][..n * w],
            };
            types[k].dtype = wide_type(value.dtype, is_wide(value.dtype));
            operands[k] = Operand::Bytes(if is_wide(value.dtype) {
                let to = cast_slice_mut(&mut wide[..n]);
                widen(value.dtype, bytes, to);
                to
            } else {
                bytes
            });
        }
        let results = [TensorType::scalar(wide_type(dtype, is_wide(dtype)))];
        let c = Ctx {
            op,
            types: &types[..count],
            results: &results,
            operands: &operands[..count],
            first: self.c.first + start + at,
            flat: Some(n),
        };
        if !is_wide(dtype) {
            return element_wise(&c, out);
        }
        let wide: &mut [u8] = cast_slice_mut(&mut wide_out[..n]);
        element_wise(&c, wide)?;
        narrow(dtype, wide, out);
        Ok(())
    }
}

/// The type that elements are computed in.
fn wide_type(dtype: DType, is_wide: bool) -> DType {
    match (is_wide, dtype.is_float()) {
        (false, _) => dtype,
        (true, true) => DType::F32,
        (true, false) => DType::I32,
    }
}

/// The op of `c` on equally many elements of every operand.
fn element_wise(c: &Ctx, y: &mut [u8]) -> Done {
    match c.op {
        OpKind::BatchNorm {} => norm::batch_norm_each(c, y),
        _ => dispatch(c, &mut [y], &mut []),
    }
}

impl Spread<'_> {
    fn fill(&self, start: usize, n: usize, to: &mut [u8]) {
        match self.width {
            1 => self.fill_as::<u8>(start, n, to),
            2 => self.fill_as::<u16>(start, n, to),
            4 => self.fill_as::<u32>(start, n, to),
            _ => self.fill_as::<u64>(start, n, to),
        }
    }

    fn fill_as<T: Pod>(&self, start: usize, n: usize, to: &mut [u8]) {
        let (from, to) = (cast_slice::<u8, T>(self.from), cast_slice_mut::<u8, T>(to));
        let [step] = self.walk.inner();
        self.walk.runs(start, n, |run, [first]| {
            let (first, len) = (first as usize, run.len());
            if step == 0 {
                to[run].fill(from[first]);
            } else {
                to[run].copy_from_slice(&from[first..first + len]);
            }
        });
    }
}
