//! Traces of measured steps.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use memc_runtime::gpu::Gpu;
use memc_runtime::{RunOptions, Watch, run, run_on};
use serde_json::Value;

use crate::mock::{Behaviour, Mock, has_compiler};
use crate::{CLASSIFIER, Folder, Log, steps};

/// Slices of a trace: name, track, start and end in us.
fn slices(folder: &Folder) -> Vec<(String, u64, f64, f64)> {
    let text = std::fs::read_to_string(folder.path("trace.json")).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert!(value["otherData"]["step_ns"].as_u64().unwrap() > 0);
    let events = value["traceEvents"].as_array().unwrap();
    let live = events.iter().filter(|e| e["ph"] == "C").map(|e| e["args"]["live"].as_u64().unwrap());
    assert!(live.clone().all(|live| live <= 15_232) && live.max().unwrap() > 8_192);
    let slice = |e: &Value| {
        let (start, length) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
        (e["name"].as_str().unwrap().to_owned(), e["tid"].as_u64().unwrap(), start, start + length)
    };
    events.iter().filter(|e| e["ph"] == "X").map(slice).collect()
}

/// Every launch, copy, write and read of the step is there, one after another on its track, and after what it
/// waits for; the host's too, where all have one clock.
fn hold(slices: &[(String, u64, f64, f64)], one_clock: bool) {
    assert_eq!(slices.len(), 4 + 4 + 7 + 1 + 2 + 2 + 1, "{slices:?}");
    for track in 0..5 {
        let mut of: Vec<_> = slices.iter().filter(|s| s.1 == track).collect();
        of.sort_by(|a, b| a.2.total_cmp(&b.2));
        assert!(of.windows(2).all(|pair| pair[0].3 <= pair[1].2 + 1e-3), "{of:?}");
    }
    let find = |name: &str, track: u64| slices.iter().find(|s| s.0 == name && s.1 == track).unwrap();
    for (first, second) in [
        (("%loss", 0), ("%loss", 1)),
        (("%dw", 0), ("%m", 2)),
        (("%v", 2), ("%w", 0)),
        (("%w", 0), ("%m", 1)),
    ] {
        let (first, second) = (find(first.0, first.1), find(second.0, second.1));
        assert!(first.3 <= second.2 + 1e-3, "{first:?} {second:?}");
    }
    assert!(!one_clock || find("%loss", 1).3 <= find("read loss", 4).3 + 1e-3);
}

/// Tracing the last step changes no number, on the CPU and on a GPU, after captured steps and others.
#[test]
fn a_traced_step_is_a_step() {
    let folder = Folder::of(CLASSIFIER);
    let traced = |no_graph| RunOptions { trace: Some(folder.path("trace.json")), no_graph, ..steps(4) };
    let losses = folder.run(&steps(4)).unwrap();
    assert_eq!(folder.run(&traced(false)).unwrap(), losses);
    hold(&slices(&folder), true);
    if !has_compiler() {
        return;
    }
    let on_mock = |options: &RunOptions, seed| {
        let behaviour = Behaviour { seed, ..Behaviour::default() };
        let device = Gpu::new("mock", move || Ok(Mock::new(behaviour)), true);
        let mut log = Log::default();
        run_on(&device.without_graph(options.no_graph), &folder.plan(), options, &mut log).unwrap();
        log.losses
    };
    let losses = on_mock(&steps(4), None);
    for (seed, no_graph) in (0..10).zip([false, true].into_iter().cycle()) {
        assert_eq!(on_mock(&traced(no_graph), Some(seed)), losses);
        // A device's clock is compared with the host's while both run, which other work may delay by any
        // time.
        hold(&slices(&folder), false);
    }
}

/// A run that ends before its last step writes no trace and says so; a folder that takes no file is told
/// before the run.
#[test]
fn a_trace_is_of_the_last_step_or_not_at_all() {
    let folder = Folder::of(CLASSIFIER);
    let mut log = Log { stop_after: Some(2), ..Log::default() };
    let options = RunOptions { trace: Some(folder.path("trace.json")), ..steps(4) };
    run(&folder.plan(), &options, &mut log).unwrap();
    assert!(log.notes.iter().any(|note| note.contains("trace")), "{:?}", log.notes);
    assert_eq!(folder.entries(), ["model.plan"]);
    let options = RunOptions { trace: Some(folder.path("none/trace.json")), ..steps(4) };
    let mut log = Log::default();
    assert_eq!(run(&folder.plan(), &options, &mut log).unwrap_err().exit_code(), 74);
    assert!(log.steps.is_empty() && !log.should_stop());
}
