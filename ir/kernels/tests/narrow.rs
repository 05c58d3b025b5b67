//! Element types that are computed on wider ones: conversions bit by bit, and ops against their wide forms.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use common::naive::one;
use common::{Sample, result_types, run, samples};
use memc_ir::{DType, OpKind, TensorType};
use memc_kernels::interp::Tensor;

fn cast(x: &Tensor, to: DType) -> Tensor {
    one(OpKind::Cast { to }, &[x])
}

fn floats(xs: &[f32]) -> Tensor {
    Tensor::f32(&[xs.len() as u64], xs).unwrap()
}

fn all_patterns(dtype: DType) -> Tensor {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    Tensor::from_slice(TensorType::new(dtype, [1 << 16]), &bits).unwrap()
}

/// The number of a 16-bit pattern by the definition of its format: sign, exponent, fraction.
fn number(dtype: DType, bits: u16) -> f64 {
    let (exponent_bits, bias) = if dtype == DType::F16 { (5, 15) } else { (8, 127) };
    let fraction_bits = 15 - exponent_bits;
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> fraction_bits & ((1 << exponent_bits) - 1));
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
    if exponent == (1 << exponent_bits) - 1 {
        return if fraction == 0.0 { sign * f64::INFINITY } else { f64::NAN };
    }
    let size = if exponent == 0 {
        fraction * 2f64.powi(1 - bias)
    } else {
        (1.0 + fraction) * 2f64.powi(exponent - bias)
    };
    sign * size
}

#[test]
fn every_16_bit_float_is_its_number_and_comes_back() {
    for dtype in [DType::F16, DType::BF16] {
        let x = all_patterns(dtype);
        let wide = cast(&x, DType::F32);
        let back = cast(&wide, dtype);
        for (bits, &got) in wide.elements::<f32>().unwrap().iter().enumerate() {
            let want = number(dtype, bits as u16);
            let again = back.elements::<u16>().unwrap()[bits];
            if want.is_nan() {
                assert!(got.is_nan() && number(dtype, again).is_nan(), "{dtype} {bits:04x}");
            } else {
                assert_eq!((f64::from(got), again), (want, bits as u16), "{dtype} {bits:04x}");
            }
        }
    }
}

#[test]
fn rounding_goes_to_the_nearest_and_ties_to_even() {
    for (dtype, largest) in [(DType::F16, 0x7bffu16), (DType::BF16, 0x7f7f)] {
        // Between each two neighbours, the middle and what is next to it.
        let mut xs = Vec::new();
        let mut want = Vec::new();
        for bits in 0..largest {
            let (low, high) = (number(dtype, bits) as f32, number(dtype, bits + 1) as f32);
            let middle = ((f64::from(low) + f64::from(high)) / 2.0) as f32;
            if middle == low || middle == high {
                continue;
            }
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            let next = |x: f32, up: bool| f32::from_bits(if up { x.to_bits() + 1 } else { x.to_bits() - 1 });
            for (x, to) in [(middle, even), (next(middle, false), bits), (next(middle, true), bits + 1)] {
                xs.extend([x, -x]);
                want.extend([to, to | 0x8000]);
            }
        }
        assert_eq!(cast(&floats(&xs), dtype).elements::<u16>().unwrap(), want, "{dtype}");
        // From the middle between the largest number and the next power of two on, all is infinite.
        let top = number(dtype, largest) + (number(dtype, largest) - number(dtype, largest - 1)) / 2.0;
        let over = top as f32;
        let under = f32::from_bits(over.to_bits() - 1);
        let infinite = largest + 1;
        let y = cast(&floats(&[over, under, f32::INFINITY, -f32::MAX]), dtype);
        assert_eq!(y.elements::<u16>().unwrap(), [infinite, largest, infinite, infinite | 0x8000], "{dtype}");
        let nan = cast(&floats(&[f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)]), dtype);
        assert!(nan.elements::<u16>().unwrap().iter().all(|&b| number(dtype, b).is_nan()), "{dtype}");
    }
}

