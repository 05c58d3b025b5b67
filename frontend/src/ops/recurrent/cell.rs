//! The forward pass of recurrent layers: LSTM, GRU and the plain cell.

use memc_ir::{OpKind, ValueId};

use super::activation::Activation;
use super::{
    Extents, cut, directions, extents, gemm, initial, part, product, running, stacked, swapped, unroll, zeros,
};
use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};

/// Parts that all recurrent layers share.
struct Layer {
    e: Extents,
    reverse: &'static [bool],
    batch_first: bool,
    clip: Option<f32>,
    /// Activations of all directions.
    activations: Vec<Activation>,
    /// The input, `[time * batch, inputs]`.
    x: ValueId,
    /// Per time step which sequences are running.
    running: Vec<Option<ValueId>>,
}

/// One direction's weights.
struct Weights {
    /// `[gates * hidden, inputs]`.
    w: ValueId,
    /// `[gates * hidden, hidden]`.
    r: ValueId,
    /// Input and recurrent bias, `[gates * hidden]` each.
    bias: Option<[ValueId; 2]>,
}

impl Layer {
    /// Reads inputs 0 (input), 1 and 2 (weights) and 4 (lengths).
    fn read(n: &mut NodeCx<'_, '_>, gates: u64, activations: &[&str]) -> Result<Layer, Fault> {
        let reverse = directions(n)?;
        let batch_first = match n.int("layout", 0)? {
            0 => false,
            1 => true,
            other => return Err(format!("there is no layout {other}").into()),
        };
        let mut x = n.operand(0)?;
        if batch_first {
            x = swapped(n, x)?;
        }
        let weights = [n.operand(1)?, n.operand(2)?];
        let e = extents(n, x, weights, gates, reverse.len())?;
        unroll(n, e)?;
        let clip = n.float("clip", 0.0)?;
        let x = n.reshaped(x, &[e.time * e.batch, e.inputs])?;
        Ok(Layer {
            e,
            reverse,
            batch_first,
            clip: (clip > 0.0).then_some(clip),
            activations: Activation::read(n, activations, reverse.len())?,
            x,
            running: running(n, 4, e)?,
        })
    }

    fn weights(&self, n: &mut NodeCx<'_, '_>, d: usize, gates: u64) -> Result<Weights, Fault> {
        let (w, r) = (n.operand(1)?, n.operand(2)?);
        let (w, r) = (part(n, w, d, self.reverse.len())?, part(n, r, d, self.reverse.len())?);
        let rows = gates * self.e.hidden;
        let bias = match n.optional(3)? {
            None => None,
            Some(b) if n.ty(b).shape == [self.e.directions, 2 * rows] => {
                let b = part(n, b, d, self.reverse.len())?;
                Some([cut(n, b, 0, 0, rows)?, cut(n, b, 0, rows, 2 * rows)?])
            }
            Some(b) => {
                let want = format!("[{}, {}]", self.e.directions, 2 * rows);
                return Err(format!("bias {} must have shape {want}", n.ty(b)).into());
            }
        };
        Ok(Weights { w, r, bias })
    }

    /// The input's part of all time steps, plus `bias`: `[time * batch, gates * hidden]`.
    fn project(&self, n: &mut NodeCx<'_, '_>, w: ValueId, bias: Option<ValueId>) -> Made {
        match bias {
            Some(bias) => gemm(n, self.x, w, bias),
            None => product(n, self.x, w, true),
        }
    }

    /// The rows of time step `t` of `projected`.
    fn at(&self, n: &mut NodeCx<'_, '_>, projected: ValueId, t: usize) -> Made {
        cut(n, projected, 0, t as u64 * self.e.batch, (t as u64 + 1) * self.e.batch)
    }

    /// The time steps of direction `d` in the order in which they run.
    fn times(&self, d: usize) -> Vec<usize> {
        let times = 0..self.e.time as usize;
        if self.reverse[d] { times.rev().collect() } else { times.collect() }
    }

