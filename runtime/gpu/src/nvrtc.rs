//! Compiling kernel text for one architecture, with NVRTC. Needs no device.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::ptr::{null, null_mut};

use cudarc::nvrtc::sys;

use crate::library::require;
use crate::{Component, GpuError, Libraries};

/// Functions that are called.
const SYMBOLS: &[&str] = &[
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetErrorString",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetPTX",
    "nvrtcGetPTXSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcGetSupportedArchs",
    "nvrtcVersion",
];

/// Options besides the architecture. Products and sums are rounded one by one, as on the CPU, except where a
/// kernel asks for a fused one.
const OPTIONS: &[&str] = &["--std=c++17", "--fmad=false", "--disable-warnings"];
/// Most characters of a compiler's log that an error carries.
const LOG: usize = 4000;

/// A compute capability, such as 9.0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Arch {
    /// Before the point.
    pub major: u32,
    /// After the point.
    pub minor: u32,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// Form in which a device gets a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Machine code of this architecture.
    Machine(Arch),
    /// Text (PTX) for this virtual architecture, which the driver compiles for the device.
    Text(Arch),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Machine(arch) => write!(f, "{arch}"),
            Target::Text(arch) => write!(f, "compute_{}{}", arch.major, arch.minor),
        }
    }
}

impl From<Arch> for Target {
    fn from(arch: Arch) -> Target {
        Target::Machine(arch)
    }
}

/// The best form for a device of which a compiler for these architectures is capable; none where the device
/// is older than all of them.
fn target(known: &[Arch], device: Arch) -> Option<Target> {
    let newest = known.iter().copied().filter(|arch| *arch <= device).max()?;
    Some(if newest == device { Target::Machine(device) } else { Target::Text(newest) })
}

/// The compiler.
#[derive(Clone, Copy, Debug)]
pub struct Nvrtc {
    version: (i32, i32),
}

/// A compiled translation unit, with what the compiler says of it.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Machine code.
    pub image: Vec<u8>,
    /// PTX of all kernels.
    pub ptx: String,
    /// Output of `ptxas --verbose`: each kernel's registers, stack, spills and shared memory.
    pub log: String,
}

/// A program that the compiler holds.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    #[allow(unsafe_code, reason = "NVRTC is a C library")]
    fn drop(&mut self) {
        // SAFETY: the program was created and not destroyed.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

#[allow(unsafe_code, reason = "NVRTC is a C library")]
fn done(function: &'static str, result: sys::nvrtcResult) -> Result<(), GpuError> {
    if result == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: returns a constant text, for every number.
    let text = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    Err(GpuError::Call { function, error: text.to_string_lossy().into_owned() })
}

impl Nvrtc {
    /// The compiler that is found.
    ///
    /// # Errors
    /// [`GpuError::Missing`], [`GpuError::Outdated`] or [`GpuError::Symbol`] without a compiler that can be
    /// used.
    #[allow(unsafe_code, reason = "NVRTC is a C library")]
    pub fn find() -> Result<Nvrtc, GpuError> {
        require(Component::Nvrtc, SYMBOLS)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two integers to write.
        done("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
        Ok(Nvrtc { version: (major, minor) })
    }

    /// Its version, such as `13.0`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// All that decides what a text compiles to, besides the text.
    pub fn options(&self, target: Target) -> String {
        format!("nvrtc {} {target} {}", self.version(), OPTIONS.join(" "))
    }

    /// The form in which a device gets programs.
    ///
    /// # Errors
    /// [`GpuError::Unknown`] for a device that is older than all that it compiles for.
    pub fn target(&self, device: Arch) -> Result<Target, GpuError> {
        let known = self.architectures()?;
        target(&known, device).ok_or_else(|| GpuError::Unknown {
            arch: device,
            compiler: self.version(),
            oldest: known.first().copied().unwrap_or(device),
        })
    }

    /// The architectures it compiles for, in ascending order.
    ///
    /// # Errors
    /// [`GpuError::Call`].
    #[allow(unsafe_code, reason = "NVRTC is a C library")]
    pub fn architectures(&self) -> Result<Vec<Arch>, GpuError> {
        let mut count: c_int = 0;
        // SAFETY: an integer to write.
        done("nvrtcGetNumSupportedArchs", unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) })?;
        let mut numbers: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: as many integers to write as the call before has announced.
        done("nvrtcGetSupportedArchs", unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) })?;
        let mut archs: Vec<Arch> = numbers
            .into_iter()
            .filter_map(|n| u32::try_from(n).ok())
            .map(|n| Arch { major: n / 10, minor: n % 10 })
            .collect();
        archs.sort();
        Ok(archs)
    }

    /// Machine code (a CUBIN) of one translation unit, or its text (PTX), which ends with a zero byte.
    ///
    /// # Errors
    /// [`GpuError::Compile`] with the compiler's words where the text is wrong, [`GpuError::Call`] otherwise.
    pub fn compile(&self, text: &str, target: impl Into<Target>) -> Result<Vec<u8>, GpuError> {
        let target = target.into();
        program(text, target, OPTIONS)?.image(target)
    }

    /// Machine code of one translation unit, its PTX, and its resources on `arch`.
    ///
    /// # Errors
    /// Those of [`Nvrtc::compile`].
    pub fn inspect(&self, text: &str, arch: Arch) -> Result<Inspection, GpuError> {
        let program = program(text, arch.into(), &[OPTIONS, &["--ptxas-options=-v"]].concat())?;
        let ptx = program.image(Target::Text(arch))?;
        let ptx = String::from_utf8_lossy(&ptx).trim_end_matches('\0').to_owned();
        Ok(Inspection { image: program.image(arch.into())?, ptx, log: program.log() })
    }
}

