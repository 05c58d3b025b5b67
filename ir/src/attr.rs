//! Typed attributes: the text and the reading of each attribute type.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use half::{bf16, f16};

use crate::types::DType;

/// An `f32` compared, ordered and hashed by its bits, so that op kinds are `Eq`, `Ord` and `Hash`.
#[derive(Clone, Copy, Debug)]
pub struct F32(pub f32);

impl PartialEq for F32 {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}
impl Eq for F32 {}
impl PartialOrd for F32 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for F32 {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
impl Hash for F32 {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// One element of any element type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scalar {
    /// A float element.
    Float(F32),
    /// An integer element, or a boolean as 0 or 1.
    Int(i64),
}

impl Scalar {
    /// The bits of an element of type `dtype`, with zeros above; `None` when the number is not one. Floats
    /// round to the nearest element.
    pub fn bits(self, dtype: DType) -> Option<u64> {
        match (self, dtype) {
            (Scalar::Float(v), DType::F32) => Some(v.0.to_bits().into()),
            (Scalar::Float(v), DType::F16) => Some(f16::from_f32(v.0).to_bits().into()),
            (Scalar::Float(v), DType::BF16) => Some(bf16::from_f32(v.0).to_bits().into()),
            (Scalar::Int(v), DType::I32) => i32::try_from(v).ok().map(|v| (v as u32).into()),
            (Scalar::Int(v), DType::I64) => Some(v as u64),
            (Scalar::Int(v), DType::I8) => i8::try_from(v).ok().map(|v| (v as u8).into()),
            (Scalar::Int(v), DType::U8) => u8::try_from(v).ok().map(u64::from),
            (Scalar::Int(v @ (0 | 1)), DType::Bool) => Some(v as u64),
            _ => None,
        }
    }

    /// The little-endian bytes of an element of type `dtype`; `None` when the number is not one.
    pub fn to_bytes(self, dtype: DType) -> Option<Vec<u8>> {
        let bytes = self.bits(dtype)?.to_le_bytes();
        bytes.get(..dtype.bytes() as usize).map(<[u8]>::to_vec)
    }

