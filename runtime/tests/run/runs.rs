//! Running plans: meaning, timing, memory.

use memc_runtime::{Rate, RunOptions, Stage, cpu};

use crate::{CLASSIFIER, Folder, Log, floats, npy, parse, report, steps};

fn with(steps: u64, cpu: cpu::Options) -> RunOptions {
    RunOptions { steps: Some(steps), synthetic: true, cpu, ..RunOptions::default() }
}

/// The planned run equals the unplanned one bit for bit at every step, and learns its batch.
#[test]
fn a_planned_run_equals_the_unplanned_one() {
    let folder = Folder::of(CLASSIFIER);
    let mut log = Log::default();
    let report = report(&folder, &RunOptions { verify: true, ..steps(20) }, &mut log);
    assert!(report.verified && !report.interrupted);
    assert_eq!(log.steps, (1..=20).collect::<Vec<_>>());
    assert!(log.losses[0] > 2.0 && log.losses[19] < 0.5, "{:?}", log.losses);
}

/// Whoever waits is told what comes before the steps, between and behind them, in this order.
#[test]
fn a_run_tells_its_stages() {
    let mut log = Log::default();
    report(&Folder::of(CLASSIFIER), &RunOptions { verify: true, ..steps(2) }, &mut log);
    let steps = log.stages.iter().position(|stage| *stage == Stage::Steps).expect("there are steps");
    let (before, after) = (&log.stages[..steps], &log.stages[steps + 1..]);
    assert!(before.iter().all(|stage| matches!(stage, Stage::Before(_))), "{before:?}");
    for what in ["proving the schedule", "setting initial values", "preparing the unplanned run"] {
        assert!(before.contains(&Stage::Before(what)), "{before:?} lacks {what}");
    }
    assert!(matches!(after, [Stage::After(_)]), "{after:?}");
}

/// Threads, hostile timing and poisoned memory change no bit of losses and states.
#[test]
fn results_depend_on_nothing_but_the_data() {
    let folder = Folder::of(CLASSIFIER);
    let expected = folder.run_and_save(&steps(5));
    for threads in [1, 3] {
        let options = cpu::Options { threads, ..cpu::Options::default() };
        assert_eq!(folder.run_and_save(&with(5, options)), expected, "{threads} threads");
    }
    for seed in 0..8 {
        let options =
            cpu::Options { threads: 2, check_memory: seed % 2 == 0, delay_seed: Some(seed), slow: None };
        assert_eq!(folder.run_and_save(&with(5, options)), expected, "delay seed {seed}");
    }
}

/// A plan that reads what it has freed gives NaN in checking mode, and is not noticed without.
#[test]
fn poison_shows_a_read_of_freed_memory() {
    let free = "compute free dev+12608:2560\n";
    let launch = "  compute launch k3";
    let (before, after) = CLASSIFIER.split_once(launch).expect("the launch is there");
    let (line, after) = after.split_once('\n').expect("a line");
    let text = format!("{before}{launch}{line}\n  {free}{after}");
    let folder = Folder::of(&text);
    let loss = |check_memory| {
        folder.run(&with(2, cpu::Options { check_memory, ..cpu::Options::default() })).unwrap()[1]
    };
    assert!(loss(true).is_nan());
    assert!(loss(false).is_finite());
    let checked =
        RunOptions { verify: true, ..with(2, cpu::Options { check_memory: true, ..Default::default() }) };
    let error = folder.run(&checked).unwrap_err();
    assert_eq!(error.exit_code(), 6, "{error}");
    assert!(error.to_string().contains("`loss`"), "{error}");
}

