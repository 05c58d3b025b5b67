//! ONNX models: files whose bytes or fields are changed, and small graphs that bytes describe.

use arbtest::arbitrary::{Result, Unstructured};
use memc_frontend::ImportOptions;

use crate::wire::{self, Content, Field, Kind};
use crate::{damage, step};

pub(crate) const MODEL: Kind = 0;
pub(crate) const GRAPH: Kind = 1;
pub(crate) const NODE: Kind = 2;
pub(crate) const ATTRIBUTE: Kind = 3;
pub(crate) const TENSOR: Kind = 4;
pub(crate) const VALUE: Kind = 5;
pub(crate) const TYPE: Kind = 6;
pub(crate) const TENSOR_TYPE: Kind = 7;
pub(crate) const SHAPE: Kind = 8;
pub(crate) const FUNCTION: Kind = 9;
const SPARSE: Kind = 10;
const TRAINING: Kind = 11;
const ELEMENT_TYPE: Kind = 12;
const MAP_TYPE: Kind = 13;
/// A message without messages: a dimension, a pair of texts, an operator set.
pub(crate) const LEAF: Kind = 14;

/// The messages of the ONNX schema.
pub(crate) fn schema(kind: Kind, field: u64) -> Option<Kind> {
    Some(match (kind, field) {
        (MODEL, 7) | (ATTRIBUTE, 6 | 11) | (TRAINING, 1 | 2) => GRAPH,
        (MODEL, 20) => TRAINING,
        (MODEL, 25) => FUNCTION,
        (GRAPH, 1) | (FUNCTION, 7) => NODE,
        (NODE, 5) | (FUNCTION, 11) => ATTRIBUTE,
        (GRAPH, 5) | (ATTRIBUTE, 5 | 10) | (SPARSE, 1 | 2) => TENSOR,
        (GRAPH, 11..=13) | (FUNCTION, 12) => VALUE,
        (GRAPH, 15) | (ATTRIBUTE, 22 | 23) => SPARSE,
        (VALUE, 2) | (ELEMENT_TYPE, 1) | (MAP_TYPE, 2) | (ATTRIBUTE, 14 | 15) => TYPE,
        (TYPE, 1 | 8) => TENSOR_TYPE,
        (TYPE, 4 | 9) => ELEMENT_TYPE,
        (TYPE, 5) => MAP_TYPE,
        (TENSOR_TYPE, 2) => SHAPE,
        (MODEL, 8 | 14) | (GRAPH, 14 | 16) | (SHAPE, 1) | (TENSOR, 3 | 13) => LEAF,
        (FUNCTION, 9) | (TRAINING, 3 | 4) => LEAF,
        _ => return None,
    })
}

/// Operators and attributes, which a field may be renamed to.
const WORDS: &str = "\
    Relu Add MatMul Reshape Conv MaxPool Softmax Gather Slice Cast Concat Loop If Scan Constant Expand \
    Gradient Adam axis axes perm pads strides kernel_shape to value keepdims ../w.bin w.bin";

/// Changes a model file: mostly its fields, else its bytes.
pub(crate) fn mutate(u: &mut Unstructured<'_>, data: &mut Vec<u8>) -> Result<()> {
    match wire::read(data, MODEL, schema) {
        Some(mut fields) if u.ratio(4, 5)? => {
            let words: Vec<&str> = WORDS.split_whitespace().collect();
            wire::mutate(u, &mut fields, MODEL, &words)?;
            *data = wire::write(&fields);
            Ok(())
        }
        _ => damage::bytes(u, data),
    }
}

/// Bytes that a model may keep its weights in.
const EXTERNAL: [u8; 256] = [63; 256];

/// A file is imported, by itself and with options that make more of it, rewritten, planned and run.
pub(crate) fn bytes(data: &[u8]) {
    let choice = step::choice(data);
    step::file("w.bin", &EXTERNAL);
    let path = step::file("model.onnx", data);
    step::import(&path, options(data, choice), choice);
    if choice >> 20 & 7 == 0 {
        let _ = memc_frontend::import_inference(data, &ImportOptions::default());
        let _ = memc_frontend::interface(data);
        let _ = memc_frontend::read_tensor(data);
    }
}

const LOSSES: [&str; 5] = ["cross-entropy", "mse", "l1", "bce-with-logits", "output"];
const OPTIMIZERS: [&str; 5] = ["sgd", "momentum:lr=0.1", "adam", "adamw:lr=1e-3,weight_decay=0.1", "adagrad"];

/// Options that `choice` selects: a third of the models is taken as it is.
pub(crate) fn options(data: &[u8], choice: u64) -> ImportOptions {
    let mut dims: Vec<String> = Vec::new();
    if let Some(fields) = wire::read(data, MODEL, schema) {
        symbols(&fields, MODEL, &mut dims);
    }
    dims.sort();
    dims.dedup();
    let dims = dims.into_iter().map(|name| (name, 1 + (choice >> 24) % 4)).collect();
    let mut options = ImportOptions { dims, ..ImportOptions::default() };
    let other = choice >> 32;
    if !other.is_multiple_of(3) {
        let loss = LOSSES[(other >> 2) as usize % LOSSES.len()];
        let optimizer = OPTIMIZERS[(other >> 8) as usize % OPTIMIZERS.len()];
        options.loss = loss.parse().ok();
        options.optimizer = optimizer.parse().ok();
        options.accumulate = [1, 1, 1, 2][(other >> 12) as usize % 4];
    }
    options.no_optimizer = other >> 16 & 15 == 0;
    options
}

/// Names of symbolic dimensions.
fn symbols(fields: &[Field], kind: Kind, out: &mut Vec<String>) {
    for field in fields {
        match &field.content {
            Content::Message(inner, fields) => {
                symbols(fields, if kind == SHAPE { SHAPE } else { *inner }, out)
            }
            Content::Bytes(name) if kind == SHAPE && field.number == 2 => {
                out.extend(String::from_utf8(name.clone()).ok().filter(|name| !name.is_empty()));
            }
            _ => {}
        }
    }
}
