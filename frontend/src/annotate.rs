//! Notes in a copy of a model, as metadata of its nodes, tensors and values, for viewers such as Netron.
//!
//! The copy has the bytes of the model but for the notes, the lengths of the messages around them, and the
//! version of the format, which is raised to the first that knows such metadata. Subgraphs and functions
//! get no notes. Data in other files is not copied, so the copy of a model with such data must lie in the
//! model's folder.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::ImportError;
use crate::model::{Attr, Graph, Model, Payload};
use crate::screen::{MAX_FILE_BYTES, varint};
use crate::{initial, proto};

/// First version of the format with metadata of nodes and values.
const IR_VERSION: u64 = 10;
/// Start of the keys of notes; other ones are not touched.
const PREFIX: &str = "memc.";

/// Keys and values. Keys start with `memc.`.
pub type Entries = Vec<(String, String)>;

/// Notes on a model, by what they are about.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// By name of the node.
    pub nodes: BTreeMap<String, Entries>,
    /// By name of the value: input, output, initializer or one in between.
    pub values: BTreeMap<String, Entries>,
    /// One line on a value, which the node that computes it has too, as `memc.output.NAME`.
    pub lines: BTreeMap<String, String>,
}

/// The bytes of a copy of an ONNX model with notes, to be written to `copy`.
///
/// # Errors
/// - [`ImportError::Io`]: the model cannot be read.
/// - [`ImportError::BadModel`]: it is another file, or damaged.
/// - [`ImportError::Unsupported`]: the importer refuses to decode it.
/// - [`ImportError::Usage`]: the model has data in other files and `copy` lies in another folder, or notes
///   make it larger than the format allows.
pub fn annotate(model: &Path, copy: &Path, notes: &Notes) -> Result<Vec<u8>, ImportError> {
    let bytes = initial::read_file(model, MAX_FILE_BYTES)?;
    require_beside(model, copy, &proto::decode(&bytes)?)?;
    let out = with_notes(&bytes, notes).ok_or_else(|| ImportError::BadModel("not an ONNX model".into()))?;
    if out.len() as u64 > MAX_FILE_BYTES {
        let text = "with the notes it would have more bytes than the format allows; keep its weights as \
                    external data";
        return Err(ImportError::Usage(format!("{}: {text}", model.display())));
    }
    Ok(out)
}

/// Refuses a copy that could not find the data in other files.
fn require_beside(path: &Path, copy: &Path, model: &Model) -> Result<(), ImportError> {
    if folder(path) == folder(copy) {
        return Ok(());
    }
    let graphs = [&model.graph].into_iter().chain(model.training.iter().map(|t| &t.initialization));
    let Some(name) =
        graphs.chain(model.training.iter().filter_map(|t| t.algorithm.as_ref())).find_map(outside)
    else {
        return Ok(());
    };
    Err(ImportError::Usage(format!(
        "{}: tensor `{name}` of {} is in a file beside the model; write the copy into the model's folder",
        copy.display(),
        path.display()
    )))
}

/// The folder of a file, which need not exist; `None` where the folder does not.
fn folder(path: &Path) -> Option<std::path::PathBuf> {
    let given = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::canonicalize(given.unwrap_or(Path::new("."))).ok()
}

/// Name of a tensor of a graph whose data is in another file.
fn outside(graph: &Graph) -> Option<String> {
    let mut rest = vec![graph];
    while let Some(graph) = rest.pop() {
        let mut tensors: Vec<_> = graph.initializers.iter().collect();
        for attr in graph.nodes.iter().flat_map(|node| node.attrs.values()) {
            match attr {
                Attr::Tensor(tensor) => tensors.push(tensor),
                Attr::Graph(graph) => rest.push(graph),
                _ => {}
            }
        }
        let is_outside = |payload: &Payload| matches!(payload, Payload::External(_));
        if let Some(tensor) = tensors.into_iter().find(|tensor| is_outside(&tensor.payload)) {
            return Some(tensor.name.clone());
        }
    }
    None
}

/// A field of a message.
struct Field<'a> {
    number: u64,
    /// The field with its key.
    whole: &'a [u8],
    /// Content of a field with a length.
    content: Option<&'a [u8]>,
    /// Value of an integer.
    integer: Option<u64>,
}

/// The fields of a message; `None` where it is none.
fn fields(bytes: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut fields = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let key = varint(bytes, &mut at, bytes.len())?;
        let (mut content, mut integer) = (None, None);
        match key & 7 {
            0 => integer = Some(varint(bytes, &mut at, bytes.len())?),
            1 => at = at.checked_add(8)?,
            5 => at = at.checked_add(4)?,
            2 => {
                let length = usize::try_from(varint(bytes, &mut at, bytes.len())?).ok()?;
                let end = at.checked_add(length)?;
                content = Some(bytes.get(at..end)?);
                at = end;
            }
            _ => return None,
        }
        fields.push(Field { number: key >> 3, whole: bytes.get(start..at)?, content, integer });
    }
    Some(fields)
}

fn put_integer(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a field with a length.
fn put(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    put_integer(out, number << 3 | 2);
    put_integer(out, content.len() as u64);
    out.extend(content);
}

/// A model with notes in its graph.
fn with_notes(bytes: &[u8], notes: &Notes) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let all = fields(bytes)?;
    let version = all.iter().rev().find_map(|field| field.integer.filter(|_| field.number == 1)).unwrap_or(0);
    put_integer(&mut out, 1 << 3);
    put_integer(&mut out, version.max(IR_VERSION));
    for field in all {
        match (field.number, field.content) {
            (1, None) => {}
            (7, Some(graph)) => put(&mut out, 7, &noted_graph(graph, notes)?),
            _ => out.extend(field.whole),
        }
    }
    Some(out)
}

fn noted_graph(bytes: &[u8], notes: &Notes) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    for field in fields(bytes)? {
        let (number, content) = (field.number, field.content.unwrap_or_default());
        // Fields of names and of metadata.
        let (name, metadata) = match number {
            1 => (3, 9),
            5 => (8, 16),
            11..=13 => (1, 4),
            _ => {
                out.extend(field.whole);
                continue;
            }
        };
        let parts = fields(content)?;
        let named = |of: u64| parts.iter().filter(move |part| part.number == of).filter_map(text);
        let own = named(name).next_back().unwrap_or_default();
        let mut entries = Entries::new();
        if number == 1 {
            entries.extend(notes.nodes.get(own).into_iter().flatten().cloned());
            let line = |output| Some((format!("{PREFIX}output.{output}"), notes.lines.get(output)?.clone()));
            entries.extend(named(2).filter_map(line));
        } else {
            entries.extend(notes.values.get(own).into_iter().flatten().cloned());
        }
        let mut message = Vec::with_capacity(content.len());
        let kept = parts.iter().filter(|part| part.number != metadata || !is_note(part));
        kept.for_each(|part| message.extend(part.whole));
        for (key, value) in entries {
            let mut entry = Vec::new();
            put(&mut entry, 1, key.as_bytes());
            put(&mut entry, 2, value.as_bytes());
            put(&mut message, metadata, &entry);
        }
        put(&mut out, number, &message);
    }
    Some(out)
}

fn text<'a>(field: &Field<'a>) -> Option<&'a str> {
    std::str::from_utf8(field.content?).ok()
}

/// Whether an entry of metadata is a note of an earlier copy.
fn is_note(entry: &Field<'_>) -> bool {
    let parts = entry.content.and_then(fields).unwrap_or_default();
    parts.iter().any(|part| part.number == 1 && text(part).is_some_and(|key| key.starts_with(PREFIX)))
}
