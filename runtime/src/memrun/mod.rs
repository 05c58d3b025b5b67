//! The command line of `memrun`: replays a plan and reports. Everything that runs is elsewhere in the
//! library.

mod cli;
mod devices;
mod info;
mod interrupt;
mod progress;
mod report;
mod serve;
mod shell;
mod terminal;
mod tune;
mod usage;
mod values;

use std::{ffi::OsString, path::Path, sync::Arc};

use crate::{Error, INTERRUPTED, Stages, profile, run};
use memc_plan::PlanFile;
use memc_support::Replace;

use cli::{Cli, Command};
use interrupt::Stop;
use progress::Progress;
use terminal::Line;

/// Runs the command with these arguments, the program's name first, and returns its exit code. The process is
/// the command's own: wrong arguments and interrupts may end it, and signals and panics get other handlers.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = usage::parse(args);
    // Panics are reported as internal errors, by the library on its threads and here.
    std::panic::set_hook(Box::new(|_| {}));
    std::panic::catch_unwind(|| execute(&cli)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let error = Error::Internal(format!("panic: {text}"));
        terminal::error(&error);
        error.exit_code()
    })
}

/// Runs the command and returns the exit code.
fn execute(cli: &Cli) -> u8 {
    let line = Line::new(!cli.no_progress);
    match &cli.command {
        Some(Command::Profile(args)) => {
            interrupt::exit_at_once(&line);
            measure(args, &line).unwrap_or_else(|error| {
                line.close();
                report::not_measured(args.json, &error)
            })
        }
        Some(Command::Tune(args)) => {
            interrupt::exit_at_once(&line);
            tune::execute(args, &line).unwrap_or_else(|error| {
                line.close();
                report::not_measured(args.json, &error)
            })
        }
        Some(Command::Serve(args)) => serve::execute(args, &line).unwrap_or_else(|error| {
            line.close();
            report::not_measured(false, &error)
        }),
        Some(Command::Devices(args)) => {
            line.stage("looking for devices and libraries");
            let text = devices::describe(args.json);
            line.close();
            terminal::print(&text)
        }
        Some(Command::Completions(args)) => shell::completions(args),
        Some(Command::Man(args)) => shell::man(args),
        None => replay(cli, &line),
    }
}

/// Runs or describes a plan; returns the exit code.
fn replay(cli: &Cli, line: &Line) -> u8 {
    let failed = |error| {
        line.close();
        report::failed(cli.json, None, &Progress::silent(), &error)
    };
    if let Err(error) = cli.check_files() {
        return failed(error);
    }
    line.stage("reading the plan");
    let file = match PlanFile::open(cli.plan()) {
        Ok(file) => file,
        Err(error) => return failed(Error::opening(cli.plan(), error)),
    };
    if cli.plan_info {
        let index = match file.plan().find_bucket(cli.bucket.as_deref()) {
            Ok(index) => index,
            Err(error) => return failed(Error::Usage(error.to_string())),
        };
        line.close();
        return info::print_of(cli, &file, index);
    }
    let stop = Arc::new(Stop::default());
    interrupt::end_after_step(stop.clone(), cli.save().is_some(), line);
    let mut progress = Progress::new(line.clone(), (!cli.json).then_some(cli.log_every), stop);
    progress.infers = file.plan().meta.is_inference();
    if let Some(path) = &cli.metrics
        && let Err(error) = progress.measure_into(path, cli.resumes())
    {
        return failed(error);
    }
    let result = run(&file, &cli.options(), &mut progress);
    line.close();
    match result {
        Err(error) => report::failed(cli.json, Some(&file), &progress, &error),
        Ok(report) => {
            let printed = report::done(cli, &file, &progress, &report);
            if report.interrupted { INTERRUPTED } else { printed }
        }
    }
}

/// Shows what a measurement does on the line.
fn stages(line: &Line) -> Stages {
    let line = line.clone();
    Stages::new(move |what| line.stage(what))
}

/// Measures a plan and writes the profile; returns the exit code.
fn measure(args: &cli::Profile, line: &Line) -> Result<u8, Error> {
    args.check_files()?;
    line.stage("reading the plan");
    let file = PlanFile::open(&args.plan).map_err(|error| Error::opening(&args.plan, error))?;
    let measured = profile(&file, &args.options(stages(line)))?;
    let text = format!("{:#}\n", measured.to_json());
    let mut written = args.output.clone();
    if args.keep {
        let kept = memc_support::kept_profile(&measured.name);
        let path = kept.ok_or_else(|| Error::Usage("--keep needs a HOME or XDG_DATA_HOME".into()))?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| Error::io(folder, error))?;
        }
        write_whole(&path, &text)?;
        written.get_or_insert(path);
    }
    if let Some(path) = &args.output {
        write_whole(path, &text)?;
    }
    line.close();
    Ok(report::measured(args.json, &written.unwrap_or_default(), &measured))
}

/// Writes a file as a whole or not at all.
fn write_whole(path: &Path, text: &str) -> Result<(), Error> {
    Replace::whole(path, text.as_bytes()).map_err(|error| Error::io(path, error))
}
