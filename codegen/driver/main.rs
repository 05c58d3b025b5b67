//! The `memc` command.

mod bound;
mod check;
mod cli;
mod compare;
mod compile;
mod device;
mod dump;
mod estimate;
mod exit;
mod explain;
mod fit;
mod import;
mod layout;
mod max_batch;
mod opt;
mod output;
mod plan;
mod planner;
mod posed;
mod report;
mod series;
mod size;
mod solve;
mod source;
mod sweep;
mod time;
mod trace;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

use cli::Command;
use exit::Error;
use output::{STOP, Writing, emit, erase, say};

/// Compiling makes and drops many small nodes; their cost must not grow with the graph.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let cli = cli::parse();
    // A file that is being written, or a search that keeps its best, ends by itself; a second interrupt does not wait,
    // though the search may have taken note of the first by then.
    let interrupted = AtomicBool::new(false);
    let handler = move || {
        STOP.store(true, Ordering::Relaxed);
        if !interrupted.swap(true, Ordering::Relaxed) && Writing::held() {
            memc_support::write_stderr(format!(
                "{}memc: interrupted: ending soon; once more to end at once\n",
                erase()
            ));
        } else {
            let code = Error::Interrupted.code();
            memc_support::exit_now(code, |_| format!("{}memc: error: {}\n", erase(), Error::Interrupted));
        }
    };
    if let Err(e) = ctrlc::set_handler(handler) {
        say(&format!("warning: interrupts end memc at once: {e}"));
    }
    std::panic::set_hook(Box::new(|info| say(&format!("memc: internal error: {info}"))));
    let result = std::panic::catch_unwind(|| run(&cli.command))
        .unwrap_or_else(|_| Err(Error::Internal("memc failed unexpectedly".into())));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            if cli.command.wants_json()
                && !matches!(e, Error::Rejected(_) | Error::Said(_) | Error::Different)
            {
                // Best effort: the exit code and stderr tell the same.
                let _ = emit(&format!("{}\n", e.to_json()));
            }
            if !matches!(e, Error::Different) {
                say(&format!("memc: error: {e}"));
            }
            ExitCode::from(e.code())
        }
    }
}

fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::Compile(args) => compile::run(args),
        Command::Estimate(args) => estimate::run(args),
        Command::Layout(args) => layout::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Explain(args) => explain::run(args),
        Command::MaxBatch(args) => max_batch::run(args),
        Command::Bound(args) => bound::run(args),
        Command::ExportProblem(args) => plan::export(args),
        Command::Check(args) => check::run(args),
        Command::FitProfile(args) => fit::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Dump(args) => dump::dump(args),
        Command::Diff(args) => dump::diff(args),
        Command::Opt(args) => opt::opt(args),
        Command::Verify(args) => opt::verify(args),
        Command::List { what, json } => opt::list(what, *json),
    }
}
