//! The contract of `differentiate` besides numbers: names, origins, values with a gradient, errors, deep
//! graphs. Tests beside the reference evaluator compare gradients with finite differences.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use memc_ir::autodiff::{NotDifferentiable, differentiate};
use memc_ir::{Module, OpKind, ValueId, parse, print, verify};

fn module(text: &str) -> Module {
    parse(text).unwrap()
}

/// Differentiates the value `loss` by the values called `names`; every outcome must be a valid module.
fn gradients(m: &mut Module, names: &[&str]) -> Result<Vec<Option<String>>, NotDifferentiable> {
    let value = |name: &str| m.value_named(name).unwrap();
    let wrt: Vec<ValueId> = names.iter().map(|n| value(n)).collect();
    let loss = value("loss");
    let grads = differentiate(m, loss, &wrt);
    verify(m).unwrap();
    let grads = grads?;
    for (v, g) in wrt.iter().zip(&grads) {
        assert!(g.is_none_or(|g| m.values[g].ty == m.values[*v].ty));
    }
    Ok(grads.iter().map(|g| g.map(|g| m.values[g].name.clone())).collect())
}

const MLP: &str = r#"
module @mlp graph

%x = input : f32[4,3]
%labels = input {range = [0, 2]} : i64[4]
%w1 = state {role = param, init = uniform(1, 0.5)} : f32[3,5]
%b1 = state {role = param, init = zeros} : f32[5]
%w2 = state {role = param, init = uniform(2, 0.5)} : f32[5,2]
%unused = state {role = param, init = zeros} : f32[2]
%h = matmul %x, %w1 : f32[4,5] loc "fc1"
%hb = add %h, %b1 : f32[4,5] loc "bias1"
%a = relu %hb : f32[4,5] loc "act"
%y = matmul %a, %w2 : f32[4,2] loc "fc2"
%loss, %lp = cross_entropy %y, %labels : f32[], f32[4,2] loc "ce"
yield loss %loss as "loss"
"#;

#[test]
fn gradients_are_named_after_their_values_and_ops_after_their_nodes() {
    let mut m = module(MLP);
    let forward = print(&m);
    let grads = gradients(&mut m, &["w1", "b1", "w2", "unused", "x"]).unwrap();
    let named = |n: &str| Some(format!("{n}_grad"));
    assert_eq!(grads, [named("w1"), named("b1"), named("w2"), None, named("x")]);
    let text = print(&m);
    for line in forward.lines() {
        assert!(text.contains(line), "the forward line {line} is still there");
    }
    let of = |name: &str| m.def_op(m.value_named(name).unwrap()).unwrap();
    assert_eq!(m.ops[of("w1_grad")].origin, "fc1_Grad");
    assert_eq!(m.ops[of("hb_grad")].origin, "act_Grad");
    assert_eq!(m.ops[of("hb_grad")].kind(), Some(&OpKind::ReluGrad {}));
}

#[test]
fn only_values_between_the_requested_ones_and_the_loss_get_gradients() {
    let mut m = module(MLP);
    gradients(&mut m, &["w2"]).unwrap();
    assert!(m.value_named("w2_grad").is_some());
    assert!(["a_grad", "hb_grad", "w1_grad"].iter().all(|n| m.value_named(n).is_none()));
}

#[test]
fn contributions_are_summed_in_reverse_order_of_the_uses() {
    let text = r#"
module @fan graph

%x = state {role = param, init = zeros} : f32[3]
%a = exp %x : f32[3]
%b = tanh %x : f32[3]
%c = relu %x : f32[3]
%ab = mul %a, %b : f32[3]
%abc = mul %ab, %c : f32[3]
%loss = reduce_sum %abc {axes = [0]} : f32[]
yield loss %loss as "loss"
"#;
    let mut m = module(text);
    assert_eq!(gradients(&mut m, &["x"]).unwrap(), [Some("x_grad".into())]);
    let operands = |name: &str| -> Vec<String> {
        let op = m.def_op(m.value_named(name).unwrap()).unwrap();
        m.ops[op].operands.iter().map(|&v| m.values[v].name.clone()).collect()
    };
    assert_eq!(operands("x_grad"), ["x_grad_sum_1", "x_grad_2"]);
    assert_eq!(operands("x_grad_sum_1"), ["x_grad_0", "x_grad_1"]);
    assert_eq!(operands("x_grad_0")[1], "c", "relu is used last");
}

