//! Decodes the protobuf form. The only file that names types of the protobuf crates.
//!
//! Bytes pass [`crate::screen`] first. Features of the format that no training graph uses are refused here:
//! sparse tensors, quantisation.

use std::collections::BTreeMap;

use onnx_protobuf::attribute_proto::AttributeType;
use onnx_protobuf::tensor_proto::DataLocation;
use onnx_protobuf::tensor_shape_proto::dimension::Value as DimValue;
use onnx_protobuf::type_proto::Value as TypeValue;
use onnx_protobuf::{
    AttributeProto, FunctionProto, GraphProto, Message, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, TrainingInfoProto, TypeProto, ValueInfoProto,
};

use memc_ir::Data;

use crate::error::ImportError;
use crate::model::{
    Attr, Dim, Function, Graph, Model, Node, Payload, Tensor, TensorKind, Training, ValueInfo, ValueType,
};
use crate::{initial, screen};

/// Decodes a model.
///
/// The content of large initializers stays where it is, in `bytes`.
pub(crate) fn decode(bytes: &Data) -> Result<Model, ImportError> {
    if let Some(other) = initial::other_file(bytes) {
        return Err(ImportError::BadModel(format!("not an ONNX model: {other}")));
    }
    let lean = screen::screen(bytes)?;
    let proto = ModelProto::parse_from_bytes(&lean.bytes)
        .map_err(|e| ImportError::BadModel(format!("not an ONNX model: {e}")))?;
    let functions = proto.functions.into_iter().map(function).collect::<Result<_, _>>()?;
    let mut infos = proto.training_info.into_iter();
    let training = infos.next().map(training).transpose()?;
    if infos.next().is_some() {
        return Err(ImportError::Unsupported(
            "the model has several TrainingInfoProtos, which are steps to be run one after the other; \
             supported is one, so put their algorithms into one"
                .into(),
        ));
    }
    let moved = entry(&proto.metadata_props, MOVED_WEIGHTS).unwrap_or("");
    let moved_weights = moved.split(',').filter(|n| !n.is_empty()).map(str::to_string).collect();
    let parameters = entry(&proto.metadata_props, PARAMETERS).map(parameters).transpose()?;
    let Some(graph) = proto.graph.into_option() else {
        return Err(ImportError::BadModel("not an ONNX model: it has no graph".into()));
    };
    let opsets = opsets(proto.opset_import)?;
    let (graph, producer) = (graph_from(graph)?, proto.producer_name);
    let mut model = Model { opsets, graph, producer, moved_weights, parameters, training, functions };
    let stored: Vec<Data> = lean.stored.into_iter().filter_map(|range| bytes.slice(range)).collect();
    let training =
        model.training.iter_mut().flat_map(|t| [Some(&mut t.initialization), t.algorithm.as_mut()]);
    for graph in training.flatten().chain([&mut model.graph]) {
        place(&mut graph.initializers, &mut graph.nodes, &stored);
    }
    for function in &mut model.functions {
        place(&mut [], &mut function.nodes, &stored);
    }
    Ok(model)
}

/// Puts the content of large initializers back, those of subgraphs included.
fn place(initializers: &mut [Tensor], nodes: &mut [Node], stored: &[Data]) {
    for tensor in initializers {
        if let Payload::Raw(bytes) = &mut tensor.payload
            && let Some(content) = screen::stored(bytes).and_then(|index| stored.get(index))
        {
            *bytes = content.clone();
        }
    }
    for attr in nodes.iter_mut().flat_map(|node| node.attrs.values_mut()) {
        if let Attr::Graph(graph) = attr {
            place(&mut graph.initializers, &mut graph.nodes, stored);
        }
    }
}

fn opsets(list: Vec<OperatorSetIdProto>) -> Result<BTreeMap<String, i64>, ImportError> {
    let mut opsets = BTreeMap::new();
    for entry in list {
        let domain = domain_name(entry.domain)?;
        if let Some(other) = opsets.insert(domain.clone(), entry.version)
            && other != entry.version
        {
            return Err(ImportError::BadModel(format!(
                "the model imports versions {other} and {} of operator set `{domain}`",
                entry.version
            )));
        }
    }
    Ok(opsets)
}

