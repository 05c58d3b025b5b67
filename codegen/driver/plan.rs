//! `memc plan` and `memc export-problem`: planning in numbers, without writing a plan.

use clap::Args;
use memc_planner::Order;
use memc_planner::planners::NoPlan;

use crate::cli::{ExportProblem, ScriptFiles, Search, Source, Target};
use crate::exit::Error;
use crate::output::{Progress, apart, emit, write_file};
use crate::planner::named;
use crate::posed::pose;
use crate::report::Report;
use crate::size::{self, Size};
use crate::solve::{Script, solve};

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

pub(crate) fn export(args: &ExportProblem) -> Result<(), Error> {
    let progress = Progress::new(false);
    apart(&[Some(&args.source.model)], &[args.output.as_ref()])?;
    let posed = pose(&args.source, &args.target, Some(Order::Given), &progress)?;
    progress.done();
    let text = memc_planner::json::print(posed.given().numbers());
    match &args.output {
        Some(file) => write_file(file, text.as_bytes()),
        None => emit(&text),
    }
}

pub(crate) fn run(args: &Plan) -> Result<(), Error> {
    let progress = Progress::new(args.json);
    let files = [Some(&args.source.model), args.script.apply.as_ref()];
    apart(&files, &[args.script.decisions.as_ref()])?;
    let how = &args.search.how;
    let planner = named(&args.search.planner)?;
    let script = Script::read(&args.script)?;
    let order = script.as_ref().map_or_else(|| how.order(), |s| Some(s.order()));
    let posed = pose(&args.source, &args.target, order, &progress)?;
    let budget = posed.budget(args.gpu_mem)?;
    progress.stage("planning");
    let outcome = match &script {
        Some(script) => script.apply(&posed, budget)?,
        None => solve(&posed, planner, how, budget, &progress)?,
    };
    progress.stage("proving a bound");
    let report = Report::new(&posed, &outcome, how);
    let text = if args.json { format!("{}\n", report.json()?) } else { report.text()? };
    progress.done();
    match &outcome.plan {
        Ok(solved) => {
            if let Some(file) = &args.script.decisions {
                let p = posed.tried()[solved.at].numbers();
                write_file(file, solved.realised.decisions.print(p).as_bytes())?;
            }
            emit(&text)
        }
        Err(NoPlan::Infeasible(why)) => {
            let error = posed.infeasible(why, budget, how.allow())?;
            if args.json {
                emit(&text)?;
                return Err(Error::Said(error.to_string()));
            }
            Err(error)
        }
        Err(NoPlan::Failed(text)) => Err(Error::Internal(text.clone())),
    }
}
