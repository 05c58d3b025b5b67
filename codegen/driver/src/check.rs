//! Plan files: opened, and proved against their source.

use std::collections::BTreeSet;
use std::path::Path;

use memc_check::{BucketErrors, CheckErrors};
use memc_ir::{Init, Module, parse, print};
use memc_plan::{Plan, PlanFile};

use crate::device;
use crate::error::Error;
use crate::source::{Model, Rewrites, formulation};
use crate::workload::{JobFile, Workload};

/// Opens a plan file; errors name it.
pub fn open(path: &Path) -> Result<PlanFile, Error> {
    PlanFile::open(path).map_err(|e| Error::from(e).in_plan(path))
}

/// The model that a plan is held against, read again with the options that the plan recorded.
#[derive(Clone, Debug, Default)]
pub struct Against {
    /// Model or IR file of each job.
    pub sources: Vec<JobFile>,
    /// Optimizer models, where they are not those beside the sources.
    pub optimizer_models: Vec<JobFile>,
    /// Initial values, where they are not those beside the sources.
    pub checkpoints: Vec<JobFile>,
    /// Device, where the plan's is a measured one.
    pub device: Option<String>,
}

/// A plan that the checker does not accept.
#[derive(Debug)]
pub struct Rejection {
    /// Reasons.
    pub errors: CheckErrors,
    /// The most likely mistake, where the plan and the graph differ as a whole.
    pub hint: Option<String>,
    /// The bucket that is not proved; 0 is the plan itself.
    pub bucket: usize,
}

/// Proves a plan against a model, or against the source graph that it carries.
///
/// Fails with an [`Error`] where the graph cannot be read.
pub fn check(plan: &Plan, against: Option<&Against>) -> Result<Result<memc_check::Report, Rejection>, Error> {
    let mut graphs = Vec::new();
    for plan in plan.with_buckets() {
        graphs.push(match against {
            Some(against) => reference(plan, against)?,
            None => carried(plan)?,
        });
    }
    Ok(memc_check::check_buckets(&graphs, plan).map(together).map_err(|BucketErrors { bucket, errors }| {
        let of = graphs.get(bucket).zip(plan.bucket(bucket));
        let hint = of.zip(against).and_then(|((graph, plan), against)| hint(against, graph, plan));
        Rejection { errors, hint, bucket }
    }))
}

/// The reports of all buckets as one.
fn together(reports: Vec<memc_check::Report>) -> memc_check::Report {
    let mut reports = reports.into_iter();
    let first = reports.next().unwrap_or_default();
    reports.fold(first, |mut all, mut other| {
        all.commands += other.commands;
        all.kernels += other.kernels;
        all.terms += other.terms;
        all.lints.append(&mut other.lints);
        all
    })
}

/// The source graph that a plan carries.
pub(crate) fn carried(plan: &Plan) -> Result<Module, Error> {
    let module =
        parse(&plan.meta.source).map_err(|d| Error::Plan(format!("the plan's source graph: {d}")))?;
    memc_ir::verify(&module).map_err(|d| Error::Plan(format!("the plan's source graph: {d}")))?;
    Ok(module)
}

/// The graph of a plan's model, read again.
fn reference(plan: &Plan, against: &Against) -> Result<Module, Error> {
    let mut workload = Workload::recorded(&against.sources, &plan.meta.options)?;
    let names: Vec<Option<String>> = workload.sources_mut().map(|(job, _)| job.map(str::to_owned)).collect();
    let others = against.optimizer_models.iter().chain(&against.checkpoints);
    if let Some(file) = others.into_iter().find(|file| !names.contains(&file.job)) {
        let names: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
        return Err(Error::Usage(format!(
            "{}: the plan has no such job; write JOB=FILE with one of its jobs: {}",
            file.path.display(),
            if names.is_empty() { "it has none, write FILE".to_owned() } else { names.join(", ") }
        )));
    }
    for (job, source) in workload.sources_mut() {
        let of = |files: &[JobFile]| {
            files.iter().find(|file| file.job.as_deref() == job).map(|file| file.path.clone())
        };
        source.import.optimizer_model = of(&against.optimizer_models);
        source.import.checkpoint = of(&against.checkpoints);
    }
    let imported = workload.import()?;
    let profile = device::of_plan(against.device.as_deref(), &plan.meta.profile)?;
    let formulation = formulation(&plan.meta.options)?;
    let rewrites = Rewrites::recorded(&plan.meta.options, formulation);
    let model = Model::of(imported, profile, rewrites)?;
    // Another model may lack the formulation; the proof says then that the plan is not its own.
    Ok(model.graph(formulation).unwrap_or(model.own()).module.clone())
}

