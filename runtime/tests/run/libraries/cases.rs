//! Ops that libraries compute, and ops near them that they do not.

use memc_ir::attr::F32;
use memc_ir::{DType, OpKind, TensorType, parse_op};

/// An op on operands of these types.
pub(super) type Case = (OpKind, Vec<TensorType>);

pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn ty(dtype: DType, shape: &[u64]) -> TensorType {
    TensorType::new(dtype, shape)
}

pub(super) fn matmul(dtype: DType, a: &[u64], b: &[u64], [trans_a, trans_b]: [bool; 2]) -> Case {
    let op = OpKind::MatMul { trans_a, trans_b, alpha: F32(0.75) };
    (op, vec![ty(dtype, a), ty(dtype, b)])
}

pub(super) fn gemm(dtype: DType, c: &[u64], beta: f32) -> Case {
    let op = OpKind::Gemm { trans_a: false, trans_b: true, alpha: F32(0.5), beta: F32(beta) };
    (op, vec![ty(dtype, &[5, 7]), ty(dtype, &[6, 7]), ty(dtype, c)])
}

/// A product with the sum of an operand.
pub(super) fn bias_grad(dtype: DType, a: &[u64], b: &[u64], attrs: &str) -> Case {
    (parse_op("matmul_bias_grad", &format!("{{{attrs}}}")).unwrap(), vec![ty(dtype, a), ty(dtype, b)])
}

/// Sums of each operand beside a product: in one call, as far as the library does that, else behind the
/// product's call.
pub(super) fn bias_grads(dtype: DType) -> Vec<Case> {
    let case = |a: &[u64], b: &[u64], attrs: &str| bias_grad(dtype, a, b, attrs);
    vec![
        case(&[7, 5], &[7, 6], "trans_a"),
        case(&[7, 5], &[7, 6], "trans_a, sum_b"),
        case(&[7, 5], &[6, 7], "trans_a, trans_b"),
        case(&[5, 7], &[7, 6], "sum_b"),
        // No one call: scaled, and summed along rows. And what the fake does not do: sums beside 11 columns,
        // 13 columns.
        case(&[7, 5], &[7, 6], "trans_a, alpha = 0.5"),
        case(&[5, 7], &[7, 6], ""),
        case(&[7, 5], &[6, 7], "trans_a, trans_b, sum_b"),
        case(&[700, 5], &[700, 11], "trans_a"),
        case(&[7, 5], &[7, 13], "trans_a, sum_b"),
    ]
}

/// Every form of transposes, batches and addends.
pub(super) fn products(dtype: DType) -> Vec<Case> {
    let mut cases = Vec::new();
    let sides = |m: u64, n: u64, trans: bool| if trans { [n, m] } else { [m, n] };
    for [trans_a, trans_b] in [[false, false], [false, true], [true, false], [true, true]] {
        let (a, b) = (sides(5, 7, trans_a), sides(7, 6, trans_b));
        for (lead_a, lead_b) in
            [(&[][..], &[][..]), (&[2, 3], &[2, 3]), (&[3], &[]), (&[], &[3]), (&[2, 1], &[1, 3])]
        {
            let (a, b) = ([lead_a, &a].concat(), [lead_b, &b].concat());
            cases.push(matmul(dtype, &a, &b, [trans_a, trans_b]));
        }
    }
    // Ops that no call describes, and calls that the fake refuses.
    cases.extend([gemm(dtype, &[5, 1], 1.0), matmul(dtype, &[4, 9], &[9, 13], [false, false])]);
    let addends: [(&[u64], f32); 5] =
        [(&[5, 6], 0.25), (&[6], 1.0), (&[1, 6], 1.0), (&[6], 0.0), (&[6], 0.5)];
    cases.extend(addends.map(|(c, beta)| gemm(dtype, c, beta)));
    cases
}

/// A product with an epilogue.
pub(super) fn fused(body: &str, outs: &str, shapes: &[&[u64]]) -> Case {
    let op = parse_op("fused", &format!("{{body = \"{body}\", outs = {outs}}}")).unwrap();
    (op, shapes.iter().map(|shape| ty(DType::F32, shape)).collect())
}

