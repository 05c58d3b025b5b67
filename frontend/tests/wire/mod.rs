//! Writes ONNX protobuf messages by hand, so that tests can also write illegal ones.

#![allow(dead_code, reason = "every test binary uses some of these")]

pub(crate) fn varint(mut v: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while v > 0x7f {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
    out
}

/// A length-delimited field: message, string or bytes.
pub(crate) fn field(number: u64, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    [varint(number << 3 | 2), varint(body.len() as u64), body.to_vec()].concat()
}

/// An integer field.
pub(crate) fn int(number: u64, v: i64) -> Vec<u8> {
    [varint(number << 3), varint(v as u64)].concat()
}

/// `TypeProto.Tensor` of the given element type; a dimension is a size or a symbol.
pub(crate) fn tensor_type(code: i64, dims: &[&str]) -> Vec<u8> {
    let dims: Vec<Vec<u8>> =
        dims.iter().map(|d| field(1, d.parse::<i64>().map_or_else(|_| field(2, d), |n| int(1, n)))).collect();
    field(1, [int(1, code), field(2, dims.concat())].concat())
}

pub(crate) fn value(name: &str, code: i64, dims: &[&str]) -> Vec<u8> {
    [field(1, name), field(2, tensor_type(code, dims))].concat()
}

pub(crate) fn node(op: &str, name: &str, inputs: &[&str], outputs: &[&str], attrs: &[Vec<u8>]) -> Vec<u8> {
    let mut out: Vec<u8> = inputs.iter().flat_map(|x| field(1, x)).collect();
    out.extend(outputs.iter().flat_map(|x| field(2, x)));
    out.extend([field(3, name), field(4, op)].concat());
    out.extend(attrs.iter().flat_map(|a| field(5, a)));
    out
}

pub(crate) fn int_attr(name: &str, v: i64) -> Vec<u8> {
    [field(1, name), int(3, v), int(20, 2)].concat()
}

/// `TensorProto` with raw data.
pub(crate) fn tensor(name: &str, code: i64, dims: &[i64], raw: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = dims.iter().flat_map(|&d| int(1, d)).collect();
    out.extend([int(2, code), field(8, name), field(9, raw)].concat());
    out
}

/// Parts of a graph: fields of `GraphProto`.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Vec<u8>>,
    pub(crate) inputs: Vec<Vec<u8>>,
    pub(crate) outputs: Vec<Vec<u8>>,
    pub(crate) initializers: Vec<Vec<u8>>,
    pub(crate) more: Vec<u8>,
}

impl Graph {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let list =
            |number, items: &[Vec<u8>]| -> Vec<u8> { items.iter().flat_map(|x| field(number, x)).collect() };
        [
            list(1, &self.nodes),
            field(2, "g"),
            list(5, &self.initializers),
            list(11, &self.inputs),
            list(12, &self.outputs),
            self.more.clone(),
        ]
        .concat()
    }
    pub(crate) fn model(&self) -> Vec<u8> {
        [int(1, 8), field(7, self.bytes()), field(8, int(2, 20))].concat()
    }
}

/// One step of `w_new = w - x`, `loss = sum(w_new)`.
pub(crate) fn small_step() -> Graph {
    Graph {
        nodes: vec![
            node("Sub", "update", &["w", "x"], &["w_new"], &[]),
            node("ReduceSum", "total", &["w_new"], &["loss"], &[int_attr("keepdims", 0)]),
        ],
        inputs: vec![value("w", 1, &["2", "3"]), value("x", 1, &["2", "3"])],
        outputs: vec![value("loss", 1, &[]), value("w_new", 1, &["2", "3"])],
        ..Graph::default()
    }
}
