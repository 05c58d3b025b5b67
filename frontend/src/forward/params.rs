//! Roles of the tensors of a forward model: parameters, statistics, constants, or data.
//!
//! A parameter is a float initializer that ops use as a value, and that is named as one: by `--parameters`,
//! by the model's entry `memc.parameters`, or by the kind that PyTorch's newer exporter notes. Where none of
//! them tells, a guess stands in: it has the name of a module's tensor, or is a weight of a layer.
//! `--trainable` with a full name makes any such initializer a parameter. A parameter is also a graph input
//! that the initialization graph, the file's own list of moved weights or the checkpoint gives a value.
//! Statistics are what batch normalisation in training mode updates.

use std::collections::{BTreeMap, BTreeSet};

use glob::Pattern;
use memc_ir::{Blob, Init, Role, TensorType, counted};

use super::lost::{generated, statistic, trains};
use super::roles::{Roles, doubts};
use super::statistics;
use crate::ImportOptions;
use crate::error::{ImportError, some_of};
use crate::initial::{Initial, synthetic};
use crate::model::Node;
use crate::source::Source;

/// A tensor that persists between steps.
#[derive(Debug)]
pub(super) struct Persistent<'a> {
    pub name: &'a str,
    pub ty: TensorType,
    pub role: Role,
    pub init: Init,
}

/// Tensors that persist, in the order of the file.
#[derive(Debug)]
pub(super) struct Persistents<'a> {
    pub list: Vec<Persistent<'a>>,
    /// For every statistic the output of its node that is its next value.
    pub updates: BTreeMap<&'a str, &'a str>,
    /// Number that started with invented values.
    pub invented: usize,
    /// Tensors that may be parameters that the exporter folded, and stay constant.
    pub constants: Vec<&'a str>,
    /// Effects of the options and doubts about the choice.
    pub told: Told,
}

/// Notes and warnings on what is trained.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub notes: Vec<String>,
    pub warnings: Vec<String>,
}

/// Finds the tensors that persist. `inits` are contents by the initialization graph.
pub(super) fn find<'a>(
    source: &'a Source<'a>,
    options: &ImportOptions,
    checkpoint: Option<&Initial>,
    inits: &BTreeMap<String, Init>,
) -> Result<Persistents<'a>, ImportError> {
    let graph = &source.model.graph;
    let updates = updates(source);
    let uses = Uses::of(source);
    let moved: BTreeSet<&str> = source.model.moved_weights.iter().map(String::as_str).collect();
    let roles = Roles::of(source, options)?;
    let statistics = statistics_of(source);
    let (mut found, mut constants, mut guessed): (Vec<Found<'_>>, Vec<&str>, Vec<_>) = Default::default();
    for input in &graph.inputs {
        let name = input.name.as_str();
        let known = moved.contains(name) || inits.contains_key(name);
        let stored = checkpoint.is_some_and(|c| c.has(name));
        if !source.literals.contains_key(name) && (known || stored) {
            found.push(Found { name, ty: source.input_type(name)?, parameter: true });
        }
    }
    for (name, literal) in &source.literals {
        let float = literal.ty.dtype.is_float();
        let named = options.trainable.iter().any(|t| t == name || *t == Pattern::escape(name));
        if named && !updates.contains_key(name.as_str()) {
            uses.trainable(name, &literal.ty)?;
        }
        let updated = updates.contains_key(name.as_str());
        let (told, guess) = (roles.parameter(name), uses.parameter(source, name, &literal.ty));
        let parameter = told.map_or(guess, |told| told && uses.values.contains(name.as_str()));
        let persists = guess && roles.persists(name);
        if float && (named || updated || parameter || persists || statistics.contains(name.as_str())) {
            found.push(Found { name, ty: literal.ty.clone(), parameter: named || parameter });
            if told.is_none() && guess && !named && !updated {
                guessed.push((name.as_str(), literal.ty.clone(), uses.weights.contains(name.as_str())));
            }
        } else if told.is_none()
            && float
            && literal.ty.numel() > 1
            && generated(name)
            && uses.operands.contains(name.as_str())
        {
            constants.push(name);
        }
    }
    let mut out = Persistents { list: Vec::new(), updates, invented: 0, constants, told: Told::default() };
    let used: Vec<&str> =
        source.literals.keys().map(String::as_str).filter(|n| uses.values.contains(n)).collect();
    out.told.warnings.extend(roles.unused(&used)?);
    let fixed = |name: &str| statistics.contains(name) || statistic(name) || !uses.values.contains(name);
    let filter = Filter::new(options, &found, fixed)?;
    guessed.retain(|(name, ..)| !fixed(name) && filter.silent(name));
    if !options.is_evaluation() {
        out.told.warnings.extend(doubts(source, &guessed));
    }
    for Found { name, ty, parameter } in found {
        let role = match () {
            () if options.is_inference() => Role::Frozen,
            () if out.updates.contains_key(name) && options.is_evaluation() => Role::Frozen,
            () if out.updates.contains_key(name) => Role::Buffer,
            () if parameter && ty.dtype.is_float() && !fixed(name) && filter.trains(name) => Role::Param,
            () => Role::Frozen,
        };
        let stored = checkpoint.map(|c| c.get(name, &ty)).transpose()?.flatten();
        let init = match (stored, inits.get(name), source.literals.get(name)) {
            (Some(init), _, _) => init,
            (None, Some(init), _) => init.clone(),
            (None, None, Some(literal)) => Init::Data(Blob::new(literal.data.clone())),
            (None, None, None) => {
                out.invented += 1;
                synthetic(name, &ty, role)
            }
        };
        out.list.push(Persistent { name, ty, role, init });
    }
    out.told.notes = filter.notes;
    if !options.is_evaluation() {
        out.told.notes.extend(roles.unsaid(&options.trainable, &options.freeze));
    }
    Ok(out)
}

