//! Streams of the process: stdout, stderr, progress, output files, exit codes.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use memc::{Error, Event, NoFit, Watch};
use memc_ir::counted;
use serde::Serialize;
use serde_json::{Value, json};

use crate::figures::{ms, quotient};

/// End of a command that is not a success.
pub(crate) enum Failure {
    /// An error that nobody has been told of.
    Error(Error),
    /// An error that, with `--json`, the report on stdout tells: exit code and text.
    Reported(u8, String),
    /// `memc diff` found differences, which it has printed.
    Different,
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Error(e)
    }
}

impl Failure {
    /// An error that stdout tells, too.
    pub(crate) fn reported(e: &Error) -> Failure {
        Failure::Reported(e.exit_code(), text(e))
    }

    /// Writes the reproducer of a failed pass to `folder`, and names the file in the error's text.
    pub(crate) fn with_reproducer(self, folder: &Path) -> Failure {
        let Failure::Error(Error::Bug { text, reproducer }) = self else { return self };
        let unused = |path: &PathBuf| match std::fs::read(path) {
            Ok(bytes) => bytes == reproducer.as_bytes(),
            Err(e) => e.kind() == ErrorKind::NotFound,
        };
        let path = (1..=MOST_REPRODUCERS).map(|n| folder.join(format!("memc-bug-{n}.mir"))).find(unused);
        let note = match path.map(|path| (write_file(&path, reproducer.as_bytes()), path)) {
            Some((Ok(()), path)) => format!("\nnote: `memc opt {}` shows it again", path.display()),
            Some((Err(e), _)) => format!("\nnote: {e}"),
            None => String::new(),
        };
        Failure::Error(Error::Bug { text: text + &note, reproducer })
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Error(e) => e.exit_code(),
            Failure::Reported(code, _) => *code,
            Failure::Different => 1,
        }
    }

    /// Text for stderr.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Failure::Error(e) => Some(text(e)),
            Failure::Reported(_, text) => Some(text.clone()),
            Failure::Different => None,
        }
    }
}

/// Reproducers that a folder takes.
const MOST_REPRODUCERS: u32 = 100;

/// An error for people.
fn text(e: &Error) -> String {
    match e {
        Error::Interrupted => format!("interrupted; {}", left_behind()),
        e => e.to_string(),
    }
}

/// The error as the object that `--json` promises.
pub(crate) fn error_json(e: &Error) -> Value {
    let mut out = json!({"error": text(e), "exit_code": e.exit_code()});
    if let Error::NoAllocation { capacity, height, load, bound, .. } = e {
        out["capacity"] = (*capacity).into();
        out["height"] = (*height).into();
        out["load"] = (*load).into();
        out["bound"] = (*bound).into();
    }
    if let Error::Infeasible(NoFit { report: Some(i), .. }) = e {
        out["gpu_mem_bytes"] = i.budget_bytes.into();
        out["reserve_bytes"] = i.reserve_bytes.into();
        out["smallest_feasible_bytes"] = i.smallest_bytes.into();
        out["working_set_op"] = i.op.clone().into();
        out["working_set_bytes"] = i.working_set_bytes.into();
        let tensor =
            |(name, ty, bytes): &(String, String, u64)| json!({"name": name, "type": ty, "bytes": bytes});
        out["tensors"] = i.tensors.iter().map(tensor).collect();
    }
    out
}

/// Writes to stdout; a reader that has gone away is not an error.
pub(crate) fn emit(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(memc_support::printable(text).as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::Io(format!("cannot write to stdout: {e}"))),
        _ => Ok(()),
    }
}

/// Characters of a line of the terminal that stdout is; `None` where it is none.
pub(crate) fn width() -> Option<usize> {
    let size = std::io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    size.map(|(width, _)| usize::from(width.0).max(40))
}

/// Writes a line of JSON to stdout.
pub(crate) fn emit_json(value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(value).map_err(|e| Error::Internal(e.to_string()))?;
    emit(&(text + "\n"))
}

/// Where the stage of the command stands on a terminal.
static BAR: OnceLock<ProgressBar> = OnceLock::new();

/// Writes a line to stderr, where a failure to do so has nowhere to be reported.
pub(crate) fn say(text: &str) {
    let line = || {
        let _ = writeln!(std::io::stderr().lock(), "{}", memc_support::printable(text));
    };
    match BAR.get() {
        Some(bar) => bar.suspend(line),
        None => line(),
    }
}

/// Set when the user interrupts while a file is being written or a search can keep its best result.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);
/// Files that are being written, plus searches with a result to keep. An interrupt waits for them and leaves
/// no pieces behind.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// State of the command's files after an interrupt, for people.
pub(crate) fn left_behind() -> &'static str {
    if memc_support::has_replaced() { "files that were written are whole" } else { "no file was written" }
}

/// Text that erases the stage from a terminal, for before a line that does not come from [`say`].
pub(crate) fn erase() -> &'static str {
    if BAR.get().is_some_and(|bar| !bar.is_hidden()) { "\r\x1b[2K" } else { "" }
}

