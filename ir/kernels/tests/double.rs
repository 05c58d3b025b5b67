//! Every op of the table against its definition in double precision.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use common::{run, samples};
use memc_ir::DType;
use memc_ir::ops::OP_DEFS;
use memc_kernels::interp::Tensor;
use memc_reference::{Data, Tensor64, eval};

/// Largest error of a floating-point element, relative to the largest element of its tensor or 1: for 16
/// bits, half a unit in the last place.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 4.9e-4,
        DType::BF16 => 4e-3,
        _ => 4e-6,
    }
}

fn double(t: &Tensor) -> Tensor64 {
    Tensor64::from_bytes(t.ty.clone(), t.data.bytes()).unwrap()
}

/// The largest error of `got`, or the reason why it cannot be compared.
fn error(got: &Tensor64, want: &Tensor64) -> Result<f64, String> {
    if got.ty != want.ty {
        return Err(format!("{} instead of {}", got.ty, want.ty));
    }
    let (Data::Float(got), Data::Float(want)) = (&got.data, &want.data) else {
        return if got == want { Ok(0.0) } else { Err(format!("{:?} instead of {:?}", got.data, want.data)) };
    };
    let size = want.iter().filter(|w| w.is_finite()).fold(1.0f64, |m, w| m.max(w.abs()));
    let mut worst = 0.0f64;
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        if g.is_nan() != w.is_nan() || (w.is_infinite() && g != w) {
            return Err(format!("element {i} is {g} instead of {w}"));
        }
        if w.is_finite() {
            worst = worst.max((g - w).abs() / size);
        }
    }
    Ok(worst)
}

#[test]
fn every_kernel_computes_what_the_definition_says() {
    let mut seen = Vec::new();
    for scale in [1, 3] {
        for sample in samples(scale) {
            let operands: Vec<Tensor64> = sample.operands.iter().map(double).collect();
            let want = eval(&sample.op, &operands.iter().collect::<Vec<_>>()).unwrap();
            for (got, want) in run(&sample, &[]).unwrap().iter().zip(&want) {
                let types: Vec<String> = sample.operands.iter().map(|t| t.ty.to_string()).collect();
                let call =
                    format!("{} {} {}", sample.op.mnemonic(), sample.op.attrs_text(), types.join(", "));
                match error(&double(got), want) {
                    Ok(e) => assert!(e < tolerance(want.ty.dtype), "{call}: error {e:.1e}"),
                    Err(why) => panic!("{call}: {why}"),
                }
            }
            seen.push(sample.op.mnemonic());
        }
    }
    let missing: Vec<&str> = OP_DEFS.iter().map(|d| d.mnemonic).filter(|m| !seen.contains(m)).collect();
    assert!(missing.is_empty(), "no sample of {missing:?}");
}
