//! Planning in numbers: `memc plan`, `compare`, `sweep`, `bound` and `export-problem`.

use memc::and_reserve;
use memc::{
    BoundReport, BoundRow, Comparison, DecisionsFile, Error, Instance, Outcome, Point, Poses, Report, Search,
    Sweep as Swept, Watch,
};
use memc_baselines::PLANNERS;
use memc_ir::Bytes;
use memc_planner::Pose;
use serde_json::Value;

use crate::args::{Bound, Compare, DecisionsFiles, ExportProblem, Plan, Question, Sweep};
use crate::curve::Recorder;
use crate::figures::{STOPPED, ms, quotient, side_by_side, table};
use crate::output::{Failure, Progress, emit, emit_json, error_json, ready, write_file};

/// Makes the instance of a question, and carries out the decisions of `--apply` or else plans.
pub(crate) fn answer(
    question: &Question,
    search: &Search,
    files: &DecisionsFiles,
    progress: &dyn Watch,
) -> Result<(Instance, Outcome), Error> {
    ready(&[question.source.files(), vec![files.apply.as_ref()]].concat(), &[files.decisions.as_ref()])?;
    let file = files.apply_file()?;
    let poses = file.as_ref().map_or_else(|| search.poses(), DecisionsFile::poses);
    let (workload, target) = (question.source.workload()?, question.target.target());
    let instance = Instance::read(&workload, &target, poses, progress)?;
    let budget = instance.budget(question.gpu_mem)?;
    let outcome = instance.answer(budget, search, file.as_ref(), progress)?;
    Ok((instance, outcome))
}

pub(crate) fn export(args: &ExportProblem) -> Result<(), Failure> {
    let progress = Progress::new(false);
    ready(&args.source.files(), &[args.output.as_ref()])?;
    let (workload, target) = (args.source.workload()?, args.target.target());
    let pose = Pose { formulation: args.formulation, ..Pose::default() };
    let instance = Instance::read(&workload, &target, pose.into(), &progress)?;
    progress.done();
    let text = memc_planner::json::print(instance.candidates()[0].numbers());
    match &args.output {
        Some(file) => write_file(file, text.as_bytes())?,
        None => emit(&text)?,
    }
    Ok(())
}

pub(crate) fn plan(args: &Plan) -> Result<(), Failure> {
    let progress = Progress::new(args.json);
    let search = args.search.search()?;
    let inputs = [args.question.source.files(), vec![args.files.apply.as_ref()]].concat();
    ready(&inputs, &[args.curve.as_ref()])?;
    let recorder = Recorder::new(&progress);
    let (instance, outcome) = answer(&args.question, &search, &args.files, &recorder)?;
    if let Some(file) = &args.curve {
        write_file(file, recorder.curve().as_bytes())?;
    }
    progress.stage("proving a bound");
    let report = Report::new(&instance, &outcome, search.allow)?;
    progress.done();
    if let Err(e) = outcome.require(&instance, search.allow) {
        if !args.json || !matches!(e, Error::Infeasible(_)) {
            return Err(e.into());
        }
        let mut object = serde_json::to_value(&report).map_err(|e| Error::Internal(e.to_string()))?;
        if let (Value::Object(object), Value::Object(more)) = (&mut object, error_json(&e)) {
            object.extend(more);
        }
        emit_json(&object)?;
        return Err(Failure::reported(&e));
    }
    if let (Some(file), Some(text)) = (&args.files.decisions, outcome.decisions(&instance)) {
        write_file(file, text.as_bytes())?;
    }
    if args.json {
        emit_json(&report)?
    } else {
        emit(&side_by_side(&report))?
    }
    Ok(())
}

pub(crate) fn compare(args: &Compare) -> Result<(), Failure> {
    let progress = Progress::new(args.json);
    let planners = match args.planners.as_slice() {
        [] => PLANNERS.iter().collect(),
        names => names.iter().map(|n| memc::planner(n.trim())).collect::<Result<Vec<_>, _>>()?,
    };
    let search = args.effort.search(PLANNERS[0].name)?;
    let (workload, target) = (args.question.source.workload()?, args.question.target.target());
    let instance = Instance::read(&workload, &target, search.poses(), &progress)?;
    let budget = instance.budget(args.question.gpu_mem)?;
    let found = memc::compare(&instance, &planners, budget, &search, &progress)?;
    progress.left_out(found.left_out, "planner");
    progress.done();
    if args.json {
        emit_json(&found.reports)?
    } else {
        emit(&comparison(&instance, budget, &found))?
    }
    found.failure.as_ref().map_or(Ok(()), |e| Err(Failure::reported(e)))
}

