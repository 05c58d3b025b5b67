//! The GPU's replay of plans, on a driver without a GPU: the runtime's path from plan to queues as it is.

use memc_gpu::{Driver, GpuError, Graphs, Sizes, Stream};
use memc_runtime::gpu::Gpu;
use memc_runtime::{Error, InputSource, RunOptions, run_on};

use crate::mock::{Behaviour, Mock, has_compiler};
use crate::{CLASSIFIER, Folder, Log, floats, host_waits, npy, steps};

/// Runs the plan on a mock; the losses and the bytes of the saved state.
fn on_mock(
    folder: &Folder,
    behaviour: Behaviour,
    check_memory: bool,
    options: &RunOptions,
) -> Result<(Vec<f32>, Vec<u8>), Error> {
    let device = Gpu::new("mock", move || Ok(Mock::new(behaviour)), check_memory);
    let device = device.without_graph(options.no_graph);
    let path = folder.path("mock.safetensors");
    let options = RunOptions { save: Some(path.clone()), ..options.clone() };
    let mut log = Log::default();
    run_on(&device, &folder.plan(), &options, &mut log)?;
    Ok((log.losses, std::fs::read(path).expect("the state was saved")))
}

fn no_graph(steps: u64) -> RunOptions {
    RunOptions { steps: Some(steps), synthetic: true, no_graph: true, ..RunOptions::default() }
}

/// Random delays of all queues, random orders of captured commands and poisoned memory change no bit of
/// losses and states, whether the step is captured or not; they are the CPU's within rounding, with libraries
/// and without.
#[test]
fn a_plan_gives_the_same_bits_at_any_timing() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    for has_libraries in [false, true] {
        let behaviour = Behaviour { has_libraries, ..Behaviour::default() };
        let plain = on_mock(&folder, behaviour, false, &no_graph(5)).unwrap();
        for seed in 0..40 {
            let behaviour = Behaviour { seed: Some(seed), ..behaviour };
            for options in [steps(5), no_graph(5)] {
                let got = on_mock(&folder, behaviour, seed % 2 == 0, &options).unwrap();
                let how = format!("no graph: {}, libraries: {has_libraries}", options.no_graph);
                assert_eq!(got, plain, "seed {seed}, {how}");
            }
            let waits = Folder::of(&host_waits());
            let got = on_mock(&waits, behaviour, true, &steps(5)).unwrap();
            assert_eq!(got, plain, "seed {seed}, the host waits, libraries: {has_libraries}");
        }
        assert_close(&folder, &plain);
        // Long enough for both ways of running a step to be timed, and one of them to go on.
        let plain = on_mock(&folder, behaviour, false, &no_graph(14)).unwrap();
        for seed in 0..4 {
            let behaviour = Behaviour { seed: Some(seed), ..behaviour };
            assert_eq!(
                on_mock(&folder, behaviour, true, &steps(14)).unwrap(),
                plain,
                "seed {seed}, 14 steps"
            );
        }
    }
}

/// A plan that reads the step number late in a step, when the host has the loss.
fn reads_late() -> String {
    let late = "  h2d copy host+8448:4 -> dev+8448:4\n  h2d copy host+8512:8 -> dev+8512:8\n";
    let (moments, update) = ("  h2d record e3\n", "  compute launch k6 ");
    assert!([late, moments, update].iter().all(|part| CLASSIFIER.matches(part).count() == 1));
    let text = CLASSIFIER.replace(late, "").replace(moments, &format!("{late}{moments}"));
    let text =
        text.replace("  compute wait e3\n", "").replace(update, &format!("  compute wait e3\n{update}"));
    text.replace(
        "  d2h record e5\n}\nbody {\n",
        "  d2h record e5\n  h2d record e3\n}\nbody {\n  host wait e3\n",
    )
}

/// Where the host writes inputs while the step before runs, each step still has its own batch and number: in
/// a graph and issued, at any timing.
#[test]
fn steps_that_overlap_have_their_own_inputs() {
    if !has_compiler() {
        return;
    }
    let options = |folder: &Folder, no_graph| {
        let numbers: Vec<u8> =
            (0..8 * 32 * 64u32).flat_map(|i| ((i % 97) as f32 / 97.0).to_le_bytes()).collect();
        npy(&folder.path("input.npy"), "<f4", &[8, 32, 64], &numbers);
        let labels: Vec<u8> = (0..8 * 32u64).flat_map(|i| (i * i % 10).to_le_bytes()).collect();
        npy(&folder.path("labels.npy"), "<i8", &[8, 32], &labels);
        let input = |name: &str| (name.to_owned(), InputSource::Path(folder.path(&format!("{name}.npy"))));
        RunOptions { inputs: vec![input("input"), input("labels")], no_graph, synthetic: false, ..steps(8) }
    };
    // So that the step number counts.
    let corrected =
        |text: &str| Folder::of(&text.replace("weight_decay = 0.01", "weight_decay = 0.01, bias_correction"));
    let folder = corrected(CLASSIFIER);
    let plain = on_mock(&folder, Behaviour::default(), false, &options(&folder, true)).unwrap();
    for late in [host_waits(), reads_late()].map(|text| corrected(&text)) {
        for (seed, no_graph) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
            let behaviour = Behaviour { seed: Some(seed), ..Behaviour::default() };
            let got = on_mock(&late, behaviour, seed % 2 == 0, &options(&late, no_graph)).unwrap();
            assert_eq!(got, plain, "seed {seed}, no graph: {no_graph}");
        }
    }
}

