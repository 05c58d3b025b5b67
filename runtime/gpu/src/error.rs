//! Errors of a GPU and its libraries.

use std::fmt;

use memc_ir::counted;

use crate::component::Component;
use crate::nvrtc::Arch;

/// Error of a GPU or one of its libraries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GpuError {
    /// A library is not there, or does not open.
    Missing {
        /// Which.
        component: Component,
        /// Outcome of looking for it.
        why: String,
        /// Advice on what brings it.
        remedy: String,
    },
    /// A library lacks a function that is needed: it is too old.
    Symbol {
        /// Which library.
        component: Component,
        /// Name of the function.
        symbol: &'static str,
        /// Advice on what brings another version.
        remedy: String,
    },
    /// A library other than the driver is too old.
    Outdated {
        /// Which.
        component: Component,
        /// Its version.
        version: String,
        /// Advice on what brings another version.
        remedy: String,
    },
    /// A library other than the driver is there and does not start.
    Unusable {
        /// Which.
        component: Component,
        /// Name of the function.
        function: &'static str,
        /// The library's words.
        error: String,
        /// Advice on what brings another version.
        remedy: String,
    },
    /// The driver is too old.
    Old {
        /// The version of CUDA that it supports.
        supports: String,
    },
    /// There is a driver, but no device.
    NoDevice {
        /// Value of `CUDA_VISIBLE_DEVICES`, where it is set.
        visible: Option<String>,
    },
    /// There is no device with this number.
    NoSuchDevice {
        /// The number.
        ordinal: usize,
        /// Number of devices.
        count: usize,
    },
    /// The driver does not let this process use a device.
    Denied {
        /// Name of the function.
        function: &'static str,
        /// The driver's words.
        error: String,
        /// Advice.
        remedy: &'static str,
    },
    /// The compiler does not know a device that is so old.
    Unknown {
        /// The device's architecture.
        arch: Arch,
        /// Version of the compiler.
        compiler: String,
        /// The oldest architecture that it knows.
        oldest: Arch,
    },
    /// A kernel did what it must not, such as touching an address that is not its own. The device's memory is
    /// lost to this process.
    Crash {
        /// The driver's words.
        error: String,
    },
    /// The device failed or went away.
    Lost {
        /// The driver's words.
        error: String,
    },
    /// Memory was refused.
    Memory {
        /// Purpose of the memory.
        what: &'static str,
        /// Bytes asked for.
        needs: u64,
        /// Bytes of the device that are free.
        free: u64,
        /// All bytes of the device.
        total: u64,
        /// Their owners, as far as they are known.
        held: Vec<String>,
        /// The driver's words.
        error: String,
    },
    /// The system refused memory of the host.
    HostMemory {
        /// Bytes asked for.
        needs: u64,
        /// The system's words.
        error: String,
    },
    /// The driver or a library found no memory for itself.
    Full {
        /// Name of the function.
        function: &'static str,
        /// The words of the driver or the library.
        error: String,
        /// Owners of the memory, as far as they are known.
        held: Vec<String>,
    },
    /// A place is not within its arena, or a number not within its table.
    Bounds {
        /// The first byte or number.
        start: usize,
        /// Number of bytes.
        len: usize,
        /// The size of the arena or table.
        arena: usize,
    },
    /// The driver does not take what the compiler made.
    Refused {
        /// Version of the compiler.
        compiler: String,
        /// The version of CUDA that the driver supports.
        supports: String,
        /// The driver's words.
        error: String,
    },
    /// Kernel text does not compile.
    Compile {
        /// Message of the compiler, or its beginning.
        log: String,
    },
    /// A library that a program can do without failed.
    Library {
        /// Which.
        component: Component,
        /// Name of the function.
        function: &'static str,
        /// The library's words.
        error: String,
    },
    /// A function of a library returned an error.
    Call {
        /// Name of the function.
        function: &'static str,
        /// The library's name of the error.
        error: String,
    },
}

impl GpuError {
    /// The library that is not there, or cannot be used, where this is what the error says.
    pub fn lacks(&self) -> Option<Component> {
        match self {
            GpuError::Missing { component, .. }
            | GpuError::Symbol { component, .. }
            | GpuError::Outdated { component, .. }
            | GpuError::Unusable { component, .. } => Some(*component),
            _ => None,
        }
    }

    /// The words of the driver or a library, where a function of theirs failed; otherwise all that there is
    /// to say.
    pub(crate) fn words(&self) -> String {
        match self {
            GpuError::Call { function, error }
            | GpuError::Library { function, error, .. }
            | GpuError::Full { function, error, .. } => format!("{function} failed: {error}"),
            other => other.to_string(),
        }
    }

