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

pub(crate) fn ints_attr(name: &str, list: &[i64]) -> Vec<u8> {
    let list: Vec<u8> = list.iter().flat_map(|&v| int(8, v)).collect();
    [field(1, name), list, int(20, 7)].concat()
}

pub(crate) fn float_attr(name: &str, v: f32) -> Vec<u8> {
    [field(1, name), varint(2 << 3 | 5), v.to_le_bytes().to_vec(), int(20, 1)].concat()
}

pub(crate) fn text_attr(name: &str, v: &str) -> Vec<u8> {
    [field(1, name), field(4, v), int(20, 3)].concat()
}

pub(crate) fn texts_attr(name: &str, list: &[&str]) -> Vec<u8> {
    let list: Vec<u8> = list.iter().flat_map(|v| field(9, v)).collect();
    [field(1, name), list, int(20, 8)].concat()
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

/// The operator set of the standard's training operators.
pub(crate) const PREVIEW: &str = "ai.onnx.preview.training";

/// A node of the standard's training operators.
pub(crate) fn preview(op: &str, inputs: &[&str], outputs: &[&str], attrs: &[Vec<u8>]) -> Vec<u8> {
    [node(op, op, inputs, outputs, attrs), field(7, PREVIEW)].concat()
}

/// A model with training information.
#[derive(Clone, Default)]
pub(crate) struct Trained {
    pub(crate) main: Graph,
    pub(crate) initialization: Graph,
    pub(crate) algorithm: Graph,
    /// Fields 3 and 4: initialization and update bindings.
    pub(crate) bindings: Vec<(u64, &'static str, &'static str)>,
}

impl Trained {
    pub(crate) fn model(&self) -> Vec<u8> {
        let bindings = self
            .bindings
            .iter()
            .flat_map(|(at, key, value)| field(*at, [field(1, key), field(2, value)].concat()));
        let info = [field(1, self.initialization.bytes()), field(2, self.algorithm.bytes())].concat();
        let info: Vec<u8> = info.into_iter().chain(bindings).collect();
        let preview = [field(1, PREVIEW), int(2, 1)].concat();
        [self.main.model(), field(8, preview), field(20, info)].concat()
    }
}

/// `y = w * x`, trained by gradient descent on the sum of squares of `y - t`, with steps counted in `n`.
pub(crate) fn small_training() -> Trained {
    let whole = [int_attr("keepdims", 0)];
    let float = |v: f32| v.to_le_bytes();
    let xs = [texts_attr("xs", &["w"]), texts_attr("zs", &["x", "t"]), text_attr("y", "loss")];
    let weights: Vec<u8> = [2f32, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    Trained {
        main: Graph {
            nodes: vec![node("Mul", "forward", &["w", "x"], &["y"], &[])],
            inputs: vec![value("x", 1, &["2"])],
            outputs: vec![value("y", 1, &["2"])],
            initializers: vec![tensor("w", 1, &[2], &weights)],
            ..Graph::default()
        },
        initialization: Graph::default(),
        algorithm: Graph {
            nodes: vec![
                node("Sub", "error", &["y", "t"], &["e"], &[]),
                node("Mul", "square", &["e", "e"], &["s"], &[]),
                node("ReduceSum", "total", &["s"], &["loss"], &whole),
                preview("Gradient", &["w", "x", "t"], &["dw"], &xs),
                preview(
                    "Momentum",
                    &["rate", "n", "w", "dw", "v"],
                    &["w_new", "v_new"],
                    &[
                        float_attr("alpha", 0.5),
                        float_attr("beta", 0.25),
                        float_attr("norm_coefficient", 0.0),
                        text_attr("mode", "nesterov"),
                    ],
                ),
                node("Add", "count", &["n", "one"], &["n_new"], &[]),
            ],
            inputs: vec![value("t", 1, &["2"])],
            outputs: vec![
                value("loss", 1, &[]),
                value("w_new", 1, &["2"]),
                value("v_new", 1, &["2"]),
                value("n_new", 7, &[]),
            ],
            initializers: vec![
                tensor("rate", 1, &[], &float(0.125)),
                tensor("v", 1, &[2], &[0; 8]),
                tensor("n", 7, &[], &[0; 8]),
                tensor("one", 7, &[], &1i64.to_le_bytes()),
            ],
            ..Graph::default()
        },
        bindings: vec![(4, "w", "w_new"), (4, "v", "v_new"), (4, "n", "n_new")],
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
