//! Protobuf messages as trees of fields: read by a schema, changed as trees, written back.
//!
//! A change keeps the lengths around it right, so that a reader gets past the framing and sees the content.
//! Fields that the schema does not know stay bytes.

use arbtest::arbitrary::{Result, Unstructured};

/// Number of a message type in a schema.
pub(crate) type Kind = u8;

/// Type of the message in a field of a message; `None` where the field holds none.
pub(crate) type Schema = fn(Kind, u64) -> Option<Kind>;

/// Messages nested deeper stay bytes.
const MAX_DEPTH: usize = 64;

/// A field of a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) number: u64,
    pub(crate) content: Content,
}

/// Content of a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Int(u64),
    Fixed32([u8; 4]),
    Fixed64([u8; 8]),
    Bytes(Vec<u8>),
    Message(Kind, Vec<Field>),
}

impl Field {
    /// An integer.
    pub(crate) fn int(number: u64, value: i64) -> Field {
        Field { number, content: Content::Int(value as u64) }
    }

    /// Bytes or a text.
    pub(crate) fn bytes(number: u64, bytes: impl Into<Vec<u8>>) -> Field {
        Field { number, content: Content::Bytes(bytes.into()) }
    }

    /// A number of 32 bits.
    pub(crate) fn float(number: u64, value: f32) -> Field {
        Field { number, content: Content::Fixed32(value.to_le_bytes()) }
    }

    /// A message.
    pub(crate) fn message(number: u64, kind: Kind, fields: Vec<Field>) -> Field {
        Field { number, content: Content::Message(kind, fields) }
    }
}

/// The fields of a message of type `kind`; `None` where the bytes are none.
pub(crate) fn read(bytes: &[u8], kind: Kind, schema: Schema) -> Option<Vec<Field>> {
    fields(bytes, kind, schema, 0)
}

