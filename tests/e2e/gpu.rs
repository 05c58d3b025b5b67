//! Committed models on the GPU's path: kernels generated for every op, compiled for the CPU, and replayed by
//! the runtime's own code on a driver without a GPU.

use memc_plan::PlanFile;
use memc_runtime::gpu::Gpu;
use memc_runtime::{ProfileOptions, RunOptions, TuneOptions, profile_gpu, run_on, tune_gpu};

use crate::mock::{Behaviour, Mock, has_compiler};
use crate::support::{Losses, Ran, json, memc, memc_ok, number, put, run, saved};

/// A GPU, so that element-wise ops are fused; with room for kernels' scratch.
const PROFILE: &str = r#"{"format": "memc-profile/1", "name": "emulated", "kernels": "gpu", "processors": 8,
    "f32_flops_per_s": 1e10, "memory_bytes_per_s": 1e10, "d2h_bytes_per_s": 1e9, "h2d_bytes_per_s": 1e9,
    "duplex_total_bytes_per_s": 2e9, "host_bytes_per_s": 1e10, "kernel_latency_ns": 1000,
    "copy_latency_ns": 1000, "reserve_bytes": 8388608}"#;
const RESERVE: u64 = 8_388_608;
/// Enough for each of two graphs to run twice.
const STEPS: u64 = 5;
/// Each step has a rate of its own.
const RATE: &str = "warmup=4,linear=12";

/// Largest difference from the CPU, relative to 1 and the number: of a loss, and of a state.
const LOSS: f32 = 1e-4;
const STATE: f32 = 2e-3;

fn far(got: f32, want: f32, limit: f32) -> bool {
    (got - want).abs() > limit * (1.0 + want.abs())
}

/// Compiles a model for 100, 60 and 40 % of its unplanned peak, and for 60 % with updates of weights on the
/// host. Every plan gives the same bits at any timing, whatever its budget, captured as a graph or not, and
/// the CPU device's numbers within rounding; with generated kernels alone, and with library calls.
fn hold(model: &str) {
    let model = format!("models/{model}/training_model.onnx");
    let folder = tempfile::tempdir().unwrap();
    let device = put(folder.path(), "device.json", PROFILE.as_bytes()).display().to_string();
    let estimate = json(&memc_ok(&["estimate", &model, "--device", &device, "--json"]));
    let (peak, least) = (number(&estimate, "peak_bytes"), number(&estimate, "smallest_feasible_bytes"));
    let mut first: [Option<Ran>; 2] = [None, None];
    let none: &[&str] = &["--no-host-ops"];
    // Weights of convolutions are read once more after their updates here.
    let hosted: &[&str] = &["--host", if model.contains("cnn") { "fc.weight" } else { "*weight*" }];
    let plans = [(100, none), (60, none), (40, none), (60, hosted)];
    for (i, (percent, host)) in plans.into_iter().enumerate() {
        let budget = format!("{}B", least.max(RESERVE + (peak - RESERVE) * percent / 100));
        let path = folder.path().join("model.plan");
        let plan = path.display().to_string();
        let compile =
            ["compile", &model, "--device", &device, "--gpu-mem", &budget, "--effort", "1", "-o", &plan];
        memc_ok(&[&compile[..], host].concat());
        let file = PlanFile::open(&path).unwrap();
        let ways = [(false, false), (false, true), (true, false), (true, true)];
        for (has_libraries, no_graph) in ways {
            let seed = (i > 0).then_some(i as u64);
            let behaviour = Behaviour { seed, has_libraries, ..Behaviour::default() };
            let mock = Gpu::new("mock", move || Ok(Mock::new(behaviour)), true).without_graph(no_graph);
            let to = folder.path().join("mock.safetensors");
            let options = RunOptions {
                steps: Some(STEPS),
                synthetic: true,
                lr: RATE.parse().unwrap(),
                save: Some(to.clone()),
                ..RunOptions::default()
            };
            let mut losses = Losses::default();
            run_on(&mock, &file, &options, &mut losses)
                .unwrap_or_else(|e| panic!("{model} at {percent} %: {e}"));
            let ran = Ran { losses: losses.0, states: saved(&to) };
            let first = &mut first[usize::from(has_libraries)];
            let Some(first) = first else {
                let lr = RATE.parse().unwrap();
                let options = RunOptions { steps: Some(STEPS), synthetic: true, lr, ..RunOptions::default() };
                let cpu = run(&path, folder.path(), options);
                compare(&model, &ran, &cpu);
                *first = Some(ran);
                continue;
            };
            let at = format!("{model} at {percent} %, no graph: {no_graph}");
            assert_eq!(first.losses, ran.losses, "{at}: losses depend on the plan");
            assert!(first.states == ran.states, "{at}: states depend on the plan");
        }
    }
}

