//! Every op against onnxruntime, on the operands and results recorded in `fixtures/` by `make_ort.py`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::path::PathBuf;

use memc_ir::attr::AttrValue;
use memc_ir::{DType, OpKind, TensorType};
use memc_kernels::interp::{Tensor, eval};
use serde_json::Value;

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn tensor(entry: &Value, blob: &[u8]) -> Tensor {
    let dtype = DType::from_name(entry[0].as_str().unwrap()).unwrap();
    let shape: Vec<u64> = entry[1].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
    let mut tensor = Tensor::zeros(TensorType::new(dtype, shape)).unwrap();
    let offset = entry[2].as_u64().unwrap() as usize;
    let bytes = tensor.data.bytes_mut();
    let n = bytes.len();
    bytes.copy_from_slice(&blob[offset..offset + n]);
    tensor
}

fn attribute(value: &Value) -> AttrValue {
    match value {
        Value::Bool(true) => AttrValue::Flag,
        Value::String(word) => AttrValue::Word(word.clone()),
        Value::Number(n) => {
            n.as_i64().map_or_else(|| AttrValue::Float(n.as_f64().unwrap() as f32), AttrValue::Int)
        }
        Value::Array(items) => AttrValue::Ints(items.iter().map(|v| v.as_i64().unwrap()).collect()),
        other => panic!("no attribute is written {other}"),
    }
}

/// The first element that differs by more than `atol + rtol * |want|`, described.
fn difference(got: &Tensor, want: &Tensor, rtol: f64, atol: f64) -> Option<String> {
    if got.ty.dtype != want.ty.dtype || got.ty.numel() != want.ty.numel() {
        return Some(format!("is {}, not {}", got.ty, want.ty));
    }
    if want.ty.dtype != DType::F32 {
        let same = got.data.bytes() == want.data.bytes();
        return (!same).then(|| format!("is {:?}, not {:?}", got.data.bytes(), want.data.bytes()));
    }
    let pairs = got.elements::<f32>().unwrap().iter().zip(want.elements::<f32>().unwrap());
    for (i, (&g, &w)) in pairs.enumerate() {
        let (g, w) = (f64::from(g), f64::from(w));
        let close = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= atol + rtol * w.abs();
        if !close {
            return Some(format!("is {g:e}, not {w:e}, at element {i}"));
        }
    }
    None
}

#[test]
fn every_op_agrees_with_onnxruntime() {
    let blob = fixture("ort.bin");
    let cases: Value = serde_json::from_slice(&fixture("ort.json")).unwrap();
    let mut failures = Vec::new();
    let mut checked = 0;
    for case in cases.as_array().unwrap() {
        let array = |name: &Value| tensor(&case["arrays"][name.as_str().unwrap()], &blob);
        for op in case["ops"].as_array().unwrap() {
            let attrs = op[1].as_object().unwrap();
            let attrs: Vec<_> = attrs.iter().map(|(k, v)| (k.clone(), attribute(v))).collect();
            let kind = OpKind::from_parts(op[0].as_str().unwrap(), &attrs).unwrap();
            let operands: Vec<Tensor> = op[2].as_array().unwrap().iter().map(array).collect();
            let (rtol, atol) = (op[4].as_f64().unwrap(), op[5].as_f64().unwrap());
            let results = match eval(&kind, &operands.iter().collect::<Vec<_>>()) {
                Ok(results) => results,
                Err(e) => {
                    failures.push(format!("{} {kind:?}: {e}", case["name"]));
                    continue;
                }
            };
            for (got, name) in results.iter().zip(op[3].as_array().unwrap()) {
                if name.is_null() {
                    continue;
                }
                checked += 1;
                if let Some(why) = difference(got, &array(name), rtol, atol) {
                    failures.push(format!("{} {}: {name} {why}", case["name"], kind.mnemonic()));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {checked} results differ:\n{}", failures.len(), failures.join("\n"));
    assert!(checked > 200, "only {checked} results were compared");
}
