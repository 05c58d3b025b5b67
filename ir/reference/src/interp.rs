//! Running a whole graph-phase module.

use std::collections::BTreeMap;

use memc_ir::{Code, Def, Module, ValueId};

use crate::error::EvalError;
use crate::eval::eval;
use crate::tensor::Tensor64;

/// Tensors by value.
pub type Env = BTreeMap<ValueId, Tensor64>;

/// Every value of `module` for the given inputs and states; constants are taken from the module.
///
/// Fails when an input or state that an op reads is missing or has another type, when an op fails, and on a
/// module of the mem phase.
pub fn run(module: &Module, start: &Env) -> Result<Env, EvalError> {
    let mut now = Env::new();
    for (v, value) in module.values.iter() {
        match value.def {
            Def::HostShadow(_) | Def::Op(..) => {}
            Def::Const(c) => {
                now.insert(v, Tensor64::from_bytes(value.ty.clone(), &module.consts[c].data)?);
            }
            Def::Input(_) | Def::State(_) => match start.get(&v) {
                Some(t) if t.ty == value.ty => {
                    now.insert(v, t.clone());
                }
                Some(t) => return Err(format!("`{}` is {}, got {}", value.name, value.ty, t.ty).into()),
                None => {}
            },
        }
    }
    for &id in &module.order {
        let op = &module.ops[id];
        let Code::Compute(kind) = &op.code else {
            return Err("the module is not in the graph phase".into());
        };
        let content = |v| now.get(v).ok_or_else(|| format!("`{}` has no content", module.values[*v].name));
        let operands = op.operands.iter().map(content).collect::<Result<Vec<_>, _>>()?;
        let results = eval(kind, &operands)?;
        now.extend(op.results.iter().copied().zip(results));
    }
    Ok(now)
}
