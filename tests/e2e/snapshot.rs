//! Snapshots of plans for PyTorch's memory viewer: what is allocated when, and what viewers rely on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use memc_ir::Bytes;
use memc_plan::{PlanFile, Space};
use serde_pickle::{DeOptions, HashableValue, Value};

use crate::support::{memc_fails, memc_ok, skipped};

const MODEL: &str = "models/cnn_bn/training_model.onnx";

fn compile(folder: &Path, model: &str, more: &[&str]) -> PathBuf {
    let plan = folder.join("model.plan");
    let to = plan.display().to_string();
    memc_ok(&[&["compile", model, "--effort", "1", "-o", &to], more].concat());
    plan
}

fn snapshot(plan: &Path, more: &[&str]) -> Vec<u8> {
    let to = plan.with_extension("pickle");
    memc_ok(&[&["report", plan.to_str().unwrap(), "--snapshot", to.to_str().unwrap()], more].concat());
    std::fs::read(to).unwrap()
}

fn decoded(bytes: &[u8]) -> Value {
    serde_pickle::value_from_slice(bytes, DeOptions::new()).unwrap()
}

fn field<'v>(value: &'v Value, name: &str) -> &'v Value {
    let Value::Dict(fields) = value else { panic!("{value} has no {name}") };
    fields.get(&HashableValue::String(name.into())).unwrap_or_else(|| panic!("no {name} in {value}"))
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    let Value::List(items) = field(value, name) else { panic!("{name} is no list") };
    items
}

fn number(value: &Value, name: &str) -> u64 {
    match field(value, name) {
        Value::I64(number) => u64::try_from(*number).unwrap(),
        Value::Int(number) => number.to_string().parse().unwrap(),
        other => panic!("{name} is {other}"),
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    let Value::String(text) = field(value, name) else { panic!("{name} is no text") };
    text
}

/// Name of the tensor of an event or block.
fn tensor(value: &Value) -> &str {
    text(&list(value, "frames")[0], "name")
}

fn trace(snapshot: &Value) -> &[Value] {
    let Value::List(events) = &list(snapshot, "device_traces")[0] else { panic!("no trace") };
    events
}

/// Live bytes while the events of a trace are gone through.
#[derive(Default)]
struct Course {
    /// Bytes by address, with the tensor.
    live: BTreeMap<u64, (u64, String)>,
    bytes: u64,
    most: u64,
    /// Highest end of a tensor.
    highest: u64,
    time_us: u64,
}

impl Course {
    /// Takes one event. No two tensors may share bytes, nothing leaves that is not there, and time goes on.
    fn step(&mut self, event: &Value, arena: u64) {
        let (at, size, time_us) = (number(event, "addr"), number(event, "size"), number(event, "time_us"));
        assert!(time_us >= self.time_us, "{event}");
        self.time_us = time_us;
        match text(event, "action") {
            "alloc" => {
                assert!(size > 0 && at + size <= arena, "{event}");
                let below = self.live.range(..at + size).next_back();
                assert!(below.is_none_or(|(start, (bytes, _))| start + bytes <= at), "{event}: {below:?}");
                self.live.insert(at, (size, tensor(event).to_owned()));
                self.bytes += size;
                self.most = self.most.max(self.bytes);
                self.highest = self.highest.max(at + size);
            }
            "free_requested" => {
                assert_eq!(self.live.get(&at), Some(&(size, tensor(event).to_owned())), "{event}");
            }
            "free_completed" => {
                assert_eq!(self.live.remove(&at), Some((size, tensor(event).to_owned())), "{event}");
                self.bytes -= size;
            }
            other => panic!("{other}"),
        }
    }
}

/// A trace never has more than the arena, no two tensors share bytes, the most is the plan's peak, and what
/// lives at the trace's end is what the segment has.
#[test]
fn a_snapshot_has_the_steps_memory_up_to_the_peak() {
    let folder = tempfile::tempdir().unwrap();
    for (model, more) in [
        (MODEL, &["--device", "cpu", "--gpu-mem", "240K"][..]),
        (MODEL, &["--device", "cpu"]),
        ("models/mlp_s/training_model.onnx", &["--device", "toy", "--gpu-mem", "90K"]),
        ("models/bert_tiny_nodrop/training_model.onnx", &["--device", "toy", "--gpu-mem", "600K"]),
        ("models/resnet_tiny/training_model.onnx", &["--device", "cpu", "--gpu-mem", "peak*75%"]),
    ] {
        let path = compile(folder.path(), model, more);
        let html = folder.path().join("page.html").display().to_string();
        let bytes = snapshot(&path, &["-o", &html]);
        assert_eq!(bytes, snapshot(&path, &[]), "{model}");
        let snapshot = decoded(&bytes);
        let file = PlanFile::open(&path).unwrap();
        let meta = &file.plan().meta;
        let [first, events @ ..] = trace(&snapshot) else { panic!("no events") };
        assert_eq!((text(first, "action"), number(first, "size")), ("segment_alloc", meta.dev_bytes));
        let mut course = Course::default();
        events.iter().for_each(|event| course.step(event, meta.dev_bytes));
        assert_eq!(course.most, course.bytes, "{model}: the trace ends at its peak");
        let told = format!(" into the step: {} of an arena", Bytes(course.most).short());
        assert!(std::fs::read_to_string(html).unwrap().contains(&told), "{model}: {told}");
        assert_eq!(course.highest, meta.claims.peak_bytes, "{model} {more:?}");

        let [segment] = list(&snapshot, "segments") else { panic!("not one segment") };
        let mut at = 0;
        let mut live = BTreeMap::new();
        for block in list(segment, "blocks") {
            assert_eq!(number(block, "address"), at);
            if text(block, "state") == "active_allocated" {
                live.insert(at, (number(block, "size"), tensor(block).to_owned()));
            }
            at += number(block, "size");
        }
        assert_eq!((at, number(segment, "total_size")), (meta.dev_bytes, meta.dev_bytes));
        assert_eq!(live, course.live, "{model}");
        assert_eq!(number(segment, "allocated_size"), course.bytes);
        for state in file.plan().states.iter().filter(|state| state.resident.space == Space::Dev) {
            let there = events.iter().take_while(|event| text(event, "action") == "alloc");
            let mut places = there.map(|event| (tensor(event), number(event, "addr")));
            assert!(places.any(|place| place == (&state.name, state.resident.offset)), "{}", state.name);
        }
    }
}

/// Metadata of every event says what the plan decided about its tensor, and frames what made it.
#[test]
fn a_snapshot_says_what_was_decided() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--device", "cpu", "--gpu-mem", "peak*75%"];
    let model = "models/resnet_tiny/training_model.onnx";
    for (only, decision, back) in [
        ("--no-recompute", "swapped out, back in; ", "copied in"),
        ("--no-swap", "dropped, recomputed; ", "computed again"),
    ] {
        let path = compile(folder.path(), model, &[&more[..], &[only]].concat());
        let snapshot = decoded(&snapshot(&path, &[]));
        let of = |end: &str| {
            let told = trace(&snapshot).iter().filter(|event| text(event, "action") == "alloc");
            told.filter(|event| text(event, "user_metadata") == format!("{decision}{end}")).count()
        };
        assert!(of("computed") > 0 && of(back) > 0, "{only}");
        let frames: Vec<&Value> = trace(&snapshot).iter().flat_map(|e| list(e, "frames")).collect();
        let has = |name: &str, file: &str| {
            frames.iter().any(|f| text(f, "name") == name && text(f, "filename").contains(file))
        };
        assert!(has("conv", "Conv") && has("kept", "weights"), "{only}");
    }
}

