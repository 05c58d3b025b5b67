//! Replaces calls of functions that the model defines by their bodies, and copies graphs under new names.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::ImportError;
use crate::model::{Attr, Function, Graph, Model, Node};
use crate::screen::MAX_NODES;

/// Deepest nesting of calls. The standard forbids recursion.
const MAX_CALLS: usize = 64;

/// Names of a copied body: those that it defines get new ones, those that it captures stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Renamed {
    names: BTreeMap<String, String>,
}

impl Renamed {
    /// The name that stands for `name` outside.
    pub(crate) fn of(&self, name: &str) -> String {
        self.names.get(name).cloned().unwrap_or_else(|| name.to_string())
    }

    /// Lets `name` stand for `outside`.
    pub(crate) fn set(&mut self, name: &str, outside: String) {
        self.names.insert(name.to_string(), outside);
    }

    /// `node` with the names outside, also those that its subgraphs capture.
    pub(crate) fn node(&self, node: &Node) -> Node {
        let list = |names: &[String]| {
            names.iter().map(|n| if n.is_empty() { String::new() } else { self.of(n) }).collect()
        };
        let attrs = node.attrs.iter().map(|(key, attr)| {
            let attr = match attr {
                Attr::Graph(graph) => Attr::Graph(Box::new(self.graph(graph))),
                other => other.clone(),
            };
            (key.clone(), attr)
        });
        let mut out = Node {
            inputs: list(&node.inputs),
            outputs: list(&node.outputs),
            attrs: attrs.collect(),
            ..node.clone()
        };
        out.capture();
        out
    }

    /// A subgraph whose captured names are those outside.
    fn graph(&self, graph: &Graph) -> Graph {
        let mut inner = self.clone();
        let own = graph.inputs.iter().map(|v| &v.name).chain(graph.initializers.iter().map(|t| &t.name));
        for name in own.chain(graph.nodes.iter().flat_map(|n| &n.outputs)) {
            inner.names.remove(name);
        }
        let mut out = graph.clone();
        out.nodes = graph.nodes.iter().map(|n| inner.node(n)).collect();
        out.outputs.iter_mut().for_each(|o| o.name = inner.of(&o.name));
        out
    }
}

/// Makes names that nothing else has.
#[derive(Debug, Default)]
pub(crate) struct Fresh {
    taken: BTreeSet<String>,
}

impl Fresh {
    /// Knows all names of `graph` and its subgraphs.
    pub(crate) fn of(graph: &Graph) -> Fresh {
        let mut fresh = Fresh::default();
        fresh.learn(graph);
        fresh
    }

    fn learn(&mut self, graph: &Graph) {
        self.taken.extend(graph.inputs.iter().map(|v| v.name.clone()));
        self.taken.extend(graph.initializers.iter().map(|t| t.name.clone()));
        for node in &graph.nodes {
            self.taken.extend(node.outputs.iter().cloned());
            for attr in node.attrs.values() {
                if let Attr::Graph(graph) = attr {
                    self.learn(graph);
                }
            }
        }
    }

    /// A name for what is called `name` under `place`.
    pub(crate) fn name(&mut self, place: &str, name: &str) -> String {
        let base = format!("{place}/{name}");
        let mut next = base.clone();
        let mut number = 2u32;
        while !self.taken.insert(next.clone()) {
            next = format!("{base}.{number}");
            number = number.saturating_add(1);
        }
        next
    }
}

/// Replaces all calls of the model's functions.
pub(crate) fn functions(model: &mut Model) -> Result<(), ImportError> {
    let functions = std::mem::take(&mut model.functions);
    if functions.is_empty() {
        return Ok(());
    }
    let mut table = BTreeMap::new();
    for f in &functions {
        table.insert((f.domain.clone(), f.name.clone()), f);
        for (domain, &version) in &f.opsets {
            let own = model.opsets.entry(domain.clone()).or_insert(version);
            if *own != version {
                return Err(ImportError::Unsupported(format!(
                    "function `{}` uses version {version} of operator set `{domain}`, the model {own}; give \
                     both one version, as onnx.inliner.inline_local_functions(model, convert_version=True) \
                     does",
                    f.name
                )));
            }
        }
    }
    let mut graphs = vec![&mut model.graph];
    if let Some(training) = &mut model.training {
        graphs.push(&mut training.initialization);
        graphs.extend(training.algorithm.as_mut());
    }
    for graph in graphs {
        let mut inliner = Inliner { functions: &table, fresh: Fresh::of(graph), room: Room::of_functions() };
        graph.nodes = inliner.nodes(std::mem::take(&mut graph.nodes), 0)?;
    }
    Ok(())
}

struct Inliner<'f> {
    functions: &'f BTreeMap<(String, String), &'f Function>,
    fresh: Fresh,
    room: Room,
}

/// Nodes that copies of bodies may still have. A small file must not make a graph of any size.
#[derive(Debug)]
pub(crate) struct Room {
    most: u64,
    left: u64,
}

/// Most nodes that branches and loops are written out to.
const MAX_LOOPED: u64 = 200_000;

