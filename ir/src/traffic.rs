//! Kernels and copies of a mem-phase step.

use crate::entity::OpId;
use crate::module::{Code, Def, Module};
use crate::ops::OpKind;

/// Counts over the order of a mem-phase module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Kernels.
    pub ops: u64,
    /// Kernels that recompute an earlier result; copies do not count.
    pub recompute_ops: u64,
    /// Bytes copied to the host, except outputs.
    pub swap_out_bytes: u64,
    /// Bytes copied to the device, except inputs.
    pub swap_in_bytes: u64,
}

impl Module {
    /// Whether the op recomputes an earlier op's result.
    pub fn is_recompute(&self, op: OpId) -> bool {
        let op = &self.ops[op];
        op.clone_of.is_some() && op.kind().is_some_and(|k| *k != OpKind::Copy {})
    }

    /// Counts kernels and swapped bytes.
    pub fn traffic(&self) -> Traffic {
        let mut t = Traffic::default();
        let outputs: std::collections::BTreeSet<_> = self.outputs.iter().map(|o| o.value).collect();
        for &id in &self.order {
            let op = &self.ops[id];
            let bytes: u64 = op.results.iter().map(|&v| self.values[v].ty.bytes()).sum();
            match op.code {
                Code::SwapOut if !op.results.iter().any(|r| outputs.contains(r)) => t.swap_out_bytes += bytes,
                Code::SwapIn if !op.operands.iter().any(|&v| matches!(self.values[v].def, Def::Input(_))) => {
                    t.swap_in_bytes += bytes;
                }
                Code::Compute(_) if !op.is_view() => {
                    t.ops += 1;
                    t.recompute_ops += u64::from(self.is_recompute(id));
                }
                _ => {}
            }
        }
        t
    }
}
