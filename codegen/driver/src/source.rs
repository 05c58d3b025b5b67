//! A model: imported or parsed, then brought by the graph passes to the checker's reference point.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use memc_frontend::{Import, ImportError, ImportOptions, Purpose};
use memc_ir::attr::F32;
use memc_ir::{Module, Phase, print_diags, verify};
use memc_passes::graph::memory::{self, counts, saved_bytes};
use memc_passes::{
    DeviceProfile, FAST_PIPELINE, FUSE_PIPELINE, Fired, GRAPH_PIPELINE, Kernels, LEAN_PIPELINE,
    MEMORY_PIPELINE, PROFILES, PassCx, PassError, Pipeline, training,
};
use memc_plan::{EVALUATION, INFERENCE};
use memc_planner::Formulation;
use rayon::prelude::*;
use serde::Serialize;

use crate::candidate::SwapLimit;
use crate::device;
use crate::error::Error;
use crate::machine::read_text;
use crate::watch::{Event, Watch};
use crate::workload::Workload;

/// Where a model is and how to read it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Source {
    /// ONNX model, IR file (.mir), or where only numbers are needed a planning problem (.json).
    pub path: PathBuf,
    /// Options of the importer.
    pub import: ImportOptions,
}

/// The device of a model, and the rewrites that a user may decline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Name of a built-in profile, path of a profile file (.json), or [`device::AUTO`].
    pub device: String,
    /// Rewrites before planning.
    pub rewrites: Rewrites,
}

impl Default for Target {
    fn default() -> Self {
        Target { device: "cpu".into(), rewrites: Rewrites::default() }
    }
}

/// Passes that run unless declined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rewrites {
    /// Choose formulations of gradients by what they need of the forward pass.
    pub memory: bool,
    /// Make one kernel of several element-wise ops, on GPUs.
    pub fuse: bool,
}

impl Default for Rewrites {
    fn default() -> Self {
        Rewrites { memory: true, fuse: true }
    }
}

/// A model as read, before the graph passes.
pub struct Imported {
    /// The module.
    pub module: Module,
    /// Facts about what was read from where.
    pub notes: Vec<String>,
    /// Doubts about the result.
    pub warnings: Vec<String>,
    /// Options that a later import needs to give the same graph.
    pub options: Vec<(String, String)>,
    /// Rules applied to a forward model before it was differentiated.
    pub fired: Vec<Fired>,
}

/// A model at the checker's reference point, for one device.
pub struct Model {
    /// The model's own formulation, then others.
    pub graphs: Vec<Graph>,
    /// The device.
    pub profile: Cow<'static, DeviceProfile>,
    /// Options that a later import needs to give the same graphs; a plan records them.
    pub options: Vec<(String, String)>,
    /// Limits of jobs on swapping.
    pub limits: Vec<SwapLimit>,
}

/// A formulation of a model's step.
pub struct Graph {
    /// Its name.
    pub formulation: Formulation,
    /// The graph that plans are proved against.
    pub module: Module,
    /// Activations that the backward pass needs.
    pub saved: SavedActivations,
    /// Kernels as they are planned.
    pub work: Work,
    /// Kernels before element-wise ops were fused, where they were.
    pub unfused: Option<Work>,
}

impl Model {
    /// Imports a workload and brings it to the reference point. Notes and warnings go to `watch`.
    pub fn read(workload: &Workload, target: &Target, watch: &dyn Watch) -> Result<Model, Error> {
        let profile = if target.device == device::AUTO {
            let (name, line) = device::automatic();
            watch.event(Event::Note(&line));
            device::find(&name)?
        } else {
            device::find(&target.device)?
        };
        watch.event(Event::Stage("importing"));
        let imported = workload.import()?;
        imported.notes.iter().for_each(|text| watch.event(Event::Note(text)));
        imported.warnings.iter().for_each(|text| watch.event(Event::Warning(text)));
        Ok(Model { limits: workload.limits(), ..Model::of(imported, profile, target.rewrites)? })
    }

