//! Control flow that shapes and constants decide: `If` becomes its branch, `Loop` and `Scan` the copies of
//! their bodies.
//!
//! A trial import evaluates the conditions and notes what was taken. The graph is then written out by those
//! notes, so that everything after this reads a plain graph. What depends on data stays, and is refused
//! later.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::{DType, OpKind, ValueId};

use crate::context::{Bound, Context};
use crate::error::{Fault, ImportError};
use crate::inline::{Fresh, Renamed, Room, identity};
use crate::model::{Attr, Graph, Node, Payload, Tensor};
use crate::tensor::Literal;

/// Outcome of a node with subgraphs. Outcomes are noted in the order of evaluation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taken {
    /// The `then` branch, or the `else` branch.
    Branch(bool),
    /// So many iterations.
    Iterations(u64),
    /// Data decides.
    Unknown,
}

/// Whether the node is control flow.
pub(crate) fn is_control(node: &Node) -> bool {
    node.domain.is_empty() && matches!(node.op.as_str(), "If" | "Loop" | "Scan") && node.has_subgraph()
}

/// `graph` without control flow that `cx` can decide. `cx` has meanings of inputs and initializers, and nodes
/// in `order` define names before others read them.
pub(crate) fn resolve<'a>(
    mut cx: Context<'a>,
    graph: &'a Graph,
    order: &[usize],
    version: i64,
) -> Result<Graph, ImportError> {
    used_inside(graph, &mut cx.used);
    let mut trial = Trial { cx, log: Vec::new(), room: Room::of_loops() };
    for &i in order {
        let node = &graph.nodes[i];
        if is_control(node) {
            let mark = trial.log.len();
            if trial.control(node)?.is_none() {
                trial.log.truncate(mark);
                trial.log.push(Taken::Unknown);
            }
        } else {
            // A failure here comes again in the import, which reports it.
            let _ = trial.plain(node);
        }
    }
    let mut out = Writer { log: trial.log.into_iter(), fresh: Fresh::of(graph), nodes: Vec::new(), version };
    for &i in order {
        out.node(&graph.nodes[i], &Renamed::default(), true);
    }
    Ok(Graph { nodes: out.nodes, ..graph.clone() })
}

/// Collects what nodes of subgraphs read.
fn used_inside<'a>(graph: &'a Graph, used: &mut BTreeSet<&'a str>) {
    for attr in graph.nodes.iter().flat_map(|n| n.attrs.values()) {
        if let Attr::Graph(inner) = attr {
            used.extend(inner.nodes.iter().flat_map(Node::reads));
            used.extend(inner.outputs.iter().map(|o| o.name.as_str()));
            used_inside(inner, used);
        }
    }
}

/// A trial import.
struct Trial<'a> {
    cx: Context<'a>,
    log: Vec<Taken>,
    room: Room,
}

/// A result, `None` where data decides.
type Known<T> = Result<Option<T>, ImportError>;

impl<'a> Trial<'a> {
    /// Imports a node; `None` where it cannot be.
    fn plain(&mut self, node: &'a Node) -> Option<()> {
        if node.reads().any(|name| !self.cx.scope.contains_key(name)) {
            return None;
        }
        self.cx.import(node).ok()
    }

    fn control(&mut self, node: &'a Node) -> Known<()> {
        match node.op.as_str() {
            "If" => self.branch(node),
            "Loop" => self.iterate(node),
            _ => self.scan(node),
        }
    }

