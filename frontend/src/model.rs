//! A decoded model as plain data, independent of how it was read.
//!
//! Nothing here is checked beyond what decoding needs: names may clash, shapes may be absurd, payloads may
//! have any length. [`crate::graph`] and [`crate::tensor`] check.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::Data;

use crate::error::Fault;

/// A model: one main graph and the operator sets it uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// Operator set version by domain; the default domain is the empty string.
    pub opsets: BTreeMap<String, i64>,
    /// The main graph.
    pub graph: Graph,
    /// Who wrote the file.
    pub producer: String,
    /// Inputs that are weights without values, by the metadata entry `memc.weights_moved_to_inputs`.
    pub moved_weights: Vec<String>,
    /// Names of the parameters, by the metadata entry `memc.parameters`.
    pub parameters: Option<Vec<String>>,
    /// The standard's own description of training.
    pub training: Option<Training>,
    /// Operators that the model itself defines.
    pub functions: Vec<Function>,
}

/// An operator that the model defines by a graph of others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    pub domain: String,
    pub name: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub nodes: Vec<Node>,
    /// Attributes that calls may leave out.
    pub defaults: BTreeMap<String, Attr>,
    /// Operator set version by domain.
    pub opsets: BTreeMap<String, i64>,
}

impl Model {
    /// The version of `domain`'s operator set; 1 when the model does not import it.
    pub(crate) fn opset(&self, domain: &str) -> i64 {
        self.opsets.get(domain).copied().unwrap_or(1)
    }
}

/// Initialisation and training of a model, from `TrainingInfoProto`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Training {
    /// Computes initial contents; it has no inputs.
    pub initialization: Graph,
    /// One step, to be read behind the main graph, whose values it may use.
    pub algorithm: Option<Graph>,
    /// Pairs (initializer, output of `initialization`).
    pub initialization_binding: Vec<(String, String)>,
    /// Pairs (initializer, output of either graph that it becomes after a step).
    pub update_binding: Vec<(String, String)>,
}

impl Training {
    /// Whether it says what a step computes, not only how it starts.
    pub(crate) fn has_step(&self) -> bool {
        self.algorithm.as_ref().is_some_and(|g| !g.nodes.is_empty()) || !self.update_binding.is_empty()
    }
}

/// A graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub name: String,
    pub nodes: Vec<Node>,
    pub initializers: Vec<Tensor>,
    pub inputs: Vec<ValueInfo>,
    pub outputs: Vec<ValueInfo>,
    /// Declared types of values that are neither input nor output.
    pub value_info: Vec<ValueInfo>,
    /// Kinds of stored tensors, where the exporter tells.
    pub kinds: BTreeMap<String, TensorKind>,
}

/// Kind of a stored tensor in the exported program (`torch.export.graph_signature.InputKind`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TensorKind {
    Parameter,
    Buffer,
    Constant,
}

impl Graph {
    /// Names that nodes and outputs read and that the graph does not define.
    fn captured(&self) -> impl Iterator<Item = String> {
        let inputs = self.inputs.iter().map(|v| v.name.as_str());
        let stored = self.initializers.iter().map(|t| t.name.as_str());
        let made = self.nodes.iter().flat_map(|n| n.outputs.iter().map(String::as_str));
        let own: BTreeSet<&str> = inputs.chain(stored).chain(made).collect();
        let read = self.nodes.iter().flat_map(Node::reads);
        let read = read.chain(self.outputs.iter().map(|o| o.name.as_str()));
        read.filter(move |name| !own.contains(name)).map(str::to_string).collect::<Vec<_>>().into_iter()
    }

    /// Puts everything of `more` behind what is there.
    pub(crate) fn append(&mut self, more: Graph) {
        self.nodes.extend(more.nodes);
        self.initializers.extend(more.initializers);
        self.inputs.extend(more.inputs);
        self.outputs.extend(more.outputs);
        self.value_info.extend(more.value_info);
        self.kinds.extend(more.kinds);
    }
}

/// One operator application. An absent optional input or output is an empty name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub name: String,
    pub op: String,
    /// The operator set's domain, empty for the default one.
    pub domain: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub attrs: BTreeMap<String, Attr>,
    /// Names outside that its subgraphs read.
    pub captured: Vec<String>,
    /// Whether it is a `detach` of the exported program: its result has no gradient.
    pub detached: bool,
    /// Whether the exporter wrote a batch normalisation in inference form that the exported program has in
    /// training form; it is in training form here.
    pub restored: bool,
    /// Row of an embedding that is not trained (`padding_idx` of the exported program).
    pub padding: Option<i64>,
}

/// Domain of Microsoft's operators, which ONNX Runtime's training graphs use.
pub(crate) const MS: &str = "com.microsoft";
/// Domain of the standard's training operators.
pub(crate) const PREVIEW: &str = "ai.onnx.preview.training";

impl Node {
    /// Names that the node reads: its inputs, what attributes of a `Gradient` name, and what subgraphs
    /// capture.
    pub(crate) fn reads(&self) -> impl Iterator<Item = &str> {
        let named = match (self.domain.as_str(), self.op.as_str()) {
            (PREVIEW, "Gradient") => ["xs", "zs", "y"].map(|a| self.attrs.get(a)),
            _ => [None; 3],
        };
        let named = named.into_iter().flatten().flat_map(|attr| match attr {
            Attr::Text(name) => std::slice::from_ref(name),
            Attr::Texts(names) => names,
            _ => &[],
        });
        self.inputs
            .iter()
            .chain(named)
            .chain(&self.captured)
            .map(String::as_str)
            .filter(|name| !name.is_empty())
    }