    /// Brings an imported model to the reference point: [`GRAPH_PIPELINE`], then for each formulation unless
    /// declined [`MEMORY_PIPELINE`] and, for GPUs, [`FUSE_PIPELINE`].
    pub fn of(
        imported: Imported,
        profile: Cow<'static, DeviceProfile>,
        rewrites: Rewrites,
    ) -> Result<Model, Error> {
        let Imported { module: mut graph, mut options, .. } = imported;
        rewrites.record(&mut options);
        if graph.phase != Phase::Graph {
            return Err(Error::Usage("the file holds a mem-phase module; compile needs a graph".into()));
        }
        Pipeline::parse(GRAPH_PIPELINE)?.run(&mut graph, &mut context(&profile))?;
        let tried = if rewrites.memory { &Formulation::ALL[..] } else { &[Formulation::Own] };
        let new = |&formulation| Graph::new(graph.clone(), formulation, &profile, rewrites.fuse);
        let made: Result<Vec<Graph>, Error> = tried.par_iter().map(new).collect();
        let mut graphs: Vec<Graph> = Vec::new();
        for new in made? {
            if graphs.iter().all(|known| known.module != new.module) {
                graphs.push(new);
            }
        }
        if let [own, others @ ..] = &mut graphs[..] {
            for other in others {
                other.saved.added_ns = other.work.ns.saturating_sub(own.work.ns);
            }
        }
        Ok(Model { graphs, profile, options, limits: Vec::new() })
    }

    /// The graph of a formulation, where it differs from those before.
    pub fn graph(&self, formulation: Formulation) -> Option<&Graph> {
        self.graphs.iter().find(|graph| graph.formulation == formulation)
    }

    /// The model's own formulation.
    pub fn own(&self) -> &Graph {
        &self.graphs[0]
    }

    /// The formulation that saves least for the backward pass.
    pub fn smallest(&self) -> &Graph {
        let least = self.graphs.iter().min_by_key(|graph| graph.saved.after);
        least.unwrap_or(self.own())
    }

    /// Refuses a graph whose initial values are known by their hash only, as one read from text.
    pub fn require_values(&self) -> Result<(), Error> {
        let absent =
            |s: &&memc_ir::State| matches!(&s.init, memc_ir::Init::Data(blob) if blob.bytes().is_none());
        let missing = self.own().module.states.values().filter(absent).count();
        if missing == 0 {
            return Ok(());
        }
        Err(Error::Model(format!(
            "the initial values of {missing} states are not in the IR text, only their hashes; compile \
             the ONNX model instead"
        )))
    }
}

impl Graph {
    /// Brings a graph that has passed [`GRAPH_PIPELINE`] to the reference point in a formulation.
    fn new(
        mut module: Module,
        formulation: Formulation,
        profile: &DeviceProfile,
        fuse: bool,
    ) -> Result<Graph, Error> {
        let mut cx = context(profile);
        let pipeline = match formulation {
            Formulation::Own => "",
            Formulation::Fast => FAST_PIPELINE,
            Formulation::Lean => LEAN_PIPELINE,
            Formulation::Small => MEMORY_PIPELINE,
        };
        Pipeline::parse(pipeline)?.run(&mut module, &mut cx)?;
        let saved = SavedActivations::new(&module, &cx.stats);
        let (mut work, mut unfused) = (Work::of(&module, profile), None);
        if fuse && profile.kernels == Kernels::Gpu {
            Pipeline::parse(FUSE_PIPELINE)?.run(&mut module, &mut cx)?;
            unfused = Some(work);
            work = Work::of(&module, profile);
        }
        Ok(Graph { formulation, module, saved, work, unfused })
    }
}

/// Refuses options that say how to read a model where there is nothing that they would apply to.
pub(crate) fn refuse_options(source: &Source, why: &str) -> Result<(), Error> {
    if source.import == ImportOptions::default() {
        return Ok(());
    }
    Err(Error::Usage(format!("options such as --device, --dim and --loss apply to ONNX models; {why}")))
}

/// Imports an ONNX model, or parses an IR file; verifies either.
///
/// Passes add the loss, the gradients and the optimizer that a forward model or training artifacts lack.
pub fn import(source: &Source) -> Result<Imported, Error> {
    let path = &source.path;
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
        return Ok(Imported { module, notes, warnings, options, fired });
    }
    if path.extension().is_some_and(|e| e == "json") {
        let text = "a planning problem? `memc plan`, `compare`, `sweep`, `explain` and `bound` take those; \
            this command needs a model";
        return Err(Error::Model(format!("{}: {text}", path.display())));
    }
    let options = &source.import;
    let failed = |e: ImportError| import_failed(path, &e);
    let mut import = memc_frontend::import(path, options).map_err(failed)?;
    // The passes that build a step ask nothing of the device.
    let mut cx = context(&PROFILES[0]);
    if let Some(recipe) = &import.recipe {
        training::fulfil(&mut import.module, recipe, &mut cx).map_err(|e| match e {
            PassError::Usage(text) => failed(ImportError::Usage(text)),
            PassError::Unsupported(text) => failed(ImportError::Unsupported(text)),
            other => other.into(),
        })?;
        import.warnings.append(&mut cx.warnings);
    }
    let fired = cx.fired;
    let Import { module, notes, warnings, .. } = import.finish().map_err(failed)?;
    verify(&module)
        .map_err(|d| Error::Internal(format!("invalid module\n{}", print_diags(&module, &d).trim_end())))?;
    Ok(Imported { module, notes, warnings, options: recorded(options), fired })
}

