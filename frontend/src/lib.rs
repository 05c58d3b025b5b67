//! Imports ONNX training graphs into the graph IR.
//!
//! Four kinds of model are understood: ONNX Runtime training artifacts (`training_model.onnx`, with
//! `optimizer_model.onnx` and `checkpoint` beside it), one-file training steps whose inputs and outputs are
//! the state before and after the step, models whose `TrainingInfoProto` has the training algorithm, and
//! forward models, to which a loss, gradients and an optimizer are added. Symbolic dimensions must be given
//! sizes.
//!
//! A model file is hostile until shown otherwise: nothing here panics, recurses on the file's structure,
//! opens a file outside the model's folder, or allocates by a number that was not compared with bytes that
//! exist. The importer only translates: it neither simplifies nor adds what is to be trained. A forward
//! model's loss, gradients and optimizer, and the optimizer of training artifacts, are left to passes as a
//! request ([`Import::recipe`]). Gradients that the model itself asks for, by the standard's `Gradient`, are
//! those of [`memc_ir::autodiff`].
//!
//! ```no_run
//! use memc_frontend::{ImportOptions, import};
//!
//! let import = import("models/cnn_bn/training_model.onnx".as_ref(), &ImportOptions::default())?;
//! println!("{} ops, {}", import.module.order.len(), import.notes.join("; "));
//! # Ok::<(), memc_frontend::ImportError>(())
//! ```

mod advice;
mod annotate;
mod checkpoint;
mod compose;
mod constants;
mod context;
mod control;
mod error;
mod external;
mod floats;
mod forward;
mod graph;
mod inference;
mod initial;
mod inline;
mod limits;
mod model;
mod names;
mod ops;
mod optimizer;
mod proto;
mod ranges;
mod registry;
mod screen;
mod source;
mod standard;
mod step;
mod tensor;
mod training;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memc_ir::attr::{F32, Reduction};
use memc_ir::recipe::{Loss, Optimizer, OptimizerSpec, Recipe};
use memc_ir::{Data, Feed, Module, Role, TensorType, counted};

pub use annotate::{Entries, Notes, annotate};
pub use error::ImportError;
pub use names::read_parameter_names;

use error::some_of;
use external::Folder;
use initial::Initial;
use model::Node;
use source::Source;

/// Most micro-steps of one step that [`ImportOptions::accumulate`] may ask for.
pub const MAX_ACCUMULATE: u32 = 1024;

/// Pattern of [`ImportOptions::no_decay`] for biases, scales and other vectors.
pub const VECTORS: &str = "vectors";

/// Note on the gradients of several micro-steps.
pub(crate) fn accumulated(micro_steps: u32, reduction: Reduction) -> String {
    let (done, other) = match reduction {
        Reduction::Sum => ("summed", String::new()),
        _ => ("averaged", format!("; --accumulate {micro_steps}:sum sums them")),
    };
    format!("{micro_steps} micro-steps per step, gradients {done}{other}")
}

/// Warning for a step without an optimizer.
pub(crate) const NOTHING_TRAINED: &str =
    "there is no optimizer: memrun computes gradients, and the parameters stay as they are";

/// States of each role and data inputs of a step, for the user to check.
pub(crate) fn contents(m: &Module) -> String {
    let count = |role| m.states.values().filter(|s| s.role == role).count();
    format!(
        "{}, {} frozen, {}, {}, fed per step: {}",
        counted(count(Role::Param), "parameter"),
        count(Role::Frozen),
        counted(count(Role::Optimizer), "optimizer tensor"),
        counted(count(Role::Buffer), "buffer"),
        some_of(&data_inputs(m))
    )
}

/// Weights, data inputs and outputs of a model in inference, for the user to check.
fn inference_note(m: &Module) -> String {
    let outputs: Vec<&str> = m.outputs.iter().map(|o| o.name.as_str()).collect();
    let (weights, inputs, outputs) =
        (counted(m.states.len(), "weight tensor"), some_of(&data_inputs(m)), some_of(&outputs));
    format!("inference: {weights}, fed per step: {inputs}; outputs: {outputs}")
}

/// Names under which the model takes data, each once.
fn data_inputs(m: &Module) -> Vec<&str> {
    let mut data: Vec<&str> = Vec::new();
    for input in m.inputs.values() {
        if let Feed::Data { source, .. } = &input.feed
            && !data.contains(&source.as_str())
        {
            data.push(source);
        }
    }
    data
}

