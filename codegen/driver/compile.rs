//! `memc compile`.

use std::sync::atomic::Ordering;
use std::time::Instant;

use memc_codegen::{Lowered, lower};
use memc_ir::{Bytes, Module};
use memc_passes::plan::{PlanError, Planned, Problem, keep_all, plan, realise};
use memc_passes::{DeviceProfile, Pipeline};
use memc_plan::{Claims, Meta};
use memc_planner::{Decisions, Order};
use serde_json::json;

use crate::cli::Compile;
use crate::device;
use crate::exit::Error;
use crate::output::{Progress, STOP, Writing, apart, counted, emit, table};
use crate::size::{Size, host_memory};
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
    apart(&inputs, &[Some(&args.output), args.script.decisions.as_ref()])?;
    let profile = &*device::find(&args.device)?;
    let budget = args.gpu_mem.map(|size| resolve(size, profile)).transpose()?;
    progress.stage("importing");
    let mut loaded = source::load(&args.source)?;
    if args.no_mem_rewrite {
        source::record_no_rewrite(&mut loaded.options);
    }
    progress.notes(&loaded.notes, &loaded.warnings);
    let mut graph = loaded.module.clone();
    let stash = source::canonicalise(&mut graph, profile, !args.no_mem_rewrite)?;
    source::require_values(&graph)?;

    progress.stage("planning");
    let clock = now();
    let chosen = choose(args, &graph, profile, budget)?;
    let plan_ns = u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);

    progress.stage("lowering and checking");
    let lowered = finish(args, &graph, &chosen, &loaded, profile, budget)?;
    progress.stage("writing");
    let hash = {
        let _writing = Writing::begin();
        memc_plan::write(&args.output, &lowered.plan, &mut Blobs(&lowered), &stopped)?
    };
    if let Some(file) = &args.script.decisions {
        let text = chosen.planned.decisions.print(&chosen.problem.numbers);
        crate::output::write_file(file, text.as_bytes())?;
    }
    progress.done();
    report(args, &lowered, &chosen, &stash, plan_ns, &hash)
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

fn resolve(size: Size, profile: &DeviceProfile) -> Result<u64, Error> {
    match size {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Percent(percent) => {
            let own = profile.memory_bytes;
            let total = own.or_else(|| (profile.name == "cpu").then(host_memory).flatten());
            let Some(total) = total else {
                return Err(Error::Usage(format!(
                    "the memory of device `{}` is not known here: give --gpu-mem in bytes, as 16G",
                    profile.name
                )));
            };
            Ok((total as f64 * percent / 100.0) as u64)
        }
    }
}

/// A planned step, and the unplanned one to compare it with.
struct Chosen {
    problem: Problem,
    planned: Planned,
    planner: String,
    unplanned_bytes: u64,
    ideal_ns: u64,
}

fn problem(graph: &Module, profile: &DeviceProfile) -> Result<Problem, Error> {
    Problem::new(graph, profile).map_err(Error::Model)
}

/// The graph with its ops in the given order.
fn ordered(graph: &Module, order: Order, profile: &DeviceProfile) -> Result<Module, Error> {
    let mut module = graph.clone();
    Pipeline::parse(&format!("order{{algo={}}}", order.name()))?
        .run(&mut module, &mut source::context(profile))?;
    Ok(module)
}

/// Plans in every order asked for and keeps the fastest; the unplanned step is that of the order as given.
fn choose(
    args: &Compile,
    graph: &Module,
    profile: &DeviceProfile,
    budget: Option<u64>,
) -> Result<Chosen, Error> {
    let given = problem(graph, profile)?;
    let unplanned = keep_all(&given)?;
    let (unplanned_bytes, ideal_ns) = (unplanned.dev_bytes, unplanned.evaluation.step_ns);
    let capacity = budget.map(|b| b.saturating_sub(profile.reserve_bytes));
    let chosen = |problem, planned, planner: &str| Chosen {
        problem,
        planned,
        planner: planner.into(),
        unplanned_bytes,
        ideal_ns,
    };
    if let Some(file) = &args.script.apply {
        let text = source::read_text(file)?;
        let at = |e| Error::Usage(format!("{}: {e}", file.display()));
        let p = problem(&ordered(graph, Decisions::order_in(&text), profile)?, profile)?;
        let decisions = Decisions::parse(&text, &p.numbers).map_err(at)?;
        let planned = realise(&p, decisions).map_err(at)?;
        if let Some(capacity) = capacity.filter(|&c| c < planned.dev_bytes) {
            let (need, have) = (Bytes(planned.dev_bytes), Bytes(capacity));
            let text = format!("{}: the decisions take {need}, the budget is {have}", file.display());
            return Err(Error::Infeasible(text, None));
        }
        return Ok(chosen(p, planned, "decisions"));
    }
    let planner = args.search.planner()?;
    let request = capacity.map(|c| args.search.request(c));
    let mut results = Vec::new();
    let mut error = None;
    for order in
        [Order::Given, Order::Greedy].into_iter().filter(|o| ["auto", o.name()].contains(&&*args.order))
    {
        let module = ordered(graph, order, profile)?;
        if order == Order::Greedy && args.order == "auto" && module.order == graph.order {
            continue;
        }
        let p = problem(&module, profile)?;
        let planned = match &request {
            Some(request) => plan(&p, profile, planner, request),
            None => keep_all(&p),
        };
        match planned {
            Ok(mut planned) => {
                planned.decisions.order = order;
                let fits = planned.traffic.swap_in_bytes + planned.traffic.recompute_ops == 0;
                results.push((p, planned));
                if fits {
                    break;
                }
            }
            Err(e) => error = Some(lesser(error, e)),
        }
    }
    let best = results.into_iter().min_by_key(|(_, r)| (r.evaluation.step_ns, r.traffic.swap_in_bytes));
    match (best, error) {
        (Some((p, planned)), _) => Ok(chosen(p, planned, planner.name)),
        (None, Some(e)) => Err(e.into()),
        (None, None) => Err(Error::Internal("no order was planned".into())),
    }
}

