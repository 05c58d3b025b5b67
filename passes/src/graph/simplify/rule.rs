//! Rules as data, and their adapter to `egg`.

use egg::{Applier, Id, PatternAst, Rewrite, SearchMatches, Searcher, Subst, Symbol, Var};
use memc_ir::attr::Scalar;
use memc_ir::{OpKind, TensorType};

use super::lang::{Facts, Graph, Leaves, Node, result_type};
use crate::Contradiction;

/// A named rewrite.
#[derive(Debug)]
pub struct RuleDef {
    /// Kebab-case name, also the name of its golden file.
    pub name: &'static str,
    /// The rewrite, and the reason why no bit changes.
    pub doc: &'static str,
    /// Mnemonics of the ops at whose results the rule looks.
    pub on: &'static [&'static str],
    /// Offers equal terms for one op.
    pub(super) rewrite: fn(&Found<'_>, &mut Offers),
}

/// A term to be made equal to the matched op's result.
#[derive(Clone, Debug)]
pub(super) enum Term {
    /// Whatever computes this class.
    Class(Id),
    /// An op on terms.
    Op(OpKind, Vec<Term>),
}

impl Term {
    /// An op on classes.
    pub(super) fn op(kind: OpKind, operands: &[Id]) -> Term {
        Term::Op(kind, operands.iter().map(|&id| Term::Class(id)).collect())
    }
}

/// Terms that a rule found equal to the shown op.
pub(super) type Offers = Vec<Term>;

/// An op in the e-graph, as shown to a rule.
pub(super) struct Found<'a> {
    graph: &'a Graph,
    /// The op.
    pub(super) kind: &'a OpKind,
    /// Classes of its operands.
    pub(super) operands: &'a [Id],
    /// Type of its result.
    pub(super) ty: &'a TensorType,
}

impl<'a> Found<'a> {
    /// The operand classes of an op with two operands.
    pub(super) fn pair(&self) -> Option<[Id; 2]> {
        <[Id; 2]>::try_from(self.operands).ok()
    }

    /// Facts about a class.
    pub(super) fn facts(&self, id: Id) -> &'a Facts {
        &self.graph[id].data
    }

    /// Type of a class.
    pub(super) fn type_of(&self, id: Id) -> &'a TensorType {
        &self.facts(id).ty
    }

    /// The element that a class repeats, when it is known.
    pub(super) fn scalar(&self, id: Id) -> Option<Scalar> {
        self.facts(id).scalar
    }

    /// Whether two classes are known to be equal.
    pub(super) fn same(&self, a: Id, b: Id) -> bool {
        self.graph.find(a) == self.graph.find(b)
    }

    /// The ops known to compute a class.
    pub(super) fn defs(&self, id: Id) -> impl Iterator<Item = (&'a OpKind, &'a [Id])> + use<'a> {
        self.graph[id].nodes.iter().filter_map(|n| match n {
            Node::Op(kind, operands) => Some((kind, operands.as_slice())),
            Node::Leaf(_) => None,
        })
    }
}

struct Adapter(&'static RuleDef);

/// Ops that round nothing: they move elements or convert them.
const EXACT: &[&str] =
    &["cast", "reshape", "transpose", "broadcast", "slice", "concat", "pad", "gather", "copy"];

/// The rule as a rewrite of `egg`.
pub(super) fn rewrite(rule: &'static RuleDef) -> Result<Rewrite<Node, Leaves>, Contradiction> {
    Ok(Rewrite::new(rule.name, Adapter(rule), Adapter(rule))?)
}

impl Searcher<Node, Leaves> for Adapter {
    fn search_eclass_with_limit(
        &self,
        graph: &Graph,
        eclass: Id,
        _limit: usize,
    ) -> Option<SearchMatches<'_, Node>> {
        let is_root = |n: &Node| matches!(n, Node::Op(kind, _) if self.0.on.contains(&kind.mnemonic()));
        let found = graph[eclass].nodes.iter().any(is_root);
        // Matches are looked up again when applying: rules run on the graph as it is then.
        found.then(|| SearchMatches { eclass, substs: vec![Subst::default()], ast: None })
    }

    fn search_with_limit(&self, graph: &Graph, limit: usize) -> Vec<SearchMatches<'_, Node>> {
        let mut classes: Vec<Id> =
            self.0.on.iter().filter_map(|op| graph.classes_for_op(op)).flatten().collect();
        classes.sort_unstable();
        classes.dedup();
        classes.into_iter().filter_map(|c| self.search_eclass_with_limit(graph, c, limit)).collect()
    }

    fn vars(&self) -> Vec<Var> {
        Vec::new()
    }
}

impl Applier<Node, Leaves> for Adapter {
    fn apply_one(
        &self,
        graph: &mut Graph,
        eclass: Id,
        _subst: &Subst,
        _ast: Option<&PatternAst<Node>>,
        _name: Symbol,
    ) -> Vec<Id> {
        let mut offers = Offers::new();
        // Rules are exact for ops that round once, but those on narrow types round between every two.
        if graph[eclass].data.ty.dtype.is_narrow() && !self.0.on.iter().all(|op| EXACT.contains(op)) {
            return Vec::new();
        }
        for node in &graph[eclass].nodes {
            if let Node::Op(kind, operands) = node
                && self.0.on.contains(&kind.mnemonic())
            {
                let found = Found { graph, kind, operands, ty: &graph[eclass].data.ty };
                (self.0.rewrite)(&found, &mut offers);
            }
        }
        let mut changed = Vec::new();
        for offer in &offers {
            if let Some(id) = add(graph, offer)
                && graph[id].data.ty == graph[eclass].data.ty
                && graph.union(eclass, id)
            {
                changed.push(graph.find(eclass));
            }
        }
        changed
    }
}

/// Adds a term, or gives up when an op does not accept its operands.
fn add(graph: &mut Graph, term: &Term) -> Option<Id> {
    match term {
        Term::Class(id) => Some(*id),
        Term::Op(kind, operands) => {
            let children = operands.iter().map(|t| add(graph, t)).collect::<Option<Vec<Id>>>()?;
            let types: Vec<&TensorType> = children.iter().map(|&c| &graph[c].data.ty).collect();
            result_type(kind, &types)?;
            Some(graph.add(Node::Op(kind.clone(), children)))
        }
    }
}
