//! Memory of a device that is taken, and by whom, by NVIDIA's management library (NVML). Unlike the driver it
//! needs no context to tell, so that it tells what a context takes.

use std::ffi::{CStr, OsStr};

use cudarc::driver::sys::{self, CUdevice};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use crate::api::{done, free};
use crate::{Component, GpuError, Libraries};

/// File name of the library, which comes with the driver.
const FILE: &str = "libnvidia-ml.so.1";

/// A device that is asked.
pub(crate) struct Meter {
    nvml: Nvml,
    /// Position of the device on the bus, by which both libraries know it.
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

    /// Programs with the memory that they have, for people, the largest first. Those that cannot be seen from
    /// here, as from within a container, are not told.
    fn holders(&self) -> Option<Vec<String>> {
        let device = self.nvml.device_by_pci_bus_id(self.bus.as_str()).ok()?;
        let bytes = |process: &ProcessInfo| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        let mut all = device.running_compute_processes().ok()?;
        all.sort_by_key(|process| std::cmp::Reverse(bytes(process)));
        let text = |process: &ProcessInfo| {
            let name = match process.pid {
                own if own == std::process::id() => " (this one)".to_owned(),
                other => match std::fs::read_to_string(format!("/proc/{other}/comm")) {
                    Ok(name) => format!(" ({})", name.trim_end()),
                    Err(_) => String::new(),
                },
            };
            let has = bytes(process).map_or(String::new(), |bytes| format!(" {bytes} bytes"));
            format!("process {}{name}{has}", process.pid)
        };
        Some(all.iter().map(text).collect())
    }
}

/// Programs that have memory of a device, as far as they are known.
pub(crate) fn holders(device: CUdevice) -> Vec<String> {
    Meter::open(device).and_then(|meter| meter.holders()).unwrap_or_default()
}

/// The error for memory of a device that was refused, with who has it.
pub(crate) fn refused(device: CUdevice, what: &'static str, needs: usize, error: &GpuError) -> GpuError {
    let (free, total) = free().unwrap_or_default();
    let held = holders(device);
    GpuError::Memory { what, needs: needs as u64, free, total, held, error: error.words() }
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