/// Bytes of stored tensors that count as a node.
const NODE_BYTES: u64 = 1024;

impl Room {
    /// Room for functions, of which a large model may have many.
    pub(crate) fn of_functions() -> Room {
        Room { most: MAX_NODES, left: MAX_NODES }
    }

    /// Room for branches and loops, whose length a single number decides.
    pub(crate) fn of_loops() -> Room {
        Room { most: MAX_LOOPED, left: MAX_LOOPED }
    }

    /// Takes the room of a copy of `node`.
    pub(crate) fn take(&mut self, node: &Node) -> Result<(), ImportError> {
        let bytes = node.attrs.values().map(|attr| match attr {
            Attr::Tensor(t) => t.payload.bytes(),
            _ => 0,
        });
        self.take_nodes(bytes.sum::<u64>() / NODE_BYTES + 1)
    }

    /// Takes the room of an iteration over `body` besides its nodes: a body without nodes would else be
    /// copied for ever.
    pub(crate) fn iteration(&mut self, body: &Graph) -> Result<(), ImportError> {
        self.take_nodes((body.inputs.len() + body.outputs.len()) as u64 + 1)
    }

    fn take_nodes(&mut self, nodes: u64) -> Result<(), ImportError> {
        let Some(left) = self.left.checked_sub(nodes) else {
            return Err(ImportError::Unsupported(format!(
                "the model has more than {} nodes once functions and loops are written out; use shorter \
                 loops",
                self.most
            )));
        };
        self.left = left;
        Ok(())
    }
}

impl Inliner<'_> {
    fn nodes(&mut self, nodes: Vec<Node>, depth: usize) -> Result<Vec<Node>, ImportError> {
        let mut out = Vec::new();
        for mut node in nodes {
            for attr in node.attrs.values_mut() {
                if let Attr::Graph(graph) = attr {
                    graph.nodes = self.nodes(std::mem::take(&mut graph.nodes), depth)?;
                }
            }
            node.capture();
            self.room.take(&node)?;
            let called = self.functions.get(&(node.domain.clone(), node.op.clone())).copied();
            let Some(function) = called else {
                out.push(node);
                continue;
            };
            if depth >= MAX_CALLS {
                return Err(ImportError::BadModel(format!(
                    "{} calls itself, or is nested deeper than {MAX_CALLS}",
                    node.label()
                )));
            }
            let body = self.body(&node, function)?;
            out.extend(self.nodes(body, depth + 1)?);
        }
        Ok(out)
    }

    /// The nodes of a call.
    fn body(&mut self, call: &Node, function: &Function) -> Result<Vec<Node>, ImportError> {
        let given =
            [(call.inputs.len(), function.inputs.len()), (call.outputs.len(), function.outputs.len())];
        if given.iter().any(|(call, function)| call > function) {
            return Err(ImportError::BadModel(format!(
                "{} has more inputs or outputs than its function",
                call.label()
            )));
        }
        let place = call.outputs.iter().find(|o| !o.is_empty()).map_or(call.name.as_str(), String::as_str);
        let mut names = Renamed::default();
        let outputs: BTreeMap<&str, &str> = function
            .outputs
            .iter()
            .map(String::as_str)
            .zip(call.outputs.iter().map(String::as_str))
            .collect();
        for node in &function.nodes {
            for name in node.outputs.iter().filter(|n| !n.is_empty()) {
                let outside = match outputs.get(name.as_str()) {
                    Some(&own) if !own.is_empty() => own.to_string(),
                    _ => self.fresh.name(place, name),
                };
                names.set(name, outside);
            }
        }
        // An input that the call leaves out is an empty name inside as well.
        for (i, name) in function.inputs.iter().enumerate() {
            names.set(name, call.inputs.get(i).cloned().unwrap_or_default());
        }
        let mut body: Vec<Node> = function.nodes.iter().map(|n| names.node(n)).collect();
        for node in &mut body {
            fill(node, call, function);
            if !call.name.is_empty() {
                node.name = format!("{}/{}", call.name, node.name);
            }
        }
        // An output that is an input.
        for (name, outside) in outputs {
            if function.inputs.iter().any(|i| i == name) && !outside.is_empty() {
                body.push(identity(names.of(name), outside.to_string()));
            }
        }
        Ok(body)
    }
}

/// `to = Identity(from)`.
pub(crate) fn identity(from: String, to: String) -> Node {
    Node { op: "Identity".into(), inputs: vec![from], outputs: vec![to], ..Node::default() }
}

/// Gives attributes that refer to the call's their values, also in subgraphs.
fn fill(node: &mut Node, call: &Node, function: &Function) {
    let mut attrs = std::mem::take(&mut node.attrs);
    attrs.retain(|_, attr| {
        if let Attr::Reference(name) = attr {
            let value = call.attrs.get(name).or_else(|| function.defaults.get(name));
            match value {
                Some(value) => *attr = value.clone(),
                None => return false,
            }
        }
        if let Attr::Graph(graph) = attr {
            graph.nodes.iter_mut().for_each(|node| fill(node, call, function));
        }
        true
    });
    node.attrs = attrs;
}
