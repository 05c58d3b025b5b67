//! Imports ONNX training graphs into the graph IR.
//!
//! Four kinds of model are understood: ONNX Runtime training artifacts (`training_model.onnx`, with
//! `optimizer_model.onnx` and `checkpoint` beside it), one-file training steps whose inputs and outputs are the state
//! before and after the step, models whose `TrainingInfoProto` has the training algorithm, and forward models, to which
//! a loss, gradients and an optimizer are added. Symbolic dimensions must be given sizes.
//!
//! A model file is hostile until shown otherwise: nothing here panics, recurses on the file's structure, opens a
//! file outside the model's folder, or allocates by a number that was not compared with bytes that exist. The
//! importer only translates and does not simplify; gradients come from [`memc_ir::autodiff`], and a caller that wants the
//! forward part simplified before can have it ([`read`]).
//!
//! ```no_run
//! use memc_frontend::{ImportOptions, import};
//!
//! let import = import("models/cnn_bn/training_model.onnx".as_ref(), &ImportOptions::default())?;
//! println!("{} ops, {}", import.module.order.len(), import.notes.join("; "));
//! # Ok::<(), memc_frontend::ImportError>(())
//! ```

mod advice;
mod checkpoint;
mod compose;
mod constants;
mod context;
mod error;
mod external;
mod forward;
mod graph;
mod inference;
mod initial;
mod model;
mod node;
mod ops;
mod optimizer;
mod proto;
mod ranges;
mod recipe;
mod registry;
mod screen;
mod source;
mod standard;
mod step;
mod tensor;
mod training;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memc_ir::{Module, Role, TensorType, counted};

pub use error::ImportError;
pub use recipe::{ClassAxis, Loss, LossKind, OptimizerSpec, losses, optimizers};

use error::some_of;
use external::Folder;
use source::Source;

/// Most micro-steps of one step that [`ImportOptions::accumulate`] may ask for.
pub const MAX_ACCUMULATE: u32 = 1024;

/// What to tell the user of a step without an optimizer.
pub(crate) const NOTHING_TRAINED: &str =
    "there is no optimizer: memrun computes gradients, and the parameters stay as they are";

/// How many states of each role a step has and what it is fed, for the user to check.
pub(crate) fn contents(m: &Module) -> String {
    let count = |role| m.states.values().filter(|s| s.role == role).count();
    let data: Vec<&str> = m.inputs.values().map(|x| m.values[x.value].name.as_str()).collect();
    format!(
        "{}, {} frozen, {}, {}, fed per step: {}",
        counted(count(Role::Param), "parameter"),
        count(Role::Frozen),
        counted(count(Role::Optimizer), "optimizer tensor"),
        counted(count(Role::Buffer), "buffer"),
        some_of(&data)
    )
}

/// How a model is to be understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportOptions {
    /// Optimizer model of training artifacts; looked for beside the training model when absent.
    pub optimizer_model: Option<PathBuf>,
    /// Initial values: an ONNX Runtime checkpoint or a safetensors file, told apart by content. Looked for
    /// beside the training model of training artifacts when absent.
    pub checkpoint: Option<PathBuf>,
    /// Leave the optimizer out: gradients become outputs.
    pub no_optimizer: bool,
    /// Pairs (input, output) of a one-file step: the input is state that becomes the output. An input paired
    /// with itself is state that does not change. These come before the pairs found by name.
    pub carry: Vec<(String, String)>,
    /// Micro-steps per optimizer step of training artifacts and forward models, from 1 to [`MAX_ACCUMULATE`]; large
    /// graphs allow fewer, because each adds the graph's nodes to the module.
    pub accumulate: u32,
    /// Sizes of symbolic dimensions.
    pub dims: Vec<(String, u64)>,
    /// Loss of a forward model.
    pub loss: Option<Loss>,
    /// Optimizer of a forward model; without one, gradients become outputs.
    pub optimizer: Option<OptimizerSpec>,
    /// Patterns of the parameters of a forward model that are trained; all when empty. `*` stands for any characters.
    pub trainable: Vec<String>,
    /// Patterns of the parameters of a forward model that are not trained.
    pub freeze: Vec<String>,
    /// Seed of dropout and of random initial values without a seed of their own.
    pub seed: i64,
}

impl ImportOptions {
    /// Whether there are options that only forward models have.
    fn has_recipe(&self) -> bool {
        self.no_recipe("").is_err()
    }