#[test]
fn integers_round_once_on_their_way_to_16_bits() {
    // By way of f32 the first would first become a tie.
    let x = Tensor::i64(&[4], &[(257 << 24) + 1, 2049, 65520, -65520]).unwrap();
    let y = cast(&cast(&x, DType::BF16), DType::F32);
    assert_eq!(y.elements::<f32>().unwrap()[0], (258i64 << 24) as f32);
    let y = cast(&cast(&x, DType::F16), DType::F32);
    assert_eq!(y.elements::<f32>().unwrap()[1..], [2048.0, f32::INFINITY, f32::NEG_INFINITY]);
}

#[test]
fn casts_truncate_saturate_and_wrap() {
    let x = floats(&[-300.7, -1.5, -0.0, 0.5, 1.9, 127.9, 300.0, f32::NAN, f32::INFINITY]);
    let bytes = |t: &Tensor, to| cast(t, to).data.bytes().to_vec();
    assert_eq!(bytes(&x, DType::U8), [0, 0, 0, 0, 1, 127, 255, 0, 255]);
    assert_eq!(bytes(&x, DType::I8), [-128i8, -1, 0, 0, 1, 127, 127, 0, 127].map(|v| v as u8));
    assert_eq!(bytes(&x, DType::Bool), [1, 1, 0, 1, 1, 1, 1, 1, 1]);
    let half = cast(&x, DType::F16);
    assert_eq!(cast(&half, DType::I32).elements::<i32>().unwrap()[..6], [-300, -1, 0, 0, 1, 127]);
    let n = Tensor::i64(&[4], &[-1, 255, 256, i64::MIN]).unwrap();
    assert_eq!(bytes(&n, DType::U8), [255, 255, 0, 0]);
    assert_eq!(bytes(&n, DType::I8), [255, 255, 0, 0]);
    assert_eq!(cast(&cast(&n, DType::I8), DType::I64).elements::<i64>().unwrap(), [-1, -1, 0, 0]);
    assert_eq!(cast(&cast(&n, DType::U8), DType::I32).elements::<i32>().unwrap(), [255, 255, 0, 0]);
    // Chunks and blocks of every size.
    for n in [0usize, 1, 511, 513, 70_001] {
        let x = Tensor::i64(&[n as u64], &(0..n as i64).map(|v| v * 37 - 5000).collect::<Vec<_>>()).unwrap();
        let y = cast(&cast(&x, DType::F32), DType::I32);
        assert!(
            x.elements::<i64>()
                .unwrap()
                .iter()
                .zip(y.elements::<i32>().unwrap())
                .all(|(a, &b)| *a == b.into())
        );
        let y = cast(&x, DType::U8);
        assert!(x.elements::<i64>().unwrap().iter().zip(y.data.bytes()).all(|(a, b)| *a as u8 == *b));
    }
}

