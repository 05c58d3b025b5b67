//! Checks the wire form of a model before the protobuf crate decodes it.
//!
//! The crate recurses without limit on nested unknown groups (RUSTSEC-2024-0437) and its messages take far
//! more memory than their bytes. ONNX has no groups, so this walk over the message-typed fields of the
//! schema refuses them, together with lengths that leave their message, deep nesting and excessive counts.
//! It is iterative, and its stack is of limited depth. Field contents other than messages are not looked at.
//! On the way it makes a copy of the model without the contents of large initializers, so that decoding takes
//! no memory for weights.

use std::ops::Range;

use crate::error::ImportError;

/// Most nested messages, far above what a model without subgraphs needs (model, graph, node, attribute,
/// tensor, entry).
const MAX_DEPTH: usize = 48;
/// Most nodes of a model.
pub(crate) const MAX_NODES: u64 = 1_000_000;
/// Most messages of any kind.
const MAX_MESSAGES: u64 = 8_000_000;
/// Protobuf cannot describe a longer message.
pub(crate) const MAX_FILE_BYTES: u64 = (1 << 31) - 1;

/// A message type of the ONNX schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    SparseTensor,
    ValueInfo,
    Type,
    TypeTensor,
    TypeElement,
    TypeMap,
    Shape,
    Training,
    Function,
    Annotation,
    Leaf,
}

/// The type of the message in field `field` of a `message`; `None` when the field holds no message.
fn child(message: Message, field: u64) -> Option<Message> {
    use Message::*;
    Some(match (message, field) {
        (Model, 7) => Graph,
        (Model, 8 | 14) => Leaf,
        (Model, 20) => Training,
        (Model, 25) => Function,
        (Graph, 1) => Node,
        (Graph, 5) => Tensor,
        (Graph, 11..=13) => ValueInfo,
        (Graph, 14) => Annotation,
        (Graph, 15) => SparseTensor,
        (Graph, 16) => Leaf,
        (Node, 5) => Attribute,
        (Node, 9) => Leaf,
        (Attribute, 5 | 10) => Tensor,
        (Attribute, 6 | 11) => Graph,
        (Attribute, 22 | 23) => SparseTensor,
        (Attribute, 14 | 15) => Type,
        (Tensor, 3 | 13 | 16) => Leaf,
        (SparseTensor, 1 | 2) => Tensor,
        (ValueInfo, 2) => Type,
        (ValueInfo, 4) => Leaf,
        (Type, 1 | 8) => TypeTensor,
        (Type, 4 | 9) => TypeElement,
        (Type, 5) => TypeMap,
        (TypeTensor, 2) => Shape,
        (TypeElement, 1) => Type,
        (TypeMap, 2) => Type,
        (Shape, 1) => Leaf,
        (Training, 1 | 2) => Graph,
        (Training, 3 | 4) => Leaf,
        (Function, 7) => Node,
        (Function, 9 | 14) => Leaf,
        (Function, 11) => Attribute,
        (Function, 12) => ValueInfo,
        (Annotation, 2) => Leaf,
        _ => return None,
    })
}

/// A model whose large initializers are elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Lean {
    /// The model, where an index stands for the content of each large initializer.
    pub bytes: Vec<u8>,
    /// Place of each content in the whole model.
    pub stored: Vec<Range<usize>>,
    /// Bytes of the whole model that are copied or left out so far.
    taken: usize,
}

/// Length of an index, in bytes. Contents that are not longer stay in the model, so none is taken for one.
const INDEX: usize = 65;
/// Key of a tensor's field `raw_data`.
const RAW_DATA: u8 = 9 << 3 | 2;

/// The index that stands for a content.
pub(crate) fn stored(content: &[u8]) -> Option<usize> {
    let (index, _) = content.split_first_chunk::<8>().filter(|_| content.len() == INDEX)?;
    usize::try_from(u64::from_le_bytes(*index)).ok()
}

impl Lean {
    /// Leaves out a field `raw_data` that starts at `start` and whose content is `content`; the bytes saved.
    fn store(&mut self, whole: &[u8], start: usize, content: Range<usize>) -> usize {
        self.copy(whole, start);
        let copied = self.bytes.len();
        let index = self.stored.len() as u64;
        self.bytes.extend([RAW_DATA, INDEX as u8]);
        self.bytes.extend(index.to_le_bytes());
        self.bytes.resize(copied + 2 + INDEX, 0);
        self.taken = content.end;
        let saved = (content.end - start) - (2 + INDEX);
        self.stored.push(content);
        saved
    }

    /// Copies up to `end`.
    fn copy(&mut self, whole: &[u8], end: usize) {
        self.bytes.extend(whole.get(self.taken..end).unwrap_or_default());
        self.taken = end;
    }

