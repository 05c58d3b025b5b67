//! Short spellings for operators that are imported as several ops.
//!
//! Every function appends what it says and names intermediate values after the node's first output.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, Def, OpKind, TensorType, ValueId};

use crate::constants::MAX_ELEMENTS;
use crate::context::{Made, NodeCx};
use crate::error::{Fault, unsupported};
use crate::tensor::Literal;

/// Bounds of a slice along every axis.
pub(crate) struct Bounds {
    pub starts: Vec<i64>,
    pub ends: Vec<i64>,
    pub steps: Vec<i64>,
}

impl Bounds {
    /// Bounds that take everything of a tensor of type `ty`.
    pub(crate) fn whole(ty: &TensorType) -> Bounds {
        let ends = ty.shape.iter().map(|&d| d as i64).collect();
        Bounds { starts: vec![0; ty.rank()], ends, steps: vec![1; ty.rank()] }
    }
}

impl NodeCx<'_, '_> {
    /// `a + b`.
    pub(crate) fn add(&mut self, a: ValueId, b: ValueId) -> Made {
        self.temp(OpKind::Add {}, &[a, b])
    }

    /// `a - b`.
    pub(crate) fn sub(&mut self, a: ValueId, b: ValueId) -> Made {
        self.temp(OpKind::Sub {}, &[a, b])
    }

    /// `a * b`.
    pub(crate) fn mul(&mut self, a: ValueId, b: ValueId) -> Made {
        self.temp(OpKind::Mul {}, &[a, b])
    }

    /// `a / b`.
    pub(crate) fn div(&mut self, a: ValueId, b: ValueId) -> Made {
        self.temp(OpKind::Div {}, &[a, b])
    }

    /// `cond ? a : b`.
    pub(crate) fn pick(&mut self, cond: ValueId, a: ValueId, b: ValueId) -> Made {
        self.temp(OpKind::Select {}, &[cond, a, b])
    }

    /// A scalar of the element type of `like`.
    pub(crate) fn number(&mut self, like: ValueId, what: &str, value: f32) -> Made {
        let to = self.ty(like).dtype;
        if !to.is_float() {
            let literal = Literal::from_ints(to, &[], &[value as i64])?;
            return self.constant_value(what, &literal);
        }
        let v = self.scalar(what, value)?;
        self.cast_to(v, to)
    }

    /// An `i64` scalar.
    pub(crate) fn integer(&mut self, what: &str, value: i64) -> Made {
        self.constant_value(what, &Literal::from_ints(DType::I64, &[], &[value])?)
    }

    /// `x` as a matrix of the axes before and from `axis`.
    pub(crate) fn matrix(&mut self, x: ValueId, axis: usize) -> Made {
        let (rows, columns) = self.ty(x).shape.split_at(axis);
        let shape = [rows.iter().product(), columns.iter().product()];
        self.reshaped(x, &shape)
    }

    /// `value` in element type `to`; `value` itself when it has that type.
    pub(crate) fn cast_to(&mut self, value: ValueId, to: DType) -> Made {
        if self.ty(value).dtype == to { Ok(value) } else { self.temp(OpKind::Cast { to }, &[value]) }
    }

    /// `x * factor`; `x` itself when `factor` is one.
    pub(crate) fn scaled(&mut self, x: ValueId, what: &str, factor: f32) -> Made {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.number(x, what, factor)?;
        self.mul(x, factor)
    }

    /// `x + term`; `x` itself when `term` is zero.
    pub(crate) fn shifted(&mut self, x: ValueId, what: &str, term: f32) -> Made {
        if term == 0.0 {
            return Ok(x);
        }
        let term = self.number(x, what, term)?;
        self.add(x, term)
    }

    /// The `p`-th root of a sum of `p`-th powers, with slope zero at zero: a plain root's is infinite there,
    /// that of the powers zero, and their product no number.
    pub(crate) fn norm(&mut self, powers: ValueId, p: i64) -> Made {
        let (zero, one) = (self.number(powers, "zero", 0.0)?, self.number(powers, "one", 1.0)?);
        let empty = self.temp(OpKind::Equal {}, &[powers, zero])?;
        let safe = self.pick(empty, one, powers)?;
        let root = if p == 2 {
            self.temp(OpKind::Sqrt {}, &[safe])?
        } else {
            let inverse = self.number(powers, "root", (1.0 / p as f64) as f32)?;
            self.temp(OpKind::Pow {}, &[safe, inverse])?
        };
        self.pick(empty, zero, root)
    }

