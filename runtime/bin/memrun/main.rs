//! `memrun`: replays a plan and reports. Everything that runs is in the library; this is its command line.

mod cli;
mod devices;
mod report;
mod size;
mod tune;

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use clap::Parser;
use memc_plan::{PlanFile, Replace};
use memc_runtime::{Error, INTERRUPTED, profile, run};

use cli::{Cli, Command};
use report::Progress;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Panics are reported as internal errors, by the library on its threads and here.
    std::panic::set_hook(Box::new(|_| {}));
    let code = std::panic::catch_unwind(|| execute(&cli)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let error = Error::Internal(format!("panic: {text}"));
        report::error(&error);
        error.exit_code()
    });
    ExitCode::from(code)
}

/// Runs the command and returns the exit code.
fn execute(cli: &Cli) -> u8 {
    match &cli.command {
        Some(Command::Profile(args)) => {
            leave_on_signal();
            let failed = |error| report::failed(cli.json, None, &Progress::silent(), &error);
            return measure(args).unwrap_or_else(failed);
        }
        Some(Command::Tune(args)) => {
            leave_on_signal();
            return tune::execute(args).unwrap_or_else(|error| report::not_tuned(args.json, &error));
        }
        Some(Command::Devices(args)) => return report::print(&devices::describe(args.json)),
        None => {}
    }
    if let Err(error) = cli.keep_files_apart() {
        return report::failed(cli.json, None, &Progress::silent(), &error);
    }
    let file = match PlanFile::open(cli.plan()) {
        Ok(file) => file,
        Err(error) => {
            return report::failed(cli.json, None, &Progress::silent(), &Error::opening(cli.plan(), error));
        }
    };
    if cli.plan_info {
        return report::plan_info(cli, &file);
    }
    let stop = Arc::new(AtomicBool::new(false));
    if let Err(error) = on_signal(stop.clone()) {
        report::note(&format!("signals cannot be caught ({error}); an interrupt will not save the state"));
    }
    let bar = std::io::stderr().is_terminal() && !cli.no_progress;
    let mut progress = Progress::new(cli.steps, bar, !cli.json, stop);
    let result = run(&file, &cli.options(), &mut progress);
    progress.close();
    match result {
        Err(error) => report::failed(cli.json, Some(&file), &progress, &error),
        Ok(report) => {
            let printed = report::done(cli, &file, &progress, &report);
            if report.interrupted { INTERRUPTED } else { printed }
        }
    }
}

/// Measures a plan and writes the profile; returns the exit code.
fn measure(args: &cli::Profile) -> Result<u8, Error> {
    args.keep_files_apart()?;
    let file = PlanFile::open(&args.plan).map_err(|error| Error::opening(&args.plan, error))?;
    let measured = profile(&file, &args.options())?;
    let failed = |error| Error::io(&args.output, error);
    let mut to = Replace::begin(&args.output).map_err(failed)?;
    to.file().write_all(format!("{:#}\n", measured.to_json()).as_bytes()).map_err(failed)?;
    to.finish().map_err(failed)?;
    Ok(report::measured(&args.output, &measured))
}

/// Leaves at the first interrupt.
fn leave_on_signal() {
    if let Err(error) = on_signal(Arc::new(AtomicBool::new(true))) {
        report::note(&format!("signals cannot be caught ({error}); an interrupt may leave a temporary file"));
    }
}

/// Sets `stop` at an interrupt, and leaves where it is set.
fn on_signal(stop: Arc<AtomicBool>) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || {
        if stop.swap(true, Ordering::Relaxed) {
            memc_plan::abandon();
            #[allow(
                clippy::exit,
                reason = "nothing is to be saved; nothing that a new file replaces is lost"
            )]
            std::process::exit(i32::from(INTERRUPTED));
        }
    })
}
