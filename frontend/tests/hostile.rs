//! Damaged and hostile models: each is refused with one message that names the place.

mod wire;

use std::fs;
use std::path::Path;

use memc_frontend::{ImportError, ImportOptions, MAX_ACCUMULATE, import, import_bytes};
use wire::*;

fn refusal(graph: &Graph) -> String {
    let error = import_bytes(&graph.model(), &ImportOptions::default()).expect_err("must be refused");
    assert!(matches!(error, ImportError::BadModel(_) | ImportError::Unsupported(_)), "{error:?}");
    error.to_string()
}

fn edited(edit: impl FnOnce(&mut Graph)) -> String {
    let mut graph = small_step();
    edit(&mut graph);
    refusal(&graph)
}

fn assert_says(text: &str, parts: &[&str]) {
    assert!(parts.iter().all(|p| text.contains(p)), "{text:?} should contain {parts:?}");
}

/// The model that the cases below damage is itself sound.
#[test]
fn the_undamaged_model_imports() {
    let import = import_bytes(&small_step().model(), &ImportOptions::default()).expect("import");
    assert_eq!(memc_ir::verify(&import.module), Ok(()));
    assert_eq!((import.module.order.len(), import.module.states.len()), (2, 1));
}

/// Every prefix of a real model, cut anywhere, is refused or imports; nothing panics.
#[test]
fn truncated_models() {
    let model = small_step().model();
    for end in 0..model.len() {
        let result = import_bytes(&model[..end], &ImportOptions::default());
        assert!(
            matches!(result, Err(ImportError::BadModel(_) | ImportError::Unsupported(_))),
            "cut at {end}"
        );
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mlp_s/training_model.onnx");
    let model = fs::read(path).expect("model");
    for end in (0..model.len()).step_by(7) {
        let _ = import_bytes(&model[..end], &ImportOptions::default());
    }
}

/// Extents that are negative, or whose product overflows, are refused before any allocation.
#[test]
fn absurd_shapes() {
    let negative = edited(|g| g.inputs[1] = value("x", 1, &["-2", "3"]));
    assert_says(&negative, &["`x`", "negative extent"]);
    let huge = edited(|g| g.inputs[1] = value("x", 1, &["4611686018427387904", "4611686018427387904"]));
    assert_says(&huge, &["`x`", "too large"]);
    let rank = edited(|g| g.inputs[1] = value("x", 1, &["1"; 40]));
    assert_says(&rank, &["`x`", "40 axes"]);
    let data = edited(|g| g.initializers.push(tensor("c", 1, &[1 << 40], &[0; 8])));
    assert_says(&data, &["`c`", "8 bytes of data do not fill"]);
    let expanded = edited(|g| {
        g.initializers.push(tensor("shape", 7, &[2], &[0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 64]));
        g.nodes.push(node("ConstantOfShape", "big", &["shape"], &["z"], &[]));
    });
    assert_says(&expanded, &["`big`", "ConstantOfShape", "too large"]);
}

/// Cycles, names defined twice and names never defined are reported with the nodes.
#[test]
fn broken_structure() {
    let cycle = edited(|g| {
        g.nodes.push(node("Neg", "one", &["b"], &["a"], &[]));
        g.nodes.push(node("Neg", "two", &["a"], &["b"], &[]));
    });
    assert_says(&cycle, &["cycle", "`one`", "`two`"]);
    let twice = edited(|g| g.nodes.push(node("Neg", "again", &["x"], &["w_new"], &[])));
    assert_says(&twice, &["`w_new` is defined twice", "`again`"]);
    let missing = edited(|g| g.nodes.push(node("Neg", "reader", &["nowhere"], &["z"], &[])));
    assert_says(&missing, &["`reader`", "`nowhere`"]);
    let output = edited(|g| g.outputs.push(value("ghost", 1, &[])));
    assert_says(&output, &["output `ghost`"]);
    assert_says(&refusal(&Graph::default()), &["not a training step"]);
}

/// All unsupported operators are listed at once, with their nodes and advice.
#[test]
fn unknown_operators() {
    let text = edited(|g| {
        for i in 0..12 {
            g.nodes.push(node("Frobnicate", &format!("f{i}"), &["x"], &[&format!("f{i}")], &[]));
        }
        g.nodes.push(node("Loop", "rnn", &["x"], &["h"], &[]));
        let domain = [node("Gelu", "odd", &["x"], &["o"], &[]), field(7, "com.example")].concat();
        g.nodes.push(domain);
    });
    assert_says(
        &text,
        &["3 operators", "ai.onnx::Frobnicate, opset 20", "`f9`", "and 2 more", "ai.onnx::Loop"],
    );
    assert_says(&text, &["com.example::Gelu", "domain ai.onnx has a supported operator"]);
    assert_says(&text, &["Frobnicate, opset 20: the operator is not supported; compose it"]);
    let advised = |op: &str| edited(|g| g.nodes.push(node(op, "odd", &["x"], &["y"], &[])));
    assert_says(
        &advised("Unique"),
        &["1 operator ", "ai.onnx::Unique, opset 20", "shape depends on data", "`odd`"],
    );
    assert_says(&advised("LeakyReLU"), &["the nearest that is supported is `LeakyRelu`"]);
    let old = [small_step().model(), field(8, int(2, 5))].concat();
    let mut graph = small_step();
    graph.nodes[0] = node("Add", "update", &["w", "x"], &["w_new"], &[]);
    let old = [int(1, 8), field(7, graph.bytes()), old[old.len() - 4..].to_vec()].concat();
    let old = import_bytes(&old, &ImportOptions::default()).expect_err("old").to_string();
    assert_says(
        &old,
        &["ai.onnx::Add", "opset 5", "from opset 7 on", "convert_version(model, 7)", "`update`"],
    );
    let subgraph = [field(1, "then_branch"), field(6, field(2, "inner")), int(20, 5)].concat();
    let control = edited(|g| g.nodes.push(node("If", "branch", &["x"], &["y"], &[subgraph])));
    assert_says(&control, &["ai.onnx::If", "depends on data", "`branch`"]);
}

/// Element types that the IR does not have are named; unknown enum values are errors.
#[test]
fn element_types() {
    let double = edited(|g| g.inputs[1] = value("x", 11, &["2", "3"]));
    assert_says(&double, &["`x`", "`double`", "supported are float, float16"]);
    let unknown = edited(|g| g.inputs[1] = value("x", 99, &["2", "3"]));
    assert_says(&unknown, &["`x`", "number 99"]);
    let cast = edited(|g| g.nodes.push(node("Cast", "c", &["x"], &["y"], &[int_attr("to", 11)])));
    assert_says(&cast, &["`c`", "`double`"]);
    let kind = [field(1, "axis"), int(20, 77)].concat();
    let attr = edited(|g| g.nodes.push(node("Neg", "n", &["x"], &["y"], &[kind])));
    assert_says(&attr, &["`n`", "attribute `axis`", "77"]);
    let sequence = edited(|g| g.inputs[1] = [field(1, "x"), field(2, field(4, []))].concat());
    assert_says(&sequence, &["`x`", "a sequence"]);
}

/// Groups, deep nesting, functions, sparse tensors and control characters are refused.
#[test]
fn forms_of_the_file() {
    let groups = edited(|g| g.more = vec![0x7b; 300_000]);
    assert_says(&groups, &["group"]);
    let mut ty = tensor_type(1, &["2"]);
    for _ in 0..200 {
        ty = field(4, field(1, ty));
    }
    let deep = edited(|g| g.inputs.push([field(1, "deep"), field(2, ty)].concat()));
    assert_says(&deep, &["nested deeper"]);
    let sparse = edited(|g| g.more = field(15, field(1, tensor("s", 1, &[1], &[0; 4]))));
    assert_says(&sparse, &["`s`", "sparse"]);
    let control = edited(|g| g.nodes[0] = node("Sub", "up\x1b[2Jdate", &["w", "x"], &["w_new"], &[]));
    assert_says(&control, &["control characters"]);
    let noise =
        import_bytes(b"not a model at all", &ImportOptions::default()).expect_err("noise").to_string();
    assert_says(&noise, &["not an ONNX model"]);
}

/// Files of other kinds are called what they are.
#[test]
fn other_files_are_named() {
    let named = |bytes: &[u8], parts: &[&str]| {
        let error = import_bytes(bytes, &ImportOptions::default()).expect_err("no model");
        assert_says(&error.to_string(), parts);
    };
    named(b"PK\x03\x04....", &["torch.save", "torch.onnx.export"]);
    named(b"\x93NUMPY\x01\x00....", &["NumPy array", "--input"]);
    named(b"MEMCPLAN........", &["a plan that memc wrote", "memc check"]);
    named(b"\x10\0\0\0\0\0\0\0{\"a\":1}", &["safetensors", "--checkpoint"]);
}

/// A state cannot become an output of another type.
#[test]
fn state_types() {
    let text = edited(|g| {
        g.nodes[0] = node("Sub", "update", &["w", "x"], &["y"], &[]);
        g.nodes[1] = node("ReduceSum", "total", &["y"], &["loss"], &[int_attr("keepdims", 0)]);
        g.nodes.push(node("Shape", "wrong", &["x"], &["w_new"], &[]));
    });
    assert_says(&text, &["state `w` is f32[2,3]", "`w_new`", "i64[2]"]);
}

/// Operators with operands or attributes that break their rules name the node and the rule.
#[test]
fn broken_nodes() {
    let shape = edited(|g| g.nodes.push(node("MatMul", "product", &["w", "x"], &["y"], &[])));
    assert_says(&shape, &["`product` (MatMul), ai.onnx opset 20", "inner extents differ"]);
    let sides = edited(|g| {
        g.initializers.push(tensor("two", 1, &[2], &[0; 8]));
        g.nodes.push(node("Mul", "scale", &["x", "two"], &["y"], &[]));
    });
    assert_says(&sides, &["`scale` (Mul)", "do not broadcast", "`x` f32[2,3]", "`two` f32[2]"]);
    let absent = edited(|g| g.nodes.push(node("Add", "half", &["w"], &["y"], &[])));
    assert_says(&absent, &["`half`", "input 1 is missing"]);
    let dynamic = edited(|g| {
        g.nodes.push(node("Cast", "c", &["x"], &["xi"], &[int_attr("to", 7)]));
        g.nodes.push(node("Reshape", "view", &["w", "xi"], &["y"], &[]));
    });
    assert_says(&dynamic, &["`view`", "shape (`xi`)", "depends on data"]);
    let axis = edited(|g| g.nodes.push(node("Softmax", "s", &["x"], &["y"], &[int_attr("axis", -9)])));
    assert_says(&axis, &["`s`", "axis -9"]);
    let axes = edited(|g| {
        g.initializers.push(tensor("axes", 7, &[1 << 17], &vec![1; 1 << 20]));
        g.nodes.push(node("Unsqueeze", "u", &["x", "axes"], &["y"], &[]));
    });
    assert_says(&axes, &["`u`", "axes are too many"]);
}

/// External data must stay in the model's folder and have the tensor's size.
#[test]
fn external_data() {
    let dir = tempfile::tempdir().expect("dir");
    fs::write(dir.path().join("w.bin"), [0u8; 24]).expect("write");
    let text = |location: &str, length: &str| {
        let entry = |k: &str, v: &str| field(13, [field(1, k), field(2, v)].concat());
        let stored = [
            int(1, 2),
            int(1, 3),
            int(2, 1),
            field(8, "w"),
            entry("location", location),
            entry("length", length),
            int(14, 1),
        ];
        let mut graph = small_step();
        graph.initializers.push(stored.concat());
        let path = dir.path().join("m.onnx");
        fs::write(&path, graph.model()).expect("write");
        let from_memory = import_bytes(&graph.model(), &ImportOptions::default());
        assert_says(&from_memory.expect_err("no folder").to_string(), &["`w`", "from memory"]);
        import(&path, &ImportOptions::default()).map(|i| i.module.states.len()).map_err(|e| e.to_string())
    };
    assert_eq!(text("w.bin", "24"), Ok(1));
    assert_says(&text("../w.bin", "24").expect_err("outside"), &["`w`", "plain relative path"]);
    assert_says(&text("w.bin", "20").expect_err("short"), &["`w`", "wrong data length"]);
    assert_says(&text("w.bin", "25").expect_err("long"), &["`w`", "lie outside"]);
}

/// Options that do not fit the model are usage errors, not model errors.
#[test]
fn usage() {
    let model = small_step().model();
    let usage = |options: ImportOptions| {
        let error = import_bytes(&model, &options).expect_err("must be refused");
        assert!(matches!(error, ImportError::Usage(_)), "{error:?}");
        error.to_string()
    };
    let carry = |from: &str, to: &str| ImportOptions {
        carry: vec![(from.into(), to.into())],
        ..ImportOptions::default()
    };
    assert_says(&usage(carry("q", "w_new")), &["no input `q`; it has w, x"]);
    assert_says(&usage(carry("w", "q")), &["no output `q`; it has loss, w_new"]);
    assert_says(&usage(ImportOptions { accumulate: 0, ..ImportOptions::default() }), &["between 1 and"]);
    assert_says(
        &usage(ImportOptions { accumulate: 2, ..ImportOptions::default() }),
        &["one-file training step"],
    );
    let dims = vec![("batch".to_string(), 4)];
    assert_says(
        &usage(ImportOptions { dims, ..ImportOptions::default() }),
        &["no symbolic dimension `batch`"],
    );
}

/// Carrying an input to another output, or to itself, overrides the pairing by name.
#[test]
fn carry_overrides_names() {
    let options = ImportOptions { carry: vec![("x".into(), "w_new".into())], ..ImportOptions::default() };
    let import = import_bytes(&small_step().model(), &options).expect("import");
    let m = &import.module;
    let states: Vec<&str> = m.states.values().map(|s| m.values[s.value].name.as_str()).collect();
    assert_eq!(states, ["x"]);
    let options = ImportOptions { carry: vec![("x".into(), "x".into())], ..ImportOptions::default() };
    let import = import_bytes(&small_step().model(), &options).expect("import");
    let frozen = import.module.states.values().filter(|s| s.next.is_none()).count();
    assert_eq!((import.module.states.len(), frozen), (2, 1));
}

/// Many small nodes that each compute a large constant are refused at the node that exceeds the allowance;
/// the same many views of one constant are not.
#[test]
fn computed_constants_are_limited() {
    let long = |v: i64| tensor("", 7, &[], &v.to_le_bytes());
    let scalar = |name: &str, v: i64| [long(v), field(8, name)].concat();
    let ranges = |count: usize, op: &str| {
        let mut graph = small_step();
        graph.initializers = vec![scalar("zero", 0), scalar("limit", 1 << 16), scalar("one", 1)];
        graph.nodes.push(node("Range", "first", &["zero", "limit", "one"], &["r"], &[]));
        for i in 0..count {
            let inputs: &[&str] = if op == "Range" { &["zero", "limit", "one"] } else { &["r"] };
            graph.nodes.push(node(op, &format!("n{i}"), inputs, &[&format!("r{i}")], &[]));
        }
        graph
    };
    let text = refusal(&ranges(2000, "Range"));
    assert_says(&text, &["`n1", "(Range)", "524288 bytes", "are left"]);
    let views = ranges(2000, "Identity").model();
    assert!(import_bytes(&views, &ImportOptions::default()).is_ok());
}

/// Tensors with equal elements become ops when the allowance for computed constants is used up.
#[test]
fn fills_need_no_allowance() {
    let mut graph = small_step();
    graph.initializers.push(tensor("shape", 7, &[1], &65536i64.to_le_bytes()));
    for i in 0..1000 {
        let name = format!("zeros{i}");
        graph.nodes.push(node("ConstantOfShape", &name, &["shape"], &[&name], &[]));
    }
    let import = import_bytes(&graph.model(), &ImportOptions::default()).expect("import");
    assert_eq!(memc_ir::verify(&import.module), Ok(()));
    let fills = import.module.order.len() - 2;
    assert!((1..1000).contains(&fills), "{fills} fills");
}

/// Micro-steps that would import too many nodes together are a usage error, found before the import.
#[test]
fn micro_steps_of_a_large_graph() {
    let mut graph = small_step();
    for i in 0..4000 {
        graph.nodes.push(node("Neg", &format!("n{i}"), &["x"], &[&format!("y{i}")], &[]));
    }
    let accumulator = [
        node("InPlaceAccumulatorV2", "sum", &["w_grad.accumulation.buffer", "w", "x"], &["flag"], &[]),
        field(7, "com.microsoft"),
    ];
    graph.nodes.push(accumulator.concat());
    graph.inputs.push(value("w_grad.accumulation.buffer", 1, &["2", "3"]));
    let accumulate = |accumulate: u32| {
        let options = ImportOptions { accumulate, ..ImportOptions::default() };
        import_bytes(&graph.model(), &options).expect_err("must be refused")
    };
    let error = accumulate(MAX_ACCUMULATE);
    assert!(matches!(error, ImportError::Usage(_)), "{error:?}");
    assert_says(&error.to_string(), &["1024 micro-steps", "4006 nodes and inputs", "at most 998"]);
    assert!(!matches!(accumulate(998), ImportError::Usage(_)));
    assert_says(&accumulate(MAX_ACCUMULATE + 1).to_string(), &["between 1 and 1024"]);
}
