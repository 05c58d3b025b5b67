//! The `memc` command.

mod bound;
mod check;
mod cli;
mod compile;
mod device;
mod dump;
mod estimate;
mod exit;
mod fit;
mod import;
mod layout;
mod opt;
mod output;
mod plan;
mod planner;
mod size;
mod source;

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::Parser;
use mimalloc::MiMalloc;

use cli::{Cli, Command};
use exit::Error;
use output::{STOP, WRITING, emit, say};

/// Compiling makes and drops many small nodes; their cost must not grow with the graph.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A file that is being written, or a search that keeps its best, ends by itself; a second interrupt does not wait.
    let handler = || {
        if STOP.swap(true, Ordering::Relaxed) || !WRITING.load(Ordering::Relaxed) {
            say(&format!("memc: error: {}", Error::Interrupted));
            #[allow(clippy::exit, reason = "an interrupt must not wait for the command")]
            std::process::exit(130);
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
            if cli.command.wants_json() && !matches!(e, Error::Rejected(_) | Error::Said(_)) {
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
        Command::Bound(args) => bound::run(args),
        Command::ExportProblem(args) => plan::export(args),
        Command::Check(args) => check::run(args),
        Command::FitProfile(args) => fit::run(args),
        Command::Dump(args) => dump::dump(args),
        Command::Diff(args) => dump::diff(args),
        Command::Opt(args) => opt::opt(args),
        Command::Verify(args) => opt::verify(args),
        Command::List { what } => opt::list(what),
    }
}
