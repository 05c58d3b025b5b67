//! Listing of devices.

use std::ffi::CStr;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute};

use crate::api::{done, free, no_device, opened, start};
use crate::meter::{Meter, holders};
use crate::{Arch, GpuError};

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Its number in this process.
    pub ordinal: usize,
    /// The maker's name for it.
    pub name: String,
    /// Its architecture.
    pub arch: Arch,
    /// Bytes of its memory.
    pub total_bytes: u64,
    /// Bytes that a program could have, once its context is made; `None` where no context can be made now.
    pub free_bytes: Option<u64>,
    /// Multiprocessors.
    pub processors: u32,
    /// Engines that copy while kernels run: with one, copies in the two directions take turns.
    pub copy_engines: u32,
}

/// All GPUs, in the driver's order.
///
/// # Errors
/// Those of the driver where it cannot be used, [`GpuError::NoDevice`] without a device.
pub fn devices() -> Result<Vec<DeviceInfo>, GpuError> {
    start()?;
    let count = count()?;
    if count == 0 {
        return Err(no_device());
    }
    let devices = (0..count).map(|ordinal| info(usize::try_from(ordinal).unwrap_or(0), handle(ordinal)?));
    devices.collect()
}

/// Number of devices.
#[allow(unsafe_code, reason = "the driver is a C library")]
fn count() -> Result<i32, GpuError> {
    let mut count = 0;
    // SAFETY: the driver is initialised; an integer to write.
    done("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(count)
}

/// The device with this number.
///
/// # Errors
/// [`GpuError::NoDevice`] or [`GpuError::NoSuchDevice`] without it.
pub(crate) fn find(ordinal: usize) -> Result<CUdevice, GpuError> {
    let count = usize::try_from(count()?).unwrap_or(0);
    match i32::try_from(ordinal) {
        _ if count == 0 => Err(no_device()),
        Ok(number) if ordinal < count => handle(number),
        _ => Err(GpuError::NoSuchDevice { ordinal, count }),
    }
}

/// The driver's handle of a device.
#[allow(unsafe_code, reason = "the driver is a C library")]
fn handle(ordinal: i32) -> Result<CUdevice, GpuError> {
    let mut device = 0;
    // SAFETY: the driver is initialised; a handle to write.
    done("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal) })?;
    Ok(device)
}

#[allow(unsafe_code, reason = "the driver is a C library")]
pub(crate) fn info(ordinal: usize, device: CUdevice) -> Result<DeviceInfo, GpuError> {
    let attribute = |which: Attribute| {
        let mut value = 0;
        // SAFETY: the device exists; an integer to write.
        done("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let mut name = [0u8; 256];
    // SAFETY: the device exists; 256 bytes to write, and the driver ends the text with a zero.
    done("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), 256, device) })?;
    let mut total = 0;
    // SAFETY: the device exists; an integer to write.
    done("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut total, device) })?;
    Ok(DeviceInfo {
        ordinal,
        name: CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned(),
        arch: Arch {
            major: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        },
        total_bytes: total as u64,
        free_bytes: Context::retain(device).and_then(|_context| free()).ok().map(|(free, _)| free),
        processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        copy_engines: attribute(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
    })
}

/// The primary context of a device, current in the thread that made it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: CUdevice,
    /// Bytes of the device that it took when it was made; `None` where that was not measured.
    pub(crate) bytes: Option<u64>,
}

impl Context {
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub(crate) fn retain(device: CUdevice) -> Result<Context, GpuError> {
        let mut context = null_mut();
        // SAFETY: the device exists; a handle to write.
        let made = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) };
        opened("cuDevicePrimaryCtxRetain", made).map_err(|error| match error {
            GpuError::Full { function, error, .. } => {
                GpuError::Full { function, error, held: holders(device) }
            }
            error => error,
        })?;
        let retained = Context { device, bytes: None };
        // SAFETY: the context was retained.
        done("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })?;
        Ok(retained)
    }
}

impl Context {
    /// [`Context::retain`], with what the context takes. What other programs take or give back meanwhile is
    /// counted in.
    pub(crate) fn measured(device: CUdevice) -> Result<Context, GpuError> {
        let meter = Meter::open(device);
        let taken = || meter.as_ref()?.taken();
        let before = taken();
        let mut context = Context::retain(device)?;
        context.bytes = before.zip(taken()).map(|(before, after)| after.saturating_sub(before));
        Ok(context)
    }
}

impl Drop for Context {
    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn drop(&mut self) {
        // SAFETY: retained once, and released once; nothing is left to do where the device is lost.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