    /// Text of an error about the driver's companions.
    fn about_library(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuError::Missing { component, why, remedy } => {
                write!(f, "{} was not found ({why}); {remedy}", component.library())
            }
            GpuError::Symbol { component, symbol, remedy } => write!(
                f,
                "{} has no function `{symbol}`: it is older than version {}; {remedy}",
                component.library(),
                component.oldest(),
            ),
            GpuError::Outdated { component, version, remedy } => write!(
                f,
                "{} is of version {version}, and {} is needed; {remedy}",
                component.library(),
                component.oldest(),
            ),
            GpuError::Unusable { component, function, error, remedy } => write!(
                f,
                "{} is there and does not start ({function} failed: {error}); where its version does not fit \
                 the driver, {remedy}",
                component.name(),
            ),
            GpuError::Unknown { arch, compiler, oldest } => {
                let remedy = match arch.major {
                    5..=7 => {
                        "install the wheel nvidia-cuda-nvrtc-cu12: CUDA 12 is the last that compiles for it"
                    }
                    _ => "no version of CUDA that memrun works with compiles for it; use a newer GPU",
                };
                write!(f, "the GPU is {arch}, and NVRTC {compiler} compiles for {oldest} and newer; {remedy}")
            }
            GpuError::Refused { compiler, supports, error } => write!(
                f,
                "the driver, for {supports}, refuses what NVRTC {compiler} compiled ({error}); where NVRTC \
                 is the newer one, install the wheel for the driver's CUDA, which for CUDA 12 is \
                 nvidia-cuda-nvrtc-cu12, or a newer driver"
            ),
            GpuError::Compile { log } => write!(f, "NVRTC refuses the kernels of this program:\n{log}"),
            GpuError::Library { component, function, error } => {
                let name = component.name();
                write!(f, "{function} failed: {error}; --no-libraries does without {name}, more slowly")
            }
            _ => Ok(()),
        }
    }

    /// Text of an error about memory.
    fn about_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuError::HostMemory { needs, error } => write!(
                f,
                "the host arena of {needs} bytes was refused ({error}); free host memory, or compile for a \
                 larger --gpu-mem, which swaps less"
            ),
            GpuError::Full { function, error, held } => {
                let held = match held.as_slice() {
                    [] => "nvidia-smi lists who has it".to_owned(),
                    held => format!("it is held by {}", held.join(", ")),
                };
                write!(
                    f,
                    "the GPU's memory is full ({function} failed: {error}): {held}. The driver, libraries \
                     and code take more than the plan's reserve leaves them; free memory, compile for a \
                     smaller --gpu-mem, or with a profile that `memrun profile` measures here, which knows \
                     what they take"
                )
            }
            GpuError::Memory { what, needs, free, total, held, error } => {
                let rest = match held.as_slice() {
                    [] => "the rest is held by this process's context and by other processes, \
                           which nvidia-smi lists"
                        .into(),
                    held => format!("memory is held by {}", held.join(", ")),
                };
                write!(
                    f,
                    "{what} of {needs} bytes was refused ({error}); of the GPU's {total} bytes {free} are \
                     free, and {rest}"
                )
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuError::Old { supports } => {
                write!(f, "the driver supports CUDA {supports}, and 12.0 is needed; install a newer driver")
            }
            GpuError::NoDevice { visible: Some(visible) } => write!(
                f,
                "there is a driver but no GPU that CUDA_VISIBLE_DEVICES={visible} leaves visible; unset it, \
                 or name a GPU or MIG instance that `nvidia-smi -L` lists"
            ),
            GpuError::NoDevice { visible: None } => f.write_str(
                "there is a driver but no GPU; check that the container is given one, and where the GPU is \
                 cut by MIG, that it has an instance (`nvidia-smi -L`)",
            ),
            GpuError::NoSuchDevice { ordinal, count } => write!(
                f,
                "there is no cuda:{ordinal}: this process sees {}; `memrun devices` lists what it sees, and \
                 CUDA_VISIBLE_DEVICES may hide others",
                counted(*count as u64, "GPU"),
            ),
            GpuError::Denied { function, error, remedy } => {
                write!(f, "the driver refuses the GPU ({function} failed: {error}); {remedy}")
            }
            GpuError::Crash { error } => {
                write!(
                    f,
                    "a kernel failed ({error}); nothing that this process computed since can be trusted"
                )
            }
            GpuError::Lost { error } => {
                write!(f, "the GPU failed or is gone ({error}); see the system's log, and reset it")
            }
            GpuError::Bounds { start, len, arena } => {
                write!(f, "{len} from {start} on are not within {arena}")
            }
            GpuError::Missing { .. }
            | GpuError::Symbol { .. }
            | GpuError::Outdated { .. }
            | GpuError::Unusable { .. }
            | GpuError::Unknown { .. }
            | GpuError::Refused { .. }
            | GpuError::Compile { .. }
            | GpuError::Library { .. } => self.about_library(f),
            GpuError::Memory { .. } | GpuError::HostMemory { .. } | GpuError::Full { .. } => {
                self.about_memory(f)
            }
            GpuError::Call { function, error } => write!(f, "{function} failed: {error}"),
        }
    }
}

impl std::error::Error for GpuError {}
