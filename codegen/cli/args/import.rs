//! The model's files and the import options.

use std::path::{Path, PathBuf};

use clap::Args;
use memc::{Error, Job, Workload};
use memc_frontend::{ImportOptions, Purpose, read_parameter_names};
use memc_ir::attr::F32;
use memc_ir::recipe::{Loss, OptimizerSpec};
use memc_plan::MAX_BUCKETS;

use super::jobs::{JobSpec, job};
use crate::values::{self, Accumulate, Dim};

/// Model files and import options.
#[derive(Args, Clone)]
pub(crate) struct Source {
    /// ONNX training model, one-file training step, forward model with or without training information, or IR
    /// file (.mir); for commands that plan without writing a plan also a planning problem (.json,
    /// memc-problem/1)
    #[arg(required_unless_present = "job")]
    pub(crate) model: Option<PathBuf>,
    /// One of several jobs that take turns on the device, its steps in a round, and how much of its tensors
    /// may be swapped; options of the model that follow are the job's alone, those before the first --job are
    /// for all (repeatable)
    #[arg(hide_short_help = true, long, value_name = "[NAME=]FILE[:N][,swap=P%]", value_parser = job)]
    #[arg(conflicts_with = "model")]
    pub(crate) job: Vec<JobSpec>,
    /// The options of each job.
    #[arg(skip)]
    pub(crate) jobs: Vec<ImportArgs>,
    #[command(flatten)]
    pub(crate) import: ImportArgs,
}

#[derive(Args, Clone)]
pub(crate) struct ImportArgs {
    /// Loss of a forward model: cross-entropy, mse, l1, bce-with-logits or output (the model computes it);
    /// mse:output=NAME chooses among outputs; of scores with more than two axes cross-entropy:axis=-1 has the
    /// classes last (language models), cross-entropy:axis=1 second (PyTorch, ONNX); see `memc list losses`
    #[arg(long, value_name = "LOSS")]
    pub(crate) loss: Option<Loss>,
    /// Optimizer of a forward model: sgd, momentum, adam, adamw, adagrad or none; `memc list optimizers` has
    /// their options and defaults
    #[arg(long, value_name = "RULE[:OPTION=N,..]", conflicts_with_all = ["optimizer_model", "no_optimizer"])]
    pub(crate) optimizer: Option<OptimizerSpec>,
    /// All parameters of a forward model, by pattern, or by a file: a list of names, a JSON array, or a
    /// safetensors file; other tensors stay as they are (repeatable) [default: what the model's file says, or
    /// a guess]
    #[arg(long, value_name = "GLOB|FILE")]
    pub(crate) parameters: Vec<String>,
    /// Parameters of a forward model to train, all others are frozen (repeatable)
    #[arg(hide_short_help = true, long, value_name = "GLOB")]
    pub(crate) trainable: Vec<String>,
    /// Parameters of a forward model to leave as they are (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub(crate) freeze: Vec<String>,
    /// Parameters of a forward model without weight decay; `vectors` stands for biases, scales and all others
    /// of fewer than two axes (repeatable)
    #[arg(hide_short_help = true, long, value_name = "GLOB")]
    pub(crate) no_decay: Vec<String>,
    /// Factor of the learning rate of some parameters of a forward model (repeatable)
    #[arg(hide_short_help = true, long, value_name = "GLOB=FACTOR", value_parser = values::factor)]
    pub(crate) lr_mult: Vec<(String, F32)>,
    /// Tensors of a forward model whose gradients stop, as `detach` does (repeatable)
    #[arg(hide_short_help = true, long, value_name = "GLOB")]
    pub(crate) stop_gradient: Vec<String>,
    /// Outputs of a forward model that stay outputs of the step, for `memrun --output` and `--collect`
    /// (repeatable)
    #[arg(hide_short_help = true, long, value_name = "GLOB")]
    pub(crate) keep_output: Vec<String>,
    /// Evaluate a forward model instead of training it: loss and outputs, without dropout and by batch
    /// normalisation's running statistics, for `memrun --eval` and predictions. Options of training are
    /// taken and change nothing
    #[arg(long)]
    pub(crate) evaluation: bool,
    /// Compute a forward model's outputs alone, with frozen weights, as a model that is served: no loss, no
    /// labels, otherwise as --evaluation
    #[arg(long, conflicts_with = "evaluation")]
    pub(crate) inference: bool,
    /// Seed of dropout and of random initial values
    #[arg(
        hide_short_help = true,
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub(crate) seed: i64,
    /// Optimizer model of training artifacts [default: optimizer_model.onnx beside the model]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(crate) optimizer_model: Option<PathBuf>,
    /// Initial values: ONNX Runtime checkpoint or safetensors [default: checkpoint beside the model]
    #[arg(long, value_name = "FILE")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Parameters that the checkpoint may lack: they start with the model's values (repeatable)
    #[arg(hide_short_help = true, long, value_name = "GLOB")]
    pub(crate) allow_missing: Vec<String>,
    /// Leave the optimizer out; gradients become outputs
    #[arg(hide_short_help = true, long, conflicts_with = "optimizer_model")]
    pub(crate) no_optimizer: bool,
    /// The input IN takes the value of the output OUT after every step (repeatable)
    #[arg(hide_short_help = true, long, value_name = "IN=OUT", value_parser = values::pair)]
    pub(crate) carry: Vec<(String, String)>,
    /// Micro-steps before each optimizer step, which gets the mean of their gradients, or with N:sum the sum
    #[arg(long, value_name = "N[:sum]", default_value = "1", value_parser = values::accumulate)]
    pub(crate) accumulate: Accumulate,
    /// Size of a symbolic dimension, or several, as --dim seq=128,256: `memc compile` makes one plan with a
    /// bucket for each, and memrun takes the smallest that a step's data fits (repeatable)
    #[arg(long = "dim", value_name = "NAME=N[,N..]", value_parser = values::sized_dim)]
    pub(crate) dims: Vec<Dim>,
}

