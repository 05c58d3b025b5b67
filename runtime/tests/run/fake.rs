//! `memrun --device cuda` as it is, on libraries that take the place of NVIDIA's: driver and NVRTC
//! (`fake.cpp`), cuBLASLt and cuDNN (`fake_library.h`), and NVML (`fake_nvml.cpp`).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

use crate::mock::has_compiler;
use crate::mock::program::shim;
use crate::{Folder, floats, host_waits, steps};

/// The libraries, by source and names.
const LIBRARIES: [(&str, &[&str]); 4] = [
    ("fake_nvml", &["libnvidia-ml.so.1"]),
    ("fake", &["libcuda.so.1", "libnvrtc.so.13"]),
    ("fake_blas", &["libcublasLt.so.13"]),
    ("fake_dnn", &["libcudnn.so.9"]),
];

/// Libraries that the fake cuDNN opens by itself, and does not live without.
pub(crate) const PARTS: [&str; 3] = ["libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_cnn.so.9"];

/// A folder with a plan and the libraries.
pub(crate) struct Fake {
    pub(crate) folder: Folder,
}

/// The libraries, compiled once.
fn compiled() -> &'static Path {
    static COMPILED: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = COMPILED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let compile = |stem: &str, to: &str, option: &str| {
            let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/run/{stem}.cpp"));
            let mut command = Command::new("g++");
            command.args(["-std=c++17", "-O1", "-shared", "-fPIC", option, "-o"]);
            command.args([&folder.path().join(to), &source]).arg("-ldl");
            assert!(command.status().unwrap().success());
        };
        LIBRARIES.iter().for_each(|(stem, _)| compile(stem, stem, "-g0"));
        PARTS.iter().for_each(|part| compile("fake_part", part, &format!("-Wl,-soname,{part}")));
        folder
    });
    made.path()
}

impl Fake {
    /// None without a compiler.
    pub(crate) fn new(plan: &str) -> Option<Fake> {
        if !has_compiler() {
            return None;
        }
        let folder = Folder::of(plan);
        for (stem, names) in LIBRARIES {
            for name in names {
                std::fs::copy(compiled().join(stem), folder.path(name)).unwrap();
            }
        }
        for part in PARTS {
            std::fs::copy(compiled().join(part), folder.path(part)).unwrap();
        }
        Some(Fake { folder })
    }

    /// Runs memrun in the folder, with a failure or none.
    pub(crate) fn memrun(&self, arguments: &str, failure: &str) -> Output {
        self.command(arguments, failure).output().unwrap()
    }

    pub(crate) fn command(&self, arguments: &str, failure: &str) -> Command {
        let folder = self.folder.path("");
        let mut command = Command::new(env!("CARGO_BIN_EXE_memrun"));
        command.current_dir(&folder).args(arguments.split_whitespace());
        if arguments.split_whitespace().next().is_some_and(|word| word.ends_with(".plan")) {
            command.arg("--synthetic");
        }
        // The loader asks this folder first, also on a machine that has the real libraries.
        command.env("LD_LIBRARY_PATH", &folder).env("XDG_CACHE_HOME", folder.join("cache"));
        command.env("FAKE_CUDA", failure).env("FAKE_CUDA_FOLDER", &folder).env("FAKE_CUDA_SHIM", shim());
        command.env("FAKE_LIBRARY", failure).env("FAKE_LIBRARY_LOG", folder.join("calls.log"));
        // Real libraries of the environment stay out of it.
        for variable in ["VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES"] {
            command.env_remove(variable);
        }
        command.env("MEMRUN_CUDA_LIBS", "");
        command
    }

