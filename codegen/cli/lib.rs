//! The command line of `memc`.

mod alloc;
mod args;
mod buckets;
mod check;
mod compile;
mod curve;
mod dump;
mod explain;
mod figures;
mod fit;
mod list;
mod max_batch;
mod opt;
mod output;
mod planning;
mod report;
mod serve;
mod shell;
mod sparkline;
mod split;
mod trace;
pub mod values;

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use memc::Error;

use args::Command;
use output::{Failure, STOP, Writing, emit, erase, left_behind, say};

/// Runs the command with these arguments, the program's name first, and returns its exit code. The process is
/// the command's own: wrong arguments and interrupts may end it, and signals and panics get other handlers.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    let (command, json) = args::parse(args);
    // A file that is being written, or a search that keeps its best, ends by itself; a second interrupt does
    // not wait, though the search may have taken note of the first by then.
    let interrupted = AtomicBool::new(false);
    let handler = move || {
        STOP.store(true, Ordering::Relaxed);
        if !interrupted.swap(true, Ordering::Relaxed) && Writing::held() {
            memc_support::write_stderr(format!(
                "{}memc: interrupted: ending soon; once more to end at once\n",
                erase()
            ));
        } else {
            let code = Error::Interrupted.exit_code();
            memc_support::exit_now(code, |_| {
                format!("{}memc: error: interrupted; {}\n", erase(), left_behind())
            });
        }
    };
    if let Err(e) = memc_support::on_interrupt(handler) {
        say(&format!("warning: interrupts end memc at once: {e}"));
    }
    std::panic::set_hook(Box::new(|info| say(&format!("memc: internal error: {info}"))));
    let result = std::panic::catch_unwind(|| run(&command))
        .unwrap_or_else(|_| Err(Error::Internal("memc failed unexpectedly".into()).into()));
    let Err(failure) = result else { return 0 };
    let failure = failure.with_reproducer(Path::new(""));
    if let Failure::Error(e) = &failure
        && json
    {
        // Best effort: the exit code and stderr tell the same.
        let _ = emit(&format!("{}\n", output::error_json(e)));
    }
    if let Some(text) = failure.text() {
        say(&format!("memc: error: {text}"));
    }
    failure.exit_code()
}

/// Starts the threads of searches. Where the machine gives none, as within a limit of processes, this thread
/// does their work.
fn start_threads() {
    // A global pool that fails to start cannot be started again, so another one is tried first.
    let builder = match rayon::ThreadPoolBuilder::new().build() {
        Ok(_) => rayon::ThreadPoolBuilder::new(),
        Err(_) => rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread(),
    };
    // It fails only where there is a pool already.
    let _ = builder.build_global();
}

fn run(command: &Command) -> Result<(), Failure> {
    start_threads();
    match command {
        Command::Compile(args) => compile::run(args),
        Command::Estimate(args) => compile::estimate(args),
        Command::Alloc(args) => alloc::run(args),
        Command::Plan(args) => planning::plan(args),
        Command::Compare(args) => planning::compare(args),
        Command::Sweep(args) => planning::sweep(args),
        Command::Explain(args) => explain::run(args),
        Command::MaxBatch(args) => max_batch::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Job(command) => serve::job(command),
        Command::Split(args) => split::run(args),
        Command::Bound(args) => planning::bound(args),
        Command::ExportProblem(args) => planning::export(args),
        Command::Check(args) => check::run(args),
        Command::FitProfile(args) => fit::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Report(args) => report::run(args),
        Command::Dump(args) => dump::dump(args),
        Command::Diff(args) => dump::diff(args),
        Command::Opt(args) => opt::opt(args),
        Command::Verify(args) => opt::verify(args),
        Command::List { what, json } => list::list(what, *json),
        Command::Completions(args) => shell::completions(args),
        Command::Man(args) => shell::man(args),
    }
}
