//! Structure of a graph: every name defined once, every tensor defined before its use, no cycles.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::{kosaraju_scc, toposort};
use petgraph::graph::{DiGraph, NodeIndex};

use crate::error::{Fault, ImportError, some_of};
use crate::model::{Dim, Graph, ValueInfo, ValueType};
use crate::tensor::{dtype, tensor_type};
use memc_ir::TensorType;

/// Checks names and returns the nodes in an order in which operands come first: the file's own when it has
/// that property, else some topological order.
pub(crate) fn checked_order(graph: &Graph) -> Result<Vec<usize>, ImportError> {
    let producer = definitions(graph)?;
    missing(graph, &producer)?;
    let sorted = graph
        .nodes
        .iter()
        .enumerate()
        .all(|(i, node)| node.reads().all(|x| producer.get(x).copied().flatten().is_none_or(|p| p < i)));
    if sorted { Ok((0..graph.nodes.len()).collect()) } else { sort(graph, &producer) }
}

/// For every defined name the node that computes it, or `None` for inputs and initializers.
type Producers<'a> = BTreeMap<&'a str, Option<usize>>;

fn definitions(graph: &Graph) -> Result<Producers<'_>, ImportError> {
    let mut producer: Producers<'_> = BTreeMap::new();
    let twice = |name: &str, who: &str| {
        Err(ImportError::BadModel(format!("tensor `{name}` is defined twice, the second time by {who}")))
    };
    for input in &graph.inputs {
        if input.name.is_empty() {
            return Err(ImportError::BadModel("a graph input has no name".into()));
        }
        if producer.insert(&input.name, None).is_some() {
            return twice(&input.name, "a graph input");
        }
    }
    let mut constants = BTreeSet::new();
    for t in &graph.initializers {
        if t.name.is_empty() {
            return Err(ImportError::BadModel("an initializer has no name".into()));
        }
        // An initializer may give the default of an input of the same name.
        producer.insert(&t.name, None);
        if !constants.insert(&t.name) {
            return twice(&t.name, "an initializer");
        }
    }
    for (i, node) in graph.nodes.iter().enumerate() {
        for out in node.outputs.iter().filter(|o| !o.is_empty()) {
            if producer.insert(out, Some(i)).is_some() {
                return twice(out, &node.label());
            }
        }
    }
    Ok(producer)
}

fn missing(graph: &Graph, producer: &Producers<'_>) -> Result<(), ImportError> {
    for node in &graph.nodes {
        if let Some(x) = node.reads().find(|x| !producer.contains_key(x)) {
            return Err(ImportError::BadModel(format!(
                "{} reads `{x}`, which nothing in the graph defines",
                node.label()
            )));
        }
    }
    match graph.outputs.iter().find(|o| !producer.contains_key(o.name.as_str())) {
        Some(o) => {
            Err(ImportError::BadModel(format!("nothing in the graph defines its output `{}`", o.name)))
        }
        None => Ok(()),
    }
}

fn sort(graph: &Graph, producer: &Producers<'_>) -> Result<Vec<usize>, ImportError> {
    let mut flow: DiGraph<(), ()> = DiGraph::with_capacity(graph.nodes.len(), graph.nodes.len());
    for _ in &graph.nodes {
        flow.add_node(());
    }
    for (i, node) in graph.nodes.iter().enumerate() {
        for p in node.reads().filter_map(|x| producer.get(x).copied().flatten()) {
            flow.add_edge(NodeIndex::new(p), NodeIndex::new(i), ());
        }
    }
    match toposort(&flow, None) {
        Ok(order) => Ok(order.into_iter().map(NodeIndex::index).collect()),
        Err(at) => {
            let component = kosaraju_scc(&flow).into_iter().find(|c| c.contains(&at.node_id()));
            let mut members: Vec<usize> =
                component.unwrap_or_default().into_iter().map(NodeIndex::index).collect();
            members.sort_unstable();
            let names: Vec<String> = members.iter().map(|&i| graph.nodes[i].label()).collect();
            Err(ImportError::BadModel(format!("the graph has a cycle through {}", some_of(&names))))
        }
    }
}

