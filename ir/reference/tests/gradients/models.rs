//! Whole models: all gradients together, through fan-out, shared parameters and statistics.

use memc_ir::{OpKind, ValueId, parse};

use crate::support::{compare, contents};

/// Checks the gradients of `loss` by all states of the module with role `param`; returns how often each op is
/// used.
fn check(text: &str, seed: u64) -> Vec<String> {
    let mut m = parse(text).unwrap();
    let env = contents(&m, seed);
    let params = m.states.values().filter(|s| s.role == memc_ir::Role::Param);
    let wrt: Vec<ValueId> = params.map(|s| s.value).collect();
    let loss = m.value_named("loss").unwrap();
    compare(&mut m, &env, loss, &wrt).unwrap();
    m.order.iter().filter_map(|&op| m.ops[op].kind()).map(|k: &OpKind| k.mnemonic().to_string()).collect()
}

#[test]
fn a_perceptron_with_a_shared_bias() {
    check(
        r#"
module @mlp graph

%x = input : f32[4,3]
%labels = input {range = [0, 5]} : i64[4]
%w1 = state {role = param, init = uniform(1, 0.5)} : f32[5,3]
%b = state {role = param, init = zeros} : f32[5]
%w2 = state {role = param, init = uniform(2, 0.5)} : f32[5,5]
%h = gemm %x, %w1, %b {trans_b} : f32[4,5]
%a = tanh %h : f32[4,5]
%y = gemm %a, %w2, %b {alpha = 0.5, beta = 2.0} : f32[4,5]
%s = sigmoid %y : f32[4,5]
%r = mul %s, %a : f32[4,5]
%loss, %lp = cross_entropy %r, %labels : f32[], f32[4,5]
yield loss %loss as "loss"
"#,
        5,
    );
}

#[test]
fn training_mode_batch_normalisation_is_one_op() {
    let used = check(
        r#"
module @cnn graph

%x = input : f32[2,2,6,6]
%labels = input {range = [0, 3]} : i64[2]
%w1 = state {role = param, init = uniform(1, 0.5)} : f32[3,2,3,3]
%b1 = state {role = param, init = zeros} : f32[3]
%scale = state {role = param, init = ones} : f32[3]
%bias = state {role = param, init = zeros} : f32[3]
%running = state {role = buffer, init = zeros} : f32[3]
%fc = state {role = param, init = uniform(3, 0.5)} : f32[3,3]
%c1 = conv %x, %w1, %b1 {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1]} : f32[2,3,6,6]
%mean, %var, %inv_std = batch_norm_stats %c1 {epsilon = 0.001} : f32[3], f32[3], f32[3]
%n1 = batch_norm %c1, %scale, %bias, %mean, %inv_std : f32[2,3,6,6]
%new = moving_average %running, %mean {momentum = 0.9} : f32[3]
%r1 = gelu %n1 : f32[2,3,6,6]
%skip = add %r1, %c1 : f32[2,3,6,6]
%p1 = average_pool %skip {kernel = [2, 2], strides = [2, 2], pads = [0, 0, 0, 0]} : f32[2,3,3,3]
%g = reduce_mean %p1 {axes = [2, 3]} : f32[2,3]
%y = matmul %g, %fc {trans_b} : f32[2,3]
%loss, %lp = cross_entropy %y, %labels : f32[], f32[2,3]
yield loss %loss as "loss"
carry %running <- %new
"#,
        6,
    );
    assert_eq!(used.iter().filter(|op| *op == "batch_norm_grad").count(), 1);
    assert_eq!(used.iter().filter(|op| *op == "batch_norm_stats").count(), 1);
    assert!(!used.iter().any(|op| op == "exp" || op == "sqrt"), "nothing goes through the statistics");
}

#[test]
fn statistics_that_the_loss_also_uses_count_on_top() {
    check(
        r#"
module @stats graph

%x = state {role = param, init = zeros} : f32[3,2,2]
%scale = state {role = param, init = ones} : f32[2]
%bias = state {role = param, init = zeros} : f32[2]
%mean, %var, %inv_std = batch_norm_stats %x {epsilon = 0.001} : f32[2], f32[2], f32[2]
%n = batch_norm %x, %scale, %bias, %mean, %inv_std : f32[3,2,2]
%t = tanh %n : f32[3,2,2]
%a = reduce_sum %t {axes = [0, 1, 2]} : f32[]
%v = mul %var, %inv_std : f32[2]
%mv = mul %v, %mean : f32[2]
%b = reduce_sum %mv {axes = [0]} : f32[]
%loss = add %a, %b : f32[]
yield loss %loss as "loss"
"#,
        7,
    );
}

#[test]
fn statistics_of_another_tensor_make_an_affine_map() {
    let used = check(
        r#"
module @frozen graph

%x = state {role = param, init = zeros} : f32[2,2,3]
%z = state {role = param, init = zeros} : f32[2,2,3]
%scale = state {role = param, init = ones} : f32[2]
%bias = state {role = param, init = zeros} : f32[2]
%mean, %var, %inv_std = batch_norm_stats %z {epsilon = 0.001} : f32[2], f32[2], f32[2]
%n = batch_norm %x, %scale, %bias, %mean, %inv_std : f32[2,2,3]
%t = tanh %n : f32[2,2,3]
%loss = reduce_sum %t {axes = [0, 1, 2]} : f32[]
yield loss %loss as "loss"
"#,
        8,
    );
    assert!(!used.iter().any(|op| op == "batch_norm_grad"));
}