    /// Requires success, and that nothing is said on standard error but that data is synthetic, and that
    /// libraries do not compute all of it.
    pub(crate) fn succeeds(&self, arguments: &str, failure: &str) -> String {
        let output = self.memrun(arguments, failure);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments}: {said}");
        let is_note = |line: &str| line.contains("synthetic") || line.contains("does not compute");
        assert!(said.lines().all(is_note), "{said}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn fails(&self, arguments: &str, failure: &str, code: i32, parts: &[&str]) {
        let output = self.memrun(arguments, failure);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{failure}: {said}");
        let errors: Vec<&str> = said.lines().filter(|line| !line.contains("memrun: note: ")).collect();
        for part in parts {
            assert!(said.contains(part), "{failure}: {said} lacks {part}");
        }
        assert!(errors[0].starts_with("memrun: error: ") && !said.contains("panic"), "{said}");
    }
}

/// The whole path from command line to driver: numbers are the CPU's within rounding, the same with poisoned
/// memory, without a graph and with a traced step, and no handle is left. A program is compiled once: the
/// second run finds it, though the compiler would fail.
#[test]
fn memrun_runs_a_plan_through_the_driver() {
    let Some(fake) = Fake::new(&host_waits()) else { return };
    let run = |more: &str, failure: &str| -> (Value, Vec<u8>) {
        let arguments = format!("model.plan --device cuda --steps 4 --json --save out.safetensors {more}");
        let object = serde_json::from_str(&fake.succeeds(&arguments, failure)).unwrap();
        (object, std::fs::read(fake.folder.path("out.safetensors")).unwrap())
    };
    let (object, states) = run("", "");
    assert_eq!((&object["device"], &object["steps"]), (&Value::from("cuda"), &Value::from(4)));
    let (again, same) = run("--check-memory", "compile");
    assert!(object["losses"] == again["losses"] && states == same);
    for more in ["--no-graph", "--trace trace.json", "--no-graph --trace trace.json", "--verify"] {
        let (again, same) = run(more, "");
        assert!(object["losses"] == again["losses"] && states == same, "{more}");
    }
    let (losses, on_cpu) = fake.folder.run_and_save(&steps(4));
    for (got, want) in object["losses"].as_array().unwrap().iter().zip(losses) {
        assert!((got.as_f64().unwrap() - f64::from(want)).abs() < 1e-5, "{got} instead of {want}");
    }
    for ((name, got), (_, want)) in floats(&states).iter().zip(&floats(&on_cpu)) {
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-3), "{name}");
    }
}

/// A plan is measured through the driver: every kernel, and what the device reaches.
#[test]
fn memrun_measures_a_plan_through_the_driver() {
    let Some(fake) = Fake::new(&host_waits()) else { return };
    let said = fake.succeeds("profile model.plan --device cuda --steps 2 --warm-up 1 -o gpu.json", "");
    assert!(said.starts_with("gpu.json: 7 kernels on fake-gpu; "), "{said}");
    let text = std::fs::read_to_string(fake.folder.path("gpu.json")).unwrap();
    let profile: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&profile["name"], &profile["kernels"]), (&Value::from("fake-gpu"), &Value::from("gpu")));
    assert_eq!(
        (&profile["processors"], &profile["memory_bytes"]),
        (&Value::from(132), &Value::from(1 << 30))
    );
    // Bytes of the context, and some for other plans; without the library that says so, all that is not free.
    assert_eq!(profile["reserve_bytes"], (1 << 20) + (32 << 20));
    fake.succeeds("profile model.plan --device cuda --steps 2 --warm-up 0 -o other.json", "no meter");
    let text = std::fs::read_to_string(fake.folder.path("other.json")).unwrap();
    let other: Value = serde_json::from_str(&text).unwrap();
    assert!(other["reserve_bytes"].as_u64() > Some(400 << 20), "{}", other["reserve_bytes"]);
    for field in ["f32_flops_per_s", "memory_bytes_per_s", "duplex_total_bytes_per_s", "kernel_latency_ns"] {
        assert!(profile[field].as_u64().unwrap() > 0, "{field} in {profile}");
    }
    let times = profile["ops"].as_array().unwrap();
    assert!(times.len() == 7 && times.iter().all(|op| op["time_ns"].as_u64() > Some(0)), "{times:?}");
    // Products are those of libraries, and marks that take a second each are in no time.
    assert!(profile["tf32_flops_per_s"].is_null(), "{profile}");
    fake.succeeds("profile model.plan --device cuda --steps 2 --warm-up 0 --tf32 -o m.json", "slow marks");
    let text = std::fs::read_to_string(fake.folder.path("m.json")).unwrap();
    let marked: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(marked["tf32_flops_per_s"], marked["f32_flops_per_s"]);
    let ops = marked["ops"].as_array().unwrap().iter();
    let mut generated = ops.filter(|op| !["gemm", "matmul"].contains(&op["op"].as_str().unwrap()));
    assert!(generated.all(|op| op["time_ns"].as_u64() < Some(900_000_000)), "{marked}");
    assert!(marked["kernel_latency_ns"].as_u64() < Some(9_000_000), "{marked}");
    let calls = std::fs::read_to_string(fake.folder.path("calls.log")).unwrap();
    assert!(calls.contains("compute=77") && calls.contains("compute=68"), "{calls}");
    fake.fails("profile model.plan --device cuda -o lost.json", "no device", 8, &["no GPU"]);
    assert!(!fake.folder.path("lost.json").exists());
}