/// Types of the graph's inputs with symbolic extents replaced by `dims`.
///
/// Inputs that are no tensors are left out; who needs them reports that. Fails when extents stay unknown
/// (listing every symbol and where it appears) or `dims` names a symbol that the inputs do not have.
pub(crate) fn input_types(
    graph: &Graph,
    dims: &[(String, u64)],
) -> Result<BTreeMap<String, TensorType>, ImportError> {
    let mut types = BTreeMap::new();
    let mut open: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut symbols: BTreeSet<&str> = BTreeSet::new();
    consistent(dims)?;
    for input in &graph.inputs {
        let ValueType::Tensor { dtype: code, shape } = &input.ty else { continue };
        let at = |fault: Fault| fault.at(&format!("graph input `{}`", input.name));
        let dtype = dtype(*code).map_err(at)?;
        let Some(shape) = shape else {
            let unknown = "its number of axes is unknown; export it with a static shape";
            return Err(at(Fault::Unsupported(unknown.into())));
        };
        let mut extents = Vec::new();
        for (axis, dim) in shape.iter().enumerate() {
            let place = || format!("axis {axis} of `{}`", input.name);
            extents.push(match dim {
                Dim::Size(n) => *n,
                Dim::Unknown => {
                    open.entry(UNNAMED).or_default().push(place());
                    0
                }
                Dim::Symbol(s) => {
                    symbols.insert(s);
                    match dims.iter().find(|(name, _)| name == s) {
                        Some(&(_, n)) => i64::try_from(n)
                            .map_err(|_| ImportError::Usage(format!("dimension {s}={n} is too large")))?,
                        None => {
                            open.entry(s).or_default().push(place());
                            0
                        }
                    }
                }
            });
        }
        let ty = tensor_type(dtype, &extents).map_err(at)?;
        types.insert(input.name.clone(), ty);
    }
    if let Some((name, size)) = dims.iter().find(|(name, _)| !symbols.contains(name.as_str())) {
        let known: Vec<&str> = symbols.into_iter().collect();
        let advice = match known.first() {
            Some(first) => format!("it has {}: give for instance --dim {first}={size}", some_of(&known)),
            None => "all its shapes are static: leave --dim out".to_string(),
        };
        return Err(ImportError::Usage(format!("the model has no symbolic dimension `{name}`; {advice}")));
    }
    if open.is_empty() {
        return Ok(types);
    }
    let list: Vec<String> =
        open.iter().map(|(symbol, places)| format!("{symbol} ({})", some_of(places))).collect();
    let advice = match open.keys().find(|s| **s != UNNAMED) {
        Some(symbol) => format!("give each a size, as --dim {symbol}=32, or export static shapes"),
        None => "export them with a name or a size".to_string(),
    };
    Err(ImportError::Unsupported(format!(
        "the model has dimensions without a size: {}; {advice}",
        some_of(&list)
    )))
}

/// Name in messages of unknown extents without a symbol.
const UNNAMED: &str = "(unnamed)";

/// Refuses sizes that contradict each other or leave nothing to compute.
fn consistent(dims: &[(String, u64)]) -> Result<(), ImportError> {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, size) in dims {
        if *size == 0 {
            return Err(ImportError::Usage(format!(
                "--dim {name}=0 leaves nothing to compute; give a size, as --dim {name}=32"
            )));
        }
        if let Some(other) = seen.insert(name, *size).filter(|other| other != size) {
            return Err(ImportError::Usage(format!(
                "--dim {name}={other} and --dim {name}={size} contradict each other; give one size, as \
                 --dim {name}={other}"
            )));
        }
    }
    Ok(())
}