fn compare(model: &str, ran: &Ran, cpu: &Ran) {
    assert_eq!(ran.losses.len(), cpu.losses.len());
    for (got, want) in ran.losses.iter().zip(&cpu.losses) {
        assert!(!far(*got, *want, LOSS), "{model}: losses {:?}, on the CPU {:?}", ran.losses, cpu.losses);
    }
    assert!(ran.states.keys().eq(cpu.states.keys()));
    for (name, want) in &cpu.states {
        let numbers = |bytes: &[u8]| -> Vec<f32> {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        for (i, (got, want)) in numbers(&ran.states[name]).iter().zip(numbers(want)).enumerate() {
            assert!(!far(*got, want, STATE), "{model}: {name} at {i} is {got}, on the CPU {want}");
        }
    }
}

#[test]
fn an_image_model_gives_the_same_bits_at_any_budget() {
    if has_compiler() {
        hold("cnn_bn_sgd");
    }
}

#[test]
fn a_language_model_gives_the_same_bits_at_any_budget() {
    if has_compiler() {
        hold("bert_tiny_nodrop_sgd");
    }
}

/// A measured profile plans for its device, with the measured times.
#[test]
fn a_measured_device_is_planned_for() {
    if !has_compiler() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.plan");
    let plan = path.display().to_string();
    let model = "models/mlp_s/training_model.onnx";
    let device = put(folder.path(), "device.json", PROFILE.as_bytes()).display().to_string();
    // Fused by modelled times and by measured ones, the ops could differ.
    memc_ok(&["compile", model, "--device", &device, "--no-fuse", "-o", &plan]);
    let open = || Ok(Mock::new(Behaviour::default()));
    let options = ProfileOptions { steps: 2, ..ProfileOptions::default() };
    let measured = profile_gpu(&open, &PlanFile::open(&path).unwrap(), &options).unwrap();
    let text = measured.to_json().to_string();
    let device = put(folder.path(), "measured.json", text.as_bytes()).display().to_string();
    let out = json(&memc_ok(&["compile", model, "--device", &device, "--no-fuse", "-o", &plan, "--json"]));
    assert_eq!(out["device"], "mock-gpu");
    let ops: u64 = measured.ops.iter().map(|op| op.time_ns).sum();
    assert!(number(&out, "ideal_ns") >= ops, "{out}");
}

/// Tuning changes no command: the checker proves a tuned plan as before, `dump` and `diff` name what is new
/// in it, it gives the bits of the untuned one, and compiling again gives the untuned one.
#[test]
fn a_tuned_plan_is_the_plan_with_a_section_more() {
    if !has_compiler() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [plan, tuned] =
        ["model.plan", "tuned.plan"].map(|name| folder.path().join(name).display().to_string());
    let model = "models/mlp_s/training_model.onnx";
    let device = put(folder.path(), "device.json", PROFILE.as_bytes()).display().to_string();
    let compile = ["compile", model, "--device", &device, "-o", &plan];
    memc_ok(&compile);
    let untuned = std::fs::read(&plan).unwrap();
    let behaviour = Behaviour { has_libraries: true, ..Behaviour::default() };
    let mut file = PlanFile::open(&plan).unwrap();
    let mut with = file.plan().clone();
    with.tuning = tune_gpu(&|| Ok(Mock::new(behaviour)), &file, &TuneOptions::default()).unwrap().tuning;
    let count = with.tuning.as_ref().unwrap().kernels.len();
    memc_plan::write(&tuned, &with, &mut file, &|| false).unwrap();
    assert!(memc_ok(&["check", &tuned, "--source", model, "--device", &device]).contains("proved"));
    let text = memc_ok(&["dump", &tuned]);
    assert!(
        text.starts_with("plan 2\n") && text.contains("\ntuning \"Mock GPU\" sm_90 rounding exact\n"),
        "{text}"
    );
    let object = json(&memc_ok(&["dump", &tuned, "--json"]));
    assert_eq!(object["tuning"]["kernels"].as_array().unwrap().len(), count);
    let differences = String::from_utf8(memc(&["diff", &plan, &tuned, "--all"]).stdout).unwrap();
    assert_eq!(
        differences.lines().filter(|line| line.starts_with("+ tuning of ")).count(),
        count,
        "{differences}"
    );
    assert!(differences.lines().all(|line| line.starts_with("+ tuning ")), "{differences}");
    let ran = [&plan, &tuned].map(|path| {
        let mock = Gpu::new("mock", move || Ok(Mock::new(behaviour)), true);
        let to = folder.path().join("mock.safetensors");
        let options = RunOptions {
            steps: Some(STEPS),
            synthetic: true,
            save: Some(to.clone()),
            ..RunOptions::default()
        };
        let mut losses = Losses::default();
        run_on(&mock, &PlanFile::open(path).unwrap(), &options, &mut losses).unwrap();
        (losses.0, saved(&to))
    });
    assert!(ran[0] == ran[1]);
    memc_ok(&compile);
    assert!(std::fs::read(&plan).unwrap() == untuned);
}
