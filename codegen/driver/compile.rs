//! `memc compile`.

use std::sync::atomic::Ordering;

use memc_codegen::{Lowered, lower};
use memc_ir::{Bytes, Module, counted};
use memc_passes::DeviceProfile;
use memc_passes::plan::{Planned, carry_out};
use memc_plan::{Claims, Meta};
use memc_planner::planners::NoPlan;
use serde_json::json;

use crate::cli::{Compile, How};
use crate::device;
use crate::exit::Error;
use crate::output::{Progress, STOP, Writing, emit, ready, replaceable, table};
use crate::planner::named;
use crate::posed::Posed;
use crate::report::{Report, ms};
use crate::solve::{Outcome, Script, solve};
use crate::source::{self, Loaded, Stash};

fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

pub(crate) fn run(args: &Compile) -> Result<(), Error> {
    let progress = Progress::new(args.json);
    let import = &args.source.import;
    let inputs = [
        Some(&args.source.model),
        import.optimizer_model.as_ref(),
        import.checkpoint.as_ref(),
        args.script.apply.as_ref(),
    ];
    ready(&inputs, &[Some(&args.output), args.script.decisions.as_ref()])?;
    replaceable(&args.output)?;
    let profile = &*device::find(&args.device)?;
    progress.stage("importing");
    let mut loaded = source::load(&args.source)?;
    source::record(args.rewrite, &mut loaded.options);
    progress.notes(&loaded.notes, &loaded.warnings);
    let mut graph = loaded.module.clone();
    let source::Rewritten { stash, .. } = source::canonicalise(&mut graph, profile, args.rewrite)?;
    source::require_values(&graph)?;

    progress.stage("planning");
    let script = Script::read(&args.script)?;
    let order = script.as_ref().map_or_else(|| args.search.how.order(), |s| Some(s.order()));
    let posed = Posed::of(&graph, profile, order)?;
    let budget = args.gpu_mem.map(|size| posed.bytes(size)).transpose()?;
    let host = args.host_mem.unwrap_or(u64::MAX);
    let make = |how: &How| -> Result<(Chosen<'_>, Lowered), Error> {
        let chosen = choose(args, how, &posed, script.as_ref(), budget, &progress)?;
        progress.stage("lowering and checking");
        let lowered = finish(args, &graph, &chosen, &loaded, profile, budget)?;
        Ok((chosen, lowered))
    };
    let mut how = args.search.how.clone();
    let (mut chosen, mut lowered) = make(&how)?;
    if lowered.plan.meta.host_bytes > host && script.is_none() && !how.no_swap {
        // What is left in host memory then is inputs and outputs.
        how.no_swap = true;
        let swaps = lowered.plan.meta.host_bytes;
        let budget = budget.unwrap_or(u64::MAX);
        (chosen, lowered) =
            make(&how).map_err(|e| too_much_swapped(&posed, &how, budget, [swaps, host], e))?;
    }
    if lowered.plan.meta.host_bytes > host {
        let (has, may) = (Bytes(lowered.plan.meta.host_bytes), Bytes(host));
        let text = format!(
            "the plan takes {has} of host memory, more than --host-mem {may}\n\
             hint: inputs and outputs pass through host memory, too; pass a larger --host-mem, or a smaller batch"
        );
        return Err(Error::Infeasible(text, None));
    }
    let takes = lowered.plan.meta.budget_bytes;
    if let Some(has) = profile.memory_bytes.filter(|&has| takes > has) {
        let (takes, has) = (Bytes(takes), Bytes(has));
        progress.say(&format!("warning: the plan may take {takes}, and {} has {has}", profile.name));
    }
    progress.stage("writing");
    // The plan is what was asked for: once it is written, an interrupt leaves the rest time to say so.
    let _writing = Writing::begin();
    let hash = memc_plan::write(&args.output, &lowered.plan, &mut Blobs(&lowered), &stopped)?;
    if let (Some(file), Some((o, r))) = (&args.script.decisions, chosen.outcome.of(&posed)) {
        crate::output::write_file(file, r.decisions.print(o.numbers()).as_bytes())?;
    }
    progress.stage("proving a bound");
    let bound = Report::new(&posed, &chosen.outcome, &how);
    progress.done();
    report(args, &lowered, &bound, &stash, &hash)
}

/// Hands the plan writer each state's initial bytes.
struct Blobs<'a>(&'a Lowered);

impl memc_plan::InitialData for Blobs<'_> {
    fn bytes(&mut self, state: usize) -> std::io::Result<std::borrow::Cow<'_, [u8]>> {
        match self.0.data.get(&state) {
            Some(bytes) => Ok(std::borrow::Cow::Borrowed(bytes)),
            None => Err(std::io::Error::other("the state has no initial bytes")),
        }
    }
}

/// A planned step, and how it was found.
struct Chosen<'a> {
    posed: &'a Posed,
    outcome: Outcome,
    planned: Planned,
}

/// Plans in every order asked for and keeps the fastest, or carries out the decisions in a file. Without a budget
/// everything stays on the device.
fn choose<'a>(
    args: &Compile,
    how: &How,
    posed: &'a Posed,
    script: Option<&Script>,
    budget: Option<u64>,
    progress: &Progress,
) -> Result<Chosen<'a>, Error> {
    let budget = budget.unwrap_or(u64::MAX);
    let outcome = match script {
        Some(script) => script.apply(posed, budget)?,
        None => solve(posed, named(&args.search.planner)?, how, budget, progress)?,
    };
    let (at, realised) = match &outcome.plan {
        Ok(solved) => (solved.at, solved.realised.clone()),
        Err(NoPlan::Infeasible(why)) => {
            return Err(posed.infeasible(&[&outcome.planner], why, budget, how.allow())?);
        }
        Err(NoPlan::Failed(text)) => return Err(Error::Internal(text.clone())),
    };
    let Some(problem) = posed.tried()[at].model() else {
        return Err(Error::Internal("the problem is not a model's".into()));
    };
    let planned = carry_out(problem, realised, outcome.evaluations).map_err(Error::Internal)?;
    Ok(Chosen { posed, outcome, planned })
}