    /// Refuses options that only forward models have, because of `what` the model is.
    fn no_recipe(&self, what: &str) -> Result<(), ImportError> {
        let given = match self {
            Self { loss: Some(loss), .. } => format!("--loss {loss}"),
            Self { optimizer: Some(optimizer), .. } => format!("--optimizer {}", optimizer.name()),
            Self { trainable, .. } if !trainable.is_empty() => format!("--trainable {}", trainable[0]),
            Self { freeze, .. } if !freeze.is_empty() => format!("--freeze {}", freeze[0]),
            _ => return Ok(()),
        };
        Err(ImportError::Usage(format!("{given} is for forward models, but {what}; leave it out")))
    }
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            optimizer_model: None,
            checkpoint: None,
            no_optimizer: false,
            carry: Vec::new(),
            accumulate: 1,
            dims: Vec::new(),
            loss: None,
            optimizer: None,
            trainable: Vec::new(),
            freeze: Vec::new(),
            seed: 0,
        }
    }
}

/// An imported model.
#[derive(Clone, PartialEq, Debug)]
pub struct Import {
    /// The training step: graph phase, operands before their users.
    pub module: Module,
    /// What was found and how it was understood, one sentence each.
    pub notes: Vec<String>,
    /// What the user may not have wanted, one sentence each.
    pub warnings: Vec<String>,
}

/// A model as read: a forward model is its forward part alone, with its loss, until [`Draft::complete`].
///
/// In between, a caller may rewrite the forward part, so that gradients are taken of ops that are better to train with
/// than those that the exporter wrote. States and outputs must keep their names and order.
#[derive(Debug)]
pub struct Draft {
    /// Graph phase, operands before their users.
    pub module: Module,
    notes: Vec<String>,
    warnings: Vec<String>,
    recipe: Option<forward::complete::Recipe>,
}

impl Draft {
    /// A training step that is complete as it is.
    fn finished(import: Import) -> Draft {
        let Import { module, notes, warnings } = import;
        Draft { module, notes, warnings, recipe: None }
    }

    /// Whether gradients and an optimizer are yet to be added.
    pub fn is_forward(&self) -> bool {
        self.recipe.is_some()
    }

    /// The training step.
    ///
    /// # Errors
    ///
    /// [`ImportError::Unsupported`] where an op has no gradient, [`ImportError::Usage`] where the loss depends on no
    /// parameter, [`ImportError::BadModel`] where the checkpoint does not fit the optimizer.
    pub fn complete(mut self) -> Result<Import, ImportError> {
        match self.recipe.take() {
            Some(recipe) => forward::complete::complete(self, recipe),
            None => Ok(Import { module: self.module, notes: self.notes, warnings: self.warnings }),
        }
    }
}

/// Imports the model in file `path`: [`read`] and [`Draft::complete`].
///
/// Files that belong to it are looked for in the same folder; [`Import::notes`] names those that were used.
pub fn import(path: &Path, options: &ImportOptions) -> Result<Import, ImportError> {
    read(path, options)?.complete()
}

/// Reads the model in file `path`.
///
/// # Errors
///
/// All of [`ImportError`].
pub fn read(path: &Path, options: &ImportOptions) -> Result<Draft, ImportError> {
    let bytes = initial::read_file(path, screen::MAX_FILE_BYTES)?;
    let folder = Folder::of(path).map_err(|e| ImportError::io(path, e))?;
    read_from(&bytes, Some(path), Some(&folder), options)
}

/// Imports a model from memory: as [`import`], but there is no folder to look for other files in.
pub fn import_bytes(bytes: &[u8], options: &ImportOptions) -> Result<Import, ImportError> {
    read_from(bytes, None, None, options)?.complete()
}

/// Imports a plain graph from memory as it is, with nothing to train: inputs are fed, initializers are constants,
/// outputs are results in the graph's order. Of `options` only the sizes of dimensions count.
pub fn import_inference(bytes: &[u8], options: &ImportOptions) -> Result<Import, ImportError> {
    let source = Source::read(bytes, None, None, &options.dims)?;
    let mut import = inference::import(&source, &BTreeMap::new())?;
    import.warnings = source.warnings();
    Ok(import)
}

/// What a graph input is to [`import_bound`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Binding {
    /// Fed with tensors of this type.
    Fed(TensorType),
    /// A constant: its type and its elements, dense, little-endian, row-major.
    Constant(TensorType, Arc<[u8]>),
}