/// A note after the first step tells of a driver's context that takes more than the plan sets aside.
#[test]
fn a_context_larger_than_planned_is_told() {
    let Some(fake) = Fake::new(crate::CLASSIFIER) else { return };
    let said = |failure: &str| {
        let output = fake.memrun("model.plan --device cuda --steps 2", failure);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    let large = said("large context");
    assert!(large.contains("48.00 MiB (50,331,648 B) of them the driver's context"), "{large}");
    for small in ["", "no meter"] {
        assert!(!said(small).contains("the driver's context"), "{small}");
    }
}

/// Where the host arena cannot be page-locked the run goes on, with the same numbers, and says what it costs.
#[test]
fn a_host_arena_that_cannot_be_locked_is_pageable() {
    let Some(fake) = Fake::new(crate::CLASSIFIER) else { return };
    let losses = |output: Output| {
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        (object["losses"].clone(), String::from_utf8(output.stderr).unwrap())
    };
    let run = "model.plan --device cuda --steps 3 --json";
    let (locked, pageable) = (losses(fake.memrun(run, "")), losses(fake.memrun(run, "lock")));
    assert_eq!(locked.0, pageable.0);
    assert!(
        pageable.1.contains("could not be page-locked") && !locked.1.contains("page-locked"),
        "{pageable:?}"
    );
    assert!(!pageable.1.contains("left"), "{}", pageable.1);
}

/// A host arena that is more than the system says is available is refused, unless --host-mem grants it: then
/// the system itself is asked.
#[test]
fn a_granted_host_arena_is_taken_whatever_is_available() {
    let arena = "host 13760";
    assert_eq!(crate::CLASSIFIER.matches(arena).count(), 1);
    let large = crate::CLASSIFIER.replace(arena, "host 1125899906842624");
    let Some(fake) = Fake::new(&large) else { return };
    let run = "model.plan --device cuda";
    fake.fails(run, "", 5, &["1.00 PiB", "available is", "pass a --host-mem"]);
    for command in [run, "profile model.plan --device cuda -o p.json", "tune model.plan --device cuda"] {
        fake.fails(&format!("{command} --host-mem 1T"), "", 5, &["more than --host-mem 1.00 TiB"]);
        let granted = format!("{command} --host-mem 1024T");
        fake.fails(&granted, "", 5, &["the host arena of 1125899906842624 bytes was refused (Cannot alloc"]);
    }
}

/// The device is listed with what a program needs to know of it.
#[test]
fn devices_shows_the_gpu() {
    let Some(fake) = Fake::new(&host_waits()) else { return };
    let printed = fake.succeeds("devices", "");
    for part in
        ["cuda:0", "Fake GPU, sm_90, 512", "free of 1.00 GiB", "132 multi", "copy engines: 3", "CUDA 13.0"]
    {
        assert!(printed.contains(part), "{printed} lacks {part}");
    }
    let object: Value = serde_json::from_str(&fake.succeeds("devices --json", "")).unwrap();
    assert_eq!(object["gpus"][0]["memory_bytes"], 1 << 30);
    assert_eq!(object["libraries"][1]["version"], "13.0");
}

/// A GPU that is newer than the compiler gets the text of the newest architecture, and runs.
#[test]
fn a_gpu_newer_than_the_compiler_runs() {
    let Some(fake) = Fake::new(crate::CLASSIFIER) else { return };
    let run = "model.plan --device cuda --steps 2 --json --no-libraries";
    let losses = |failure| -> Value {
        let object: Value = serde_json::from_str(&fake.succeeds(run, failure)).unwrap();
        object["losses"].clone()
    };
    assert_eq!(losses("new GPU"), losses(""));
}

/// Without the compiler, or with a file that is none, nothing runs, and the message names the wheel for the
/// driver.
#[test]
fn a_missing_compiler_is_told() {
    let Some(fake) = Fake::new(crate::CLASSIFIER) else { return };
    for name in ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"] {
        std::fs::write(fake.folder.path(name), "not a library").unwrap();
    }
    let run = "model.plan --device cuda";
    fake.fails(run, "", 8, &["libnvrtc.so was not found", "install the Python wheel nvidia-cuda-nvrtc,"]);
    fake.fails(run, "CUDA 12", 8, &["install the Python wheel nvidia-cuda-nvrtc-cu12,"]);
}

