//! Initial contents of a step's persistent tensors: from a checkpoint, or synthetic.
//!
//! A checkpoint is an ONNX Runtime training checkpoint or a safetensors file, told apart by content.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use glob::Pattern;
use memc_ir::attr::F32;
use memc_ir::{Blob, DType, Data, Feed, Init, Module, Role, TensorType, Value, counted};
use memc_support::FileKind;
use safetensors::{Dtype, SafeTensors};

use crate::checkpoint;
use crate::error::{ImportError, some_of};
use crate::tensor::Literal;

/// A whole file of at most `limit` bytes, in place where it is a regular file.
pub(crate) fn read_file(path: &Path, limit: u64) -> Result<Data, ImportError> {
    let io = |e| ImportError::io(path, e);
    let file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if meta.is_dir() {
        return Err(ImportError::io(path, std::io::ErrorKind::IsADirectory.into()));
    }
    if meta.len() > limit {
        let text = format!("`{}` has {} bytes, the format allows {limit}", path.display(), meta.len());
        return Err(ImportError::BadModel(text));
    }
    if meta.is_file() {
        return memc_support::map(&file).map(Data::from).map_err(io);
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes.into())
}

/// Advice on a file that is no model, by its kind.
pub(crate) fn other_file(head: &[u8]) -> Option<&'static str> {
    match FileKind::of(head)? {
        FileKind::Archive => Some(
            "it is an archive, as torch.save writes; export the model with torch.onnx.export, and give its \
             weights as safetensors",
        ),
        FileKind::Plan => Some("it is a plan that memc wrote; `memc check` proves it, and memrun runs it"),
        FileKind::Array => Some("it is a NumPy array; memrun feeds it with --input"),
        FileKind::Safetensors => {
            Some("it is a safetensors file, which has weights alone; give it with --checkpoint")
        }
        FileKind::OrtCheckpoint => {
            Some("it is a checkpoint of ONNX Runtime; give it with --checkpoint, and the model beside it")
        }
    }
}

/// Result of comparing a checkpoint with a module, for the user.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Number of states that it sets.
    pub said: Option<String>,
    /// Its tensors that are no states, and states that it does not set.
    pub warnings: Vec<String>,
}

/// The contents of a checkpoint.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Initial {
    /// The file; none when there is no checkpoint.
    path: Option<PathBuf>,
    tensors: BTreeMap<String, Literal>,
    /// Other names of its tensors, by alias: of tensors that share their memory safetensors keeps one.
    aliases: BTreeMap<String, String>,
    /// Names that the checkpoint lists as not trained.
    pub frozen: BTreeSet<String>,
    /// Names that the checkpoint lists as trained; empty when it does not tell.
    pub trained: BTreeSet<String>,
    /// Optimizer steps done.
    pub step: i64,
    /// The learning rate to start with.
    pub learning_rate: Option<f32>,
}

impl Initial {
    /// Reads a checkpoint of either kind.
    pub(crate) fn read(path: &Path) -> Result<Initial, ImportError> {
        let bytes = read_file(path, u64::MAX)?;
        if FileKind::of(&bytes) == Some(FileKind::Archive) {
            return Err(ImportError::Usage(format!(
                "checkpoint `{}` is a file of torch.save, which is a program; write it as safetensors: \
                 safetensors.torch.save_model(model, 'weights.safetensors')",
                path.display()
            )));
        }
        let ort = bytes.get(4..8) == Some(checkpoint::IDENTIFIER.as_slice());
        let found = if ort { Self::from_ort(&bytes) } else { Self::from_safetensors(&bytes) };
        let found = found.map_err(|e| e.within(&format!("checkpoint `{}`", path.display())))?;
        Ok(Initial { path: Some(path.to_path_buf()), ..found })
    }

    fn from_ort(bytes: &Data) -> Result<Initial, ImportError> {
        let read = checkpoint::read(bytes)?;
        let mut out = Initial::default();
        let names = |list: &[(String, Literal)]| list.iter().map(|(n, _)| n.clone()).collect();
        out.trained = names(&read.trainable);
        out.frozen = names(&read.frozen);
        let mut all: Vec<(String, Literal)> = read.trainable.into_iter().chain(read.frozen).collect();
        if read.groups.len() > 1 {
            return Err(ImportError::Unsupported(format!(
                "it has {} optimizer groups, supported is one",
                read.groups.len()
            )));
        }
        for group in read.groups {
            out.step = group.step;
            out.learning_rate = Some(group.learning_rate);
            all.extend(group.moments.into_iter().map(|(p, m, content)| (format!("{p}.{m}"), content)));
        }
        for (name, content) in all {
            if let Some(old) = out.tensors.insert(name, content) {
                return Err(ImportError::BadModel(format!("a tensor of type {} is there twice", old.ty)));
            }
        }
        Ok(out)
    }

