//! Products of matrices with the sum of one of them, as a linear layer's gradients are.

use memc_ir::{OpKind, TensorType};

use super::Groups;
use crate::graph::fuse::item::Group;

impl Groups<'_> {
    /// Joins products with the sum of an operand over the axis that they sum over, where a library does both.
    pub(in super::super) fn join_sums(&mut self) {
        for i in 0..self.of.len() {
            let joined = [false, true].into_iter().find_map(|sum_b| {
                let operand = *self.group(i)?.operands.get(usize::from(sum_b))?;
                self.lives.readers(operand).iter().find_map(|&u| self.with_sum(i, u, sum_b))
            });
            if let Some(joined) = joined {
                self.put(joined);
            }
        }
    }

    /// The product at position `i` with the sum at position `u`, which is of the rows of an operand, however
    /// many axes these are there: the order of the sum is the same.
    fn with_sum(&self, i: usize, u: usize, sum_b: bool) -> Option<Group> {
        let (a, b) = (self.group(i)?, self.group(u)?);
        let (&OpKind::MatMul { trans_a, trans_b, alpha }, OpKind::ReduceSum { axes, keepdims: false }) =
            (&a.kind, &b.kind)
        else {
            return None;
        };
        let kind = OpKind::MatMulBiasGrad { trans_a, trans_b, alpha, sum_b };
        let types: Vec<TensorType> = a.operands.iter().map(|&v| self.m.values[v].ty.clone()).collect();
        let from: Vec<&TensorType> = types.iter().collect();
        let (ty, whole) = (from.get(usize::from(sum_b))?, &self.m.values[*b.operands.first()?].ty);
        let is_of_rows = axes.iter().copied().eq(0..whole.rank().saturating_sub(1) as u64);
        if !is_of_rows || whole.shape.last() != ty.shape.last() || whole.numel() != ty.numel() {
            return None;
        }
        // Only where the rows are outermost.
        memc_cuda::library(&kind, &types)?;
        let results = [a.results.as_slice(), &b.results].concat();
        let made = kind.infer(&from).ok()?;
        if !made.iter().eq(results.iter().map(|&v| &self.m.values[v].ty)) {
            return None;
        }
        let ns = self.profile.op_ns(&kind, &from, &made.iter().collect::<Vec<_>>());
        let mut members = vec![i, u];
        members.sort_unstable();
        let joined = Group { members, at: i, kind, operands: a.operands.clone(), results, ns };
        self.placed(joined, [a, b])
    }
}
