//! `memrun completions` and `memrun man`.

use crate::Error;
use clap::CommandFactory;

use crate::memrun::cli::{Cli, Completions, Man};
use crate::memrun::{report, terminal};

/// Prints completions, and returns the exit code.
pub(crate) fn completions(args: &Completions) -> u8 {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "memrun", &mut text);
    terminal::print(&String::from_utf8_lossy(&text))
}

/// Writes man pages, and returns the exit code.
pub(crate) fn man(args: &Man) -> u8 {
    let folder = &args.folder;
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    match written {
        Ok(()) => terminal::print(&format!(
            "{0}: man pages; `man {0}/memrun.1` shows the first\n",
            folder.display()
        )),
        Err(e) => report::not_measured(false, &Error::io(folder, e)),
    }
}