    fn from_safetensors(bytes: &Data) -> Result<Initial, ImportError> {
        let bad = |e| {
            ImportError::BadModel(format!("neither an ONNX Runtime checkpoint nor a safetensors file: {e}"))
        };
        let file = SafeTensors::deserialize(bytes).map_err(bad)?;
        let mut out = Initial::default();
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(bad)?;
        for (alias, name) in header.metadata().iter().flatten() {
            if file.tensor(name).is_ok() && file.tensor(alias).is_err() {
                out.aliases.insert(alias.clone(), name.clone());
            }
        }
        for (name, view) in file.tensors() {
            let dtype = match view.dtype() {
                Dtype::F32 => DType::F32,
                Dtype::F16 => DType::F16,
                Dtype::BF16 => DType::BF16,
                Dtype::I8 => DType::I8,
                Dtype::U8 => DType::U8,
                Dtype::I32 => DType::I32,
                Dtype::I64 => DType::I64,
                Dtype::BOOL => DType::Bool,
                // Refused only when the model asks for it.
                _ => continue,
            };
            let shape: Vec<u64> = view.shape().iter().map(|&d| d as u64).collect();
            let literal = Literal::new(TensorType::new(dtype, shape), bytes.share(view.data()));
            let literal = literal.map_err(|e| e.damage(&format!("tensor `{name}`")))?;
            out.tensors.insert(name, literal);
        }
        Ok(out)
    }