fn function(f: FunctionProto) -> Result<Function, ImportError> {
    let mut defaults = BTreeMap::new();
    for a in f.attribute_proto {
        let key = name(a.name.clone())?;
        let value =
            attribute(a).map_err(|e| e.within(&format!("function `{}`, attribute `{key}`", f.name)))?;
        defaults.insert(key, value);
    }
    Ok(Function {
        domain: domain_name(f.domain)?,
        name: name(f.name)?,
        inputs: names(f.input)?,
        outputs: names(f.output)?,
        nodes: f.node.into_iter().map(node).collect::<Result<_, _>>()?,
        defaults,
        opsets: opsets(f.opset_import)?,
    })
}

/// Decodes a tensor that stands alone.
pub(crate) fn decode_tensor(bytes: &[u8]) -> Result<Tensor, ImportError> {
    screen::screen_tensor(bytes)?;
    let proto = TensorProto::parse_from_bytes(bytes)
        .map_err(|e| ImportError::BadModel(format!("not an ONNX tensor: {e}")))?;
    tensor(proto)
}

/// The metadata entry that lists weights that are graph inputs without values.
const MOVED_WEIGHTS: &str = "memc.weights_moved_to_inputs";

/// The metadata entry that lists the names of the parameters, as a JSON array.
const PARAMETERS: &str = "memc.parameters";

/// The entry of a value's metadata that says what it is in the exported program.
const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";

/// The entry of a node's metadata with the call in the exported program.
const CALL: &str = "pkg.torch.onnx.fx_node";

fn entry<'a>(props: &'a [StringStringEntryProto], key: &str) -> Option<&'a str> {
    props.iter().find(|p| p.key == key).map(|p| p.value.as_str())
}

fn parameters(text: &str) -> Result<Vec<String>, ImportError> {
    let list: Vec<String> = serde_json::from_str(text).map_err(|e| {
        ImportError::BadModel(format!("the metadata entry `{PARAMETERS}` is no JSON array of names: {e}"))
    })?;
    names(list)
}

fn kind(props: &[StringStringEntryProto]) -> Option<TensorKind> {
    // `InputKind.BUFFER` or `BUFFER`, by version.
    match entry(props, KIND)?.rsplit('.').next()? {
        "PARAMETER" => Some(TensorKind::Parameter),
        "BUFFER" => Some(TensorKind::Buffer),
        "CONSTANT_TENSOR" => Some(TensorKind::Constant),
        _ => None,
    }
}

fn training(info: TrainingInfoProto) -> Result<Training, ImportError> {
    let graph = |g: Option<GraphProto>| g.map(graph_from).transpose();
    let pairs = |list: Vec<StringStringEntryProto>| -> Result<Vec<(String, String)>, ImportError> {
        list.into_iter().map(|e| Ok((name(e.key)?, name(e.value)?))).collect()
    };
    Ok(Training {
        initialization: graph(info.initialization.into_option())?.unwrap_or_default(),
        algorithm: graph(info.algorithm.into_option())?,
        initialization_binding: pairs(info.initialization_binding)?,
        update_binding: pairs(info.update_binding)?,
    })
}

fn domain_name(domain: String) -> Result<String, ImportError> {
    name(if domain == "ai.onnx" { String::new() } else { domain })
}

/// Longest name in bytes.
const MAX_NAME: usize = 4096;

/// A name that may be printed.
fn name(name: String) -> Result<String, ImportError> {
    if name.len() > MAX_NAME || name.chars().any(char::is_control) {
        let start: String = name.chars().take(40).flat_map(char::escape_default).collect();
        return Err(ImportError::BadModel(format!(
            "the name that starts with `{start}` has control characters or more than {MAX_NAME} bytes"
        )));
    }
    Ok(name)
}

fn names(list: Vec<String>) -> Result<Vec<String>, ImportError> {
    list.into_iter().map(name).collect()
}

