//! Numbers of tensors in JSON, and the protocol's names of element types.

use std::fmt::Write as _;

use memc_ir::DType;
use memc_ir::attr::{F32, Scalar};
use serde_json::Value;

/// The protocol's name of an element type.
pub(super) fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "FP32",
        DType::F16 => "FP16",
        DType::BF16 => "BF16",
        DType::I32 => "INT32",
        DType::I64 => "INT64",
        DType::I8 => "INT8",
        DType::U8 => "UINT8",
        DType::Bool => "BOOL",
    }
}

/// Appends the numbers of an array, which may be nested in any way, in row-major order.
///
/// # Errors
/// A sentence about the first element that is none of the type.
pub(super) fn read(data: &Value, dtype: DType, out: &mut Vec<u8>) -> Result<(), String> {
    // The parser bounds the depth.
    match data {
        Value::Array(items) => items.iter().try_for_each(|item| read(item, dtype, out)),
        item => match scalar(item, dtype).and_then(|scalar| scalar.bits(dtype)) {
            Some(bits) => {
                out.extend(bits.to_le_bytes().iter().take(dtype.bytes() as usize));
                Ok(())
            }
            None => {
                let shown: String = item.to_string().chars().take(32).collect();
                Err(format!("{shown} is no {}", name(dtype)))
            }
        },
    }
}

fn scalar(item: &Value, dtype: DType) -> Option<Scalar> {
    Some(match item {
        Value::Bool(b) if dtype == DType::Bool => Scalar::Int((*b).into()),
        Value::Number(n) if dtype.is_float() => {
            let number = n.as_f64()? as f32;
            Scalar::Float(F32(Some(number).filter(|x| x.is_finite())?))
        }
        Value::Number(n) if dtype != DType::Bool => Scalar::Int(n.as_i64()?),
        _ => return None,
    })
}

/// Appends a flat JSON array of elements. The shortest number that reads back as the same element stands for
/// a float, and null for one that is not finite.
pub(super) fn write(bytes: &[u8], dtype: DType, out: &mut String) {
    out.push('[');
    for (i, element) in bytes.chunks(dtype.bytes() as usize).enumerate() {
        if i > 0 {
            out.push(',');
        }
        // Writing to a string does not fail.
        let _ = match Scalar::from_bytes(element, dtype) {
            Some(Scalar::Float(x)) if x.0.is_finite() => write!(out, "{:?}", x.0),
            Some(Scalar::Int(n)) if dtype == DType::Bool => write!(out, "{}", n == 1),
            Some(Scalar::Int(n)) => write!(out, "{n}"),
            _ => write!(out, "null"),
        };
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back() {
        let floats = [0.1f32, -1e-40, 3.4e38, 1.0, -0.0, 123_456.79];
        let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut text = String::new();
        write(&bytes, DType::F32, &mut text);
        let mut back = Vec::new();
        read(&serde_json::from_str(&text).unwrap(), DType::F32, &mut back).unwrap();
        assert_eq!(back, bytes, "{text}");
        let mut none = String::new();
        write(&f32::NAN.to_le_bytes(), DType::F32, &mut none);
        assert_eq!(none, "[null]");
    }

    #[test]
    fn other_numbers_are_refused() {
        let refused = |text: &str, dtype| {
            read(&serde_json::from_str(text).unwrap(), dtype, &mut Vec::new()).unwrap_err()
        };
        assert_eq!(refused("[1, [2.5]]", DType::I64), "2.5 is no INT64");
        assert_eq!(refused("[256]", DType::U8), "256 is no UINT8");
        assert_eq!(refused("[1]", DType::Bool), "1 is no BOOL");
        assert_eq!(refused("[1e39]", DType::F32), "1e+39 is no FP32");
        assert_eq!(refused("[null]", DType::F32), "null is no FP32");
        let mut out = Vec::new();
        read(&serde_json::from_str("[[true], [false]]").unwrap(), DType::Bool, &mut out).unwrap();
        assert_eq!(out, [1, 0]);
    }
}