/// Error of a failed import of a file.
pub(crate) fn import_failed(path: &Path, error: &ImportError) -> Error {
    match error {
        ImportError::Usage(_) => Error::Usage(error.to_string()),
        ImportError::Io { .. } => Error::Io(error.to_string()),
        _ => Error::Model(format!("{}: {error}", path.display())),
    }
}

/// Hint at the file to give in place of a folder.
fn folder(path: &Path) -> String {
    let is_model = |f: &PathBuf| f.extension().is_some_and(|e| e == "onnx");
    let files = std::fs::read_dir(path).into_iter().flatten().flatten().map(|f| f.path());
    let mut models: Vec<PathBuf> = files.filter(is_model).collect();
    models.sort();
    // Name of the training graph among the artifacts of onnxruntime-training.
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

fn recorded(import: &ImportOptions) -> Vec<(String, String)> {
    let mut out = vec![("accumulate".to_string(), import.accumulate.to_string())];
    if import.sum_gradients {
        out.push(("sum-gradients".into(), "true".into()));
    }
    if import.no_optimizer {
        out.push(("no-optimizer".into(), "true".into()));
    }
    out.extend(import.carry.iter().map(|(a, b)| ("carry".to_string(), format!("{a}={b}"))));
    out.extend(import.loss.iter().map(|l| ("loss".to_string(), l.to_string())));
    out.extend(import.optimizer.iter().map(|o| ("optimizer".to_string(), o.to_string())));
    out.extend(import.parameters.iter().map(|g| ("parameters".to_string(), g.clone())));
    out.extend(import.trainable.iter().map(|g| ("trainable".to_string(), g.clone())));
    out.extend(import.freeze.iter().map(|g| ("freeze".to_string(), g.clone())));
    out.extend(import.no_decay.iter().map(|g| ("no-decay".to_string(), g.clone())));
    out.extend(import.rate_factors.iter().map(|(g, f)| ("lr-mult".to_string(), format!("{g}={:?}", f.0))));
    out.extend(import.stop_gradient.iter().map(|g| ("stop-gradient".to_string(), g.clone())));
    out.extend(import.keep_outputs.iter().map(|g| ("keep-output".to_string(), g.clone())));
    match import.purpose {
        Purpose::Training => {}
        Purpose::Evaluation => out.push((EVALUATION.into(), "true".into())),
        Purpose::Inference => out.push((INFERENCE.into(), "true".into())),
    }
    if import.seed != 0 {
        out.push(("seed".into(), import.seed.to_string()));
    }
    out.extend(import.dims.iter().map(|(a, b)| ("dim".to_string(), format!("{a}={b}"))));
    out
}

impl Source {
    /// The source of a plan, to be read again with the import options that the plan recorded.
    pub fn recorded(path: PathBuf, options: &[(String, String)]) -> Result<Source, Error> {
        let mut import = ImportOptions::default();
        for (name, value) in options {
            let bad =
                || Error::Plan(format!("the plan records an import option it cannot have: {name} = {value}"));
            let pair = || value.split_once('=').map(|(a, b)| (a.to_string(), b.to_string())).ok_or_else(bad);
            match name.as_str() {
                "accumulate" => import.accumulate = value.parse().map_err(|_| bad())?,
                "sum-gradients" => import.sum_gradients = true,
                "no-optimizer" => import.no_optimizer = true,
                "carry" => import.carry.push(pair()?),
                "dim" => {
                    let (name, value) = pair()?;
                    import.dims.push((name, value.parse().map_err(|_| bad())?));
                }
                "loss" => import.loss = Some(value.parse().map_err(|_| bad())?),
                "optimizer" => import.optimizer = Some(value.parse().map_err(|_| bad())?),
                "parameters" => import.parameters.push(value.clone()),
                "trainable" => import.trainable.push(value.clone()),
                "freeze" => import.freeze.push(value.clone()),
                "no-decay" => import.no_decay.push(value.clone()),
                "lr-mult" => {
                    let (pattern, factor) = value.rsplit_once('=').ok_or_else(bad)?;
                    import.rate_factors.push((pattern.to_string(), F32(factor.parse().map_err(|_| bad())?)));
                }
                "stop-gradient" => import.stop_gradient.push(value.clone()),
                "keep-output" => import.keep_outputs.push(value.clone()),
                EVALUATION => import.purpose = Purpose::Evaluation,
                INFERENCE => import.purpose = Purpose::Inference,
                "seed" => import.seed = value.parse().map_err(|_| bad())?,
                FORMULATION | NO_FUSE => {}
                _ => return Err(bad()),
            }
        }
        Ok(Source { path, import })
    }
}

/// A pass context that reads decision files from disk.
pub fn context(profile: &DeviceProfile) -> PassCx<'_> {
    let read_file = &|path: &str| read_text(Path::new(path)).map_err(|e| PassError::Usage(e.to_string()));
    PassCx { read_file, ..PassCx::new(profile) }
}