/// Imports a plain graph as [`import_inference`], but each graph input is what `inputs` says, whatever shape the
/// model declares for it.
///
/// # Errors
///
/// Those of [`import_bytes`]; an input that `inputs` lacks must be an initializer too.
pub fn import_bound(bytes: &[u8], inputs: &BTreeMap<String, Binding>) -> Result<Import, ImportError> {
    let source = Source::read_untyped(bytes, None)?;
    let mut import = inference::import(&source, inputs)?;
    import.warnings = source.warnings();
    Ok(import)
}

/// The names of a model's graph inputs and graph outputs, in order.
pub fn interface(bytes: &[u8]) -> Result<(Vec<String>, Vec<String>), ImportError> {
    let graph = proto::decode(bytes)?.graph;
    let names = |list: Vec<model::ValueInfo>| list.into_iter().map(|v| v.name).collect();
    Ok((names(graph.inputs), names(graph.outputs)))
}

/// Reads a serialised `TensorProto`, the form in which the standard keeps tensors in files of their own.
///
/// # Errors
///
/// [`ImportError::BadModel`] for damaged bytes, [`ImportError::Unsupported`] for an element type that the IR lacks.
pub fn read_tensor(bytes: &[u8]) -> Result<(TensorType, Arc<[u8]>), ImportError> {
    let tensor = proto::decode_tensor(bytes)?;
    if let Err(e) = tensor::dtype(tensor.dtype) {
        return Err(ImportError::Unsupported(e));
    }
    let none = |_: &[(String, String)], _: u64| Err("its data is in another file".to_string());
    let literal = tensor::Literal::from_tensor(tensor, none).map_err(ImportError::BadModel)?;
    Ok((literal.ty, literal.data))
}

fn read_from(
    bytes: &[u8],
    path: Option<&Path>,
    folder: Option<&Folder>,
    options: &ImportOptions,
) -> Result<Draft, ImportError> {
    if !(1..=MAX_ACCUMULATE).contains(&options.accumulate) {
        return Err(ImportError::Usage(format!(
            "the number of micro-steps must be between 1 and {MAX_ACCUMULATE}, not {}",
            options.accumulate
        )));
    }
    let mut source = Source::read_step(bytes, path, folder, &options.dims)?;
    let artifacts = source.model.graph.nodes.iter().any(training::is_accumulator);
    let forward = options.loss.is_some()
        || source.model.training.is_some()
        || (options.has_recipe() && !step::recognises(&source));
    let mut draft = match () {
        () if artifacts => Draft::finished(training::import(&source, options)?),
        () if source.algorithm.is_some() => Draft::finished(standard::import(&source, options)?),
        () if forward && options.carry.is_empty() => forward::import(&mut source, options)?,
        () => Draft::finished(step::import(&source, options)?),
    };
    draft.warnings.splice(0..0, source.warnings());
    let params = || draft.module.states.values().filter(|s| s.role == Role::Param);
    let idle = !draft.is_forward() && params().next().is_some() && params().all(|s| s.next.is_none());
    if idle && !options.no_optimizer {
        draft.warnings.push(format!(
            "{NOTHING_TRAINED}; give a model that contains its optimizer, or an optimizer model"
        ));
    }
    ranges::derive(&mut draft.module);
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the producer declares a value's type, the importer infers the same, for every committed model.
    #[test]
    fn inferred_types_are_the_declared_ones() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
        let mut compared = 0;
        for name in ["mlp_s", "mlp_s_mse", "cnn_bn", "resnet_tiny", "bert_tiny_nodrop"] {
            compared += compare(&models.join(name).join("training_model.onnx"));
        }
        for name in ["mlp_s_step", "cnn_bn_step", "bert_tiny_nodrop_step"] {
            for optimizer in ["sgd", "momentum", "adamw"] {
                compared += compare(&models.join(name).join(format!("{optimizer}.onnx")));
            }
        }
        assert!(compared > 2000, "only {compared} values were compared");
    }

    fn compare(path: &Path) -> usize {
        let bytes = std::fs::read(path).expect("committed model");
        let model = proto::decode(&bytes).expect("decode");
        let module = import(path, &ImportOptions::default()).expect("import").module;
        let mut compared = 0;
        for (name, ty) in graph::declared_types(&model.graph.value_info, &[]) {
            if let Some(value) = module.value_named(name) {
                assert_eq!(module.values[value].ty, ty, "`{name}` in {}", path.display());
                compared += 1;
            }
        }
        compared
    }
}
