//! Cutting the graph into regions, and putting rewritten ones back.

use std::collections::BTreeMap;

use egg::Id as ClassId;
use memc_ir::{Code, Def, Id, Module, OpId, OpKind, ValueId};

use super::lang::{Facts, Graph, Leaves, Node, SHARED_LEAF, op_cost, repeated};
use crate::graph::facts::splat;

/// Most ops of one region; the rest of a larger tree becomes a region of its own.
const MAX_OPS: usize = 256;
/// Most shared movement ops in a row that a region sees through.
const SEE_THROUGH: usize = 4;

/// Cut of the module, and places of its ops.
pub(super) struct Regions {
    roots: Vec<OpId>,
    /// By value: computed inside the region of its only user.
    interior: Vec<bool>,
    /// By op: place in the order, shared by ops that were put there together, and the sequence among those.
    place: Vec<(usize, usize)>,
    /// By value: its replacement.
    now: Vec<ValueId>,
    added: Vec<OpId>,
    placed: usize,
}

/// Whether rules look through the op so often that a region should, even when its result has other users.
fn is_transparent(kind: &OpKind) -> bool {
    use OpKind::*;
    matches!(kind, Reshape { .. } | Transpose { .. } | Broadcast { .. } | Fill { .. } | Not {} | Cast { .. })
}

/// The op that computes `v` as its only result.
fn sole_op(m: &Module, v: ValueId) -> Option<(OpId, &OpKind)> {
    let id = m.def_op(v)?;
    match (&m.ops[id].code, m.ops[id].results.len()) {
        (Code::Compute(kind), 1) => Some((id, kind)),
        _ => None,
    }
}

impl Regions {
    /// Cuts a module without dead ops.
    pub(super) fn new(m: &Module) -> Self {
        let mut uses = vec![0u32; m.values.len()];
        let mut count = |v: ValueId, n: u32| uses[v.index()] = uses[v.index()].saturating_add(n);
        for &id in &m.order {
            let op = &m.ops[id];
            for &v in &op.operands {
                count(v, if op.results.len() == 1 { 1 } else { 2 });
            }
        }
        m.roots().for_each(|v| count(v, 2));
        let mut place = vec![(0, 0); m.ops.len()];
        for (i, id) in m.order.iter().enumerate() {
            place[id.index()] = (i, 0);
        }
        let mut interior = vec![false; m.values.len()];
        let mut roots = Vec::new();
        // From the end, so that a region too large is cut before its cut-off parts are reached.
        for &id in m.order.iter().rev() {
            let [result] = m.ops[id].results.as_slice() else { continue };
            if interior[result.index()] {
                continue;
            }
            roots.push(id);
            let mut ops = 1;
            let mut open = vec![id];
            while let Some(id) = open.pop() {
                for &v in &m.ops[id].operands {
                    if uses[v.index()] == 1
                        && ops < MAX_OPS
                        && let Some((def, _)) = sole_op(m, v)
                    {
                        interior[v.index()] = true;
                        ops += 1;
                        open.push(def);
                    }
                }
            }
        }
        roots.reverse();
        let now = m.values.ids().collect();
        Self { roots, interior, place, now, added: Vec::new(), placed: 0 }
    }

    /// The root ops in order.
    pub(super) fn roots(&self) -> Vec<OpId> {
        self.roots.clone()
    }

    fn resolve(&self, v: ValueId) -> ValueId {
        // Values that rewriting added are not replaced again.
        self.now.get(v.index()).copied().unwrap_or(v)
    }

    /// Makes the ops of a region compute the chosen terms.
    ///
    /// An op whose class is still needed keeps its id, its result's name and its place, or the place of its
    /// latest operand if that is later; new ops stand before their first user.
    pub(super) fn replace(
        &mut self,
        m: &mut Module,
        graph: &Graph,
        region: (ClassId, &[(ClassId, OpId)]),
        best: &dyn Fn(ClassId) -> Node,
    ) {
        let (class, ops) = region;
        let Some(&(_, root)) = ops.first() else { return };
        let mut reuse: BTreeMap<ClassId, OpId> = BTreeMap::new();
        for &(class, op) in ops {
            reuse.entry(graph.find(class)).or_insert(op);
        }
        let old = m.ops[root].results[0];
        let at = self.place[root.index()].0;
        let mut put = Put { regions: self, m, graph, reuse, best, done: BTreeMap::new(), root };
        let new = put.class(class, at);
        self.now[old.index()] = new;
    }

    /// Writes the new order and uses.
    pub(super) fn finish(self, m: &mut Module) {
        m.order.extend(&self.added);
        m.order.sort_by_key(|id| self.place[id.index()]);
        m.map_uses(|v| self.resolve(v));
    }
}