/// With both files asked for, both are written; with the snapshot alone, no page is.
#[test]
fn a_snapshot_is_written_beside_a_page_or_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), MODEL, &["--device", "cpu", "--gpu-mem", "240K"]);
    let html = folder.path().join("page.html").display().to_string();
    let both = snapshot(&path, &["-o", &html]);
    assert!(std::fs::metadata(&html).unwrap().len() > 0);
    assert_eq!(both, snapshot(&path, &[]));
    let plan = path.to_str().unwrap();
    let said = memc_fails(2, &["report", plan, "--snapshot", &html, "-o", &html]);
    assert!(said.contains("page.html"), "{said}");
    let said = memc_fails(7, &["report", MODEL, "--snapshot", &html]);
    assert!(said.contains(MODEL), "{said}");
}

/// Python's own decoder takes a snapshot, where there is a Python.
#[test]
fn python_reads_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), MODEL, &["--device", "cpu", "--gpu-mem", "240K"]);
    let events = trace(&decoded(&snapshot(&path, &[]))).len();
    let program = "import pickle,sys; s = pickle.load(open(sys.argv[1], 'rb')); \
                   print(sorted(s), len(s['device_traces'][0]), s['segments'][0]['segment_pool_id'])";
    let ran = Command::new("python3").args(["-c", program]).arg(path.with_extension("pickle")).output();
    let Ok(ran) = ran else {
        return skipped("a snapshot in Python (no python3)");
    };
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let expected = format!("['device_traces', 'segments'] {events} (0, 0)\n");
    assert_eq!(said, expected, "{}", String::from_utf8_lossy(&ran.stderr));
}