/// Requires losses and states to be the CPU's within rounding.
fn assert_close(folder: &Folder, plain: &(Vec<f32>, Vec<u8>)) {
    let (losses, states) = folder.run_and_save(&steps(5));
    let close = |a: f32, b: f32| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
    assert!(losses.iter().zip(&plain.0).all(|(a, b)| close(*a, *b)), "{losses:?} and {:?}", plain.0);
    for ((name, want), (_, got)) in floats(&states).iter().zip(&floats(&plain.1)) {
        assert_eq!(want.len(), got.len());
        // AdamW's step has the size of the learning rate whatever the gradient's, so that rounding near zero
        // shows.
        let limit = |b: f32| 1e-3 * (1.0 + b.abs());
        let far = want.iter().zip(got).position(|(b, a)| (a - b).abs() > limit(*b));
        assert_eq!(far, None, "{name} differs from the CPU's");
    }
}

/// A schedule in which any one event of the body is not waited for computes something else: neither queues
/// nor graphs of the mock order more than the plan. The events are those of the plan, and what the two graphs
/// have of the one that a body waits for before it records it.
#[test]
fn without_a_wait_timing_shows() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    let plain = on_mock(&folder, Behaviour::default(), true, &no_graph(6)).unwrap();
    // Of the plan's events 5 and 6 cross the border of a graph, as those after the plan's, with the ends of
    // three queues.
    let eager = (0..6).map(|event| (no_graph(6), 1 << event));
    let captured = (0..5).map(|event| 1 << event).chain([1 << 7 | 1 << 12]).map(|mask| (steps(6), mask));
    for (options, ignored_waits) in eager.chain(captured) {
        let differs = (0..60).any(|seed| {
            let behaviour = Behaviour { seed: Some(seed), ignored_waits, ..Behaviour::default() };
            // Values read too early may also be refused, as illegal labels.
            on_mock(&folder, behaviour, true, &options).map_or(true, |got| got != plain)
        });
        assert!(differs, "events {ignored_waits:#b}, no graph: {}", options.no_graph);
    }
}

/// A driver that captures nothing is told, with the way out.
#[test]
fn a_driver_that_cannot_capture_is_told() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    let behaviour = Behaviour { cannot_capture: true, ..Behaviour::default() };
    let error = on_mock(&folder, behaviour, false, &steps(2)).unwrap_err();
    assert_eq!(error.exit_code(), 8, "{error}");
    assert!(error.to_string().contains("INVALIDATED") && error.to_string().contains("--no-graph"), "{error}");
    on_mock(&folder, behaviour, false, &no_graph(2)).unwrap();
}

/// The mock's captures have CUDA's isolation: what was recorded outside cannot be waited for inside.
#[test]
fn a_capture_waits_for_nothing_outside() {
    let mut mock = Mock::new(Behaviour::default());
    mock.reserve(Sizes::default(), 2, 0).unwrap();
    mock.record(Stream::DeviceToHost, 0).unwrap();
    mock.begin_capture().unwrap();
    mock.record(Stream::Compute, 1).unwrap();
    mock.wait(Stream::HostToDevice, 1).unwrap();
    let error = mock.wait(Stream::Compute, 0).unwrap_err();
    assert!(error.to_string().contains("ISOLATION"), "{error}");
    assert!(mock.end_capture().is_err());
    mock.begin_capture().unwrap();
    mock.wait_outside(Stream::Compute, 0).unwrap();
    let graph = mock.end_capture().unwrap();
    mock.replay(graph).unwrap();
    mock.synchronize().unwrap();
}

/// A body with the host between commands of the device runs command by command, as a note says, with the same
/// bits.
#[test]
fn a_body_that_is_no_graph_runs_and_is_told() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    let plain = on_mock(&folder, Behaviour::default(), false, &steps(4)).unwrap();
    let read = "  host wait e6\n  host read o0\n";
    let copied = "  d2h record e6\n";
    assert!(CLASSIFIER.contains(read) && CLASSIFIER.contains(copied));
    let folder = Folder::of(&CLASSIFIER.replace(read, "").replace(copied, &format!("{copied}{read}")));
    assert_eq!(on_mock(&folder, Behaviour::default(), false, &steps(4)).unwrap(), plain);
    let device = Gpu::new("mock", || Ok(Mock::new(Behaviour::default())), false);
    let mut log = Log::default();
    run_on(&device, &folder.plan(), &steps(2), &mut log).unwrap();
    assert!(log.notes.iter().any(|note| note.contains("command by command")), "{:?}", log.notes);
}

