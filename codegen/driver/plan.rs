//! `memc plan` and `memc export-problem`: planning in numbers, without writing a plan.

use memc_ir::Bytes;
use memc_planner::bound::{self, Allow};
use memc_planner::planners::{self, NoPlan};
use memc_planner::{ALIGN, Action, Decisions, Realised, realise};
use serde_json::json;

use crate::cli::{ExportProblem, Plan, Source, Target};
use crate::compile::now;
use crate::device;
use crate::exit::Error;
use crate::output::{Progress, apart, counted, emit, table, write_file};
use crate::size::Size;
use crate::source;

/// A planning problem and what its device takes for itself.
pub(crate) struct Posed {
    /// The problem.
    pub(crate) numbers: memc_planner::Problem,
    /// Bytes of a budget that are not the arena's.
    pub(crate) reserve_bytes: u64,
}

/// Reads a problem file, or poses the problem of a model.
pub(crate) fn pose(source: &Source, target: &Target, progress: &Progress) -> Result<Posed, Error> {
    progress.stage("importing");
    if source.model.extension().is_some_and(|e| e == "json") {
        let text = source::read_text(&source.model)?;
        let numbers = memc_planner::json::parse(&text)
            .map_err(|e| Error::Model(format!("{}: {e}", source.model.display())))?;
        return Ok(Posed { numbers, reserve_bytes: 0 });
    }
    let profile = &*device::find(&target.device)?;
    let loaded = source::load(source)?;
    progress.notes(&loaded.notes, &loaded.warnings);
    let mut graph = loaded.module;
    source::canonicalise(&mut graph, profile, !target.no_mem_rewrite)?;
    let p = memc_passes::plan::Problem::new(&graph, profile).map_err(Error::Model)?;
    Ok(Posed { numbers: p.numbers, reserve_bytes: profile.reserve_bytes })
}

/// The budget in bytes: as given, or the device's memory.
pub(crate) fn budget(size: Option<Size>, p: &memc_planner::Problem) -> Result<u64, Error> {
    let memory = Some(p.device.memory_bytes).filter(|&b| b > 0);
    let unknown =
        || Error::Usage("the memory of the device is not known: give --gpu-mem in bytes, as 16G".into());
    match size {
        Some(Size::Bytes(bytes)) => Ok(bytes),
        Some(Size::Percent(percent)) => Ok((memory.ok_or_else(unknown)? as f64 * percent / 100.0) as u64),
        None => memory.ok_or_else(unknown),
    }
}

pub(crate) fn export(args: &ExportProblem) -> Result<(), Error> {
    let progress = Progress::new(false);
    apart(&[Some(&args.source.model)], &[args.output.as_ref()])?;
    let posed = pose(&args.source, &args.target, &progress)?;
    progress.done();
    let text = memc_planner::json::print(&posed.numbers);
    match &args.output {
        Some(file) => write_file(file, text.as_bytes()),
        None => emit(&text),
    }
}

pub(crate) fn run(args: &Plan) -> Result<(), Error> {
    let progress = Progress::new(args.json);
    let files = [Some(&args.source.model), args.script.apply.as_ref()];
    apart(&files, &[args.script.decisions.as_ref()])?;
    let planner = args.search.planner()?;
    let posed = pose(&args.source, &args.target, &progress)?;
    let p = &posed.numbers;
    let budget = budget(args.gpu_mem, p)?;
    let capacity = budget.saturating_sub(posed.reserve_bytes) / ALIGN * ALIGN;
    progress.stage("planning");
    let kept = realise(p, Decisions::keep_all(p)).map_err(Error::Internal)?;
    let clock = now();
    let solved = match &args.script.apply {
        Some(file) => {
            let at = |e| Error::Usage(format!("{}: {e}", file.display()));
            let decisions = Decisions::parse(&source::read_text(file)?, p).map_err(at)?;
            let r = realise(p, decisions).map_err(at)?;
            if r.evaluation.dev_bytes > capacity {
                let (need, have) = (Bytes(r.evaluation.dev_bytes), Bytes(capacity));
                let text = format!("{}: the decisions take {need}, the budget is {have}", file.display());
                return Err(Error::Infeasible(text, None));
            }
            Ok((r, 1))
        }
        None if kept.evaluation.dev_bytes <= capacity => Ok((kept.clone(), 1)),
        None => planners::solve(p, planner, &args.search.request(capacity)),
    };
    let plan_ns = u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
    progress.stage("finding the smallest budget");
    let smallest = planners::smallest_feasible(p, kept.evaluation.dev_bytes).map_err(Error::Internal)?;
    progress.stage("proving a bound");
    let allow = Allow { swap: !args.search.no_swap, recompute: !args.search.no_recompute };
    let bound = bound::bound(p, capacity, allow).ok();
    progress.done();
    let name = if args.script.apply.is_some() { "decisions" } else { planner.name };
    let report =
        Report { name, p, budget, reserve: posed.reserve_bytes, kept: &kept, bound, plan_ns, smallest };
    match solved {
        Ok((r, evaluations)) => {
            if let Some(file) = &args.script.decisions {
                write_file(file, r.decisions.print(p).as_bytes())?;
            }
            emit(&if args.json { report.json(Some((&r, evaluations))) } else { report.text(&r) })
        }
        Err(NoPlan::Infeasible(why)) => {
            if args.json {
                emit(&report.json(None))?;
            }
            let hint = format!("hint: pass --gpu-mem {}B or more, or another --planner", report.smallest());
            let text = format!("{why}\n  smallest feasible: {}\n{hint}", Bytes(report.smallest()));
            Err(if args.json { Error::Said(text) } else { Error::Infeasible(text, None) })
        }
        Err(NoPlan::Failed(text)) => Err(Error::Internal(text)),
    }
}

