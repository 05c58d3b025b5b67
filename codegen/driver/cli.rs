//! The command line's shape.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use crate::import::{ImportArgs, Source};

use crate::bound::Bound;
use crate::layout;
use crate::size::{self, Size};

/// Compiles ONNX training graphs into static schedules that fit a hard device-memory budget.
#[derive(Parser)]
#[command(name = "memc", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0 ok   1 plans differ (diff)   2 usage   3 bad or unsupported model   4 budget infeasible
  7 plan damaged or wrong   70 internal error   74 reading or writing failed   130 interrupted";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Plan a training step within a memory budget and write it
    #[command(after_help = "\
Examples:
  memc compile models/cnn_bn/training_model.onnx --gpu-mem 1M
  memc compile models/cnn_bn/training_model.onnx --gpu-mem 90% --accumulate 4
  memc compile models/mlp_s_step/sgd.onnx --gpu-mem 1M \\
    --carry m.fc1.weight=m.fc1.weight_new
  memc compile models/zoo/resnet50.onnx --loss cross-entropy \\
    --optimizer momentum:lr=0.1 --dim batch=32 --gpu-mem 1G")]
    Compile(Compile),
    /// Plan a problem or a model and say what the plan costs, without writing one
    #[command(after_help = "\
Examples:
  memc plan problem.json --gpu-mem 40G --planner swapadvisor
  memc plan models/cnn_bn/training_model.onnx --gpu-mem 250K --json")]
    Plan(Plan),
    /// Say below what time no step of a model or a planning problem can be within a budget
    #[command(after_help = "Example:\n  memc bound problem.json --gpu-mem 40G")]
    Bound(Bound),
    /// Write a model's planning problem as JSON (memc-problem/1)
    #[command(
        after_help = "Example:\n  memc export-problem models/cnn_bn/training_model.onnx --device v100-16g -o cnn_bn.json"
    )]
    ExportProblem(ExportProblem),
    /// Say what a training step needs: no budget, no plan
    #[command(after_help = "Example:\n  memc estimate models/cnn_bn/training_model.onnx")]
    Estimate(Estimate),
    /// Give buffers with known live ranges offsets in one arena
    #[command(after_help = "\
The instance has a header id,lower,upper,size and a line for each buffer, which lives in [lower, upper). Sizes and
offsets are in the instance's own units. The layout, id,lower,upper,size,offset, goes to stdout.

Examples:
  memc layout passes/layout/tests/data/C.csv
  memc layout passes/layout/tests/data/B.csv --capacity 1048576 -o B.layout.csv
  memc layout passes/layout/tests/data/A.csv --algorithm smartpool --json")]
    Layout(layout::Args),
    /// Prove a plan against its source graph
    #[command(after_help = "Example:\n  memc check model.plan --source models/cnn_bn/training_model.onnx")]
    Check(Check),
    /// Say how well op times are predicted by what a measured profile teaches, and merge several
    #[command(after_help = "\
Examples:
  memrun profile model.plan -o cpu.json
  memc fit-profile cpu.json
  memc fit-profile a.json b.json -o both.json
  memc compile model.onnx --device both.json --gpu-mem 1G")]
    FitProfile(FitProfile),
    /// Print a plan
    #[command(after_help = "Example:\n  memc dump model.plan | less")]
    Dump(Dump),
    /// Compare two plans
    #[command(after_help = "Example:\n  memc diff before.plan after.plan")]
    Diff(Diff),
    /// Run passes on a model or an IR file and print the IR
    #[command(after_help = "\
Examples:
  memc opt models/mlp_s_step/adamw.onnx --pass all --explain -o step.mir
  memc opt step.mir --pass \"cse,dce\"
  memc opt models/mlp_s/training_model.onnx \\
    --pass \"graph,to-mem,layout{algo=best-fit},timepoints\"")]
    Opt(Opt),
    /// Check a model or an IR file against the verifier's rules
    #[command(after_help = "Example:\n  memc verify models/mlp_s_step/adamw.onnx")]
    Verify(Verify),
    /// List devices, losses, optimizers, ops, passes, planners, their rewrites, or the verifier's rules
    #[command(after_help = "Examples:\n  memc list devices\n  memc list rewrites")]
    List {
        /// What to list
        #[arg(value_parser = ["devices", "losses", "optimizers", "ops", "passes", "planners", "rewrites", "rules"])]
        what: String,
    },
}

impl Command {
    /// Whether failures, too, are printed as a JSON object.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Command::Compile(a) => a.json,
            Command::Estimate(a) => a.json,
            Command::Layout(a) => a.json,
            Command::Plan(a) => a.json,
            Command::Bound(a) => a.json,
            Command::Check(a) => a.json,
            Command::FitProfile(a) => a.json,
            Command::Dump(a) => a.json,
            Command::ExportProblem(_)
            | Command::Diff(_)
            | Command::Opt(_)
            | Command::Verify(_)
            | Command::List { .. } => false,
        }
    }
}

