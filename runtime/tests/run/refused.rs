//! Plans that must not run: each is one edit away from one that does.

use memc_runtime::{Error, Program};

use crate::{CLASSIFIER, parse};

/// Edits the classifier and returns the error of preparing it.
fn refused(from: &str, to: &str) -> String {
    assert_eq!(CLASSIFIER.matches(from).count(), 1, "`{from}` occurs once");
    let error = Program::new(&parse(&CLASSIFIER.replace(from, to))).expect_err("the plan is wrong");
    assert_eq!(error.exit_code(), 7);
    error.to_string()
}

fn expect(from: &str, to: &str, parts: &[&str]) {
    let text = refused(from, to);
    parts.iter().for_each(|part| assert!(text.contains(part), "{text}\nlacks {part}"));
}

/// The same for an edit after which the plan cannot be read.
fn unreadable(from: &str, to: &str, parts: &[&str]) {
    assert_eq!(CLASSIFIER.matches(from).count(), 1, "`{from}` occurs once");
    let error = memc_plan::text::parse(&CLASSIFIER.replace(from, to)).expect_err("the plan is wrong");
    let error = Error::opening(std::path::Path::new("model.plan"), error);
    assert_eq!(error.exit_code(), 7);
    let text = error.to_string();
    parts.iter().for_each(|part| assert!(text.contains(part), "{text}\nlacks {part}"));
}

/// The plan that the edits start from is right.
#[test]
fn the_unedited_plan_is_accepted() {
    Program::new(&parse(CLASSIFIER)).unwrap();
}

/// Without any one of its waits the plan has a race, except the waits that others imply.
#[test]
fn every_wait_is_needed() {
    for wait in [
        "h2d wait e5",
        "compute wait e0",
        "d2h wait e1",
        "h2d wait e2",
        "compute wait e3",
        "d2h wait e4",
        "host wait e6",
    ] {
        let text = refused(&format!("  {wait}\n"), "");
        assert!(text.contains("at the same time as"), "{wait}: {text}");
    }
    expect(
        "epilogue {\n  host wait e5",
        "epilogue {",
        &["epilogue command 0 `host store s0`", "at the same time"],
    );
}

/// A wait that only the first body violates, or only the second, is found.
#[test]
fn both_bodies_are_looked_at() {
    expect("  d2h record e5\n}", "}", &["body command 4 `h2d wait e5`", "nothing has recorded"]);
    let late = "  d2h copy dev+2560:2560 -> host+11200:2560 ; %v\n  d2h record e5\n";
    let early = "  d2h record e5\n  d2h copy dev+2560:2560 -> host+11200:2560 ; %v\n";
    expect(late, early, &["at the same time as body command"]);
}

/// A run of no steps is looked at too: what only a body records or orders is not there for the epilogue.
#[test]
fn runs_without_a_body_are_looked_at() {
    let plan = "plan 1\narena dev 64 host 0\nevents 1\nbody {\n  compute record e0\n}\nepilogue {\n  host \
        wait e0\n}\n";
    let error = Program::new(&parse(plan)).unwrap_err().to_string();
    assert!(error.contains("epilogue command 0") && error.contains("nothing has recorded"), "{error}");
    let plan = "plan 1\narena dev 64 host 0\nevents 1\nprologue {\n  compute free dev+0:64\n}\nbody {\n  \
                compute record e0\n  h2d wait e0\n}\nepilogue {\n  h2d free dev+0:64\n}\n";
    let error = Program::new(&parse(plan)).unwrap_err().to_string();
    assert!(
        error.contains("epilogue command 0") && error.contains("at the same time as prologue"),
        "{error}"
    );
}

/// A number of events that no commands could use takes no memory.
#[test]
fn events_are_bounded_by_the_commands() {
    expect("events 7", "events 4294967295", &["events: 4294967295 declared for"]);
}

/// Slices of a launch that share bytes without being an in-place pair.
#[test]
fn launches_do_not_overlap() {
    let launch = "launch k3 r dev+11264:1280 r dev+0:8192 w dev+12608:2560";
    expect(
        launch,
        "launch k3 r dev+11264:1280 r dev+0:8192 w dev+0:2560",
        &["body command 15", "operand 1 overlaps result 0 in part"],
    );
    let launch = "launch k4 r dev+11264:1280 w dev+15168:40";
    expect(launch, "launch k4 r dev+11264:1280 w dev+11264:40", &["in part"]);
    let launch = "launch k6 r dev+11136:40 r dev+15168:40 r dev+8448:4 w dev+11136:40";
    expect(
        launch,
        "launch k6 r dev+11136:40 r dev+15168:40 r dev+8448:4 w dev+15168:40",
        &["operand 1 cannot share", "`sgd`"],
    );
    let moments = "w dev+8576:2560 w dev+0:2560 w dev+2560:2560";
    expect(moments, "w dev+8576:2560 w dev+0:2560 w dev+0:2560", &["result 2 overlaps another"]);
    expect("w dev+15168:40 ; %db", "w dev+15168:40 ws dev+15168:64 ; %db", &["workspace overlaps"]);
}

