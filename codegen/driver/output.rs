//! What people and scripts read: stdout, stderr, tables, progress.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::Error;

/// Writes to stdout; a reader that has gone away is not an error.
pub(crate) fn emit(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::Io(format!("cannot write to stdout: {e}"))),
        _ => Ok(()),
    }
}

/// Writes a line to stderr, where a failure to do so has nowhere to be reported.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Replaces a file as a whole or not at all.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |e: std::io::Error| Error::Io(format!("cannot write `{}`: {e}", path.display()));
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

/// Rows under a header, columns aligned; columns of figures to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut t = comfy_table::Table::new();
    t.load_style(comfy_table::presets::NOTHING);
    t.set_header(header.to_vec());
    for row in rows {
        t.add_row(row.clone());
    }
    let figures = |i: usize| {
        rows.iter().all(|r| r.get(i).is_some_and(|c| c.starts_with(|c: char| c.is_ascii_digit() || c == '-')))
    };
    for (i, column) in t.column_iter_mut().enumerate() {
        if figures(i) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    let lines: Vec<String> = t.lines().map(|l| l.trim_end().to_string()).collect();
    lines.join("\n") + "\n"
}

/// The stage a command is in, on stderr, for people at a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    quiet: bool,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Progress {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(std::time::Duration::from_millis(120));
        Progress { bar, quiet }
    }

    pub(crate) fn stage(&self, name: &str) {
        self.bar.set_message(name.to_string());
    }

    /// What was found where, unless only JSON is wanted; warnings always.
    pub(crate) fn notes(&self, notes: &[String], warnings: &[String]) {
        self.bar.suspend(|| {
            if !self.quiet {
                notes.iter().for_each(|n| say(n));
            }
            warnings.iter().for_each(|w| say(&format!("warning: {w}")));
        });
    }

    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}