#[derive(Args)]
pub(crate) struct Compile {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Device memory the step may take, with a binary suffix or as a share of the device: 16G, 512MiB, 90%.
    /// Without it everything stays on the device
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) gpu_mem: Option<Size>,
    /// The plan to write
    #[arg(short, long, value_name = "FILE", default_value = "model.plan")]
    pub(crate) output: PathBuf,
    /// Device to plan for: one of `memc list devices`, such as a100-80g, or a profile file (.json)
    #[arg(long, visible_alias = "profile", value_name = "PROFILE", default_value = "cpu")]
    pub(crate) device: String,
    #[command(flatten)]
    pub(crate) search: Search,
    /// Operator order: as given, memory-greedy, or the better of both
    #[arg(long, default_value = "auto", value_parser = ["auto", "given", "greedy"])]
    pub(crate) order: String,
    /// Keep every gradient as the model computes it, whatever it needs of the forward pass
    #[arg(long)]
    pub(crate) no_mem_rewrite: bool,
    #[command(flatten)]
    pub(crate) script: ScriptFiles,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// Files with decisions.
#[derive(Args, Clone)]
pub(crate) struct ScriptFiles {
    /// Write the planner's decisions to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) decisions: Option<PathBuf>,
    /// Carry out the decisions in a file instead of planning
    #[arg(long, value_name = "FILE", conflicts_with_all = ["decisions", "planner"])]
    pub(crate) apply: Option<PathBuf>,
}

/// Who plans, and what it may do.
#[derive(Args, Clone)]
pub(crate) struct Search {
    /// Planner: memc, or a published method to compare with; `memc list planners` has them all
    #[arg(long, value_name = "NAME", default_value = "memc")]
    pub(crate) planner: String,
    /// Leave tensors on the device: no swapping
    #[arg(long)]
    pub(crate) no_swap: bool,
    /// Run every op once: no recomputation
    #[arg(long)]
    pub(crate) no_recompute: bool,
    /// Keep the order of the ops
    #[arg(long)]
    pub(crate) fixed_order: bool,
    /// How much to search: 0 is the first plan found, 5 the most
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=5))]
    pub(crate) effort: u32,
    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) search_seed: u64,
}

#[derive(Args)]
pub(crate) struct Plan {
    /// A planning problem (.json, memc-problem/1) or a model
    #[command(flatten)]
    pub(crate) source: Source,
    /// Device memory the step may take, with a binary suffix or as a share of the device: 16G, 512MiB, 90%.
    /// Without it, that of the device
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) gpu_mem: Option<Size>,
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) script: ScriptFiles,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ExportProblem {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Write the problem here instead of to stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The device of a model. A problem names its own.
#[derive(Args, Clone)]
pub(crate) struct Target {
    /// Device whose times and limits apply to a model: one of `memc list devices` or a profile file (.json)
    #[arg(long, visible_alias = "profile", value_name = "PROFILE", default_value = "cpu")]
    pub(crate) device: String,
    /// Keep every gradient as the model computes it, whatever it needs of the forward pass
    #[arg(long)]
    pub(crate) no_mem_rewrite: bool,
}

#[derive(Args)]
pub(crate) struct Estimate {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Device whose times and limits apply: one of `memc list devices` or a profile file (.json)
    #[arg(long, visible_alias = "profile", value_name = "PROFILE", default_value = "cpu")]
    pub(crate) device: String,
    /// Keep every gradient as the model computes it, whatever it needs of the forward pass
    #[arg(long)]
    pub(crate) no_mem_rewrite: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Check {
    /// The plan
    pub(crate) plan: PathBuf,
    /// Model or IR file to check against [default: the source graph stored in the plan]
    #[arg(long, value_name = "FILE")]
    pub(crate) source: Option<PathBuf>,
    /// Optimizer model, where the plan was not compiled with the one beside the source
    #[arg(long, value_name = "FILE", requires = "source")]
    pub(crate) optimizer_model: Option<PathBuf>,
    /// Initial values, where the plan was not compiled with the ones beside the source
    #[arg(long, value_name = "FILE", requires = "source")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Profile file of the plan's device, where that is a measured one
    #[arg(long, visible_alias = "profile", value_name = "PROFILE", requires = "source")]
    pub(crate) device: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct FitProfile {
    /// Measured profiles; device figures are those of the first
    #[arg(required = true, value_name = "FILE.json")]
    pub(crate) profiles: Vec<PathBuf>,
    /// Write one profile with the measured ops of all
    #[arg(short, long, value_name = "FILE.json")]
    pub(crate) output: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Dump {
    /// The plan
    pub(crate) plan: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Diff {
    /// One plan
    pub(crate) old: PathBuf,
    /// The other
    pub(crate) new: PathBuf,
}

#[derive(Args)]
pub(crate) struct Opt {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Passes to run, as a,b{option=value}; graph gives the canonical form, all adds memory-rewrite,dce as compile does
    #[arg(long, value_name = "PIPELINE", default_value = "")]
    pub(crate) pass: String,
    /// Device whose costs passes see: one of `memc list devices` or a profile file (.json)
    #[arg(long, visible_alias = "profile", value_name = "PROFILE", default_value = "cpu")]
    pub(crate) device: String,
    /// Print what the passes counted, to stderr
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print which rules rewrote which values, to stderr
    #[arg(long)]
    pub(crate) explain: bool,
    /// Write the IR here instead of to stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) source: Source,
}
