//! Gradients that cover a part of their value, as those of slices do.
//!
//! Parts along one axis that do not overlap are joined into one contribution: a concatenation, with zeros in
//! the gaps. So the slices of a split cost one op and no additions. Parts that overlap go to different
//! contributions.

use std::collections::BTreeMap;

use crate::attr::{F32, Scalar};
use crate::entity::ValueId;
use crate::error::NoGradient;
use crate::module::Module;
use crate::ops::OpKind;

const ZERO: Scalar = Scalar::Float(F32(0.0));

struct Part {
    axis: usize,
    start: u64,
    grad: ValueId,
}

/// The parts of one value's gradient, in the order in which they arose.
#[derive(Default)]
pub(super) struct Parts {
    parts: Vec<Part>,
    origin: String,
}

impl Parts {
    /// Adds `grad`, which covers the positions from `start` on along `axis`.
    pub(super) fn add(&mut self, axis: usize, start: u64, grad: ValueId, origin: &str) {
        if self.parts.is_empty() {
            self.origin = origin.to_string();
        }
        self.parts.push(Part { axis, start, grad });
    }

    /// Appends ops that make contributions of `x`'s type out of the parts; each is new, with the origin for
    /// its sum.
    pub(super) fn join(mut self, m: &mut Module, x: ValueId) -> Result<Vec<(ValueId, String)>, NoGradient> {
        self.parts.sort_by_key(|p| (p.axis, p.start));
        let mut layers: Vec<Vec<Part>> = Vec::new();
        // Layers of each axis by their end. A part goes to the one that ends last before it.
        let mut ends: BTreeMap<(usize, u64, usize), ()> = BTreeMap::new();
        for part in self.parts {
            let end = part.start + m.values[part.grad].ty.shape[part.axis];
            let range = (part.axis, 0, 0)..=(part.axis, part.start, usize::MAX);
            let layer = match ends.range(range).next_back().map(|(&key, ())| key) {
                Some(key) => {
                    ends.remove(&key);
                    key.2
                }
                None => {
                    layers.push(Vec::new());
                    layers.len() - 1
                }
            };
            ends.insert((part.axis, end, layer), ());
            layers[layer].push(part);
        }
        let join = |layer: Vec<Part>| Ok((join_layer(m, x, &layer, &self.origin)?, self.origin.clone()));
        layers.into_iter().map(join).collect()
    }
}

/// One tensor of `x`'s type out of parts along one axis that ascend and do not overlap.
fn join_layer(m: &mut Module, x: ValueId, layer: &[Part], origin: &str) -> Result<ValueId, NoGradient> {
    let (whole, name) = (m.values[x].ty.clone(), format!("{}_grad", m.values[x].name));
    let axis = layer.first().map_or(0, |p| p.axis);
    let first = layer.first().map_or(0, |p| p.start);
    let op = |m: &mut Module, kind: OpKind, operands: &[ValueId]| -> Result<ValueId, NoGradient> {
        let hint = format!("{name}/{}", kind.mnemonic());
        Ok(m.add_op(kind, operands, &[&hint], origin)?[0])
    };
    let (mut pieces, mut end) = (Vec::new(), first);
    for part in layer {
        if part.start > end {
            let mut shape = whole.shape.clone();
            shape[axis] = part.start - end;
            pieces.push(op(m, OpKind::Fill { dtype: whole.dtype, shape, value: ZERO }, &[])?);
        }
        pieces.push(part.grad);
        end = part.start + m.values[part.grad].ty.shape[axis];
    }
    let joined = match pieces.as_slice() {
        [one] => *one,
        many => op(m, OpKind::Concat { axis: axis as i64 }, many)?,
    };
    let (mut before, mut after) = (vec![0; whole.rank()], vec![0; whole.rank()]);
    (before[axis], after[axis]) = (first, whole.shape[axis] - end);
    if before[axis] + after[axis] == 0 {
        return Ok(joined);
    }
    op(m, OpKind::Pad { before, after, value: ZERO }, &[joined])
}