/// Statistics with the output that is their next value.
fn updates<'a>(source: &'a Source<'a>) -> BTreeMap<&'a str, &'a str> {
    let mut out: BTreeMap<&str, &str> = BTreeMap::new();
    // Stored statistics by the results that are their values so far.
    let mut stored: BTreeMap<&str, &str> = BTreeMap::new();
    let nodes = source.order.iter().filter_map(|&i| source.model.graph.nodes.get(i));
    for node in nodes.filter(|n| statistics::is_norm(n)) {
        for (i, o, _) in statistics::SLOTS {
            let next = node.outputs.get(o).filter(|name| trains(source, node) && !name.is_empty());
            let from = node.inputs.get(i).map(|from| stored.get(from.as_str()).copied().unwrap_or(from));
            if let (Some(from), Some(to)) = (from, next) {
                stored.insert(to, from);
                out.insert(from, to);
            }
        }
    }
    out
}

/// Statistics of all batch normalisations. Fixed ones persist too: an evaluation reads them, and so do those
/// who load the states.
fn statistics_of<'a>(source: &'a Source<'_>) -> BTreeSet<&'a str> {
    let norms = source.model.graph.nodes.iter().filter(|n| statistics::is_norm(n));
    let inputs = norms.flat_map(|n| statistics::SLOTS.iter().filter_map(|(i, ..)| n.inputs.get(*i)));
    inputs.map(String::as_str).collect()
}

/// A tensor that persists.
struct Found<'a> {
    name: &'a str,
    ty: TensorType,
    /// Whether it is a parameter, unless frozen.
    parameter: bool,
}

/// Uses of each name by nodes.
pub(crate) struct Uses<'a> {
    /// Names that some node uses as a value, not as an attribute in disguise.
    values: BTreeSet<&'a str>,
    /// Names that some node uses as the weight of a layer.
    weights: BTreeSet<&'a str>,
    /// Names that some node computes with, together with a computed tensor.
    operands: BTreeSet<&'a str>,
}

impl<'a> Uses<'a> {
    pub(crate) fn of(source: &'a Source<'_>) -> Uses<'a> {
        let mut uses = Uses { values: BTreeSet::new(), weights: BTreeSet::new(), operands: BTreeSet::new() };
        let nodes = &source.model.graph.nodes;
        let makers: BTreeMap<&str, &Node> =
            nodes.iter().flat_map(|n| n.outputs.iter().map(move |o| (o.as_str(), n))).collect();
        for node in nodes {
            for (i, name) in node.inputs.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
                let op = node.op.as_str();
                let disguised = match op {
                    "Clip" | "Dropout" | "Reshape" | "Expand" | "Tile" | "Slice" | "Split" => i > 0,
                    "Unsqueeze" | "Squeeze" | "ReduceSum" | "ReduceMean" | "ReduceMax" => i > 0,
                    "Pad" | "Resize" | "OneHot" => i > 0,
                    "Range" | "ConstantOfShape" | "Shape" | "CastLike" => true,
                    "BatchNormalization" => i > 2,
                    "SoftmaxCrossEntropyLoss" | "NegativeLogLikelihoodLoss" => i > 0,
                    "Where" => i == 0,
                    _ => false,
                };
                if disguised {
                    continue;
                }
                uses.values.insert(name);
                let weight = match op {
                    "Conv" | "ConvTranspose" | "Gemm" | "LayerNormalization" | "BatchNormalization" => i > 0,
                    "LSTM" | "GRU" | "RNN" => (1..=3).contains(&i),
                    "GroupNormalization" => i > 0,
                    "MatMul" => true,
                    "Gather" => i == 0,
                    "PRelu" => i == 1,
                    "Mul" | "Add" => affine(source, &makers, node, i),
                    _ => false,
                };
                if ["Add", "Sub", "Mul", "Div", "Pow", "PRelu"].contains(&op)
                    && node.inputs.iter().any(|n| makers.contains_key(n.as_str()))
                {
                    uses.operands.insert(name);
                }
                if weight {
                    uses.weights.insert(name);
                }
            }
        }
        uses
    }

    /// Refuses an initializer that the user wants trained, but cannot be.
    fn trainable(&self, name: &str, ty: &TensorType) -> Result<(), ImportError> {
        let why = match () {
            () if !ty.dtype.is_float() => format!("it is {ty}, and only floats are trained"),
            () if statistic(name) => "running statistics are not trained by gradients".into(),
            () if !self.values.contains(name) => {
                "nodes use it only as a bound, shape or other setting, which has no gradient".into()
            }
            () => return Ok(()),
        };
        Err(ImportError::Usage(format!("--trainable {name}: {why}")))
    }

    /// Whether initializer `name` is a parameter, by a guess.
    pub(crate) fn parameter(&self, source: &Source<'_>, name: &str, ty: &TensorType) -> bool {
        if !self.values.contains(name) {
            return false;
        }
        if generated(name) {
            return self.weights.contains(name) && ty.rank() > 0;
        }
        // PyTorch's exporter makes up names for constants. Elsewhere one number is a parameter only where it
        // is called like a module's.
        let pytorch = source.model.producer.starts_with("pytorch");
        pytorch || ty.numel() > 1 || self.weights.contains(name) || name.contains('.')
    }
}

