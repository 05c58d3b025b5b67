//! Running statistics of batch normalisations that run several times in a step, as of siamese networks.
//!
//! In PyTorch each run goes on from the statistics that the run before it left. The older exporter lets every
//! node read the stored ones, the newer one copies of them. Here each reads what the one before it wrote, in
//! the order of the program.

use std::collections::BTreeMap;

use super::lost::trains;
use crate::model::Node;
use crate::source::Source;

/// Operands of a batch normalisation that are statistics, and its results that are their next values.
pub(super) const SLOTS: [(usize, usize, &str); 2] = [(3, 1, "running_mean"), (4, 2, "running_var")];

/// Links the batch normalisations of a model from PyTorch that share statistics.
pub(super) fn chain(source: &mut Source<'_>) {
    if !source.model.producer.starts_with("pytorch") {
        return;
    }
    let nodes = &source.model.graph.nodes;
    let copies = copies(nodes);
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    let mut links: Vec<(usize, usize, usize, String, String)> = Vec::new();
    for &at in &source.order {
        let Some(node) = nodes.get(at).filter(|n| is_norm(n) && trains(source, n)) else { continue };
        for (i, o, name) in SLOTS {
            let Some(stored) = node.inputs.get(i).map(|name| original(name, &copies)) else { continue };
            if !source.literals.contains_key(stored) {
                continue;
            }
            let written = node.outputs.get(o).filter(|name| !name.is_empty()).cloned();
            let base = node.outputs.first().map_or("", String::as_str);
            let written = written.unwrap_or_else(|| format!("{base}/{name}"));
            let reads = last.insert(stored.to_string(), written.clone());
            links.push((at, i, o, reads.unwrap_or_else(|| stored.to_string()), written));
        }
    }
    for (at, i, o, reads, writes) in links {
        let Some(node) = source.model.graph.nodes.get_mut(at) else { continue };
        if node.outputs.len() <= o {
            node.outputs.resize(o + 1, String::new());
        }
        node.outputs[o] = writes;
        node.inputs[i] = reads;
    }
}

pub(super) fn is_norm(node: &Node) -> bool {
    node.op == "BatchNormalization" && node.domain.is_empty()
}

/// Operand of each copy by its result.
pub(super) fn copies(nodes: &[Node]) -> BTreeMap<String, String> {
    nodes.iter().filter_map(copied).collect()
}

/// Result and operand of a copy.
pub(super) fn copied(node: &Node) -> Option<(String, String)> {
    match (&node.inputs[..], &node.outputs[..]) {
        ([from], [to]) if node.op == "Identity" && node.domain.is_empty() => Some((to.clone(), from.clone())),
        _ => None,
    }
}

/// The tensor that `name` is a copy of.
pub(super) fn original<'n>(mut name: &'n str, copies: &'n BTreeMap<String, String>) -> &'n str {
    // The graph has no cycle, so there are no more copies behind each other than in all.
    for _ in 0..copies.len() {
        match copies.get(name) {
            Some(from) => name = from,
            None => break,
        }
    }
    name
}
