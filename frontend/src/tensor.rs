//! Constant tensors: element types, checked shapes, dense payloads.
//!
//! The payload's length is compared with the shape before anything is allocated.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, Data, MAX_RANK, TensorType};

use crate::error::{Fault, unsupported};
use crate::external::Folder;
use crate::floats::Doubles;
use crate::model::{Payload, Tensor};

/// A constant tensor whose payload has exactly the type's size.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Literal {
    /// Element type and shape.
    pub ty: TensorType,
    /// Dense, little-endian, row-major.
    pub data: Data,
}

/// The element type with ONNX code `code`; unsupported where the IR has none.
pub(crate) fn dtype(code: i32) -> Result<DType, Fault> {
    const NAMES: &str = "undefined float uint8 int8 uint16 int16 int32 int64 string bool float16 double \
                         uint32 uint64 complex64 complex128 bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2 \
                         float8e5m2fnuz uint4 int4 float4e2m1 float8e8m0 uint2 int2";
    match code {
        1 => Ok(DType::F32),
        2 => Ok(DType::U8),
        3 => Ok(DType::I8),
        6 => Ok(DType::I32),
        7 => Ok(DType::I64),
        9 => Ok(DType::Bool),
        10 => Ok(DType::F16),
        16 => Ok(DType::BF16),
        _ => {
            let name = usize::try_from(code).ok().and_then(|i| NAMES.split(' ').nth(i));
            let name = name.map_or(format!("number {code}"), |n| format!("`{n}`"));
            unsupported(format!(
                "element type {name} is not supported; supported are float, float16, bfloat16, int32, int64, \
                 int8, uint8 and bool{}",
                if code == DOUBLE { "; convert the model with model.float() before the export" } else { "" }
            ))
        }
    }
}

/// ONNX's code of the type `double`, which only constants have.
pub(crate) const DOUBLE: i32 = 11;

/// The content of a small tensor of type `double`.
pub(crate) fn doubles(tensor: &Tensor) -> Result<Doubles, Fault> {
    let values = match &tensor.payload {
        Payload::Doubles(values) => values.clone(),
        Payload::Raw(bytes) if bytes.len() % 8 == 0 => words::<8>(bytes).map(f64::from_le_bytes).collect(),
        _ => return unsupported("it has type double, and its elements are stored elsewhere"),
    };
    Doubles::stored(&tensor.dims, values)
}

/// The tensor type with the given parts. Refuses negative extents, too many axes and too many elements.
pub(crate) fn tensor_type(dtype: DType, dims: &[i64]) -> Result<TensorType, Fault> {
    if dims.len() > MAX_RANK {
        return Err(Fault::Bad(format!("there are {} axes, supported are {MAX_RANK}", dims.len())));
    }
    let shape: Option<Vec<u64>> = dims.iter().map(|&d| u64::try_from(d).ok()).collect();
    let Some(shape) = shape else {
        return Err(Fault::Bad(format!("shape {dims:?} has a negative extent")));
    };
    let ty = TensorType::new(dtype, shape);
    if ty.checked_numel().is_none() {
        return Err(Fault::Bad(format!("shape {dims:?} is too large")));
    }
    Ok(ty)
}

impl Literal {
    /// A literal from a type and its payload, which must match.
    pub(crate) fn new(ty: TensorType, data: impl Into<Data>) -> Result<Literal, Fault> {
        let data = data.into();
        if data.len() as u64 != ty.bytes() {
            return Err(Fault::Bad(format!(
                "{} bytes of data do not fill {ty}, which has {}",
                data.len(),
                ty.bytes()
            )));
        }
        if ty.dtype == DType::Bool && data.iter().any(|&b| b > 1) {
            return Err("a boolean is neither 0 nor 1".into());
        }
        Ok(Literal { ty, data })
    }