    /// Subgraph `name`.
    pub(crate) fn graph(&self, name: &str) -> Option<&Graph> {
        match self.attrs.get(name) {
            Some(Attr::Graph(graph)) => Some(graph),
            _ => None,
        }
    }

    /// Whether it has subgraphs.
    pub(crate) fn has_subgraph(&self) -> bool {
        self.attrs.values().any(|a| matches!(a, Attr::Graph(_)))
    }

    /// Finds the names that subgraphs capture.
    pub(crate) fn capture(&mut self) {
        let mut captured = Vec::new();
        for attr in self.attrs.values() {
            let Attr::Graph(graph) = attr else { continue };
            captured.extend(graph.captured());
        }
        captured.sort_unstable();
        captured.dedup();
        self.captured = captured;
    }

    /// Whether the node adds to a gradient buffer of ONNX Runtime.
    pub(crate) fn is_accumulator(&self) -> bool {
        (self.domain.as_str(), self.op.as_str()) == (MS, "InPlaceAccumulatorV2")
    }

    /// The node for an error message: its name, or its first output when it has none.
    pub(crate) fn label(&self) -> String {
        if !self.name.is_empty() {
            return format!("node `{}` ({})", self.name, self.full_op());
        }
        match self.outputs.iter().find(|o| !o.is_empty()) {
            Some(o) => format!("the node that computes `{o}` ({})", self.full_op()),
            None => format!("an unnamed node ({})", self.full_op()),
        }
    }

    /// Float attribute `name`.
    pub(crate) fn float(&self, name: &str, default: f32) -> Result<f32, Fault> {
        match self.attrs.get(name) {
            None => Ok(default),
            Some(Attr::Float(v)) => Ok(*v),
            Some(other) => Err(other.ill_typed(name, "a float")),
        }
    }

    /// Integer attribute `name`.
    pub(crate) fn int(&self, name: &str, default: i64) -> Result<i64, Fault> {
        match self.attrs.get(name) {
            None => Ok(default),
            Some(Attr::Int(v)) => Ok(*v),
            Some(other) => Err(other.ill_typed(name, "an integer")),
        }
    }

    /// The operator with its domain.
    pub(crate) fn full_op(&self) -> String {
        if self.domain.is_empty() { self.op.clone() } else { format!("{}::{}", self.domain, self.op) }
    }
}

/// An attribute's value.
#[derive(Clone, Debug)]
pub(crate) enum Attr {
    Float(f32),
    Int(i64),
    Text(String),
    Tensor(Tensor),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Texts(Vec<String>),
    Graph(Box<Graph>),
    /// The attribute of this name of the function's call.
    Reference(String),
    /// A value that no supported operator has, by what it is.
    Other(&'static str),
}

impl Attr {
    /// The kind of value, for error messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Attr::Float(_) => "a float",
            Attr::Int(_) => "an integer",
            Attr::Text(_) => "a string",
            Attr::Tensor(_) => "a tensor",
            Attr::Floats(_) => "a list of floats",
            Attr::Ints(_) => "a list of integers",
            Attr::Texts(_) => "a list of strings",
            Attr::Graph(_) => "a subgraph",
            Attr::Reference(_) => "a reference to a function's attribute",
            Attr::Other(kind) => kind,
        }
    }

    /// The fault of attribute `name`, which must be `want`.
    pub(crate) fn ill_typed(&self, name: &str, want: &str) -> Fault {
        Fault::Bad(format!("attribute `{name}` must be {want}, not {}", self.kind()))
    }
}

/// A constant tensor as stored: payload and shape need not agree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tensor {
    pub name: String,
    pub dims: Vec<i64>,
    /// `TensorProto.DataType`.
    pub dtype: i32,
    pub payload: Payload,
}

/// Where a tensor's elements are.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// Little-endian bytes.
    Raw(Data),
    Floats(Vec<f32>),
    /// Also booleans.
    Int32s(Vec<i32>),
    Int64s(Vec<i64>),
    Doubles(Vec<f64>),
    /// In another file, described by the entries.
    External(Vec<(String, String)>),
    /// In fields that no supported element type uses.
    Other,
}

impl Payload {
    /// Size in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match self {
            Payload::Raw(v) => v.len(),
            Payload::Floats(v) => v.len().saturating_mul(4),
            Payload::Int32s(v) => v.len().saturating_mul(4),
            Payload::Int64s(v) => v.len().saturating_mul(8),
            Payload::Doubles(v) => v.len().saturating_mul(8),
            Payload::External(_) | Payload::Other => 0,
        };
        bytes as u64
    }
}

impl Default for Payload {
    fn default() -> Self {
        Payload::Raw(Data::default())
    }
}

/// A named value with its declared type.
#[derive(Clone, Debug)]
pub(crate) struct ValueInfo {
    pub name: String,
    pub ty: ValueType,
}

/// A declared type.
#[derive(Clone, Debug)]
pub(crate) enum ValueType {
    /// A tensor; `shape` is absent when even the rank is unknown.
    Tensor { dtype: i32, shape: Option<Vec<Dim>> },
    /// Something other than a tensor, by what it is.
    Other(&'static str),
}

/// A declared extent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Dim {
    Size(i64),
    Symbol(String),
    Unknown,
}
