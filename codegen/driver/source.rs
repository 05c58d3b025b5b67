//! Reading the source graph: import or parse, then the graph passes up to the checker's reference point.

use std::path::{Path, PathBuf};

use memc_frontend::{Import, ImportError, ImportOptions};
use memc_ir::{Bytes, Module, Phase, print_diags, verify};
use memc_passes::graph::memory::{self, counts, stash_bytes};
use memc_passes::{
    DeviceProfile, FORWARD_PIPELINE, FUSE_PIPELINE, Fired, GRAPH_PIPELINE, Kernels, MEMORY_PIPELINE,
    PROFILES, PassCx, Pipeline,
};

use crate::cli::{ImportArgs, RewriteArgs, Source};
use crate::exit::Error;
use crate::import::Dim;

/// A model as read.
pub(crate) struct Loaded {
    /// The module.
    pub(crate) module: Module,
    /// What was found where.
    pub(crate) notes: Vec<String>,
    /// What the user should know before trusting the result.
    pub(crate) warnings: Vec<String>,
    /// Options that a later import needs to give the same graph.
    pub(crate) options: Vec<(String, String)>,
    /// What rules did to a forward model before it was differentiated.
    pub(crate) fired: Vec<Fired>,
}

/// Reads a text file, for the user's own files.
pub(crate) fn read_text(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidData => Error::Model(format!("{}: not UTF-8 text", path.display())),
        _ => Error::Io(format!("cannot read `{}`: {e}", path.display())),
    })
}

/// Refuses options that say how to read a model where there is nothing that they would apply to.
pub(crate) fn refuse_options(source: &Source, why: &str) -> Result<(), Error> {
    if source.import.options() == ImportOptions::default() {
        return Ok(());
    }
    Err(Error::Usage(format!("options such as --device, --dim and --loss apply to ONNX models; {why}")))
}

/// Imports an ONNX model, or parses an IR file; verifies either.
///
/// A forward model goes through the graph passes before it is differentiated, so that gradients are those of the ops
/// that its exporter spelled out.
pub(crate) fn load(source: &Source) -> Result<Loaded, Error> {
    let path = &source.model;
    if path.is_dir() {
        return Err(Error::Usage(folder(path)));
    }
    if path.extension().is_some_and(|e| e == "mir") {
        refuse_options(source, "an IR file is read as it is")?;
        let text = read_text(path)?;
        let at = |d: memc_ir::Diag| Error::Model(format!("{}: {d}", path.display()));
        let module = memc_ir::parse(&text).map_err(at)?;
        check(&module, path)?;
        let (notes, warnings, options, fired) = Default::default();
        return Ok(Loaded { module, notes, warnings, options, fired });
    }
    if path.extension().is_some_and(|e| e == "json") {
        let text = "a planning problem? `memc plan`, `compare`, `sweep`, `explain` and `bound` take those; this command needs a model";
        return Err(Error::Model(format!("{}: {text}", path.display())));
    }
    let args = &source.import;
    let options = args.options();
    let failed = |e: ImportError| match &e {
        ImportError::Usage(_) => Error::Usage(e.to_string()),
        ImportError::Io { .. } => Error::Io(e.to_string()),
        _ => Error::Model(format!("{}: {e}", path.display())),
    };
    let mut draft = memc_frontend::read(path, &options).map_err(failed)?;
    let mut fired = Vec::new();
    if draft.is_forward() {
        // These passes ask nothing of the device.
        let mut cx = context(&PROFILES[0]);
        Pipeline::parse(FORWARD_PIPELINE)?.run(&mut draft.module, &mut cx)?;
        fired = cx.fired;
    }
    let Import { module, notes, warnings } = draft.complete().map_err(failed)?;
    verify(&module)
        .map_err(|d| Error::Internal(format!("invalid module\n{}", print_diags(&module, &d).trim_end())))?;
    Ok(Loaded { module, notes, warnings, options: recorded(args), fired })
}

/// What to give in place of a folder.
fn folder(path: &Path) -> String {
    let is_model = |f: &PathBuf| f.extension().is_some_and(|e| e == "onnx");
    let files = std::fs::read_dir(path).into_iter().flatten().flatten().map(|f| f.path());
    let mut models: Vec<PathBuf> = files.filter(is_model).collect();
    models.sort();
    // That of onnxruntime-training's artifacts, which a folder of them has beside others.
    let training = models.iter().find(|f| f.ends_with("training_model.onnx"));
    let hint = match training.or(models.first()) {
        Some(model) => format!(": give a model in it, such as {}", model.display()),
        None => ", and there is no .onnx file in it; give a model".to_owned(),
    };
    format!("`{}` is a folder{hint}", path.display())
}