fn graph_from(graph: GraphProto) -> Result<Graph, ImportError> {
    if let Some(s) = graph.sparse_initializer.first() {
        return Err(ImportError::Unsupported(format!(
            "initializer `{}` is sparse; only dense tensors are supported",
            s.values.name
        )));
    }
    if !graph.quantization_annotation.is_empty() {
        return Err(ImportError::Unsupported("the graph is quantised, which is not supported".into()));
    }
    let of_values = graph.input.iter().chain(&graph.value_info).map(|v| (&v.name, &v.metadata_props));
    let of_tensors = graph.initializer.iter().map(|t| (&t.name, &t.metadata_props));
    let kinds =
        of_values.chain(of_tensors).filter_map(|(n, props)| Some((n.clone(), kind(props)?))).collect();
    let values = |list: Vec<ValueInfoProto>| list.into_iter().map(value_info).collect::<Result<_, _>>();
    Ok(Graph {
        name: name(graph.name)?,
        nodes: graph.node.into_iter().map(node).collect::<Result<_, _>>()?,
        initializers: graph.initializer.into_iter().map(tensor).collect::<Result<_, _>>()?,
        inputs: values(graph.input)?,
        outputs: values(graph.output)?,
        value_info: values(graph.value_info)?,
        kinds,
    })
}

fn node(node: NodeProto) -> Result<Node, ImportError> {
    let call = entry(&node.metadata_props, CALL).unwrap_or_default();
    let (detached, trains) = (call.contains("aten.detach.default"), normalises_batch(call));
    let mut out = Node {
        name: name(node.name)?,
        op: name(node.op_type)?,
        domain: domain_name(node.domain)?,
        inputs: names(node.input)?,
        outputs: names(node.output)?,
        attrs: BTreeMap::new(),
        captured: Vec::new(),
        detached,
        restored: false,
        padding: padding(call),
    };
    for a in node.attribute {
        let key = name(a.name.clone())?;
        let value = attribute(a).map_err(|e| e.within(&format!("{}, attribute `{key}`", out.label())))?;
        if out.attrs.insert(key.clone(), value).is_some() {
            return Err(ImportError::BadModel(format!("{} has attribute `{key}` twice", out.label())));
        }
    }
    out.capture();
    if trains && out.op == "BatchNormalization" && out.inputs.len() == 5 {
        restore(&mut out);
    }
    Ok(out)
}

/// Whether a call in an exported program is a batch normalisation by the batch's statistics, which it keeps:
/// the sixth argument says so, and the fourth and fifth are the running statistics.
fn normalises_batch(call: &str) -> bool {
    let Some((target, rest)) = call.split_once("(args = (") else { return false };
    let arguments: Vec<&str> = rest.split(", ").collect();
    let is = |i: usize, what: &str| arguments.get(i).is_some_and(|a| a.starts_with(what));
    target.contains("batch_norm") && is(3, "%") && is(4, "%") && is(5, "True")
}

/// The third argument of an embedding's call, which is negative where there is no such row.
fn padding(call: &str) -> Option<i64> {
    let (target, rest) = call.split_once("(args = (")?;
    let third = rest.split(", ").nth(2).filter(|_| target.contains("aten.embedding.default"))?;
    third.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok().filter(|&row| row >= 0)
}

/// Puts a batch normalisation into training form.
fn restore(node: &mut Node) {
    if matches!(node.attrs.get("training_mode"), Some(Attr::Int(mode)) if *mode != 0) {
        return;
    }
    let base = node.outputs.first().cloned().unwrap_or_default();
    for (i, name) in [(1, "running_mean"), (2, "running_var")] {
        if node.outputs.len() <= i {
            node.outputs.push(String::new());
        }
        if let Some(output) = node.outputs.get_mut(i).filter(|o| o.is_empty()) {
            *output = format!("{base}/{name}");
        }
    }
    node.attrs.insert("training_mode".into(), Attr::Int(1));
    node.restored = true;
}

