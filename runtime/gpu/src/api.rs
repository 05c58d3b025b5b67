//! The driver's functions, checked before the first call, and its errors.

use std::ffi::{CStr, c_char};
use std::ptr::null;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use crate::{Component, GpuError, Libraries};

/// Functions that are called.
const SYMBOLS: &[&str] = &[
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuMemGetInfo_v2",
];

/// The oldest driver that works, as the version of CUDA it supports.
const OLDEST: i32 = 12_000;

/// The driver's two texts for an error.
#[allow(unsafe_code, reason = "the driver is a C library")]
fn text(result: CUresult) -> String {
    let (mut name, mut meaning) = (null(), null());
    // SAFETY: two pointers to write; the driver writes pointers to constant texts, or leaves null.
    unsafe {
        sys::cuGetErrorName(result, &mut name);
        sys::cuGetErrorString(result, &mut meaning);
    }
    let text = |pointer: *const c_char| {
        if pointer.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: a constant text of the driver.
        unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
    };
    format!("{}, {}", text(name), text(meaning))
}

/// Result of a function of the driver.
pub(crate) fn done(function: &'static str, result: CUresult) -> Result<(), GpuError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUresult::CUDA_ERROR_INVALID_PC
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUresult::CUDA_ERROR_ASSERT
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT => Err(GpuError::Crash { error: text(result) }),
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
        | CUresult::CUDA_ERROR_EXTERNAL_DEVICE => Err(GpuError::Lost { error: text(result) }),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Err(GpuError::Full { function, error: text(result), held: Vec::new() })
        }
        _ => Err(GpuError::Call { function, error: text(result) }),
    }
}

/// [`done`] of a function that opens the driver or a device.
pub(crate) fn opened(function: &'static str, result: CUresult) -> Result<(), GpuError> {
    denied(function, result).map_or_else(|| done(function, result), Err)
}

/// The error where the machine, not the program, is why a device cannot be used.
fn denied(function: &'static str, result: CUresult) -> Option<GpuError> {
    let remedy = match result {
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "the toolkit's stub was found instead of the driver: take the folder `stubs` out of \
             LD_LIBRARY_PATH, and install NVIDIA's driver"
        }
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
            "the machine is still starting, or a service is not running: start nvidia-fabricmanager where \
             the GPUs are linked by NVSwitch"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "the driver's library is of another version than the kernel's module: reboot after an update, or \
             give the container the libraries of the host"
        }
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "a compatibility package of CUDA was found that this GPU does not take: take its folder \
             `compat` out of LD_LIBRARY_PATH"
        }
        CUresult::CUDA_ERROR_OPERATING_SYSTEM
        | CUresult::CUDA_ERROR_NOT_PERMITTED
        | CUresult::CUDA_ERROR_UNKNOWN => {
            "check that this user may read and write /dev/nvidia*, that the container is given these files, \
             and that nvidia-smi works"
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "another process has this GPU, whose compute mode admits one: wait for it, or set the mode with \
             `nvidia-smi -c 0`"
        }
        _ => return None,
    };
    Some(GpuError::Denied { function, error: text(result), remedy })
}

/// Error of a command that has ended the context, if there is one. Libraries report such an error in words of
/// their own.
#[allow(unsafe_code, reason = "the driver is a C library")]
pub(crate) fn broken() -> Option<GpuError> {
    // SAFETY: has no conditions; a context is current.
    match done("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() }) {
        Err(error @ (GpuError::Crash { .. } | GpuError::Lost { .. })) => Some(error),
        _ => None,
    }
}

/// Opens and initialises the driver, once.
///
/// # Errors
/// [`GpuError::Missing`], [`GpuError::Symbol`] or [`GpuError::Old`] without a driver that can be used, and
/// [`GpuError::NoDevice`] where it finds no device.
pub(crate) fn start() -> Result<(), GpuError> {
    static STARTED: OnceLock<Result<(), GpuError>> = OnceLock::new();
    STARTED.get_or_init(initialise).clone()
}

#[allow(unsafe_code, reason = "the driver is a C library")]
fn initialise() -> Result<(), GpuError> {
    Libraries::get().require(Component::Driver)?.require(SYMBOLS)?;
    let mut version = 0;
    // SAFETY: an integer to write.
    done("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    if version < OLDEST {
        return Err(GpuError::Old { supports: format!("{}.{}", version / 1000, version % 1000 / 10) });
    }
    // SAFETY: has no conditions.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_INVALID_DEVICE => Err(no_device()),
        result => opened("cuInit", result),
    }
}

/// The error without a device.
#[allow(clippy::disallowed_methods, reason = "the environment may hide devices; no plan depends on it")]
pub(crate) fn no_device() -> GpuError {
    let visible = std::env::var_os("CUDA_VISIBLE_DEVICES");
    GpuError::NoDevice { visible: visible.map(|visible| format!("{:?}", visible.to_string_lossy())) }
}

/// Free and all bytes of the current context's device.
#[allow(unsafe_code, reason = "the driver is a C library")]
pub(crate) fn free() -> Result<(u64, u64), GpuError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: two integers to write.
    done("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok((free as u64, total as u64))
}