/// Options of an import.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportOptions {
    /// Optimizer model of training artifacts; looked for beside the training model when absent.
    pub optimizer_model: Option<PathBuf>,
    /// Initial values: an ONNX Runtime checkpoint or a safetensors file, told apart by content. Looked for
    /// beside the training model of training artifacts when absent.
    pub checkpoint: Option<PathBuf>,
    /// Patterns of parameters that the checkpoint may lack: they start with the model's values.
    pub allow_missing: Vec<String>,
    /// Leave the optimizer out: gradients become outputs.
    pub no_optimizer: bool,
    /// Pairs (input, output) of a one-file step: the input is state that becomes the output. An input paired
    /// with itself is state that does not change. These come before the pairs found by name.
    pub carry: Vec<(String, String)>,
    /// Micro-steps per optimizer step of training artifacts and forward models, from 1 to [`MAX_ACCUMULATE`];
    /// large graphs allow fewer, because each adds the graph's nodes to the module.
    pub accumulate: u32,
    /// Sum the gradients of micro-steps instead of averaging them.
    pub sum_gradients: bool,
    /// Sizes of symbolic dimensions.
    pub dims: Vec<(String, u64)>,
    /// Loss of a forward model.
    pub loss: Option<Loss>,
    /// Optimizer of a forward model; without one, gradients become outputs.
    pub optimizer: Option<OptimizerSpec>,
    /// Patterns of all parameters of a forward model, such as names with wildcards escaped; everything else
    /// stays as it is. When empty, the model's file says, or a guess decides.
    pub parameters: Vec<String>,
    /// Patterns of the parameters of a forward model that are trained; all when empty. `*` stands for any
    /// characters.
    pub trainable: Vec<String>,
    /// Patterns of the parameters of a forward model that are not trained.
    pub freeze: Vec<String>,
    /// Patterns of parameters of a forward model without weight decay; [`VECTORS`] stands for those of fewer
    /// than two axes.
    pub no_decay: Vec<String>,
    /// Patterns of parameters of a forward model, with factors of their learning rate.
    pub rate_factors: Vec<(String, F32)>,
    /// Patterns of tensors whose gradients stop in a forward model, as `detach` does.
    pub stop_gradient: Vec<String>,
    /// Patterns of a forward model's outputs that stay outputs of the step. An evaluation keeps all when
    /// empty.
    pub keep_outputs: Vec<String>,
    /// Purpose of the step of a forward model.
    pub purpose: Purpose,
    /// Seed of dropout and of random initial values without a seed of their own.
    pub seed: i64,
}

/// Purpose of the step of a forward model. Options of training change nothing where it is not trained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Purpose {
    /// Loss, gradients, updates.
    #[default]
    Training,
    /// Loss and outputs, with dropout off and the running statistics of batch normalisation.
    Evaluation,
    /// The same without a loss, all weights frozen.
    Inference,
}

impl ImportOptions {
    /// Whether a forward model is computed in inference form and no state changes.
    pub(crate) fn is_evaluation(&self) -> bool {
        self.purpose != Purpose::Training
    }

    /// Whether nothing but the graph's own outputs is computed.
    pub(crate) fn is_inference(&self) -> bool {
        self.purpose == Purpose::Inference
    }

    /// Gradient of several micro-steps.
    fn reduction(&self) -> Reduction {
        if self.sum_gradients { Reduction::Sum } else { Reduction::Mean }
    }

    /// Whether there are options that only forward models have.
    fn has_recipe(&self) -> bool {
        self.no_recipe("").is_err()
    }

    /// Refuses options that only forward models have, because of `what` the model is.
    fn no_recipe(&self, what: &str) -> Result<(), ImportError> {
        let given = match self {
            Self { loss: Some(loss), .. } => format!("--loss {loss}"),
            Self { optimizer: Some(optimizer), .. } => format!("--optimizer {}", optimizer.name()),
            Self { parameters, .. } if !parameters.is_empty() => "--parameters".to_string(),
            Self { trainable, .. } if !trainable.is_empty() => format!("--trainable {}", trainable[0]),
            Self { freeze, .. } if !freeze.is_empty() => format!("--freeze {}", freeze[0]),
            Self { no_decay, .. } if !no_decay.is_empty() => format!("--no-decay {}", no_decay[0]),
            Self { rate_factors, .. } if !rate_factors.is_empty() => {
                format!("--lr-mult {}", rate_factors[0].0)
            }
            Self { stop_gradient, .. } if !stop_gradient.is_empty() => {
                format!("--stop-gradient {}", stop_gradient[0])
            }
            Self { keep_outputs, .. } if !keep_outputs.is_empty() => {
                format!("--keep-output {}", keep_outputs[0])
            }
            Self { purpose: Purpose::Evaluation, .. } => "--evaluation".to_string(),
            Self { purpose: Purpose::Inference, .. } => "--inference".to_string(),
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
            allow_missing: Vec::new(),
            no_optimizer: false,
            carry: Vec::new(),
            accumulate: 1,
            sum_gradients: false,
            dims: Vec::new(),
            loss: None,
            optimizer: None,
            parameters: Vec::new(),
            trainable: Vec::new(),
            freeze: Vec::new(),
            no_decay: Vec::new(),
            rate_factors: Vec::new(),
            stop_gradient: Vec::new(),
            keep_outputs: Vec::new(),
            purpose: Purpose::default(),
            seed: 0,
        }
    }
}

