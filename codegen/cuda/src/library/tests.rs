//! Which ops are calls.

use super::*;
use memc_ir::attr::F32;

fn f32s(shape: &[u64]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn matmul(a: &[u64], b: &[u64], trans_a: bool, trans_b: bool) -> Option<Product> {
    let op = OpKind::MatMul { trans_a, trans_b, alpha: F32(1.0) };
    match library(&op, &[f32s(a), f32s(b)])? {
        LibraryCall::Product(product) => Some(product),
        LibraryCall::Convolution(_) => None,
    }
}

fn gemm(c: &[u64], beta: f32) -> Option<Addend> {
    let op = OpKind::Gemm { trans_a: false, trans_b: false, alpha: F32(2.0), beta: F32(beta) };
    match library(&op, &[f32s(&[4, 3]), f32s(&[3, 5]), f32s(c)])? {
        LibraryCall::Product(product) => Some(product.addend),
        LibraryCall::Convolution(_) => None,
    }
}

/// Batches are rows, one stride, or one matrix for all; batches of two different strides are no call.
#[test]
fn batches_that_lie_evenly_are_calls() {
    let extents = |p: Product| ([p.m, p.n, p.k], p.batch, [p.stride_a, p.stride_b]);
    let product = |a: &[u64], b: &[u64]| matmul(a, b, false, false).map(extents);
    assert_eq!(product(&[4, 3], &[3, 5]), Some(([4, 5, 3], 1, [0, 0])));
    assert_eq!(product(&[2, 6, 4, 3], &[3, 5]), Some(([48, 5, 3], 1, [0, 0])));
    assert_eq!(product(&[2, 6, 4, 3], &[2, 6, 3, 5]), Some(([4, 5, 3], 12, [12, 15])));
    assert_eq!(product(&[4, 3], &[2, 6, 3, 5]), Some(([4, 5, 3], 12, [0, 15])));
    assert_eq!(product(&[2, 6, 4, 3], &[1, 6, 3, 5]), None);
    let turned = matmul(&[2, 3, 4], &[5, 3], true, true).map(extents);
    assert_eq!(turned, Some(([4, 5, 3], 2, [12, 0])));
    assert_eq!(product(&[4, 0], &[0, 5]), None, "nothing to multiply");
    assert_eq!(product(&[1 << 31, 1], &[1, 2]), None, "too many rows");
}

/// An addend is a whole matrix, or a row as it is.
#[test]
fn addends_of_other_forms_are_no_calls() {
    assert_eq!(gemm(&[4, 5], 0.5), Some(Addend::Matrix { beta: 0.5 }));
    assert_eq!(gemm(&[5], 1.0), Some(Addend::Row));
    assert_eq!(gemm(&[1, 5], 1.0), Some(Addend::Row));
    assert_eq!(gemm(&[5], 0.0), Some(Addend::None));
    assert_eq!(gemm(&[5], 0.5), None);
    assert_eq!((gemm(&[4, 1], 1.0), gemm(&[], 1.0)), (None, None));
}

fn conv(size: u64, kernel: u64, pads: [u64; 4], stride: u64, dtype: DType, has_bias: bool) -> bool {
    let op = OpKind::Conv { strides: vec![stride; 2], pads: pads.to_vec(), dilations: vec![1, 1], groups: 1 };
    let mut operands =
        vec![TensorType::new(dtype, [2, 3, size, size]), TensorType::new(dtype, [4, 3, kernel, kernel])];
    operands.extend(has_bias.then(|| TensorType::new(dtype, [4])));
    let call = library(&op, &operands);
    assert_eq!(call.is_some(), allowance(&op, &operands) > 0);
    call.is_some()
}

/// Padding of which cuDNN's symmetric one has no other windows is a call, other padding and biases in 16 bits
/// are not.
#[test]
fn paddings_that_are_as_if_symmetric_are_calls() {
    assert!(conv(8, 3, [1, 1, 1, 1], 1, DType::F32, true));
    assert!(conv(8, 3, [1, 1, 0, 0], 2, DType::F32, false), "the last row is never reached");
    assert!(!conv(8, 3, [0, 0, 1, 1], 2, DType::F32, false));
    assert!(!conv(8, 2, [0, 0, 1, 1], 1, DType::F32, false));
    assert!(conv(8, 3, [1, 1, 1, 1], 1, DType::BF16, false));
    assert!(!conv(8, 3, [1, 1, 1, 1], 1, DType::F16, true));
}

/// The allowance holds what the op touches, up to a limit, however the workspace lies.
#[test]
fn the_allowance_is_bounded() {
    let op = OpKind::MatMul { trans_a: false, trans_b: false, alpha: F32(1.0) };
    let allowance = |m: u64| allowance(&op, &[f32s(&[m, 64]), f32s(&[64, 64])]);
    assert_eq!(allowance(64), 3 * 64 * 64 * 4 + 192);
    assert_eq!(allowance(1 << 20), (32 << 20) + 192);
    assert_eq!(super::allowance(&OpKind::Relu {}, &[f32s(&[64])]), 0);
    assert_eq!(super::ample_allowance(&OpKind::Relu {}, &[f32s(&[64])], u64::MAX), 0);
}

/// Bytes within what alignment adds to `bytes`.
fn is_about(found: u64, bytes: u64) -> bool {
    (bytes..bytes + 1024).contains(&found)
}

/// Convolutions by 3 by 3 have room for transforms where there is any: 36 numbers for each tile of 4 by 4.
/// Products never have more.
#[test]
fn windows_have_room_for_transforms() {
    let conv = |images: u64, side: u64, most: u64| {
        let lists = || vec![1; 2];
        let op = OpKind::Conv { strides: lists(), pads: vec![side / 2; 4], dilations: lists(), groups: 1 };
        let operands = [f32s(&[images, 64, 64, 64]), f32s(&[64, 64, side, side])];
        (allowance(&op, &operands), ample_allowance(&op, &operands, most))
    };
    let (touched, transformed) = ((2 * 64 * 64 * 64 + 9 * 64 * 64) * 4, 36 * 4 * (256 * 128 + 64 * 64));
    let (usual, ample) = conv(1, 3, u64::MAX);
    assert!(is_about(usual, touched) && is_about(ample, transformed), "{usual} {ample}");
    let (usual, ample) = conv(64, 3, u64::MAX);
    assert!(is_about(usual, 32 << 20) && is_about(ample, 36 * 4 * (64 * 256 * 128 + 64 * 64)), "{ample}");
    assert_eq!(conv(64, 3, 32 << 20), (usual, usual));
    assert_eq!(conv(64, 3, 128 << 20).1, usual, "too little for transforms");
    assert_eq!(conv(64, 1, u64::MAX).1, usual);
    let product = OpKind::MatMul { trans_a: false, trans_b: false, alpha: F32(1.0) };
    let operands = [f32s(&[1 << 20, 64]), f32s(&[64, 64])];
    assert_eq!(ample_allowance(&product, &operands, u64::MAX), allowance(&product, &operands));
}

/// The gradient of a weight has room for all that it touches, or for the products of all images where these
/// are less.
#[test]
fn gradients_of_weights_have_room_for_another_order() {
    let ample = |side: u64, stride: u64, extent: u64| {
        let pads = vec![side / 2; 4];
        let (strides, dilations, kernel) = (vec![stride; 2], vec![1; 2], vec![side; 2]);
        let conv = OpKind::Conv { strides, pads, dilations, groups: 1 };
        let (x, w) = (f32s(&[64, 128, extent, extent]), f32s(&[128, 128, side, side]));
        let dy = conv.infer(&[&x, &w]).unwrap().remove(0);
        let OpKind::Conv { strides, pads, dilations, groups } = conv else { return 0 };
        ample_allowance(
            &OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel },
            &[dy, x],
            u64::MAX,
        )
    };
    let image = |extent: u64| 64 * 128 * extent * extent * 4;
    assert!(is_about(ample(3, 2, 56), image(56) + image(28) + 9 * 128 * 128 * 4));
    assert!(is_about(ample(1, 1, 200), 32 << 20), "the products take 4 MiB");
    assert!(is_about(ample(1, 1, 7), image(7) * 2 + 128 * 128 * 4));
    assert!(is_about(ample(3, 2, 200), 32 << 20), "no more than usual, where all of it is too much");
}

