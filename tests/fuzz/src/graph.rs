//! Small ONNX models that bytes describe: operators with hostile operands, attributes and shapes, control
//! flow, functions and external data.
//!
//! Most of a model is right, so that readers get past it to what is wrong.

use arbtest::arbitrary::{Result, Unstructured};

use crate::onnx::{self, ATTRIBUTE, FUNCTION, GRAPH, LEAF, NODE, SHAPE, TENSOR, TENSOR_TYPE, TYPE, VALUE};
use crate::step;
use crate::wire::{self, Content, Field, NUMBERS};

/// Operators of the standard, and of ONNX Runtime's training graphs below the gap.
const OPS: &str = "\
    Abs Add And ArgMax Attention AveragePool BatchNormalization Bernoulli Cast CastLike Ceil \
    CenterCropPad Clip Col2Im Concat Constant ConstantOfShape Conv ConvTranspose CumSum DFT DepthToSpace \
    Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten GRU Gather GatherElements GatherND Gelu \
    Gemm GlobalAveragePool GlobalMaxPool Greater GridSample GroupNormalization HannWindow Hardmax \
    Identity InstanceNormalization LRN LSTM LayerNormalization LeakyRelu Log LogSoftmax LpNormalization \
    LpPool MatMul Max MaxPool MaxUnpool Mean Min Mod Mul Neg NegativeLogLikelihoodLoss NonZero Not \
    OneHot PRelu Pad Pow RMSNormalization RNN RandomNormalLike RandomUniform Range ReduceL2 \
    ReduceLogSumExp ReduceMax ReduceMean ReduceProd ReduceSum Relu Reshape Resize RotaryEmbedding STFT \
    Scan ScatterElements ScatterND SequenceAt SequenceConstruct SequenceEmpty SequenceInsert Shape \
    Sigmoid Size Slice Softmax SoftmaxCrossEntropyLoss SpaceToDepth Split SplitToSequence Sqrt Squeeze \
    Sub Sum Tanh Tile TopK Transpose Trilu Unsqueeze Upsample Where AffineGrid ConcatFromSequence SwiGLU \
    Swish CumProd Scatter";

/// Attributes with one integer.
const INTS: &str = "\
    axis to keepdims group transA ceil_mode training_mode start end batch_axis hidden_size num_outputs \
    num_groups num_heads q_num_heads kv_num_heads is_causal largest sorted allowzero blocksize p size \
    exclusive reverse count_include_pad storage_order axes align_corners onesided select_last_index \
    batch_dims upper dtype stash_type noop_with_empty_axes linear_before_reset layout num_scan_inputs \
    interleaved seed k";
/// Attributes with a list of integers.
const LISTS: &str = "\
    perm kernel_shape strides pads dilations axes output_padding output_shape split shape value_ints \
    starts ends scan_input_axes image_shape";
/// Attributes with a number.
const FLOATS: &str = "\
    alpha beta epsilon momentum ratio scale bias clip extrapolation_value value_float";