    /// Columns `gate * hidden ..` of a step's gates.
    fn gate(&self, n: &mut NodeCx<'_, '_>, z: ValueId, gate: u64) -> Made {
        cut(n, z, 1, gate * self.e.hidden, (gate + 1) * self.e.hidden)
    }

    /// `new` where sequences run at `t`, else `old`.
    fn kept(&self, n: &mut NodeCx<'_, '_>, t: usize, new: ValueId, old: ValueId) -> Made {
        match self.running[t] {
            Some(mask) => n.pick(mask, new, old),
            None => Ok(new),
        }
    }

    /// Output of the layer at `t`: zeros for sequences that have ended.
    fn given(&self, n: &mut NodeCx<'_, '_>, t: usize, h: ValueId) -> Made {
        match self.running[t] {
            Some(_) => {
                let zero = zeros(n, self.e)?;
                self.kept(n, t, h, zero)
            }
            None => Ok(h),
        }
    }

    /// Binds output `i` to one tensor per time step and direction.
    fn bind_steps(&self, n: &mut NodeCx<'_, '_>, i: usize, steps: &[ValueId]) -> Done {
        if !n.wants(i) {
            return Ok(());
        }
        let mut all = stacked(n, steps, self.e)?;
        if self.batch_first {
            all = n.temp(OpKind::Transpose { perm: vec![2, 0, 1, 3] }, &[all])?;
        }
        n.bind(i, all);
        Ok(())
    }

    /// Binds output `i` to one tensor per direction.
    fn bind_last(&self, n: &mut NodeCx<'_, '_>, i: usize, last: &[ValueId]) -> Done {
        if !n.wants(i) {
            return Ok(());
        }
        let all = match last {
            [one] => *one,
            _ => n.temp(OpKind::Concat { axis: 0 }, last)?,
        };
        let mut all = n.reshaped(all, &[self.e.directions, self.e.batch, self.e.hidden])?;
        if self.batch_first {
            all = swapped(n, all)?;
        }
        n.bind(i, all);
        Ok(())
    }
}

/// One `[batch, ..]` tensor per time step and direction, time outermost, filled in any order.
struct Steps {
    values: Vec<Option<ValueId>>,
    directions: usize,
}

impl Steps {
    fn new(e: Extents) -> Steps {
        let directions = e.directions as usize;
        Steps { values: vec![None; e.time as usize * directions], directions }
    }
    fn set(&mut self, t: usize, d: usize, value: ValueId) {
        self.values[t * self.directions + d] = Some(value);
    }
    fn all(&self) -> Vec<ValueId> {
        self.values.iter().flatten().copied().collect()
    }
}

/// The sum of input and recurrent bias.
fn whole_bias(n: &mut NodeCx<'_, '_>, bias: Option<[ValueId; 2]>) -> Result<Option<ValueId>, Fault> {
    bias.map(|[w, r]| n.add(w, r)).transpose()
}

/// `RNN`: `h = f(x W + h R + b)`.
pub(crate) fn rnn(n: &mut NodeCx<'_, '_>) -> Done {
    let layer = Layer::read(n, 1, &["Tanh"])?;
    let mut given = Steps::new(layer.e);
    let mut last = Vec::new();
    for d in 0..layer.reverse.len() {
        let Weights { w, r, bias } = layer.weights(n, d, 1)?;
        let bias = whole_bias(n, bias)?;
        let projected = layer.project(n, w, bias)?;
        let mut h = initial(n, 5, d, layer.e, layer.batch_first)?;
        for t in layer.times(d) {
            let x = layer.at(n, projected, t)?;
            let z = gemm(n, h, r, x)?;
            let new = layer.activations[d].of(n, z, layer.clip)?;
            given.set(t, d, layer.given(n, t, new)?);
            h = layer.kept(n, t, new, h)?;
        }
        last.push(h);
    }
    layer.bind_steps(n, 0, &given.all())?;
    layer.bind_last(n, 1, &last)
}

