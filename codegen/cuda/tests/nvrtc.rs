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
#[path = "ptx/mod.rs"]
mod ptx;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use memc_cuda::{Kernel, MOST_UPDATES, forms, lower, program, updates};
use memc_gpu::{Arch, GpuError, Nvrtc};
use memc_ir::TensorType;

use crate::ptx::stats::{Stats, stats};

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
        let behind_calls = forms(&sample.op, &types).into_iter().flat_map(|form| form.rest.launches);
        let own = lower(&sample.op, &types).unwrap().launches.into_iter();
        for launch in own.chain(batched).chain(behind_calls) {
            kernels.insert(launch.kernel.name.clone(), launch.kernel);
        }
    }
    kernels.into_values().collect()
}

/// The distinct kernels of ops.
fn kernels_of(calls: Vec<ptx::calls::Call>) -> Vec<Kernel> {
    let lowered = calls.into_iter().map(|(op, types)| lower(&op, &types).unwrap());
    let launches = lowered.flat_map(|lowering| lowering.launches);
    let kernels: BTreeMap<String, Kernel> =
        launches.map(|launch| (launch.kernel.name.clone(), launch.kernel)).collect();
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
    // For 9.0 the tests of their figures compile them.
    let archs = [(7, 5), (8, 0)].map(|(major, minor)| Arch { major, minor });
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

/// Distinct kernels with their figures on the architecture of an H100.
fn figures(nvrtc: Nvrtc, mut kernels: Vec<Kernel>) -> Vec<(Kernel, Stats)> {
    kernels.sort();
    kernels.dedup();
    let all = Mutex::new(BTreeMap::new());
    let next = AtomicUsize::new(0);
    let units: Vec<&[Kernel]> = kernels.chunks(UNIT).collect();
    let work = || {
        while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            let inspection = nvrtc.inspect(&program(*unit), Arch { major: 9, minor: 0 }).unwrap();
            all.lock().unwrap().append(&mut stats(&inspection));
        }
    };
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(work)));
    });
    let mut all = all.into_inner().unwrap();
    let mut figures = |kernel: Kernel| {
        let stats = all.remove(&kernel.name).unwrap_or_else(|| panic!("no figures of {}", kernel.name));
        (kernel, stats)
    };
    kernels.into_iter().map(&mut figures).collect()
}

/// Kernels whose text has one of these may have what others may not.
struct Exception {
    texts: &'static [&'static str],
    #[expect(dead_code, reason = "for who reads the list")]
    why: &'static str,
}

/// 64-bit divisions in loops.
const DIVIDE: &[Exception] = &[
    Exception { texts: &["op_div("], why: "the op divides integers" },
    Exception {
        texts: &["ReduceMean<i", "ReduceMean<u"],
        why: "a mean of integers divides once for each result",
    },
];

/// Local memory.
const SPILL: &[Exception] = &[
    Exception { texts: &["sinf(", "cosf("], why: "CUDA's reduction of large arguments has a table" },
    Exception { texts: &["normal("], why: "CUDA's sine of f64 has one, too" },
];

/// Loads of less than 16 bytes, where rows allow more.
const NARROW: &[Exception] = &[
    Exception {
        texts: &[
            " batch_norm_stats_parts_",
            " batch_norm_sums_parts_",
            " layer_norm_affine_parts_",
            " reduce_parts_",
        ],
        why: "joins few numbers",
    },
    Exception {
        texts: &[" max_pool_", " max_pool_grad_"],
        why: "windows overlap, of one thread and of its neighbours",
    },
    Exception {
        texts: &["counted(", "summed(", "sum_of_parts(", "gather_grad_ends<"],
        why: "blocks read few numbers",
    },
    Exception { texts: &["report_index("], why: "an index of 8 bytes for each thread" },
    Exception { texts: &["atomicAdd("], why: "an index of 8 bytes for each thread" },
    Exception { texts: &["four("], why: "16-bit elements are made by fours, which share random words" },
];

fn is_excepted(source: &str, exceptions: &[Exception]) -> bool {
    exceptions.iter().flat_map(|e| e.texts).any(|text| source.contains(text))
}

/// Registers that leave room for three blocks of 256 threads on a multiprocessor, as the kernels' bounds ask.
const REGISTERS: u32 = 80;

/// The kernels of which something holds, said in one line.
fn those(all: &[(Kernel, Stats)], what: &str, holds: impl Fn(&Stats) -> bool) -> Vec<String> {
    let found: Vec<&(Kernel, Stats)> = all.iter().filter(|(_, stats)| holds(stats)).collect();
    eprintln!("{} of {} kernels {what}", found.len(), all.len());
    found.iter().map(|(kernel, _)| kernel.source.clone()).collect()
}

fn assert_excepted(sources: &[String], exceptions: &[Exception]) {
    let wrong: Vec<&str> =
        sources.iter().map(String::as_str).filter(|source| !is_excepted(source, exceptions)).collect();
    assert!(wrong.is_empty(), "{} kernels:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn no_kernel_divides_in_a_loop_or_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let all =
        figures(nvrtc, [kernels(), kernels_of(ptx::calls::all()), kernels_of(ptx::calls::odd())].concat());
    let divide = those(&all, "divide 64-bit integers in a loop", |stats| stats.divisions > 0);
    let spill = those(&all, "have local memory", |stats| stats.local > 0);
    let large = those(&all, "have more than 80 registers", |stats| stats.registers > REGISTERS);
    assert_excepted(&divide, DIVIDE);
    assert_excepted(&spill, SPILL);
    assert_excepted(&large, &[]);
}

#[test]
fn rows_that_allow_it_are_read_by_16_bytes() {
    let Some(nvrtc) = nvrtc() else { return };
    let all = figures(nvrtc, kernels_of(ptx::calls::all()));
    // Beside a pack may stand numbers of a channel, or an index.
    let narrow = those(&all, "read most of their rows by less than 16 bytes", |s| s.wide_share() < 0.5);
    assert_excepted(&narrow, NARROW);
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