    /// Whether the checkpoint has `name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(self.own(name))
    }

    /// The name under which the checkpoint has state `name`.
    fn own<'n>(&'n self, name: &'n str) -> &'n str {
        if self.tensors.contains_key(name) {
            name
        } else {
            self.aliases.get(name).map_or(name, String::as_str)
        }
    }

    /// The content of state `name`; `None` when the checkpoint does not have it, an error when it does not
    /// fit.
    pub(crate) fn get(&self, name: &str, ty: &TensorType) -> Result<Option<Init>, ImportError> {
        let Some(found) = self.tensors.get(self.own(name)) else { return Ok(None) };
        if found.ty != *ty {
            return Err(ImportError::BadModel(format!(
                "`{name}` is {} in the checkpoint and {ty} in the model",
                found.ty
            )));
        }
        Ok(Some(Init::Data(Blob::new(found.data.clone()))))
    }

    /// The error that state `name`, `what` the model calls it, is not in the checkpoint.
    pub(crate) fn lacks(&self, name: &str, what: &str) -> ImportError {
        let names: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
        let hint = nearest(name, &names).map_or(String::new(), |n| format!(" (nearest: `{n}`)"));
        ImportError::BadModel(format!(
            "the checkpoint has no `{name}`, a {what} of the model; it has {}{hint}",
            some_of(&names)
        ))
    }

    /// Sets the optimizer's state and the learning rate of `module`: moments are called `X.momentum0`, the
    /// count of steps is the one integer among them, under its own name where memrun saved it.
    ///
    /// # Errors
    ///
    /// [`ImportError::BadModel`] when a moment does not fit, or is missing in a checkpoint of later than the
    /// first step.
    pub(crate) fn restore_optimizer(&self, module: &mut Module) -> Result<(), ImportError> {
        if let Some(rate) = self.learning_rate {
            for (_, input) in module.inputs.iter_mut() {
                if let Feed::LearningRate { default, .. } = &mut input.feed {
                    *default = F32(rate);
                }
            }
        }
        for (_, state) in module.states.iter_mut().filter(|(_, s)| s.role == Role::Optimizer) {
            let Value { name, ty, .. } = &module.values[state.value];
            if ty.dtype.is_int() && self.has(name) {
                state.init = self.get(name, ty)?.unwrap_or(Init::Zeros);
                continue;
            }
            if ty.dtype.is_int() {
                let init = || Init::Data(Blob::new(self.step.to_le_bytes()));
                state.init = if self.step == 0 { Init::Zeros } else { init() };
                continue;
            }
            state.init = match self.get(name, ty)? {
                Some(init) => init,
                None if self.step == 0 => continue,
                None => {
                    return Err(ImportError::BadModel(format!(
                        "the checkpoint is from step {} but has no `{name}`",
                        self.step
                    )));
                }
            };
        }
        Ok(())
    }

    /// Compares the checkpoint with the states of the finished `module`; nothing when there is no checkpoint.
    ///
    /// # Errors
    ///
    /// [`ImportError::BadModel`] when no state is in the checkpoint, or a parameter is not that no pattern of
    /// `missing` allows to be absent.
    pub(crate) fn compare(&self, module: &Module, missing: &[String]) -> Result<Compared, ImportError> {
        let Some(path) = &self.path else { return Ok(Compared::default()) };
        // An optimizer's state starts at zero when a checkpoint of weights does not have it.
        let (mut set, mut optimizer, mut used) = (0, 0, BTreeSet::new());
        let mut open: Vec<(&str, Role)> = Vec::new();
        for state in module.states.values() {
            let name = module.values[state.value].name.as_str();
            match (self.has(name), state.role) {
                (true, role) => {
                    used.insert(self.own(name));
                    if role == Role::Optimizer { optimizer += 1 } else { set += 1 }
                }
                (false, Role::Optimizer) => {}
                (false, role) => open.push((name, role)),
            }
        }
        let rest: Vec<&str> = self.tensors.keys().map(String::as_str).filter(|n| !used.contains(n)).collect();
        let all: Vec<&str> = open.iter().map(|o| o.0).collect();
        if set + optimizer == 0 {
            return Err(ImportError::BadModel(format!(
                "checkpoint `{}` has no tensor of the model: it has {}, the model has {}; rename its \
                 tensors, or leave --checkpoint out",
                path.display(),
                if rest.is_empty() { "none".into() } else { some_of(&rest) },
                some_of(&all)
            )));
        }
        let near = |name: &&str| nearest(name, &all).map(|to| format!("`{name}` is near `{to}`"));
        let near: Vec<String> = rest.iter().take(COMPARED).filter_map(near).take(3).collect();
        let near = if near.is_empty() { String::new() } else { format!(" ({})", near.join(", ")) };
        // Where nothing is trained, as in inference, frozen weights are all that there is.
        let trains = module.states.values().any(|state| state.role == Role::Param);
        let needed = if trains { Role::Param } else { Role::Frozen };
        let needed: Vec<&str> = open.iter().filter(|o| o.1 == needed).map(|o| o.0).collect();
        refuse_missing(path, needed, missing, &near)?;
        let more = if optimizer == 0 {
            String::new()
        } else {
            format!(", and {}", counted(optimizer, "optimizer tensor"))
        };
        let said = format!("checkpoint: {}, {set} of {} states set{more}", path.display(), set + all.len());
        let mut warnings = Vec::new();
        if !all.is_empty() {
            warnings.push(format!(
                "the checkpoint does not have {}, which keep the model's values: {}",
                counted(all.len(), "state"),
                some_of(&all)
            ));
        }
        if !rest.is_empty() {
            let number = counted(rest.len(), "tensor");
            warnings.push(format!(
                "the checkpoint has {number} that the model does not: {}{near}",
                some_of(&rest)
            ));
        }
        Ok(Compared { said: Some(said), warnings })
    }
}

/// Refuses parameters that the checkpoint lacks and no pattern of `missing` matches.
fn refuse_missing(
    path: &Path,
    mut params: Vec<&str>,
    missing: &[String],
    near: &str,
) -> Result<(), ImportError> {
    let mut allowed = Vec::new();
    for text in missing {
        let pattern =
            Pattern::new(text).map_err(|e| ImportError::Usage(format!("--allow-missing {text}: {e}")))?;
        allowed.push(pattern);
    }
    params.retain(|name| !allowed.iter().any(|pattern| pattern.matches(name)));
    let Some(first) = params.first() else { return Ok(()) };
    Err(ImportError::BadModel(format!(
        "checkpoint `{}` does not have {} of the model: {}{near}; rename its tensors, or let them start \
         with the model's values, as --allow-missing '{}'",
        path.display(),
        counted(params.len(), "parameter"),
        some_of(&params),
        Pattern::escape(first)
    )))
}

