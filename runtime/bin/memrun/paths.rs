//! Files that a command reads and writes: none may take the place of another.

use std::path::{Path, PathBuf};

use memc_runtime::Error;

/// Fails where an output is an input or another output. Files that are read whole before anything is written may be
/// given as `replaced`: one output may take their place.
pub(crate) fn keep_apart(inputs: &[&Path], replaced: Option<&Path>, outputs: &[&Path]) -> Result<(), Error> {
    let mut taken: Vec<PathBuf> = inputs.iter().map(|path| real(path)).collect();
    let replaced = replaced.map(real);
    for (index, output) in outputs.iter().enumerate() {
        let path = real(output);
        // The first output is what takes the place.
        if taken.contains(&path) || (index > 0 && replaced.as_ref() == Some(&path)) {
            let text =
                format!("`{}` would be overwritten: it is an input or another output", output.display());
            return Err(Error::Usage(text));
        }
        taken.push(path);
    }
    Ok(())
}

/// The file that a path leads to, also where it is still to be made.
fn real(path: &Path) -> PathBuf {
    let made = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(made).unwrap_or_else(|| path.to_owned())
}