/// Memory that is not as planned changes no bit, and is told: a host arena that cannot be page-locked, with
/// what its copies cost, and kernels that take more of the device than the plan sets aside.
#[test]
fn memory_that_is_not_as_planned_is_told() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    let plain = on_mock(&folder, Behaviour::default(), false, &steps(3)).unwrap();
    let pageable = Behaviour { pageable: true, ..Behaviour::default() };
    let loads = |loads| Behaviour { loads, ..Behaviour::default() };
    for (behaviour, told) in [
        (pageable, &["page-locked", "GB/s", "ms", "larger --gpu-mem"][..]),
        (loads(5 << 20), &["5.00 MiB", "budget of 16.00 KiB", "memrun profile"]),
        (loads(1 << 20), &[]),
    ] {
        assert_eq!(on_mock(&folder, behaviour, true, &steps(3)).unwrap(), plain);
        let device = Gpu::new("mock", move || Ok(Mock::new(behaviour)), false);
        let mut log = Log::default();
        run_on(&device, &folder.plan(), &steps(1), &mut log).unwrap();
        let notes: Vec<&String> = log.notes.iter().filter(|note| !note.contains("synthetic")).collect();
        assert_eq!(notes.len(), usize::from(!told.is_empty()), "{notes:?}");
        assert!(told.iter().all(|part| notes[0].contains(part)), "{notes:?}");
    }
}

/// After a kernel has failed the run ends with the device's error, and no state is saved from what it left.
#[test]
fn nothing_is_saved_after_a_failure() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    for crash_at in [0, 7, 20] {
        let has_libraries = crash_at != 7;
        let behaviour = Behaviour { crash_at: Some(crash_at), has_libraries, ..Behaviour::default() };
        let error = on_mock(&folder, behaviour, false, &steps(4)).unwrap_err();
        assert_eq!(error.exit_code(), 8, "{error}");
        assert!(error.to_string().contains("can be trusted"), "{error}");
        assert_eq!(folder.entries(), ["model.plan"]);
    }
}

/// The unplanned run on the same device has the same bits at any timing, and a plan that computes something
/// else is told.
#[test]
fn a_run_is_verified_on_its_own_device() {
    if !has_compiler() {
        return;
    }
    let options = RunOptions { verify: true, ..steps(3) };
    for (text, seeds) in [(CLASSIFIER, 0..4), (UPDATES, 4..6)] {
        let folder = Folder::of(text);
        for seed in seeds {
            on_mock(&folder, Behaviour { seed: Some(seed), ..Behaviour::default() }, seed % 2 == 0, &options)
                .unwrap();
        }
    }
    // Of the limit the plan takes 2,048 bytes, and the unplanned run some more.
    let limited = RunOptions { host_mem: Some(2049), ..options.clone() };
    let error = on_mock(&Folder::of(UPDATES), Behaviour::default(), false, &limited).unwrap_err();
    assert_eq!(error.exit_code(), 5, "{error}");
    let said =
        ["takes 2.00 KiB (2,048 B)", "together more than --host-mem 2.00 KiB (2,049 B)", "run without"];
    assert!(said.iter().all(|part| error.to_string().contains(part)), "{error}");
    let alone = RunOptions { verify: false, ..limited };
    on_mock(&Folder::of(UPDATES), Behaviour::default(), false, &alone).unwrap();
    let right = "launch k0 r dev+0:64 r dev+2560:64";
    assert!(UPDATES.contains(right));
    let folder = Folder::of(&UPDATES.replace(right, "launch k0 r dev+0:64 r dev+1280:64"));
    let error = on_mock(&folder, Behaviour::default(), false, &options).unwrap_err();
    assert_eq!(error.exit_code(), 6, "{error}");
    assert!(error.to_string().contains("state `a`"), "{error}");
}