/// The declared types of values, where complete once symbols have the sizes in `dims`.
pub(crate) fn declared_types<'a>(
    values: &'a [ValueInfo],
    dims: &[(String, u64)],
) -> BTreeMap<&'a str, TensorType> {
    let sizes: BTreeMap<&str, u64> = dims.iter().map(|(name, size)| (name.as_str(), *size)).collect();
    let extent = |dim: &Dim| match dim {
        Dim::Size(n) => Some(*n),
        Dim::Symbol(s) => i64::try_from(*sizes.get(s.as_str())?).ok(),
        Dim::Unknown => None,
    };
    let mut types = BTreeMap::new();
    for v in values {
        let ValueType::Tensor { dtype: code, shape: Some(shape) } = &v.ty else { continue };
        let extents: Option<Vec<i64>> = shape.iter().map(extent).collect();
        if let (Ok(dtype), Some(extents)) = (dtype(*code), extents)
            && let Ok(ty) = tensor_type(dtype, &extents)
        {
            types.insert(v.name.as_str(), ty);
        }
    }
    types
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Node;

    fn node(name: &str, inputs: &[&str], outputs: &[&str]) -> Node {
        let names = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
        Node {
            detached: false,
            restored: false,
            padding: None,
            name: name.into(),
            op: "Add".into(),
            inputs: names(inputs),
            outputs: names(outputs),
            ..Node::default()
        }
    }
    fn graph(nodes: Vec<Node>) -> Graph {
        let ty = ValueType::Tensor { dtype: 1, shape: Some(vec![Dim::Symbol("batch".into()), Dim::Size(2)]) };
        Graph { nodes, inputs: vec![ValueInfo { name: "x".into(), ty }], ..Graph::default() }
    }

    /// Nodes in file order stay there; others are sorted so that operands come first.
    #[test]
    fn unsorted_graphs_are_sorted() {
        let sorted = graph(vec![node("a", &["x"], &["y"]), node("b", &["y", ""], &["z"])]);
        assert_eq!(checked_order(&sorted).expect("sorted"), [0, 1]);
        let turned = graph(vec![node("b", &["y"], &["z"]), node("a", &["x"], &["y"])]);
        assert_eq!(checked_order(&turned).expect("turned"), [1, 0]);
    }

    /// A cycle is reported with exactly the nodes on it.
    #[test]
    fn cycles_are_named() {
        let g = graph(vec![
            node("free", &["x"], &["w"]),
            node("one", &["w", "z"], &["y"]),
            node("two", &["y"], &["z"]),
            node("after", &["z"], &["v"]),
        ]);
        let text = checked_order(&g).expect_err("cycle").to_string();
        assert!(text.contains("cycle through node `one` (Add), node `two` (Add)"), "{text}");
        let own = checked_order(&graph(vec![node("self", &["y"], &["y"])])).expect_err("loop").to_string();
        assert!(own.contains("cycle through node `self`"), "{own}");
    }

    /// Names defined twice or never are reported with the node.
    #[test]
    fn names_are_defined_once() {
        let twice = checked_order(&graph(vec![node("a", &["x"], &["x"])])).expect_err("twice").to_string();
        assert!(twice.contains("`x` is defined twice, the second time by node `a`"), "{twice}");
        let never = checked_order(&graph(vec![node("a", &["q"], &["y"])])).expect_err("never").to_string();
        assert!(never.contains("node `a` (Add) reads `q`"), "{never}");
    }

    /// Unbound symbols are listed with their places, unknown bindings refused, bound ones substituted.
    #[test]
    fn symbols_need_sizes() {
        let g = graph(Vec::new());
        let open = input_types(&g, &[]).expect_err("open").to_string();
        assert!(open.contains("batch (axis 0 of `x`)"), "{open}");
        let twice = input_types(&g, &[("batch".into(), 3), ("batch".into(), 4)]);
        let twice = twice.expect_err("twice").to_string();
        assert!(twice.contains("--dim batch=3 and --dim batch=4 contradict"), "{twice}");
        let empty = input_types(&g, &[("batch".into(), 0)]).expect_err("empty").to_string();
        assert!(empty.contains("--dim batch=0 leaves nothing"), "{empty}");
        let wrong =
            input_types(&g, &[("seq".into(), 3), ("batch".into(), 4)]).expect_err("wrong").to_string();
        assert!(wrong.contains("no symbolic dimension `seq`; it has batch"), "{wrong}");
        assert!(wrong.contains("--dim batch=3"), "{wrong}");
        let bound = input_types(&g, &[("batch".into(), 4)]).expect("bound");
        assert_eq!(bound["x"].shape, [4, 2]);
        let huge = input_types(&g, &[("batch".into(), u64::MAX)]).expect_err("huge").to_string();
        assert!(huge.contains("too large"), "{huge}");
    }
}
