//! Folders in which CUDA's libraries may lie.
//!
//! No process is started: what a Python interpreter would search is read from its place and from
//! `pyvenv.cfg`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variable with folders to look for libraries in, separated like those of `PATH`.
pub const VARIABLE: &str = "MEMRUN_CUDA_LIBS";

/// Folders to search for libraries that the loader does not know.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Search {
    /// Folders, the first first, each once.
    pub folders: Vec<PathBuf>,
}

impl Search {
    /// Folders that an environment names, and then those where libraries usually are.
    ///
    /// Named are [`VARIABLE`]; NVIDIA's wheels of the active Python environment (`VIRTUAL_ENV`,
    /// `CONDA_PREFIX`); `lib` of `CONDA_PREFIX`; `lib64` and `lib` of `CUDA_HOME` and `CUDA_PATH`. Usual are
    /// the wheels of the first `python3` of `PATH`, of the user and of the system, and `/usr/local/cuda`. An
    /// empty [`VARIABLE`] leaves the usual ones out.
    pub fn new(variable: impl Fn(&str) -> Option<OsString>) -> Search {
        Search::below(Path::new("/"), variable)
    }

    /// [`Search::new`], where the system's folders are below `root`.
    fn below(root: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Search {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let named = variable(VARIABLE);
        let split = named.iter().flat_map(std::env::split_paths).filter(|p| !p.as_os_str().is_empty());
        let mut folders: Vec<PathBuf> = split.collect();
        for environment in ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| set(name)) {
            folders.extend(wheels(Path::new(&environment)));
        }
        folders.extend(set("CONDA_PREFIX").map(|conda| Path::new(&conda).join("lib")));
        for toolkit in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| set(name)) {
            folders.extend(["lib64", "lib"].map(|inner| Path::new(&toolkit).join(inner)));
        }
        if named.is_none_or(|named| !named.is_empty()) {
            let mut prefixes = set("PATH").map_or_else(Vec::new, |path| interpreter(&path));
            prefixes.extend(set("HOME").map(|home| Path::new(&home).join(".local")));
            prefixes.extend(["usr/local", "usr"].map(|prefix| root.join(prefix)));
            folders.extend(prefixes.iter().flat_map(|prefix| wheels(prefix)));
            let system = ["usr/local/cuda/lib64", "usr/lib/wsl/lib"].map(|folder| root.join(folder));
            folders.extend(system.into_iter().filter(|folder| folder.is_dir()));
        }
        let mut once: Vec<PathBuf> = Vec::with_capacity(folders.len());
        for folder in folders {
            if !once.contains(&folder) {
                once.push(folder);
            }
        }
        Search { folders: once }
    }
}

/// Entries of a folder in sorted order; none where there is no such folder.
pub(crate) fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// The library folders of NVIDIA's wheels below a Python's prefix: `nvidia/*/lib` of
/// `lib/python3*/site-packages`, and of `dist-packages`, as Debian has them.
fn wheels(prefix: &Path) -> Vec<PathBuf> {
    let is_python =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"));
    let pythons = inside(&prefix.join("lib")).into_iter().filter(is_python);
    let packages = pythons
        .flat_map(|python| ["site-packages", "dist-packages"].map(|packages| python.join(packages)))
        .flat_map(|packages| inside(&packages.join("nvidia")));
    packages.map(|package| package.join("lib")).filter(|folder| folder.is_dir()).collect()
}

/// Prefixes of the first `python3` on a path: of its virtual environment, and of the installation where that
/// environment sees it too.
fn interpreter(path: &OsString) -> Vec<PathBuf> {
    let all = std::env::split_paths(path).map(|folder| folder.join("python3"));
    let Some(python) = all.into_iter().find(|python| python.is_file()) else { return Vec::new() };
    // `PREFIX/bin/python3`.
    let prefix = |python: &Path| python.parent().and_then(Path::parent).map(Path::to_owned);
    let installed = std::fs::canonicalize(&python).ok().and_then(|python| prefix(&python));
    let Some(own) = prefix(&python) else { return Vec::new() };
    let sees_all = match std::fs::read_to_string(own.join("pyvenv.cfg")) {
        Ok(text) => text.lines().filter_map(|line| line.split_once('=')).any(|(key, value)| {
            key.trim() == "include-system-site-packages" && value.trim().eq_ignore_ascii_case("true")
        }),
        Err(_) => true,
    };
    std::iter::once(own).chain(installed.filter(|_| sees_all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(root: &Path, folder: &str) -> PathBuf {
        let folder = root.join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Folders come from the variable first, then from the active environments, then from the toolkit, then
    /// from the usual places.
    #[test]
    fn the_environment_is_searched_in_order() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let venv = make(root, "venv/lib/python3.12/site-packages/nvidia/cu13/lib");
        let conda = make(root, "conda/lib/python3.12/site-packages/nvidia/cudnn/lib");
        let user = make(root, "home/.local/lib/python3.12/site-packages/nvidia/cudnn/lib");
        let local = make(root, "usr/local/lib/python3.12/dist-packages/nvidia/cublas/lib");
        let cuda = make(root, "usr/local/cuda/lib64");
        let search = |libs: &'static str| {
            Search::below(root, move |name| match name {
                "MEMRUN_CUDA_LIBS" => Some(libs.into()),
                "VIRTUAL_ENV" => Some(root.join("venv").into()),
                "CONDA_PREFIX" => Some(root.join("conda").into()),
                "CUDA_HOME" => Some("/toolkit".into()),
                "HOME" => Some(root.join("home").into()),
                _ => None,
            })
        };
        let conda = [venv, conda, root.join("conda/lib"), "/toolkit/lib64".into(), "/toolkit/lib".into()];
        let named = ["/first".into(), "/second".into()];
        let usual = [user, local, cuda];
        assert_eq!(search("/first:/second:/first").folders, [&named[..], &conda, &usual].concat());
        assert_eq!(search("").folders, conda);
    }

    /// The first interpreter of the path leads to its environment, and to the installation behind it only
    /// where the environment says so.
    #[cfg(unix)]
    #[test]
    fn the_interpreter_of_the_path_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(root.path()).unwrap();
        let own = make(&root, "venv/lib/python3.12/site-packages/nvidia/cu13/lib");
        let behind = make(&root, "opt/lib/python3.12/site-packages/nvidia/cudnn/lib");
        std::fs::write(make(&root, "opt/bin").join("python3"), "").unwrap();
        let bin = make(&root, "venv/bin");
        std::os::unix::fs::symlink(root.join("opt/bin/python3"), bin.join("python3")).unwrap();
        let path = std::env::join_paths([&make(&root, "empty"), &bin, &root.join("opt/bin")]).unwrap();
        let search = |settings: &str| {
            std::fs::write(root.join("venv/pyvenv.cfg"), settings).unwrap();
            Search::below(&root, |name| (name == "PATH").then(|| path.clone())).folders
        };
        assert_eq!(search("include-system-site-packages = false\n"), std::slice::from_ref(&own));
        assert_eq!(search("include-system-site-packages = true\n"), [own, behind]);
    }

    /// An empty environment on an empty system leaves what the loader knows.
    #[test]
    fn an_empty_environment_names_no_folder() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Search::below(root.path(), |_| None), Search::default());
    }
}