    /// Writes a length again, in as many bytes as before.
    fn relength(&mut self, at: usize, width: usize, mut length: usize) {
        for (i, byte) in self.bytes.iter_mut().skip(at).take(width).enumerate() {
            *byte = (length & 0x7f) as u8 | if i + 1 < width { 0x80 } else { 0 };
            length >>= 7;
        }
    }
}

/// Refuses bytes that are no ONNX model, or that would be dangerous to decode.
pub(crate) fn screen(bytes: &[u8]) -> Result<Lean, ImportError> {
    let mut lean = Lean::default();
    let walked = walk(bytes, Message::Model, &mut lean);
    walked.map(|()| lean).map_err(|Refusal { at, reason }| {
        let start = bytes.get(..64).unwrap_or(bytes);
        let text = start.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace());
        let reason = if text { "it is text".into() } else { format!("at byte {at}, {reason}") };
        ImportError::BadModel(format!("not an ONNX model: {reason}"))
    })
}

/// Likewise for bytes that should be one tensor.
pub(crate) fn screen_tensor(bytes: &[u8]) -> Result<(), ImportError> {
    walk(bytes, Message::Tensor, &mut Lean::default()).map_err(|Refusal { at, reason }| {
        ImportError::BadModel(format!("not an ONNX tensor: at byte {at}, {reason}"))
    })
}

/// Refusal of the bytes from position `at` on.
struct Refusal {
    at: usize,
    reason: String,
}

fn refusal(at: usize, reason: impl Into<String>) -> Refusal {
    Refusal { at, reason: reason.into() }
}

/// A message that is being walked over.
struct Open {
    message: Message,
    /// Whether it is a tensor among the initializers of a graph.
    is_initializer: bool,
    end: usize,
    /// Place of its length in the lean model, and the bytes that the length has.
    length_at: usize,
    width: usize,
    /// Its length in the whole model.
    length: usize,
    /// Bytes by which it is shorter in the lean model.
    saved: usize,
}

fn walk(bytes: &[u8], root: Message, lean: &mut Lean) -> Result<(), Refusal> {
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(refusal(
            0,
            format!("the file has {} bytes, the format allows {MAX_FILE_BYTES}", bytes.len()),
        ));
    }
    let mut stack: Vec<Open> = Vec::with_capacity(MAX_DEPTH);
    let (end, length) = (bytes.len(), bytes.len());
    stack.push(Open { message: root, is_initializer: false, end, length_at: 0, width: 0, length, saved: 0 });
    let (mut at, mut nodes, mut messages) = (0usize, 0u64, 0u64);
    while let Some(open) = stack.last_mut() {
        let (message, end) = (open.message, open.end);
        if at == end {
            let Some(Open { length_at, width, length, saved, .. }) = stack.pop() else { break };
            if saved > 0 {
                lean.relength(length_at, width, length - saved);
                stack.last_mut().into_iter().for_each(|outer| outer.saved += saved);
            }
            continue;
        }
        let start = at;
        let key = varint(bytes, &mut at, end).ok_or_else(|| refusal(start, "a field has no key"))?;
        let field = key >> 3;
        if field == 0 || key > u64::from(u32::MAX) {
            return Err(refusal(start, format!("there is no field with key {key}")));
        }
        let length_at = at;
        let length = match key & 7 {
            0 => {
                varint(bytes, &mut at, end)
                    .ok_or_else(|| refusal(start, "an integer is cut off or too long"))?;
                0
            }
            1 => 8,
            5 => 4,
            2 => varint(bytes, &mut at, end)
                .ok_or_else(|| refusal(start, "a length is cut off or too long"))?,
            3 | 4 => return Err(refusal(start, "there is a group, which ONNX does not use")),
            wire => return Err(refusal(start, format!("there is no wire type {wire}"))),
        };
        let room = (end - at) as u64;
        if length > room {
            return Err(refusal(start, format!("field {field} wants {length} bytes where {room} are left")));
        }
        let next = at + length as usize;
        let inner = if key & 7 == 2 { child(message, field) } else { None };
        let Some(inner) = inner else {
            if open.is_initializer && key == u64::from(RAW_DATA) && length > INDEX as u64 {
                open.saved += lean.store(bytes, start, at..next);
            }
            at = next;
            continue;
        };
        let is_initializer = (message, inner) == (Message::Graph, Message::Tensor);
        let width = at - length_at;
        lean.copy(bytes, at);
        let length_at = lean.bytes.len() - width;
        messages += 1;
        nodes += u64::from(inner == Message::Node);
        if nodes > MAX_NODES {
            return Err(refusal(start, format!("there are more than {MAX_NODES} nodes")));
        }
        if messages > MAX_MESSAGES {
            return Err(refusal(start, format!("there are more than {MAX_MESSAGES} messages")));
        }
        if stack.len() == MAX_DEPTH {
            return Err(refusal(start, format!("messages are nested deeper than {MAX_DEPTH}")));
        }
        let length = length as usize;
        stack.push(Open { message: inner, is_initializer, end: next, length_at, width, length, saved: 0 });
    }
    lean.copy(bytes, bytes.len());
    Ok(())
}

