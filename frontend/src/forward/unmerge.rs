//! Tensors that an exporter merged become their own again.
//!
//! PyTorch's exporter stores tensors of equal content once, so that scales of one and biases of zero of
//! several layers are one tensor at export. Where it wrote an `Identity` to keep the other's name, that name
//! gets a tensor of its own if all its elements are equal, as those of fresh scales and biases are; tensors
//! of other content are equal because the model ties them. A running statistic of batch normalisation is
//! never shared with a parameter.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::counted;

use super::lost::{generated, statistic};
use super::statistics::{self, SLOTS};
use crate::error::some_of;
use crate::source::Source;

/// Separates what was merged; returns what to tell the user.
pub(super) fn split(source: &mut Source<'_>) -> Option<String> {
    let mut done = identities(source);
    done.extend(own_statistics(source));
    let list: Vec<String> = done.iter().map(|(own, kept)| format!("`{own}` of `{kept}`")).collect();
    (!list.is_empty()).then(|| {
        format!(
            "{} that the exporter had merged with equal ones {} separate again: {}",
            counted(list.len(), "tensor"),
            if list.len() == 1 { "is" } else { "are" },
            some_of(&list)
        )
    })
}

/// Turns copies of stored tensors into stored tensors: (copy, original).
fn identities(source: &mut Source<'_>) -> Vec<(String, String)> {
    let graph = &mut source.model.graph;
    let outputs: BTreeSet<&str> = graph.outputs.iter().map(|o| o.name.as_str()).collect();
    let mut done = Vec::new();
    let mut kept = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let copy = match (&node.inputs[..], &node.outputs[..]) {
            ([from], [to]) if node.op == "Identity" && node.domain.is_empty() => Some((from, to)),
            _ => None,
        };
        let separate = copy.filter(|(from, to)| {
            let named = to.contains('.') && !generated(to) && !outputs.contains(to.as_str());
            let literal = source.literals.get(*from).filter(|l| named && l.ty.dtype.is_float());
            literal.is_some_and(|l| statistic(to) || statistic(from) || l.splat().is_some())
        });
        kept.push(separate.is_none());
        done.extend(separate.map(|(from, to)| (to.clone(), from.clone())));
    }
    if done.is_empty() {
        return done;
    }
    let mut places = Vec::with_capacity(kept.len());
    let mut next = 0;
    for &keep in &kept {
        places.push(keep.then_some(next));
        next += usize::from(keep);
    }
    source.order = source.order.iter().filter_map(|&i| places.get(i).copied().flatten()).collect();
    let mut keep = kept.iter();
    graph.nodes.retain(|_| keep.next().copied().unwrap_or(true));
    for (to, from) in &done {
        if let Some(literal) = source.literals.get(from).cloned() {
            source.literals.insert(to.clone(), literal);
        }
    }
    done
}

/// Gives running statistics that are stored as something else too a tensor of their own: (own, other).
fn own_statistics(source: &mut Source<'_>) -> Vec<(String, String)> {
    let graph = &mut source.model.graph;
    let slot = |op: &str, i: usize| op == "BatchNormalization" && SLOTS.iter().any(|s| s.0 == i);
    let mut others: BTreeSet<String> = BTreeSet::new();
    // A copy is no use of its own.
    let copies = statistics::copies(&graph.nodes);
    for node in graph.nodes.iter().filter(|node| statistics::copied(node).is_none()) {
        let inputs = node.inputs.iter().enumerate().filter(|(i, _)| !slot(&node.op, *i));
        others.extend(inputs.map(|(_, name)| statistics::original(name, &copies).to_string()));
    }
    let fed: BTreeSet<&str> = graph.inputs.iter().map(|x| x.name.as_str()).collect();
    let computed: BTreeSet<String> = graph.nodes.iter().flat_map(|n| n.outputs.iter().cloned()).collect();
    let mut done: BTreeMap<String, String> = BTreeMap::new();
    for node in graph.nodes.iter_mut().filter(|n| n.op == "BatchNormalization" && n.domain.is_empty()) {
        for (i, _, suffix) in SLOTS {
            let Some(name) = node.inputs.get_mut(i).filter(|n| others.contains(*n)) else { continue };
            let Some(literal) = source.literals.get(name.as_str()).cloned() else { continue };
            let own = format!("{name}.{suffix}");
            let taken = !done.contains_key(&own) && source.literals.contains_key(&own);
            if taken || fed.contains(own.as_str()) || fed.contains(name.as_str()) || computed.contains(&own) {
                continue;
            }
            source.literals.insert(own.clone(), literal);
            done.insert(own.clone(), name.clone());
            *name = own;
        }
    }
    done.into_iter().collect()
}
