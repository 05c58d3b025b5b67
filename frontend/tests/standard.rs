//! The standard's own training form: what a `TrainingInfoProto` becomes, and what is refused.
#![allow(clippy::panic, reason = "a test fails by panicking")]

mod wire;

use std::path::Path;

use memc_frontend::{Import, ImportError, ImportOptions, import, import_bytes};
use memc_ir::attr::{F32, Scalar};
use memc_ir::{Blob, Feed, Init, Module, OpKind, OutputRole, Role, ValueId};
use memc_reference::{Data, Env, Tensor64, run};
use wire::*;

fn imported(trained: &Trained) -> Import {
    let import = import_bytes(&trained.model(), &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(memc_ir::verify(&import.module), Ok(()));
    import
}

fn refused(edit: impl FnOnce(&mut Trained)) -> String {
    let mut trained = small_training();
    edit(&mut trained);
    match import_bytes(&trained.model(), &ImportOptions::default()) {
        Err(e @ (ImportError::BadModel(_) | ImportError::Unsupported(_))) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

fn assert_says(text: &str, parts: &[&str]) {
    assert!(parts.iter().all(|p| text.contains(p)), "{text:?} should contain {parts:?}");
}

/// All values of `m` when states and inputs called so have these elements.
fn values(m: &Module, given: &[(&str, &[f64])]) -> Env {
    let roots = m.inputs.values().map(|x| x.value).chain(m.states.values().map(|s| s.value));
    let element = |v: ValueId| {
        let name = m.values[v].name.as_str();
        let found = given.iter().find(|g| g.0 == name).unwrap_or_else(|| panic!("no content for {name}"));
        let ty = m.values[v].ty.clone();
        let float = ty.dtype.is_float();
        let ints = || found.1.iter().map(|&x| x as i64).collect();
        let data = if float { Data::Float(found.1.to_vec()) } else { Data::Int(ints()) };
        (v, Tensor64 { ty, data })
    };
    run(m, &roots.map(element).collect()).unwrap_or_else(|e| panic!("{e}"))
}

/// The elements of the next value of state `name`.
fn next(m: &Module, all: &Env, name: &str) -> Vec<f64> {
    let state = m.states.values().find(|s| m.values[s.value].name == name);
    let next = state.and_then(|s| s.next).unwrap_or_else(|| panic!("{name} does not change"));
    floats(all, next)
}

fn floats(all: &Env, value: ValueId) -> Vec<f64> {
    match &all[&value].data {
        Data::Float(v) => v.clone(),
        Data::Int(v) => v.iter().map(|&x| x as f64).collect(),
    }
}

/// The samples of the corpus have the states, inputs and ops that the standard says, and say that their
/// `Gradient` nodes have their inputs in another order.
#[test]
fn samples() {
    for (rule, moments) in [("Momentum", 1), ("Adam", 2), ("Adagrad", 1)] {
        for kind in ["TrainingInfo", "regularised"] {
            let name = format!("../models/standard/linear.{kind}.{rule}.onnx");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&name);
            let dims = vec![("batch".to_string(), 5)];
            let options = ImportOptions { dims, ..ImportOptions::default() };
            let import = import(&path, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
            let m = &import.module;
            assert_eq!(memc_ir::verify(m), Ok(()), "{name}");
            let text = memc_ir::print(m);
            assert_eq!(memc_ir::print(&memc_ir::parse(&text).unwrap_or_else(|e| panic!("{e:?}"))), text);
            let names = |role| {
                let list = m.states.values().filter(|s| s.role == role);
                list.map(|s| m.values[s.value].name.as_str()).collect::<Vec<_>>()
            };
            assert_eq!(names(Role::Param), ["B", "W"], "{name}");
            assert_eq!(names(Role::Optimizer).len(), 1 + 2 * moments, "{name}");
            assert!(m.states.values().all(|s| s.next.is_some()), "{name}");
            let rate = m.inputs.values().find_map(|x| match x.feed {
                Feed::LearningRate { default, .. } => Some(default.0),
                _ => None,
            });
            assert_eq!(rate, Some(0.1), "{name}");
            let outputs: Vec<(&str, OutputRole)> =
                m.outputs.iter().map(|o| (o.name.as_str(), o.role)).collect();
            assert_eq!(outputs, [("y", OutputRole::Other), ("loss", OutputRole::Loss)], "{name}");
            let w = m.states.values().find(|s| m.values[s.value].name == "W");
            assert!(matches!(w.map(|s| &s.init), Some(Init::Normal { .. })), "{name}");
            assert!(m.value_named("dW").is_some() && m.value_named("dB").is_some(), "{name}");
            assert_eq!(import.warnings.len(), 1, "{name}: {:?}", import.warnings);
            assert_says(&import.warnings[0], &["`dW`", "not in the order"]);
            assert_says(&import.notes[0], &["2 parameters", "fed per step: x, labels", "loss: `loss`", rule]);
        }
    }
}

/// The joined graph computes gradient and update by the standard's formulae; only the first update takes beta
/// as one.
#[test]
fn one_update() {
    let import = imported(&small_training());
    assert_eq!(import.warnings, Vec::<String>::new());
    let m = &import.module;
    for (n, beta) in [(0.0, 1.0), (1.0, 0.25)] {
        let given: &[(&str, &[f64])] = &[
            ("x", &[1.0, 2.0]),
            ("t", &[1.0, 4.0]),
            ("w", &[2.0, 3.0]),
            ("v", &[8.0, 16.0]),
            ("n", &[n]),
            ("rate", &[0.125]),
        ];
        let all = values(m, given);
        // The errors are 1 and 2, so the gradient 2 x e is 2 and 8.
        let v: Vec<f64> = [2.0, 8.0].iter().zip([8.0, 16.0]).map(|(g, v)| 0.5 * v + beta * g).collect();
        let w = [2.0 - 0.125 * (2.0 + 0.5 * v[0]), 3.0 - 0.125 * (8.0 + 0.5 * v[1])];
        assert_eq!(next(m, &all, "v"), v);
        assert_eq!(next(m, &all, "w"), w);
        assert_eq!(next(m, &all, "n"), [n + 1.0]);
        let loss = m.outputs.iter().find(|o| o.role == OutputRole::Loss).map(|o| floats(&all, o.value));
        assert_eq!(loss, Some(vec![5.0]));
    }
}

/// Nodes may stand in any order: `Gradient` comes after what its attributes name.
#[test]
fn nodes_in_any_order() {
    let mut trained = small_training();
    trained.algorithm.nodes.reverse();
    let (a, b) = (imported(&small_training()).module, imported(&trained).module);
    assert_eq!(a.order.len(), b.order.len());
}

/// A graph input that is the count of updates or the learning rate is fed as such.
#[test]
fn counts_and_rates_that_are_inputs() {
    let mut trained = small_training();
    trained.algorithm.initializers.retain(|t| *t != tensor("n", 7, &[], &[0; 8]));
    trained.algorithm.initializers.remove(0);
    trained.algorithm.inputs.extend([value("n", 7, &[]), value("rate", 1, &["1"])]);
    trained.algorithm.outputs.pop();
    trained.bindings.pop();
    let m = imported(&trained).module;
    let feeds: Vec<&Feed> = m.inputs.values().map(|x| &x.feed).collect();
    assert_eq!(feeds.iter().filter(|f| matches!(f, Feed::Step { .. })).count(), 1);
    assert_eq!(feeds.iter().filter(|f| matches!(f, Feed::LearningRate { .. })).count(), 1);
    // In the first step, which is number one, no update has been done.
    let all = values(
        &m,
        &[
            ("x", &[1.0, 2.0]),
            ("t", &[1.0, 4.0]),
            ("w", &[2.0, 3.0]),
            ("v", &[0.0, 0.0]),
            ("n.step", &[1.0]),
            ("rate", &[0.125]),
        ],
    );
    assert_eq!(next(&m, &all, "v"), [2.0, 8.0]);
}

/// Casts in the initialization graph give the state's type to random, filled and stored contents.
#[test]
fn initialization_graphs_cast() {
    let to = |code| [int_attr("to", code)];
    let shape = || ints_attr("shape", &[2]);
    let filled =
        [field(1, "value"), field(5, tensor("", 1, &[1], &1.5f32.to_le_bytes())), int(20, 4)].concat();
    type Case = (Vec<Vec<u8>>, i64, Result<Init, &'static str>);
    let cases: [Case; 6] = [
        (
            vec![
                node(
                    "RandomNormal",
                    "r",
                    &[],
                    &["a"],
                    &[shape(), float_attr("scale", 0.5), float_attr("seed", 1.0)],
                ),
                node("Cast", "c", &["a"], &["start"], &to(16)),
            ],
            16,
            Ok(Init::Normal { seed: 1, mean: F32(0.0), std: F32(0.5) }),
        ),
        (
            vec![node(
                "RandomUniform",
                "r",
                &[],
                &["start"],
                &[shape(), int_attr("dtype", 10), float_attr("seed", 1.0)],
            )],
            10,
            Ok(Init::Uniform { seed: 1, low: F32(0.0), high: F32(1.0) }),
        ),
        (
            vec![
                node("ConstantOfShape", "f", &["dims"], &["a"], &[filled]),
                node("Cast", "c", &["a"], &["start"], &to(16)),
            ],
            16,
            Ok(Init::Fill(Scalar::Float(F32(1.5)))),
        ),
        (
            vec![node("Cast", "c", &["stored"], &["start"], &to(16))],
            16,
            Ok(Init::Data(Blob::new([0x80, 0x3f, 0x00, 0xc0]))),
        ),
        (vec![node("Cast", "c", &["stored"], &["start"], &to(16))], 10, Err("gives bf16")),
        (vec![node("RandomNormal", "r", &[], &["start"], &[shape()])], 16, Err("makes f32")),
    ];
    for (nodes, code, want) in cases {
        let mut trained = small_training();
        trained.main.inputs.push(value("h", code, &["2"]));
        trained.main.nodes.push(node("Identity", "keep", &["h"], &["h_out"], &[]));
        trained.main.outputs.push(value("h_out", code, &["2"]));
        let stored: Vec<u8> = [1f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        trained.initialization = Graph {
            nodes,
            outputs: vec![value("start", code, &["2"])],
            initializers: vec![
                tensor("stored", 1, &[2], &stored),
                tensor("dims", 7, &[1], &2i64.to_le_bytes()),
            ],
            ..Graph::default()
        };
        trained.bindings.push((3, "h", "start"));
        match want {
            Ok(init) => {
                let m = imported(&trained).module;
                let state = m.states.values().find(|s| m.values[s.value].name == "h");
                assert_eq!(state.map(|s| &s.init), Some(&init));
            }
            Err(part) => {
                let error = import_bytes(&trained.model(), &ImportOptions::default()).expect_err(part);
                assert!(error.to_string().contains(part), "{error}");
            }
        }
    }
}

/// A parameter that nothing updates is frozen; another constant is none of the states.
#[test]
fn frozen_parameters() {
    let mut trained = small_training();
    trained.main.nodes.push(node("Mul", "more", &["y", "fixed.weight"], &["z"], &[]));
    trained.main.initializers.push(tensor("fixed.weight", 1, &[2], &[0; 8]));
    trained.main.outputs.push(value("z", 1, &["2"]));
    let m = imported(&trained).module;
    let frozen: Vec<&str> = (m.states.values().filter(|s| s.role == Role::Frozen))
        .map(|s| m.values[s.value].name.as_str())
        .collect();
    assert_eq!(frozen, ["fixed.weight"]);
    assert!(m.states.values().all(|s| s.role != Role::Frozen || s.next.is_none()));
    assert!(m.states.values().all(|s| m.values[s.value].name != "one"));
}

/// A one-file step whose outputs are `Gradient`s of `y` at its inputs, for `x` and `w` of two elements.
fn gradients(more: &[Vec<u8>]) -> Trained {
    let mut trained = small_training();
    trained.algorithm.nodes.truncate(4);
    trained.algorithm.nodes.extend_from_slice(more);
    trained.algorithm.initializers.clear();
    trained.algorithm.outputs = vec![value("loss", 1, &[]), value("g", 1, &["2"])];
    trained.bindings = vec![(4, "w", "w")];
    trained.main.outputs.push(value("w", 1, &["2"]));
    trained
}

/// With other inputs than the tensors that it names, `Gradient` is evaluated there, whatever the graph's own
/// are.
#[test]
fn gradients_elsewhere() {
    let named = [texts_attr("xs", &["w", "x"]), text_attr("y", "loss")];
    // dw = 2 x (w x - t) with x in the place of w and t in that of x.
    let trained = gradients(&[preview("Gradient", &["x", "t"], &["g", ""], &named)]);
    let m = imported(&trained).module;
    let g = m.outputs.iter().find(|o| o.name == "g").map(|o| o.value).unwrap_or_else(|| panic!("no g"));
    let (x, t) = ([3.0, 5.0], [7.0, 11.0]);
    let all = values(&m, &[("x", &x), ("t", &t), ("w", &[100.0, 100.0])]);
    let want: Vec<f64> = x.iter().zip(t).map(|(x, t)| 2.0 * t * (x * t - t)).collect();
    assert_eq!(floats(&all, g), want);
    // The same tensor in the place of both: they stay two variables.
    let trained = gradients(&[preview("Gradient", &["x", "x"], &["", "g"], &named)]);
    let m = imported(&trained).module;
    let g = m.outputs.iter().find(|o| o.name == "g").map(|o| o.value).unwrap_or_else(|| panic!("no g"));
    let all = values(&m, &[("x", &x), ("t", &t), ("w", &[100.0, 100.0])]);
    let want: Vec<f64> = x.iter().zip(t).map(|(x, t)| 2.0 * x * (x * x - t)).collect();
    assert_eq!(floats(&all, g), want);
}

/// The derivative of a gradient, and of what does not depend on a variable, which is zero.
#[test]
fn derivatives_of_derivatives() {
    let sum = node("ReduceSum", "", &["dw"], &["dw_sum"], &[int_attr("keepdims", 0)]);
    let second = [texts_attr("xs", &["w"]), text_attr("y", "dw_sum")];
    let trained = gradients(&[sum.clone(), preview("Gradient", &["w"], &["g"], &second)]);
    let m = imported(&trained).module;
    let of = |m: &Module, name: &str| {
        m.outputs.iter().find(|o| o.name == name).map(|o| o.value).unwrap_or_else(|| panic!("no {name}"))
    };
    let all = values(&m, &[("x", &[3.0, 5.0]), ("t", &[1.0, 1.0]), ("w", &[1.0, 1.0])]);
    assert_eq!(floats(&all, of(&m, "g")), [18.0, 50.0]);
    let whole = node("ReduceSum", "", &["x"], &["x_sum"], &[int_attr("keepdims", 0)]);
    let none = [texts_attr("xs", &["w"]), text_attr("y", "x_sum")];
    let m = imported(&gradients(&[whole, preview("Gradient", &["w"], &["g"], &none)])).module;
    let g = m.def_op(of(&m, "g")).map(|op| m.ops[op].kind());
    assert!(matches!(g, Some(Some(OpKind::Fill { .. }))), "{g:?}");
}

/// Variables that depend on each other, a result of many elements, and names that are not there are refused.
#[test]
fn impossible_gradients() {
    let of = |xs: &[&str], y: &str| {
        let attrs = [texts_attr("xs", xs), text_attr("y", y)];
        let trained = gradients(&[preview("Gradient", xs, &["g"], &attrs)]);
        match import_bytes(&trained.model(), &ImportOptions::default()) {
            Err(e) => e.to_string(),
            Ok(_) => panic!("{xs:?} {y}"),
        }
    };
    assert_says(&of(&["w", "y"], "loss"), &["`y` is computed from another of `xs`", "Gradient"]);
    assert_says(&of(&["w"], "s"), &["`y` must be one float, but `s` is f32[2]"]);
    assert_says(&of(&["nothing"], "loss"), &["reads `nothing`"]);
    assert_says(&of(&["w", "w"], "loss"), &["`w` is named twice"]);
    assert_says(&of(&["w"], "g"), &["cycle"]);
}

/// Gradients of gradients of ... end with an error long before they fill the memory.
#[test]
fn towers_of_gradients() {
    let mut nodes = Vec::new();
    let mut last = "dw".to_string();
    for i in 0..40 {
        let (sum, next) = (format!("s{i}"), if i == 39 { "g".to_string() } else { format!("g{i}") });
        nodes.push(node("Exp", "", &[&last], &[&format!("e{i}")], &[]));
        nodes.push(node("ReduceSum", "", &[&format!("e{i}")], &[&sum], &[int_attr("keepdims", 0)]));
        let attrs = [texts_attr("xs", &["w"]), text_attr("y", &sum)];
        nodes.push(preview("Gradient", &["w"], &[&next], &attrs));
        last = next;
    }
    let error = import_bytes(&gradients(&nodes).model(), &ImportOptions::default()).err();
    let text = error.map(|e| e.to_string()).unwrap_or_default();
    assert_says(&text, &["too many Gradient nodes"]);
}

/// Bindings must be between initializers and outputs of one type; the message names both sides.
#[test]
fn impossible_bindings() {
    let text = refused(|t| t.bindings.push((4, "nothing", "w_new")));
    assert_says(&text, &["update of `nothing`", "no initializer"]);
    let text = refused(|t| t.bindings[0].2 = "dw");
    assert_says(&text, &["update of `w`", "`dw` is no output"]);
    let text = refused(|t| t.bindings.push((4, "w", "v_new")));
    assert_says(&text, &["update of `w`", "bound twice"]);
    let text = refused(|t| t.bindings[0].2 = "loss");
    assert_says(&text, &["`w`", "f32[2]", "`loss`", "f32[]"]);
    let text = refused(|t| t.bindings.push((3, "w", "nothing")));
    assert_says(&text, &["initialization of `w`", "`nothing`"]);
    let text = refused(|t| t.main.nodes.push(node("Neg", "up", &["e"], &["up"], &[])));
    assert_says(&text, &["`up`", "reads `e`"]);
    let text = refused(|t| t.algorithm.initializers.push(tensor("w", 1, &[2], &[0; 8])));
    assert_says(&text, &["`w` is defined twice"]);
    let text = refused(|t| {
        t.algorithm.nodes[4] = preview("Momentum", &["rate", "n", "w", "dw"], &["w_new", "v_new"], &[])
    });
    assert_says(&text, &["Momentum", "4 inputs"]);
    let twice = [small_training().model(), field(20, [])].concat();
    let text =
        import_bytes(&twice, &ImportOptions::default()).err().map(|e| e.to_string()).unwrap_or_default();
    assert_says(&text, &["several TrainingInfoProtos", "put their algorithms into one"]);
}

/// Options that say how to train are refused, since the model says it.
#[test]
fn recipes_are_not_needed() {
    let parse = |text: &str| text.parse().unwrap_or_else(|e: memc_ir::ParseError| panic!("{e}"));
    let options = ImportOptions::default;
    for (options, part) in [
        (ImportOptions { loss: Some(parse("mse")), ..options() }, "--loss mse"),
        (ImportOptions { freeze: vec!["w".into()], ..options() }, "--freeze w"),
        (ImportOptions { accumulate: 2, ..options() }, "accumulation"),
        (ImportOptions { no_optimizer: true, ..options() }, "leaving out the optimizer"),
        (ImportOptions { carry: vec![("w".into(), "y".into())], ..options() }, "--carry w=y"),
    ] {
        let error = import_bytes(&small_training().model(), &options);
        let Err(ImportError::Usage(text)) = error else { panic!("{part}: {error:?}") };
        assert_says(&text, &[part, "TrainingInfoProto"]);
    }
}
