//! The text form: printing is a fixpoint, and the verifier's verdicts on hand-written modules.

use memc_ir::{parse, print, verify};

const GRAPH: &str = r#"module @mlp graph

%x = input : f32[4,32]
%labels = input {range = [0, 10]} : i64[4]
%"odd name" = input {source = "x", micro = 1} : f32[4,32]
%lr = input {feed = learning_rate, default = 0.001} : f32[]
%w = state {role = param, init = uniform(7, 0.25)} : f32[10,32]
%b = state {role = param, init = zeros} : f32[10]
%one = const splat 1.0 : f32[]
%odd = const dense [1.0, nan(0x7fc00000), -inf] : f32[3]
%y = gemm %x, %w, %b {trans_b} : f32[4,10] loc "fc"
%loss, %log_prob = cross_entropy %y, %labels : f32[], f32[4,10]
%dy = cross_entropy_grad %one, %log_prob, %labels : f32[4,10]
%dw = matmul %dy, %x {trans_a} : f32[10,32]
%db = reduce_sum %dy {axes = [0]} : f32[10]
%w_new = sgd %w, %dw, %lr : f32[10,32]
%b_new = sgd %b, %db, %lr : f32[10]
yield loss %loss as "loss"
carry %w <- %w_new
carry %b <- %b_new
"#;

#[test]
fn printing_a_parsed_graph_gives_the_same_text() {
    let module = parse(GRAPH).unwrap();
    verify(&module).unwrap();
    assert_eq!(print(&module), GRAPH);
}

const MEM: &str = r#"module @swap mem

slot p0 = host 64 @ 0
slot b1 = dev 64 @ 0
slot b2 = dev 64 @ 64
slot p3 = host 64 @ 64
slot b4 = dev 64 @ 0

%x = input : f32[16] in p0
alloc b1
%x.1 = swap_in %x -> b1 signal !0 : f32[16]
alloc b2
%h = exp %x.1 -> b2 await !0 signal !1 : f32[16]
free b1
alloc p3
%h.1 = swap_out %h -> p3 await !1 : f32[16]
free b2
yield output %h.1 as "h"
"#;

#[test]
fn printing_a_parsed_mem_module_gives_the_same_text() {
    let text = MEM.replace("slot b4 = dev 64 @ 0\n", "");
    let module = parse(&text).unwrap();
    verify(&module).unwrap();
    assert_eq!(print(&module), text);
}

#[test]
fn reading_a_freed_slot_is_reported_on_the_op() {
    let text = MEM.replace("free b1\n", "").replace("%h = exp", "free b1\n%h = exp");
    let diags = verify(&parse(&text).unwrap()).unwrap_err();
    assert_eq!(diags.0[0].code, "M2", "{diags}");
}