fn comparison(instance: &Instance, budget: u64, found: &Comparison) -> String {
    let mut failures = String::new();
    let mut rows = Vec::new();
    for r in &found.reports {
        let Some(step_ns) = r.step_ns else {
            let verdict = if r.failed { "failed" } else { "no plan" };
            let early = if r.stopped { " (search stopped early)" } else { "" };
            let why = r.why.as_deref().unwrap_or_default();
            failures.push_str(&format!("{}: {verdict}: {why}{early}\n", r.planner));
            continue;
        };
        let mark = if rows.is_empty() { "*" } else { "" };
        let early = if r.stopped { ", stopped" } else { "" };
        let [peak, out, into, recomputed] = moved(r);
        rows.push(vec![
            format!("{}{mark}", r.planner),
            ms(step_ns),
            quotient(step_ns, r.ideal_ns),
            r.bound_ns.map_or_else(|| "-".into(), |b| quotient(step_ns, b)),
            peak,
            out,
            into,
            recomputed,
            format!("{:.2} s{early}", r.plan_ns as f64 / 1e9),
        ]);
    }
    let header =
        ["planner", "step", "/ ideal", "/ bound", "peak", "swapped out", "in", "recomputed", "plan time"];
    let body = if rows.is_empty() { String::new() } else { table(&header, &rows) + "\n" };
    if !failures.is_empty() {
        failures.push('\n');
    }
    let stopped = if found.reports.iter().any(|r| r.stopped) { STOPPED } else { "" };
    format!(
        "{body}{failures}{} in a budget of {}; ideal {}, unplanned peak {}; smallest feasible {}{}\n\
         / bound: over the certified bound for the order as given, or for any order where a plan has \
         another\n{stopped}",
        instance.name(),
        Bytes(budget),
        ms(instance.ideal_ns()),
        Bytes(unplanned_peak(instance)).short(),
        Bytes(found.smallest_feasible_bytes).short(),
        and_reserve(instance.reserve_bytes),
    )
}

/// Peak, bytes swapped out and in, and recomputed time of a plan.
fn moved(r: &Report) -> [String; 4] {
    let short = |bytes: Option<u64>| Bytes(bytes.unwrap_or(0)).short();
    [short(r.peak_bytes), short(r.swap_out_bytes), short(r.swap_in_bytes), ms(r.recompute_ns.unwrap_or(0))]
}

fn unplanned_peak(instance: &Instance) -> u64 {
    instance.given().kept().evaluation.dev_bytes + instance.reserve_bytes
}

pub(crate) fn sweep(args: &Sweep) -> Result<(), Failure> {
    ready(&args.source.files(), &[args.plot.as_ref()])?;
    let progress = Progress::new(args.json);
    let search = args.search.search()?;
    let (workload, target) = (args.source.workload()?, args.target.target());
    let instance = Instance::read(&workload, &target, search.poses(), &progress)?;
    let budgets: Vec<u64> = args.gpu_mem.sizes().map(|s| instance.bytes(s)).collect::<Result<_, _>>()?;
    let swept = memc::sweep(&instance, &budgets, &search, &progress)?;
    progress.left_out(swept.left_out, "budget");
    progress.done();
    if let Some(path) = &args.plot {
        write_file(path, memc::plot(&swept).as_bytes())?;
    }
    if args.json {
        emit_json(&swept.points)?
    } else {
        emit(&curve(&instance, search.planner.name, &swept))?
    }
    swept.failure.as_ref().map_or(Ok(()), |e| Err(Failure::reported(e)))
}

/// Notes that hold of a row.
fn notes(of: &[(bool, &str)]) -> String {
    of.iter().filter(|n| n.0).map(|n| n.1).collect::<Vec<_>>().join(", ")
}

