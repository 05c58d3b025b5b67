//! The GPU's replay of plans, on a driver without a GPU: the runtime's path from plan to queues as it is.

use memc_gpu::GpuError;
use memc_runtime::gpu::Gpu;
use memc_runtime::{Error, RunOptions, run_on};

use crate::mock::{Behaviour, Mock, has_compiler};
use crate::{CLASSIFIER, Folder, Log, floats, steps};

/// Runs the plan on a mock; the losses and the bytes of the saved state.
fn on_mock(
    folder: &Folder,
    behaviour: Behaviour,
    check_memory: bool,
    options: &RunOptions,
) -> Result<(Vec<f32>, Vec<u8>), Error> {
    let device = Gpu::new("mock", move || Ok(Mock::new(behaviour)), check_memory);
    let path = folder.path("mock.safetensors");
    let options = RunOptions { save: Some(path.clone()), ..options.clone() };
    let mut log = Log::default();
    run_on(&device, &folder.plan(), &options, &mut log)?;
    Ok((log.losses, std::fs::read(path).expect("the state was saved")))
}

/// Random delays of all queues and poisoned memory change no bit of losses and states; they are the CPU's within
/// rounding.
#[test]
fn a_plan_gives_the_same_bits_at_any_timing() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    let plain = on_mock(&folder, Behaviour::default(), false, &steps(4)).unwrap();
    for seed in 0..40 {
        let behaviour = Behaviour { seed: Some(seed), ..Behaviour::default() };
        let got = on_mock(&folder, behaviour, seed % 2 == 0, &steps(4)).unwrap();
        assert_eq!(got, plain, "seed {seed}");
    }
    let (losses, states) = folder.run_and_save(&steps(4));
    let close = |a: f32, b: f32| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
    assert!(losses.iter().zip(&plain.0).all(|(a, b)| close(*a, *b)), "{losses:?} and {:?}", plain.0);
    for ((name, want), (_, got)) in floats(&states).iter().zip(&floats(&plain.1)) {
        assert_eq!(want.len(), got.len());
        // AdamW's step has the size of the learning rate whatever the gradient's, so that rounding near zero shows.
        let limit = |b: f32| 1e-3 * (1.0 + b.abs());
        let far = want.iter().zip(got).position(|(b, a)| (a - b).abs() > limit(*b));
        assert_eq!(far, None, "{name} differs from the CPU's");
    }
}

/// A schedule whose waits do nothing computes something else: the mock does not order more than the plan.
#[test]
fn without_waits_timing_shows() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    let plain = on_mock(&folder, Behaviour::default(), true, &steps(4)).unwrap();
    let differs = (0..20).any(|seed| {
        let behaviour = Behaviour { seed: Some(seed), ignore_waits: true, ..Behaviour::default() };
        on_mock(&folder, behaviour, true, &steps(4)).unwrap() != plain
    });
    assert!(differs);
}

/// After a kernel has failed the run ends with the device's error, and no state is saved from what it left.
#[test]
fn nothing_is_saved_after_a_failure() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    for crash_at in [0, 7, 20] {
        let behaviour = Behaviour { crash_at: Some(crash_at), ..Behaviour::default() };
        let error = on_mock(&folder, behaviour, false, &steps(4)).unwrap_err();
        assert_eq!(error.exit_code(), 8, "{error}");
        assert!(error.to_string().contains("can be trusted"), "{error}");
        assert_eq!(folder.entries(), ["model.plan"]);
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
    let none = Gpu::new("none", || Err::<Mock, _>(GpuError::NoDevice), false);
    let error = run_on(&none, &folder.plan(), &steps(1), &mut Log::default()).unwrap_err();
    assert_eq!(error.exit_code(), 8, "{error}");
}
