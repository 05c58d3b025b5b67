//! Errors of a GPU and its libraries.

use std::fmt;

use crate::component::Component;

/// Error of a GPU or one of its libraries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GpuError {
    /// A library is not there, or does not open.
    Missing {
        /// Which.
        component: Component,
        /// Outcome of looking for it.
        why: String,
    },
    /// A library lacks a function that is needed: it is too old.
    Symbol {
        /// Which library.
        component: Component,
        /// Name of the function.
        symbol: &'static str,
    },
    /// A library other than the driver is too old.
    Outdated {
        /// Which.
        component: Component,
        /// Its version.
        version: String,
    },
    /// The driver is too old.
    Old {
        /// The version of CUDA that it supports.
        supports: String,
    },
    /// There is a driver, but no device.
    NoDevice,
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
    /// The library that is not there, or too old to be used, where this is what the error says.
    pub fn lacks(&self) -> Option<Component> {
        match self {
            GpuError::Missing { component, .. }
            | GpuError::Symbol { component, .. }
            | GpuError::Outdated { component, .. } => Some(*component),
            _ => None,
        }
    }
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuError::Missing { component, why } => {
                write!(f, "{} was not found ({why}); {}", component.library(), component.remedy())
            }
            GpuError::Symbol { component, symbol } => write!(
                f,
                "{} has no function `{symbol}`: it is older than version {}; {}",
                component.library(),
                component.oldest(),
                component.remedy()
            ),
            GpuError::Outdated { component, version } => write!(
                f,
                "{} is of version {version}, and {} is needed; {}",
                component.library(),
                component.oldest(),
                component.remedy()
            ),
            GpuError::Old { supports } => {
                write!(f, "the driver supports CUDA {supports}, and 12.0 is needed; install a newer driver")
            }
            GpuError::NoDevice => f.write_str(
                "there is a driver but no GPU; check CUDA_VISIBLE_DEVICES, and that the container is given \
                 one",
            ),
            GpuError::Crash { error } => {
                write!(
                    f,
                    "a kernel failed ({error}); nothing that this process computed since can be trusted"
                )
            }
            GpuError::Lost { error } => {
                write!(f, "the GPU failed or is gone ({error}); see the system's log, and reset it")
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
            GpuError::Bounds { start, len, arena } => {
                write!(f, "{len} from {start} on are not within {arena}")
            }
            GpuError::Refused { compiler, supports, error } => write!(
                f,
                "the driver, for {supports}, refuses what NVRTC {compiler} compiled ({error}); \
                 where NVRTC is the newer one, install an older wheel of nvidia-cuda-nvrtc, or a newer driver"
            ),
            GpuError::Compile { log } => write!(f, "NVRTC refuses the kernels of this program:\n{log}"),
            GpuError::Library { component, function, error } => {
                let name = component.name();
                write!(f, "{function} failed: {error}; --no-libraries does without {name}, more slowly")
            }
            GpuError::Call { function, error } => write!(f, "{function} failed: {error}"),
        }
    }
}

impl std::error::Error for GpuError {}
