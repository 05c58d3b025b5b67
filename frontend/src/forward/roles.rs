//! Statements of options and file about which tensors are parameters, and doubts where there are none.

use std::collections::{BTreeMap, BTreeSet};

use glob::Pattern;
use memc_ir::{TensorType, counted};

use super::lost::statistic;
use crate::ImportOptions;
use crate::error::{ImportError, some_of};
use crate::model::TensorKind;
use crate::source::Source;

/// Statements about a model's tensors, the strongest alone: `--parameters`, the model's entry
/// `memc.parameters`, the kinds that the exporter noted.
pub(super) struct Roles<'a> {
    listed: Option<Listed>,
    kinds: &'a BTreeMap<String, TensorKind>,
}

/// A complete list of the parameters.
struct Listed {
    /// The list's origin, for messages.
    by: &'static str,
    /// Escaped names.
    names: BTreeSet<String>,
    /// Other patterns.
    globs: Vec<Pattern>,
}

impl Listed {
    fn new(by: &'static str, patterns: &[String]) -> Result<Listed, ImportError> {
        let mut out = Listed { by, names: BTreeSet::new(), globs: Vec::new() };
        for text in patterns {
            let pattern = Pattern::new(text).map_err(|e| ImportError::Usage(format!("{by} {text}: {e}")))?;
            // Without its brackets an escaped name has no wildcard left.
            let plain = ["[*]", "[?]", "[[]", "[]]"].iter().fold(text.clone(), |s, e| s.replace(e, ""));
            if plain.contains(['*', '?', '[']) {
                out.globs.push(pattern);
            } else {
                out.names.insert(text.clone());
            }
        }
        Ok(out)
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(&Pattern::escape(name)) || self.globs.iter().any(|g| g.matches(name))
    }
}

impl<'a> Roles<'a> {
    pub(super) fn of(source: &'a Source<'a>, options: &ImportOptions) -> Result<Roles<'a>, ImportError> {
        let listed = match &source.model.parameters {
            _ if !options.parameters.is_empty() => Some(Listed::new("--parameters", &options.parameters)?),
            Some(names) => {
                let escaped: Vec<String> = names.iter().map(|name| Pattern::escape(name)).collect();
                Some(Listed::new("`memc.parameters` of the model", &escaped)?)
            }
            None => None,
        };
        Ok(Roles { listed, kinds: &source.model.graph.kinds })
    }

    /// Whether `name` is a parameter; `None` where nothing says so.
    pub(super) fn parameter(&self, name: &str) -> Option<bool> {
        match &self.listed {
            Some(listed) => Some(listed.has(name)),
            None => self.kinds.get(name).map(|kind| *kind == TensorKind::Parameter),
        }
    }

    /// Whether `name`, which is no parameter, persists: a buffer, or a parameter that is not trained.
    pub(super) fn persists(&self, name: &str) -> bool {
        self.kinds.get(name) != Some(&TensorKind::Constant)
    }

    /// Note on frozen parameters, where no option says which are.
    pub(super) fn unsaid(&self, trainable: &[String], freeze: &[String]) -> Option<String> {
        if self.listed.is_some() || !trainable.is_empty() || !freeze.is_empty() {
            return None;
        }
        let is_known = self.kinds.values().any(|kind| *kind == TensorKind::Parameter);
        let told = if is_known {
            "the file says which tensors are parameters, but not which have requires_grad=False"
        } else {
            "the file does not say which tensors are parameters, nor which have requires_grad=False"
        };
        Some(format!(
            "{told}: all are trained; --parameters FILE lists those that should be, --freeze GLOB those that \
             should not"
        ))
    }

    /// Warning about listed names that no tensor of `used` has.
    ///
    /// # Errors
    ///
    /// [`ImportError::Usage`] where none of the list is a tensor of the model.
    pub(super) fn unused(&self, used: &[&str]) -> Result<Option<String>, ImportError> {
        let Some(Listed { by, names, globs }) = &self.listed else { return Ok(None) };
        let present: BTreeSet<String> = used.iter().map(|name| Pattern::escape(name)).collect();
        let mut absent: Vec<String> = names.difference(&present).map(|name| format!("`{name}`")).collect();
        let idle = |g: &&Pattern| !used.iter().any(|name| g.matches(name));
        absent.extend(globs.iter().filter(idle).map(|g| format!("`{g}`")));
        if absent.is_empty() {
            return Ok(None);
        }
        if absent.len() == names.len() + globs.len() {
            return Err(ImportError::Usage(format!(
                "{by} matches no tensor of the model: it has {}, the model has {}",
                some_of(&absent),
                some_of(used)
            )));
        }
        let unlisted: Vec<&str> =
            used.iter().copied().filter(|name| !self.parameter(name).unwrap_or(false)).collect();
        let meant = names.difference(&present).find_map(|name| crate::initial::nearest(name, &unlisted));
        let meant = meant.map(|name| format!("`{name}` is not listed and stays as it is: is it meant?"));
        Ok(Some(format!(
            "{by} has {} that the graph does not use: {}; {}",
            counted(absent.len(), "name"),
            some_of(&absent),
            meant.as_deref().unwrap_or("weights that are tied in PyTorch have one name in ONNX")
        )))
    }
}

/// Warning about tensors that are trained by a guess, and are called and used like no layer's weight or bias.
pub(super) fn doubts(source: &Source<'_>, guessed: &[(&str, TensorType, bool)]) -> Option<String> {
    let normalised: BTreeSet<&str> = source
        .model
        .graph
        .nodes
        .iter()
        .filter(|n| n.op == "BatchNormalization")
        .flat_map(|n| n.inputs.iter().map(String::as_str))
        .collect();
    let layers = |name: &str| {
        let Some(prefix) = name.strip_suffix("weight").or_else(|| name.strip_suffix("bias")) else {
            return false;
        };
        // Frozen batch normalisation keeps scale and shift as buffers beside its statistics.
        let frozen =
            !normalised.contains(name) && source.literals.contains_key(&format!("{prefix}running_var"));
        (prefix.is_empty() || prefix.ends_with(['.', '/'])) && !frozen
    };
    let list: Vec<String> = guessed
        .iter()
        .filter(|(name, _, weight)| !weight && !layers(name) && !statistic(name))
        .map(|(name, ..)| format!("`{name}`"))
        .collect();
    let first = list.first()?.trim_matches('`');
    Some(format!(
        "{} trained as {}, though {} no layer's weight or bias: {}; the file does not say which tensors are \
         parameters, so name them with --parameters FILE, or leave a buffer as it is with --freeze '{}'",
        counted(list.len(), "tensor"),
        if list.len() == 1 { "a parameter" } else { "parameters" },
        if list.len() == 1 { "it is" } else { "they are" },
        some_of(&list),
        Pattern::escape(first)
    ))
}