    /// A decoded tensor's content. `external` reads a payload kept in another file, given the number of
    /// bytes.
    pub(crate) fn from_tensor(
        tensor: Tensor,
        external: impl FnOnce(&[(String, String)], u64) -> Result<Data, Fault>,
    ) -> Result<Literal, Fault> {
        let dtype = dtype(tensor.dtype).map_err(|e| Fault::Bad(e.to_string()))?;
        let ty = tensor_type(dtype, &tensor.dims)?;
        let elements = match &tensor.payload {
            Payload::Floats(v) => v.len() as u64,
            Payload::Int32s(v) => v.len() as u64,
            Payload::Int64s(v) => v.len() as u64,
            Payload::Doubles(v) => v.len() as u64,
            Payload::Raw(_) | Payload::External(_) | Payload::Other => ty.numel(),
        };
        let data: Data = match (tensor.payload, ty.dtype) {
            (Payload::Raw(bytes), _) => bytes,
            (Payload::Floats(v), DType::F32) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            (Payload::Int32s(v), DType::I32) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            (Payload::Int32s(v), DType::Bool) => v.iter().map(|&x| u8::from(x != 0)).collect(),
            // The standard keeps the bits of short elements in the low bits of 32.
            (Payload::Int32s(v), DType::F16 | DType::BF16) => {
                v.iter().flat_map(|&x| (x as u16).to_le_bytes()).collect()
            }
            (Payload::Int32s(v), DType::I8 | DType::U8) => v.iter().map(|&x| x as u8).collect(),
            (Payload::Int64s(v), DType::I64) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            (Payload::External(entries), _) => external(&entries, ty.bytes())?,
            _ => {
                return Err(Fault::Bad(format!(
                    "its elements are stored in a field that {} does not use",
                    ty.dtype
                )));
            }
        };
        if elements != ty.numel() {
            let want = ty.numel();
            return Err(format!("{elements} elements of data do not fill {ty}, which has {want}").into());
        }
        Literal::new(ty, data)
    }

    /// A stored tensor's content, read from its file in `folder` when it is external.
    pub(crate) fn stored(tensor: Tensor, folder: Option<&Folder>) -> Result<Literal, Fault> {
        Literal::from_tensor(tensor, |entries, want| match folder {
            Some(folder) => folder.read(entries, want),
            None => Err("its data is in another file, and a model from memory has no folder".into()),
        })
    }

    /// An integer or boolean literal from 64-bit values, which must fit.
    pub(crate) fn from_ints(dtype: DType, shape: &[u64], values: &[i64]) -> Result<Literal, Fault> {
        let element = |&v: &i64| match dtype {
            DType::Bool => Some(vec![u8::from(v != 0)]),
            _ => Scalar::Int(v).to_bytes(dtype),
        };
        let bytes = values.iter().map(element).collect::<Option<Vec<_>>>().map(|v| v.concat());
        let bytes = bytes.ok_or_else(|| format!("integers do not fit element type {dtype}"))?;
        Literal::new(TensorType::new(dtype, shape), bytes)
    }

    /// A one-dimensional `i64` literal.
    pub(crate) fn vector(values: &[i64]) -> Literal {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Literal { ty: TensorType::new(DType::I64, [values.len() as u64]), data: data.into() }
    }