/// Puts the terms of one region into the module.
struct Put<'a> {
    regions: &'a mut Regions,
    m: &'a mut Module,
    graph: &'a Graph,
    reuse: BTreeMap<ClassId, OpId>,
    best: &'a dyn Fn(ClassId) -> Node,
    done: BTreeMap<ClassId, ValueId>,
    root: OpId,
}

impl Put<'_> {
    /// The value of a class that an op at place `at` uses.
    fn class(&mut self, class: ClassId, at: usize) -> ValueId {
        let class = self.graph.find(class);
        if let Some(&v) = self.done.get(&class) {
            return v;
        }
        let v = match (self.best)(class) {
            Node::Leaf(v) => v,
            Node::Op(kind, children) => {
                let reused = self.reuse.get(&class).copied();
                let own = reused.map_or(at, |op| self.regions.place[op.index()].0);
                let operands: Vec<ValueId> = children.iter().map(|&c| self.class(c, own)).collect();
                self.op(reused, own, kind, operands)
            }
        };
        self.done.insert(class, v);
        v
    }

    fn op(&mut self, reused: Option<OpId>, own: usize, kind: OpKind, operands: Vec<ValueId>) -> ValueId {
        let defs = operands.iter().filter_map(|&v| self.m.def_op(v));
        let after = defs.map(|d| self.regions.place[d.index()].0).max().unwrap_or(0);
        let id = match reused {
            Some(id) => {
                self.m.ops[id].code = Code::Compute(kind);
                self.m.ops[id].operands = operands;
                id
            }
            None => {
                let root = &self.m.ops[self.root];
                let (name, origin) = (self.m.values[root.results[0]].name.clone(), root.origin.clone());
                let id = self.m.new_op(kind, &operands, &[&name], &origin);
                let id = id.expect("invariant: types were inferred in the e-graph");
                self.regions.place.push((0, 0));
                self.regions.added.push(id);
                id
            }
        };
        self.regions.placed += 1;
        self.regions.place[id.index()] = (own.max(after), self.regions.placed);
        self.m.ops[id].results[0]
    }
}

/// One region as an e-graph.
pub(super) struct Region {
    /// The graph.
    pub(super) graph: Graph,
    /// Class of the root.
    pub(super) root: ClassId,
    /// The region's ops and their classes, the root first.
    pub(super) ops: Vec<(ClassId, OpId)>,
    /// Cost of the region as given.
    pub(super) cost: u64,
}

impl Region {
    /// The region of `root`.
    pub(super) fn build(m: &Module, regions: &Regions, root: OpId) -> Region {
        let graph = Graph::new(Leaves::default());
        let mut build = Build { m, regions, graph, ops: Vec::new() };
        let (class, cost) = build.op(root);
        build.ops.reverse();
        Region { graph: build.graph, root: class, ops: build.ops, cost }
    }
}

struct Build<'a> {
    m: &'a Module,
    regions: &'a Regions,
    graph: Graph,
    ops: Vec<(ClassId, OpId)>,
}

impl Build<'_> {
    /// Adds an op of the region with all its operands; returns its class and the cost of these.
    fn op(&mut self, id: OpId) -> (ClassId, u64) {
        let op = &self.m.ops[id];
        let mut children = Vec::with_capacity(op.operands.len());
        let mut cost = 0u64;
        for &v in &op.operands {
            let (class, price) = match sole_op(self.m, v) {
                Some((def, _)) if self.regions.interior[v.index()] => self.op(def),
                _ => self.leaf(self.regions.resolve(v), 0),
            };
            children.push(class);
            cost = cost.saturating_add(price);
        }
        let kind = op.kind().expect("invariant: a region holds compute ops only");
        let types = self.m.operand_types(id);
        let own = op_cost(kind, &types, repeated(&children, &types), self.m.result_types(id)[0]);
        let class = self.graph.add(Node::Op(kind.clone(), children));
        self.ops.push((class, id));
        (class, cost.saturating_add(own))
    }

    fn leaf(&mut self, v: ValueId, depth: usize) -> (ClassId, u64) {
        let value = &self.m.values[v];
        let facts = Facts {
            ty: value.ty.clone(),
            scalar: splat(self.m, v),
            state: matches!(value.def, Def::State(s) if self.m.states[s].next.is_some()),
        };
        self.graph.analysis.facts.insert(v, facts);
        let class = self.graph.add(Node::Leaf(v));
        let Some((def, kind)) = sole_op(self.m, v).filter(|(_, k)| is_transparent(k)) else {
            return (class, 0);
        };
        if depth < SEE_THROUGH {
            let operands = self.m.ops[def].operands.clone();
            let children =
                operands.iter().map(|&x| self.leaf(self.regions.resolve(x), depth + 1).0).collect();
            let seen = self.graph.add(Node::Op(kind.clone(), children));
            self.graph.union(class, seen);
        }
        self.graph.analysis.shared.insert(v);
        (class, SHARED_LEAF)
    }
}
