//! Runs as trainings: passes over data, schedules, saves in between.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use memc_runtime::{Error, InputSource, Rate, RunOptions};
use serde_json::Value;

use crate::command::{command, memrun, text};
use crate::{CLASSIFIER, Folder, Log, npy};

/// Sixteen batches' worth of samples and labels.
const SAMPLES: usize = 16 * 32 + 5;

fn data(folder: &Folder) {
    let x: Vec<u8> = (0..(SAMPLES * 64) as u32)
        .flat_map(|i| (((i.wrapping_mul(2_654_435_761) >> 16) as f32 - 32_768.0) / 32_768.0).to_le_bytes())
        .collect();
    let y: Vec<u8> = (0..SAMPLES as i64).flat_map(|i| (i * 7 % 10).to_le_bytes()).collect();
    npy(&folder.path("x.npy"), "<f4", &[SAMPLES, 64], &x);
    npy(&folder.path("y.npy"), "<i8", &[SAMPLES], &y);
}

fn fed(folder: &Folder) -> RunOptions {
    let source = |name: &str, file: &str| (name.to_owned(), InputSource::Path(folder.path(file)));
    RunOptions { inputs: vec![source("input", "x.npy"), source("labels", "y.npy")], ..RunOptions::default() }
}

fn run(folder: &Folder, options: &RunOptions) -> Result<Log, Error> {
    let mut log = Log::default();
    memc_runtime::run(&folder.plan(), options, &mut log).map(|_| log)
}

/// Inputs without data are refused with their types; synthetic data is a choice.
#[test]
fn data_is_required() {
    let folder = Folder::of(CLASSIFIER);
    let error = folder.run(&RunOptions::default()).expect_err("no data");
    assert_eq!(error.exit_code(), 2);
    let said = error.to_string();
    for part in ["`input` f32[32,64]", "`labels` i64[32]", "--input input=@input.npy", "--synthetic"] {
        assert!(said.contains(part), "{said} lacks {part}");
    }
}

/// Passes read whole batches of samples; shuffled passes differ; a resumed run reads on, to the bit.
#[test]
fn passes_over_samples() {
    let folder = Folder::of(CLASSIFIER);
    data(&folder);
    let passes = |epochs| RunOptions { epochs: Some(u64::into(epochs)), ..fed(&folder) };
    let log = run(&folder, &passes(2)).expect("two passes");
    assert_eq!(log.steps, (1..=32).collect::<Vec<u64>>());
    assert!(
        log.notes.iter().any(|note| note.contains("16 steps and leaves out 5 samples")),
        "{:?}",
        log.notes
    );
    let shuffled = RunOptions { shuffle: Some(3), ..passes(2) };
    let whole =
        run(&folder, &RunOptions { save: Some(folder.path("whole")), ..shuffled.clone() }).expect("shuffled");
    assert_ne!(whole.losses, log.losses);
    let half = RunOptions { steps: Some(11), save: Some(folder.path("half")), ..shuffled.clone() };
    let first = run(&folder, &half).expect("the first part");
    let rest = RunOptions { resume: Some(folder.path("half")), save: Some(folder.path("rest")), ..shuffled };
    let second = run(&folder, &rest).expect("the rest");
    assert_eq!([first.losses, second.losses].concat(), whole.losses);
    let read = |name: &str| std::fs::read(folder.path(name)).expect("a saved state");
    assert_eq!(read("rest"), read("whole"));
    let over =
        run(&folder, &RunOptions { resume: Some(folder.path("rest")), ..passes(2) }).expect_err("over");
    assert!(over.to_string().contains("more epochs"), "{over}");
    let short = run(&folder, &RunOptions { steps: Some(17), ..fed(&folder) }).expect_err("too few");
    assert!(
        short.to_string().contains("last for 16 steps") && short.to_string().contains("--epochs"),
        "{short}"
    );
}

/// Saves in between change no bit; the last of them are kept.
#[test]
fn saves_in_between_change_nothing() {
    let folder = Folder::of(CLASSIFIER);
    data(&folder);
    let plain = RunOptions { steps: Some(12), save: Some(folder.path("plain.st")), ..fed(&folder) };
    let log = run(&folder, &plain).expect("plain");
    for (name, keep) in [("one.st", None), ("some.st", Some(2))] {
        let options =
            RunOptions { save: Some(folder.path(name)), save_every: Some(3), keep, ..plain.clone() };
        assert_eq!(run(&folder, &options).expect(name).losses, log.losses, "{name}");
        let read = |name: &str| std::fs::read(folder.path(name)).expect("a saved state");
        assert_eq!(read(name), read("plain.st"), "{name}");
    }
    let kept: Vec<String> = folder.entries().into_iter().filter(|name| name.starts_with("some-")).collect();
    assert_eq!(kept, ["some-00000006.st", "some-00000009.st"]);
    let nine = RunOptions { steps: Some(9), save: Some(folder.path("nine.st")), ..fed(&folder) };
    run(&folder, &nine).expect("nine steps");
    let read = |name: &str| std::fs::read(folder.path(name)).expect("a saved state");
    assert_eq!(read("some-00000009.st"), read("nine.st"));
}

