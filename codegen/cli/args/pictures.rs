//! Options of the commands that show a plan.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct Trace {
    /// The plan
    #[arg(value_name = "model.plan")]
    pub(crate) plan: PathBuf,
    /// Write the trace here instead of to stdout
    #[arg(short, long, value_name = "FILE.json")]
    pub(crate) output: Option<PathBuf>,
    /// Bucket to trace, of a plan with several, such as seq=128 [default: the one that needs most memory
    /// unplanned]
    #[arg(long, value_name = "NAME")]
    pub(crate) bucket: Option<String>,
    /// Device whose times apply: one of `memc list devices` or a profile file (.json) [default: that of the
    /// plan]
    #[arg(long, visible_alias = "profile", value_name = "PROFILE")]
    pub(crate) device: Option<String>,
}

#[derive(Args)]
pub(crate) struct Report {
    /// The plan
    #[arg(value_name = "model.plan")]
    pub(crate) plan: PathBuf,
    /// The page to write [default: report.html, and none with --snapshot or
    /// --annotate]
    #[arg(short, long, value_name = "FILE.html")]
    pub(crate) output: Option<PathBuf>,
    /// Draw the measured step of this trace on the page, too, which `memrun --trace` wrote
    #[arg(long, value_name = "FILE.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Write a snapshot of memory, too, which pytorch.org/memory_viz opens
    #[arg(long, value_name = "FILE.pickle")]
    pub(crate) snapshot: Option<PathBuf>,
    /// Write a copy of the model with what was decided as metadata of its nodes and values, for Netron
    #[arg(long, value_name = "FILE.onnx", requires = "source")]
    pub(crate) annotate: Option<PathBuf>,
    /// The ONNX model that the plan is of
    #[arg(long, value_name = "MODEL.onnx", requires = "annotate")]
    pub(crate) source: Option<PathBuf>,
    /// Bucket to draw, of a plan with several, such as seq=128 [default: the one that needs most memory
    /// unplanned]
    #[arg(long, value_name = "NAME")]
    pub(crate) bucket: Option<String>,
    /// Device whose times apply: one of `memc list devices` or a profile file (.json) [default: that of the
    /// plan]
    #[arg(long, visible_alias = "profile", value_name = "PROFILE")]
    pub(crate) device: Option<String>,
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
    /// Bucket to compare, of plans with several, such as seq=128; a plan of one size is compared as it is
    /// [default: all of them]
    #[arg(long, value_name = "NAME")]
    pub(crate) bucket: Option<String>,
    /// Print differences of tables and commands, too
    #[arg(long)]
    pub(crate) all: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