/// A compiled translation unit.
#[allow(unsafe_code, reason = "NVRTC is a C library")]
fn program(text: &str, target: Target, options: &[&str]) -> Result<Program, GpuError> {
    let no_zeros = |_| GpuError::Compile { log: "the text has a zero byte".to_owned() };
    let text = CString::new(text).map_err(no_zeros)?;
    let arch = CString::new(format!("--gpu-architecture={target}")).map_err(no_zeros)?;
    let options = options.iter().map(|option| CString::new(*option)).collect::<Result<Vec<_>, _>>();
    let options = options.map_err(no_zeros)?;
    let options: Vec<*const c_char> = std::iter::once(&arch).chain(&options).map(|o| o.as_ptr()).collect();
    let mut program = Program(null_mut());
    // SAFETY: the text is terminated and copied; there are no headers.
    let result = unsafe {
        sys::nvrtcCreateProgram(&mut program.0, text.as_ptr(), c"memrun.cu".as_ptr(), 0, null(), null())
    };
    done("nvrtcCreateProgram", result)?;
    // Options are few.
    let count = c_int::try_from(options.len()).unwrap_or(0);
    // SAFETY: the program exists, and so do the options, `count` terminated texts.
    let result = unsafe { sys::nvrtcCompileProgram(program.0, count, options.as_ptr()) };
    judged(result, || program.log())?;
    Ok(program)
}

/// Result of a compilation with this log.
fn judged(result: sys::nvrtcResult, log: impl FnOnce() -> String) -> Result<(), GpuError> {
    let log = || log().chars().take(LOG).collect::<String>().trim_end().to_owned();
    match result {
        sys::nvrtcResult::NVRTC_ERROR_COMPILATION => Err(GpuError::Compile { log: log() }),
        // A second file of the library does not open.
        sys::nvrtcResult::NVRTC_ERROR_BUILTIN_OPERATION_FAILURE => Err(GpuError::Unusable {
            component: Component::Nvrtc,
            function: "nvrtcCompileProgram",
            error: log(),
            remedy: Libraries::get().remedy(Component::Nvrtc),
        }),
        _ => done("nvrtcCompileProgram", result),
    }
}

impl Program {
    /// The compiled program.
    fn image(&self, target: Target) -> Result<Vec<u8>, GpuError> {
        match target {
            Target::Text(_) => self.bytes("nvrtcGetPTX", sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
            _ => self.bytes("nvrtcGetCUBIN", sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
        }
    }

    /// Bytes that a pair of functions returns: the one their number, the other themselves.
    #[allow(unsafe_code, reason = "NVRTC is a C library")]
    fn bytes(
        &self,
        function: &'static str,
        // SAFETY: types of C functions; each call says why it is sound.
        length: unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
        // SAFETY: as above.
        get: unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult,
    ) -> Result<Vec<u8>, GpuError> {
        let mut size = 0;
        // SAFETY: the program exists; an integer to write.
        done(function, unsafe { length(self.0, &mut size) })?;
        let mut bytes = vec![0u8; size];
        // SAFETY: as many bytes to write as the call before has announced.
        done(function, unsafe { get(self.0, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }

    /// Messages of the compiler.
    fn log(&self) -> String {
        let log = self.bytes("nvrtcGetProgramLog", sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog);
        let mut bytes = log.unwrap_or_default();
        bytes.retain(|&b| b != 0);
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device gets machine code where the compiler knows it, text where it is newer, and nothing where it
    /// is older than all that the compiler knows.
    #[test]
    fn the_newest_architecture_that_a_device_takes_is_chosen() {
        let arch = |n: u32| Arch { major: n / 10, minor: n % 10 };
        let known = [75, 80, 90, 120].map(arch);
        assert_eq!(target(&known, arch(90)), Some(Target::Machine(arch(90))));
        assert_eq!(target(&known, arch(89)), Some(Target::Text(arch(80))));
        assert_eq!(target(&known, arch(130)), Some(Target::Text(arch(120))));
        assert_eq!(target(&known, arch(70)), None);
        assert_eq!(Target::Text(arch(120)).to_string(), "compute_120");
    }

    /// Where the library's second file does not open, its words and the remedy are told.
    #[test]
    fn a_broken_installation_is_told() {
        let Ok(_) = Nvrtc::find() else { return };
        let log = "nvrtc: error: failed to open libnvrtc-builtins.so.13.0.";
        let told =
            judged(sys::nvrtcResult::NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, || log.to_owned()).unwrap_err();
        let told = told.to_string();
        assert!(told.contains(log) && told.contains("install"), "{told}");
        assert_eq!(judged(sys::nvrtcResult::NVRTC_SUCCESS, String::new), Ok(()));
    }

    /// Machine code is an ELF file, and text ends with a zero byte, as the driver reads it. Without NVRTC
    /// there is nothing to ask.
    #[test]
    fn both_forms_are_what_the_driver_loads() {
        let Ok(nvrtc) = Nvrtc::find() else { return };
        let newest = *nvrtc.architectures().unwrap().last().unwrap();
        let text = "extern \"C\" __global__ void k(float* x) { x[threadIdx.x] = 1.0f; }";
        assert!(nvrtc.compile(text, newest).unwrap().starts_with(b"\x7fELF"));
        let device = Arch { major: newest.major + 1, minor: 0 };
        let image = nvrtc.compile(text, nvrtc.target(device).unwrap()).unwrap();
        let image = std::ffi::CStr::from_bytes_with_nul(&image).unwrap().to_str().unwrap();
        let target = format!(".target {newest}");
        assert!(image.contains(&target) && image.contains(".visible .entry k"), "{image}");
    }
}