/// Refuses a model that is not the one of a plan, initial values aside.
pub(crate) fn require_source(plan: &Plan, model: &Path, device: Option<&str>) -> Result<(), Error> {
    let other = |why: &str| {
        let (path, of) = (model.display(), &plan.meta.model);
        Error::Usage(format!("{path}: the plan is of another model (`{of}`){why}"))
    };
    let source = JobFile { job: None, path: model.to_owned() };
    // Another device's times may be asked for; the graph is that of the plan's own one.
    let device = device.filter(|_| device::find(&plan.meta.profile).is_err());
    let against = Against { sources: vec![source], device: device.map(str::to_owned), ..Against::default() };
    let graph = reference(plan, &against).map_err(|error| match error {
        Error::Io(_) | Error::Internal(_) | Error::Bug { .. } => error,
        // Another model may not take the options of this one.
        error => other(&format!(": read with the plan's options, {error}")),
    })?;
    let printed = |mut module: Module| {
        module.states.iter_mut().for_each(|(_, state)| state.init = Init::Zeros);
        print(&module)
    };
    if printed(graph) != printed(carried(plan)?) {
        return Err(other(", or has another optimizer model than the one beside it"));
    }
    Ok(())
}

/// The most likely mistake, where the plan and the graph differ as a whole.
fn hint(against: &Against, graph: &Module, plan: &Plan) -> Option<String> {
    let shown = |files: &[JobFile]| {
        files.iter().map(|file| file.path.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    let source = shown(&against.sources);
    if let Ok(mut planned) = parse(&plan.meta.source) {
        let mut graph = graph.clone();
        if print(&planned) == print(&graph) {
            return None;
        }
        for module in [&mut planned, &mut graph] {
            module.states.iter_mut().for_each(|(_, state)| state.init = Init::Zeros);
        }
        if print(&planned) == print(&graph) {
            return Some(match &against.checkpoints[..] {
                [] => "the plan was compiled with other initial values: give --checkpoint FILE".into(),
                files => format!(
                    "the plan was compiled with other initial values than those of {}: give the file that \
                     `memc compile` was given",
                    shown(files)
                ),
            });
        }
    }
    let values = |v| graph.values.get(v).map(|value| (value.name.as_str(), &value.ty));
    let of_graph: BTreeSet<_> = graph
        .states
        .values()
        .map(|s| s.value)
        .chain(graph.inputs.values().map(|i| i.value))
        .filter_map(values)
        .collect();
    let states = plan.states.iter().filter(|s| s.is_variable()).map(|s| (s.name.as_str(), &s.ty));
    let of_plan: BTreeSet<_> = states.chain(plan.inputs.iter().map(|i| (i.name.as_str(), &i.ty))).collect();
    let same = of_plan.intersection(&of_graph).count();
    if same.saturating_mul(2) < of_plan.len().min(of_graph.len()) {
        let of = &plan.meta.model;
        return Some(format!(
            "this is a plan of another model (`{of}`): {same} of its {} states and inputs are those of \
             {source}",
            of_plan.len()
        ));
    }
    against.optimizer_models.is_empty().then(|| {
        format!(
            "the plan is not one of {source} as it is read without more options; if it was compiled with \
             --optimizer-model FILE or --checkpoint FILE, give them here too"
        )
    })
}
