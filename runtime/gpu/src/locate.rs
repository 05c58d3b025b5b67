//! Finding CUDA's libraries, without an environment prepared for them.
//!
//! Each library is opened by name first, which asks the dynamic loader (`LD_LIBRARY_PATH`, its cache), and
//! then in the folders of [`Search`], in order. glibc answers a later request for the same name with a
//! library that is already open, so that one opened here by path is the one that the bindings get. Libraries
//! are never closed.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::{Component, GpuError};

/// The variable with folders to look for libraries in, separated like those of `PATH`.
pub const VARIABLE: &str = "MEMRUN_CUDA_LIBS";

/// Folders to search for libraries that the loader does not know.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Search {
    /// Folders, the first first.
    pub folders: Vec<PathBuf>,
}

impl Search {
    /// The folders that an environment points to: [`VARIABLE`], the NVIDIA wheels of the active Python
    /// environment (`VIRTUAL_ENV`, `CONDA_PREFIX`), `lib64` and `lib` of `CUDA_HOME` and `CUDA_PATH`.
    pub fn new(variable: impl Fn(&str) -> Option<OsString>) -> Search {
        let mut folders: Vec<PathBuf> = variable(VARIABLE)
            .iter()
            .flat_map(std::env::split_paths)
            .filter(|p| !p.as_os_str().is_empty())
            .collect();
        for environment in ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| variable(name)) {
            folders.extend(wheels(Path::new(&environment)));
        }
        for toolkit in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| variable(name)) {
            folders.extend(["lib64", "lib"].map(|inner| Path::new(&toolkit).join(inner)));
        }
        Search { folders }
    }
}

/// Folders in sorted order; none where there is no such folder.
fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// The library folders of NVIDIA's wheels in a Python environment:
/// `lib/python3.*/site-packages/nvidia/*/lib`.
fn wheels(environment: &Path) -> Vec<PathBuf> {
    let packages = inside(&environment.join("lib"))
        .into_iter()
        .flat_map(|python| inside(&python.join("site-packages/nvidia")));
    packages.map(|package| package.join("lib")).filter(|folder| folder.is_dir()).collect()
}

/// A library that is open.
#[derive(Debug)]
pub struct Library {
    /// Which.
    pub component: Component,
    /// The path it was opened by; a bare name where the loader knew it.
    pub path: PathBuf,
    /// Its version, where it says one: for the driver that of CUDA it supports.
    pub version: Option<String>,
    handle: Handle,
}

impl Library {
    /// Whether the library has a function.
    pub(crate) fn has(&self, symbol: &str) -> bool {
        // SAFETY: the symbol is not called, so that its type does not matter.
        #[allow(unsafe_code, reason = "looking up a symbol")]
        let found = unsafe { self.handle.get::<unsafe extern "C" fn()>(symbol.as_bytes()) };
        found.is_ok()
    }

    /// Checks that all functions that will be called are there.
    pub(crate) fn require(&self, symbols: &[&'static str]) -> Result<(), GpuError> {
        match symbols.iter().find(|symbol| !self.has(symbol)) {
            Some(symbol) => Err(GpuError::Symbol { component: self.component, symbol }),
            None => Ok(()),
        }
    }

    /// A function that the bindings lack.
    ///
    /// # Safety
    /// The function must have the type `T` in every version of the library.
    #[allow(unsafe_code, reason = "looking up a symbol")]
    pub(crate) unsafe fn function<T: Copy>(&self, symbol: &'static str) -> Result<T, GpuError> {
        // SAFETY: as the caller promises. The library stays open.
        let found = unsafe { self.handle.get::<T>(symbol.as_bytes()) };
        found.map(|f| *f).map_err(|_| GpuError::Symbol { component: self.component, symbol })
    }
}

/// Outcome of looking for a library.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a> {
    /// Which.
    pub component: Component,
    /// The library, or the reason why there is none.
    pub found: Result<&'a Library, &'a NotFound>,
}

/// Reason why a library is not found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotFound {
    /// A file is there, but the loader refuses it.
    Refused {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        error: String,
    },
    /// No searched folder has it.
    Nowhere {
        /// The folders.
        folders: Vec<PathBuf>,
    },
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotFound::Refused { path, error } => write!(f, "{}: {error}", path.display()),
            NotFound::Nowhere { folders } if folders.is_empty() => write!(
                f,
                "the loader does not find it, and neither {VARIABLE} nor an environment names a folder"
            ),
            NotFound::Nowhere { folders } => {
                let all: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
                write!(f, "neither the loader finds it nor is it in {}", all.join(", "))
            }
        }
    }
}

impl std::error::Error for NotFound {}

/// The libraries of this machine.
#[derive(Debug)]
pub struct Libraries {
    /// Each in the order of [`Component::ALL`], or the reason why it did not open.
    each: [Result<Library, NotFound>; Component::ALL.len()],
    /// Folders that were searched.
    pub search: Search,
}

