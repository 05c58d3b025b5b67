//! Recurrent layers, unrolled over their time steps into elementary ops.
//!
//! One product per direction covers the input's part of all time steps; every step adds its own product with
//! the previous hidden state and the gates. All steps share the weights. Steps behind a sequence's length
//! leave the state as it is and give zeros, which for the reverse direction is the same as reversing each
//! sequence in place.
//!
//! [`cell`] has the cells, [`activation`] their functions, [`grad`] ONNX Runtime's separate gradient of the
//! LSTM.

mod activation;
mod cell;
mod grad;

use memc_ir::attr::F32;
use memc_ir::{DType, OpKind, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};
use crate::ops::movement::slice_along as cut;
use crate::tensor::Literal;

pub(crate) use cell::{gru, lstm, lstm_training, rnn};
pub(crate) use grad::lstm_grad;

/// Extents of a recurrent layer.
#[derive(Clone, Copy, Debug)]
struct Extents {
    /// Time steps.
    time: u64,
    batch: u64,
    inputs: u64,
    hidden: u64,
    /// Directions: 1 or 2.
    directions: u64,
}

/// Which directions a layer has, and which of them run backwards in time.
fn directions(n: &NodeCx<'_, '_>) -> Result<&'static [bool], Fault> {
    match n.text("direction", "forward")? {
        "forward" => Ok(&[false]),
        "reverse" => Ok(&[true]),
        "bidirectional" => Ok(&[false, true]),
        other => Err(format!("there is no direction `{other}`").into()),
    }
}

/// Extents from the shapes of input `[time, batch, inputs]`, weight and recurrent weight of `gates` gates.
fn extents(
    n: &NodeCx<'_, '_>,
    x: ValueId,
    [w, r]: [ValueId; 2],
    gates: u64,
    directions: usize,
) -> Result<Extents, Fault> {
    let (x, w, r) = (n.ty(x), n.ty(w), n.ty(r));
    let (&[time, batch, inputs], &[.., rows, hidden]) = (&x.shape[..], &r.shape[..]) else {
        return Err(format!("input {x} and recurrent weight {r} must have three axes").into());
    };
    let directions = directions as u64;
    let fits = rows == hidden.checked_mul(gates).unwrap_or(0) && hidden > 0;
    if !fits || r.shape != [directions, rows, hidden] || w.shape != [directions, rows, inputs] {
        return Err(format!(
            "weight {w} and recurrent weight {r} do not fit input {x}: with {gates} gates and {directions} \
             directions they must be [{directions}, {gates} * hidden, {inputs}] and \
             [{directions}, {gates} * hidden, hidden]"
        )
        .into());
    }
    let stated = n.int("hidden_size", hidden as i64)?;
    if stated != hidden as i64 {
        return Err(format!("hidden_size is {stated}, but the recurrent weight has {hidden}").into());
    }
    Ok(Extents { time, batch, inputs, hidden, directions })
}

/// `value` with its first axis, of `count` elements, cut to element `at` and dropped.
fn part(n: &mut NodeCx<'_, '_>, value: ValueId, at: usize, count: usize) -> Made {
    let shape = n.ty(value).shape.clone();
    if shape.first() != Some(&(count as u64)) {
        return Err(format!("{} must have {count} directions", n.ty(value)).into());
    }
    let one = cut(n, value, 0, at as u64, at as u64 + 1)?;
    n.reshaped(one, &shape[1..])
}

/// `a * b` of matrices, the second transposed if asked for.
fn product(n: &mut NodeCx<'_, '_>, a: ValueId, b: ValueId, trans_b: bool) -> Made {
    n.temp(OpKind::MatMul { trans_a: false, trans_b, alpha: F32(1.0) }, &[a, b])
}

/// `a * transposed(b) + c` of matrices.
fn gemm(n: &mut NodeCx<'_, '_>, a: ValueId, b: ValueId, c: ValueId) -> Made {
    let one = F32(1.0);
    n.temp(OpKind::Gemm { trans_a: false, trans_b: true, alpha: one, beta: one }, &[a, b, c])
}