/// Whatever fails, there is one message that says so, with its exit code.
#[test]
fn failures_of_the_driver_are_told() {
    let Some(fake) = Fake::new(&host_waits()) else { return };
    let run = "model.plan --device cuda --steps 4 --save lost.safetensors";
    fake.fails(run, "old", 8, &["supports CUDA 11.8", "12.0 is needed"]);
    for failure in ["no device", "hidden"] {
        fake.fails(run, failure, 8, &["no GPU", "MIG"]);
    }
    fake.fails(run, "full", 5, &["memory is full (cuDevicePrimaryCtxRetain failed: ", "held by process 1 ("]);
    for (failure, part) in [
        ("stub", "folder `stubs`"),
        ("not ready", "nvidia-fabricmanager"),
        ("mismatch", "reboot"),
        ("compat", "`compat`"),
        ("system", "/dev/nvidia*"),
        ("permission", "/dev/nvidia*"),
        ("unknown", "/dev/nvidia*"),
        ("exclusive", "nvidia-smi -c 0"),
    ] {
        fake.fails(run, failure, 8, &["the driver refuses the GPU (cu", part]);
    }
    fake.fails(
        run,
        "memory",
        5,
        &["device arena", "OUT_OF_MEMORY", "536870912 are free", "process 1 (", " 5242880 bytes"],
    );
    let budget = "the plan is for 16.00 KiB (16,384 B), of which 0 B are set aside";
    fake.fails(run, "memory", 5, &[budget, "smaller --gpu-mem"]);
    fake.fails(run, "compile", 70, &["memrun.cu(1): error"]);
    fake.fails(run, "image", 8, &["for CUDA 13.0, refuses what NVRTC 13.0 compiled", "newer driver"]);
    fake.fails(run, "old GPU", 8, &["is sm_70", "NVRTC 13.0 compiles for sm_90", "nvidia-cuda-nvrtc-cu12"]);
    fake.fails(run, "capture", 8, &["captured as a CUDA graph: cuStreamBeginCapture", "--no-graph"]);
    fake.fails(run, "crash", 8, &["ILLEGAL_ADDRESS", "can be trusted"]);
    fake.fails("model.plan --device cuda:1", "", 8, &["no cuda:1: this process sees 1 GPU;"]);
    let output = fake.command(run, "no device").env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    assert_eq!(output.status.code(), Some(8));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("CUDA_VISIBLE_DEVICES=\"\" leaves visible"), "{said}");
    assert!(!fake.folder.path("lost.safetensors").exists(), "nothing is saved from a broken context");
}
