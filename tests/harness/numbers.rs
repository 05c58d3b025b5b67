//! Running modules on the CPU kernels with inputs that everyone can compute.

use memc_ir::{DType, Def, Feed, Id, Module, TensorType, value_name};
use memc_kernels::interp::{Tensor, eval};

/// Results of every op of `m` as lines; ops whose row rejects their operands have none, nor have those that use them.
pub(crate) fn run(m: &Module) -> Result<Vec<String>, String> {
    let mut now: Vec<Option<Tensor>> = vec![None; m.values.len()];
    for (v, value) in m.values.iter() {
        let range = |feed: &Feed| if let Feed::Data { range, .. } = feed { *range } else { None };
        now[v.index()] = match value.def {
            Def::Input(i) => Some(pattern(&value.ty, v.index(), range(&m.inputs[i].feed))?),
            Def::State(_) => Some(pattern(&value.ty, v.index(), None)?),
            Def::Const(c) => {
                let mut t = zeros(&value.ty)?;
                t.data.bytes_mut().copy_from_slice(&m.consts[c].data);
                Some(t)
            }
            Def::Op(..) => None,
        };
    }
    let mut out = Vec::new();
    for &id in &m.order {
        let op = &m.ops[id];
        let operands: Option<Vec<&Tensor>> = op.operands.iter().map(|v| now[v.index()].as_ref()).collect();
        let (Some(kind), Some(operands)) = (op.kind(), operands) else { continue };
        if kind.infer(&m.operand_types(id)).is_err() {
            continue;
        }
        match eval(kind, &operands) {
            Ok(results) => {
                for (&v, t) in op.results.iter().zip(results) {
                    out.push(format!("{} = {} {}", value_name(m, v), t.ty, elements(&t)?));
                    now[v.index()] = Some(t);
                }
            }
            Err(e) => out.push(format!("error: {e}")),
        }
    }
    Ok(out)
}

fn zeros(ty: &TensorType) -> Result<Tensor, String> {
    Tensor::zeros(ty.clone()).map_err(|e| e.to_string())
}

/// Element `i` of the value with index `salt`: quarters from -1.25 to 1.25 for floats, 0 to 4 (or `range`) for
/// integers, and every third `true`.
fn pattern(ty: &TensorType, salt: usize, range: Option<(i64, i64)>) -> Result<Tensor, String> {
    let mut t = zeros(ty)?;
    let (low, high) = range.unwrap_or((0, 5));
    let width = ty.dtype.bytes() as usize;
    for (i, out) in t.data.bytes_mut().chunks_mut(width).enumerate() {
        let n = (i * 7 + salt * 5) as i64;
        let int = low + n % (high - low).max(1);
        match ty.dtype {
            DType::F32 => out.copy_from_slice(&((n % 11 - 5) as f32 / 4.0).to_le_bytes()),
            DType::I32 => out.copy_from_slice(&(int as i32).to_le_bytes()),
            DType::I64 => out.copy_from_slice(&int.to_le_bytes()),
            DType::Bool => out.copy_from_slice(&[u8::from(n % 3 == 0)]),
        }
    }
    Ok(t)
}

/// The elements, floats rounded to five digits, since the last bits of sums may depend on the machine.
fn elements(t: &Tensor) -> Result<String, String> {
    let wrong = || "the tensor has elements of another width".to_string();
    let items: Vec<String> = match t.ty.dtype {
        DType::F32 => t.elements::<f32>().ok_or_else(wrong)?.iter().map(|&x| rounded(x)).collect(),
        DType::I32 => t.elements::<i32>().ok_or_else(wrong)?.iter().map(ToString::to_string).collect(),
        DType::I64 => t.elements::<i64>().ok_or_else(wrong)?.iter().map(ToString::to_string).collect(),
        DType::Bool => t.elements::<u8>().ok_or_else(wrong)?.iter().map(ToString::to_string).collect(),
    };
    Ok(format!("[{}]", items.join(", ")))
}

fn rounded(x: f32) -> String {
    let five: f32 = format!("{x:.4e}").parse().unwrap_or(x);
    format!("{five:?}")
}
