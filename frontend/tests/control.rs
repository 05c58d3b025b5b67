//! Functions, branches and loops of a model: written out where shapes decide, else refused.

mod wire;

use memc_frontend::{Import, ImportError, ImportOptions, import_inference};
use memc_ir::Code;
use wire::*;

const F32: i64 = 1;
const I64: i64 = 7;
const BOOL: i64 = 9;

fn graph_attr(name: &str, graph: &Graph) -> Vec<u8> {
    [field(1, name), field(6, graph.bytes()), int(20, 5)].concat()
}

fn reference(name: &str, to: &str, kind: i64) -> Vec<u8> {
    [field(1, name), field(21, to), int(20, kind)].concat()
}

/// A function of domain `own`.
fn function(name: &str, nodes: &[Vec<u8>], more: &[u8]) -> Vec<u8> {
    let nodes: Vec<u8> = nodes.iter().flat_map(|n| field(7, n)).collect();
    [field(1, name), field(4, "a"), field(5, "b"), nodes, field(10, "own"), more.to_vec()].concat()
}

fn call(name: &str, inputs: &[&str], outputs: &[&str], attrs: &[Vec<u8>]) -> Vec<u8> {
    [node(name, name, inputs, outputs, attrs), field(7, "own")].concat()
}

fn imported(graph: &Graph, functions: &[Vec<u8>]) -> Result<Import, ImportError> {
    let functions: Vec<u8> = functions.iter().flat_map(|f| field(25, f)).collect();
    let bytes = [graph.model(), field(8, [field(1, "own"), int(2, 1)].concat()), functions].concat();
    import_inference(&bytes, &ImportOptions::default())
}

fn ops(import: &Import) -> Vec<&'static str> {
    let m = &import.module;
    let compute = |&op: &memc_ir::OpId| match &m.ops[op].code {
        Code::Compute(kind) => Some(kind.mnemonic()),
        _ => None,
    };
    m.order.iter().filter_map(compute).collect()
}

fn scalar(name: &str, code: i64, bytes: &[u8]) -> Vec<u8> {
    tensor(name, code, &[], bytes)
}

/// A graph from `x` to `y`.
fn graph(nodes: Vec<Vec<u8>>) -> Graph {
    Graph {
        nodes,
        inputs: vec![value("x", F32, &["2", "3"])],
        outputs: vec![value("y", F32, &["2", "3"])],
        ..Graph::default()
    }
}

fn body(inputs: Vec<Vec<u8>>, nodes: Vec<Vec<u8>>, outputs: Vec<Vec<u8>>) -> Graph {
    Graph { nodes, inputs, outputs, ..Graph::default() }
}

/// Calls become the function's nodes, with the call's attributes or the function's defaults; names inside do
/// not clash with those outside.
#[test]
fn functions_are_inlined() {
    let slope = reference("alpha", "slope", 1);
    let inner = [node("LeakyRelu", "r", &["a"], &["x"], &[slope]), node("Neg", "n", &["x"], &["b"], &[])];
    let default = field(11, float_attr("slope", 0.5));
    let own = function("Kinked", &inner, &default);
    let calls = vec![
        call("Kinked", &["x"], &["h"], &[float_attr("slope", 0.25)]),
        call("Kinked", &["h"], &["y"], &[]),
    ];
    let import = imported(&graph(calls), &[own]).expect("import");
    assert_eq!(ops(&import).iter().filter(|&&op| op == "neg").count(), 2);
    let m = &import.module;
    let slopes: Vec<String> = m.consts.values().map(|c| format!("{:?}", &c.data[..])).collect();
    assert!(slopes.iter().any(|s| *s == format!("{:?}", &0.25f32.to_le_bytes()[..])), "{slopes:?}");
    assert!(slopes.iter().any(|s| *s == format!("{:?}", 0.5f32.to_le_bytes())), "{slopes:?}");
}

/// Functions that call themselves, or that double what calls them, end in an error.
#[test]
fn functions_do_not_grow_without_end() {
    let same = function("Same", &[call("Same", &["a"], &["b"], &[])], &[]);
    let text = imported(&graph(vec![call("Same", &["x"], &["y"], &[])]), &[same]).expect_err("recursion");
    assert!(text.to_string().contains("calls itself"), "{text}");
    let mut functions = vec![function("F0", &[node("Neg", "n", &["a"], &["b"], &[])], &[])];
    for i in 1..40 {
        let inner = format!("F{}", i - 1);
        let twice = [call(&inner, &["a"], &["c"], &[]), call(&inner, &["c"], &["b"], &[])];
        functions.push(function(&format!("F{i}"), &twice, &[]));
    }
    let text = imported(&graph(vec![call("F39", &["x"], &["y"], &[])]), &functions).expect_err("doubling");
    assert!(text.to_string().contains("written out"), "{text}");
}

