//! Optimizer updates.

use super::elementwise::{want_float, want_int};
use super::{Cost, streaming};
use crate::types::TensorType;

type Types = Result<Vec<TensorType>, String>;

fn same(ops: &[&TensorType], names: &[&str]) -> Result<(), String> {
    want_float(ops[0], "w")?;
    for (ty, name) in ops[1..].iter().zip(names) {
        if *ty != ops[0] {
            return Err(format!("{name} = {ty} and w = {} differ", ops[0]));
        }
    }
    Ok(())
}

fn single(ty: &TensorType, name: &str) -> Result<(), String> {
    if ty.numel() == 1 { Ok(()) } else { Err(format!("{name} must have one element, got {ty}")) }
}

pub(super) fn sgd(ops: &[&TensorType]) -> Types {
    same(&ops[..2], &["g"])?;
    want_float(ops[2], "lr")?;
    single(ops[2], "lr")?;
    Ok(vec![ops[0].clone()])
}
pub(super) fn cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    streaming(ops, res, 2)
}

pub(super) fn adamw(
    ops: &[&TensorType],
    _alpha: f32,
    _beta: f32,
    _epsilon: f32,
    _weight_decay: f32,
    _bias_correction: bool,
    _decay_first: bool,
) -> Types {
    same(&ops[..4], &["g", "m", "v"])?;
    want_float(ops[4], "lr")?;
    single(ops[4], "lr")?;
    want_int(ops[5], "step")?;
    single(ops[5], "step")?;
    Ok(vec![ops[0].clone(); 3])
}