fn fields(mut rest: &[u8], kind: Kind, schema: Schema, depth: usize) -> Option<Vec<Field>> {
    let mut out = Vec::new();
    while !rest.is_empty() {
        let key = take_varint(&mut rest)?;
        let number = key >> 3;
        let content = match key & 7 {
            0 => Content::Int(take_varint(&mut rest)?),
            1 => Content::Fixed64(take(&mut rest, 8)?.try_into().ok()?),
            5 => Content::Fixed32(take(&mut rest, 4)?.try_into().ok()?),
            2 => {
                let length = usize::try_from(take_varint(&mut rest)?).ok()?;
                let bytes = take(&mut rest, length)?;
                let inner = schema(kind, number).filter(|_| depth < MAX_DEPTH);
                let message = inner.and_then(|kind| Some((kind, fields(bytes, kind, schema, depth + 1)?)));
                match message {
                    Some((kind, fields)) => Content::Message(kind, fields),
                    None => Content::Bytes(bytes.to_vec()),
                }
            }
            _ => return None,
        };
        out.push(Field { number, content });
    }
    Some(out)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(bytes)
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *take(rest, 1)?.first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// The bytes of a message.
pub(crate) fn write(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in fields {
        put(field, &mut out);
    }
    out
}

fn put(field: &Field, out: &mut Vec<u8>) {
    let mut key = |wire: u64| put_varint(field.number << 3 | wire, out);
    match &field.content {
        Content::Int(value) => {
            key(0);
            put_varint(*value, out);
        }
        Content::Fixed64(bytes) => {
            key(1);
            out.extend(bytes);
        }
        Content::Fixed32(bytes) => {
            key(5);
            out.extend(bytes);
        }
        Content::Bytes(bytes) => {
            key(2);
            put_varint(bytes.len() as u64, out);
            out.extend(bytes);
        }
        Content::Message(_, fields) => {
            let bytes = write(fields);
            key(2);
            put_varint(bytes.len() as u64, out);
            out.extend(bytes);
        }
    }
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Fields of a message and of all messages within.
pub(crate) fn count(fields: &[Field]) -> usize {
    let inner = |field: &Field| match &field.content {
        Content::Message(_, fields) => count(fields),
        _ => 0,
    };
    fields.iter().map(|field| 1 + inner(field)).sum()
}

/// Calls `change` with the list that holds the field number `index`, counted depth first, its position there
/// and the type of the message.
fn at<T>(
    fields: &mut Vec<Field>,
    kind: Kind,
    index: &mut usize,
    change: &mut dyn FnMut(&mut Vec<Field>, usize, Kind) -> T,
) -> Option<T> {
    for position in 0..fields.len() {
        if *index == 0 {
            return Some(change(fields, position, kind));
        }
        *index -= 1;
        if let Content::Message(kind, inner) = &mut fields[position].content
            && let Some(done) = at(inner, *kind, index, change)
        {
            return Some(done);
        }
    }
    None
}

/// A field of the tree by its number, with the type of the message that it is in.
fn pick(fields: &mut Vec<Field>, kind: Kind, mut index: usize) -> Option<(Field, Kind)> {
    at(fields, kind, &mut index, &mut |list, position, kind| (list[position].clone(), kind))
}

/// Values that readers compare with limits, add or multiply.
pub(crate) const NUMBERS: [i64; 24] = [
    0,
    1,
    -1,
    2,
    3,
    7,
    8,
    63,
    64,
    127,
    255,
    -2,
    256,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 53,
    1 << 62,
    i64::MAX - 1,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
];

/// Changes a tree in one to four places.
pub(crate) fn mutate(
    u: &mut Unstructured<'_>,
    fields: &mut Vec<Field>,
    kind: Kind,
    words: &[&str],
) -> Result<()> {
    for _ in 0..u.int_in_range(1..=4)? {
        change(u, fields, kind, words)?;
    }
    Ok(())
}

fn change(u: &mut Unstructured<'_>, fields: &mut Vec<Field>, kind: Kind, words: &[&str]) -> Result<()> {
    let total = count(fields);
    if total == 0 {
        return Ok(());
    }
    let mut index = u.choose_index(total)?;
    let how = u.int_in_range(0..=9)?;
    let repeats = *u.choose(&[1, 1, 1, 2, 3, 40])?;
    let other = u.choose_index(total)?;
    let mut edit = None;
    if how >= 4 {
        edit = pick(fields, kind, index).map(|(field, _)| field);
        if let Some(field) = &mut edit {
            let text = pick(fields, kind, other).and_then(|(field, _)| match field.content {
                Content::Bytes(bytes) => Some(bytes),
                _ => None,
            });
            revalue(u, field, text, words)?;
        }
    }
    let donor = (how == 3).then(|| pick(fields, kind, other)).flatten();
    at(fields, kind, &mut index, &mut |list, position, kind| match (how, &donor, &edit) {
        (0, ..) => drop(list.remove(position)),
        (1, ..) => {
            let field = list[position].clone();
            list.splice(position..position, std::iter::repeat_n(field, repeats));
        }
        (2, ..) => {
            let with = other % list.len();
            list.swap(position, with);
        }
        (3, Some((field, from)), _) if *from == kind => list.insert(position, field.clone()),
        (3, Some((field, _)), _) => list[position].content = field.content.clone(),
        (_, _, Some(field)) => list[position] = field.clone(),
        _ => {}
    });
    Ok(())
}

/// Gives a field other content of the same form, seldom of another one.
fn revalue(u: &mut Unstructured<'_>, field: &mut Field, text: Option<Vec<u8>>, words: &[&str]) -> Result<()> {
    if u.ratio(1, 40)? {
        field.number = u.int_in_range(1..=30)?;
    }
    match &mut field.content {
        Content::Int(value) => {
            *value = match u.int_in_range(0..=3)? {
                0 => value.wrapping_add(1),
                1 => value.wrapping_sub(1),
                2 => u.int_in_range(0..=20)?,
                _ => *u.choose(&NUMBERS)? as u64,
            }
        }
        Content::Fixed32(bytes) => {
            let floats = [0.0, -1.0, 1e-45, 1e38, f32::NAN, f32::INFINITY, 0.5, 2.0];
            *bytes = u.choose(&floats)?.to_le_bytes();
        }
        Content::Fixed64(bytes) => *bytes = u.choose(&NUMBERS)?.to_le_bytes(),
        Content::Bytes(bytes) => match (u.int_in_range(0..=5)?, text) {
            (0..=2, Some(text)) => *bytes = text,
            (3, _) if !words.is_empty() => *bytes = u.choose(words)?.as_bytes().to_vec(),
            (4, _) => bytes.truncate(u.choose_index(bytes.len().max(1))?),
            _ => crate::damage::bytes(u, bytes)?,
        },
        Content::Message(_, fields) if u.ratio(1, 4)? => fields.clear(),
        Content::Message(kind, fields) => {
            // One more of what is inside: a graph within a graph, a node twice.
            if let Some(field) = fields.last().cloned() {
                fields.insert(u.choose_index(fields.len())?, field);
            } else {
                *kind = 0;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_written_as_they_were_read() {
        let schema: Schema = |kind, number| (kind == 0 && number == 7).then_some(1);
        let inner = vec![Field::int(1, -5), Field::bytes(2, "name"), Field::float(3, 0.5)];
        let fields = vec![Field::int(1, 8), Field::message(7, 1, inner)];
        let bytes = write(&fields);
        assert_eq!(read(&bytes, 0, schema), Some(fields.clone()));
        assert_eq!((count(&fields), read(&bytes[..bytes.len() - 1], 0, schema)), (5, None));
        let deep = pick(&mut fields.clone(), 0, 3);
        assert_eq!(deep, Some((Field::bytes(2, "name"), 1)));
    }
}