/// The transposition between `[batch, time, ..]` and `[time, batch, ..]`, and likewise for directions.
fn swapped(n: &mut NodeCx<'_, '_>, value: ValueId) -> Made {
    let mut perm: Vec<u64> = (0..n.ty(value).rank() as u64).collect();
    if perm.len() < 2 {
        return Err(format!("{} must have at least two axes", n.ty(value)).into());
    }
    perm.swap(0, 1);
    n.temp(OpKind::Transpose { perm }, &[value])
}

/// Zeros of shape `[batch, hidden]`.
fn zeros(n: &mut NodeCx<'_, '_>, e: Extents) -> Made {
    let value = memc_ir::attr::Scalar::Float(F32(0.0));
    n.temp(OpKind::Fill { dtype: DType::F32, shape: vec![e.batch, e.hidden], value }, &[])
}

/// The initial state in input `i` for direction `d`, `[batch, hidden]`; zeros when absent.
fn initial(n: &mut NodeCx<'_, '_>, i: usize, d: usize, e: Extents, batch_first: bool) -> Made {
    let Some(mut all) = n.optional(i)? else { return zeros(n, e) };
    if batch_first {
        all = swapped(n, all)?;
    }
    if n.ty(all).shape != [e.directions, e.batch, e.hidden] {
        return Err(format!(
            "initial state {} must have shape [{}, {}, {}]",
            n.ty(all),
            e.directions,
            e.batch,
            e.hidden
        )
        .into());
    }
    part(n, all, d, e.directions as usize)
}

/// Per time step whether each sequence is still running, `[batch, 1]`; `None` where all are.
fn running(n: &mut NodeCx<'_, '_>, i: usize, e: Extents) -> Result<Vec<Option<ValueId>>, Fault> {
    let mut masks = vec![None; e.time as usize];
    let Some(lengths) = n.optional(i)? else { return Ok(masks) };
    let ty = n.ty(lengths).clone();
    if ty.shape != [e.batch] || !ty.dtype.is_int() {
        return Err(format!("sequence lengths {ty} must be integers of shape [{}]", e.batch).into());
    }
    let known = n.literal(i).and_then(|l| l.ints());
    if let Some(bad) = known.iter().flatten().find(|&&l| l < 0 || l as u64 > e.time) {
        return Err(format!("sequence length {bad} is not between 0 and {}", e.time).into());
    }
    let column = n.reshaped(lengths, &[e.batch, 1])?;
    for (t, mask) in masks.iter_mut().enumerate() {
        if known.as_ref().is_some_and(|k| k.iter().all(|&l| l as u64 > t as u64)) {
            continue;
        }
        let now = Literal::from_ints(ty.dtype, &[], &[t as i64])?;
        let now = n.constant_value("time", &now)?;
        *mask = Some(n.temp(OpKind::Greater {}, &[column, now])?);
    }
    Ok(masks)
}

/// Joins one `[batch, k]` tensor per time step and direction, time outermost, to
/// `[time, directions, batch, k]`.
fn stacked(n: &mut NodeCx<'_, '_>, steps: &[ValueId], e: Extents) -> Made {
    let width = steps.first().and_then(|&v| n.ty(v).shape.last().copied()).unwrap_or(e.hidden);
    let all = match steps {
        [one] => *one,
        _ => n.temp(OpKind::Concat { axis: 0 }, steps)?,
    };
    n.reshaped(all, &[e.time, e.directions, e.batch, width])
}

/// Takes the room that unrolling a layer needs from what the import may unroll.
fn unroll(n: &mut NodeCx<'_, '_>, e: Extents) -> Done {
    if e.time == 0 {
        return unsupported("a layer over no time steps is not supported");
    }
    n.cx.unrolled.take(e.time, e.directions)
}
