//! Single-result ops as an `egg` language: nodes, facts about a class, and the cost of a node.

use std::collections::{BTreeMap, BTreeSet};

use egg::{Analysis, CostFunction, DidMerge, EGraph, Id, Language};
use memc_ir::attr::Scalar;
use memc_ir::{Class, OpKind, TensorType, ValueId};

use super::super::facts::is_rearrangement;

/// A node of the e-graph.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Node {
    /// A value that the region does not compute.
    Leaf(ValueId),
    /// An op with one result.
    Op(OpKind, Vec<Id>),
}

impl Language for Node {
    type Discriminant = &'static str;

    fn discriminant(&self) -> &'static str {
        match self {
            Node::Leaf(_) => "",
            Node::Op(kind, _) => kind.mnemonic(),
        }
    }

    fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Node::Leaf(a), Node::Leaf(b)) => a == b,
            (Node::Op(a, x), Node::Op(b, y)) => a == b && x.len() == y.len(),
            _ => false,
        }
    }

    fn children(&self) -> &[Id] {
        if let Node::Op(_, children) = self { children } else { &[] }
    }

    fn children_mut(&mut self) -> &mut [Id] {
        if let Node::Op(_, children) = self { children } else { &mut [] }
    }
}

/// Facts that hold for every term of a class.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Type of the value.
    pub(super) ty: TensorType,
    /// The element that the value repeats, when it is a constant that does.
    pub(super) scalar: Option<Scalar>,
    /// Whether the value is a state at the start of the step that the step changes.
    pub(super) state: bool,
}

/// Facts of the leaves of one region.
#[derive(Default)]
pub(super) struct Leaves {
    /// By value.
    pub(super) facts: BTreeMap<ValueId, Facts>,
    /// Results of ops that the region sees through, and that other uses may keep alive anyhow.
    pub(super) shared: BTreeSet<ValueId>,
}

pub(super) type Graph = EGraph<Node, Leaves>;

/// Type of the one result of `kind`, or `None` when there is not exactly one or the operands do not fit.
pub(super) fn result_type(kind: &OpKind, operands: &[&TensorType]) -> Option<TensorType> {
    let mut types = kind.infer(operands).ok()?;
    if types.len() == 1 { types.pop() } else { None }
}

impl Analysis<Node> for Leaves {
    type Data = Facts;

    fn make(graph: &mut Graph, node: &Node, _id: Id) -> Facts {
        match node {
            Node::Leaf(v) => graph
                .analysis
                .facts
                .get(v)
                .expect("invariant: a leaf's facts are known before it is added")
                .clone(),
            Node::Op(kind, children) => {
                let types: Vec<&TensorType> = children.iter().map(|&c| &graph[c].data.ty).collect();
                let ty = result_type(kind, &types)
                    .expect("invariant: an op's types are inferred before it is added");
                let scalar = match kind {
                    OpKind::Fill { value, .. } => Some(*value),
                    k if is_rearrangement(k) => children.first().and_then(|&c| graph[c].data.scalar),
                    _ => None,
                };
                Facts { ty, scalar, state: false }
            }
        }
    }

    fn merge(&mut self, a: &mut Facts, b: Facts) -> DidMerge {
        let merged = Facts { ty: b.ty.clone(), scalar: a.scalar.or(b.scalar), state: a.state || b.state };
        let changed = |x: &Facts| x.scalar != merged.scalar || x.state != merged.state;
        let did = DidMerge(changed(a), changed(&b));
        *a = merged;
        did
    }
}

/// Price of starting a kernel, in bytes moved.
const LAUNCH: u64 = 2048;
/// Flops that take as long as moving one byte.
const FLOPS_PER_BYTE: u64 = 8;
/// Price of a view, which is no kernel but still an op to carry along.
const VIEW: u64 = 16;

/// Price of one op, in bytes moved. `repeated` bytes of its operands come more than once, and are moved once.
pub(super) fn op_cost(kind: &OpKind, operands: &[&TensorType], repeated: u64, result: &TensorType) -> u64 {
    if kind.def().class == Class::View {
        return VIEW;
    }
    // A small fill becomes a constant.
    if matches!(kind, OpKind::Fill { .. }) && result.numel() <= super::super::fold::DENSE_ELEMENTS {
        return VIEW;
    }
    let cost = kind.cost(operands, &[result]);
    let moved = cost.bytes_read.saturating_sub(repeated).saturating_add(cost.bytes_written);
    moved.saturating_add(cost.flops / FLOPS_PER_BYTE).saturating_add(LAUNCH)
}

/// Bytes of the operands that come more than once.
pub(super) fn repeated<T: PartialEq>(operands: &[T], types: &[&TensorType]) -> u64 {
    let repeated = |&(i, _): &(usize, &&TensorType)| operands[..i].contains(&operands[i]);
    types.iter().enumerate().filter(repeated).map(|(_, t)| t.bytes()).sum()
}

/// Price of using a value of [`Leaves::shared`]: nothing but a nudge towards not needing it.
pub(super) const SHARED_LEAF: u64 = 1;

/// Sums [`op_cost`] over a term.
pub(super) struct Price<'a>(pub(super) &'a Graph);

impl CostFunction<Node> for Price<'_> {
    type Cost = u64;

    fn cost<C>(&mut self, node: &Node, mut costs: C) -> u64
    where
        C: FnMut(Id) -> u64,
    {
        match node {
            Node::Leaf(v) => u64::from(self.0.analysis.shared.contains(v)) * SHARED_LEAF,
            Node::Op(kind, children) => {
                let types: Vec<&TensorType> = children.iter().map(|&c| &self.0[c].data.ty).collect();
                let result = result_type(kind, &types)
                    .expect("invariant: an op's types are inferred before it is added");
                let own = op_cost(kind, &types, repeated(children, &types), &result);
                children.iter().fold(own, |sum, &c| sum.saturating_add(costs(c)))
            }
        }
    }
}