/// Every epilogue, of products with and without a row or a matrix that is added, and what is none.
pub(super) fn epilogues() -> Vec<Case> {
    let (a, b): (&[u64], &[u64]) = (&[5, 7], &[8, 7]);
    let matmul = "matmul(x0, x1) {trans_b, alpha = 0.5}";
    let gemm = "gemm(x0, x1, x2) {trans_b}";
    let scaled = "gemm(x0, x1, x2) {trans_b, beta = 0.25}";
    let mut cases = Vec::new();
    for (step, outs) in [("relu(t0)", "[1]"), ("gelu(t0) {tanh}", "[1]"), ("gelu(t0) {tanh}", "[0, 1]")] {
        cases.push(fused(&format!("{matmul}; {step}"), outs, &[a, b]));
        cases.push(fused(&format!("{gemm}; {step}"), outs, &[a, b, &[8]]));
        cases.push(fused(&format!("{scaled}; {step}"), outs, &[a, b, &[5, 8]]));
    }
    let grad = format!("{matmul}; gelu_grad(t0, x2) {{tanh}}");
    cases.push(fused(&grad, "[1]", &[a, b, &[5, 8]]));
    cases.push(fused(&grad, "[1]", &[&[2, 5, 7], b, &[2, 5, 8]]));
    cases.push(fused(&format!("{matmul}; relu(t0)"), "[1]", &[&[3, 5, 7], &[3, 8, 7]]));
    let conv =
        "conv(x0, x1, x2) {strides = [2, 1], pads = [1, 1, 1, 1], dilations = [1, 1], groups = 2}; relu(t0)";
    let (x, w): (&[u64], &[u64]) = (&[2, 4, 9, 6], &[8, 2, 3, 3]);
    cases.push(fused(conv, "[1]", &[x, w, &[8]]));
    // No calls: ReLU without a bias, and beside what it is taken of.
    cases.push(fused(&conv.replace(", x2)", ")"), "[1]", &[x, w]));
    cases.push(fused(conv, "[0, 1]", &[x, w, &[8]]));
    // No calls: other activations, rows that lie too near, several products with a further matrix, another
    // order.
    cases.push(fused(&format!("{matmul}; gelu(t0)"), "[1]", &[a, b]));
    cases.push(fused(&format!("{gemm}; gelu(t0) {{tanh}}"), "[0, 1]", &[a, &[6, 7], &[6]]));
    cases.push(fused(&grad, "[1]", &[&[3, 5, 7], &[3, 8, 7], &[3, 5, 8]]));
    cases.push(fused(&format!("{matmul}; gelu_grad(x2, t0) {{tanh}}"), "[1]", &[a, b, &[5, 8]]));
    cases.push(fused(&format!("{gemm}; relu(t0)"), "[0, 1]", &[a, b, &[8]]));
    cases.push(fused(&format!("{gemm}; relu(t0); neg(t1)"), "[2]", &[a, b, &[8]]));
    cases
}

/// A window: kernel, strides, pads, dilations, groups.
type Window = ([u64; 2], [u64; 2], [u64; 4], [u64; 2], u64);

const WINDOWS: [Window; 8] = [
    ([3, 3], [1, 1], [1, 1, 1, 1], [1, 1], 1),
    ([3, 3], [2, 2], [1, 1, 0, 0], [1, 1], 1),
    ([3, 2], [2, 1], [0, 1, 0, 1], [1, 2], 2),
    ([3, 3], [1, 1], [2, 2, 2, 2], [2, 2], 4),
    ([1, 1], [1, 1], [0, 0, 0, 0], [1, 1], 1),
    ([1, 1], [2, 2], [0, 0, 0, 0], [1, 1], 1),
    // Ops that no call describes, and calls that the fake refuses.
    ([3, 3], [1, 1], [0, 0, 1, 1], [1, 1], 1),
    ([2, 2], [1, 1], [1, 1, 1, 1], [3, 3], 1),
];

/// A convolution, with and without bias, and its gradients, for every window.
pub(super) fn convolutions(dtype: DType) -> Vec<Case> {
    let mut cases = Vec::new();
    for (kernel, strides, pads, dilations, groups) in WINDOWS {
        let (x, w) = (ty(dtype, &[2, 4, 8, 6]), ty(dtype, &[8, 4 / groups, kernel[0], kernel[1]]));
        let groups = i64::try_from(groups).unwrap();
        let (strides, pads, dilations) = (strides.to_vec(), pads.to_vec(), dilations.to_vec());
        let forward = OpKind::Conv {
            strides: strides.clone(),
            pads: pads.clone(),
            dilations: dilations.clone(),
            groups,
        };
        let y = forward.infer(&[&x, &w]).unwrap().remove(0);
        let grad_input = OpKind::ConvGradInput {
            strides: strides.clone(),
            pads: pads.clone(),
            dilations: dilations.clone(),
            groups,
            size: vec![8, 6],
        };
        let grad_weight =
            OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel: kernel.to_vec() };
        cases.push((forward.clone(), vec![x.clone(), w.clone(), ty(dtype, &[8])]));
        cases.push((forward, vec![x.clone(), w.clone()]));
        cases.push((grad_input, vec![y.clone(), w]));
        cases.push((grad_weight, vec![y, x]));
    }
    cases
}