    /// Imports the nodes of a subgraph.
    fn body(&mut self, graph: &'a Graph) -> Known<()> {
        for tensor in &graph.initializers {
            let Ok(literal) = self.cx.literal(tensor) else { return Ok(None) };
            self.cx.bind(&tensor.name, literal);
        }
        for node in &graph.nodes {
            self.room.take(node)?;
            let known = if is_control(node) { self.control(node)? } else { self.plain(node) };
            if known.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }

    fn bound(&self, name: &str) -> Option<Bound> {
        self.cx.bound(name).ok().cloned()
    }

    fn flag(&self, name: &str) -> Option<bool> {
        let literal = self.bound(name)?.literal?;
        match literal.ints()?.as_slice() {
            &[v] if literal.ty.dtype == DType::Bool => Some(v != 0),
            _ => None,
        }
    }

    fn branch(&mut self, node: &'a Node) -> Known<()> {
        let Some(condition) = node.inputs.first().and_then(|name| self.flag(name)) else { return Ok(None) };
        let Some(graph) = node.graph(branch_name(condition)) else { return Ok(None) };
        self.log.push(Taken::Branch(condition));
        if self.body(graph)?.is_none() {
            return Ok(None);
        }
        for (name, output) in node.outputs.iter().zip(&graph.outputs).filter(|(name, _)| !name.is_empty()) {
            let Some(bound) = self.bound(&output.name) else { return Ok(None) };
            self.cx.bind(name, bound);
        }
        Ok(Some(()))
    }

    fn iterate(&mut self, node: &'a Node) -> Known<()> {
        let Some(graph) = node.graph("body") else { return Ok(None) };
        let given = |i: usize| node.inputs.get(i).filter(|name| !name.is_empty());
        let limit = match given(0) {
            None => u64::MAX,
            Some(name) => {
                let ints = self.bound(name).and_then(|b| b.literal?.ints());
                let Some(&[trips]) = ints.as_deref() else { return Ok(None) };
                u64::try_from(trips).unwrap_or(0)
            }
        };
        let mut running = match given(1) {
            None => true,
            Some(name) => match self.flag(name) {
                Some(flag) => flag,
                None => return Ok(None),
            },
        };
        let carried = node.inputs.len().saturating_sub(2);
        let mut values = Vec::new();
        for name in node.inputs.iter().skip(2) {
            let Some(bound) = self.bound(name) else { return Ok(None) };
            values.push(bound);
        }
        let slot = self.log.len();
        self.log.push(Taken::Iterations(0));
        let (mut count, mut scans) = (0, vec![Vec::new(); graph.outputs.len().saturating_sub(carried + 1)]);
        while running && count < limit {
            self.room.iteration(graph)?;
            let number = Literal::from_ints(DType::I64, &[], &[count as i64]).ok();
            let truth = Literal::from_ints(DType::Bool, &[], &[1]).ok();
            let fixed = [number, truth].map(|literal| literal.map(Bound::from));
            for (input, bound) in graph.inputs.iter().zip(fixed.into_iter().flatten().chain(values)) {
                self.cx.bind(&input.name, bound);
            }
            if self.body(graph)?.is_none() {
                return Ok(None);
            }
            let outputs: Option<Vec<Bound>> = graph.outputs.iter().map(|o| self.bound(&o.name)).collect();
            let Some(outputs) = outputs else { return Ok(None) };
            let Some(next) = graph.outputs.first().and_then(|o| self.flag(&o.name)) else { return Ok(None) };
            running = next;
            values = outputs.iter().skip(1).take(carried).cloned().collect();
            for (scan, output) in scans.iter_mut().zip(graph.outputs.iter().skip(1 + carried)) {
                let Ok(value) = self.cx.value(&output.name) else { return Ok(None) };
                scan.push(value);
            }
            count += 1;
        }
        if let Some(taken) = self.log.get_mut(slot) {
            *taken = Taken::Iterations(count);
        }
        for (name, bound) in node.outputs.iter().zip(values) {
            self.cx.bind(name, bound);
        }
        self.stack(node, carried, &scans)
    }

    /// `Scan`: iterations over slices of its last inputs.
    fn scan(&mut self, node: &'a Node) -> Known<()> {
        let (Some(graph), Some(scan)) = (node.graph("body"), Scan::of(node)) else { return Ok(None) };
        let types: Option<Vec<_>> =
            node.inputs.iter().skip(scan.states).map(|name| self.cx.type_of(name).ok().cloned()).collect();
        let extent = types.as_ref().and_then(|types| types.first()?.shape.first().copied());
        let Some(count) = extent.filter(|&n| n > 0) else { return Ok(None) };
        let mut values: Vec<Bound> = Vec::new();
        for name in node.inputs.iter().take(scan.states) {
            let Some(bound) = self.bound(name) else { return Ok(None) };
            values.push(bound);
        }
        self.log.push(Taken::Iterations(count));
        let mut scans = vec![Vec::new(); graph.outputs.len().saturating_sub(scan.states)];
        for i in 0..count {
            self.room.iteration(graph)?;
            for (j, name) in node.inputs.iter().skip(scan.states).enumerate() {
                let at = scan.position(j, i, count);
                let Some(value) = self.slice(name, at) else { return Ok(None) };
                values.push(value.into());
            }
            for (input, bound) in graph.inputs.iter().zip(std::mem::take(&mut values)) {
                self.cx.bind(&input.name, bound);
            }
            if self.body(graph)?.is_none() {
                return Ok(None);
            }
            for (k, output) in graph.outputs.iter().enumerate() {
                let Some(bound) = self.bound(&output.name) else { return Ok(None) };
                match k.checked_sub(scan.states).and_then(|k| scans.get_mut(k)) {
                    None => values.push(bound),
                    Some(scan) => {
                        let Ok(value) = self.cx.value(&output.name) else { return Ok(None) };
                        scan.push(value);
                    }
                }
            }
        }
        for (name, bound) in node.outputs.iter().zip(values) {
            self.cx.bind(name, bound);
        }
        self.stack(node, scan.states, &scans)
    }

    /// Element `at` of the first axis.
    fn slice(&mut self, name: &str, at: u64) -> Option<ValueId> {
        let x = self.cx.value(name).ok()?;
        let at = Literal::from_ints(DType::I64, &[], &[i64::try_from(at).ok()?]).ok()?;
        let at = self.cx.constant("trial/at", &at).ok()?;
        self.cx.emit(OpKind::Gather { axis: 0 }, &[x, at], "trial/slice", "").ok()
    }

    /// Binds the outputs after `carried` to what all iterations gave, stacked along a new first axis.
    fn stack(&mut self, node: &Node, carried: usize, scans: &[Vec<ValueId>]) -> Known<()> {
        for (name, values) in
            node.outputs.iter().skip(carried).zip(scans).filter(|(name, _)| !name.is_empty())
        {
            let stacked = (|| -> Result<ValueId, Fault> {
                let mut parts = Vec::new();
                for &value in values {
                    let shape = [&[1], self.cx.module.values[value].ty.shape.as_slice()].concat();
                    parts.push(self.cx.emit(OpKind::Reshape { shape }, &[value], "trial/part", "")?);
                }
                self.cx.emit(OpKind::Concat { axis: 0 }, &parts, "trial/stack", "")
            })();
            let Ok(stacked) = stacked else { return Ok(None) };
            self.cx.bind(name, stacked);
        }
        Ok(Some(()))
    }
}

fn branch_name(condition: bool) -> &'static str {
    if condition { "then_branch" } else { "else_branch" }
}