/// Why no plan keeps to a limit of host memory: the one that swaps takes too much, and none that does without is found.
fn too_much_swapped(posed: &Posed, how: &How, budget: u64, [swaps, host]: [u64; 2], without: Error) -> Error {
    if !matches!(without, Error::Infeasible(..)) {
        return without;
    }
    let smallest = match posed.smallest(how.allow()) {
        Ok(smallest) => smallest,
        Err(e) => return e,
    };
    // What passes through host memory in any case.
    let least = posed.given().kept.evaluation.host_bytes;
    let more = if smallest > budget && least <= host {
        format!(", or --gpu-mem {smallest}B or more, which needs no swapping")
    } else {
        String::new()
    };
    let (takes, host) = (Bytes(swaps), Bytes(host));
    Error::Infeasible(
        format!(
            "the plan takes {takes} of host memory, more than --host-mem {host}, and no plan without swapping is found in this \
             budget\nhint: pass --host-mem {swaps}B or more{more}"
        ),
        None,
    )
}

fn finish(
    args: &Compile,
    graph: &Module,
    chosen: &Chosen<'_>,
    loaded: &Loaded,
    profile: &DeviceProfile,
    budget: Option<u64>,
) -> Result<Lowered, Error> {
    let planned = &chosen.planned;
    let wrong = |text: String| match &args.script.apply {
        Some(file) => Error::Usage(format!("{}: {text}", file.display())),
        None => Error::Internal(text),
    };
    memc_ir::verify(&planned.module)
        .map_err(|d| wrong(format!("the planned module breaks rules of the verifier:\n{d}")))?;
    let meta = Meta {
        planner: chosen.outcome.planner.clone(),
        profile: profile.name.to_string(),
        options: loaded.options.clone(),
        budget_bytes: budget.unwrap_or(planned.dev_bytes + profile.reserve_bytes),
        reserve_bytes: profile.reserve_bytes,
        claims: Claims {
            unplanned_peak_bytes: chosen.posed.given().kept.evaluation.dev_bytes,
            ideal_ns: chosen.posed.ideal_ns(),
            step_ns: planned.evaluation.step_ns,
            recompute_ns: planned.evaluation.recompute_ns,
            ..Claims::default()
        },
        ..Meta::default()
    };
    let lowered = lower(graph, &planned.module, meta).map_err(|e| Error::Internal(e.to_string()))?;
    memc_check::check(graph, &lowered.plan)
        .map_err(|e| wrong(format!("the plan is wrong and was not written:\n{e}")))?;
    Ok(lowered)
}

fn report(
    args: &Compile,
    lowered: &Lowered,
    found: &Report<'_>,
    stash: &Stash,
    hash: &[u8; 32],
) -> Result<(), Error> {
    let meta = &lowered.plan.meta;
    let claims = &meta.claims;
    if args.json {
        let planned = found.json()?;
        let hex: String = hash.iter().map(|b| format!("{b:02x}")).collect();
        return emit(&format!(
            "{}\n",
            json!({
                "model": meta.model, "planner": meta.planner, "device": meta.profile, "plan": args.output, "plan_hash": hex,
                "gpu_mem_bytes": meta.budget_bytes, "reserve_bytes": meta.reserve_bytes, "arena_bytes": meta.dev_bytes, "host_bytes": meta.host_bytes,
                "peak_bytes": planned["peak_bytes"], "unplanned_peak_bytes": planned["unplanned_peak_bytes"],
                "ideal_ns": claims.ideal_ns, "step_ns": claims.step_ns,
                "bound_ns": found.bound.map(|b| b.0), "bound_holds_for": found.bound.map(|b| b.1),
                "swap_out_bytes": claims.swap_out_bytes, "swap_in_bytes": claims.swap_in_bytes,
                "recompute_ns": claims.recompute_ns, "recompute_ops": claims.recompute_ops, "ops": claims.ops,
                "evaluations": found.outcome.evaluations, "plan_ns": found.outcome.plan_ns, "stopped": found.outcome.stopped,
                "checked": true,
                "stash": stash.json(),
            })
        ));
    }
    let unplanned = found.posed.given().kept.evaluation.step_ns;
    let mut text = table(
        &["", "unplanned", "planned"],
        &[
            vec!["arena".into(), Bytes(claims.unplanned_peak_bytes).short(), Bytes(meta.dev_bytes).short()],
            vec!["step (modelled)".into(), ms(unplanned), ms(claims.step_ns)],
            vec!["swapped out".into(), "-".into(), Bytes(claims.swap_out_bytes).short()],
            vec!["swapped in".into(), "-".into(), Bytes(claims.swap_in_bytes).short()],
            vec![
                "recomputed".into(),
                "-".into(),
                format!("{}, {}", counted(claims.recompute_ops as usize, "op"), ms(claims.recompute_ns)),
            ],
        ],
    );
    text.push_str(&format!(
        "\n{}\n{}\n{}: {}; arena {} of a budget of {}{}, host {}; proved by the checker\n",
        stash.text(),
        format_args!("by {}: {}", found.outcome.planner, found.verdict()),
        args.output.display(),
        counted(claims.ops as usize, "op"),
        Bytes(meta.dev_bytes),
        Bytes(meta.budget_bytes),
        found.posed.and_reserve(),
        Bytes(meta.host_bytes),
    ));
    emit(&text)
}