/// An imported model.
///
/// Where there is a [`recipe`](Import::recipe), the module lacks what that names: passes add it, and then
/// [`Import::finish`] is due. They may rewrite the module before, but states and outputs must keep names and
/// order.
#[derive(Clone, PartialEq, Debug)]
pub struct Import {
    /// The training step, or what the file has of it: graph phase, operands before their users.
    pub module: Module,
    /// Parts that passes are to add.
    pub recipe: Option<Recipe>,
    /// Findings and their interpretation, one sentence each.
    pub notes: Vec<String>,
    /// Findings that the user may not have wanted, one sentence each.
    pub warnings: Vec<String>,
    pending: Pending,
}

/// Facts that [`Import::finish`] needs.
#[derive(Clone, PartialEq, Default, Debug)]
struct Pending {
    /// Initial values of the optimizer's state.
    checkpoint: Initial,
    allow_missing: Vec<String>,
    micro_steps: u32,
    /// Whether the user said that there is to be no optimizer.
    declined: bool,
    /// Whether the step is [`Purpose::Inference`].
    is_inference: bool,
}

impl Import {
    /// A training step that is complete as it is.
    fn complete(module: Module, notes: Vec<String>, warnings: Vec<String>) -> Import {
        Import { module, recipe: None, notes, warnings, pending: Pending::default() }
    }

    /// Initial values of the optimizer's state, and notes on the whole step, once passes have fulfilled the
    /// recipe.
    ///
    /// Changes nothing where there is no recipe.
    ///
    /// # Errors
    ///
    /// [`ImportError::BadModel`] where the checkpoint does not fit the optimizer.
    pub fn finish(mut self) -> Result<Import, ImportError> {
        let Some(recipe) = self.recipe.take() else { return Ok(self) };
        let pending = std::mem::take(&mut self.pending);
        let Pending { checkpoint, allow_missing, micro_steps, declined, is_inference } = pending;
        checkpoint.restore_optimizer(&mut self.module)?;
        if recipe.optimizer.is_none() && !declined && !recipe.is_evaluation {
            self.warnings.push(format!("{NOTHING_TRAINED}; give one, as --optimizer adamw:lr=1e-3"));
        }
        let compared = checkpoint.compare(&self.module, &allow_missing)?;
        self.warnings.extend(compared.warnings);
        if is_inference {
            self.notes.push(inference_note(&self.module));
            self.notes.extend(compared.said);
        } else if recipe.is_evaluation {
            let loss = recipe.loss.as_ref().map_or("none".to_string(), ToString::to_string);
            self.notes.push(format!(
                "evaluation of a forward model: {}; loss: {loss}; outputs: {}",
                contents(&self.module),
                some_of(&self.module.outputs.iter().map(|o| o.name.as_str()).collect::<Vec<_>>())
            ));
            self.notes.extend(compared.said);
        } else if let Some(loss) = &recipe.loss {
            let described = recipe.optimizer.as_ref().map(Optimizer::describe);
            self.notes.push(format!(
                "forward model: {}; loss: {loss}; optimizer: {}",
                contents(&self.module),
                described.as_deref().unwrap_or("none; gradients are outputs")
            ));
            self.notes.extend(compared.said);
            if micro_steps > 1 {
                self.notes.push(accumulated(micro_steps, recipe.reduction));
            }
        }
        Ok(self)
    }
}

/// Imports the model in file `path`.
///
/// Files that belong to it are looked for in the same folder; [`Import::notes`] names those that were used.
///
/// # Errors
///
/// All of [`ImportError`].
pub fn import(path: &Path, options: &ImportOptions) -> Result<Import, ImportError> {
    let bytes = initial::read_file(path, screen::MAX_FILE_BYTES)?;
    let folder = Folder::of(path).map_err(|e| ImportError::io(path, e))?;
    import_from(&bytes, Some(path), Some(&folder), options)
}