struct Report<'a> {
    name: &'a str,
    p: &'a memc_planner::Problem,
    budget: u64,
    reserve: u64,
    kept: &'a Realised,
    bound: Option<bound::Bound>,
    plan_ns: u64,
    smallest: u64,
}

impl Report<'_> {
    fn smallest(&self) -> u64 {
        self.smallest.saturating_add(self.reserve)
    }

    /// The bound that holds for a plan: that of the problem's order where the plan keeps it, else that of every order.
    fn bound(&self, r: &Realised) -> Option<(u64, &'static str)> {
        let first = |a: &Action| {
            if let Action::Run(run) = a { Some(run).filter(|r| !r.again).map(|r| r.op) } else { None }
        };
        let keeps = r.decisions.actions.iter().filter_map(first).is_sorted();
        let of = |b: &bound::Bound| {
            if keeps { (b.fixed_order_ns, "fixed order") } else { (b.order_free_ns, "any order") }
        };
        self.bound.as_ref().map(of)
    }

    fn json(&self, found: Option<(&Realised, u64)>) -> String {
        let e = found.map(|(r, _)| r.evaluation);
        let ideal = self.kept.evaluation.step_ns;
        let bound = found.and_then(|(r, _)| self.bound(r));
        let object = json!({
            "problem": self.p.name, "planner": self.name, "gpu_mem_bytes": self.budget, "feasible": e.is_some(),
            "ideal_ns": ideal, "step_ns": e.map(|e| e.step_ns), "bound_ns": bound.map(|b| b.0), "bound_holds_for": bound.map(|b| b.1),
            "step_over_ideal": e.map(|e| e.step_ns as f64 / ideal.max(1) as f64),
            "peak_bytes": e.map(|e| e.load_bytes + self.reserve), "arena_bytes": e.map(|e| e.dev_bytes),
            "host_bytes": e.map(|e| e.host_bytes), "unplanned_peak_bytes": self.kept.evaluation.dev_bytes + self.reserve,
            "swap_out_bytes": e.map(|e| e.swap_out_bytes), "swap_in_bytes": e.map(|e| e.swap_in_bytes),
            "recompute_ns": e.map(|e| e.recompute_ns), "recompute_ops": e.map(|e| e.recompute_ops),
            "stall_in_ns": e.map(|e| e.stall_in_ns), "stall_out_ns": e.map(|e| e.stall_out_ns),
            "evaluations": found.map(|f| f.1), "plan_ns": self.plan_ns,
            "smallest_feasible_bytes": self.smallest(),
        });
        format!("{object}\n")
    }

    fn text(&self, r: &Realised) -> String {
        let (e, kept) = (&r.evaluation, &self.kept.evaluation);
        let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
        let row = |what: &str, unplanned: String, planned: String| vec![what.to_string(), unplanned, planned];
        let rows = [
            row("arena", Bytes(kept.dev_bytes).short(), Bytes(e.dev_bytes).short()),
            row("step (modelled)", ms(kept.step_ns), ms(e.step_ns)),
            row("swapped out", "-".into(), Bytes(e.swap_out_bytes).short()),
            row("swapped in", "-".into(), Bytes(e.swap_in_bytes).short()),
            row(
                "recomputed",
                "-".into(),
                format!("{}, {}", counted(e.recompute_ops as usize, "op"), ms(e.recompute_ns)),
            ),
            row("waiting for copies in", "-".into(), ms(e.stall_in_ns)),
            row("waiting for room", "-".into(), ms(e.stall_out_ns)),
        ];
        let ratio = e.step_ns as f64 / kept.step_ns.max(1) as f64;
        let bound = self.bound(r).map_or_else(String::new, |(ns, what)| {
            let (over, bound) = (e.step_ns as f64 / ns.max(1) as f64, ns as f64 / kept.step_ns.max(1) as f64);
            format!(", {over:.4} of the certified bound ({what}: {bound:.4})")
        });
        format!(
            "{}\n{} by {}: {ratio:.4} of the unplanned step{bound} in a budget of {}; smallest feasible {}\n",
            table(&["", "unplanned", "planned"], &rows),
            self.p.name,
            self.name,
            Bytes(self.budget),
            Bytes(self.smallest()),
        )
    }
}
