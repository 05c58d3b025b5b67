//! Finding CUDA's libraries, without an environment prepared for them.
//!
//! Each library is opened by name first, which asks the dynamic loader (`LD_LIBRARY_PATH`, its cache), and
//! then in the folders of [`Search`], in order. glibc answers a later request for the same name with a
//! library that is already open, so that one opened here by path is the one that the bindings get. Of cuDNN
//! the copy that the process has already, such as PyTorch's, comes before all others. Libraries are never
//! closed, except those that turn out to be broken.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::search::inside;
pub use crate::search::{Search, VARIABLE};
use crate::{Component, GpuError};

/// A library that is open.
#[derive(Debug)]
pub struct Library {
    /// Which.
    pub component: Component,
    /// The path it was opened by; a bare name where the loader knew it.
    pub path: PathBuf,
    /// Its version, where it says one: for the driver that of CUDA it supports.
    pub version: Option<String>,
    /// Advice on what brings another version.
    remedy: String,
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
            Some(symbol) => Err(self.lacks(symbol)),
            None => Ok(()),
        }
    }

    fn lacks(&self, symbol: &'static str) -> GpuError {
        GpuError::Symbol { component: self.component, symbol, remedy: self.remedy.clone() }
    }

    /// A function that the bindings lack.
    ///
    /// # Safety
    /// The function must have the type `T` in every version of the library.
    #[allow(unsafe_code, reason = "looking up a symbol")]
    pub(crate) unsafe fn function<T: Copy>(&self, symbol: &'static str) -> Result<T, GpuError> {
        // SAFETY: as the caller promises. The library stays open.
        let found = unsafe { self.handle.get::<T>(symbol.as_bytes()) };
        found.map(|f| *f).map_err(|_| self.lacks(symbol))
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
    /// The library is there, but not what it opens by itself.
    Incomplete {
        /// The library.
        path: PathBuf,
        /// File name of the missing part.
        part: &'static str,
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
            NotFound::Incomplete { path, part, error } => write!(
                f,
                "{} passes calls on to other libraries, and {part} does not open: {error}; install the whole \
                 package again",
                path.display()
            ),
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
    /// Major version of CUDA that the driver supports.
    cuda: Option<u32>,
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
        let mut cuda = None;
        let each = Component::ALL.map(|component| {
            let found = open(component, &search.folders, cuda);
            // The driver is the first.
            if let (Component::Driver, Ok(driver)) = (component, &found) {
                cuda = driver.version.as_deref().and_then(major);
            }
            found
        });
        Libraries { each, search, cuda }
    }

    /// Advice on what brings a library that the driver of this machine can use.
    pub fn remedy(&self, component: Component) -> String {
        component.remedy(self.cuda)
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
        let missing = |why: &NotFound| GpuError::Missing {
            component,
            why: why.to_string(),
            remedy: self.remedy(component),
        };
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

/// The first number in a version.
fn major(version: &str) -> Option<u32> {
    version.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?.parse().ok()
}

/// Opens a library; `cuda` is the major version of CUDA that the driver supports, where that is known.
fn open(component: Component, folders: &[PathBuf], cuda: Option<u32>) -> Result<Library, NotFound> {
    // Of a library with parts the process must have one copy: the parts are found by name.
    let open = if component.parts().is_empty() { None } else { mapped(component) };
    if let Some(path) = open
        && let Ok(handle) = open_file(&path)
    {
        return whole(component, path, handle, cuda);
    }
    for name in component.files().iter().map(Path::new) {
        if let Ok(handle) = open_file(name) {
            // The bindings open it by this name, too: no other can take its place.
            return whole(component, name.to_owned(), handle, cuda);
        }
    }
    let mut refused = None;
    for path in files(component, folders, cuda) {
        if component == Component::Nvrtc {
            path.parent().into_iter().for_each(open_builtins);
        }
        let opened = open_file(&path);
        let opened = opened.map_err(|error| NotFound::Refused { path: path.clone(), error: words(&error) });
        match opened.and_then(|handle| whole(component, path, handle, cuda)) {
            Ok(library) => return Ok(library),
            Err(why) => {
                refused.get_or_insert(why);
            }
        }
    }
    Err(refused.unwrap_or_else(|| NotFound::Nowhere { folders: folders.to_vec() }))
}

/// The library's files in these folders, in order, with those last that are too new for the driver.
fn files(component: Component, folders: &[PathBuf], cuda: Option<u32>) -> Vec<PathBuf> {
    let all = folders.iter().flat_map(|folder| component.files().iter().map(|name| folder.join(name)));
    let mut all: Vec<PathBuf> = all.filter(|path| path.exists()).collect();
    if component == Component::Nvrtc || component == Component::CublasLt {
        let is_newer = |path: &PathBuf| file_major(path).zip(cuda).is_some_and(|(file, cuda)| file > cuda);
        all.sort_by_key(is_newer);
    }
    all
}

/// The major version in a file's name, or in that of the file that it links to, such as 12 of
/// `libnvrtc.so.12`.
fn file_major(path: &Path) -> Option<u32> {
    let path = std::fs::canonicalize(path).ok()?;
    let name = path.file_name()?.to_string_lossy();
    name.split_once(".so.").and_then(|(_, version)| major(version))
}

/// A library with all that it opens by itself, which is open from then on.
fn whole(
    component: Component,
    path: PathBuf,
    handle: Handle,
    cuda: Option<u32>,
) -> Result<Library, NotFound> {
    let mut known = None;
    if !component.parts().is_empty() {
        let file = if path.is_absolute() { Some(path.clone()) } else { mapped(component) };
        let file = file.unwrap_or_else(|| path.clone());
        // Versions before it have other parts, and functions that end the process without them.
        known = file_major(&file).filter(|major| *major < component.oldest());
        if known.is_none() {
            open_parts(component, &file)?;
        }
    }
    let version = known.map_or_else(|| version(component, &handle), |old| Some(old.to_string()));
    Ok(Library { component, path, version, remedy: component.remedy(cuda), handle })
}

/// The file of a library that the loader has found by name.
fn mapped(component: Component) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps.lines().filter_map(|line| line.get(line.find('/')?..)).map(Path::new);
    let is_it = |path: &&Path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(component.library()))
    };
    paths.rfind(is_it).map(Path::to_owned)
}