/// `GRU`; gates are update, reset, hidden.
pub(crate) fn gru(n: &mut NodeCx<'_, '_>) -> Done {
    let layer = Layer::read(n, 3, &["Sigmoid", "Tanh"])?;
    let before_reset = n.flag("linear_before_reset", false)?;
    let hidden = layer.e.hidden;
    let one = n.scalar("one", 1.0)?;
    let mut given = Steps::new(layer.e);
    let mut last = Vec::new();
    for d in 0..layer.reverse.len() {
        let Weights { w, r, bias } = layer.weights(n, d, 3)?;
        let (gates_r, hidden_r) = (cut(n, r, 0, 0, 2 * hidden)?, cut(n, r, 0, 2 * hidden, 3 * hidden)?);
        // With `linear_before_reset` the recurrent bias of the hidden gate is reset with its product.
        let (bias, inner) = match bias {
            Some([wb, rb]) if before_reset => {
                let inner = cut(n, rb, 0, 2 * hidden, 3 * hidden)?;
                let gates = cut(n, rb, 0, 0, 2 * hidden)?;
                let padded = n.padded(gates, 0, [0, hidden], 0.0)?;
                (Some(n.add(wb, padded)?), Some(inner))
            }
            bias => (whole_bias(n, bias)?, None),
        };
        let projected = layer.project(n, w, bias)?;
        let mut h = initial(n, 5, d, layer.e, layer.batch_first)?;
        let [f, g] = [layer.activations[2 * d], layer.activations[2 * d + 1]];
        for t in layer.times(d) {
            let x = layer.at(n, projected, t)?;
            let x_gates = cut(n, x, 1, 0, 2 * hidden)?;
            let gates = gemm(n, h, gates_r, x_gates)?;
            let (z, r) = (layer.gate(n, gates, 0)?, layer.gate(n, gates, 1)?);
            let (z, r) = (f.of(n, z, layer.clip)?, f.of(n, r, layer.clip)?);
            let x = layer.gate(n, x, 2)?;
            let candidate = if before_reset {
                let linear = match inner {
                    Some(bias) => gemm(n, h, hidden_r, bias)?,
                    None => product(n, h, hidden_r, true)?,
                };
                let reset = n.mul(r, linear)?;
                n.add(x, reset)?
            } else {
                let reset = n.mul(r, h)?;
                gemm(n, reset, hidden_r, x)?
            };
            let candidate = g.of(n, candidate, layer.clip)?;
            let rest = n.sub(one, z)?;
            let (fresh, old) = (n.mul(rest, candidate)?, n.mul(z, h)?);
            let new = n.add(fresh, old)?;
            given.set(t, d, layer.given(n, t, new)?);
            h = layer.kept(n, t, new, h)?;
        }
        last.push(h);
    }
    layer.bind_steps(n, 0, &given.all())?;
    layer.bind_last(n, 1, &last)
}

/// `LSTM`; gates are input, output, forget, cell.
pub(crate) fn lstm(n: &mut NodeCx<'_, '_>) -> Done {
    unroll_lstm(n, false)
}

/// Microsoft's `LSTMTraining`, which also gives the cell states of all time steps and the gates' activations.
pub(crate) fn lstm_training(n: &mut NodeCx<'_, '_>) -> Done {
    unroll_lstm(n, true)
}

