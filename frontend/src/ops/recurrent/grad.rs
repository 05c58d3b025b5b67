//! ONNX Runtime's gradient of the LSTM.
//!
//! `LSTMGrad(X, W, R, lengths, h0, c0, H, C, IOFC, dH, dH_last, dC_last) -> (dX, dW, dR, dB, dh0, dc0)` with
//! the states and gate activations that `LSTMTraining` saved. Where those are joins of per-step tensors of
//! this graph, the tensors are used themselves, so that the joins need not exist.

use memc_ir::attr::F32;
use memc_ir::{Code, Def, OpKind, ValueId};

use super::{Extents, cut, directions, extents, initial, part, product, unroll};
use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};

/// `value` as `count` parts along `axis` of a matrix, seen through views: the tensors it was joined from when
/// they are exactly those parts, else slices.
fn parts(n: &mut NodeCx<'_, '_>, value: ValueId, axis: usize, shape: [u64; 2], count: u64) -> Parts {
    let module = &n.cx.module;
    let mut at = value;
    let mut want = shape;
    want[axis] /= count.max(1);
    while let Def::Op(op, 0) = module.values[at].def {
        let op = &module.ops[op];
        match &op.code {
            Code::Compute(OpKind::Reshape { .. }) => at = op.operands[0],
            Code::Compute(OpKind::Concat { axis: joined })
                if *joined == axis as i64
                    && op.operands.len() as u64 == count
                    && op.operands.iter().all(|&v| module.values[v].ty.shape == want) =>
            {
                return Parts::Joined(op.operands.clone());
            }
            Code::Compute(_) | Code::SwapOut | Code::SwapIn | Code::Alloc(_) | Code::Free(_) => break,
        }
    }
    Parts::Whole { value, axis, shape }
}

/// Parts of a matrix.
enum Parts {
    Joined(Vec<ValueId>),
    Whole { value: ValueId, axis: usize, shape: [u64; 2] },
}

impl Parts {
    /// Part `i` of `count`.
    fn get(&mut self, n: &mut NodeCx<'_, '_>, i: u64, count: u64) -> Made {
        match self {
            Parts::Joined(list) => Ok(list[i as usize]),
            Parts::Whole { value, axis, shape } => {
                *value = n.reshaped(*value, shape)?;
                let width = shape[*axis] / count.max(1);
                cut(n, *value, *axis, i * width, (i + 1) * width)
            }
        }
    }
}

/// The gradient of one direction.
struct Pass {
    e: Extents,
    d: u64,
    h: Parts,
    c: Parts,
    gates: Parts,
    dh: Option<Parts>,
    r: ValueId,
}

/// `LSTMGrad`.
pub(crate) fn lstm_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let reverse = directions(n)?;
    let (x, w, r) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let e = extents(n, x, [w, r], 4, reverse.len())?;
    unroll(n, e)?;
    let plain = !n.flag("input_forget", false)? && n.float("clip", 0.0)? <= 0.0;
    if !plain || n.texts("activations")?.is_some() {
        return unsupported("only the default activations without clip and input_forget are supported");
    }
    let full = |l: Option<Vec<i64>>| l.is_some_and(|l| l.iter().all(|&l| l as u64 == e.time));
    if n.input(3).is_some() && !full(n.literal(3).and_then(|l| l.ints())) {
        return unsupported("sequences of different lengths are not supported");
    }
    let rows = [e.time, e.directions, e.batch].iter().try_fold(1u64, |p, &d| p.checked_mul(d));
    let rows = rows.ok_or("its extents are too large")?;
    let saved = [e.time, e.directions, e.batch, e.hidden];
    for (i, width) in [(6, 1), (7, 1), (8, 4), (9, 1)] {
        let Some(v) = n.optional(i)? else { continue };
        let want = [saved[0], saved[1], saved[2], width * saved[3]];
        if n.ty(v).shape != want {
            return Err(format!("input {i}, {}, must have shape {want:?}", n.ty(v)).into());
        }
    }
    let flat = n.reshaped(x, &[e.time * e.batch, e.inputs])?;
    let mut out: [Vec<ValueId>; 6] = Default::default();
    let steps = e.time * e.directions;
    for (d, &backwards) in reverse.iter().enumerate() {
        let (h, c, gates) = (n.operand(6)?, n.operand(7)?, n.operand(8)?);
        let dh = n.optional(9)?;
        let mut pass = Pass {
            e,
            d: d as u64,
            h: parts(n, h, 0, [rows, e.hidden], steps),
            c: parts(n, c, 0, [rows, e.hidden], steps),
            gates: parts(n, gates, 0, [rows, 4 * e.hidden], steps),
            dh: dh.map(|dh| parts(n, dh, 0, [rows, e.hidden], steps)),
            r: part(n, r, d, reverse.len())?,
        };
        let order: Vec<u64> = if backwards { (0..e.time).rev().collect() } else { (0..e.time).collect() };
        let (gates, before, dh0, dc0) = pass.run(n, &order)?;
        let joined = |n: &mut NodeCx<'_, '_>, list: &[ValueId]| match list {
            [one] => Ok(*one),
            _ => n.temp(OpKind::Concat { axis: 0 }, list),
        };
        let dz = joined(n, &gates)?;
        let transposed = |n: &mut NodeCx<'_, '_>, a, b| {
            n.temp(OpKind::MatMul { trans_a: true, trans_b: false, alpha: F32(1.0) }, &[a, b])
        };
        if n.wants(0) {
            let w = part(n, w, d, reverse.len())?;
            out[0].push(product(n, dz, w, false)?);
        }
        if n.wants(1) {
            out[1].push(transposed(n, dz, flat)?);
        }
        if n.wants(2) {
            let before = joined(n, &before)?;
            out[2].push(transposed(n, dz, before)?);
        }
        if n.wants(3) {
            let bias = n.temp(OpKind::ReduceSum { axes: vec![0], keepdims: false }, &[dz])?;
            out[3].push(n.temp(OpKind::Concat { axis: 0 }, &[bias, bias])?);
        }
        out[4].push(dh0);
        out[5].push(dc0);
    }
    finish(n, e, &out)
}

