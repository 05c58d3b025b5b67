//! Every kernel compiled by NVRTC for real architectures. Needs the compiler (the Python wheel
//! `nvidia-cuda-nvrtc`), no GPU. Skipped with a word where there is none, except where CI is set. The kernels
//! are those of the emulation's samples.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "what was skipped or compiled must be seen")]
#![allow(clippy::disallowed_methods, reason = "CI must not skip; the time is printed, nothing depends on it")]

#[path = "emulation/cases.rs"]
mod cases;
#[path = "../../../ir/kernels/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use memc_cuda::{Kernel, MOST_UPDATES, lower, program, updates};
use memc_gpu::{Arch, GpuError, Nvrtc};
use memc_ir::TensorType;

/// Kernels of a translation unit.
const UNIT: usize = 24;
/// Compilers side by side.
const THREADS: usize = 2;

/// The compiler, where there is one.
fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::find() {
        Ok(nvrtc) => Some(nvrtc),
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "{why}");
            eprintln!("SKIPPED: compiling kernels for real architectures ({why})");
            None
        }
    }
}

/// The distinct kernels of all samples, in order of names, so that those of a family are side by side.
fn kernels() -> Vec<Kernel> {
    let mut kernels = BTreeMap::new();
    for sample in cases::all() {
        let types: Vec<TensorType> = sample.operands.iter().map(|t| t.ty.clone()).collect();
        let batched = updates(&sample.op, &[types.as_slice(); MOST_UPDATES]);
        for launch in lower(&sample.op, &types).unwrap().launches.into_iter().chain(batched) {
            kernels.insert(launch.kernel.name.clone(), launch.kernel);
        }
    }
    kernels.into_values().collect()
}

/// Whether machine code defines a kernel: its name stands in the symbols, after a zero byte.
fn defines(image: &[u8], kernel: &Kernel) -> bool {
    let symbol = [b"\0", kernel.name.as_bytes(), b"\0"].concat();
    image.windows(symbol.len()).any(|window| window == symbol)
}

/// Compiles units side by side; returns the bytes of machine code and the complaints.
fn compile(nvrtc: Nvrtc, units: &[(Arch, &[Kernel])]) -> (usize, Vec<String>) {
    let (next, done) = (AtomicUsize::new(0), Mutex::new((0, Vec::new())));
    let work = || {
        while let Some((arch, kernels)) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            let image = nvrtc.compile(&program(*kernels), *arch);
            let mut done = done.lock().unwrap();
            match image {
                Ok(image) => {
                    done.0 += image.len();
                    let lacks = kernels.iter().filter(|kernel| !defines(&image, kernel));
                    let lacks: Vec<String> =
                        lacks.map(|kernel| format!("{arch}: no symbol {}", kernel.name)).collect();
                    done.1.extend(lacks);
                }
                Err(why) => done.1.push(format!("{arch}, {} and following: {why}", kernels[0].name)),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(work)));
    });
    done.into_inner().unwrap()
}

#[test]
fn every_kernel_compiles_for_real_architectures() {
    let Some(nvrtc) = nvrtc() else { return };
    let kernels = kernels();
    let archs = [(7, 5), (8, 0), (9, 0)].map(|(major, minor)| Arch { major, minor });
    let known = nvrtc.architectures().unwrap();
    let unknown: Vec<&Arch> = archs.iter().filter(|arch| !known.contains(arch)).collect();
    assert!(unknown.is_empty(), "NVRTC {} does not know {unknown:?}, but {known:?}", nvrtc.version());
    let units: Vec<(Arch, &[Kernel])> =
        archs.iter().flat_map(|&arch| kernels.chunks(UNIT).map(move |unit| (arch, unit))).collect();
    let start = Instant::now();
    let (bytes, wrong) = compile(nvrtc, &units);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    eprintln!(
        "NVRTC {}: {} kernels for {} architectures, {bytes} bytes, {:.1} s",
        nvrtc.version(),
        kernels.len(),
        archs.len(),
        start.elapsed().as_secs_f64()
    );
}

/// A text that is wrong is refused in the compiler's words, with the line.
#[test]
fn a_wrong_kernel_is_refused_with_its_line() {
    let Some(nvrtc) = nvrtc() else { return };
    let text = "extern \"C\" __global__ void k(float* x) {\n  x[0] = missing;\n}\n";
    let error = nvrtc.compile(text, Arch { major: 8, minor: 0 }).unwrap_err();
    let GpuError::Compile { log } = error else { panic!("{error}") };
    assert!(log.contains("(2)") && log.contains("missing"), "{log}");
}
