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
        _ => Err(GpuError::Call { function, error: text(result) }),
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
        CUresult::CUDA_ERROR_NO_DEVICE => Err(GpuError::NoDevice),
        result => done("cuInit", result),
    }
}

/// Free and all bytes of the current context's device.
#[allow(unsafe_code, reason = "the driver is a C library")]
pub(crate) fn free() -> Result<(u64, u64), GpuError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: two integers to write.
    done("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok((free as u64, total as u64))
}
