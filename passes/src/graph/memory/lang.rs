//! Results of ops as an `egg` language: one e-graph for the whole step.
//!
//! Unlike the language of `simplify`, a node names one result of an op, so that ops with several results take
//! part.

use std::collections::BTreeMap;

use egg::{Analysis, DidMerge, EGraph, Id, Language};
use memc_ir::{OpKind, TensorType, ValueId};

/// A node of the e-graph.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Node {
    /// A value that no op computes.
    Leaf(ValueId),
    /// The given result of an op.
    Op(OpKind, u32, Vec<Id>),
}

impl Language for Node {
    type Discriminant = (&'static str, u32);

    fn discriminant(&self) -> (&'static str, u32) {
        match self {
            Node::Leaf(_) => ("", 0),
            Node::Op(kind, result, _) => (kind.mnemonic(), *result),
        }
    }

    fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Node::Leaf(a), Node::Leaf(b)) => a == b,
            (Node::Op(a, i, x), Node::Op(b, j, y)) => a == b && i == j && x.len() == y.len(),
            _ => false,
        }
    }

    fn children(&self) -> &[Id] {
        if let Node::Op(_, _, children) = self { children } else { &[] }
    }

    fn children_mut(&mut self) -> &mut [Id] {
        if let Node::Op(_, _, children) = self { children } else { &mut [] }
    }
}

/// The types of leaves; of every other class, the type is inferred.
#[derive(Default)]
pub(super) struct Types {
    /// By value.
    pub(super) leaves: BTreeMap<ValueId, TensorType>,
}

pub(super) type Graph = EGraph<Node, Types>;

/// Type of result `result` of `kind`, or `None` when the operands do not fit.
pub(super) fn result_type(kind: &OpKind, result: u32, operands: &[&TensorType]) -> Option<TensorType> {
    let mut types = kind.infer(operands).ok()?;
    let i = result as usize;
    if i < types.len() { Some(types.swap_remove(i)) } else { None }
}

impl Analysis<Node> for Types {
    type Data = TensorType;

    fn make(graph: &mut Graph, node: &Node, _id: Id) -> TensorType {
        match node {
            Node::Leaf(v) => graph
                .analysis
                .leaves
                .get(v)
                .expect("invariant: a leaf's type is known before it is added")
                .clone(),
            Node::Op(kind, result, children) => {
                let types: Vec<&TensorType> = children.iter().map(|&c| &graph[c].data).collect();
                result_type(kind, *result, &types)
                    .expect("invariant: an op's types are inferred before it is added")
            }
        }
    }

    fn merge(&mut self, _a: &mut TensorType, _b: TensorType) -> DidMerge {
        // Only classes of one type are ever merged.
        DidMerge(false, false)
    }
}
