//! Normalisations of rows with the element-wise groups around them.

use memc_ir::ops::fused_norm::is_norm;

use super::Groups;

impl Groups<'_> {
    /// Whether the op at position `i` is one that element-wise ops before and behind it may be joined with.
    pub(in super::super) fn is_norm(&self, i: usize) -> bool {
        self.m.ops[self.m.order[i]].kind().is_some_and(is_norm)
    }

    /// Joins the normalisation at position `i` with the group that makes its operand, and with those that
    /// read its first result.
    pub(in super::super) fn surround(&mut self, i: usize) {
        let op = &self.m.ops[self.m.order[i]];
        let (Some(&x), Some(&y)) = (op.operands.first(), op.results.first()) else { return };
        let around: Vec<usize> =
            self.definer(x).into_iter().chain(self.lives.users(y).iter().copied()).collect();
        for p in around {
            let (mine, other) = (self.of[i], self.of[p]);
            if mine == other || self.shape(p) != Some(&self.m.values[y].ty.shape) {
                continue;
            }
            // From an operand that others read too, as the backward pass does, the result can be recomputed
            // alone.
            if let Some(joined) = self.joined(mine, other).filter(|joined| !joined.results.contains(&x)) {
                self.put(joined);
            }
        }
    }

    /// The members in the order of a body's steps. Without a normalisation among them, that is the order of
    /// the module. Otherwise the ops that it needs come first, with their readers that come before it, and
    /// all others behind it.
    pub(super) fn steps(&self, members: &[usize]) -> Vec<usize> {
        let Some(norm) = members.iter().position(|&i| self.is_norm(i)) else { return members.to_vec() };
        let reads = |k: usize| {
            let operands = self.m.ops[self.m.order[members[k]]].operands.iter();
            operands.filter_map(|&v| self.definer(v)).filter_map(|p| members.binary_search(&p).ok())
        };
        let (mut early, mut late) = (vec![false; members.len()], vec![false; members.len()]);
        late[norm] = true;
        reads(norm).for_each(|k| early[k] = true);
        for k in (0..norm).rev() {
            if early[k] {
                reads(k).for_each(|k| early[k] = true);
            }
        }
        for k in 0..members.len() {
            late[k] |= reads(k).any(|p| late[p]);
            early[k] |= !late[k] && reads(k).any(|p| early[p]);
        }
        let part = |is: &dyn Fn(usize) -> bool| -> Vec<usize> {
            (0..members.len()).filter(|&k| k != norm && is(k)).map(|k| members[k]).collect()
        };
        [part(&|k| early[k]), vec![members[norm]], part(&|k| !early[k])].concat()
    }
}
