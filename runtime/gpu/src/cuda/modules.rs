//! The program of a device: texts that are compiled side by side, or were before, and loaded one by one.

use std::ffi::CString;
use std::num::NonZero;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use cudarc::driver::sys::{self, CUresult};

use crate::api::done;
use crate::cache::Cache;
use crate::{Arch, Component, GpuError, Libraries, Nvrtc};

/// Modules that are loaded.
#[derive(Debug, Default)]
pub(super) struct Modules(Vec<sys::CUmodule>);

impl Modules {
    /// Compiles what the user's cache does not have, and loads all.
    pub(super) fn build(&mut self, texts: &[String], arch: Arch) -> Result<(), GpuError> {
        let nvrtc = Nvrtc::find()?;
        let target = nvrtc.target(arch)?;
        let (options, cache) = (nvrtc.options(target), Cache::of_user());
        let image = |text: &String| -> Result<Vec<u8>, GpuError> {
            if let Some(image) = cache.as_ref().and_then(|cache| cache.get(text, &options)) {
                return Ok(image);
            }
            let image = nvrtc.compile(text, target)?;
            // Without a cache the next run compiles again, and computes the same.
            let _ = cache.as_ref().map(|cache| cache.put(text, &options, &image));
            Ok(image)
        };
        side_by_side(texts, image).into_iter().try_for_each(|image| self.load(&image?, &nvrtc))
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn load(&mut self, image: &[u8], nvrtc: &Nvrtc) -> Result<(), GpuError> {
        let mut module = null_mut();
        // SAFETY: the image is machine code or text from the compiler, whole by its hash where it comes from
        // the cache.
        let result = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        done("cuModuleLoadData", result).map_err(|error| match error {
            GpuError::Call { .. } => {
                let driver = Libraries::get().require(Component::Driver).ok();
                let supports = driver.and_then(|driver| driver.version.clone()).unwrap_or_default();
                GpuError::Refused { compiler: nvrtc.version(), supports, error: error.words() }
            }
            other => other,
        })?;
        self.0.push(module);
        Ok(())
    }

    /// A kernel by name.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub(super) fn function(&self, name: &str) -> Result<sys::CUfunction, GpuError> {
        let unknown =
            || GpuError::Call { function: "cuModuleGetFunction", error: format!("no kernel {name}") };
        let text = CString::new(name).map_err(|_| unknown())?;
        for module in &self.0 {
            let mut function = null_mut();
            // SAFETY: the module is loaded; a handle to write and a terminated text.
            match unsafe { sys::cuModuleGetFunction(&mut function, *module, text.as_ptr()) } {
                CUresult::CUDA_ERROR_NOT_FOUND => {}
                result => {
                    done("cuModuleGetFunction", result)?;
                    return Ok(function);
                }
            }
        }
        Err(unknown())
    }

    /// Unloads all; nothing may be running.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub(super) fn unload(&mut self) {
        for module in self.0.drain(..) {
            // SAFETY: loaded, and unloaded once. An error has nobody to go to.
            unsafe { sys::cuModuleUnload(module) };
        }
    }
}

/// `f` of every item, in the items' order, by as many threads as the machine has.
fn side_by_side<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            let result = f(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without further threads this one does it all.
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::side_by_side;

    #[test]
    fn results_are_in_order() {
        let items: Vec<usize> = (0..100).collect();
        assert_eq!(side_by_side(&items, |i| i * i), items.iter().map(|i| i * i).collect::<Vec<_>>());
        assert!(side_by_side(&[] as &[usize], |i| *i).is_empty());
    }
}
