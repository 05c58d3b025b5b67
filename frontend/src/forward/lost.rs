//! Signs that an exporter has lost what training needs: batch normalisation in inference form or folded away,
//! parameters renamed, folded or merged.
//!
//! These are warnings: the model still means something, but perhaps not what its author trained.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::counted;

use crate::error::some_of;
use crate::model::{Attr, Node};
use crate::source::Source;

const EXPORT: &str = "export with torch.onnx.export(model.train(), ..., dynamo=False, \
                      training=TrainingMode.TRAINING, do_constant_folding=False)";

/// Whether a batch normalisation node uses the batch's statistics.
pub(super) fn trains(source: &Source<'_>, node: &Node) -> bool {
    let mode = matches!(node.attrs.get("training_mode"), Some(Attr::Int(m)) if *m != 0);
    source.model.opset("") >= 14 && mode
}

/// Whether `name` is one that exporters give tensors that are no parameter of the source model.
pub(super) fn generated(name: &str) -> bool {
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    name.starts_with('/') || name.contains("::") || ["val_", "const_", "_val_"].iter().any(|p| numbered(p))
}

/// Whether a tensor is called like one that training updates, but not by gradients.
pub(crate) fn statistic(name: &str) -> bool {
    ["running_mean", "running_var", "num_batches_tracked"].iter().any(|s| name.ends_with(s))
}

/// Warnings for the user. `params` has the rank of every tensor that was taken as a parameter.
pub(crate) fn warnings(source: &Source<'_>, params: &BTreeMap<&str, usize>) -> Vec<String> {
    let graph = &source.model.graph;
    let label = |n: &Node| {
        format!(
            "`{}`",
            if n.name.is_empty() { n.outputs.first() } else { Some(&n.name) }.map_or("", String::as_str)
        )
    };
    let norms: Vec<&Node> =
        graph.nodes.iter().filter(|n| n.op == "BatchNormalization" && n.domain.is_empty()).collect();
    let mut out = Vec::new();
    let fixed: Vec<String> = norms.iter().filter(|n| !trains(source, n)).map(|n| label(n)).collect();
    if !fixed.is_empty() {
        out.push(format!(
            "{} in inference form ({}), which normalise by fixed statistics that \
             training does not update; that is right for layers in eval(); for others, {EXPORT}",
            counted(fixed.len(), "BatchNormalization node"),
            some_of(&fixed)
        ));
    }
    let folded: Vec<String> = graph
        .nodes
        .iter()
        .filter(|n| n.op == "Conv" && n.outputs.first().is_some_and(|o| o.starts_with("getitem")))
        .map(label)
        .collect();
    if !folded.is_empty() {
        out.push(format!(
            "batch normalisation was folded into {} ({}): its parameters and statistics are lost; \
             {EXPORT}",
            counted(folded.len(), "convolution"),
            some_of(&folded)
        ));
    }
    let renamed: Vec<String> = params.keys().filter(|n| generated(n)).map(|n| format!("`{n}`")).collect();
    if !renamed.is_empty() {
        out.push(format!(
            "{} with names that the exporter made up ({}): it folded constants into them, or merged or \
             transposed them; {EXPORT}",
            counted(renamed.len(), "parameter"),
            some_of(&renamed)
        ));
    }
    let merged: Vec<String> = merged(source, params);
    if !merged.is_empty() {
        out.push(format!(
            "{} of parameters in several nodes at once ({}): exporters merge parameters that are equal at \
             export, which are then trained as one; if the model does not share them, {EXPORT}",
            counted(merged.len(), "vector"),
            some_of(&merged)
        ));
    }
    out
}

/// Note on batch normalisations that the exporter wrote in inference form, though the exported program has
/// them in training form.
pub(super) fn restored(source: &Source<'_>) -> Option<String> {
    let count = source.model.graph.nodes.iter().filter(|n| n.restored).count();
    (count > 0).then(|| {
        format!(
            "{} put back into training form, which the exported program has",
            counted(count, "BatchNormalization node")
        )
    })
}

/// Warning about folded tensors that may have been parameters, but stay constant.
pub(super) fn constants(names: &[&str]) -> Option<String> {
    let list: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
    let example = glob::Pattern::escape(names.first()?);
    Some(format!(
        "{} with names that the exporter made up {} constant ({}): where it folded a parameter, train that \
         with --trainable '*' --trainable '{example}', or {EXPORT}",
        counted(list.len(), "tensor"),
        if list.len() == 1 { "stays" } else { "stay" },
        some_of(&list)
    ))
}

/// Biases and scales that several normalisations, convolutions or products use, in models from PyTorch.
fn merged(source: &Source<'_>, params: &BTreeMap<&str, usize>) -> Vec<String> {
    if !source.model.producer.starts_with("pytorch") {
        return Vec::new();
    }
    // Uses of a vector, and the weights beside it: a layer that is run several times has one.
    let mut uses: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for node in &source.model.graph.nodes {
        let slots: &[usize] = match node.op.as_str() {
            "Conv" | "Gemm" => &[2],
            "BatchNormalization" | "LayerNormalization" => &[1, 2],
            _ => continue,
        };
        let weight = if *slots == [2] { node.inputs.get(1) } else { node.outputs.first() };
        for name in slots.iter().filter_map(|&i| node.inputs.get(i)) {
            if params.get(name.as_str()) == Some(&1) {
                let (count, weights) = uses.entry(name).or_default();
                *count += 1;
                weights.extend(weight.map(String::as_str));
            }
        }
    }
    let several = uses.into_iter().filter(|(_, (_, weights))| weights.len() > 1);
    several.map(|(name, (n, _))| format!("`{name}`, {n} uses")).collect()
}
