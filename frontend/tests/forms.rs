//! Forms of operators that the committed models do not use: what ops they become.

mod wire;

use memc_frontend::{ImportOptions, import_bytes, import_inference};
use wire::*;

fn list_attr(name: &str, values: &[i64]) -> Vec<u8> {
    let ints: Vec<u8> = values.iter().flat_map(|&v| int(8, v)).collect();
    [field(1, name), ints, int(20, 7)].concat()
}

fn text_attr(name: &str, value: &str) -> Vec<u8> {
    [field(1, name), field(4, value), int(20, 3)].concat()
}

fn vector(name: &str, values: &[i64]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, 7, &[values.len() as i64], &raw)
}

/// The ops that `nodes` become, one line each without result names. Operands: `m` f32[2,3], `v` f32[3],
/// `i` f32[1,2,5,5], `k` f32[2,2,3,3], `b` f32[2].
fn ops(constants: &[Vec<u8>], nodes: &[Vec<u8>]) -> Vec<String> {
    let mut graph = small_step();
    let shapes: [(&str, &[&str]); 5] = [
        ("m", &["2", "3"]),
        ("v", &["3"]),
        ("i", &["1", "2", "5", "5"]),
        ("k", &["2", "2", "3", "3"]),
        ("b", &["2"]),
    ];
    graph.inputs.extend(shapes.map(|(name, dims)| value(name, 1, dims)));
    graph.initializers.extend_from_slice(constants);
    graph.nodes.extend_from_slice(nodes);
    let module = import_bytes(&graph.model(), &ImportOptions::default()).expect("import").module;
    assert_eq!(memc_ir::verify(&module), Ok(()));
    let text = memc_ir::print(&module);
    let lines = text.lines().filter(|l| !l.contains("loc \"update\"") && !l.contains("loc \"total\""));
    let bodies = lines.filter_map(|l| l.split_once(" = ")).map(|(_, body)| body);
    let made = bodies.filter(|b| !["input", "state", "const"].iter().any(|w| b.starts_with(w)));
    made.map(|b| b.split(" loc ").next().unwrap_or(b).to_string()).collect()
}

fn one(op: &str, inputs: &[&str], constants: &[Vec<u8>], attrs: &[Vec<u8>]) -> Vec<String> {
    ops(constants, &[node(op, "n", inputs, &["y"], attrs)])
}

/// Vector operands of a matrix product become matrices and their axis disappears again.
#[test]
fn products_of_vectors() {
    assert_eq!(
        one("MatMul", &["m", "v"], &[], &[]),
        [
            "reshape %v {shape = [3, 1]} : f32[3,1]",
            "matmul %m, %y/reshape : f32[2,1]",
            "reshape %y/matmul {shape = [2]} : f32[2]"
        ]
    );
    assert_eq!(
        one("MatMul", &["v", "v"], &[], &[]),
        [
            "reshape %v {shape = [1, 3]} : f32[1,3]",
            "reshape %v {shape = [3, 1]} : f32[3,1]",
            "matmul %y/reshape, %y/reshape.1 : f32[1,1]",
            "reshape %y/matmul {shape = []} : f32[]"
        ]
    );
}

/// Shape arithmetic leaves no ops: only the reshape it was computed for.
#[test]
fn shape_arithmetic_disappears() {
    let nodes = [
        node("Shape", "s", &["i"], &["shape"], &[]),
        node("Gather", "g", &["shape", "first"], &["n"], &[]),
        node("Mul", "p", &["n", "two"], &["n2"], &[]),
        node("Concat", "c", &["n2", "rest"], &["target"], &[int_attr("axis", 0)]),
        node("Reshape", "r", &["i", "target"], &["y"], &[]),
    ];
    let constants = [vector("first", &[1]), vector("two", &[5]), vector("rest", &[-1])];
    assert_eq!(ops(&constants, &nodes), ["reshape %i {shape = [10, 5]} : f32[10,5]"]);
}

/// Split into equal parts, of which only those that are read exist.
#[test]
fn unread_parts_of_a_split_are_left_out() {
    let nodes = [
        node("Split", "s", &["m"], &["p", "q", "r"], &[int_attr("axis", 1), int_attr("num_outputs", 3)]),
        node("Neg", "n", &["q"], &["y"], &[]),
    ];
    assert_eq!(
        ops(&[], &nodes),
        ["slice %m {starts = [0, 1], ends = [2, 2], steps = [1, 1]} : f32[2,1]", "neg %q : f32[2,1]"]
    );
}

/// Negative pads cut before the positive ones extend.
#[test]
fn negative_pads_cut() {
    assert_eq!(
        one("Pad", &["m", "pads"], &[vector("pads", &[0, -1, 2, 0])], &[]),
        [
            "slice %m {starts = [0, 1], ends = [2, 3], steps = [1, 1]} : f32[2,2]",
            "pad %y/slice {before = [0, 0], after = [2, 0], value = 0.0} : f32[4,2]"
        ]
    );
}

