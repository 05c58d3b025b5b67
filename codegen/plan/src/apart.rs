//! Files that a command reads and writes: none may take the place of another.

use std::path::{Path, PathBuf};

/// Fails with a text for the user where an output is an input or another output, or `-`, which many commands take for
/// standard output and none of these does.
pub fn keep_apart<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    outputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), String> {
    let mut taken: Vec<PathBuf> = inputs.into_iter().map(real).collect();
    for output in outputs {
        if output == Path::new("-") {
            return Err(
                "`-` is not standard output here; give a file, or `./-` for one of this name".to_owned()
            );
        }
        let path = real(output);
        if taken.contains(&path) {
            return Err(format!(
                "`{}` would be overwritten: it is an input or another output",
                output.display()
            ));
        }
        taken.push(path);
    }
    Ok(())
}

/// Whether two paths lead to one file, also one that is still to be made.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    real(a) == real(b)
}

/// The file that a path leads to.
fn real(path: &Path) -> PathBuf {
    let made = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(made).unwrap_or_else(|| path.to_owned())
}