#[test]
fn a_transformer_block_with_tied_embeddings() {
    check(
        r#"
module @attention graph

%ids = input {range = [0, 7]} : i64[2,3]
%labels = input {range = [0, 7]} : i64[2,3]
%mask = input : f32[2,1,3,3]
%table = state {role = param, init = uniform(1, 0.5)} : f32[7,4]
%g = state {role = param, init = ones} : f32[4]
%b = state {role = param, init = zeros} : f32[4]
%wqkv = state {role = param, init = uniform(2, 0.5)} : f32[4,12]
%bqkv = state {role = param, init = zeros} : f32[12]
%wo = state {role = param, init = uniform(3, 0.5)} : f32[4,4]
%e = gather %table, %ids {axis = 0} : f32[2,3,4]
%n, %mean, %inv_std = layer_norm %e, %g, %b {axis = 2, epsilon = 0.001} : f32[2,3,4], f32[2,3,1], f32[2,3,1]
%qkv0 = matmul %n, %wqkv : f32[2,3,12]
%qkv = add %qkv0, %bqkv : f32[2,3,12]
%q0 = slice %qkv {starts = [0, 0, 0], ends = [2, 3, 4], steps = [1, 1, 1]} : f32[2,3,4]
%k0 = slice %qkv {starts = [0, 0, 4], ends = [2, 3, 8], steps = [1, 1, 1]} : f32[2,3,4]
%v0 = slice %qkv {starts = [0, 0, 8], ends = [2, 3, 12], steps = [1, 1, 1]} : f32[2,3,4]
%q1 = reshape %q0 {shape = [2, 3, 2, 2]} : f32[2,3,2,2]
%k1 = reshape %k0 {shape = [2, 3, 2, 2]} : f32[2,3,2,2]
%v1 = reshape %v0 {shape = [2, 3, 2, 2]} : f32[2,3,2,2]
%q = transpose %q1 {perm = [0, 2, 1, 3]} : f32[2,2,3,2]
%k = transpose %k1 {perm = [0, 2, 1, 3]} : f32[2,2,3,2]
%v = transpose %v1 {perm = [0, 2, 1, 3]} : f32[2,2,3,2]
%scores = matmul %q, %k {trans_b, alpha = 0.7} : f32[2,2,3,3]
%masked = add %scores, %mask : f32[2,2,3,3]
%p = softmax %masked {axis = 3} : f32[2,2,3,3]
%o = matmul %p, %v : f32[2,2,3,2]
%ot = transpose %o {perm = [0, 2, 1, 3]} : f32[2,3,2,2]
%oc = reshape %ot {shape = [2, 3, 4]} : f32[2,3,4]
%proj = matmul %oc, %wo : f32[2,3,4]
%res = add %e, %proj : f32[2,3,4]
%act = gelu %res {tanh} : f32[2,3,4]
%logits = matmul %act, %table {trans_b} : f32[2,3,7]
%lt = transpose %logits {perm = [0, 2, 1]} : f32[2,7,3]
%loss, %lp = cross_entropy %lt, %labels : f32[], f32[2,7,3]
yield loss %loss as "loss"
"#,
        9,
    );
}

#[test]
fn slices_of_one_tensor_are_joined_where_they_do_not_overlap() {
    let used = check(
        r#"
module @slices graph

%x = state {role = param, init = zeros} : f32[4,9]
%a = slice %x {starts = [0, 6], ends = [4, 9], steps = [1, 1]} : f32[4,3]
%b = slice %x {starts = [0, 0], ends = [4, 3], steps = [1, 1]} : f32[4,3]
%c = slice %x {starts = [0, 3], ends = [4, 6], steps = [1, 1]} : f32[4,3]
%overlapping = slice %x {starts = [0, 2], ends = [4, 5], steps = [1, 1]} : f32[4,3]
%behind = slice %x {starts = [0, 8], ends = [4, 5], steps = [1, -1]} : f32[4,3]
%row = slice %x {starts = [1, 0], ends = [2, 9], steps = [1, 1]} : f32[1,9]
%corner = slice %x {starts = [1, 1], ends = [3, 4], steps = [1, 1]} : f32[2,3]
%ab = mul %a, %b : f32[4,3]
%abc = mul %ab, %c : f32[4,3]
%ob = mul %overlapping, %behind : f32[4,3]
%s = sub %abc, %ob : f32[4,3]
%t = tanh %s : f32[4,3]
%l0 = reduce_sum %t {axes = [0, 1]} : f32[]
%l1 = sum_squares %row : f32[]
%l2 = sum_squares %corner : f32[]
%l01 = add %l0, %l1 : f32[]
%loss = add %l01, %l2 : f32[]
yield loss %loss as "loss"
"#,
        10,
    );
    // One whole of three slices; one of two with a gap; the row and the corner on their own.
    let count = |op: &str| used.iter().filter(|u| *u == op).count();
    assert_eq!([count("concat"), count("fill"), count("pad"), count("add")], [2, 1, 3, 2 + 3]);
}