/// Opens what a library opens by itself: beside it, beside the file that it links to, or where the loader
/// finds it.
fn open_parts(component: Component, library: &Path) -> Result<(), NotFound> {
    let linked = std::fs::canonicalize(library).ok();
    let folders = [Some(library), linked.as_deref()].into_iter().flatten().filter_map(Path::parent);
    for part in component.parts() {
        let mut beside = folders.clone().map(|folder| folder.join(part)).filter(|path| path.exists());
        let file = beside.next().unwrap_or_else(|| part.into());
        let opened = open_file(&file).map_err(|error| NotFound::Incomplete {
            path: library.to_owned(),
            part,
            error: words(&error),
        })?;
        // Never closed.
        std::mem::forget(opened);
    }
    Ok(())
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

    /// A file that is no library is refused with its path and the loader's reason.
    #[test]
    fn a_damaged_library_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libcudnn.so.9"), "not a library").unwrap();
        let error = open(Component::Cudnn, &[folder.path().to_owned()], None);
        // A machine may have a cuDNN of its own.
        if let Err(why) = error {
            let why = why.to_string();
            assert!(why.contains("libcudnn.so.9") && !why.contains("neither"), "{why}");
        }
    }

    /// Files that the driver can use come first, whatever their folder, and otherwise the first folder.
    #[test]
    fn files_that_the_driver_can_use_come_first() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["new", "old"].map(|name| root.path().join(name));
        folders.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let [new, old] = [("libnvrtc.so.13", &folders[0]), ("libnvrtc.so.12", &folders[1])]
            .map(|(name, folder)| folder.join(name));
        [&new, &old].into_iter().for_each(|file| std::fs::write(file, "").unwrap());
        let files = |cuda| files(Component::Nvrtc, &folders, cuda);
        assert_eq!(files(Some(12)), [old.clone(), new.clone()]);
        for newer in [None, Some(13)] {
            assert_eq!(files(newer), [new.clone(), old.clone()]);
        }
    }

    /// Advice names wheels of the driver's CUDA.
    #[test]
    fn wheels_fit_the_driver() {
        for component in [Component::Nvrtc, Component::CublasLt, Component::Cudnn] {
            assert!(component.remedy(major("CUDA 12.8")).contains("-cu12,"), "{component:?}");
            assert!(!component.remedy(major("CUDA 13.0")).contains("cu12"), "{component:?}");
        }
    }
}