/// A label out of range ends the run in the words of the CPU device, in its step, and nothing is saved.
#[test]
fn a_label_out_of_range_is_told_as_on_the_cpu() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    // Right labels in the first step, one of the second is wrong.
    let mut labels: Vec<u8> = (0..64i64).flat_map(|i| (i % 10).to_le_bytes()).collect();
    labels[8 * 40..8 * 41].copy_from_slice(&10i64.to_le_bytes());
    npy(&folder.path("y.npy"), "<i8", &[2, 32], &labels);
    let inputs = vec![("labels".to_owned(), folder.path("y.npy").into())];
    let options = RunOptions { inputs, ..steps(2) };
    for check_memory in [false, true] {
        let error = on_mock(&folder, Behaviour::default(), check_memory, &options).unwrap_err();
        let wanted = folder.run(&options).unwrap_err();
        assert_eq!((error.exit_code(), error.to_string()), (3, wanted.to_string()));
    }
    // The state after the first step is saved, as the second does not begin.
    assert_eq!(folder.entries(), ["mock.safetensors", "model.plan", "y.npy"]);
}

/// Three updates, the last two of which no event separates.
const UPDATES: &str = "plan 1
producer hand
model updates
budget 16384 reserve 0
arena dev 4096 host 2048
kernel k0 = sgd(f32[16], f32[16], f32[]) -> (f32[16])
kernel k1 = sgd(f32[300], f32[300], f32[]) -> (f32[300])
state s0 a param f32[16] dev+0:64 random 1 uniform:0.25
state s1 b param f32[300] dev+64:1200 random 2 uniform:0.25
state s2 c param f32[16] dev+1280:64 random 3 uniform:0.25
input i0 g f32[300] host+0:1200 data left micro 0 range 0..0
input i1 h f32[16] host+1216:64 data right micro 0 range 0..0
input i2 lr f32[] host+1280:4 rate 0.05
events 3
prologue {
  host load s0
  host load s1
  host load s2
  h2d record e0
  compute record e2
}
body {
  host wait e0
  host write i0
  host write i1
  host write i2
  h2d wait e2
  h2d copy host+0:1200 -> dev+1344:1200
  h2d copy host+1216:64 -> dev+2560:64
  h2d copy host+1280:4 -> dev+2624:4
  h2d record e0
  compute wait e0
  compute launch k0 r dev+0:64 r dev+2560:64 r dev+2624:4 w dev+0:64
  compute record e1
  compute launch k1 r dev+64:1200 r dev+1344:1200 r dev+2624:4 w dev+64:1200
  compute free dev+1344:1200
  compute launch k0 r dev+1280:64 r dev+2560:64 r dev+2624:4 w dev+1280:64
  compute record e2
}
epilogue {
  host wait e2
  host store s0
  host store s1
  host store s2
}
source text
|module @updates graph
|
|%g = input {source = \"left\"} : f32[300]
|%h = input {source = \"right\"} : f32[16]
|%lr = input {feed = learning_rate, default = 0.05} : f32[]
|%a = state {role = param, init = uniform(1, 0.25)} : f32[16]
|%b = state {role = param, init = uniform(2, 0.25)} : f32[300]
|%c = state {role = param, init = uniform(3, 0.25)} : f32[16]
|%a_new = sgd %a, %h, %lr : f32[16]
|%b_new = sgd %b, %g, %lr : f32[300]
|%c_new = sgd %c, %h, %lr : f32[16]
|carry %a <- %a_new
|carry %b <- %b_new
|carry %c <- %c_new
";

/// Updates that follow each other share a launch, except where memory is poisoned between them; the bits are
/// the CPU's.
#[test]
fn updates_share_a_launch() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(UPDATES);
    let (_, wanted) = folder.run_and_save(&steps(3));
    // Two launches a step, or three: the mock fails at the launch with this number.
    for (check_memory, launches) in [(false, 6), (true, 9)] {
        let fails = |crash_at| Behaviour { crash_at: Some(crash_at), ..Behaviour::default() };
        let (_, states) = on_mock(&folder, fails(launches), check_memory, &steps(3)).unwrap();
        assert_eq!(floats(&states), floats(&wanted));
        assert!(on_mock(&folder, fails(launches - 1), check_memory, &steps(3)).is_err());
    }
}

/// Scratch that the plan does not list counts against the budget.
#[test]
fn a_budget_without_room_for_scratch_is_refused() {
    let folder = Folder::of(&CLASSIFIER.replace("budget 16384", "budget 15400"));
    let error = on_mock(&folder, Behaviour::default(), false, &steps(1)).unwrap_err();
    assert_eq!(error.exit_code(), 5, "{error}");
    assert!(error.to_string().contains("scratch") && error.to_string().contains("reserve_bytes"), "{error}");
}

/// A device that is not there is what a run says, also of a plan that would not fit one.
#[test]
fn a_device_that_is_not_there_comes_before_what_it_would_need() {
    let folder = Folder::of(&CLASSIFIER.replace("budget 16384", "budget 15400"));
    let none = Gpu::new("none", || Err::<Mock, _>(GpuError::NoDevice { visible: None }), false);
    let error = run_on(&none, &folder.plan(), &steps(1), &mut Log::default()).unwrap_err();
    assert_eq!(error.exit_code(), 8, "{error}");
}