/// Whether the user has interrupted.
pub(crate) fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// While one lives, an interrupt only sets [`STOP`].
pub(crate) struct Writing(());

impl Writing {
    pub(crate) fn begin() -> Writing {
        HELD.fetch_add(1, Ordering::Relaxed);
        Writing(())
    }

    /// Whether one lives.
    pub(crate) fn held() -> bool {
        HELD.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Refuses output files that are also inputs, or the same file twice, since one would silently replace the
/// other; and those that cannot be written, which is better known now than after the work.
pub(crate) fn ready(inputs: &[Option<&PathBuf>], outputs: &[Option<&PathBuf>]) -> Result<(), Error> {
    memc_support::check_clash(
        inputs.iter().flatten().map(|p| p.as_path()),
        outputs.iter().flatten().map(|p| p.as_path()),
    )
    .map_err(|clash| Error::Usage(clash.to_string()))?;
    outputs.iter().flatten().try_for_each(|path| writable(path))
}

/// Whether [`write_file`] can write to a file. What is no regular file, as a pipe or device, is left alone
/// until then.
fn writable(path: &Path) -> Result<(), Error> {
    match std::fs::metadata(path) {
        Ok(data) if !data.is_file() && !data.is_dir() => Ok(()),
        _ => replaceable(path),
    }
}

/// Whether a file can be replaced as a whole.
pub(crate) fn replaceable(path: &Path) -> Result<(), Error> {
    let writing = Writing::begin();
    let begun = memc_support::Replace::begin(path).map(drop);
    drop(writing);
    if STOP.swap(false, Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    begun.map_err(|e| Error::Io(format!("cannot write `{}`: {e}", path.display())))
}

/// Replaces a file as a whole or not at all. A link stays and its target is replaced; what is no regular
/// file, as a pipe or device, is written to.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let _writing = Writing::begin();
    let failed = |e: std::io::Error| Error::Io(format!("cannot write `{}`: {e}", path.display()));
    if std::fs::metadata(path).is_ok_and(|data| !data.is_file()) {
        return std::fs::write(path, bytes).map_err(failed);
    }
    memc_support::Replace::whole(path, bytes).map_err(failed)
}

/// The stage a command is in, on stderr, for people at a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    quiet: bool,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let new = || if terminal { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        let bar = BAR.get_or_init(new).clone();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}{msg} [{elapsed}]") {
            bar.set_style(style);
        }
        // It starts a thread, which only a terminal is worth.
        if terminal {
            bar.enable_steady_tick(std::time::Duration::from_millis(120));
        }
        Progress { bar, quiet }
    }

    pub(crate) fn stage(&self, name: &str) {
        self.bar.set_message(name.to_string());
    }

    /// Says how many things an interrupt left undone.
    pub(crate) fn left_out(&self, n: usize, noun: &str) {
        if n > 0 {
            say(&format!("interrupted: {} left out", counted(n, noun)));
        }
    }

    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for Progress {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Stage(name) => self.stage(name),
            Event::Subject(name) => {
                self.bar.set_prefix(if name.is_empty() { String::new() } else { format!("{name}: ") });
            }
            Event::Note(text) => {
                if !self.quiet {
                    say(text);
                }
            }
            Event::Warning(text) => say(&format!("warning: {text}")),
            Event::Generation(_) => {}
            Event::Kept => say("interrupted: going on with the best plan found so far"),
            Event::Found(found) => {
                let bound = match found.bound_ns {
                    0 => String::new(),
                    bound => format!(", {} of the bound {}", quotient(found.step_ns, bound), ms(bound)),
                };
                self.stage(&format!(
                    "planning: {}, {} of the ideal{bound}, {} plans",
                    ms(found.step_ns),
                    quotient(found.step_ns, found.ideal_ns),
                    found.evaluations
                ));
            }
        }
    }

    fn stop(&self) -> bool {
        STOP.load(Ordering::Relaxed)
    }

    fn take_stop(&self) -> bool {
        STOP.swap(false, Ordering::Relaxed)
    }

    fn hold(&self, held: bool) {
        if held {
            HELD.fetch_add(1, Ordering::Relaxed)
        } else {
            HELD.fetch_sub(1, Ordering::Relaxed)
        };
    }

    fn is_seen(&self) -> bool {
        !self.bar.is_hidden()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_pass_leaves_a_file_and_an_equal_failure_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let fail = |content: &str| {
            let error = Error::Bug { text: "fold: it fails".into(), reproducer: content.into() };
            Failure::from(error).with_reproducer(folder.path()).text().unwrap()
        };
        let first = folder.path().join("memc-bug-1.mir");
        for _ in 0..2 {
            let said = fail("module @a graph\n");
            assert!(said.contains(&format!("note: `memc opt {}`", first.display())), "{said}");
        }
        assert!(fail("module @b graph\n").contains("memc-bug-2.mir"));
        assert_eq!(std::fs::read_to_string(first).unwrap(), "module @a graph\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