/// A label out of range ends the run before its step, and the state of the step before is saved.
#[test]
fn bad_data_loses_no_step() {
    let folder = Folder::of(CLASSIFIER);
    data(&folder);
    let mut labels: Vec<u8> = (0..SAMPLES as i64).flat_map(|i| (i * 7 % 10).to_le_bytes()).collect();
    labels[8 * (32 * 6 + 4)..][..8].copy_from_slice(&10i64.to_le_bytes());
    npy(&folder.path("y.npy"), "<i8", &[SAMPLES], &labels);
    let options = RunOptions { steps: Some(16), save: Some(folder.path("left.st")), ..fed(&folder) };
    let mut log = Log::default();
    let error = memc_runtime::run(&folder.plan(), &options, &mut log).expect_err("a bad label");
    assert_eq!((error.exit_code(), log.steps.len()), (3, 6));
    assert!(error.to_string().contains("step 7: 10 at [4]"), "{error}");
    assert!(
        log.notes.iter().any(|note| note.contains("after step 6") && note.contains("--resume")),
        "{:?}",
        log.notes
    );
    let six = RunOptions { steps: Some(6), save: Some(folder.path("six.st")), ..fed(&folder) };
    run(&folder, &six).expect("six steps");
    let read = |name: &str| std::fs::read(folder.path(name)).expect("a saved state");
    assert_eq!(read("left.st"), read("six.st"));
}

/// A schedule gives each step its rate, the same as an array of these rates, also where a run is resumed.
#[test]
fn rates_follow_a_schedule() {
    let folder = Folder::of(CLASSIFIER);
    data(&folder);
    let schedule: Rate = "base=0.2,warmup=3,cosine=10".parse().expect("a schedule");
    let Rate::Schedule(rates) = &schedule else { panic!("no schedule") };
    let list: Vec<u8> = (1..=10).flat_map(|step| rates.rate(step, 0.0).to_le_bytes()).collect();
    npy(&folder.path("lr.npy"), "<f4", &[10], &list);
    let with = |lr: Rate, steps| RunOptions { steps: Some(steps), lr, ..fed(&folder) };
    let log = run(&folder, &with(schedule.clone(), 10)).expect("a schedule");
    let array = run(&folder, &with(Rate::File(folder.path("lr.npy")), 10)).expect("an array");
    assert_eq!(log.losses, array.losses);
    let first = RunOptions { save: Some(folder.path("s")), ..with(schedule.clone(), 4) };
    let first = run(&folder, &first).expect("four steps");
    let rest = RunOptions { resume: Some(folder.path("s")), ..with(schedule, 6) };
    let rest = run(&folder, &rest).expect("the rest");
    assert_eq!([first.losses, rest.losses].concat(), log.losses);
    let long = run(&folder, &with(Rate::File(folder.path("lr.npy")), 11)).expect_err("too few rates");
    assert!(long.to_string().contains("10 rates do not last for step 11"), "{long}");
}

/// A loss that is no number ends the run with its own code, and leaves the saves before it.
#[test]
fn a_run_stops_at_nan() {
    let folder = Folder::of(CLASSIFIER);
    data(&folder);
    let line = "model.plan --input input=@x.npy --input labels=@y.npy --steps 12 --lr @lr.npy --save s.st";
    let rates: Vec<u8> = (0..12).flat_map(|i| (if i == 5 { 1e38f32 } else { 0.05 }).to_le_bytes()).collect();
    npy(&folder.path("lr.npy"), "<f4", &[12], &rates);
    let output = memrun(&folder, &format!("{line} --stop-on-nan --save-every 2"));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{error}");
    assert!(error.contains("--stop-on-nan") && error.contains("in s.st"), "{error}");
    let saved = std::fs::read(folder.path("s.st")).expect("a save");
    let options = RunOptions { steps: Some(4), lr: Rate::File(folder.path("lr.npy")), ..fed(&folder) };
    let options = RunOptions { save: Some(folder.path("four.st")), ..options };
    run(&folder, &options).expect("four steps");
    let four = std::fs::read(folder.path("four.st")).expect("four steps");
    assert_eq!(saved, four, "the last save whose next loss was finite");
    std::fs::rename(folder.path("s.st"), folder.path("s-00000004.st")).expect("a file");
    let missing = text(&memrun(&folder, "model.plan --resume s.st").stderr);
    assert!(missing.contains("the last save of its run is s-00000004.st"), "{missing}");
    assert_eq!(memrun(&folder, line).status.code(), Some(0), "a warning only");
}