impl Libraries {
    /// The libraries that this process finds; looked for once.
    #[allow(
        clippy::disallowed_methods,
        reason = "the environment says where libraries are; no plan depends on it"
    )]
    pub fn get() -> &'static Libraries {
        static FOUND: OnceLock<Libraries> = OnceLock::new();
        FOUND.get_or_init(|| Libraries::open(Search::new(|name| std::env::var_os(name))))
    }

    /// Opens what there is.
    fn open(search: Search) -> Libraries {
        let each = Component::ALL.map(|component| open(component, &search.folders));
        Libraries { each, search }
    }

    /// Outcome for each, in the order of [`Component::ALL`].
    pub fn status(&self) -> impl Iterator<Item = Status<'_>> {
        let all = Component::ALL.into_iter().zip(&self.each);
        all.map(|(component, found)| Status { component, found: found.as_ref() })
    }

    /// One of them.
    ///
    /// # Errors
    /// [`GpuError::Missing`].
    pub fn require(&self, component: Component) -> Result<&Library, GpuError> {
        let missing = |why: &NotFound| GpuError::Missing { component, why: why.to_string() };
        let [driver, nvrtc, blas, dnn] = &self.each;
        let found = match component {
            Component::Driver => driver,
            Component::Nvrtc => nvrtc,
            Component::CublasLt => blas,
            Component::Cudnn => dnn,
        };
        found.as_ref().map_err(missing)
    }
}

/// Opens a file for good.
#[allow(unsafe_code, reason = "opening a library runs its initialisers")]
fn open_file(name: &Path) -> Result<Handle, libloading::Error> {
    // SAFETY: NVIDIA's libraries, which these names stand for, may be initialised at any time from any
    // thread.
    unsafe { Handle::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
}

/// The loader's own words: what it cannot use of a file, or what the file needs and does not find.
fn words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn open(component: Component, folders: &[PathBuf]) -> Result<Library, NotFound> {
    let library = |path, handle| Library { component, path, version: version(component, &handle), handle };
    for name in component.files() {
        if let Ok(handle) = open_file(Path::new(name)) {
            return Ok(library(name.into(), handle));
        }
    }
    let mut refused = None;
    for folder in folders {
        for path in component.files().iter().map(|name| folder.join(name)).filter(|path| path.exists()) {
            if component == Component::Nvrtc {
                open_builtins(folder);
            }
            match open_file(&path) {
                Ok(handle) => return Ok(library(path, handle)),
                Err(error) => {
                    refused.get_or_insert(NotFound::Refused { path, error: words(&error) });
                }
            }
        }
    }
    Err(refused.unwrap_or_else(|| NotFound::Nowhere { folders: folders.to_vec() }))
}

/// NVRTC opens its built-in functions by bare name and does not look beside itself.
fn open_builtins(folder: &Path) {
    for path in inside(folder) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("libnvrtc-builtins.so")
            && let Ok(handle) = open_file(&path)
        {
            std::mem::forget(handle);
        }
    }
}

/// The version that a library tells without a device.
#[allow(unsafe_code, reason = "calls functions of the libraries by name")]
fn version(component: Component, library: &Handle) -> Option<String> {
    // SAFETY: the functions have these types in every version of the libraries since CUDA 8 and cuDNN 2
    // (cuda.h, nvrtc.h, cublasLt.h, cudnn_version.h).
    type One = unsafe extern "C" fn(*mut i32) -> u32;
    type Two = unsafe extern "C" fn(*mut i32, *mut i32) -> u32;
    type Number = unsafe extern "C" fn() -> usize;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the types are right; the functions write the integers they are given pointers to, and need no
    // device.
    unsafe {
        match component {
            Component::Driver => {
                let done = library.get::<One>(b"cuDriverGetVersion").ok()?(&mut major) == 0;
                done.then(|| format!("CUDA {}.{}", major / 1000, major % 1000 / 10))
            }
            Component::Nvrtc => {
                let done = library.get::<Two>(b"nvrtcVersion").ok()?(&mut major, &mut minor) == 0;
                done.then(|| format!("{major}.{minor}"))
            }
            Component::CublasLt => {
                let number = library.get::<Number>(b"cublasLtGetVersion").ok()?();
                Some(format!("{}.{}.{}", number / 10_000, number % 10_000 / 100, number % 100))
            }
            Component::Cudnn => {
                let number = library.get::<Number>(b"cudnnGetVersion").ok()?();
                // Before version 9 a major version counted thousands.
                let (major, rest) = match number {
                    ..10_000 => (number / 1000, number % 1000),
                    _ => (number / 10_000, number % 10_000),
                };
                Some(format!("{major}.{}.{}", rest / 100, rest % 100))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folders come from the variable first, then from wheels of the active environment, then from the
    /// toolkit.
    #[test]
    fn the_environment_is_searched_in_order() {
        let root = tempfile::tempdir().unwrap();
        let wheel = root.path().join("lib/python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&wheel).unwrap();
        let environment = root.path().as_os_str().to_owned();
        let search = Search::new(|name| match name {
            "MEMRUN_CUDA_LIBS" => Some("/first:/second".into()),
            "VIRTUAL_ENV" => Some(environment.clone()),
            "CUDA_HOME" => Some("/toolkit".into()),
            _ => None,
        });
        let folders =
            ["/first".into(), "/second".into(), wheel, "/toolkit/lib64".into(), "/toolkit/lib".into()];
        assert_eq!(search.folders, folders);
    }

    /// An empty environment leaves what the loader knows.
    #[test]
    fn an_empty_environment_names_no_folder() {
        assert_eq!(Search::new(|_| None), Search::default());
    }

    /// A file that is no library is refused with its path and the loader's reason.
    #[test]
    fn a_damaged_library_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libcudnn.so.9"), "not a library").unwrap();
        let error = open(Component::Cudnn, &[folder.path().to_owned()]);
        // A machine may have a cuDNN of its own.
        if let Err(why) = error {
            let why = why.to_string();
            assert!(why.contains("libcudnn.so.9") && !why.contains("neither"), "{why}");
        }
    }
}