fn curve(instance: &Instance, planner: &str, swept: &Swept) -> String {
    let (smallest, ideal) = (swept.smallest_feasible_bytes, instance.ideal_ns());
    let dash = || "-".to_string();
    let row = |point: &Point| -> Vec<String> {
        let r = &point.report;
        let budget = Bytes(r.gpu_mem_bytes).short();
        let Some(step_ns) = r.step_ns else {
            let why = match &r.why {
                Some(why) if r.failed => format!("failed: {why}"),
                _ if r.gpu_mem_bytes < smallest => "below the smallest feasible".into(),
                _ => "no plan found".into(),
            };
            let cells = std::iter::once(budget).chain((0..8).map(|_| dash()));
            return cells.chain([notes(&[(true, &why), (r.stopped, "stopped")])]).collect();
        };
        let [peak, out, into, recomputed] = moved(r);
        vec![
            budget,
            ms(step_ns),
            quotient(step_ns, ideal),
            r.bound_ns.map_or_else(dash, |b| quotient(b, ideal)),
            r.bound_ns.map_or_else(dash, |b| quotient(step_ns, b)),
            peak,
            out,
            into,
            recomputed,
            notes(&[(point.pareto, "Pareto"), (r.stopped, "stopped")]),
        ]
    };
    let rows: Vec<Vec<String>> = swept.points.iter().map(row).collect();
    let header =
        ["budget", "step", "/ ideal", "bound", "/ bound", "peak", "swapped out", "in", "recomputed", ""];
    let stopped = if swept.points.iter().any(|p| p.report.stopped) { STOPPED } else { "" };
    format!(
        "{}\n{} by {planner}: ideal {}, unplanned peak {}; smallest feasible {}{}\nbound: the certified \
         one, over the ideal; Pareto: no smaller budget here has as fast a step\n{stopped}",
        table(&header, &rows),
        instance.name(),
        ms(ideal),
        Bytes(unplanned_peak(instance)).short(),
        Bytes(smallest),
        and_reserve(instance.reserve_bytes),
    )
}

pub(crate) fn bound(args: &Bound) -> Result<(), Failure> {
    let progress = Progress::new(args.json);
    let (workload, target) = (args.question.source.workload()?, args.question.target.target());
    let instance = Instance::read(&workload, &target, Poses::GIVEN, &progress)?;
    let budget = instance.budget(args.question.gpu_mem)?;
    let most = args.permissions.allow();
    let report = memc::bounds(&instance, budget, most, &progress);
    progress.done();
    match report.failure() {
        Some(e) if args.json => {
            emit_json(&report)?;
            Err(Failure::reported(&e))
        }
        Some(e) => Err(e.into()),
        None if args.json => Ok(emit_json(&report)?),
        None => Ok(emit(&bounds(&report))?),
    }
}

fn permitted(row: &BoundRow) -> &'static str {
    match (row.swap, row.recompute) {
        (true, false) => "swap only",
        (false, true) => "recompute only",
        (true, true) => "swap and recompute",
        (false, false) => "neither",
    }
}

fn bounds(report: &BoundReport) -> String {
    let cells = |ns: Option<u64>| match ns {
        None => ["infeasible".into(), "-".into()],
        Some(ns) => [ms(ns), quotient(ns, report.ideal_ns)],
    };
    let row = |row: &BoundRow| {
        let times = [row.fixed_order_ns, row.order_free_ns].into_iter().flat_map(cells);
        std::iter::once(permitted(row).to_string()).chain(times).collect()
    };
    let rows: Vec<Vec<String>> = report.bounds.iter().map(row).collect();
    let infeasible = report.bounds.iter().filter_map(|row| {
        let order = if row.feasible { " in the given order" } else { "" };
        Some(format!("{}{order}: {}\n", permitted(row), row.why.as_ref()?))
    });
    let infeasible: String = infeasible.collect();
    format!(
        "{}\n{infeasible}{}: no step is faster in a budget of {}; ideal {}\n",
        table(&["", "given order", "/ ideal", "every order", "/ ideal"], &rows),
        report.problem,
        Bytes(report.gpu_mem_bytes),
        ms(report.ideal_ns),
    )
}
