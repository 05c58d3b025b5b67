//! Feeds, kernels and states of narrow element types.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use memc_ir::DType;
use memc_ir::attr::Scalar;
use memc_runtime::RunOptions;

use crate::{Folder, npy, steps};

/// `w <- w - lr * x` in 16 bits; `TYPE` is the type in which `x` is fed.
const PLAN: &str = "plan 1
arena dev 512 host 128
kernel k0 = cast(TYPE[4]) {to = bf16} -> (bf16[4])
kernel k1 = sgd(bf16[4], bf16[4], f32[]) -> (bf16[4]) workspace 192
state s0 w param bf16[4] dev+0:8 random 7 normal:0.0:1.0
input i0 x TYPE[4] host+0:BYTES data x micro 0 range 0..0
input i1 lr f32[] host+64:4 rate 0.5
events 2
prologue {
  host load s0
  compute record e1
}
body {
  h2d wait e1
  host wait e1
  host write i0
  host write i1
  h2d copy host+0:BYTES -> dev+64:BYTES
  h2d copy host+64:4 -> dev+128:4
  h2d record e0
  compute wait e0
  compute launch k0 r dev+64:BYTES w dev+192:8
  compute launch k1 r dev+0:8 r dev+192:8 r dev+128:4 w dev+0:8 ws dev+256:192
  compute record e1
}
epilogue {
  host wait e1
  host store s0
}
";

fn plan(ty: &str, bytes: u64) -> Folder {
    Folder::of(&PLAN.replace("TYPE", ty).replace("BYTES", &bytes.to_string()))
}

/// The bits of `w` in a saved state, and their numbers.
fn saved(file: &[u8]) -> (Vec<u8>, Vec<f32>) {
    let tensors = safetensors::SafeTensors::deserialize(file).unwrap();
    let view = tensors.tensor("w").unwrap();
    assert_eq!(view.dtype(), safetensors::Dtype::BF16);
    let number = |b: &[u8]| match Scalar::from_bytes(b, DType::BF16) {
        Some(Scalar::Float(x)) => x.0,
        other => panic!("{other:?} is no number"),
    };
    (view.data().to_vec(), view.data().chunks(2).map(number).collect())
}

fn bits(xs: &[f32], dtype: DType) -> Vec<u8> {
    xs.iter().flat_map(|&x| Scalar::Float(memc_ir::attr::F32(x)).to_bytes(dtype).unwrap()).collect()
}

/// Arrays of 16 bits feed inputs of 16 bits; a step rounds its results once; states keep their bits from run
/// to run.
#[test]
fn sixteen_bits_are_fed_run_saved_and_resumed() {
    let xs = [1.0, -2.0, 0.375, 0.0];
    for (ty, descr, dtype) in [("f16", "<f2", DType::F16), ("bf16", "<V2", DType::BF16)] {
        let folder = plan(ty, 8);
        let (_, first) = folder.run_and_save(&steps(0));
        let (_, first) = saved(&first);
        assert!(first.iter().any(|w| w.abs() > 0.01), "{first:?}");
        npy(&folder.path("x.npy"), descr, &[4], &bits(&xs, dtype));
        let inputs = vec![("x".to_owned(), folder.path("x.npy").into())];
        let options = RunOptions { inputs, ..steps(1) };
        let (got, _) = saved(&folder.run_and_save(&options).1);
        let want: Vec<f32> = first.iter().zip(&xs).map(|(w, x)| w - 0.5 * x).collect();
        assert_eq!(got, bits(&want, DType::BF16), "{ty}");

        std::fs::rename(folder.path("saved.safetensors"), folder.path("one")).unwrap();
        let resumed = RunOptions { resume: Some(folder.path("one")), ..options.clone() };
        let two = RunOptions { steps: Some(2), synthetic: true, ..options };
        let (resumed, _) = saved(&folder.run_and_save(&resumed).1);
        assert_eq!(resumed, saved(&folder.run_and_save(&two).1).0, "{ty}");
    }
}

/// An array of another type is refused with the conversion that makes it fit.
#[test]
fn arrays_of_other_types_are_refused() {
    for (ty, bytes, name) in
        [("f16", 8, "numpy.float16"), ("bf16", 8, "ml_dtypes.bfloat16"), ("u8", 4, "numpy.uint8")]
    {
        let folder = plan(ty, bytes);
        npy(&folder.path("x.npy"), "<f4", &[4], &[0; 16]);
        let inputs = vec![("x".to_owned(), folder.path("x.npy").into())];
        let error = folder.run(&RunOptions { inputs, ..steps(1) }).unwrap_err().to_string();
        assert!(error.contains(&format!("x.astype({name})")), "{error}");
    }
}

/// Bytes feed as they are, and without a file all of them may occur.
#[test]
fn bytes_are_fed() {
    let folder = plan("u8", 4);
    let (_, first) = folder.run_and_save(&steps(0));
    let (_, first) = saved(&first);
    npy(&folder.path("x.npy"), "|u1", &[4], &[0, 1, 128, 255]);
    let inputs = vec![("x".to_owned(), folder.path("x.npy").into())];
    let (got, _) = saved(&folder.run_and_save(&RunOptions { inputs, ..steps(1) }).1);
    let want: Vec<f32> = first.iter().zip([0.0, 1.0, 128.0, 255.0]).map(|(w, x)| w - 0.5 * x).collect();
    assert_eq!(got, bits(&want, DType::BF16));
    let (_, synthetic) = saved(&folder.run_and_save(&steps(1)).1);
    assert!(synthetic.iter().zip(&first).any(|(a, b)| (a - b).abs() > 2.0), "{synthetic:?}");
}