/// Slices with negative bounds, a negative step and ends beyond the tensor get legal bounds.
#[test]
fn slices_are_normalised() {
    let constants = [
        vector("from", &[-1, 9]),
        vector("to", &[i64::MIN, i64::MAX]),
        vector("axes", &[-1, 0]),
        vector("by", &[-2, 1]),
    ];
    assert_eq!(
        one("Slice", &["m", "from", "to", "axes", "by"], &constants, &[]),
        ["slice %m {starts = [2, 2], ends = [2, -1], steps = [1, -2]} : f32[0,2]"]
    );
}

/// A transposed convolution is the gradient of a convolution; its bias is added per channel.
#[test]
fn transposed_convolution() {
    let attrs = [
        list_attr("strides", &[2, 2]),
        list_attr("pads", &[1, 1, 1, 1]),
        list_attr("output_padding", &[1, 1]),
    ];
    assert_eq!(
        one("ConvTranspose", &["i", "k", "b"], &[], &attrs),
        [
            "conv_grad_input %i, %k {strides = [2, 2], pads = [1, 1, 1, 1], dilations = [1, 1], size = [10, \
             10]} : f32[1,2,10,10]",
            "reshape %b {shape = [1, 2, 1, 1]} : f32[1,2,1,1]",
            "add %y/conv_grad_input, %y/reshape : f32[1,2,10,10]"
        ]
    );
}

/// Automatic padding puts the odd element after or before; rounding up is kept only where it matters.
#[test]
fn windows() {
    let same =
        |mode| one("Conv", &["i", "k"], &[], &[text_attr("auto_pad", mode), list_attr("strides", &[2, 1])]);
    let conv = |pads: &str| {
        format!("conv %i, %k {{strides = [2, 1], pads = {pads}, dilations = [1, 1]}} : f32[1,2,3,5]")
    };
    assert_eq!(same("SAME_UPPER"), [conv("[1, 1, 1, 1]")]);
    let pool = |kernel: i64, ceil: i64| {
        let attrs = [
            list_attr("kernel_shape", &[kernel, kernel]),
            list_attr("strides", &[2, 2]),
            int_attr("ceil_mode", ceil),
        ];
        one("AveragePool", &["i"], &[], &attrs)
    };
    assert_eq!(
        pool(2, 1),
        ["average_pool %i {kernel = [2, 2], strides = [2, 2], pads = [0, 0, 0, 0], ceil} : f32[1,2,3,3]"]
    );
    assert_eq!(
        pool(3, 1),
        ["average_pool %i {kernel = [3, 3], strides = [2, 2], pads = [0, 0, 0, 0]} : f32[1,2,2,2]"]
    );
}

/// Large constants with equal elements cost no memory: they are filled when needed.
#[test]
fn equal_elements_are_filled() {
    let nodes = [
        node("ConstantOfShape", "c", &["shape"], &["zeros"], &[]),
        node("Add", "a", &["zeros", "v"], &["y"], &[]),
    ];
    assert_eq!(
        ops(&[vector("shape", &[100, 3])], &nodes),
        ["fill {dtype = f32, shape = [100, 3], value = 0.0} : f32[100,3]", "add %zeros, %v : f32[100,3]"]
    );
}

/// Dropout that is switched off is no op; reductions of nothing are none either.
#[test]
fn nodes_without_effect() {
    let off = tensor("off", 9, &[], &[0]);
    let ratio = tensor("ratio", 1, &[], &0.5f32.to_le_bytes());
    assert_eq!(one("Dropout", &["m", "ratio", "off"], &[off, ratio], &[]), Vec::<String>::new());
    let noop = [int_attr("noop_with_empty_axes", 1)];
    assert_eq!(one("ReduceSum", &["m"], &[], &noop), Vec::<String>::new());
    assert_eq!(one("Clip", &["m"], &[], &[]), Vec::<String>::new());
    assert_eq!(one("Expand", &["m", "ones"], &[vector("ones", &[1, 1])], &[]), Vec::<String>::new());
}

/// Batch normalisation in inference mode uses the given statistics.
#[test]
fn inference_mode_batch_norm() {
    assert_eq!(
        one("BatchNormalization", &["i", "b", "b", "b", "b"], &[], &[]),
        [
            "add %b, %y/epsilon : f32[2]",
            "sqrt %y/add : f32[2]",
            "reciprocal %y/sqrt : f32[2]",
            "batch_norm %i, %b, %b, %b, %y/reciprocal : f32[1,2,5,5]"
        ]
    );
}

/// A plain graph keeps its inputs and outputs and carries nothing, also where an output is an input or a
/// constant.
#[test]
fn plain_graphs_are_imported_as_they_are() {
    let graph = Graph {
        nodes: vec![
            node("Add", "a", &["x", "c"], &["y"], &[]),
            node("Identity", "i", &["x"], &["same"], &[]),
            node("Shape", "s", &["x"], &["shape"], &[]),
        ],
        inputs: vec![value("x", 1, &["2", "n"])],
        outputs: vec![value("y", 1, &["2", "3"]), value("same", 1, &["2", "3"]), value("shape", 7, &["2"])],
        initializers: vec![tensor("c", 1, &[], &1.5f32.to_le_bytes())],
        ..Graph::default()
    };
    let options = ImportOptions { dims: vec![("n".into(), 3)], ..ImportOptions::default() };
    let module = import_inference(&graph.model(), &options).expect("import").module;
    assert_eq!(memc_ir::verify(&module), Ok(()));
    let names: Vec<&str> = module.outputs.iter().map(|o| o.name.as_str()).collect();
    assert_eq!((names, module.states.len(), module.order.len()), (vec!["y", "same", "shape"], 0, 1));
}

