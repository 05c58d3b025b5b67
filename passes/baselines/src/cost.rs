//! Cost of recomputing a tensor together with the evicted tensors next to it: DTR's approximation by
//! union-find.

use std::collections::BTreeSet;

use memc_planner::{Kind, Problem};

use super::walk::{EvictionWalk, writer};

/// Components of evicted tensors, adjacent where one is computed from another.
pub(super) struct Neighbourhood {
    /// Tensors that each is computed from, or that are computed from it.
    adjacent: Vec<Vec<u32>>,
    /// The component of each tensor; a tensor that comes back leaves its old one behind.
    set: Vec<Option<u32>>,
    parent: Vec<u32>,
    cost: Vec<u64>,
    /// By tensor: the cost that its eviction added to its component.
    own: Vec<u64>,
}

impl Neighbourhood {
    /// Nothing is evicted.
    pub(super) fn new(p: &Problem) -> Neighbourhood {
        let mut adjacent: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); p.tensors.len()];
        let transient = |t: &&u32| p.tensors[**t as usize].kind == Kind::Transient;
        for op in &p.ops {
            for &w in op.writes.iter().filter(transient) {
                for &r in op.reads.iter().filter(transient).filter(|&&r| r != w) {
                    adjacent[w as usize].insert(r);
                    adjacent[r as usize].insert(w);
                }
            }
        }
        let n = p.tensors.len();
        Neighbourhood {
            adjacent: adjacent.into_iter().map(|s| s.into_iter().collect()).collect(),
            set: vec![None; n],
            parent: Vec::new(),
            cost: Vec::new(),
            own: vec![0; n],
        }
    }

    /// Compute time of the op that gives a tensor the content that it has, in ns.
    pub(super) fn own(w: &EvictionWalk<'_>, t: u32) -> u64 {
        writer(w.p, t, w.seen[t as usize]).map_or(0, |op| w.p.ops[op as usize].time_ns)
    }

    fn root(&mut self, mut x: u32) -> u32 {
        while self.parent[x as usize] != x {
            let up = self.parent[self.parent[x as usize] as usize];
            self.parent[x as usize] = up;
            x = up;
        }
        x
    }

    /// Own time plus that of the evicted components around, in ns.
    pub(super) fn cost(&mut self, w: &EvictionWalk<'_>, t: u32) -> u64 {
        let mut roots: Vec<u32> = Vec::new();
        for k in 0..self.adjacent[t as usize].len() {
            let next = self.adjacent[t as usize][k];
            if let Some(x) = self.set[next as usize] {
                let root = self.root(x);
                if !roots.contains(&root) {
                    roots.push(root);
                }
            }
        }
        Self::own(w, t) + roots.iter().map(|&r| self.cost[r as usize]).sum::<u64>()
    }

    /// A tensor was evicted: it joins the components around it.
    pub(super) fn left(&mut self, w: &EvictionWalk<'_>, t: u32) {
        let i = t as usize;
        self.own[i] = Self::own(w, t);
        let mine = self.parent.len() as u32;
        self.parent.push(mine);
        self.cost.push(self.own[i]);
        self.set[i] = Some(mine);
        for k in 0..self.adjacent[i].len() {
            let next = self.adjacent[i][k];
            let Some(x) = self.set[next as usize] else { continue };
            let (other, mine) = (self.root(x), self.root(mine));
            if other != mine {
                self.parent[other as usize] = mine;
                self.cost[mine as usize] += self.cost[other as usize];
            }
        }
    }

    /// A tensor came back: its time leaves the component, which stays whole.
    pub(super) fn came(&mut self, t: u32) {
        if let Some(x) = self.set[t as usize].take() {
            let root = self.root(x) as usize;
            self.cost[root] = self.cost[root].saturating_sub(self.own[t as usize]);
        }
    }
}
