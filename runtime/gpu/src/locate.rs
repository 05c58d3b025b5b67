//! Finding CUDA's libraries, without an environment prepared for them.
//!
//! Each library is opened by name first, which asks the dynamic loader (`LD_LIBRARY_PATH`, its cache), and then in the
//! folders of [`Search`], in order. glibc answers a later request for the same name with a library that is already open,
//! so that one opened here by path is the one that the bindings get. Libraries are never closed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::GpuError;

/// The variable with folders to look for libraries in, separated like those of `PATH`.
pub const VARIABLE: &str = "MEMRUN_CUDA_LIBS";

/// A library that a GPU program can use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Component {
    /// The driver, without which there is no device.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Convolutions.
    Cudnn,
}

impl Component {
    /// All of them, in the order in which they may be opened: each after those it needs.
    pub const ALL: [Component; 4] =
        [Component::Driver, Component::Nvrtc, Component::CublasLt, Component::Cudnn];

    /// Name for humans.
    pub fn name(self) -> &'static str {
        match self {
            Component::Driver => "driver",
            Component::Nvrtc => "NVRTC",
            Component::CublasLt => "cuBLASLt",
            Component::Cudnn => "cuDNN",
        }
    }

    /// Name of the library file, without a version.
    pub fn library(self) -> &'static str {
        self.files()[0]
    }

    /// Names of the file, in the order in which the bindings try them.
    fn files(self) -> &'static [&'static str] {
        match self {
            Component::Driver => &["libcuda.so", "libcuda.so.1"],
            Component::Nvrtc => &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"],
            Component::CublasLt => &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"],
            Component::Cudnn => &["libcudnn.so", "libcudnn.so.9"],
        }
    }

    /// The oldest version that can be used, the first number of it.
    pub fn oldest(self) -> u32 {
        match self {
            Component::Driver | Component::Nvrtc | Component::CublasLt => 12,
            Component::Cudnn => 9,
        }
    }

    /// Behaviour of a program without it.
    pub fn absence(self) -> &'static str {
        match self {
            Component::Driver => "no program runs on a GPU",
            Component::Nvrtc => "kernels cannot be compiled: no program runs on a GPU",
            Component::CublasLt => "matrix products run as generated kernels, which are slower",
            Component::Cudnn => "convolutions run as generated kernels, which are slower",
        }
    }

    /// Package that brings it.
    pub fn remedy(self) -> &'static str {
        match self {
            Component::Driver => "install NVIDIA's driver, or pass it into the container",
            Component::Nvrtc => {
                "install the Python wheel nvidia-cuda-nvrtc, or name its folder in MEMRUN_CUDA_LIBS"
            }
            Component::CublasLt => {
                "install the Python wheel nvidia-cublas, or name its folder in MEMRUN_CUDA_LIBS"
            }
            Component::Cudnn => {
                "install the Python wheel nvidia-cudnn-cu13, or name its folder in MEMRUN_CUDA_LIBS"
            }
        }
    }
}

/// Folders to search for libraries that the loader does not know.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Search {
    /// Folders, the first first.
    pub folders: Vec<PathBuf>,
}

impl Search {
    /// The folders that an environment points to: [`VARIABLE`], the NVIDIA wheels of the active Python environment
    /// (`VIRTUAL_ENV`, `CONDA_PREFIX`), `lib64` and `lib` of `CUDA_HOME` and `CUDA_PATH`.
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

/// The library folders of NVIDIA's wheels in a Python environment: `lib/python3.*/site-packages/nvidia/*/lib`.
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
    /// The library, or why there is none.
    pub found: Result<&'a Library, &'a str>,
}

/// The libraries of this machine.
#[derive(Debug)]
pub struct Libraries {
    /// Each, or why it did not open.
    each: [(Component, Result<Library, String>); 4],
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
        let each = Component::ALL.map(|component| (component, open(component, &search.folders)));
        Libraries { each, search }
    }

    /// Outcome for each, in the order of [`Component::ALL`].
    pub fn status(&self) -> impl Iterator<Item = Status<'_>> {
        self.each.iter().map(|(component, found)| Status {
            component: *component,
            found: found.as_ref().map_err(String::as_str),
        })
    }

    /// One of them.
    ///
    /// # Errors
    /// [`GpuError::Missing`].
    pub fn require(&self, component: Component) -> Result<&Library, GpuError> {
        let found = self.status().find(|status| status.component == component).map_or(Err(""), |s| s.found);
        found.map_err(|why| GpuError::Missing { component, why: why.to_owned() })
    }
}

/// Opens a file for good.
#[allow(unsafe_code, reason = "opening a library runs its initialisers")]
fn open_file(name: &Path) -> Result<Handle, String> {
    // SAFETY: NVIDIA's libraries, which these names stand for, may be initialised at any time from any thread.
    unsafe { Handle::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        // The loader's own words say what of the file it cannot use, or what the file needs and does not find.
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })
}

fn open(component: Component, folders: &[PathBuf]) -> Result<Library, String> {
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
                Err(error) => refused = refused.or(Some(format!("{}: {error}", path.display()))),
            }
        }
    }
    let nowhere = || match folders {
        [] => {
            format!("the loader does not find it, and neither {VARIABLE} nor an environment names a folder")
        }
        _ => {
            let all: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            format!("neither the loader finds it nor is it in {}", all.join(", "))
        }
    };
    Err(refused.unwrap_or_else(nowhere))
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
    // SAFETY: the functions have these types in every version of the libraries since CUDA 8 and cuDNN 2 (cuda.h, nvrtc.h,
    // cublasLt.h, cudnn_version.h).
    type One = unsafe extern "C" fn(*mut i32) -> u32;
    type Two = unsafe extern "C" fn(*mut i32, *mut i32) -> u32;
    type Number = unsafe extern "C" fn() -> usize;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the types are right; the functions write the integers they are given pointers to, and need no device.
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

    /// Folders come from the variable first, then from wheels of the active environment, then from the toolkit.
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
            assert!(why.contains("libcudnn.so.9") && !why.contains("neither"), "{why}");
        }
    }
}