/// Attributes with a text, and texts that they may have.
const TEXTS: &[(&str, &[&str])] = &[
    ("auto_pad", &["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "x"]),
    ("mode", &["constant", "reflect", "edge", "wrap", "linear", "cubic", "nearest", "bilinear", "DCR", "x"]),
    ("direction", &["forward", "reverse", "bidirectional"]),
    ("reduction", &["none", "mean", "sum", "add", "mul", "max", "min"]),
    (
        "equation",
        &["ij,jk->ik", "ii->i", "...i,...i->...", "a,b->ab", "i->", "->", "ij", "i,", "abc,cd,de->ae"],
    ),
    ("coordinate_transformation_mode", &["half_pixel", "asymmetric", "align_corners", "tf_crop_and_resize"]),
    ("nearest_mode", &["round_prefer_floor", "floor", "ceil"]),
    ("approximate", &["tanh", "none"]),
    ("padding_mode", &["zeros", "border", "reflection"]),
];

/// A model, the number that chooses options, and the attempt to make a step of it.
pub(crate) fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(model) = model(&mut u) else { return };
    let bytes = wire::write(&model);
    let choice = step::choice(data);
    step::file("w.bin", &[63; 256]);
    let path = step::file("graph.onnx", &bytes);
    // Forward models make most of what follows.
    let choice = if choice >> 60 & 3 == 0 {
        choice
    } else {
        choice & !(0xffff << 32) | 1 << 32 | (choice >> 40 & 0xff) << 34
    };
    step::import(&path, onnx::options(&bytes, choice), choice);
}

/// One word of a list.
fn word<'a>(u: &mut Unstructured<'_>, list: &'a str) -> Result<&'a str> {
    let words: Vec<&str> = list.split_whitespace().collect();
    u.choose(&words).copied()
}

/// The file that bytes describe, for another program to read.
pub(crate) fn file(data: &[u8]) -> Option<Vec<u8>> {
    Some(wire::write(&model(&mut Unstructured::new(data)).ok()?))
}

/// Names that nodes may read, with the number of the next node.
struct Scope {
    names: Vec<String>,
    /// Those that surely are tensors of floats.
    tame: Vec<String>,
    next: usize,
    depth: usize,
}

fn model(u: &mut Unstructured<'_>) -> Result<Vec<Field>> {
    let tame = vec!["x".to_owned(), "image".to_owned()];
    let mut scope = Scope { names: Vec::new(), tame, next: 0, depth: 0 };
    let mut graph = vec![Field::bytes(2, "g")];
    for (name, code, dims) in [("x", 1, vec![2, 3]), ("image", 1, vec![2, 3, 5, 4]), ("ids", 7, vec![2])] {
        let dims = if u.ratio(1, 8)? { shape(u)? } else { dims };
        let batch = u.ratio(1, 8)?;
        graph.push(Field::message(11, VALUE, value(name, code, &dims, batch)));
        scope.names.push(name.to_owned());
    }
    let wild = u.ratio(1, 4)?;
    for name in ["w", "filter", "c0", "c1", "c2"] {
        graph.push(Field::message(5, TENSOR, constant(u, name, wild)?));
        scope.names.push(name.to_owned());
    }
    scope.names.push(String::new());
    let version = if u.ratio(1, 6)? { *u.choose(&[1, 6, 7, 9, 11, 13, 17, 22, 23, 25, 99])? } else { 20 };
    let functions = function(u, version)?;
    // Something to train.
    let first = ["x", "w"].map(|name| Field::bytes(1, name)).to_vec();
    let mut last = "first".to_owned();
    graph.push(Field::message(
        1,
        NODE,
        [first, vec![Field::bytes(2, "first"), Field::bytes(4, "Mul")]].concat(),
    ));
    scope.tame.push(last.clone());
    for _ in 0..u.int_in_range(1..=8)? {
        let (node, outputs) = node(u, &mut scope)?;
        last = outputs.first().cloned().unwrap_or(last);
        scope.names.extend(outputs);
        graph.push(Field::message(1, NODE, node));
    }
    let mut declared = value(&last, 1, &[], false);
    declared.truncate(1);
    graph.push(Field::message(12, VALUE, declared));
    let set = |domain: &str, version| {
        Field::message(8, LEAF, vec![Field::bytes(1, domain), Field::int(2, version)])
    };
    Ok([
        vec![
            Field::int(1, 8),
            Field::message(7, GRAPH, graph),
            set("", version),
            set("com.microsoft", 1),
            set("f", 1),
        ],
        functions,
    ]
    .concat())
}

/// A size: mostly a few, sometimes one at a limit.
fn extent(u: &mut Unstructured<'_>) -> Result<i64> {
    if u.ratio(1, 12)? { u.choose(&NUMBERS).copied() } else { u.int_in_range(-1..=6) }
}

fn shape(u: &mut Unstructured<'_>) -> Result<Vec<i64>> {
    (0..u.int_in_range(0..=5)?).map(|_| extent(u)).collect()
}

fn value(name: &str, code: i64, dims: &[i64], batch: bool) -> Vec<Field> {
    let dim = |(i, &d): (usize, &i64)| {
        let size = if batch && i == 0 { Field::bytes(2, "batch") } else { Field::int(1, d) };
        Field::message(1, LEAF, vec![size])
    };
    let dims = dims.iter().enumerate().map(dim).collect();
    let tensor = vec![Field::int(1, code), Field::message(2, SHAPE, dims)];
    vec![Field::bytes(1, name), Field::message(2, TYPE, vec![Field::message(1, TENSOR_TYPE, tensor)])]
}

/// An initializer: weights, or a short list of integers; its data in the file or beside it.
fn constant(u: &mut Unstructured<'_>, name: &str, wild: bool) -> Result<Vec<Field>> {
    let (code, dims, mut raw) = match name {
        "w" => (1, vec![3], 0.5f32.to_le_bytes().repeat(3)),
        "filter" => (1, vec![3, 3, 1, 1], 0.25f32.to_le_bytes().repeat(9)),
        _ => {
            let numbers: Vec<i64> = shape(u)?;
            let raw: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            if u.ratio(1, 4)? && numbers.len() == 1 {
                (7, vec![], raw)
            } else {
                (7, vec![numbers.len() as i64], raw)
            }
        }
    };
    let code = if wild && u.ratio(1, 8)? { u.int_in_range(0..=24)? } else { code };
    if wild && u.ratio(1, 8)? {
        raw.truncate(u.int_in_range(0..=raw.len())?);
    }
    let mut tensor: Vec<Field> = dims.iter().map(|&d| Field::int(1, d)).collect();
    tensor.extend([Field::int(2, code), Field::bytes(8, name)]);
    if wild && u.ratio(1, 4)? {
        let entry = |key: &str, text: &str| {
            Field::message(13, LEAF, vec![Field::bytes(1, key), Field::bytes(2, text)])
        };
        let places = ["w.bin", "../w.bin", "/dev/zero", "w.bin/..", "", "missing"];
        tensor.push(entry("location", u.choose(&places)?));
        tensor.push(entry("offset", u.choose(&["0", "4", "-1", "18446744073709551615", "x"])?));
        tensor.push(entry("length", &if u.ratio(3, 4)? { raw.len() as i64 } else { extent(u)? }.to_string()));
        tensor.push(Field::int(14, 1));
    } else {
        tensor.push(Field::bytes(9, raw));
    }
    Ok(tensor)
}

fn operand(u: &mut Unstructured<'_>, scope: &Scope) -> Result<String> {
    // Recent results more often than what the graph starts with.
    let from = if u.ratio(1, 2)? { scope.names.len().saturating_sub(4) } else { 0 };
    u.choose(&scope.names[from..]).cloned()
}

/// Operators that take any tensor of floats, and those that take two of one shape.
const UNARY: &str = "\
    Abs Neg Relu Sigmoid Tanh Exp Erf Softplus Identity Elu LeakyRelu Softmax Transpose Flatten Sqrt \
    HardSwish Mish Selu Floor Sin Reciprocal LogSoftmax GlobalAveragePool Dropout ReduceSum ReduceMax \
    ReduceMean Cos Gelu";
const BINARY: &str = "\
    Add Sub Mul Div Max Min Sum Mean";

/// A node that is right, so that models have a middle.
fn tame(u: &mut Unstructured<'_>, scope: &mut Scope, number: usize) -> Result<(Vec<Field>, Vec<String>)> {
    let from = u.choose(&scope.tame)?.clone();
    let twice = u.ratio(1, 3)?;
    let op = word(u, if twice { BINARY } else { UNARY })?;
    let output = format!("t{number}_0");
    let mut fields = vec![Field::bytes(1, from.as_str()); 1 + usize::from(twice)];
    fields.extend([
        Field::bytes(2, output.as_str()),
        Field::bytes(3, format!("n{number}")),
        Field::bytes(4, op),
    ]);
    scope.tame.push(output.clone());
    Ok((fields, vec![output]))
}

/// A node and its results.
fn node(u: &mut Unstructured<'_>, scope: &mut Scope) -> Result<(Vec<Field>, Vec<String>)> {
    let number = scope.next;
    scope.next += 1;
    if u.ratio(1, 2)? && !scope.tame.is_empty() {
        return tame(u, scope, number);
    }
    if u.ratio(1, 8)? && scope.depth < 3 {
        return control(u, scope, number);
    }
    let (call, wild) = (u.ratio(1, 16)?, u.ratio(1, 16)?);
    let op = if call { "called" } else { word(u, OPS)? };
    let mut fields = Vec::new();
    for _ in 0..u.int_in_range(1..=4)? {
        fields.push(Field::bytes(1, operand(u, scope)?));
    }
    let outputs: Vec<String> = (0..*u.choose(&[1, 1, 1, 2, 3])?).map(|k| format!("t{number}_{k}")).collect();
    fields.extend(outputs.iter().map(|name| Field::bytes(2, name.as_str())));
    fields.extend([Field::bytes(3, format!("n{number}")), Field::bytes(4, op)]);
    for _ in 0..*u.choose(&[0, 0, 1, 1, 2, 3, 4])? {
        let attribute = Field::message(5, ATTRIBUTE, attribute(u)?);
        if wild || !fields.iter().any(|field| same_name(field, &attribute)) {
            fields.push(attribute);
        }
    }
    if call {
        fields.push(Field::bytes(7, "f"));
    }
    Ok((fields, outputs))
}

/// Whether both are attributes of one name.
fn same_name(a: &Field, b: &Field) -> bool {
    let name = |field: &Field| match &field.content {
        Content::Message(ATTRIBUTE, fields) => fields.first().cloned(),
        _ => None,
    };
    name(a).is_some() && name(a) == name(b)
}

fn attribute(u: &mut Unstructured<'_>) -> Result<Vec<Field>> {
    Ok(match u.int_in_range(0..=9)? {
        0..=3 => vec![Field::bytes(1, word(u, INTS)?), Field::int(3, extent(u)?), Field::int(20, 2)],
        4..=6 => {
            let mut fields = vec![Field::bytes(1, word(u, LISTS)?)];
            fields.extend(shape(u)?.into_iter().map(|n| Field::int(8, n)));
            fields.push(Field::int(20, 7));
            fields
        }
        7 => {
            let floats = [0.0, 1.0, 0.5, -1.0, 1e-5, 1e38, f32::NAN, f32::INFINITY];
            vec![Field::bytes(1, word(u, FLOATS)?), Field::float(2, *u.choose(&floats)?), Field::int(20, 1)]
        }
        8 => {
            let (name, texts) = u.choose(TEXTS)?;
            vec![Field::bytes(1, *name), Field::bytes(4, *u.choose(texts)?), Field::int(20, 3)]
        }
        _ => {
            let tensor = constant(u, "c", true)?;
            vec![Field::bytes(1, "value"), Field::message(5, TENSOR, tensor), Field::int(20, 4)]
        }
    })
}

/// A conditional or a loop over a graph of a few nodes.
fn control(u: &mut Unstructured<'_>, scope: &mut Scope, number: usize) -> Result<(Vec<Field>, Vec<String>)> {
    let op = *u.choose(&["If", "Loop", "Scan"])?;
    let mut fields = Vec::new();
    for _ in 0..u.int_in_range(1..=4)? {
        fields.push(Field::bytes(1, operand(u, scope)?));
    }
    let outputs = vec![format!("t{number}_0")];
    fields.extend([
        Field::bytes(2, outputs[0].as_str()),
        Field::bytes(3, format!("n{number}")),
        Field::bytes(4, op),
    ]);
    let bodies: &[&str] = if op == "If" { &["then_branch", "else_branch"] } else { &["body"] };
    for body in bodies {
        let graph = branch(u, scope, op)?;
        fields.push(Field::message(
            5,
            ATTRIBUTE,
            vec![Field::bytes(1, *body), Field::message(6, GRAPH, graph), Field::int(20, 5)],
        ));
    }
    if op == "Scan" {
        let inputs = vec![Field::bytes(1, "num_scan_inputs"), Field::int(3, extent(u)?), Field::int(20, 2)];
        fields.push(Field::message(5, ATTRIBUTE, inputs));
    }
    Ok((fields, outputs))
}

fn branch(u: &mut Unstructured<'_>, scope: &mut Scope, op: &str) -> Result<Vec<Field>> {
    let (outer, tame) = (scope.names.len(), scope.tame.len());
    scope.depth += 1;
    let mut graph = vec![Field::bytes(2, "b")];
    let mut inputs: Vec<String> = Vec::new();
    if op != "If" {
        let names = ["i", "go", "a", "b"].map(|name| format!("{name}{}", scope.next));
        inputs.extend_from_slice(&names[..u.int_in_range(1..=4)?]);
        for (i, name) in inputs.iter().enumerate() {
            let code = if op == "Loop" { [7, 9, 1, 1][i] } else { 1 };
            graph.push(Field::message(11, VALUE, value(name, code, &[], false)));
        }
        scope.names.extend(inputs.iter().cloned());
    }
    let mut last = inputs.last().cloned().unwrap_or("x".to_owned());
    for _ in 0..u.int_in_range(0..=2)? {
        let (node, outputs) = node(u, scope)?;
        last = outputs[0].clone();
        scope.names.extend(outputs);
        graph.push(Field::message(1, NODE, node));
    }
    let given: Vec<String> = inputs.iter().skip(1).cloned().chain([last]).collect();
    for name in given.iter().skip(usize::from(u.ratio(1, 4)?)) {
        graph.push(Field::message(12, VALUE, vec![Field::bytes(1, name.as_str())]));
    }
    scope.depth -= 1;
    scope.names.truncate(outer);
    scope.tame.truncate(tame);
    Ok(graph)
}

/// A function of the model, sometimes one that calls itself.
fn function(u: &mut Unstructured<'_>, version: i64) -> Result<Vec<Field>> {
    if !u.ratio(1, 3)? {
        return Ok(Vec::new());
    }
    let mut fields = vec![Field::bytes(1, "called"), Field::bytes(10, "f")];
    let mut scope =
        Scope { names: vec!["p".to_owned(), "q".to_owned()], tame: Vec::new(), next: 1000, depth: 2 };
    fields.extend(["p", "q"].map(|name| Field::bytes(4, name)));
    let mut last = "p".to_owned();
    for _ in 0..u.int_in_range(0..=3)? {
        let (node, outputs) = node(u, &mut scope)?;
        last = outputs[0].clone();
        scope.names.extend(outputs);
        fields.push(Field::message(7, NODE, node));
    }
    fields.push(Field::bytes(5, last));
    fields.push(Field::message(9, LEAF, vec![Field::bytes(1, ""), Field::int(2, version)]));
    Ok(vec![Field::message(25, FUNCTION, fields)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::MODEL;

    /// Bytes describe models that the importer accepts often enough to reach what follows.
    #[test]
    fn a_share_of_the_models_is_accepted() {
        let mut accepted = 0;
        for seed in 0..400u64 {
            let data = crate::noise(seed, 300);
            let Some(bytes) = file(&data) else { continue };
            assert!(wire::read(&bytes, MODEL, onnx::schema).is_some());
            let symbolic = bytes.windows(5).any(|part| part == b"batch");
            let options = memc_frontend::ImportOptions {
                dims: symbolic.then(|| ("batch".into(), 2)).into_iter().collect(),
                loss: "mse".parse().ok(),
                ..Default::default()
            };
            let plain = memc_frontend::ImportOptions { dims: options.dims.clone(), ..Default::default() };
            let imports = |o| memc_frontend::import_bytes(&bytes, o).is_ok();
            accepted += usize::from(
                imports(&options)
                    || imports(&plain)
                    || memc_frontend::import_inference(&bytes, &plain).is_ok(),
            );
        }
        assert!(accepted >= 20, "only {accepted} of 400 models are accepted");
    }
}
