//! Tensors of doubles and exact integers, and walking them by multi-index.

use memc_ir::attr::Scalar;
use memc_ir::{DType, TensorType};

use crate::error::EvalError;

/// The elements of a tensor, row-major.
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    /// Of a floating-point tensor.
    Float(Vec<f64>),
    /// Of an integer tensor, or of a boolean one as 0 and 1.
    Int(Vec<i64>),
}

/// Return of a family's function: the data of every result.
pub(crate) type Results = Result<Vec<Data>, EvalError>;

/// A dense row-major tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor64 {
    /// Element type and shape.
    pub ty: TensorType,
    /// The elements, as many as the type says.
    pub data: Data,
}

impl Tensor64 {
    /// An `f32` tensor with the given elements, which need not be representable in `f32`.
    pub fn floats(shape: &[u64], elements: Vec<f64>) -> Self {
        Self { ty: TensorType::new(DType::F32, shape), data: Data::Float(elements) }
    }

    /// An `i64` tensor.
    pub fn ints(shape: &[u64], elements: Vec<i64>) -> Self {
        Self { ty: TensorType::new(DType::I64, shape), data: Data::Int(elements) }
    }

    /// A tensor of type `ty` with every element zero.
    pub fn zeros(ty: TensorType) -> Self {
        let n = ty.numel() as usize;
        let data = if ty.dtype.is_float() { Data::Float(vec![0.0; n]) } else { Data::Int(vec![0; n]) };
        Self { ty, data }
    }

    /// The tensor that a dense little-endian payload holds.
    ///
    /// Fails when the payload is not as long as the type says.
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Result<Self, EvalError> {
        if bytes.len() as u64 != ty.bytes() {
            return Err(format!("{} bytes are not {ty}", bytes.len()).into());
        }
        let cells = bytes.chunks_exact(ty.dtype.bytes() as usize);
        let mut data = Self::zeros(ty.clone()).data;
        for (i, cell) in cells.enumerate() {
            match (&mut data, Scalar::from_bytes(cell, ty.dtype)) {
                (Data::Float(x), Some(Scalar::Float(v))) => x[i] = f64::from(v.0),
                (Data::Int(x), Some(Scalar::Int(v))) => x[i] = v,
                // Any byte but 0 is true.
                (Data::Int(x), _) => x[i] = 1,
                (Data::Float(_), _) => return Err(format!("{cell:?} is no element of {ty}").into()),
            }
        }
        Ok(Self { ty, data })
    }

    /// The elements of a floating-point tensor.
    pub fn f(&self) -> Result<&[f64], EvalError> {
        match &self.data {
            Data::Float(x) => Ok(x),
            Data::Int(_) => Err(format!("{} is not floating point", self.ty).into()),
        }
    }

    /// The elements of an integer or boolean tensor.
    pub fn i(&self) -> Result<&[i64], EvalError> {
        match &self.data {
            Data::Int(x) => Ok(x),
            Data::Float(_) => Err(format!("{} is floating point", self.ty).into()),
        }
    }

    /// The extents.
    pub fn shape(&self) -> &[u64] {
        &self.ty.shape
    }

    /// A tensor of `shape` whose element `i` is element `from[i]` of this one, or `other`.
    pub(crate) fn pick(&self, shape: &[u64], from: &[Option<usize>], other: (f64, i64)) -> Tensor64 {
        let data = match &self.data {
            Data::Float(x) => Data::Float(from.iter().map(|i| i.map_or(other.0, |i| x[i])).collect()),
            Data::Int(x) => Data::Int(from.iter().map(|i| i.map_or(other.1, |i| x[i])).collect()),
        };
        Tensor64 { ty: TensorType::new(self.ty.dtype, shape), data }
    }
}

/// An integer as its element type holds it.
pub(crate) fn wrapped(dtype: DType, v: i64) -> i64 {
    match dtype {
        DType::I32 => i64::from(v as i32),
        DType::I8 => i64::from(v as i8),
        DType::U8 => i64::from(v as u8),
        _ => v,
    }
}

/// Every multi-index of `shape`, row-major.
pub(crate) fn points(shape: &[u64]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &d in shape {
        all = all.iter().flat_map(|p| (0..d as usize).map(|i| [&p[..], &[i]].concat())).collect();
    }
    all
}

/// Position of a multi-index in row-major order.
pub(crate) fn flat(shape: &[u64], point: &[usize]) -> usize {
    shape.iter().zip(point).fold(0, |at, (&d, &i)| at * d as usize + i)
}

/// Position in a tensor of `shape` of the element that broadcasting puts at `point` of a larger one.
pub(crate) fn flat_broadcast(shape: &[u64], point: &[usize]) -> usize {
    let tail = &point[point.len() - shape.len()..];
    shape.iter().zip(tail).fold(0, |at, (&d, &i)| at * d as usize + if d == 1 { 0 } else { i })
}

/// `point` with axis `axis` at `i`.
pub(crate) fn at(point: &[usize], axis: usize, i: usize) -> Vec<usize> {
    let mut p = point.to_vec();
    p[axis] = i;
    p
}

/// The position that an index names in an axis of `extent`; negative ones count from the end.
pub(crate) fn resolve(index: i64, extent: u64) -> Result<usize, EvalError> {
    let extent = extent as i64;
    if (-extent..extent).contains(&index) {
        Ok((if index < 0 { index + extent } else { index }) as usize)
    } else {
        Err(format!("index {index} is outside an axis of {extent}").into())
    }
}