/// Pipes, folders and token files feed the same numbers as one array.
#[test]
fn sources_of_the_same_data() {
    let folder = Folder::of(CLASSIFIER);
    data(&folder);
    let options = RunOptions { steps: Some(8), ..fed(&folder) };
    let want = run(&folder, &options).expect("arrays").losses;
    let arguments = "model.plan --steps 8 --json --input input=- --input labels=@y.npy";
    let mut child = command(&folder, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("memrun starts");
    let bytes = std::fs::read(folder.path("x.npy")).expect("the array");
    let mut pipe = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
    let output = child.wait_with_output().expect("memrun ends");
    writer.join().expect("the writer ends");
    let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let losses: Vec<f32> = object["losses"]
        .as_array()
        .expect("losses")
        .iter()
        .map(|x| x.to_string().parse().expect("a loss"))
        .collect();
    assert_eq!(losses, want);
    let again = memrun(&folder, "model.plan --epochs 2 --input input=@/dev/stdin --input labels=@y.npy");
    assert_ne!(again.status.code(), Some(0));

    std::fs::create_dir(folder.path("parts")).expect("a folder");
    let array = std::fs::read(folder.path("x.npy")).expect("the array");
    let rows = &array[array.len() - SAMPLES * 256..];
    npy(&folder.path("parts/a.npy"), "<f4", &[100, 64], &rows[..25_600]);
    npy(&folder.path("parts/b.npy"), "<f4", &[SAMPLES - 100, 64], &rows[25_600..]);
    let mut parts = options.clone();
    parts.inputs[0].1 = InputSource::Path(folder.path("parts"));
    assert_eq!(run(&folder, &parts).expect("a folder").losses, want);
}

/// The metrics are one object for each step; outputs of all steps are stacked.
#[test]
fn metrics_and_collected_outputs() {
    let folder = Folder::of(CLASSIFIER);
    data(&folder);
    let line = "model.plan --input input=@x.npy --input labels=@y.npy --epochs 1 --metrics m.jsonl \
                --log-every 5 --collect loss=l.npy --lr linear=16";
    let output = memrun(&folder, line);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert_eq!(printed.lines().count(), 1 + 5 + 2, "{printed}");
    assert!(printed.contains("step time: median"), "{printed}");
    let metrics = std::fs::read_to_string(folder.path("m.jsonl")).expect("metrics");
    let rows: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 16);
    assert_eq!((&rows[8]["step"], &rows[8]["epoch"]), (&Value::from(9), &Value::from(1)));
    assert!((rows[8]["lr"].as_f64().expect("a rate") - 0.025).abs() < 1e-8, "{}", rows[8]);
    let collected = std::fs::read(folder.path("l.npy")).expect("losses");
    assert!(String::from_utf8_lossy(&collected[..128]).contains("'shape': (16, )"));
    let last = f32::from_le_bytes(collected[collected.len() - 4..].try_into().expect("four bytes"));
    assert!((f64::from(last) - rows[15]["loss"].as_f64().expect("a loss")).abs() < 1e-12);
    assert!(Path::new(&folder.path("l.npy")).exists());
}

/// The metrics of a resumed run go on behind the step that it goes on from: later ones are of steps that were
/// lost.
#[test]
fn metrics_of_lost_steps_are_dropped() {
    let folder = Folder::of(CLASSIFIER);
    data(&folder);
    let input = "model.plan --input input=@x.npy --input labels=@y.npy";
    for more in
        ["--steps 4 --save s.st", "--steps 7 --metrics m.jsonl", "--steps 5 --resume s.st --metrics m.jsonl"]
    {
        let output = memrun(&folder, &format!("{input} {more}"));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    let metrics = std::fs::read_to_string(folder.path("m.jsonl")).expect("metrics");
    let step = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["step"].as_u64();
    let steps: Vec<_> = metrics.lines().map(step).collect();
    assert_eq!(steps, (1..=9).map(Some).collect::<Vec<_>>());
}