/// Binds the gradients: the input's is the sum of the directions', the others have the directions side by
/// side.
fn finish(n: &mut NodeCx<'_, '_>, e: Extents, out: &[Vec<ValueId>; 6]) -> Done {
    let (d, rows) = (e.directions, 4 * e.hidden);
    let shapes: [&[u64]; 6] = [
        &[e.time, e.batch, e.inputs],
        &[d, rows, e.inputs],
        &[d, rows, e.hidden],
        &[d, 2 * rows],
        &[d, e.batch, e.hidden],
        &[d, e.batch, e.hidden],
    ];
    for (i, (list, shape)) in out.iter().zip(shapes).enumerate() {
        if !n.wants(i) {
            continue;
        }
        let all = match list[..] {
            [one] => one,
            [a, b] if i == 0 => n.add(a, b)?,
            _ => n.temp(OpKind::Concat { axis: 0 }, list)?,
        };
        n.finish_at(i, OpKind::Reshape { shape: shape.to_vec() }, &[all])?;
    }
    Ok(())
}

/// Gate gradients and previous hidden states by time, and the gradients of the initial states.
type Passed = (Vec<ValueId>, Vec<ValueId>, ValueId, ValueId);

impl Pass {
    /// Goes through `order`, in which the forward pass ran, from its end.
    fn run(&mut self, n: &mut NodeCx<'_, '_>, order: &[u64]) -> Result<Passed, Fault> {
        let (e, d) = (self.e, self.d);
        let (h0, c0) = (initial(n, 4, d as usize, e, false)?, initial(n, 5, d as usize, e, false)?);
        let steps = e.time * e.directions;
        let last = |n: &mut NodeCx<'_, '_>, i: usize| match n.optional(i)? {
            Some(v) => part(n, v, d as usize, e.directions as usize).map(Some),
            None => Ok(None),
        };
        let (mut dh, mut dc) = (last(n, 10)?, last(n, 11)?);
        let mut gates = vec![None; order.len()];
        let mut before = vec![None; order.len()];
        for (k, &t) in order.iter().enumerate().rev() {
            let at = t * e.directions + d;
            let previous = k.checked_sub(1).map(|k| order[k] * e.directions + d);
            let c = self.c.get(n, at, steps)?;
            let (h_before, c_before) = match previous {
                Some(p) => (self.h.get(n, p, steps)?, self.c.get(n, p, steps)?),
                None => (h0, c0),
            };
            if let Some(all) = &mut self.dh {
                let own = all.get(n, at, steps)?;
                dh = Some(added(n, dh, own)?);
            }
            let all = self.gates.get(n, at, steps)?;
            let mut four = parts(n, all, 1, [e.batch, 4 * e.hidden], 4);
            let [i, o, f, g] = [0, 1, 2, 3].map(|k| four.get(n, k, 4));
            let saved = Saved { c, c_before, i: i?, o: o?, f: f?, g: g? };
            let now = match dh {
                Some(dh) => dh,
                None => super::zeros(n, e)?,
            };
            let (dz, dc_before) = saved.step(n, now, dc)?;
            dc = Some(dc_before);
            dh = Some(product(n, dz, self.r, false)?);
            gates[t as usize] = Some(dz);
            before[t as usize] = Some(h_before);
        }
        let (Some(dh), Some(dc)) = (dh, dc) else { return Err("there are no time steps".into()) };
        Ok((gates.into_iter().flatten().collect(), before.into_iter().flatten().collect(), dh, dc))
    }
}

fn added(n: &mut NodeCx<'_, '_>, sum: Option<ValueId>, more: ValueId) -> Made {
    match sum {
        Some(sum) => n.add(sum, more),
        None => Ok(more),
    }
}

/// Tensors that the forward pass saved of one time step.
struct Saved {
    c: ValueId,
    c_before: ValueId,
    i: ValueId,
    o: ValueId,
    f: ValueId,
    g: ValueId,
}

impl Saved {
    /// From the gradients of hidden and cell state: those of the gates' sums and of the previous cell state.
    fn step(
        &self,
        n: &mut NodeCx<'_, '_>,
        dh: ValueId,
        dc: Option<ValueId>,
    ) -> Result<(ValueId, ValueId), Fault> {
        let shown = n.temp(OpKind::Tanh {}, &[self.c])?;
        let d_output = n.mul(dh, shown)?;
        let d_shown = n.mul(dh, self.o)?;
        let through = n.temp(OpKind::TanhGrad {}, &[d_shown, shown])?;
        let dc = added(n, dc, through)?;
        let d_input = n.mul(dc, self.g)?;
        let d_forget = n.mul(dc, self.c_before)?;
        let d_candidate = n.mul(dc, self.i)?;
        let zi = n.temp(OpKind::SigmoidGrad {}, &[d_input, self.i])?;
        let zo = n.temp(OpKind::SigmoidGrad {}, &[d_output, self.o])?;
        let zf = n.temp(OpKind::SigmoidGrad {}, &[d_forget, self.f])?;
        let zg = n.temp(OpKind::TanhGrad {}, &[d_candidate, self.g])?;
        let dz = n.temp(OpKind::Concat { axis: 1 }, &[zi, zo, zf, zg])?;
        Ok((dz, n.mul(dc, self.f)?))
    }
}