fn branching(condition: Vec<Vec<u8>>) -> Graph {
    let branch =
        |op: &str| body(vec![], vec![node(op, "t", &["x"], &["t"], &[])], vec![value("t", F32, &["2", "3"])]);
    let attrs = [graph_attr("then_branch", &branch("Neg")), graph_attr("else_branch", &branch("Abs"))];
    let mut nodes = condition;
    nodes.push(node("If", "choice", &["c"], &["y"], &attrs));
    graph(nodes)
}

/// A condition that shapes decide picks a branch; the other one leaves nothing. Names of both may be the
/// same.
#[test]
fn shapes_choose_branches() {
    for (extent, op) in [(3i64, "neg"), (4, "abs")] {
        let mut model = branching(vec![
            node("Shape", "s", &["x"], &["s"], &[int_attr("start", 1), int_attr("end", 2)]),
            node("Squeeze", "q", &["s"], &["q"], &[]),
            node("Equal", "e", &["q", "extent"], &["c"], &[]),
        ]);
        model.initializers.push(scalar("extent", I64, &extent.to_le_bytes()));
        assert_eq!(ops(&imported(&model, &[]).expect("import")), [op]);
    }
    let mut model = branching(vec![]);
    model.inputs.push(value("c", BOOL, &[]));
    let text = imported(&model, &[]).expect_err("data").to_string();
    assert!(
        text.contains("ai.onnx::If") && text.contains("depends on data") && text.contains("`choice`"),
        "{text}"
    );
}

/// `y = x` negated once per iteration, with the trip count an initializer.
fn looping(trips: i64, condition: &str) -> Graph {
    let inputs = vec![value("i", I64, &[]), value("go", BOOL, &[]), value("v", F32, &["2", "3"])];
    let nodes = vec![
        node("Less", "l", &["i", "last"], &["less"], &[]),
        node("Identity", "c", &["go"], &["same"], &[]),
        node("Neg", "n", &["v"], &["w"], &[]),
    ];
    let outputs = vec![value(condition, BOOL, &[]), value("w", F32, &["2", "3"])];
    let attrs = [graph_attr("body", &body(inputs, nodes, outputs))];
    let mut model = graph(vec![node("Loop", "again", &["trips", "", "x"], &["y"], &attrs)]);
    model.initializers.push(scalar("trips", I64, &trips.to_le_bytes()));
    model.initializers.push(scalar("last", I64, &2i64.to_le_bytes()));
    model
}

/// Loops are written out as often as the trip count and the condition say, within a limit.
#[test]
fn loops_are_unrolled() {
    assert_eq!(ops(&imported(&looping(5, "same"), &[]).expect("import")), ["neg"; 5]);
    assert_eq!(ops(&imported(&looping(5, "less"), &[]).expect("import")), ["neg"; 3]);
    assert!(ops(&imported(&looping(0, "same"), &[]).expect("import")).is_empty());
    let text = imported(&looping(i64::MAX, "same"), &[]).expect_err("endless").to_string();
    assert!(text.contains("written out; use shorter loops"), "{text}");
}

/// A loop whose body has no nodes has its limit, too.
#[test]
fn empty_loops_end() {
    let empty = |trips: i64| {
        let inputs = vec![value("i", I64, &[]), value("go", BOOL, &[]), value("v", F32, &["2", "3"])];
        let outputs = vec![value("go", BOOL, &[]), value("v", F32, &["2", "3"])];
        let attrs = [graph_attr("body", &body(inputs, Vec::new(), outputs))];
        let mut model = graph(vec![node("Loop", "again", &["trips", "", "x"], &["y"], &attrs)]);
        model.initializers.push(scalar("trips", I64, &trips.to_le_bytes()));
        imported(&model, &[])
    };
    assert!(ops(&empty(5).expect("import")).is_empty());
    let text = empty(i64::MAX).expect_err("endless").to_string();
    assert!(text.contains("written out; use shorter loops"), "{text}");
}
