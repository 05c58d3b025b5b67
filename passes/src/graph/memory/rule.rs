//! Rules as data, and applying them.

use std::collections::{BTreeMap, BTreeSet};

use egg::{Id, Language};
use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, OpKind, TensorType};

use super::lang::{Graph, Node, result_type};

/// A named alternative.
#[derive(Debug)]
pub struct RuleDef {
    /// Kebab-case name, also the name of its golden file.
    pub name: &'static str,
    /// The identity, and the reason why no bit changes.
    pub doc: &'static str,
    /// Mnemonics of the ops at whose results the rule looks.
    pub(super) on: &'static [&'static str],
    /// Offers equal terms.
    pub(super) rewrite: fn(&Found<'_>, &mut Offers),
}

impl RuleDef {
    /// Mnemonics of the ops at whose results the rule looks.
    pub fn on(&self) -> &'static [&'static str] {
        self.on
    }
}

/// A term.
#[derive(Clone, Debug)]
pub(super) enum Term {
    /// Whatever computes this class.
    Class(Id),
    /// The given result of an op on terms.
    Op(OpKind, u32, Vec<Term>),
}

impl Term {
    /// The first result of an op on classes.
    pub(super) fn op(kind: OpKind, operands: &[Id]) -> Term {
        Term::Op(kind, 0, operands.iter().map(|&id| Term::Class(id)).collect())
    }

    /// The scalar 0 of a floating-point type.
    pub(super) fn zero(dtype: DType) -> Term {
        let value = Scalar::Float(F32(0.0));
        Term::Op(OpKind::Fill { dtype, shape: Vec::new(), value }, 0, Vec::new())
    }
}

/// Terms that a rule found equal: to the class it was shown, or to another.
pub(super) type Offers = Vec<(Id, Term)>;

/// A result of an op, as shown to a rule.
pub(super) struct Found<'a> {
    graph: &'a Graph,
    /// Its class.
    pub(super) class: Id,
    /// The op.
    pub(super) kind: &'a OpKind,
    /// Index of the result.
    pub(super) result: u32,
    /// Classes of its operands.
    pub(super) operands: &'a [Id],
}

impl<'a> Found<'a> {
    /// Type of a class.
    pub(super) fn type_of(&self, id: Id) -> &'a TensorType {
        &self.graph[id].data
    }

    /// Whether two classes are known to be equal.
    pub(super) fn same(&self, a: Id, b: Id) -> bool {
        self.graph.find(a) == self.graph.find(b)
    }

    /// The class of the first result of an op, where something computes it already.
    pub(super) fn known(&self, kind: OpKind, operands: &[Id]) -> Option<Id> {
        let operands = operands.iter().map(|&c| self.graph.find(c)).collect();
        self.graph.lookup(Node::Op(kind, 0, operands))
    }

    /// The ops known to compute a class as the given result.
    pub(super) fn defs(&self, id: Id, result: u32) -> impl Iterator<Item = (&'a OpKind, &'a [Id])> + use<'a> {
        self.graph[id].nodes.iter().filter_map(move |n| match n {
            Node::Op(kind, r, operands) if *r == result => Some((kind, operands.as_slice())),
            _ => None,
        })
    }
}

/// The rule of a node, for the nodes that rules offered as a whole.
pub(super) type Sources = BTreeMap<Node, usize>;

/// Most rounds of all rules over the graph; terms of one round may let other rules match.
const ROUNDS: usize = 3;

/// Applies rules until nothing changes or [`ROUNDS`] are over.
///
/// Rules look only at classes that are new or were changed in the round before, which keeps the cost linear.
pub(super) fn saturate(graph: &mut Graph, rules: &'static [RuleDef]) -> Sources {
    let mut sources: Vec<(Node, usize)> = Vec::new();
    let mut fresh: Option<BTreeSet<Id>> = None;
    for _ in 0..ROUNDS {
        let mut found: Vec<(Id, Node)> = Vec::new();
        for class in graph.classes() {
            let near = |f: &BTreeSet<Id>| {
                f.contains(&class.id)
                    || class.nodes.iter().any(|n| n.children().iter().any(|&c| f.contains(&graph.find(c))))
            };
            if fresh.as_ref().is_none_or(near) {
                found.extend(class.nodes.iter().map(|n| (class.id, n.clone())));
            }
        }
        found.sort_unstable();
        let mut changed = BTreeSet::new();
        for (class, node) in &found {
            let Node::Op(kind, result, operands) = node else { continue };
            for (index, rule) in rules.iter().enumerate().filter(|(_, r)| r.on.contains(&kind.mnemonic())) {
                let mut offers = Offers::new();
                (rule.rewrite)(&Found { graph, class: *class, kind, result: *result, operands }, &mut offers);
                for (target, offer) in &offers {
                    let Some((id, node)) = add(graph, offer) else { continue };
                    if graph[id].data != graph[*target].data {
                        continue;
                    }
                    if graph.union(*target, id) {
                        changed.insert(*target);
                        sources.extend(node.map(|n| (n, index)));
                    }
                }
            }
        }
        graph.rebuild();
        if changed.is_empty() {
            break;
        }
        fresh = Some(changed.into_iter().map(|id| graph.find(id)).collect());
    }
    let canonical = |n: Node| n.map_children(|c| graph.find(c));
    let mut out = Sources::new();
    for (node, index) in sources {
        out.entry(canonical(node)).or_insert(index);
    }
    out
}

/// Adds a term and returns its class and topmost node, or nothing when an op does not accept its operands.
fn add(graph: &mut Graph, term: &Term) -> Option<(Id, Option<Node>)> {
    match term {
        Term::Class(id) => Some((*id, None)),
        Term::Op(kind, result, operands) => {
            let children = operands.iter().map(|t| Some(add(graph, t)?.0)).collect::<Option<Vec<Id>>>()?;
            let types: Vec<&TensorType> = children.iter().map(|&c| &graph[c].data).collect();
            result_type(kind, *result, &types)?;
            let node = Node::Op(kind.clone(), *result, children);
            Some((graph.add(node.clone()), Some(node)))
        }
    }
}
