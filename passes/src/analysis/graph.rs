//! The dependences between ops as a `petgraph` graph.

use std::fmt;

use memc_ir::{Id, Module, OpId, value_name};
use petgraph::algo::tred::{dag_to_toposorted_adjacency_list, dag_transitive_reduction_closure};
use petgraph::algo::{tarjan_scc, toposort};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

/// Largest number of ops for which [`Dependences::reduce`] works; the closure it builds may be quadratic.
pub const REDUCTION_LIMIT: usize = 2048;

/// Dependences between live ops: an edge from an op to every op that reads one of its results.
///
/// Node `i` is the op at position `i` of the module's order, which need not be an order of execution.
pub struct Dependences {
    graph: DiGraph<OpId, ()>,
}

/// Ops that depend on each other in a circle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// One circle's ops, ascending.
    pub ops: Vec<OpId>,
    /// Names of their first results.
    pub names: Vec<String>,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ops depend on each other in a circle: {}", self.ops.len(), self.names.join(", "))
    }
}

impl std::error::Error for Cycle {}

impl Dependences {
    /// The dependences of the ops in `m.order`.
    pub fn new(m: &Module) -> Self {
        let mut graph = DiGraph::with_capacity(m.order.len(), m.order.len());
        let mut node = vec![None; m.ops.len()];
        for &id in &m.order {
            node[id.index()] = Some(graph.add_node(id));
        }
        for &id in &m.order {
            let Some(user) = node[id.index()] else { continue };
            for &v in &m.ops[id].operands {
                if let Some(def) = m.def_op(v).and_then(|d| node.get(d.index()).copied().flatten()) {
                    graph.update_edge(def, user, ());
                }
            }
        }
        Self { graph }
    }

    /// The ops in an order of execution, or a circle that leaves none.
    pub fn topological(&self, m: &Module) -> Result<Vec<OpId>, Cycle> {
        match toposort(&self.graph, None) {
            Ok(nodes) => Ok(nodes.into_iter().map(|n| self.graph[n]).collect()),
            Err(_) => Err(self.cycle(m)),
        }
    }

    /// The smallest circle; only called when there is one.
    fn cycle(&self, m: &Module) -> Cycle {
        let circular =
            |scc: &Vec<NodeIndex>| scc.len() > 1 || scc.iter().any(|&n| self.graph.contains_edge(n, n));
        let circles = tarjan_scc(&self.graph).into_iter().filter(circular);
        let smallest = circles.min_by_key(|scc| (scc.len(), scc.iter().min().copied())).unwrap_or_default();
        let mut ops: Vec<OpId> = smallest.into_iter().map(|n| self.graph[n]).collect();
        ops.sort_unstable();
        let first = |op: &OpId| m.ops[*op].results.first().map(|&v| value_name(m, v));
        let names = ops.iter().map(|op| first(op).unwrap_or_default()).collect();
        Cycle { ops, names }
    }

    /// Drops every edge that a longer path implies, when there are at most [`REDUCTION_LIMIT`] ops.
    ///
    /// The reachable orders stay the same. Fails like [`Dependences::topological`].
    pub fn reduce(&mut self, m: &Module) -> Result<(), Cycle> {
        if self.graph.node_count() > REDUCTION_LIMIT {
            return Ok(());
        }
        let order = toposort(&self.graph, None).map_err(|_| self.cycle(m))?;
        let (sorted, _) = dag_to_toposorted_adjacency_list::<_, NodeIndex>(&self.graph, &order);
        let (reduced, _) = dag_transitive_reduction_closure(&sorted);
        self.graph.clear_edges();
        for rank in 0..order.len() {
            for next in petgraph::visit::IntoNeighbors::neighbors(&reduced, NodeIndex::new(rank)) {
                self.graph.add_edge(order[rank], order[next.index()], ());
            }
        }
        Ok(())
    }

    /// Positions (in the module's order) that wait directly for the op at `position`.
    pub fn successors(&self, position: usize) -> impl Iterator<Item = usize> + '_ {
        self.graph.edges(NodeIndex::new(position)).map(|e| e.target().index())
    }

    /// For every position, the number of positions it waits for directly.
    pub fn in_degrees(&self) -> Vec<usize> {
        let mut degrees = vec![0; self.graph.node_count()];
        for e in self.graph.edge_references() {
            degrees[e.target().index()] += 1;
        }
        degrees
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_ir::parse;

    #[test]
    fn a_circle_is_reported_with_the_names_on_it() {
        let text = "module @m graph\n%x = input : f32[2]\n%a = add %x, %b : f32[2]\n%b = neg %a : f32[2]\n\
                    %c = neg %b : f32[2]\nyield output %c as \"c\"\n";
        let m = parse(text).unwrap();
        let error = Dependences::new(&m).topological(&m).unwrap_err();
        assert_eq!(error.to_string(), "2 ops depend on each other in a circle: %a, %b");
        assert_eq!(Dependences::new(&m).reduce(&m).unwrap_err(), error);
    }

    #[test]
    fn reduction_drops_exactly_the_implied_edges() {
        let text = "module @m graph\n%x = input : f32[2]\n%a = neg %x : f32[2]\n%b = neg %a : f32[2]\n\
                    %c = add %a, %b : f32[2]\n%d = add %a, %c : f32[2]\nyield output %d as \"d\"\n";
        let m = parse(text).unwrap();
        let mut d = Dependences::new(&m);
        assert_eq!(d.in_degrees(), [0, 1, 2, 2]);
        d.reduce(&m).unwrap();
        assert_eq!(d.in_degrees(), [0, 1, 1, 1]);
        assert_eq!(d.successors(0).collect::<Vec<_>>(), [1]);
        assert_eq!(d.topological(&m).unwrap(), m.order);
    }
}
