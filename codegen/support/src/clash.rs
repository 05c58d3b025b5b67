//! Clashes between the paths of a command: an output must not replace an input or another output.

use std::{
    error, fmt,
    path::{Path, PathBuf},
};

/// Refused output path. The message is for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathClash {
    /// The path is `-`. Many commands take it for standard output; these do not.
    Dash,
    /// The path is also an input or another output.
    Taken(PathBuf),
}

impl fmt::Display for PathClash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathClash::Dash => {
                f.write_str("`-` is not standard output here; give a file, or `./-` for one of this name")
            }
            PathClash::Taken(path) => {
                write!(f, "`{}` would be overwritten: it is an input or another output", path.display())
            }
        }
    }
}

impl error::Error for PathClash {}

/// Checks that no output is an input, another output, or `-`.
///
/// # Errors
/// [`PathClash`] for the first output that is refused.
pub fn check_clash<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    outputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), PathClash> {
    let mut taken: Vec<PathBuf> = inputs.into_iter().map(resolve).collect();
    for output in outputs {
        if output == Path::new("-") {
            return Err(PathClash::Dash);
        }
        let path = resolve(output);
        if taken.contains(&path) {
            return Err(PathClash::Taken(output.to_owned()));
        }
        taken.push(path);
    }
    Ok(())
}

/// Whether two paths lead to one file. The file need not exist yet.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    resolve(a) == resolve(b)
}

/// Canonical form of a path, also of one whose last component does not exist yet.
fn resolve(path: &Path) -> PathBuf {
    let in_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(in_folder).unwrap_or_else(|| path.to_owned())
}
