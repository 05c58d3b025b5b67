//! Typed attributes: how each attribute type is written, read and passed to an op's rules.

use std::cmp::Ordering;
use std::fmt::Write;
use std::hash::{Hash, Hasher};

use half::{bf16, f16};

use crate::ops::fused::Body;
use crate::parse::parse_body;
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
    /// The bits of an element of type `dtype`, with zeros above; `None` when the number is not one. Floats round to the
    /// nearest element.
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

    /// The number whose bytes as an element of type `dtype` these are; `None` for another length, and for a boolean
    /// that is neither 0 nor 1.
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

    /// The number alone, as the text form has it.
    pub(crate) fn text(self) -> String {
        match self {
            Scalar::Int(v) => v.to_string(),
            Scalar::Float(v) => {
                let mut text = String::new();
                write_float(v.0, &mut text);
                text
            }
        }
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
    /// What a value of this type looks like, for error messages.
    const KIND: &'static str;
    /// How rules receive the attribute.
    type Arg<'a>
    where
        Self: 'a;
    /// The attribute as rules receive it.
    fn arg(&self) -> Self::Arg<'_>;
    /// Appends `name = value`; a flag appends its name or nothing.
    fn write(&self, name: &str, out: &mut String);
    /// Reads the written value.
    fn read(value: &AttrValue) -> Option<Self>;
    /// What is wrong with a value that cannot be read, where more is to be said than what kind it must be.
    fn wrong(_value: &AttrValue) -> Option<String> {
        None
    }
}

/// Appends a float so that it reads back bit-exactly.
pub fn write_float(value: f32, out: &mut String) {
    if value.is_nan() {
        let _ = write!(out, "nan(0x{:08x})", value.to_bits());
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "inf" } else { "-inf" });
    } else {
        let _ = write!(out, "{value:?}");
    }
}

fn write_list<T: std::fmt::Display>(name: &str, items: &[T], out: &mut String) {
    let _ = write!(out, "{name} = [");
    for (i, x) in items.iter().enumerate() {
        let _ = write!(out, "{}{x}", if i == 0 { "" } else { ", " });
    }
    out.push(']');
}

impl Attr for bool {
    const KIND: &'static str = "a flag (write the name alone)";
    type Arg<'a> = bool;
    fn arg(&self) -> bool {
        *self
    }
    fn write(&self, name: &str, out: &mut String) {
        if *self {
            out.push_str(name);
        }
    }
    fn read(value: &AttrValue) -> Option<Self> {
        matches!(value, AttrValue::Flag).then_some(true)
    }
}

impl Attr for i64 {
    const KIND: &'static str = "an integer";
    type Arg<'a> = i64;
    fn arg(&self) -> i64 {
        *self
    }
    fn write(&self, name: &str, out: &mut String) {
        let _ = write!(out, "{name} = {self}");
    }
    fn read(value: &AttrValue) -> Option<Self> {
        if let AttrValue::Int(v) = value { Some(*v) } else { None }
    }
}

impl Attr for F32 {
    const KIND: &'static str = "a float (with a decimal point)";
    type Arg<'a> = f32;
    fn arg(&self) -> f32 {
        self.0
    }
    fn write(&self, name: &str, out: &mut String) {
        let _ = write!(out, "{name} = ");
        write_float(self.0, out);
    }
    fn read(value: &AttrValue) -> Option<Self> {
        if let AttrValue::Float(v) = value { Some(F32(*v)) } else { None }
    }
}

impl Attr for Scalar {
    const KIND: &'static str = "a number";
    type Arg<'a> = Scalar;
    fn arg(&self) -> Scalar {
        *self
    }
    fn write(&self, name: &str, out: &mut String) {
        match self {
            Scalar::Float(v) => v.write(name, out),
            Scalar::Int(v) => v.write(name, out),
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

impl Attr for Vec<i64> {
    const KIND: &'static str = "a list of integers";
    type Arg<'a> = &'a [i64];
    fn arg(&self) -> &[i64] {
        self
    }
    fn write(&self, name: &str, out: &mut String) {
        write_list(name, self, out);
    }
    fn read(value: &AttrValue) -> Option<Self> {
        if let AttrValue::Ints(v) = value { Some(v.clone()) } else { None }
    }
}

impl Attr for Vec<u64> {
    const KIND: &'static str = "a list of non-negative integers";
    type Arg<'a> = &'a [u64];
    fn arg(&self) -> &[u64] {
        self
    }
    fn write(&self, name: &str, out: &mut String) {
        write_list(name, self, out);
    }
    fn read(value: &AttrValue) -> Option<Self> {
        let AttrValue::Ints(v) = value else { return None };
        v.iter().map(|&x| u64::try_from(x).ok()).collect()
    }
}

impl Attr for DType {
    const KIND: &'static str = "an element type (f32, f16, bf16, i32, i64, i8, u8 or bool)";
    type Arg<'a> = DType;
    fn arg(&self) -> DType {
        *self
    }
    fn write(&self, name: &str, out: &mut String) {
        let _ = write!(out, "{name} = {self}");
    }
    fn read(value: &AttrValue) -> Option<Self> {
        if let AttrValue::Word(w) = value { DType::from_name(w) } else { None }
    }
}

impl Attr for Body {
    const KIND: &'static str = "a list of steps, as \"add(x0, x1); relu(t0)\"";
    type Arg<'a> = &'a Body;
    fn arg(&self) -> &Body {
        self
    }
    fn write(&self, name: &str, out: &mut String) {
        let _ = write!(out, "{name} = \"{self}\"");
    }
    fn read(value: &AttrValue) -> Option<Self> {
        if let AttrValue::Text(text) = value { parse_body(text).ok() } else { None }
    }
    fn wrong(value: &AttrValue) -> Option<String> {
        if let AttrValue::Text(text) = value { parse_body(text).err().map(|e| e.to_string()) } else { None }
    }
}

/// How a loss over a batch becomes its result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reduction {
    /// One loss per element.
    None,
    /// Mean over the elements that are not ignored.
    Mean,
    /// Sum.
    Sum,
}

/// What a scatter does where several updates, or an update and the data, meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ScatterMode {
    /// The last update in row-major order replaces the data.
    Replace,
    /// Updates are added to the data in row-major order.
    Add,
}

macro_rules! word_attr {
    ($ty:ident, $kind:literal, $($variant:ident = $word:literal),*) => {
        impl $ty {
            /// Spelling in the text form.
            pub fn name(self) -> &'static str {
                match self { $($ty::$variant => $word),* }
            }
        }
        impl Attr for $ty {
            const KIND: &'static str = $kind;
            type Arg<'a> = $ty;
            fn arg(&self) -> $ty { *self }
            fn write(&self, name: &str, out: &mut String) { let _ = write!(out, "{name} = {}", self.name()); }
            fn read(value: &AttrValue) -> Option<Self> {
                let AttrValue::Word(w) = value else { return None };
                match w.as_str() { $($word => Some($ty::$variant),)* _ => None }
            }
        }
    };
}
word_attr!(Reduction, "`none`, `mean` or `sum`", None = "none", Mean = "mean", Sum = "sum");
word_attr!(ScatterMode, "`replace` or `add`", Replace = "replace", Add = "add");
