//! Parts that the calls of cuBLASLt and cuDNN have in common.

use crate::api::broken;
use crate::component::Component;
use crate::driver::{LibraryAlgorithm, Reason};
use crate::error::GpuError;
use crate::locate::Libraries;

/// Algorithms that are asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted<'a> {
    /// The best one, by the library's heuristic.
    Best,
    /// Several, the best first.
    All,
    /// This one alone, as it was tuned.
    Tuned(&'a LibraryAlgorithm),
}

/// Reason for which no library computes a call.
pub(crate) enum Refusal {
    /// The library does not do this.
    Unsupported(Reason),
    /// It failed.
    Failed(GpuError),
}

impl Refusal {
    /// A call that did not succeed while it was planned. Heuristics have many statuses for what they do not
    /// do, and nothing has run that could have gone wrong: only an error that has ended the context is a
    /// failure.
    pub(crate) fn of_status(function: &'static str, text: String) -> Refusal {
        match broken() {
            Some(error) => Refusal::Failed(error),
            None => Refusal::Unsupported(Reason::Status { function, text }),
        }
    }
}

/// The error of a library that does not start; `is_full` where it found no memory.
pub(crate) fn unusable(
    component: Component,
    function: &'static str,
    error: String,
    is_full: bool,
) -> GpuError {
    let remedy = || Libraries::get().remedy(component);
    let other = |error| GpuError::Unusable { component, function, error, remedy: remedy() };
    told(function, error, is_full, other)
}

/// The error of a call that failed as it ran; `is_full` where the library found no memory.
pub(crate) fn failed(component: Component, function: &'static str, error: String, is_full: bool) -> GpuError {
    told(function, error, is_full, |error| GpuError::Library { component, function, error })
}

/// Where a kernel has crashed before a call, that is what to tell.
fn told(
    function: &'static str,
    error: String,
    is_full: bool,
    other: impl FnOnce(String) -> GpuError,
) -> GpuError {
    match broken() {
        Some(error) => error,
        None if is_full => GpuError::Full { function, error, held: Vec::new() },
        None => other(error),
    }
}

impl From<GpuError> for Refusal {
    fn from(error: GpuError) -> Refusal {
        Refusal::Failed(error)
    }
}

/// A function that takes something back.
// SAFETY: to be called once, with what the same library made.
type Destroy<T, S> = unsafe fn(*mut T) -> S;

/// Something that a library made and takes back.
#[derive(Debug)]
pub(crate) struct Handle<T, S> {
    pub(crate) pointer: *mut T,
    destroy: Destroy<T, S>,
}

impl<T, S> Handle<T, S> {
    /// Takes what `create` writes; it is given to `destroy` at the end.
    pub(crate) fn new<E>(
        create: impl FnOnce(*mut *mut T) -> Result<(), E>,
        destroy: Destroy<T, S>,
    ) -> Result<Handle<T, S>, E> {
        let mut pointer = std::ptr::null_mut();
        create(&mut pointer)?;
        Ok(Handle { pointer, destroy })
    }
}

impl<T, S> Drop for Handle<T, S> {
    #[allow(unsafe_code, reason = "the libraries are written in C")]
    fn drop(&mut self) {
        // SAFETY: made by the library that takes it back, once. An error has nobody to go to.
        unsafe { (self.destroy)(self.pointer) };
    }
}

/// Opens a library of at least the version that is needed, with these functions.
pub(crate) fn require(component: Component, symbols: &[&'static str]) -> Result<(), GpuError> {
    let library = Libraries::get().require(component)?;
    let major = library.version.as_deref().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match (major, &library.version) {
        (Some(major), Some(version)) if major < component.oldest() => Err(GpuError::Outdated {
            component,
            version: version.clone(),
            remedy: Libraries::get().remedy(component),
        }),
        _ => library.require(symbols),
    }
}