/// A sum beside a product is one call where the library reads that operand as it sums it, and the product is
/// not scaled; else the product alone is one.
#[test]
fn sums_over_the_outer_axis_are_part_of_a_call() {
    let epilogue = |trans_a: bool, trans_b: bool, sum_b: bool, alpha: f32| {
        let op = OpKind::MatMulBiasGrad { trans_a, trans_b, alpha: F32(alpha), sum_b };
        let (a, b) = (if trans_a { [3, 4] } else { [4, 3] }, if trans_b { [5, 3] } else { [3, 5] });
        let operands = [f32s(&a), f32s(&b)];
        let apart = forms(&op, &operands).into_iter().find(|form| form.is_apart).unwrap();
        assert_eq!((apart.call.elements().1, apart.rest.launches.len()), (vec![20], 1));
        assert!(allowance(&op, &operands) > (12 + 15 + 20) * 4, "what the product alone may use");
        let LibraryCall::Product(product) = library(&op, &operands)? else { return None };
        assert_eq!(
            LibraryCall::Product(product).elements(),
            (vec![12, 15], vec![20, if sum_b { 5 } else { 4 }])
        );
        Some(product.epilogue)
    };
    for other in [false, true] {
        assert_eq!(epilogue(true, other, false, 1.0), Some(Epilogue::SumA));
        assert_eq!(epilogue(other, false, true, 1.0), Some(Epilogue::SumB));
        assert_eq!(epilogue(false, other, false, 1.0), None);
        assert_eq!(epilogue(other, true, true, 1.0), None);
    }
    assert_eq!(epilogue(true, false, false, 0.5), None);
}