/// Attributes of a `Scan` over the first axes.
struct Scan {
    /// Number of states, which come before what is scanned.
    states: usize,
    backward: Vec<bool>,
}

impl Scan {
    /// `None` where axes other than the first are scanned, or results are stacked backwards.
    fn of(node: &Node) -> Option<Scan> {
        let scanned = usize::try_from(node.int("num_scan_inputs", 0).ok()?).ok()?;
        let list = |name: &str| match node.attrs.get(name) {
            Some(Attr::Ints(list)) => list.clone(),
            _ => Vec::new(),
        };
        let plain = ["scan_input_axes", "scan_output_axes", "scan_output_directions"];
        if plain.iter().any(|name| list(name).iter().any(|&v| v != 0)) {
            return None;
        }
        let states = node.inputs.len().checked_sub(scanned)?;
        let backward = list("scan_input_directions").iter().map(|&v| v != 0).collect();
        Some(Scan { states, backward })
    }

    /// Element of scanned input `j` in iteration `i` of `count`.
    fn position(&self, j: usize, i: u64, count: u64) -> u64 {
        if self.backward.get(j) == Some(&true) { count - 1 - i } else { i }
    }
}

/// Writes a graph out by the log of its trial.
struct Writer {
    log: std::vec::IntoIter<Taken>,
    fresh: Fresh,
    nodes: Vec<Node>,
    /// Version of the default operator set.
    version: i64,
}

impl Writer {
    /// Writes `node`, whose names stand for others by `names`; `top` outside of all subgraphs.
    fn node(&mut self, node: &Node, names: &Renamed, top: bool) {
        if !is_control(node) {
            let mut copy = names.node(node);
            if !top && !copy.name.is_empty() {
                copy.name = self.fresh.name("", &copy.name).trim_start_matches('/').to_string();
            }
            self.nodes.push(copy);
            return;
        }
        match self.log.next().unwrap_or(Taken::Unknown) {
            Taken::Branch(condition) => {
                let Some(graph) = node.graph(branch_name(condition)) else { return };
                let inner = self.body(node, graph, names.clone());
                for (name, output) in node.outputs.iter().zip(&graph.outputs).filter(|(n, _)| !n.is_empty()) {
                    self.nodes.push(identity(inner.of(&output.name), names.of(name)));
                }
            }
            Taken::Iterations(count) => self.iterations(node, names, count),
            Taken::Unknown => self.nodes.push(names.node(node)),
        }
    }

    /// Writes the body of a subgraph of `node`; returns what its names stand for.
    fn body(&mut self, node: &Node, graph: &Graph, mut names: Renamed) -> Renamed {
        let place = node.outputs.iter().find(|o| !o.is_empty()).cloned().unwrap_or_default();
        for tensor in &graph.initializers {
            let outside = self.fresh.name(&place, &tensor.name);
            self.constant(tensor.clone(), outside.clone());
            names.set(&tensor.name, outside);
        }
        for inner in &graph.nodes {
            for name in inner.outputs.iter().filter(|n| !n.is_empty()) {
                let outside = self.fresh.name(&place, name);
                names.set(name, outside);
            }
            self.node(inner, &names, false);
        }
        names
    }

