//! `memc completions` and `memc man`.

use memc::Error;

use crate::args::{self, Completions, Man};
use crate::output::{Failure, emit, say};

pub(crate) fn completions(args: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut args::definition(), "memc", &mut text);
    Ok(emit(&String::from_utf8_lossy(&text))?)
}

pub(crate) fn man(args: &Man) -> Result<(), Failure> {
    let folder = &args.folder;
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(args::definition(), folder));
    written.map_err(|e| Error::Io(format!("cannot write man pages to {}: {e}", folder.display())))?;
    say(&format!("{0}: man pages; `man {0}/memc.1` shows the first", folder.display()));
    Ok(())
}