/// Slices that are not those of their tensors.
#[test]
fn slices_fit_their_tensors() {
    expect("r dev+8448:4 w dev+11136:40", "r dev+8448:8 w dev+11136:40", &["dev+8448:8", "f32[]", "4 bytes"]);
    expect("r dev+8448:4 w dev+11136:40", "r dev+8452:4 w dev+11136:40", &["not aligned to 64"]);
    expect("r dev+8448:4 w dev+11136:40", "r host+8448:4 w dev+11136:40", &["cannot reach the host arena"]);
    expect("b param f32[10] dev+11136:40", "b param f32[10] dev+11136:44", &["state `b`", "40 bytes"]);
    expect("host+8576:4 loss", "dev+12544:4 loss", &["output `loss`", "host arena"]);
}

/// Kernels that the op table does not have, or not with these types.
#[test]
fn kernels_are_checked() {
    unreadable("k6 = sgd(", "k6 = sgdd(", &["kernel k6", "unknown op"]);
    expect(
        "k6 = sgd(f32[10], f32[10], f32[]) -> (f32[10])",
        "k6 = sgd(f32[10], f32[10], f32[10]) -> (f32[10])",
        &["kernel k6", "one element"],
    );
    expect("{trans_b} -> (f32[32,10])", "{trans_b} -> (f32[32,11])", &["kernel k0"]);
    unreadable("\"{axes = [0]}\"", "\"{axes = [0], axes = [1]}\"", &["kernel k4", "twice"]);
    expect("-> (f32[10])\nstate", "-> (f32[999999999999,999999999999])\nstate", &["kernel k6", "too large"]);
}

/// Commands on streams that cannot run them, and copies onto themselves.
#[test]
fn commands_are_on_their_streams() {
    expect("compute launch k4", "h2d launch k4", &["no kernel runs on `h2d`"]);
    expect("d2h copy dev+12544:4 -> host+8576:4", "d2h copy dev+12544:4 -> dev+12544:4", &["overlap"]);
    expect("d2h copy dev+12544:4 -> host+8576:4", "host copy dev+12544:4 -> host+8576:4", &["device stream"]);
}

/// Kinds of initial contents that the runtime does not know are refused before memory is taken.
#[test]
fn initial_contents_are_checked() {
    let folder = crate::Folder::of(&CLASSIFIER.replace("uniform:0.25", "normal:0.25"));
    let error = folder.run(&crate::steps(1)).unwrap_err();
    assert_eq!(error.exit_code(), 7);
    assert!(error.to_string().contains("`w`") && error.to_string().contains("normal:0.25"), "{error}");
}

/// A host arena that takes more than the caller lets it have is refused with both sizes, before anything
/// runs.
#[test]
fn a_host_arena_is_compared_with_what_it_may_take() {
    let folder = crate::Folder::of(CLASSIFIER);
    let options = |bytes| memc_runtime::RunOptions { host_mem: Some(bytes), ..crate::steps(1) };
    let error = folder.run(&options(13759)).unwrap_err();
    assert_eq!(error.exit_code(), 5);
    let text = error.to_string();
    let parts = ["host arena", "13.44 KiB (13,760 B)", "--host-mem 13.44 KiB (13,759 B)", "compile with"];
    parts.iter().for_each(|part| assert!(text.contains(part), "{text} lacks {part}"));
    folder.run(&options(13760)).unwrap();
}

/// An arena that no machine has is refused with the sizes, before anything runs.
#[test]
fn arenas_are_compared_with_the_memory() {
    let large = CLASSIFIER.replace("arena dev 15232", "arena dev 1125899906842624");
    let folder = crate::Folder::of(&large);
    let error = folder.run(&crate::steps(1)).unwrap_err();
    assert_eq!(error.exit_code(), 7);
    assert!(error.to_string().contains("exceed the plan's own budget of 16.00 KiB"), "{error}");
    let folder = crate::Folder::of(&large.replace("budget 16384", "budget 1125899906842624"));
    let error = folder.run(&crate::steps(1)).unwrap_err();
    assert_eq!(error.exit_code(), 5);
    assert!(error.to_string().contains("1.00 PiB"), "{error}");
}
