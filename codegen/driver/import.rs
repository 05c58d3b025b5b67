//! The part of the command line that says which model is meant and how to read it.

use std::path::PathBuf;

use clap::Args;
use memc_frontend::{ImportOptions, Loss, OptimizerSpec};

/// Where the model's parts are and how to read them.
#[derive(Args, Clone)]
pub(crate) struct Source {
    /// ONNX training model, one-file training step, forward model with or without training information, or IR file
    /// (.mir); for commands that plan without writing a plan also a planning problem (.json, memc-problem/1)
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) import: ImportArgs,
}

#[derive(Args, Clone)]
pub(crate) struct ImportArgs {
    /// Loss of a forward model: cross-entropy, mse, l1, bce-with-logits or output (the model computes it);
    /// mse:output=NAME chooses among outputs; of scores with more than two axes cross-entropy:axis=-1 has the classes
    /// last (language models), cross-entropy:axis=1 second (PyTorch, ONNX); see `memc list losses`
    #[arg(long, value_name = "LOSS")]
    pub(crate) loss: Option<Loss>,
    /// Optimizer of a forward model: sgd, momentum, adam, adamw, adagrad or none; `memc list optimizers` has their
    /// options and defaults
    #[arg(long, value_name = "RULE[:OPTION=N,..]", conflicts_with_all = ["optimizer_model", "no_optimizer"])]
    pub(crate) optimizer: Option<OptimizerSpec>,
    /// Parameters of a forward model to train, all others are frozen (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub(crate) trainable: Vec<String>,
    /// Parameters of a forward model to leave as they are (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub(crate) freeze: Vec<String>,
    /// Seed of dropout and of random initial values
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) seed: i64,
    /// Optimizer model of training artifacts [default: optimizer_model.onnx beside the model]
    #[arg(long, value_name = "FILE")]
    pub(crate) optimizer_model: Option<PathBuf>,
    /// Initial values: ONNX Runtime checkpoint or safetensors [default: checkpoint beside the model]
    #[arg(long, value_name = "FILE")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Leave the optimizer out; gradients become outputs
    #[arg(long, conflicts_with = "optimizer_model")]
    pub(crate) no_optimizer: bool,
    /// The input IN takes the value of the output OUT after every step (repeatable)
    #[arg(long, value_name = "IN=OUT", value_parser = pair)]
    pub(crate) carry: Vec<(String, String)>,
    /// Micro-steps whose gradients add up before each optimizer step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(memc_frontend::MAX_ACCUMULATE)))]
    pub(crate) accumulate: u32,
    /// Value of a symbolic dimension (repeatable)
    #[arg(long = "dim", value_name = "NAME=N", value_parser = sized_dim)]
    pub(crate) dims: Vec<Dim>,
}

/// What passes do to a model before planning, beside what they always do.
#[derive(Args, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RewriteArgs {
    /// Keep every gradient as the model computes it, whatever it needs of the forward pass
    #[arg(long)]
    pub(crate) no_mem_rewrite: bool,
    /// Leave every element-wise op a kernel of its own, for GPUs too; other devices never fuse them
    #[arg(long)]
    pub(crate) no_fuse: bool,
}

impl Default for ImportArgs {
    fn default() -> Self {
        Self {
            loss: None,
            optimizer: None,
            trainable: Vec::new(),
            freeze: Vec::new(),
            seed: 0,
            optimizer_model: None,
            checkpoint: None,
            no_optimizer: false,
            carry: Vec::new(),
            accumulate: 1,
            dims: Vec::new(),
        }
    }
}

/// A symbolic dimension on the command line.
#[derive(Clone)]
pub(crate) struct Dim {
    /// Its name in the model.
    pub(crate) name: String,
    /// Its size, unless the command is to find one.
    pub(crate) size: Option<u64>,
}

impl ImportArgs {
    /// Dimensions with the sizes given to them.
    pub(crate) fn sized(&self) -> impl Iterator<Item = (&str, u64)> {
        self.dims.iter().filter_map(|d| Some((d.name.as_str(), d.size?)))
    }

    /// The importer's options.
    pub(crate) fn options(&self) -> ImportOptions {
        ImportOptions {
            optimizer_model: self.optimizer_model.clone(),
            checkpoint: self.checkpoint.clone(),
            no_optimizer: self.no_optimizer,
            carry: self.carry.clone(),
            accumulate: self.accumulate,
            dims: self.sized().map(|(name, size)| (name.to_string(), size)).collect(),
            loss: self.loss.clone(),
            optimizer: self.optimizer.clone(),
            trainable: self.trainable.clone(),
            freeze: self.freeze.clone(),
            seed: self.seed,
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (a, b) = text.split_once('=').ok_or("write IN=OUT")?;
    Ok((a.to_string(), b.to_string()))
}

fn sized_dim(text: &str) -> Result<Dim, String> {
    let (name, value) = pair(text).map_err(|_| "write NAME=N".to_string())?;
    let size = value.parse().map_err(|_| format!("`{value}` is not a non-negative integer"))?;
    Ok(Dim { name, size: Some(size) })
}

/// A dimension with or without a size.
pub(crate) fn any_dim(text: &str) -> Result<Dim, String> {
    if text.contains('=') {
        return sized_dim(text);
    }
    if text.is_empty() {
        return Err("write the name of a symbolic dimension, or NAME=N".into());
    }
    Ok(Dim { name: text.to_string(), size: None })
}