#[test]
fn eight_bit_arithmetic_wraps() {
    let pairs: Vec<(u8, u8)> =
        (0..=255).flat_map(|a| [0, 1, 2, 7, 100, 128, 200, 255].map(|b| (a, b))).collect();
    let side = |f: fn(&(u8, u8)) -> u8, dtype| {
        let bytes: Vec<u8> = pairs.iter().map(f).collect();
        Tensor::from_slice(TensorType::new(dtype, [bytes.len() as u64]), &bytes).unwrap()
    };
    let check = |op: OpKind, dtype: DType, want: &dyn Fn(u8, u8) -> u8| {
        let y = one(op.clone(), &[&side(|p| p.0, dtype), &side(|p| p.1, dtype)]);
        let want: Vec<u8> = pairs.iter().map(|&(a, b)| want(a, b)).collect();
        assert_eq!(y.data.bytes(), want, "{op:?} of {dtype}");
    };
    check(OpKind::Add {}, DType::U8, &u8::wrapping_add);
    check(OpKind::Sub {}, DType::U8, &u8::wrapping_sub);
    check(OpKind::Mul {}, DType::U8, &u8::wrapping_mul);
    check(OpKind::Div {}, DType::U8, &|a, b| a.checked_div(b).unwrap_or(0));
    check(OpKind::Max {}, DType::U8, &|a, b| a.max(b));
    check(OpKind::Less {}, DType::U8, &|a, b| u8::from(a < b));
    let signed = |f: fn(i8, i8) -> i8| move |a: u8, b: u8| f(a as i8, b as i8) as u8;
    check(OpKind::Add {}, DType::I8, &signed(i8::wrapping_add));
    check(OpKind::Mul {}, DType::I8, &signed(i8::wrapping_mul));
    check(OpKind::Min {}, DType::I8, &signed(i8::min));
    check(OpKind::Div {}, DType::I8, &signed(|a, b| if b == 0 { 0 } else { a.wrapping_div(b) }));
    check(OpKind::Less {}, DType::I8, &|a, b| u8::from((a as i8) < b as i8));
}

#[test]
fn an_op_on_16_bits_is_its_op_on_32_bits_rounded_once() {
    let mut ops = 0;
    for sample in [samples(1), samples(7), samples(1500)].into_iter().flatten() {
        if !sample.operands.iter().any(|t| matches!(t.ty.dtype, DType::F16 | DType::BF16)) {
            continue;
        }
        let widened = |t: &Tensor| if t.ty.dtype.is_float() { cast(t, DType::F32) } else { t.clone() };
        let wide = Sample { op: sample.op.clone(), operands: sample.operands.iter().map(widened).collect() };
        let wide = run(&wide, &[]).unwrap();
        let got = run(&sample, &[]).unwrap();
        for ((got, wide), ty) in got.iter().zip(&wide).zip(result_types(&sample)) {
            let want = cast(wide, ty.dtype);
            let types: Vec<_> = sample.operands.iter().map(|t| t.ty.to_string()).collect();
            let call = format!("{} {} {}", sample.op.mnemonic(), sample.op.attrs_text(), types.join(", "));
            // Their cut may change what is summed in which order.
            if sample.op.is_contraction() {
                let (got, want) = (cast(got, DType::F32), cast(&want, DType::F32));
                let pairs = got.elements::<f32>().unwrap().iter().zip(want.elements::<f32>().unwrap());
                assert!(pairs.into_iter().all(|(g, w)| (g - w).abs() <= 8e-3 * (1.0 + w.abs())), "{call}");
            } else {
                assert!(*got == want, "{call}");
            }
        }
        ops += 1;
    }
    assert!(ops > 300, "{ops}");
}

#[test]
fn the_workspace_of_a_row_wise_op_does_not_grow_with_its_rows() {
    let of = |op: &OpKind, rows: u64| {
        let x = TensorType::new(DType::BF16, [rows, 1000]);
        let operands = vec![&x; op.def().operands.len()];
        op.cost(&operands, &op.infer(&operands).unwrap().iter().collect::<Vec<_>>()).workspace
    };
    for op in [OpKind::Add {}, OpKind::Gelu { tanh: false }, OpKind::Softmax { axis: 1 }] {
        assert_eq!(of(&op, 1000), of(&op, 1_000_000), "{op:?}");
        assert!(of(&op, 1_000_000) < 1 << 20, "{op:?}");
    }
    assert_eq!(of(&OpKind::Copy {}, 1000), 0);
}

#[test]
fn a_learning_rate_may_have_more_axes_than_its_parameter() {
    let w = cast(&Tensor::f32(&[], &[1.0]).unwrap(), DType::F16);
    let lr = Tensor::f32(&[1], &[0.5]).unwrap();
    let y = one(OpKind::Sgd {}, &[&w, &w, &lr]);
    assert_eq!(cast(&y, DType::F32).elements::<f32>().unwrap(), [0.5]);
}