    /// The number whose bytes as an element of type `dtype` these are; `None` for another length, and for a
    /// boolean that is neither 0 nor 1.
    pub fn from_bytes(bytes: &[u8], dtype: DType) -> Option<Scalar> {
        Some(match dtype {
            DType::F32 => Scalar::Float(F32(f32::from_le_bytes(bytes.try_into().ok()?))),
            DType::F16 => Scalar::Float(F32(f16::from_le_bytes(bytes.try_into().ok()?).to_f32())),
            DType::BF16 => Scalar::Float(F32(bf16::from_le_bytes(bytes.try_into().ok()?).to_f32())),
            DType::I8 => Scalar::Int(i8::from_le_bytes(bytes.try_into().ok()?).into()),
            DType::U8 => Scalar::Int(u8::from_le_bytes(bytes.try_into().ok()?).into()),
            DType::I32 => Scalar::Int(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            DType::I64 => Scalar::Int(i64::from_le_bytes(bytes.try_into().ok()?)),
            DType::Bool => match bytes {
                [b @ (0 | 1)] => Scalar::Int((*b).into()),
                _ => return None,
            },
        })
    }
}

/// An attribute value as written in the text form.
#[derive(Clone, PartialEq, Debug)]
pub enum AttrValue {
    /// `name` alone.
    Flag,
    /// `name = 3`.
    Int(i64),
    /// `name = 0.5`; always has a `.`, an exponent, or is `inf`, `-inf`, `nan(bits)`.
    Float(f32),
    /// `name = [1, 2]`.
    Ints(Vec<i64>),
    /// `name = word`.
    Word(String),
    /// `name = "text"`.
    Text(String),
}

/// A type that an attribute can have.
pub trait Attr: Sized + PartialEq {
    /// Description of legal values, for error messages.
    const KIND: &'static str;
    /// The value in the text form.
    fn text(&self) -> String;
    /// Reads the written value.
    fn read(value: &AttrValue) -> Option<Self>;
    /// The attribute in the text form, `name = value`.
    fn named(&self, name: &str) -> String {
        format!("{name} = {}", self.text())
    }
    /// Reason why a value cannot be read, where there is more to say than [`Attr::KIND`].
    fn wrong(_value: &AttrValue) -> Option<String> {
        None
    }
}

/// The float as text that reads back bit-exactly.
pub(crate) fn float_text(value: f32) -> String {
    if value.is_nan() {
        format!("nan(0x{:08x})", value.to_bits())
    } else if value.is_infinite() {
        if value > 0.0 { "inf" } else { "-inf" }.into()
    } else {
        format!("{value:?}")
    }
}

/// Implements [`Attr`] for types that are one kind of [`AttrValue`].
macro_rules! attrs {
    ($($ty:ty, $kind:literal, |$x:ident| $text:expr, $pattern:pat => $read:expr;)*) => {$(
        impl Attr for $ty {
            const KIND: &'static str = $kind;
            fn text(&self) -> String {
                let $x = self;
                $text
            }
            fn read(value: &AttrValue) -> Option<Self> {
                if let $pattern = value { $read } else { None }
            }
        }
    )*};
}

attrs! {
    i64, "an integer", |x| x.to_string(), AttrValue::Int(v) => Some(*v);
    F32, "a float (with a decimal point)", |x| float_text(x.0), AttrValue::Float(v) => Some(F32(*v));
    Vec<i64>, "a list of integers", |x| list_text(x), AttrValue::Ints(v) => Some(v.clone());
    Vec<u64>, "a list of non-negative integers", |x| list_text(x),
        AttrValue::Ints(v) => v.iter().map(|&x| u64::try_from(x).ok()).collect();
    DType, "an element type (f32, f16, bf16, i32, i64, i8, u8 or bool)", |x| x.to_string(),
        AttrValue::Word(w) => DType::from_name(w);
    Reduction, "`none`, `mean` or `sum`", |x| x.name().into(), AttrValue::Word(w) => Reduction::from_name(w);
    ScatterMode, "`replace`, `add`, `mul`, `min` or `max`",
        |x| x.name().into(), AttrValue::Word(w) => ScatterMode::from_name(w);
}

fn list_text<T: std::fmt::Display>(items: &[T]) -> String {
    format!("[{}]", items.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
}

impl Attr for bool {
    const KIND: &'static str = "a flag (write the name alone)";
    fn text(&self) -> String {
        self.to_string()
    }
    fn read(value: &AttrValue) -> Option<Self> {
        matches!(value, AttrValue::Flag).then_some(true)
    }
    /// Flags default to false and are not written then.
    fn named(&self, name: &str) -> String {
        name.into()
    }
}

impl Attr for Scalar {
    const KIND: &'static str = "a number";
    fn text(&self) -> String {
        match self {
            Scalar::Float(v) => v.text(),
            Scalar::Int(v) => v.text(),
        }
    }
    fn read(value: &AttrValue) -> Option<Self> {
        match value {
            AttrValue::Int(v) => Some(Scalar::Int(*v)),
            AttrValue::Float(v) => Some(Scalar::Float(F32(*v))),
            _ => None,
        }
    }
}

words! {
    /// Reduction of a batch's losses to the result.
    pub enum Reduction {
        /// One loss per element.
        None = "none",
        /// Mean over the elements that are not ignored.
        Mean = "mean",
        /// Sum.
        Sum = "sum",
    }
}

words! {
    /// Effect of a scatter where several updates, or an update and the data, meet.
    pub enum ScatterMode {
        /// The last update in row-major order replaces the data.
        Replace = "replace",
        /// Updates are added to the data in row-major order.
        Add = "add",
        /// The data is multiplied by the updates in row-major order.
        Mul = "mul",
        /// The smallest of the data and the updates; NaN where one of them is.
        Min = "min",
        /// The largest of the data and the updates; NaN where one of them is.
        Max = "max",
    }
}