    /// A float literal of the given shape with one value in every element of `values`.
    pub(crate) fn from_floats(shape: &[u64], values: &[f32]) -> Result<Literal, Fault> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Literal::new(TensorType::new(DType::F32, shape), bytes)
    }

    /// A literal of float type `dtype`, to whose elements `values` are rounded.
    pub(crate) fn from_rounded(dtype: DType, shape: &[u64], values: Vec<f32>) -> Result<Literal, Fault> {
        let mut bytes = Vec::with_capacity(values.len().saturating_mul(dtype.bytes() as usize));
        for v in values {
            let element = Scalar::Float(F32(v)).to_bytes(dtype);
            bytes.extend(element.ok_or_else(|| format!("{dtype} is no float type"))?);
        }
        Literal::new(TensorType::new(dtype, shape), bytes)
    }

    /// The elements as 64-bit integers; `None` for floats.
    pub(crate) fn ints(&self) -> Option<Vec<i64>> {
        match self.ty.dtype {
            DType::I64 => Some(words::<8>(&self.data).map(i64::from_le_bytes).collect()),
            DType::I32 => Some(words::<4>(&self.data).map(|w| i64::from(i32::from_le_bytes(w))).collect()),
            DType::Bool => Some(self.data.iter().map(|&b| i64::from(b)).collect()),
            DType::I8 => Some(self.data.iter().map(|&b| i64::from(b as i8)).collect()),
            DType::U8 => Some(self.data.iter().map(|&b| i64::from(b)).collect()),
            DType::F32 | DType::F16 | DType::BF16 => None,
        }
    }

    /// The elements as floats; `None` for other element types.
    pub(crate) fn floats(&self) -> Option<Vec<f32>> {
        if !self.ty.dtype.is_float() {
            return None;
        }
        let float = |bytes: &[u8]| match Scalar::from_bytes(bytes, self.ty.dtype) {
            Some(Scalar::Float(v)) => Some(v.0),
            _ => None,
        };
        self.data.chunks(self.ty.dtype.bytes() as usize).map(float).collect()
    }

    /// The only element; `None` unless there is exactly one.
    pub(crate) fn single(&self) -> Option<Scalar> {
        if self.ty.numel() == 1 { self.splat() } else { None }
    }

    /// The value that every element has; `None` when they differ or there are none.
    pub(crate) fn splat(&self) -> Option<Scalar> {
        let width = self.ty.dtype.bytes() as usize;
        let first = self.data.get(..width)?;
        if !self.data.chunks_exact(width).all(|c| c == first) {
            return None;
        }
        let head = Literal { ty: TensorType::scalar(self.ty.dtype), data: first.into() };
        match head.floats() {
            Some(v) => v.first().map(|&x| Scalar::Float(F32(x))),
            None => head.ints()?.first().map(|&x| Scalar::Int(x)),
        }
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes.chunks_exact(N).map(|c| {
        let mut word = [0; N];
        word.copy_from_slice(c);
        word
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &[(String, String)], _: u64) -> Result<Data, Fault> {
        Err("no file".into())
    }
    fn tensor(dims: &[i64], dtype: i32, payload: Payload) -> Tensor {
        Tensor { name: "t".into(), dims: dims.to_vec(), dtype, payload }
    }

    /// A payload that is shorter or longer than its shape, or in the wrong field, is refused.
    #[test]
    fn payload_must_fill_the_shape() {
        let short = Literal::from_tensor(tensor(&[1 << 40], 1, Payload::Raw(vec![0; 4].into())), none);
        assert!(short.expect_err("short").to_string().contains("4 bytes of data do not fill"));
        let long = Literal::from_tensor(tensor(&[], 7, Payload::Int64s(vec![1, 2])), none);
        assert!(long.expect_err("long").to_string().contains("2 elements of data do not fill i64[]"));
        let field = Literal::from_tensor(tensor(&[1], 1, Payload::Int64s(vec![1])), none);
        assert!(field.expect_err("field").to_string().contains("does not use"));
    }

    /// Negative, overflowing and too many extents are refused.
    #[test]
    fn shapes_are_checked() {
        assert!(tensor_type(DType::F32, &[2, -1]).expect_err("negative").to_string().contains("negative"));
        assert!(
            tensor_type(DType::F32, &[i64::MAX, i64::MAX])
                .expect_err("huge")
                .to_string()
                .contains("too large")
        );
        assert!(tensor_type(DType::F32, &[1; 13]).expect_err("rank").to_string().contains("13 axes"));
        assert!(dtype(11).expect_err("double").to_string().contains("`double`"));
        assert_eq!(dtype(16), Ok(DType::BF16));
        assert!(dtype(-7).expect_err("unknown").to_string().contains("number -7"));
    }

    /// Equal elements are recognised whatever their type; NaN counts by its bits.
    #[test]
    fn splats_are_found() {
        let f = |v: &[f32]| Literal::from_floats(&[v.len() as u64], v).expect("floats");
        assert_eq!(f(&[1.5, 1.5]).splat(), Some(Scalar::Float(F32(1.5))));
        assert_eq!(f(&[0.0, -0.0]).splat(), None);
        assert_eq!(f(&[]).splat(), None);
        assert_eq!(Literal::vector(&[3, 3]).splat(), Some(Scalar::Int(3)));
        assert_eq!(Literal::vector(&[3, 3]).single(), None);
    }
}
