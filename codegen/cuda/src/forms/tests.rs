//! Which convolutions are products, and what stands where.

use super::*;

fn f32s(shape: &[u64]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// Forms of one of the three passes of a convolution of `[3, 4, 8, 6]` by `[8, 4, side, side]`.
fn of(pass: &str, side: u64, stride: u64) -> Vec<Form> {
    let lists = || (vec![stride; 2], vec![0; 4], vec![1; 2]);
    let (x, w) = (f32s(&[3, 4, 8, 6]), f32s(&[8, 4, side, side]));
    let (strides, pads, dilations) = lists();
    let conv = OpKind::Conv { strides, pads, dilations, groups: 1 };
    let dy = conv.infer(&[&x, &w]).unwrap().remove(0);
    let (strides, pads, dilations) = lists();
    match pass {
        "result" => forms(&conv, &[x, w]),
        "input" => {
            let size = vec![8, 6];
            forms(&OpKind::ConvGradInput { strides, pads, dilations, groups: 1, size }, &[dy, w])
        }
        _ => {
            let kernel = vec![side; 2];
            forms(&OpKind::ConvGradWeight { strides, pads, dilations, groups: 1, kernel }, &[dy, x])
        }
    }
}

/// Convolutions by one element are products too, gradients as such first; of larger windows none is.
#[test]
fn windows_of_one_element_are_products() {
    let apart = |pass: &str, side: u64, stride: u64| -> Vec<bool> {
        of(pass, side, stride).iter().map(|form| form.is_apart).collect()
    };
    assert_eq!(apart("result", 1, 1), [false, true]);
    assert_eq!(apart("input", 1, 1), [true, false]);
    assert_eq!(apart("weight", 1, 1), [true, false]);
    assert_eq!(apart("result", 1, 2), [false], "it would be of a part of the rows");
    assert_eq!(apart("input", 1, 2), [true, false]);
    assert_eq!(apart("weight", 1, 2), [false]);
    for pass in ["result", "input", "weight"] {
        assert_eq!(apart(pass, 3, 1), [false]);
    }
}

/// Parts of a result are at the start of the workspace, and the kernel that adds them up has bytes behind it.
#[test]
fn parts_are_in_the_workspace() {
    let weight = of("weight", 1, 1).remove(0);
    assert_eq!(weight.places, [Arg::Operand(0), Arg::Operand(1), Arg::Workspace(0)]);
    assert_eq!((weight.kept, weight.call.elements().1), (3 * 8 * 4 * 4, vec![3 * 8 * 4]));
    assert!(weight.least_workspace() >= weight.kept && !weight.rest.launches.is_empty());
    let input = of("input", 1, 2).remove(0);
    assert_eq!((input.kept, input.call.elements().1), (3 * 4 * 4 * 3 * 4, vec![3 * 4 * 4 * 3]));
    let dense = of("input", 1, 1).remove(0);
    assert_eq!((dense.kept, dense.least_workspace(), dense.rest.launches.len()), (0, 0, 0));
    assert_eq!(dense.places, [Arg::Operand(1), Arg::Operand(0), Arg::Result(0)]);
}