/// Name of the recorded option that tells a plan's formulation, and of the one whose source was not fused.
const FORMULATION: &str = "formulation";
const NO_FUSE: &str = "no-fuse";

impl Model {
    /// Options that a later import needs to give the graph of a formulation.
    pub(crate) fn recorded(&self, formulation: Formulation) -> Vec<(String, String)> {
        let mut options = self.options.clone();
        options.push((FORMULATION.into(), formulation.name().into()));
        options
    }
}

/// The formulation that a plan records.
pub(crate) fn formulation(options: &[(String, String)]) -> Result<Formulation, Error> {
    let Some((_, name)) = options.iter().find(|(name, _)| name == FORMULATION) else {
        let text = "the plan names no formulation: it is of an earlier release; compile the model again";
        return Err(Error::Plan(text.into()));
    };
    let unknown = || Error::Plan(format!("the plan records an unknown formulation: {name}"));
    Formulation::named(name).ok_or_else(unknown)
}

impl Rewrites {
    /// Records among a plan's options that its source was not fused.
    fn record(self, options: &mut Vec<(String, String)>) {
        options.extend((!self.fuse).then(|| (NO_FUSE.to_string(), "true".to_string())));
    }

    /// Rewrites that the source of a plan of a formulation went through.
    pub(crate) fn recorded(options: &[(String, String)], formulation: Formulation) -> Rewrites {
        let fused = !options.iter().any(|(name, _)| name == NO_FUSE);
        Rewrites { memory: formulation != Formulation::Own, fuse: fused }
    }
}

/// Kernels of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Work {
    /// Ops that run.
    pub kernels: usize,
    /// Bytes of their operands and results.
    pub bytes: u64,
    /// Their modelled time in ns.
    pub ns: u64,
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
}

/// Activations that the backward pass needs of the forward pass, and the change by rewriting.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SavedActivations {
    /// Bytes kept before rewriting for memory.
    #[serde(rename = "bytes_before")]
    pub before: u64,
    /// Bytes kept after it.
    #[serde(rename = "bytes_after")]
    pub after: u64,
    /// Modelled time that rewriting adds to the ideal step in ns.
    pub added_ns: u64,
    /// Forward ops that the backward pass recomputes.
    #[serde(rename = "ops_run_again")]
    pub recomputed_ops: u64,
    /// Rules that were used, and how often.
    #[serde(serialize_with = "as_map")]
    pub rules: Vec<(String, u64)>,
}

fn as_map<S: serde::Serializer>(rules: &[(String, u64)], s: S) -> Result<S::Ok, S::Error> {
    s.collect_map(rules.iter().map(|(name, n)| (name, n)))
}

impl SavedActivations {
    fn new(module: &Module, stats: &[(&'static str, String, u64)]) -> SavedActivations {
        let kept = saved_bytes(module);
        let mut saved =
            SavedActivations { before: kept, after: kept, added_ns: 0, recomputed_ops: 0, rules: Vec::new() };
        for (_, what, n) in stats.iter().filter(|(pass, ..)| *pass == memory::NAME) {
            match what.as_str() {
                counts::BEFORE => saved.before = *n,
                counts::AFTER => saved.after = *n,
                counts::RECOMPUTED => saved.recomputed_ops = *n,
                counts::ADDED => {}
                _ if *n > 0 => saved.rules.push((what.clone(), *n)),
                _ => {}
            }
        }
        saved
    }
}
