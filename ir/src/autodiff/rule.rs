//! Context of a gradient rule: the op, the gradients of its results, and appending ops.
//!
//! A rule hands out at most one gradient for each operand, of exactly the operand's type. It does not add up
//! contributions of several uses; the sweep does.

use std::collections::BTreeMap;

use crate::attr::{F32, Scalar};
use crate::entity::{OpId, ValueId};
use crate::error::NoGradient;
use crate::module::Module;
use crate::ops::OpKind;
use crate::types::{DType, TensorType};

/// Scalar constants by element type and bits, shared by all rules of a sweep.
pub(super) type Constants = BTreeMap<(DType, u32), ValueId>;

/// Outcome of a rule; the error says why there is no gradient.
pub(super) type Done = Result<(), NoGradient>;

/// One element of a floating-point type.
pub(super) fn float_bytes(dtype: DType, value: f32) -> Vec<u8> {
    Scalar::Float(F32(value)).to_bytes(dtype).unwrap_or_default()
}

/// A gradient that a rule hands out.
pub(super) struct Given {
    /// Index of the operand.
    pub(super) operand: usize,
    /// Of the operand's type, unless it is a part.
    pub(super) grad: ValueId,
    /// The axis and the first position along it that `grad` covers; the gradient is zero elsewhere.
    pub(super) part: Option<(usize, u64)>,
}

/// The application of a gradient rule to one op.
pub(super) struct Rule<'m> {
    m: &'m mut Module,
    constants: &'m mut Constants,
    operands: Vec<ValueId>,
    results: Vec<ValueId>,
    dy: Vec<Option<ValueId>>,
    wants: Vec<bool>,
    given: Vec<Given>,
    made: Vec<ValueId>,
    origin: String,
    hint: String,
}

impl<'m> Rule<'m> {
    /// For the op `id`, with the gradients `dy` of its results, and which operands want theirs.
    pub(super) fn new(
        m: &'m mut Module,
        id: OpId,
        dy: Vec<Option<ValueId>>,
        wants: Vec<bool>,
        constants: &'m mut Constants,
    ) -> Self {
        let op = &m.ops[id];
        let origin = if op.origin.is_empty() { String::new() } else { format!("{}_Grad", op.origin) };
        let (operands, results) = (op.operands.clone(), op.results.clone());
        let hint = results.first().map_or_else(String::new, |&v| format!("{}_grad", m.values[v].name));
        Self { m, constants, operands, results, dy, wants, given: vec![], made: vec![], origin, hint }
    }

    /// The gradients handed out, by operand, and the values made.
    pub(super) fn finish(self) -> (Vec<Given>, Vec<ValueId>) {
        (self.given, self.made)
    }

    /// Operand `i`.
    pub(super) fn x(&self, i: usize) -> ValueId {
        self.operands[i]
    }

    /// Number of operands.
    pub(super) fn arity(&self) -> usize {
        self.operands.len()
    }

    /// Result `i`.
    pub(super) fn y(&self, i: usize) -> ValueId {
        self.results[i]
    }

    /// The gradient of result `i`, where the loss depends on it.
    pub(super) fn dy_of(&self, i: usize) -> Option<ValueId> {
        self.dy[i]
    }

    /// The gradient of the only result.
    pub(super) fn dy(&self) -> Result<ValueId, NoGradient> {
        self.dy[0].ok_or_else(|| "its result has no gradient".into())
    }

    /// Whether operand `i` exists and wants a gradient.
    pub(super) fn wants(&self, i: usize) -> bool {
        self.wants.get(i).copied().unwrap_or(false)
    }

    /// The type of a value.
    pub(super) fn ty(&self, v: ValueId) -> &TensorType {
        &self.m.values[v].ty
    }

    /// The extents of a value.
    pub(super) fn shape(&self, v: ValueId) -> Vec<u64> {
        self.ty(v).shape.clone()
    }

    /// The module, read-only.
    pub(super) fn module(&self) -> &Module {
        self.m
    }

    /// Hands `grad` to operand `i`, unless that wants none.
    pub(super) fn give(&mut self, i: usize, grad: ValueId) -> Done {
        if !self.wants(i) {
            return Ok(());
        }
        if self.ty(grad) != self.ty(self.x(i)) {
            return Err(
                format!("its gradient is {}, its operand {}", self.ty(grad), self.ty(self.x(i))).into()
            );
        }
        self.given.push(Given { operand: i, grad, part: None });
        Ok(())
    }

    /// Hands `grad` to the positions of operand `i` from `start` on along `axis`, and zero to the others.
    pub(super) fn give_part(&mut self, i: usize, grad: ValueId, axis: usize, start: u64) -> Done {
        let (part, whole) = (self.ty(grad), self.ty(self.x(i)));
        let extent = part.shape.get(axis).and_then(|d| d.checked_add(start));
        if part.dtype != whole.dtype
            || part.rank() != whole.rank()
            || extent.is_none_or(|end| end > whole.shape[axis])
        {
            return Err(
                format!("its gradient is {part} from {start} on axis {axis}, its operand {whole}").into()
            );
        }
        self.given.push(Given { operand: i, grad, part: Some((axis, start)) });
        Ok(())
    }