fn check(module: &Module, path: &Path) -> Result<(), Error> {
    verify(module).map_err(|d| {
        let text = print_diags(module, &d);
        Error::Model(format!("{}: invalid module\n{}", path.display(), text.trim_end()))
    })
}

fn recorded(args: &ImportArgs) -> Vec<(String, String)> {
    let mut out = vec![("accumulate".to_string(), args.accumulate.to_string())];
    if args.no_optimizer {
        out.push(("no-optimizer".into(), "true".into()));
    }
    out.extend(args.carry.iter().map(|(a, b)| ("carry".to_string(), format!("{a}={b}"))));
    out.extend(args.loss.iter().map(|l| ("loss".to_string(), l.to_string())));
    out.extend(args.optimizer.iter().map(|o| ("optimizer".to_string(), o.to_string())));
    out.extend(args.trainable.iter().map(|g| ("trainable".to_string(), g.clone())));
    out.extend(args.freeze.iter().map(|g| ("freeze".to_string(), g.clone())));
    if args.seed != 0 {
        out.push(("seed".into(), args.seed.to_string()));
    }
    out.extend(args.sized().map(|(a, b)| ("dim".to_string(), format!("{a}={b}"))));
    out
}

/// The import options a plan recorded, for reading its source again.
pub(crate) fn replay(model: PathBuf, options: &[(String, String)]) -> Result<Source, Error> {
    let mut import = ImportArgs::default();
    for (name, value) in options {
        let bad =
            || Error::Plan(format!("the plan records an import option it cannot have: {name} = {value}"));
        let pair = || value.split_once('=').map(|(a, b)| (a.to_string(), b.to_string())).ok_or_else(bad);
        match name.as_str() {
            "accumulate" => import.accumulate = value.parse().map_err(|_| bad())?,
            "no-optimizer" => import.no_optimizer = true,
            "carry" => import.carry.push(pair()?),
            "dim" => {
                let (name, value) = pair()?;
                import.dims.push(Dim { name, size: Some(value.parse().map_err(|_| bad())?) });
            }
            "loss" => import.loss = Some(value.parse().map_err(|_| bad())?),
            "optimizer" => import.optimizer = Some(value.parse().map_err(|_| bad())?),
            "trainable" => import.trainable.push(value.clone()),
            "freeze" => import.freeze.push(value.clone()),
            "seed" => import.seed = value.parse().map_err(|_| bad())?,
            NO_REWRITE | NO_FUSE => {}
            _ => return Err(bad()),
        }
    }
    Ok(Source { model, import })
}

/// A pass context that reads decision files from disk.
pub(crate) fn context(profile: &DeviceProfile) -> PassCx<'_> {
    let read_file = &|path: &str| read_text(Path::new(path)).map_err(|e| e.to_string());
    PassCx { profile, read_file, stats: Vec::new(), fired: Vec::new() }
}

/// Names of the recorded options of a plan whose source was not rewritten for memory, or not fused.
const NO_REWRITE: &str = "no-mem-rewrite";
const NO_FUSE: &str = "no-fuse";

/// Records among a plan's options what was not done to its source.
pub(crate) fn record(rewrite: RewriteArgs, options: &mut Vec<(String, String)>) {
    for (declined, name) in [(rewrite.no_mem_rewrite, NO_REWRITE), (rewrite.no_fuse, NO_FUSE)] {
        options.extend(declined.then(|| (name.to_string(), "true".to_string())));
    }
}

/// What was not done to a plan's source.
pub(crate) fn recorded_rewrites(options: &[(String, String)]) -> RewriteArgs {
    let has = |wanted: &str| options.iter().any(|(name, _)| name == wanted);
    RewriteArgs { no_mem_rewrite: has(NO_REWRITE), no_fuse: has(NO_FUSE) }
}

/// The kernels of a step, and what they do.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// Ops that run.
    pub(crate) kernels: usize,
    /// Bytes of their operands and results.
    pub(crate) bytes: u64,
    /// Their modelled time in ns.
    pub(crate) ns: u64,
}

impl Work {
    fn of(m: &Module, profile: &DeviceProfile) -> Work {
        let mut work = Work { kernels: 0, bytes: 0, ns: 0 };
        for &op in m.order.iter().filter(|&&op| !m.ops[op].is_view()) {
            let Some(kind) = m.ops[op].kind() else { continue };
            let (operands, results) = (m.operand_types(op), m.result_types(op));
            let cost = kind.cost(&operands, &results);
            work.kernels += 1;
            work.bytes = work.bytes.saturating_add(cost.bytes_read).saturating_add(cost.bytes_written);
            work.ns = work.ns.saturating_add(profile.op_ns(kind, &operands, &results));
        }
        work
    }