/// Most tensors of a checkpoint that are searched for a near name, since each is compared with every state's.
const COMPARED: usize = 32;

/// Of `names` the one that `name` was probably meant to be: they differ in a prefix, or in little.
pub(crate) fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let within =
        |long: &str, short: &str| long.strip_suffix(short).is_some_and(|p| p.ends_with(['.', '/', ':']));
    if let Some(found) = names.iter().find(|n| within(n, name) || within(name, n)) {
        return Some(found);
    }
    let scored = names.iter().map(|n| (strsim::normalized_damerau_levenshtein(name, n), *n));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|b| b.0 >= 0.75).map(|b| b.1)
}

/// Warning about `n` tensors whose values are [`synthetic`].
pub(crate) fn made_up(n: usize) -> String {
    format!("{} had no value and got a synthetic one; give a checkpoint", counted(n, "tensor"))
}

/// A plausible initial content, by role, shape and the usual names of parameters.
pub(crate) fn synthetic(name: &str, ty: &TensorType, role: Role) -> Init {
    let scale = ty.rank() == 1 && name.ends_with("weight") || name.ends_with("running_var");
    match role {
        Role::Optimizer | Role::Gradient => Init::Zeros,
        _ if !ty.dtype.is_float() => Init::Zeros,
        _ if scale => Init::Ones,
        _ if ty.rank() < 2 => Init::Zeros,
        _ => {
            let fan_in: u64 = ty.shape[1..].iter().product::<u64>().max(1);
            let bound = (1.0 / (fan_in as f64).sqrt()) as f32;
            Init::symmetric(name_seed(name, 0), bound)
        }
    }
}

/// A generator key from a tensor's name and a seed, below 2^63: the text form has signed integers.
pub(crate) fn name_seed(name: &str, seed: i64) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..8]);
    (u64::from_le_bytes(bytes) >> 1) ^ (seed.cast_unsigned() >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Norm scales start at one, biases and moments at zero, weights in a range set by their fan-in.
    #[test]
    fn synthetic_contents_follow_the_name() {
        let f = |shape: &[u64]| TensorType::new(DType::F32, shape);
        assert_eq!(synthetic("bn.weight", &f(&[8]), Role::Param), Init::Ones);
        assert_eq!(synthetic("bn.running_var", &f(&[8]), Role::Buffer), Init::Ones);
        assert_eq!(synthetic("bn.running_mean", &f(&[8]), Role::Buffer), Init::Zeros);
        assert_eq!(synthetic("fc.bias", &f(&[8]), Role::Param), Init::Zeros);
        assert_eq!(synthetic("fc.weight", &f(&[8, 4]), Role::Optimizer), Init::Zeros);
        let weight = |name| synthetic(name, &f(&[8, 4, 2, 2]), Role::Param);
        let Init::Uniform { seed, .. } = weight("fc.weight") else {
            panic!("weights are random");
        };
        assert_eq!(weight("fc.weight"), Init::symmetric(seed, 0.25));
        assert_ne!(weight("other.weight"), Init::symmetric(seed, 0.25));
    }

    /// A name is near another that has one more prefix or differs by a typing error, not just any of its
    /// kind.
    #[test]
    fn near_names_are_found() {
        assert_eq!(nearest("module.fc1.weight", &["fc1.bias", "fc1.weight"]), Some("fc1.weight"));
        assert_eq!(nearest("fc1.wieght", &["fc1.bias", "fc1.weight"]), Some("fc1.weight"));
        assert_eq!(nearest("encoder.bias", &["fc1.bias", "fc1.weight"]), None);
    }

    /// Random bytes are neither kind of checkpoint; the message says which kinds there are.
    #[test]
    fn kinds_are_told_apart() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("ckpt");
        std::fs::write(&path, b"\x10\0\0\0ODTCrest of a damaged file").expect("write");
        assert!(
            Initial::read(&path).expect_err("flat").to_string().contains("damaged ONNX Runtime checkpoint")
        );
        std::fs::write(&path, b"something else").expect("write");
        assert!(Initial::read(&path).expect_err("other").to_string().contains("nor a safetensors file"));
        assert!(matches!(Initial::read(&dir.path().join("absent")), Err(ImportError::Io { .. })));
    }
}
