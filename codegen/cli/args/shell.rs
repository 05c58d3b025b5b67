//! Options of the commands that are for shells and systems.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Args)]
pub(crate) struct Man {
    /// Folder to write to; made where it is not there
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}
