//! `memrun devices`: the devices of this machine, the libraries found, and the cost of those that are
//! missing.

use std::fmt::Write;

use crate::available;
use memc_gpu::{DeviceInfo, GpuError, Libraries, Status, devices};
use memc_ir::Bytes;
use serde_json::{Value, json};

/// The text to print, lines ended; with `json` one object.
pub(crate) fn describe(json: bool) -> String {
    let (libraries, gpus) = (Libraries::get(), devices());
    if json {
        return format!("{:#}\n", object(libraries, &gpus));
    }
    let mut text = String::from("devices\n");
    let _ = writeln!(text, "  {:<8} {}", "cpu", cpu_line());
    match &gpus {
        Ok(gpus) => gpus.iter().for_each(|gpu| {
            let _ = writeln!(text, "  {:<8} {}", format!("cuda:{}", gpu.ordinal), gpu_line(gpu));
        }),
        Err(why) => {
            let _ = writeln!(text, "  {:<8} none: {why}", "cuda");
        }
    }
    text.push_str("libraries\n");
    libraries.status().for_each(|status| {
        let _ = writeln!(text, "  {:<8} {}", status.component.name(), library_line(libraries, &status));
    });
    text
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn cpu_line() -> String {
    let memory = available().map(|bytes| format!(", {} available", Bytes(bytes))).unwrap_or_default();
    format!("{} threads{memory}", threads())
}

fn gpu_line(gpu: &DeviceInfo) -> String {
    let free = gpu.free_bytes.map(|free| format!("{} free of ", Bytes(free))).unwrap_or_default();
    let turns = if gpu.copy_engines == 1 { " (copies in the two directions take turns)" } else { "" };
    format!(
        "{}, {}, {free}{}, {} multiprocessors, copy engines: {}{turns}",
        gpu.name,
        gpu.arch,
        Bytes(gpu.total_bytes),
        gpu.processors,
        gpu.copy_engines
    )
}

fn library_line(libraries: &Libraries, status: &Status) -> String {
    match status.found {
        Ok(library) => {
            let version = library.version.as_deref().unwrap_or("unknown version");
            format!("{version}, {}", library.path.display())
        }
        Err(why) => {
            let component = status.component;
            format!("missing: {}; {} ({why})", component.absence(), libraries.remedy(component))
        }
    }
}

fn object(libraries: &Libraries, gpus: &Result<Vec<DeviceInfo>, GpuError>) -> Value {
    let gpu = |gpu: &DeviceInfo| {
        json!({
            "device": format!("cuda:{}", gpu.ordinal),
            "name": gpu.name,
            "arch": gpu.arch.to_string(),
            "memory_bytes": gpu.total_bytes,
            "free_bytes": gpu.free_bytes,
            "processors": gpu.processors,
            "copy_engines": gpu.copy_engines,
        })
    };
    let library = |status: Status| {
        let component = status.component;
        match status.found {
            Ok(library) => json!({
                "library": component.name(),
                "found": true,
                "version": library.version,
                "path": library.path.to_string_lossy(),
            }),
            Err(why) => json!({
                "library": component.name(),
                "found": false,
                "why": why.to_string(),
                "costs": component.absence(),
                "remedy": libraries.remedy(component),
            }),
        }
    };
    json!({
        "cpu": { "threads": threads(), "available_bytes": available() },
        "gpus": gpus.iter().flatten().map(gpu).collect::<Vec<_>>(),
        "no_gpu_because": gpus.as_ref().err().map(ToString::to_string),
        "libraries": libraries.status().map(library).collect::<Vec<_>>(),
        "searched": libraries.search.folders.iter().map(|f| f.to_string_lossy()).collect::<Vec<_>>(),
    })
}