fn attribute(a: AttributeProto) -> Result<Attr, ImportError> {
    if !a.ref_attr_name.is_empty() {
        return name(a.ref_attr_name).map(Attr::Reference);
    }
    let Ok(kind) = a.type_.enum_value() else {
        return Err(ImportError::BadModel(format!("there is no attribute type {}", a.type_.value())));
    };
    Ok(match kind {
        AttributeType::FLOAT => Attr::Float(a.f),
        AttributeType::INT => Attr::Int(a.i),
        AttributeType::STRING => match String::from_utf8(a.s) {
            Ok(s) => Attr::Text(s),
            Err(_) => Attr::Other("a string that is not UTF-8"),
        },
        AttributeType::TENSOR => match a.t.into_option() {
            Some(t) => Attr::Tensor(tensor(t)?),
            None => return Err(ImportError::BadModel("the tensor is missing".into())),
        },
        AttributeType::FLOATS => Attr::Floats(a.floats),
        AttributeType::INTS => Attr::Ints(a.ints),
        AttributeType::UNDEFINED => Attr::Other("a value without type"),
        AttributeType::GRAPH => match a.g.into_option() {
            Some(g) => Attr::Graph(Box::new(graph_from(g)?)),
            None => return Err(ImportError::BadModel("the subgraph is missing".into())),
        },
        AttributeType::GRAPHS => Attr::Other("a list of subgraphs"),
        AttributeType::SPARSE_TENSOR | AttributeType::SPARSE_TENSORS => Attr::Other("a sparse tensor"),
        AttributeType::TYPE_PROTO | AttributeType::TYPE_PROTOS => Attr::Other("a type"),
        AttributeType::STRINGS => match a.strings.into_iter().map(String::from_utf8).collect() {
            Ok(list) => Attr::Texts(list),
            Err(_) => Attr::Other("a list of strings that are not UTF-8"),
        },
        AttributeType::TENSORS => Attr::Other("a list of tensors"),
    })
}

fn tensor(t: TensorProto) -> Result<Tensor, ImportError> {
    let bad = |what: &str| Err(ImportError::BadModel(format!("tensor `{}` {what}", t.name)));
    if t.segment.is_some() {
        return bad("is stored in segments, which readers do not support");
    }
    let external = match t.data_location.enum_value() {
        Ok(DataLocation::DEFAULT) => false,
        Ok(DataLocation::EXTERNAL) => true,
        Err(n) => return bad(&format!("has unknown data location {n}")),
    };
    let fields = [
        !t.raw_data.is_empty(),
        !t.float_data.is_empty(),
        !t.int32_data.is_empty(),
        !t.int64_data.is_empty(),
        !t.double_data.is_empty(),
        !t.string_data.is_empty() || !t.uint64_data.is_empty(),
        external || !t.external_data.is_empty(),
    ];
    if fields.iter().filter(|&&f| f).count() > 1 {
        return bad("stores its elements twice");
    }
    let payload = match fields {
        [.., true] if !external => return bad("describes an external file but is not external"),
        [.., true] => Payload::External(t.external_data.into_iter().map(|e| (e.key, e.value)).collect()),
        [_, true, ..] => Payload::Floats(t.float_data),
        [_, _, true, ..] => Payload::Int32s(t.int32_data),
        [_, _, _, true, ..] => Payload::Int64s(t.int64_data),
        [_, _, _, _, true, ..] => Payload::Doubles(t.double_data),
        [_, _, _, _, _, true, _] => Payload::Other,
        _ => Payload::Raw(t.raw_data.into()),
    };
    Ok(Tensor { name: name(t.name)?, dims: t.dims, dtype: t.data_type, payload })
}

fn value_info(v: ValueInfoProto) -> Result<ValueInfo, ImportError> {
    let ty = v.type_.into_option().map_or(Ok(ValueType::Other("a value without type")), value_type)?;
    Ok(ValueInfo { name: name(v.name)?, ty })
}

fn value_type(ty: TypeProto) -> Result<ValueType, ImportError> {
    Ok(match ty.value {
        Some(TypeValue::TensorType(t)) => {
            let dims = t.shape.into_option().map(|s| s.dim);
            let dim = |value| match value {
                Some(DimValue::DimValue(n)) => Ok(Dim::Size(n)),
                Some(DimValue::DimParam(s)) if !s.is_empty() => name(s).map(Dim::Symbol),
                _ => Ok(Dim::Unknown),
            };
            let shape = dims.map(|dims| dims.into_iter().map(|d| dim(d.value)).collect::<Result<_, _>>());
            ValueType::Tensor { dtype: t.elem_type, shape: shape.transpose()? }
        }
        Some(TypeValue::SequenceType(_)) => ValueType::Other("a sequence"),
        Some(TypeValue::MapType(_)) => ValueType::Other("a map"),
        Some(TypeValue::OptionalType(_)) => ValueType::Other("an optional"),
        Some(TypeValue::SparseTensorType(_)) => ValueType::Other("a sparse tensor"),
        Some(_) | None => ValueType::Other("a value without type"),
    })
}
