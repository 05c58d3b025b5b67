//! Cost of recomputing a tensor together with the evicted tensors next to it: DTR's approximation by
//! union-find.

use std::collections::BTreeSet;

use memc_ir::{Arena, ids};
use memc_planner::{Problem, TensorId, TensorKind};

use super::walk::{EvictionWalk, writer};

ids! {
    /// A component, or a former one that has joined another.
    ComponentIx,
}

/// Components of evicted tensors, adjacent where one is computed from another.
pub(super) struct Neighbourhood {
    /// Tensors that each is computed from, or that are computed from it.
    adjacent: Arena<TensorId, Vec<TensorId>>,
    /// The component of each tensor; a tensor that comes back leaves its old one behind.
    set: Arena<TensorId, Option<ComponentIx>>,
    parent: Arena<ComponentIx, ComponentIx>,
    cost: Arena<ComponentIx, u64>,
    /// By tensor: the cost that its eviction added to its component.
    own: Arena<TensorId, u64>,
}

impl Neighbourhood {
    /// Nothing is evicted.
    pub(super) fn new(p: &Problem) -> Neighbourhood {
        let mut adjacent: Arena<TensorId, BTreeSet<TensorId>> =
            Arena::filled(BTreeSet::new(), p.tensors.len());
        let transient = |t: &&TensorId| p.tensors[**t].kind == TensorKind::Transient;
        for op in p.ops.values() {
            for &w in op.writes.iter().filter(transient) {
                for &r in op.reads.iter().filter(transient).filter(|&&r| r != w) {
                    adjacent[w].insert(r);
                    adjacent[r].insert(w);
                }
            }
        }
        let n = p.tensors.len();
        Neighbourhood {
            adjacent: adjacent.into_values().map(|s| s.into_iter().collect()).collect(),
            set: Arena::filled(None, n),
            parent: Arena::default(),
            cost: Arena::default(),
            own: Arena::filled(0, n),
        }
    }

    /// Compute time of the op that gives a tensor the content that it has, in ns.
    pub(super) fn own(w: &EvictionWalk<'_>, t: TensorId) -> u64 {
        writer(w.p, t, w.seen[t]).map_or(0, |op| w.p.ops[op].time_ns)
    }

    fn root(&mut self, mut x: ComponentIx) -> ComponentIx {
        while self.parent[x] != x {
            let up = self.parent[self.parent[x]];
            self.parent[x] = up;
            x = up;
        }
        x
    }

    /// Own time plus that of the evicted components around, in ns.
    pub(super) fn cost(&mut self, w: &EvictionWalk<'_>, t: TensorId) -> u64 {
        let mut roots: Vec<ComponentIx> = Vec::new();
        for k in 0..self.adjacent[t].len() {
            let next = self.adjacent[t][k];
            if let Some(x) = self.set[next] {
                let root = self.root(x);
                if !roots.contains(&root) {
                    roots.push(root);
                }
            }
        }
        Self::own(w, t) + roots.iter().map(|&r| self.cost[r]).sum::<u64>()
    }

    /// A tensor was evicted: it joins the components around it.
    pub(super) fn left(&mut self, w: &EvictionWalk<'_>, t: TensorId) {
        self.own[t] = Self::own(w, t);
        let mine = self.parent.next_id();
        self.parent.push(mine);
        self.cost.push(self.own[t]);
        self.set[t] = Some(mine);
        for k in 0..self.adjacent[t].len() {
            let next = self.adjacent[t][k];
            let Some(x) = self.set[next] else { continue };
            let (other, mine) = (self.root(x), self.root(mine));
            if other != mine {
                self.parent[other] = mine;
                self.cost[mine] += self.cost[other];
            }
        }
    }

    /// A tensor came back: its time leaves the component, which stays whole.
    pub(super) fn came(&mut self, t: TensorId) {
        if let Some(x) = self.set[t].take() {
            let root = self.root(x);
            self.cost[root] = self.cost[root].saturating_sub(self.own[t]);
        }
    }
}