/// Imports a model from memory: as [`import`], but there is no folder to look for other files in.
pub fn import_bytes(bytes: &[u8], options: &ImportOptions) -> Result<Import, ImportError> {
    import_from(&bytes.into(), None, None, options)
}

/// Imports a plain graph from memory as it is, node by node: inputs are fed, initializers are constants,
/// outputs are results in the graph's order. Of `options` only the sizes of dimensions count. Tests of
/// operators need that; [`Purpose::Inference`] is for models, whose weights it makes states.
pub fn import_inference(bytes: &[u8], options: &ImportOptions) -> Result<Import, ImportError> {
    let mut source = Source::read(&bytes.into(), None, None, &options.dims)?;
    let mut import = inference::import(&mut source, &BTreeMap::new())?;
    import.warnings = source.warnings();
    Ok(import)
}

/// Meaning of a graph input in [`import_bound`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Binding {
    /// Fed with tensors of this type.
    Fed(TensorType),
    /// A constant: its type and its elements, dense, little-endian, row-major.
    Constant(TensorType, Data),
}

/// Imports a plain graph as [`import_inference`], but each graph input is what `inputs` says, whatever shape
/// the model declares for it.
///
/// # Errors
///
/// Those of [`import_bytes`]; an input that `inputs` lacks must be an initializer too.
pub fn import_bound(bytes: &[u8], inputs: &BTreeMap<String, Binding>) -> Result<Import, ImportError> {
    let mut source = Source::read_untyped(&bytes.into(), None)?;
    let mut import = inference::import(&mut source, inputs)?;
    import.warnings = source.warnings();
    Ok(import)
}

/// The names of a model's graph inputs and graph outputs, in order.
pub fn interface(bytes: &[u8]) -> Result<(Vec<String>, Vec<String>), ImportError> {
    let graph = proto::decode(&bytes.into())?.graph;
    let names = |list: Vec<model::ValueInfo>| list.into_iter().map(|v| v.name).collect();
    Ok((names(graph.inputs), names(graph.outputs)))
}

/// Reads a serialised `TensorProto`, the form in which the standard keeps tensors in files of their own.
///
/// # Errors
///
/// [`ImportError::BadModel`] for damaged bytes, [`ImportError::Unsupported`] for an element type that the IR
/// lacks.
pub fn read_tensor(bytes: &[u8]) -> Result<(TensorType, Data), ImportError> {
    let tensor = proto::decode_tensor(bytes)?;
    tensor::dtype(tensor.dtype)?;
    let none = |_: &[(String, String)], _: u64| Err("its data is in another file".into());
    let literal = tensor::Literal::from_tensor(tensor, none)?;
    Ok((literal.ty, literal.data))
}

fn import_from(
    bytes: &Data,
    path: Option<&Path>,
    folder: Option<&Folder>,
    options: &ImportOptions,
) -> Result<Import, ImportError> {
    if !(1..=MAX_ACCUMULATE).contains(&options.accumulate) {
        return Err(ImportError::Usage(format!(
            "the number of micro-steps must be between 1 and {MAX_ACCUMULATE}, not {}",
            options.accumulate
        )));
    }
    let mut source = Source::read_step(bytes, path, folder, &options.dims)?;
    let artifacts = source.model.graph.nodes.iter().any(Node::is_accumulator);
    let forward = options.loss.is_some()
        || source.model.training.is_some()
        || options.is_inference()
        || (options.has_recipe() && !step::recognises(&source));
    let mut import = match () {
        () if artifacts => training::import(&source, options)?,
        () if source.algorithm.is_some() => standard::import(&source, options)?,
        () if forward && (options.carry.is_empty() || options.is_inference()) => {
            forward::import(&mut source, options)?
        }
        () => step::import(&source, options)?,
    };
    import.warnings.splice(0..0, source.warnings());
    let params = || import.module.states.values().filter(|s| s.role == Role::Param);
    let idle = import.recipe.is_none() && params().next().is_some() && params().all(|s| s.next.is_none());
    if idle && !options.no_optimizer {
        import.warnings.push(format!(
            "{NOTHING_TRAINED}; give a model that contains its optimizer, or an optimizer model"
        ));
    }
    ranges::derive(&mut import.module);
    Ok(import)
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
        let model = proto::decode(&bytes.into()).expect("decode");
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
