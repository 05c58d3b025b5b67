//! Messages and fields of protobuf, in one canonical encoding.

use std::borrow::Cow;

use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use crate::PlanError;

/// Something with a message of its own.
pub(super) trait Record: Sized {
    /// Name of an entry of a table of these, before its index.
    const NAME: &str;
    /// Index of the first entry of such a table, for humans.
    const FIRST: usize = 0;
    /// Appends the message.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads the message.
    fn decode(from: Message<'_>) -> Result<Self, PlanError>;
}

/// Something that is written as a text.
pub(super) trait Text: Sized {
    /// The text.
    fn text(&self) -> Cow<'_, str>;
    /// Reads the text.
    fn parse(text: &str) -> Result<Self, PlanError>;
}

/// Something in one field of a message, or in several with adjacent tags.
pub(super) trait Field: Sized {
    /// Appends the fields from `tag` on.
    fn put(&self, tag: u32, out: &mut Vec<u8>);
    /// Reads the fields from `tag` on.
    fn take(from: Message<'_>, tag: u32) -> Result<Self, PlanError>;
}

/// A message that is not decoded yet.
#[derive(Clone, Copy)]
pub(super) struct Message<'a>(pub(super) &'a [u8]);

/// Contents of one occurrence of a field.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

impl<'a> Message<'a> {
    /// The fields in the order of the bytes; ends with the first error.
    pub(super) fn fields(self) -> impl Iterator<Item = Result<(u32, Value<'a>), PlanError>> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let field = next(&mut rest);
            if field.is_err() {
                rest = &[];
            }
            Some(field)
        })
    }

    /// All occurrences of a field.
    pub(super) fn all(self, tag: u32) -> impl Iterator<Item = Result<Value<'a>, PlanError>> {
        self.fields().filter_map(move |field| match field {
            Ok((found, value)) => (found == tag).then_some(Ok(value)),
            Err(error) => Some(Err(error)),
        })
    }

    /// The last occurrence of a field.
    pub(super) fn last(self, tag: u32) -> Result<Option<Value<'a>>, PlanError> {
        self.all(tag).last().transpose()
    }
}

/// Reads one field.
fn next<'a>(rest: &mut &'a [u8]) -> Result<(u32, Value<'a>), PlanError> {
    let damaged = |error: prost::DecodeError| PlanError::damaged(error.to_string());
    let short = || PlanError::damaged("a field is cut short");
    let (tag, wire_type) = decode_key(rest).map_err(damaged)?;
    let value = match wire_type {
        WireType::Varint => Value::Varint(decode_varint(rest).map_err(damaged)?),
        WireType::LengthDelimited => {
            let length = usize::try_from(decode_varint(rest).map_err(damaged)?).map_err(|_| short())?;
            let (bytes, after) = rest.split_at_checked(length).ok_or_else(short)?;
            *rest = after;
            Value::Bytes(bytes)
        }
        WireType::ThirtyTwoBit => {
            let (bytes, after) = rest.split_first_chunk().ok_or_else(short)?;
            *rest = after;
            Value::Fixed32(u32::from_le_bytes(*bytes))
        }
        _ => return Err(PlanError::damaged("a field has an unexpected type")),
    };
    Ok((tag, value))
}

impl<'a> Value<'a> {
    pub(super) fn varint(self) -> Result<u64, PlanError> {
        match self {
            Value::Varint(n) => Ok(n),
            _ => Err(PlanError::damaged("a field is not a number")),
        }
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], PlanError> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(PlanError::damaged("a field is a number")),
        }
    }

    pub(super) fn text(self) -> Result<&'a str, PlanError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| PlanError::damaged("a text is not UTF-8"))
    }
}

fn put_varint(n: u64, tag: u32, out: &mut Vec<u8>) {
    encode_key(tag, WireType::Varint, out);
    encode_varint(n, out);
}

pub(super) fn put_bytes(bytes: &[u8], tag: u32, out: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

pub(super) fn put_message(tag: u32, out: &mut Vec<u8>, encode: impl FnOnce(&mut Vec<u8>)) {
    let mut message = Vec::new();
    encode(&mut message);
    put_bytes(&message, tag, out);
}

/// Packs numbers into one field, or none without numbers.
pub(super) fn put_packed(numbers: impl IntoIterator<Item = u64>, tag: u32, out: &mut Vec<u8>) {
    let mut packed = Vec::new();
    numbers.into_iter().for_each(|n| encode_varint(n, &mut packed));
    if !packed.is_empty() {
        put_bytes(&packed, tag, out);
    }
}

pub(super) fn take_packed(from: Message<'_>, tag: u32) -> Result<Vec<u64>, PlanError> {
    let mut rest = from.last(tag)?.map_or(Ok(&[][..]), Value::bytes)?;
    let mut numbers = Vec::new();
    while !rest.is_empty() {
        numbers.push(decode_varint(&mut rest).map_err(|error| PlanError::damaged(error.to_string()))?);
    }
    Ok(numbers)
}

/// Bits of a float.
pub(super) fn put_fixed32(bits: u32, tag: u32, out: &mut Vec<u8>) {
    encode_key(tag, WireType::ThirtyTwoBit, out);
    out.extend_from_slice(&bits.to_le_bytes());
}

impl Field for u64 {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        if *self != 0 {
            put_varint(*self, tag, out);
        }
    }
    fn take(from: Message<'_>, tag: u32) -> Result<u64, PlanError> {
        from.last(tag)?.map_or(Ok(0), Value::varint)
    }
}

impl Field for u32 {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        u64::from(*self).put(tag, out);
    }
    fn take(from: Message<'_>, tag: u32) -> Result<u32, PlanError> {
        u32::try_from(u64::take(from, tag)?).map_err(|_| PlanError::damaged("a number is too large"))
    }
}

impl Field for bool {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        u64::from(*self).put(tag, out);
    }
    fn take(from: Message<'_>, tag: u32) -> Result<bool, PlanError> {
        Ok(u64::take(from, tag)? != 0)
    }
}

/// Zigzag encoding, so that small negative numbers are short.
impl Field for i64 {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        ((self << 1) ^ (self >> 63)).cast_unsigned().put(tag, out);
    }
    fn take(from: Message<'_>, tag: u32) -> Result<i64, PlanError> {
        let n = u64::take(from, tag)?;
        Ok((n >> 1).cast_signed() ^ -(n & 1).cast_signed())
    }
}

impl Text for String {
    fn text(&self) -> Cow<'_, str> {
        self.as_str().into()
    }
    fn parse(text: &str) -> Result<String, PlanError> {
        Ok(text.to_owned())
    }
}

impl<T: Text> Field for T {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        let text = self.text();
        if !text.is_empty() {
            put_bytes(text.as_bytes(), tag, out);
        }
    }
    fn take(from: Message<'_>, tag: u32) -> Result<T, PlanError> {
        T::parse(from.last(tag)?.map_or(Ok(""), Value::text)?)
    }
}

/// A hash.
impl Field for [u8; 32] {
    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_bytes(self, tag, out);
    }
    fn take(from: Message<'_>, tag: u32) -> Result<[u8; 32], PlanError> {
        let bytes = from.last(tag)?.map_or(Ok(&[][..]), Value::bytes)?;
        bytes.try_into().map_err(|_| PlanError::damaged(format!("a hash of {} bytes", bytes.len())))
    }
}
