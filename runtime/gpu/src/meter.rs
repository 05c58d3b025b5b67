//! Memory of a device that is taken, by NVIDIA's management library (NVML). Unlike the driver it needs no context to tell, so
//! that it tells what a context takes.

use std::ffi::{CStr, OsStr};

use cudarc::driver::sys::{self, CUdevice};
use nvml_wrapper::Nvml;

use crate::api::done;
use crate::{Component, Libraries};

/// File name of the library, which comes with the driver.
const FILE: &str = "libnvidia-ml.so.1";

/// A device that is asked.
pub(crate) struct Meter {
    nvml: Nvml,
    /// Where the device is on the bus, by which both libraries know it.
    bus: String,
}

impl Meter {
    /// `None` where the library is not there or does not know the device.
    pub(crate) fn open(device: CUdevice) -> Option<Meter> {
        let bus = bus(device)?;
        // Beside the driver, or where the loader looks.
        let driver = Libraries::get().require(Component::Driver).ok()?;
        let beside = driver.path.with_file_name(FILE);
        let path = if beside.is_file() { beside.as_os_str() } else { OsStr::new(FILE) };
        let nvml = Nvml::builder().lib_path(path).init().ok()?;
        Some(Meter { nvml, bus })
    }

    /// Bytes that are taken, by whomever.
    pub(crate) fn taken(&self) -> Option<u64> {
        Some(self.nvml.device_by_pci_bus_id(self.bus.as_str()).ok()?.memory_info().ok()?.used)
    }
}

#[allow(unsafe_code, reason = "the driver is a C library")]
fn bus(device: CUdevice) -> Option<String> {
    Libraries::get().require(Component::Driver).ok()?.require(&["cuDeviceGetPCIBusId"]).ok()?;
    let mut text = [0u8; 32];
    // SAFETY: the device exists; 32 bytes to write, and the driver ends the text with a zero.
    let status = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 32, device) };
    done("cuDeviceGetPCIBusId", status).ok()?;
    Some(CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned())
}