fn unroll_lstm(n: &mut NodeCx<'_, '_>, training: bool) -> Done {
    let layer = Layer::read(n, 4, &["Sigmoid", "Tanh", "Tanh"])?;
    let hidden = layer.e.hidden;
    let coupled = n.flag("input_forget", false)?;
    let (mut given, mut cells, mut gates) = (Steps::new(layer.e), Steps::new(layer.e), Steps::new(layer.e));
    let (mut last, mut last_cell) = (Vec::new(), Vec::new());
    for d in 0..layer.reverse.len() {
        let Weights { w, r, bias } = layer.weights(n, d, 4)?;
        let bias = whole_bias(n, bias)?;
        let projected = layer.project(n, w, bias)?;
        let mut h = initial(n, 5, d, layer.e, layer.batch_first)?;
        let mut c = initial(n, 6, d, layer.e, layer.batch_first)?;
        let peepholes = match n.optional(7)? {
            None => None,
            Some(p) if n.ty(p).shape == [layer.e.directions, 3 * hidden] => {
                let p = part(n, p, d, layer.reverse.len())?;
                let [i, o, f] = [0, 1, 2].map(|k| cut(n, p, 0, k * hidden, (k + 1) * hidden));
                Some([i?, o?, f?])
            }
            Some(p) => {
                let want = format!("[{}, {}]", layer.e.directions, 3 * hidden);
                return Err(format!("peephole weights {} must have shape {want}", n.ty(p)).into());
            }
        };
        let functions =
            [layer.activations[3 * d], layer.activations[3 * d + 1], layer.activations[3 * d + 2]];
        let cell = Cell { layer: &layer, functions, peepholes, coupled };
        for t in layer.times(d) {
            let x = layer.at(n, projected, t)?;
            let z = gemm(n, h, r, x)?;
            let [new, new_c, i, o, f, g] = cell.step(n, z, c)?;
            given.set(t, d, layer.given(n, t, new)?);
            h = layer.kept(n, t, new, h)?;
            c = layer.kept(n, t, new_c, c)?;
            cells.set(t, d, c);
            if training && n.wants(4) {
                gates.set(t, d, n.temp(OpKind::Concat { axis: 1 }, &[i, o, f, g])?);
            }
        }
        last.push(h);
        last_cell.push(c);
    }
    layer.bind_steps(n, 0, &given.all())?;
    layer.bind_last(n, 1, &last)?;
    layer.bind_last(n, 2, &last_cell)?;
    if training && layer.batch_first {
        return unsupported("layout 1 is not supported");
    }
    if training {
        layer.bind_steps(n, 3, &cells.all())?;
        layer.bind_steps(n, 4, &gates.all())?;
    }
    Ok(())
}

/// An LSTM cell of one direction.
struct Cell<'l> {
    layer: &'l Layer,
    /// Of the gates, the candidate and the cell state.
    functions: [Activation; 3],
    /// Input, output, forget.
    peepholes: Option<[ValueId; 3]>,
    /// Whether the forget gate is the input gate's complement.
    coupled: bool,
}

impl Cell<'_> {
    /// From the gates' sums and the previous cell state: the new hidden state, the new cell state, and the
    /// activations of input, output, forget and candidate.
    fn step(&self, n: &mut NodeCx<'_, '_>, z: ValueId, c: ValueId) -> Result<[ValueId; 6], Fault> {
        let clip = self.layer.clip;
        let [f_gate, f_candidate, f_cell] = self.functions;
        let peep = |n: &mut NodeCx<'_, '_>, z: ValueId, which: usize, c: ValueId| match self.peepholes {
            None => Ok(z),
            Some(p) => {
                let seen = n.mul(p[which], c)?;
                n.add(z, seen)
            }
        };
        let i = self.layer.gate(n, z, 0)?;
        let i = peep(n, i, 0, c)?;
        let i = f_gate.of(n, i, clip)?;
        let f = if self.coupled {
            let one = n.scalar("one", 1.0)?;
            n.sub(one, i)?
        } else {
            let f = self.layer.gate(n, z, 2)?;
            let f = peep(n, f, 2, c)?;
            f_gate.of(n, f, clip)?
        };
        let g = self.layer.gate(n, z, 3)?;
        let g = f_candidate.of(n, g, clip)?;
        let (kept, fresh) = (n.mul(f, c)?, n.mul(i, g)?);
        let new_c = n.add(kept, fresh)?;
        let o = self.layer.gate(n, z, 1)?;
        let o = peep(n, o, 1, new_c)?;
        let o = f_gate.of(n, o, clip)?;
        let shown = f_cell.of(n, new_c, clip)?;
        let h = n.mul(o, shown)?;
        Ok([h, new_c, i, o, f, g])
    }
}