    /// Appends an op and returns all its results.
    pub(super) fn ops(&mut self, kind: OpKind, operands: &[ValueId]) -> Result<Vec<ValueId>, NoGradient> {
        let count = kind.result_count(operands.len());
        let names = vec![format!("{}/{}", self.hint, kind.mnemonic()); count];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let results = self.m.add_op(kind, operands, &names, &self.origin)?;
        self.made.extend(&results);
        Ok(results)
    }

    /// Appends an op and returns its first result.
    pub(super) fn op(&mut self, kind: OpKind, operands: &[ValueId]) -> Result<ValueId, NoGradient> {
        Ok(self.ops(kind, operands)?[0])
    }

    /// `a + b`, broadcasting.
    pub(super) fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, NoGradient> {
        self.op(OpKind::Add {}, &[a, b])
    }

    /// `a - b`, broadcasting.
    pub(super) fn sub(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, NoGradient> {
        self.op(OpKind::Sub {}, &[a, b])
    }

    /// `a * b`, broadcasting.
    pub(super) fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, NoGradient> {
        self.op(OpKind::Mul {}, &[a, b])
    }

    /// `a / b`, broadcasting.
    pub(super) fn div(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, NoGradient> {
        self.op(OpKind::Div {}, &[a, b])
    }

    /// `-a`.
    pub(super) fn neg(&mut self, a: ValueId) -> Result<ValueId, NoGradient> {
        self.op(OpKind::Neg {}, &[a])
    }

    /// `a * factor`.
    pub(super) fn scaled(&mut self, a: ValueId, factor: f32) -> Result<ValueId, NoGradient> {
        if factor == 1.0 {
            return Ok(a);
        }
        let factor = self.scalar(self.ty(a).dtype, factor);
        self.mul(a, factor)
    }

    /// `cond ? a : b`, broadcasting.
    pub(super) fn select(&mut self, cond: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, NoGradient> {
        self.op(OpKind::Select {}, &[cond, a, b])
    }

    /// A constant of one element and no axes.
    pub(super) fn scalar(&mut self, dtype: DType, value: f32) -> ValueId {
        let key = (dtype, value.to_bits());
        if let Some(&known) = self.constants.get(&key) {
            return known;
        }
        let data = float_bytes(dtype, value);
        let made = self.m.add_const("grad_const", TensorType::scalar(dtype), data);
        self.constants.insert(key, made);
        made
    }

    /// A tensor of type `ty` with every element `value`.
    pub(super) fn filled(&mut self, ty: &TensorType, value: f32) -> Result<ValueId, NoGradient> {
        let (dtype, shape) = (ty.dtype, ty.shape.clone());
        self.op(OpKind::Fill { dtype, shape, value: Scalar::Float(F32(value)) }, &[])
    }

    /// The elements of `v` under `shape`.
    pub(super) fn reshaped(&mut self, v: ValueId, shape: &[u64]) -> Result<ValueId, NoGradient> {
        if self.ty(v).shape == shape {
            return Ok(v);
        }
        self.op(OpKind::Reshape { shape: shape.to_vec() }, &[v])
    }

    /// `v` broadcast to `shape`.
    pub(super) fn broadcast(&mut self, v: ValueId, shape: &[u64]) -> Result<ValueId, NoGradient> {
        if self.ty(v).shape == shape {
            return Ok(v);
        }
        self.op(OpKind::Broadcast { shape: shape.to_vec() }, &[v])
    }

    /// Sum over `axes`, which stay with extent 1 when `keepdims`.
    pub(super) fn sum(&mut self, v: ValueId, axes: &[u64], keepdims: bool) -> Result<ValueId, NoGradient> {
        if axes.is_empty() {
            return Ok(v);
        }
        self.op(OpKind::ReduceSum { axes: axes.to_vec(), keepdims }, &[v])
    }

    /// The adjoint of broadcasting from `shape`: sums `v` over the axes that broadcasting added or repeated.
    pub(super) fn sum_to(&mut self, v: ValueId, shape: &[u64]) -> Result<ValueId, NoGradient> {
        let from = self.shape(v);
        let added = from.len().saturating_sub(shape.len());
        let repeated = |&i: &usize| i < added || (shape[i - added] == 1 && from[i] != 1);
        let axes: Vec<u64> = (0..from.len()).filter(repeated).map(|i| i as u64).collect();
        let keepdims = added == 0;
        let sum = self.sum(v, &axes, keepdims)?;
        self.reshaped(sum, shape)
    }
}
