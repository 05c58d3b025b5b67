//! Compiling kernel text for one architecture, with NVRTC. Needs no device.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::ptr::{null, null_mut};

use cudarc::nvrtc::sys;

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
const OPTIONS: &[&str] = &["--std=c++17", "--fmad=false"];
/// Most bytes of a compiler's log that an error carries.
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
    /// [`GpuError::Missing`] or [`GpuError::Symbol`] without a compiler that can be used.
    #[allow(unsafe_code, reason = "NVRTC is a C library")]
    pub fn find() -> Result<Nvrtc, GpuError> {
        let library = Libraries::get().require(Component::Nvrtc)?;
        library.require(SYMBOLS)?;
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
    #[allow(unsafe_code, reason = "NVRTC is a C library")]
    pub fn compile(&self, text: &str, target: impl Into<Target>) -> Result<Vec<u8>, GpuError> {
        let target = target.into();
        let no_zeros = |_| GpuError::Compile { log: "the text has a zero byte".to_owned() };
        let text = CString::new(text).map_err(no_zeros)?;
        let arch = CString::new(format!("--gpu-architecture={target}")).map_err(no_zeros)?;
        let options = OPTIONS.iter().map(|option| CString::new(*option)).collect::<Result<Vec<_>, _>>();
        let options = options.map_err(no_zeros)?;
        let options: Vec<*const c_char> =
            std::iter::once(&arch).chain(&options).map(|o| o.as_ptr()).collect();
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
        if result == sys::nvrtcResult::NVRTC_ERROR_COMPILATION {
            return Err(GpuError::Compile { log: program.log() });
        }
        done("nvrtcCompileProgram", result)?;
        program.image(target)
    }
}

impl Program {
    /// The compiled program.
    #[allow(unsafe_code, reason = "NVRTC is a C library")]
    fn image(&self, target: Target) -> Result<Vec<u8>, GpuError> {
        let is_text = matches!(target, Target::Text(_));
        let mut size = 0;
        // SAFETY: the program is compiled; an integer to write.
        let sized = unsafe {
            match is_text {
                true => sys::nvrtcGetPTXSize(self.0, &mut size),
                false => sys::nvrtcGetCUBINSize(self.0, &mut size),
            }
        };
        done(if is_text { "nvrtcGetPTXSize" } else { "nvrtcGetCUBINSize" }, sized)?;
        let mut image = vec![0u8; size];
        let room = image.as_mut_ptr().cast();
        // SAFETY: as many bytes to write as the call before has announced.
        let got = unsafe {
            match is_text {
                true => sys::nvrtcGetPTX(self.0, room),
                false => sys::nvrtcGetCUBIN(self.0, room),
            }
        };
        done(if is_text { "nvrtcGetPTX" } else { "nvrtcGetCUBIN" }, got)?;
        Ok(image)
    }

    /// Messages of the compiler, cut.
    #[allow(unsafe_code, reason = "NVRTC is a C library")]
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program exists; an integer to write.
        if done("nvrtcGetProgramLogSize", unsafe { sys::nvrtcGetProgramLogSize(self.0, &mut size) }).is_err()
        {
            return String::new();
        }
        let mut bytes = vec![0u8; size];
        // SAFETY: as many bytes to write as the call before has announced.
        if done("nvrtcGetProgramLog", unsafe { sys::nvrtcGetProgramLog(self.0, bytes.as_mut_ptr().cast()) })
            .is_err()
        {
            return String::new();
        }
        bytes.retain(|&b| b != 0);
        bytes.truncate(LOG);
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