    /// The sum over `axes`, which stay with extent one if `keepdims`.
    pub(crate) fn sum(&mut self, x: ValueId, axes: &[u64], keepdims: bool) -> Made {
        self.temp(OpKind::ReduceSum { axes: axes.to_vec(), keepdims }, &[x])
    }

    /// The mean over `axes`, which stay with extent one.
    pub(crate) fn mean(&mut self, x: ValueId, axes: &[u64]) -> Made {
        self.temp(OpKind::ReduceMean { axes: axes.to_vec(), keepdims: true }, &[x])
    }

    /// Elements `from` until `to` along `axis`, every `step`-th.
    pub(crate) fn cut(&mut self, x: ValueId, axis: usize, from: u64, to: u64, step: i64) -> Made {
        self.sliced(x, axis, from as i64, to as i64, step)
    }

    /// The elements in opposite order along `axis`.
    pub(crate) fn flipped(&mut self, x: ValueId, axis: usize) -> Made {
        let last = self.ty(x).shape[axis] as i64 - 1;
        self.sliced(x, axis, last.max(0), -1, -1)
    }

    fn sliced(&mut self, x: ValueId, axis: usize, start: i64, end: i64, step: i64) -> Made {
        let Bounds { mut starts, mut ends, mut steps } = Bounds::whole(self.ty(x));
        (starts[axis], ends[axis], steps[axis]) = (start, end, step);
        self.temp(OpKind::Slice { starts, ends, steps }, &[x])
    }

    /// `before` and `after` elements `value` around `axis`.
    pub(crate) fn padded(&mut self, x: ValueId, axis: usize, around: [u64; 2], value: f32) -> Made {
        let ty = self.ty(x);
        let value = if ty.dtype.is_float() { Scalar::Float(F32(value)) } else { Scalar::Int(value as i64) };
        let (mut before, mut after) = (vec![0; ty.rank()], vec![0; ty.rank()]);
        (before[axis], after[axis]) = (around[0], around[1]);
        self.temp(OpKind::Pad { before, after, value }, &[x])
    }

    /// The axes of `x` in the order `perm`.
    pub(crate) fn turned(&mut self, x: ValueId, perm: &[u64]) -> Made {
        self.temp(OpKind::Transpose { perm: perm.to_vec() }, &[x])
    }

    /// The numbers from zero to `count`, along `axis` of `rank` axes, whose other extents are one.
    pub(crate) fn iota(&mut self, count: u64, axis: usize, rank: usize) -> Made {
        let numbers: Vec<i64> = (0..self.small(count)? as i64).collect();
        let mut shape = vec![1; rank];
        shape[axis] = count;
        let literal = Literal::from_ints(DType::I64, &shape, &numbers)?;
        self.constant_value("iota", &literal)
    }

    /// `count`, when a constant of so many `i64` or fewer bytes may be computed.
    pub(crate) fn small(&mut self, count: u64) -> Result<u64, Fault> {
        if count > MAX_ELEMENTS {
            return unsupported(format!(
                "an extent of {count} is too large here; the most is {MAX_ELEMENTS}"
            ));
        }
        self.cx.folded.take(TensorType::new(DType::I64, [count]).bytes())?;
        Ok(count)
    }

    /// Binds output `i` to `value`, which takes its name when the node has computed it.
    pub(crate) fn yields(&mut self, i: usize, value: ValueId) {
        let Some(name) = self.output(i) else { return };
        let base = self.node.outputs.iter().find(|o| !o.is_empty()).map_or("", String::as_str);
        let own =
            self.cx.module.values[value].name.strip_prefix(base).is_some_and(|rest| rest.starts_with('/'));
        if own && matches!(self.cx.module.values[value].def, Def::Op(..)) {
            self.cx.module.rename(value, name);
        }
        self.bind(i, value);
    }
}