/// The positions in a constant mask are a constant, which picks what it picks; those in data are refused.
#[test]
fn nonzero_of_constants() {
    let mask = tensor("mask", 9, &[3], &[1, 0, 1]);
    let nodes = [
        node("NonZero", "z", &["mask"], &["rows"], &[]),
        node("Transpose", "t", &["rows"], &["columns"], &[]),
        node("Squeeze", "s", &["columns"], &["flat"], &[]),
        node("Gather", "g", &["v", "flat"], &["y"], &[]),
    ];
    assert_eq!(ops(&[mask], &nodes), ["gather %v, %flat {axis = 0} : f32[2]"]);
    let mut graph = small_step();
    graph.nodes.push(node("NonZero", "z", &["x"], &["y"], &[]));
    let refused = import_bytes(&graph.model(), &ImportOptions::default()).expect_err("data").to_string();
    assert!(refused.contains("small constants only") && refused.contains("mask elements"), "{refused}");
}

/// A filled constant has the element type of its value.
#[test]
fn short_floats_fill_constants() {
    let shape = tensor("shape", 7, &[1], &3i64.to_le_bytes());
    let half = tensor("", 16, &[1], &0x3fc0u16.to_le_bytes());
    let value = [field(1, "value"), field(5, half), int(20, 4)].concat();
    let nodes = [
        node("ConstantOfShape", "c", &["shape"], &["c"], &[value]),
        node("Cast", "d", &["c"], &["d"], &[int_attr("to", 1)]),
        node("Mul", "n", &["v", "d"], &["y"], &[]),
    ];
    let made = ops(&[shape], &nodes);
    assert_eq!(made, ["mul %v, %d : f32[3]"]);
}

/// A sequence cut at import is only its parts; positions count from the end when negative.
#[test]
fn sequences_are_cut_at_import() {
    let size = tensor("size", 7, &[], &2i64.to_le_bytes());
    let last = tensor("last", 7, &[], &(-1i64).to_le_bytes());
    let nodes = [
        node("SplitToSequence", "s", &["m", "size"], &["parts"], &[int_attr("axis", 1)]),
        node("SequenceAt", "at", &["parts", "last"], &["p"], &[]),
        node("Neg", "n", &["p"], &["y"], &[]),
    ];
    assert_eq!(
        ops(&[size, last], &nodes),
        [
            "slice %m {starts = [0, 0], ends = [2, 2], steps = [1, 1]} : f32[2,2]",
            "slice %m {starts = [0, 2], ends = [2, 3], steps = [1, 1]} : f32[2,1]",
            "neg %parts/slice.1 : f32[2,1]"
        ]
    );
}

/// Scalars of type `double`, as PyTorch writes the scale of attention, fold and are cast. A tensor of that
/// type is refused with the constant's name.
#[test]
fn doubles_fold_until_they_are_cast() {
    let graph = |nodes: Vec<Vec<u8>>| Graph {
        nodes,
        inputs: vec![value("x", 1, &["2", "3"])],
        outputs: vec![value("y", 1, &["2", "3"])],
        initializers: vec![
            tensor("w", 1, &[3], &[0; 12]),
            tensor("c", 11, &[], &0.125f64.to_le_bytes()),
            tensor("two", 11, &[1], &2f64.to_le_bytes()),
        ],
        ..Graph::default()
    };
    let options = ImportOptions {
        loss: Some("mse".parse().expect("loss")),
        optimizer: Some("none".parse().expect("none")),
        ..ImportOptions::default()
    };
    let nodes = vec![
        node("Sqrt", "s", &["c"], &["root"], &[]),
        node("Mul", "t", &["root", "two"], &["twice"], &[]),
        node("Cast", "f", &["twice"], &["scale"], &[int_attr("to", 1)]),
        node("Mul", "m", &["x", "scale"], &["scaled"], &[]),
        node("Add", "a", &["scaled", "w"], &["y"], &[]),
    ];
    let m = import_bytes(&graph(nodes).model(), &options).expect("it folds").module;
    let scale = m.consts.values().find(|c| m.values[c.value].name == "scale").expect("a constant");
    let want = (2.0 * 0.125f64.sqrt()) as f32;
    assert_eq!(scale.data[..], want.to_le_bytes());

    let nodes = vec![
        node("Mul", "m", &["x", "c"], &["scaled"], &[]),
        node("Add", "a", &["scaled", "w"], &["y"], &[]),
    ];
    let text = import_bytes(&graph(nodes).model(), &options).expect_err("double").to_string();
    assert!(text.contains("`m`") && text.contains("reads `c`, a constant of type `double`"), "{text}");
}
