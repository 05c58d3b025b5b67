//! The program of a device: texts that are compiled side by side, or were before, and loaded one by one.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::OnceLock;

use cudarc::driver::sys;
use memc_cuda::kernel_names;

use crate::api::done;
use crate::cache::Cache;
use crate::threads::side_by_side;
use crate::{Arch, Component, GpuError, Libraries, Nvrtc};

/// Modules that are loaded, and the one that each kernel is in.
#[derive(Debug, Default)]
pub(super) struct Modules {
    loaded: Vec<sys::CUmodule>,
    of: BTreeMap<String, sys::CUmodule>,
}

impl Modules {
    /// Compiles what the user's cache does not have, and loads all.
    pub(super) fn build(&mut self, texts: &[String], arch: Arch) -> Result<(), GpuError> {
        let nvrtc = Nvrtc::find()?;
        let target = nvrtc.target(arch)?;
        let (options, cache) = (nvrtc.options(target), Cache::of_user());
        let image = |text: &str| -> Result<Vec<u8>, GpuError> {
            if let Some(image) = cache.as_ref().and_then(|cache| cache.get(text, &options)) {
                return Ok(image);
            }
            let image = nvrtc.compile(text, target)?;
            // Without a cache the next run compiles again, and computes the same.
            let _ = cache.as_ref().map(|cache| cache.put(text, &options, &image));
            Ok(image)
        };
        let images: Vec<OnceLock<_>> = texts.iter().map(|_| OnceLock::new()).collect();
        side_by_side(texts.iter().zip(&images), texts.len(), |(text, place)| {
            place.get_or_init(|| image(text));
        });
        let images = texts.iter().zip(images.into_iter().map(OnceLock::into_inner));
        let mut images = images.filter_map(|(text, image)| Some((text, image?)));
        images.try_for_each(|(text, image)| self.load(text, &image?, &nvrtc))
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn load(&mut self, text: &str, image: &[u8], nvrtc: &Nvrtc) -> Result<(), GpuError> {
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
        self.loaded.push(module);
        self.of.extend(kernel_names(text).map(|name| (name.to_owned(), module)));
        Ok(())
    }

    /// A kernel by name.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub(super) fn function(&self, name: &str) -> Result<sys::CUfunction, GpuError> {
        let unknown =
            || GpuError::Call { function: "cuModuleGetFunction", error: format!("no kernel {name}") };
        let text = CString::new(name).map_err(|_| unknown())?;
        // Not looked for in each: compute-sanitizer counts a call that finds nothing as an error.
        let module = self.of.get(name).ok_or_else(unknown)?;
        let mut function = null_mut();
        // SAFETY: the module is loaded; a handle to write and a terminated text.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, *module, text.as_ptr()) };
        done("cuModuleGetFunction", found)?;
        Ok(function)
    }

    /// Unloads all; nothing may be running.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub(super) fn unload(&mut self) {
        self.of.clear();
        for module in self.loaded.drain(..) {
            // SAFETY: loaded, and unloaded once. An error has nobody to go to.
            unsafe { sys::cuModuleUnload(module) };
        }
    }
}