impl Source {
    /// The files that the command line names.
    pub(crate) fn files(&self) -> Vec<Option<&PathBuf>> {
        let models = self.model.iter().chain(self.job.iter().map(|job| &job.path));
        let mut files: Vec<Option<&PathBuf>> = models.map(Some).collect();
        for import in [&self.import].into_iter().chain(&self.jobs) {
            files.extend([import.optimizer_model.as_ref(), import.checkpoint.as_ref()]);
        }
        files
    }

    /// The library's workload. Dimensions without a size are left out.
    ///
    /// # Errors
    ///
    /// Those of [`read_parameter_names`].
    pub(crate) fn workload(&self) -> Result<Workload, Error> {
        if let Some(model) = &self.model {
            return Ok(memc::Source { path: model.clone(), import: self.import.options(None)? }.into());
        }
        let job = |(spec, import): (&JobSpec, &ImportArgs)| {
            let source = memc::Source { path: spec.path.clone(), import: import.options(None)? };
            Ok(Job { name: spec.name.clone(), steps: spec.steps, swap_limit: spec.swap_limit, source })
        };
        let jobs: Result<Vec<Job>, Error> = self.job.iter().zip(&self.jobs).map(job).collect();
        Ok(Workload::Jobs(jobs?))
    }
}

/// Sizes of dimensions, one for each.
type Sizes = Vec<(String, u64)>;

impl Source {
    /// The workload of each bucket with its name, such as `seq=128`; none where each dimension has one size.
    ///
    /// # Errors
    ///
    /// Those of [`Source::workload`], and [`Error::Usage`] for more buckets than a plan has.
    pub(crate) fn buckets(&self) -> Result<Vec<(String, Workload)>, Error> {
        let several = self.import.dims.iter().filter(|dim| dim.sizes.len() > 1);
        let (Some(model), true) = (&self.model, several.clone().next().is_some()) else {
            return Ok(Vec::new());
        };
        let mut buckets: Vec<Sizes> = vec![Vec::new()];
        for dim in several {
            let with = |(bucket, size): (&Sizes, &u64)| {
                bucket.iter().cloned().chain([(dim.name.clone(), *size)]).collect::<Sizes>()
            };
            let pairs = buckets.iter().flat_map(|bucket| dim.sizes.iter().map(move |size| (bucket, size)));
            buckets = pairs.map(with).collect();
        }
        if buckets.len() > MAX_BUCKETS {
            let text = format!("--dim: {} buckets; a plan has at most {MAX_BUCKETS}", buckets.len());
            return Err(Error::Usage(text));
        }
        let workload = |sizes: Sizes| {
            let names: Vec<String> = sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
            let import = self.import.options(Some(sizes))?;
            Ok((names.join(","), memc::Source { path: model.clone(), import }.into()))
        };
        buckets.into_iter().map(workload).collect()
    }
}

impl ImportArgs {
    /// The library's options. Dimensions with several sizes have those of `bucket`.
    ///
    /// # Errors
    ///
    /// Those of [`read_parameter_names`], and [`Error::Usage`] for several sizes without a bucket.
    pub(crate) fn options(&self, bucket: Option<Sizes>) -> Result<ImportOptions, Error> {
        let import = self.clone();
        let mut sized: Sizes = Vec::new();
        for dim in &import.dims {
            match (&dim.sizes[..], &bucket) {
                ([], _) => {}
                ([size], _) => sized.push((dim.name.clone(), *size)),
                (_, Some(_)) => {}
                ([size, ..], None) => {
                    return Err(Error::Usage(format!(
                        "--dim {0}: several sizes are for `memc compile` of one model; give one here, as \
                         --dim {0}={size}",
                        dim.name
                    )));
                }
            }
        }
        sized.extend(bucket.into_iter().flatten());
        let mut parameters = Vec::new();
        for text in import.parameters {
            let path = Path::new(&text);
            if path.is_file() {
                parameters.extend(read_parameter_names(path)?);
            } else if ["txt", "json", "safetensors"].iter().any(|e| path.extension() == Some(e.as_ref())) {
                return Err(Error::Usage(format!("--parameters {text}: there is no such file")));
            } else {
                parameters.push(text);
            }
        }
        Ok(ImportOptions {
            optimizer_model: import.optimizer_model,
            checkpoint: import.checkpoint,
            allow_missing: import.allow_missing,
            no_optimizer: import.no_optimizer,
            carry: import.carry,
            accumulate: import.accumulate.micro_steps,
            sum_gradients: import.accumulate.sum && import.accumulate.micro_steps > 1,
            dims: sized,
            loss: import.loss,
            optimizer: import.optimizer,
            parameters,
            trainable: import.trainable,
            freeze: import.freeze,
            no_decay: import.no_decay,
            rate_factors: import.lr_mult,
            stop_gradient: import.stop_gradient,
            keep_outputs: import.keep_output,
            purpose: match (import.evaluation, import.inference) {
                (_, true) => Purpose::Inference,
                (true, false) => Purpose::Evaluation,
                (false, false) => Purpose::Training,
            },
            seed: import.seed,
        })
    }
}