/// Whether input `i` of a product or sum scales or shifts the channels of what a normalisation gave, as
/// exporters write group normalisation.
fn affine(source: &Source<'_>, makers: &BTreeMap<&str, &Node>, node: &Node, i: usize) -> bool {
    let vector = |name: &str| {
        let shape = source.literals.get(name).map(|l| &l.ty.shape);
        shape.is_some_and(|s| s.iter().filter(|&&n| n != 1).count() == 1)
    };
    let other = |node: &Node, i: usize| node.inputs.get(1 - i.min(1)).cloned().unwrap_or_default();
    if !node.inputs.get(i).is_some_and(|name| vector(name)) {
        return false;
    }
    let mut at = other(node, i);
    // Exporters write at most a reshape back and the scale in between.
    for _ in 0..6 {
        let Some(maker) = makers.get(at.as_str()) else { return false };
        at = match maker.op.as_str() {
            "InstanceNormalization" | "GroupNormalization" | "BatchNormalization" | "LayerNormalization" => {
                return true;
            }
            "Reshape" | "Identity" | "Cast" => maker.inputs.first().cloned().unwrap_or_default(),
            "Mul" => match maker.inputs.iter().position(|name| vector(name)) {
                Some(scale) => other(maker, scale),
                None => return false,
            },
            _ => return false,
        };
    }
    false
}

/// Which parameters the user wants trained.
struct Filter {
    trainable: Vec<Pattern>,
    freeze: Vec<Pattern>,
    /// Parameters that each pattern matched.
    notes: Vec<String>,
}

impl Filter {
    /// Refuses patterns that no parameter matches.
    fn new(
        options: &ImportOptions,
        found: &[Found<'_>],
        fixed: impl Fn(&str) -> bool,
    ) -> Result<Filter, ImportError> {
        let names: Vec<&str> = found.iter().map(|f| f.name).filter(|n| !fixed(n)).collect();
        let mut notes = Vec::new();
        let mut read = |flag: &str, list: &[String]| {
            let mut out = Vec::new();
            for text in list {
                let pattern = Pattern::new(text).map_err(|e| {
                    ImportError::Usage(format!("{flag} {text}: {e}; write for instance {flag} 'layer4.*'"))
                })?;
                let matched: Vec<&str> = names.iter().copied().filter(|n| pattern.matches(n)).collect();
                if matched.is_empty() {
                    return Err(ImportError::Usage(format!(
                        "{flag} {text} matches no parameter; the model has {}",
                        some_of(&names)
                    )));
                }
                let number = counted(matched.len(), "parameter");
                notes.push(format!("{flag} {text}: {number}, {}", some_of(&matched)));
                out.push(pattern);
            }
            Ok(out)
        };
        let trainable = read("--trainable", &options.trainable)?;
        let freeze = read("--freeze", &options.freeze)?;
        Ok(Filter { trainable, freeze, notes })
    }

    /// Whether no option but a lone `*` says anything about `name`.
    fn silent(&self, name: &str) -> bool {
        let says = |p: &&Pattern| p.as_str() != "*" && p.matches(name);
        self.trains(name) && !self.trainable.iter().any(|p| says(&p))
    }

    fn trains(&self, name: &str) -> bool {
        let wanted = self.trainable.is_empty() || self.trainable.iter().any(|p| p.matches(name));
        wanted && !self.freeze.iter().any(|p| p.matches(name))
    }
}