/// An event stands for its most recent record at the time of the wait: the second wait must not be satisfied
/// by, nor wait for, any other record. The host reads after each copy what the kernel before it made.
#[test]
fn waits_bind_to_the_most_recent_record() {
    let text = "
plan 1
arena dev 64 host 192
kernel k0 = add(f32[16], f32[16]) -> (f32[16])
state s0 x param f32[16] dev+0:64 random 0 ones
output o0 twice f32[16] host+0:64 output
output o1 fourfold f32[16] host+64:64 loss
events 2
prologue {
  host load s0
  d2h record e1
}
body {
  compute wait e1
  compute launch k0 r dev+0:64 r dev+0:64 w dev+0:64
  compute record e0
  d2h wait e0
  d2h copy dev+0:64 -> host+0:64
  d2h record e1
  compute wait e1
  compute launch k0 r dev+0:64 r dev+0:64 w dev+0:64
  compute record e0
  d2h wait e0
  d2h copy dev+0:64 -> host+64:64
  d2h record e1
  host wait e1
  host read o0
  host read o1
}
epilogue {
  host store s0
}
source text
|module @powers graph
|
|%x = state {role = param, init = ones} : f32[16]
|%twice = add %x, %x : f32[16]
|%fourfold = add %twice, %twice : f32[16]
|yield output %twice as \"twice\"
|yield loss %fourfold as \"fourfold\"
|carry %x <- %fourfold
";
    let folder = Folder::of(text);
    for seed in 0..10 {
        let options = cpu::Options { threads: 1, check_memory: true, delay_seed: Some(seed), slow: None };
        let options = RunOptions { verify: true, ..with(4, options) };
        let losses = folder.run(&options).unwrap();
        assert_eq!(losses, [4.0, 16.0, 64.0, 256.0]);
    }
    let (_, saved) = folder.run_and_save(&steps(3));
    assert_eq!(floats(&saved)["x"], [64.0; 16]);
}

/// Labels out of range end the run with the op, the operand and the input named, and no thread hangs.
#[test]
fn bad_labels_are_named() {
    let folder = Folder::of(CLASSIFIER);
    let mut labels: Vec<u8> = (0..64i64).flat_map(|i| (i % 10).to_le_bytes()).collect();
    labels[8 * 35..8 * 36].copy_from_slice(&11i64.to_le_bytes());
    npy(&folder.path("y.npy"), "<i8", &[2, 32], &labels);
    let options = RunOptions { inputs: vec![("labels".to_owned(), folder.path("y.npy").into())], ..steps(2) };
    let mut log = Log::default();
    let error = memc_runtime::run(&folder.plan(), &options, &mut log).unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    for part in ["input `labels`", "step 2", "11 at [3] of", "0 to 9"] {
        assert!(error.to_string().contains(part), "{error} lacks {part}");
    }
    assert_eq!(log.steps, [1], "the first slice is good");
}

/// Arrays feed one slice to each step, or the same to all; both are what the unplanned run gets.
#[test]
fn arrays_feed_steps() {
    let folder = Folder::of(CLASSIFIER);
    let x: Vec<u8> =
        (0..3 * 2048u32).flat_map(|i| (((i * 37 % 101) as f32 - 50.0) / 50.0).to_le_bytes()).collect();
    npy(&folder.path("x.npy"), "<f4", &[3, 32, 64], &x);
    npy(&folder.path("one.npy"), "<f4", &[32, 64], &x[..8192]);
    let feed = |name: &str, n| RunOptions {
        inputs: vec![("input".to_owned(), folder.path(name).into())],
        verify: true,
        ..steps(n)
    };
    let (each, same) = (folder.run(&feed("x.npy", 3)).unwrap(), folder.run(&feed("one.npy", 3)).unwrap());
    assert_eq!(each[0], same[0]);
    assert_ne!(each[1], same[1]);
    let error = folder.run(&feed("x.npy", 4)).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("last for 3 steps"), "{error}");
}