/// Of two failures, the one that asks for less memory.
fn lesser(first: Option<PlanError>, second: PlanError) -> PlanError {
    match (first, second) {
        (Some(PlanError::Infeasible(a)), PlanError::Infeasible(b))
            if a.smallest_bytes <= b.smallest_bytes =>
        {
            PlanError::Infeasible(a)
        }
        (_, second) => second,
    }
}

fn finish(
    args: &Compile,
    graph: &Module,
    chosen: &Chosen,
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
        planner: chosen.planner.clone(),
        profile: profile.name.to_string(),
        options: loaded.options.clone(),
        budget_bytes: budget.unwrap_or(planned.dev_bytes + profile.reserve_bytes),
        reserve_bytes: profile.reserve_bytes,
        claims: Claims {
            unplanned_peak_bytes: chosen.unplanned_bytes,
            ideal_ns: chosen.ideal_ns,
            step_ns: planned.evaluation.step_ns,
            recompute_ns: planned.evaluation.recompute_ns,
            ..Claims::default()
        },
        ..Meta::default()
    };
    let lowered = lower(graph, &planned.module, meta).map_err(Error::Internal)?;
    memc_check::check(graph, &lowered.plan)
        .map_err(|e| wrong(format!("the plan is wrong and was not written:\n{e}")))?;
    Ok(lowered)
}

#[allow(clippy::disallowed_methods, reason = "the driver reports how long planning took; no pass sees it")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

fn report(
    args: &Compile,
    lowered: &Lowered,
    chosen: &Chosen,
    stash: &Stash,
    plan_ns: u64,
    hash: &[u8; 32],
) -> Result<(), Error> {
    let meta = &lowered.plan.meta;
    let claims = &meta.claims;
    if args.json {
        let hex: String = hash.iter().map(|b| format!("{b:02x}")).collect();
        return emit(&format!(
            "{}\n",
            json!({
                "model": meta.model, "planner": meta.planner, "device": meta.profile, "plan": args.output, "plan_hash": hex,
                "gpu_mem_bytes": meta.budget_bytes, "arena_bytes": meta.dev_bytes, "host_bytes": meta.host_bytes,
                "peak_bytes": claims.peak_bytes, "unplanned_peak_bytes": claims.unplanned_peak_bytes,
                "ideal_ns": claims.ideal_ns, "step_ns": claims.step_ns,
                "swap_out_bytes": claims.swap_out_bytes, "swap_in_bytes": claims.swap_in_bytes,
                "recompute_ns": claims.recompute_ns, "recompute_ops": claims.recompute_ops, "ops": claims.ops,
                "evaluations": chosen.planned.evaluations, "plan_ns": plan_ns, "checked": true,
                "stash": stash.json(),
            })
        ));
    }
    let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
    let mut text = table(
        &["", "unplanned", "planned"],
        &[
            vec![
                "peak device memory".into(),
                Bytes(claims.unplanned_peak_bytes).short(),
                Bytes(claims.peak_bytes).short(),
            ],
            vec!["step (modelled)".into(), ms(claims.ideal_ns), ms(claims.step_ns)],
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
        "\n{}\n{}: {}; arena {} of a budget of {}, host {}; proved by the checker\n",
        stash.text(),
        args.output.display(),
        counted(claims.ops as usize, "op"),
        Bytes(meta.dev_bytes),
        Bytes(meta.budget_bytes),
        Bytes(meta.host_bytes),
    ));
    emit(&text)
}