    fn constant(&mut self, tensor: Tensor, output: String) {
        let attrs = BTreeMap::from([("value".to_string(), Attr::Tensor(tensor))]);
        self.nodes.push(Node { op: "Constant".into(), outputs: vec![output], attrs, ..Node::default() });
    }

    /// An integer, or a truth value, of shape `dims`.
    fn number(&mut self, place: &str, what: &str, value: i64, dims: &[i64], dtype: i32) -> String {
        let output = self.fresh.name(place, what);
        let payload = if dtype == BOOL {
            Payload::Int32s(vec![i32::from(value != 0)])
        } else {
            Payload::Int64s(vec![value])
        };
        self.constant(Tensor { dims: dims.to_vec(), dtype, payload, ..Tensor::default() }, output.clone());
        output
    }

    fn iterations(&mut self, node: &Node, names: &Renamed, count: u64) {
        let Some(graph) = node.graph("body") else { return };
        let place = node.outputs.iter().find(|o| !o.is_empty()).map(|o| names.of(o)).unwrap_or_default();
        let scan = if node.op == "Scan" { Scan::of(node) } else { None };
        let first = if scan.is_some() { 0 } else { 2 };
        let carried = scan.as_ref().map_or(node.inputs.len().saturating_sub(2), |scan| scan.states);
        let mut values: Vec<String> =
            node.inputs.iter().skip(first).take(carried).map(|name| names.of(name)).collect();
        // Outputs before the carried values: `Loop` has its condition.
        let lead = usize::from(scan.is_none());
        let mut scans = vec![Vec::new(); graph.outputs.len().saturating_sub(carried + lead)];
        for i in 0..count {
            let mut inner = names.clone();
            let mut inputs = graph.inputs.iter().map(|input| input.name.as_str());
            let mut given = Vec::new();
            if scan.is_none() {
                given.push(self.number(&place, "iteration", i as i64, &[], INT64));
                given.push(self.number(&place, "condition", 1, &[], BOOL));
            }
            given.append(&mut values);
            if let Some(scan) = &scan {
                for (j, name) in node.inputs.iter().skip(carried).enumerate() {
                    let at = self.number(&place, "at", scan.position(j, i, count) as i64, &[], INT64);
                    let slice = self.fresh.name(&place, "slice");
                    let inputs = vec![names.of(name), at];
                    self.nodes.push(Node {
                        op: "Gather".into(),
                        inputs,
                        outputs: vec![slice.clone()],
                        ..Node::default()
                    });
                    given.push(slice);
                }
            }
            for name in given {
                if let Some(input) = inputs.next() {
                    inner.set(input, name);
                }
            }
            let inner = self.body(node, graph, inner);
            let outputs: Vec<String> = graph.outputs.iter().map(|o| inner.of(&o.name)).collect();
            values = outputs.iter().skip(lead).take(carried).cloned().collect();
            for (scan, output) in scans.iter_mut().zip(outputs.iter().skip(lead + carried)) {
                scan.push(output.clone());
            }
        }
        for (name, value) in node.outputs.iter().zip(values).filter(|(name, _)| !name.is_empty()) {
            self.nodes.push(identity(value, names.of(name)));
        }
        for (name, parts) in node.outputs.iter().skip(carried).zip(scans).filter(|(name, _)| !name.is_empty())
        {
            self.stack(&place, parts, names.of(name));
        }
    }

    /// `output`: `parts` stacked along a new first axis.
    fn stack(&mut self, place: &str, parts: Vec<String>, output: String) {
        let mut inputs = Vec::new();
        for part in parts {
            let wide = self.fresh.name(place, "part");
            let mut node = Node { op: "Unsqueeze".into(), outputs: vec![wide.clone()], ..Node::default() };
            if self.version < 13 {
                node.attrs.insert("axes".into(), Attr::Ints(vec![0]));
                node.inputs = vec![part];
            } else {
                let axes = self.number(place, "axes", 0, &[1], INT64);
                node.inputs = vec![part, axes];
            }
            self.nodes.push(node);
            inputs.push(wide);
        }
        let attrs = BTreeMap::from([("axis".to_string(), Attr::Int(0))]);
        self.nodes.push(Node {
            op: "Concat".into(),
            inputs,
            outputs: vec![output],
            attrs,
            ..Node::default()
        });
    }
}

/// `TensorProto.DataType` of `i64`.
const INT64: i32 = 7;
/// `TensorProto.DataType` of booleans.
const BOOL: i32 = 9;