/// Gradient accumulation feeds each micro-step its own slice, and the loss is their mean.
#[test]
fn micro_steps_have_their_own_slices() {
    let text = "
plan 1
arena dev 0 host 256
input i0 a f32[] host+0:4 data x micro 0 range 0..0
input i1 b f32[] host+64:4 data x micro 1 range 0..0
output o0 a f32[] host+0:4 loss
output o1 b f32[] host+64:4 loss
body {
  host write i0
  host write i1
  host read o0
  host read o1
}
";
    let folder = Folder::new(&parse(text));
    let x: Vec<u8> = [1f32, 2.0, 10.0, 20.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    npy(&folder.path("x.npy"), "<f4", &[4], &x);
    let feed = |n| RunOptions { inputs: vec![("x".to_owned(), folder.path("x.npy").into())], ..steps(n) };
    assert_eq!(folder.run(&feed(2)).unwrap(), [1.5, 15.0]);
    let error = folder.run(&feed(3)).unwrap_err().to_string();
    assert!(
        error.contains("4 slices") && error.contains("last for 2 steps with 2 of them in each"),
        "{error}"
    );
}

/// Arrays of another type, shape, order or length, and names that the model does not have, say what to do.
#[test]
fn arrays_that_do_not_fit_are_refused() {
    let folder = Folder::of(CLASSIFIER);
    let path = folder.path("x.npy");
    let fail = |name: &str| {
        let inputs = vec![(name.to_owned(), path.clone().into())];
        let error = folder.run(&RunOptions { inputs, ..steps(1) }).unwrap_err();
        (error.exit_code(), error.to_string())
    };
    let expect = |(code, text): (u8, String), exit: u8, parts: &[&str]| {
        assert_eq!(code, exit, "{text}");
        parts.iter().for_each(|part| assert!(text.contains(part), "{text} lacks {part}"));
    };
    npy(&path, "<f8", &[32, 64], &[0; 8 * 2048]);
    expect(fail("input"), 3, &["<f8", "astype(numpy.float32)", "`input`"]);
    expect(fail("labels"), 3, &["astype(numpy.int64)"]);
    expect(fail("inputs"), 2, &["no such input", "`input`, `labels`"]);
    npy(&path, ">f4", &[32, 64], &[0; 4 * 2048]);
    expect(fail("input"), 3, &["big-endian"]);
    npy(&path, "<f4", &[64, 32], &[0; 4 * 2048]);
    expect(fail("input"), 3, &["[64, 32]", "[32, 64]"]);
    npy(&path, "<f4", &[32, 64], &[0; 4 * 2048 - 1]);
    expect(fail("input"), 3, &["copy it again"]);
    npy(&path, "<f4", &[1 << 62, 32, 64], &[0; 4 * 2048]);
    expect(fail("input"), 3, &["x.npy"]);
    std::fs::write(&path, [b"\x93NUMPY\x02\x00\xff\xff\xff\xff".as_slice(), &[b'('; 5000]].concat()).unwrap();
    expect(fail("input"), 3, &["too long"]);
    std::fs::write(&path, [b"\x93NUMPY\x01\x00\xf4\x03".as_slice(), &[b'('; 5000]].concat()).unwrap();
    expect(fail("input"), 3, &["not a .npy file"]);
    std::fs::write(&path, b"no array").unwrap();
    expect(fail("input"), 3, &["not a .npy file"]);
    std::fs::remove_file(&path).unwrap();
    expect(fail("input"), 74, &["x.npy"]);
}

/// An interrupt ends the run after the current step, and the state is saved.
#[test]
fn an_interrupt_ends_the_run_at_a_step() {
    let folder = Folder::of(CLASSIFIER);
    let path = folder.path("saved.safetensors");
    let mut log = Log { stop_after: Some(2), ..Log::default() };
    let options = RunOptions { save: Some(path.clone()), ..steps(10) };
    let report = report(&folder, &options, &mut log);
    assert!(report.interrupted && report.steps == 2);
    let stopped = std::fs::read(path).unwrap();
    assert_eq!(stopped, folder.run_and_save(&steps(2)).1);
}

/// Synthetic data and rates follow their options.
#[test]
fn seed_and_rate_matter() {
    let folder = Folder::of(CLASSIFIER);
    let losses = |seed, lr: Option<f32>| {
        let lr = lr.map_or(Rate::Plan, Rate::Constant);
        folder.run(&RunOptions { seed, lr, ..steps(2) }).unwrap()
    };
    let base = losses(0, None);
    assert_eq!(base, losses(0, Some(0.05)), "the plan's default");
    assert_ne!(base[0], losses(1, None)[0]);
    assert_eq!(base[0], losses(0, Some(0.5))[0]);
    assert_ne!(base[1], losses(0, Some(0.5))[1]);
}