/// Reason why the gradient of `w` is refused in a module with `body`. The refusal must leave the text as it
/// was.
fn refused(body: &str) -> NotDifferentiable {
    let text = format!(
        "\nmodule @m graph\n\n%w = state {{role = param, init = zeros}} : f32[2,3]\n\
         %x = input : f32[2,3]\n{body}\nyield loss %loss as \"loss\"\n"
    );
    let mut m = module(&text);
    let before = print(&m);
    let error = gradients(&mut m, &["w"]).unwrap_err();
    let ops = |text: &str| {
        text.lines().filter(|l| !l.contains(" = const ")).map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(ops(&before), ops(&print(&m)));
    error
}

#[test]
fn an_op_without_a_gradient_is_named() {
    let e = refused(
        "%g = gelu_grad %x, %w : f32[2,3] loc \"Gelu_7\"\n%loss = reduce_sum %g {axes = [0, 1]} : f32[]",
    );
    assert_eq!((e.op, e.value.as_str(), e.node.as_str()), ("gelu_grad", "g", "Gelu_7"));
    assert!(e.reason.contains("second derivatives"), "{e}");
    assert!(e.to_string().starts_with("no gradient through gelu_grad of `g` (node `Gelu_7`): "), "{e}");
}

/// A value that reaches the loss through integers or `stop_gradient` alone has no gradient, as in PyTorch.
/// One whose derivative is zero is refused.
#[test]
fn a_gradient_stops_at_integers_and_where_it_is_told_to() {
    for through in [
        "%i = cast %w {to = i64} : i64[2,3]\n%f = cast %i {to = f32} : f32[2,3]",
        "%f = stop_gradient %w : f32[2,3]",
    ] {
        let mut m = module(&format!(
            "\nmodule @m graph\n\n%w = state {{role = param, init = zeros}} : f32[2,3]\n\
             %v = state {{role = param, init = zeros}} : f32[2,3]\n{through}\n\
             %p = mul %f, %v : f32[2,3]\n%loss = reduce_sum %p {{axes = [0, 1]}} : f32[]\n\
             yield loss %loss as \"loss\"\n"
        ));
        let found = gradients(&mut m, &["w", "v"]).unwrap();
        assert!(found[0].is_none() && found[1].is_some(), "{through}");
    }
    let e = refused(
        "%s = sign %w : f32[2,3]\n%p = mul %s, %x : f32[2,3]\n%loss = reduce_sum %p {axes = [0, 1]} : f32[]",
    );
    assert_eq!((e.op, e.value.as_str()), ("sign", "s"));
}

#[test]
fn an_integer_path_beside_a_floating_point_one_is_no_obstacle() {
    let text = r#"
module @m graph

%w = state {role = param, init = zeros} : f32[3]
%zero = const splat 0.0 : f32[]
%positive = greater %w, %zero : bool[3]
%kept = select %positive, %w, %zero : f32[3]
%loss = reduce_sum %kept {axes = [0]} : f32[]
yield loss %loss as "loss"
"#;
    assert_eq!(gradients(&mut module(text), &["w"]).unwrap(), [Some("w_grad".into())]);
}

#[test]
fn the_loss_is_one_floating_point_number_and_gradients_are_floating_point() {
    let e = refused("%loss = add %w, %x : f32[2,3]");
    assert_eq!((e.op, e.value.as_str()), ("add", "loss"));
    let e = refused("%loss = const splat 1 : i64[]");
    assert_eq!((e.op, e.value.as_str()), ("const", "loss"));
    let mut m = module(MLP);
    let e = gradients(&mut m, &["labels"]).unwrap_err();
    assert_eq!((e.op, e.value.as_str()), ("input", "labels"));
}

#[test]
fn the_loss_itself_and_intermediate_values_can_be_asked_for() {
    let mut m = module(MLP);
    let grads = gradients(&mut m, &["loss", "y", "a"]).unwrap();
    let names = ["loss_grad", "y_grad", "a_grad"].map(|n| Some(n.to_string()));
    assert_eq!(grads, names);
}

#[test]
fn a_chain_of_twenty_thousand_ops_does_not_recurse() {
    let mut m = Module::new("deep");
    let ty = memc_ir::TensorType::scalar(memc_ir::DType::F32);
    let w = m.add_state("w", ty, memc_ir::Role::Param, memc_ir::Init::Zeros);
    let w = m.states[w].value;
    let mut v = w;
    for _ in 0..10_000 {
        v = m.add_op(OpKind::Tanh {}, &[v], &["t"], "").unwrap()[0];
        v = m.add_op(OpKind::Add {}, &[v, w], &["s"], "").unwrap()[0];
    }
    let grads = differentiate(&mut m, v, &[w]).unwrap();
    assert!(grads[0].is_some());
    assert!(verify(&m).is_ok());
}

#[test]
fn dropout_drops_the_gradients_of_what_it_dropped() {
    let text = r#"
module @dropout graph

%step = input {feed = step} : i64[]
%x = state {role = param, init = zeros} : f32[3]
%mask = random_mask %step {ratio = 0.5, seed = 3, stream = 1, shape = [3]} : bool[3]
%a = dropout %x, %step {ratio = 0.25, seed = 3, stream = 2} : f32[3]
%b = mask_scale %a, %mask {scale = 2.0} : f32[3]
%loss = reduce_sum %b {axes = [0]} : f32[]
yield loss %loss as "loss"
"#;
    let mut m = module(text);
    gradients(&mut m, &["x"]).unwrap();
    let text = print(&m);
    for line in [
        "%a_grad = mask_scale %b_grad, %mask {scale = 2.0} : f32[3]",
        "%x_grad = dropout %a_grad, %step {ratio = 0.25, seed = 3, stream = 2} : f32[3]",
    ] {
        assert!(text.contains(line), "{line} is in\n{text}");
    }
}