    /// The fields of a JSON report.
    pub(crate) fn json(self) -> serde_json::Value {
        serde_json::json!({"kernels": self.kernels, "bytes": self.bytes, "ns": self.ns})
    }
}

/// What the graph passes made of a model.
pub(crate) struct Rewritten {
    pub(crate) stash: Stash,
    /// The step's kernels as they are planned.
    pub(crate) work: Work,
    /// And before element-wise ops were fused, where they were.
    pub(crate) unfused: Option<Work>,
}

/// What the graph passes changed in what the backward pass needs of the forward pass.
pub(crate) struct Stash {
    /// Bytes kept before rewriting for memory.
    pub(crate) before: u64,
    /// And after.
    pub(crate) after: u64,
    /// Modelled time that rewriting adds to the unplanned step in ns.
    pub(crate) added_ns: u64,
    /// Forward ops that the backward pass runs again.
    pub(crate) again: u64,
    /// Rules that were used, and how often.
    pub(crate) rules: Vec<(String, u64)>,
}

impl Stash {
    fn new(module: &Module, stats: &[(&'static str, String, u64)]) -> Stash {
        let kept = stash_bytes(module);
        let mut stash = Stash { before: kept, after: kept, added_ns: 0, again: 0, rules: Vec::new() };
        for (_, what, n) in stats.iter().filter(|(pass, ..)| *pass == memory::NAME) {
            match what.as_str() {
                counts::BEFORE => stash.before = *n,
                counts::AFTER => stash.after = *n,
                counts::ADDED => stash.added_ns = *n,
                counts::AGAIN => stash.again = *n,
                _ if *n > 0 => stash.rules.push((what.clone(), *n)),
                _ => {}
            }
        }
        stash
    }

    /// The fields of a JSON report.
    pub(crate) fn json(&self) -> serde_json::Value {
        let rules: serde_json::Map<_, _> =
            self.rules.iter().map(|(name, n)| (name.clone(), (*n).into())).collect();
        serde_json::json!({
            "bytes_before": self.before, "bytes_after": self.after, "added_ns": self.added_ns,
            "ops_run_again": self.again, "rules": rules,
        })
    }

    /// One line for people.
    pub(crate) fn text(&self) -> String {
        let (before, after) = (Bytes(self.before).short(), Bytes(self.after).short());
        if self.before == self.after {
            return format!("kept from the forward for the backward pass: {after}");
        }
        let ms = self.added_ns as f64 / 1e6;
        format!(
            "kept from the forward for the backward pass: {after} instead of {before}, for {ms:.3} ms more of kernels"
        )
    }
}

/// Brings an imported module to the checker's reference point: the default graph passes, and unless `rewrite` declines
/// those that choose formulations by the memory they need.
///
/// The last of them, where the device is a GPU, makes one kernel of several element-wise ops.
pub(crate) fn canonicalise(
    module: &mut Module,
    profile: &DeviceProfile,
    rewrite: RewriteArgs,
) -> Result<Rewritten, Error> {
    if module.phase != Phase::Graph {
        return Err(Error::Usage("the file holds a mem-phase module; compile needs a graph".into()));
    }
    let mut cx = context(profile);
    Pipeline::parse(GRAPH_PIPELINE)?.run(module, &mut cx)?;
    if !rewrite.no_mem_rewrite {
        Pipeline::parse(MEMORY_PIPELINE)?.run(module, &mut cx)?;
    }
    let (stash, work) = (Stash::new(module, &cx.stats), Work::of(module, profile));
    if rewrite.no_fuse || profile.kernels != Kernels::Gpu {
        return Ok(Rewritten { stash, work, unfused: None });
    }
    Pipeline::parse(FUSE_PIPELINE)?.run(module, &mut cx)?;
    Ok(Rewritten { stash, work: Work::of(module, profile), unfused: Some(work) })
}

/// Refuses a graph whose initial values are known by their hash only, as one read from text.
pub(crate) fn require_values(module: &Module) -> Result<(), Error> {
    let absent = |s: &&memc_ir::State| matches!(&s.init, memc_ir::Init::Data(blob) if blob.bytes.is_none());
    let missing = module.states.values().filter(absent).count();
    if missing == 0 {
        return Ok(());
    }
    Err(Error::Model(format!(
        "the initial values of {missing} states are not in the IR text, only their hashes; compile the ONNX model instead"
    )))
}