/// The base-128 integer at `*at`, which moves behind it; `None` when it passes `end` or 64 bits.
pub(crate) fn varint(bytes: &[u8], at: &mut usize, end: usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        if *at >= end {
            return None;
        }
        let byte = *bytes.get(*at)?;
        *at += 1;
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(bytes: &[u8]) -> String {
        screen(bytes).expect_err("must be refused").to_string()
    }

    /// Unknown groups nested 200,000 deep, which overflow the stack of protobuf 3.4.0, are refused.
    #[test]
    fn nested_groups_are_refused() {
        let hostile = vec![0x1b; 400_000];
        assert!(refused(&hostile).contains("group"), "{}", refused(&hostile));
        // The same inside a node of a graph: model.graph (7), graph.node (1).
        let mut inner = vec![0x0a, 0x80, 0x20];
        inner.extend(std::iter::repeat_n(0x7b, 4096));
        let mut model = vec![0x3a, 0x83, 0x20];
        model.extend(&inner);
        assert!(refused(&model).contains("group"), "{}", refused(&model));
    }

    /// A length that leaves its message, a cut-off integer and an unknown wire type are refused.
    #[test]
    fn lengths_stay_inside() {
        assert!(refused(&[0x3a, 0x7f, 0]).contains("wants 127 bytes"));
        assert!(refused(&[0x3a, 0x03, 0x0a, 0x05, 0x00]).contains("wants 5 bytes where 1 are left"));
        assert!(refused(&[0x08, 0x80]).contains("cut off"));
        assert!(refused(&[0x0f]).contains("wire type 7"));
        assert!(
            refused(&[0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).contains("too long")
        );
        assert!(screen(&[]).is_ok());
    }

    /// Contents of large initializers stay outside; the rest is the model, whatever its lengths take.
    #[test]
    fn large_initializers_are_left_out() {
        let wrap = |field: u8, body: &[u8]| {
            let mut out = vec![field << 3 | 2];
            let mut length = body.len();
            while length > 0x7f {
                out.push(length as u8 | 0x80);
                length >>= 7;
            }
            out.push(length as u8);
            out.extend(body);
            out
        };
        let tensor = |bytes: usize| wrap(5, &[wrap(8, b"w"), wrap(9, &vec![7; bytes])].concat());
        for bytes in [0, 1, 63, 64, 65, 66, 200, 20_000, 3_000_000] {
            let graph = [wrap(1, &wrap(3, b"node")), tensor(bytes), tensor(8), wrap(2, b"graph")].concat();
            let model = [wrap(2, b"producer"), wrap(7, &graph)].concat();
            let lean = screen(&model).expect("a model");
            let is_large = bytes > INDEX;
            assert_eq!(lean.stored.len(), usize::from(is_large), "{bytes}");
            assert_eq!(lean.bytes == model, !is_large, "{bytes}");
            assert!(lean.bytes.len() <= model.len().min(300), "{bytes}: {}", lean.bytes.len());
            let again = screen(&lean.bytes).expect("the lean model is one");
            assert!(again.stored.is_empty() && again.bytes == lean.bytes);
            for range in lean.stored {
                assert_eq!(model[range], vec![7; bytes]);
            }
        }
        assert_eq!((stored(&[0; INDEX]), stored(&[1; 8]), stored(&[])), (Some(0), None, None));
    }

    /// Types nested 200 deep (sequence of sequence of ...) are refused without recursion.
    #[test]
    fn deep_nesting_is_refused() {
        let mut message: Vec<u8> = Vec::new();
        let wrap = |field: u8, body: Vec<u8>| {
            let mut out = vec![field << 3 | 2];
            let mut length = body.len();
            while length > 0x7f {
                out.push(length as u8 | 0x80);
                length >>= 7;
            }
            out.push(length as u8);
            out.extend(body);
            out
        };
        for _ in 0..100 {
            message = wrap(4, wrap(1, message));
        }
        let model = wrap(7, wrap(11, wrap(2, message)));
        assert!(refused(&model).contains("nested deeper"), "{}", refused(&model));
    }
}
