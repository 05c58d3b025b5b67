//! Plans with buckets: one plan for several sequence lengths.

use std::path::{Path, PathBuf};

use memc_plan::PlanFile;
use memc_runtime::{EvaluationOptions, Pad, Program, RunOptions, Step, Watch, run as run_plan};

use crate::support::{
    Losses, Ran, json, memc, memc_fails, memc_ok, number, put, run, saved as states_in, verified,
};

const TEXT: &str = "models/gen/gpt_text.dynamic.onnx";
const STEP: [&str; 6] =
    ["--loss", "cross-entropy:axis=-1", "--optimizer", "adamw:lr=0.01", "--dim", "batch=3"];
const VOCABULARY: i64 = 61;

/// Bytes of a peak's share for the longest sequences.
fn budget(seq: &str, percent: u64) -> String {
    let need = json(&memc_ok(&[&["estimate", TEXT, "--json", "--dim", seq][..], &STEP].concat()));
    let (peak, least) = (number(&need, "peak_bytes"), number(&need, "smallest_feasible_bytes"));
    format!("{}B", (peak * percent / 100).max(least))
}

fn compile(folder: &Path, name: &str, seq: &str, more: &[&str]) -> PathBuf {
    let plan = folder.join(name);
    memc_ok(&[&["compile", TEXT, "-o", plan.to_str().unwrap(), "--dim", seq][..], &STEP, more].concat());
    plan
}

/// A NumPy array of whole numbers.
fn array(shape: [usize; 2], at: impl Fn(usize) -> i64) -> Vec<u8> {
    let text = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({}, {}), }}", shape[0], shape[1]);
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    let padded = format!("{text:<width$}\n", width = (10 + text.len() + 1).next_multiple_of(64) - 11);
    out.extend(u16::try_from(padded.len()).unwrap().to_le_bytes());
    out.extend(padded.bytes());
    (0..shape[0] * shape[1]).for_each(|i| out.extend(at(i).to_le_bytes()));
    out
}

/// Folders of ids and labels, a batch of each length.
fn batches(folder: &Path, lengths: &[usize]) -> Vec<(String, memc_runtime::InputSource)> {
    let token = |step: usize, i: usize| ((i * 7 + step * 13) as i64) % VOCABULARY;
    ["input_ids", "labels"]
        .map(|name| {
            let inner = folder.join(name);
            std::fs::create_dir_all(&inner).unwrap();
            for (step, &length) in lengths.iter().enumerate() {
                let shift = usize::from(name == "labels");
                put(&inner, &format!("{step:03}.npy"), &array([3, length], |i| token(step, i + shift)));
            }
            (name.to_owned(), inner.into())
        })
        .to_vec()
}

fn fed(inputs: &[(String, memc_runtime::InputSource)], steps: usize, seed: u64) -> RunOptions {
    RunOptions {
        inputs: inputs.to_vec(),
        pads: vec![("input_ids".into(), Pad::Int(0)), ("labels".into(), Pad::Int(-100))],
        steps: Some(steps as u64),
        synthetic: false,
        ..verified(1, seed)
    }
}

fn same(a: &Ran, b: &Ran, what: &str) {
    assert_eq!(a.losses, b.losses, "{what}");
    assert!(a.states == b.states, "{what}: other states");
}

/// Steps of changing lengths take the smallest bucket that they fit, padded. Their bits are those of the
/// unplanned run, at every budget, and those of a run in which every step takes the largest bucket that pads
/// as much. A mask that differs between buckets is in host memory, and apart from those of others.
#[test]
fn lengths_change_from_step_to_step() {
    let folder = tempfile::tempdir().unwrap();
    let lengths = [64, 10, 33, 16, 48, 12, 64, 1, 17];
    let inputs = batches(folder.path(), &lengths);
    let mut seen: Vec<Ran> = Vec::new();
    for percent in [110, 60, 30] {
        let budget = budget("seq=64", percent);
        let sizes = "seq=16,32,48,64";
        let plan = compile(folder.path(), "model.plan", sizes, &["--gpu-mem", &budget]);
        let text = memc_ok(&["check", plan.to_str().unwrap(), "--source", TEXT]);
        assert!(text.contains("proved"), "{text}");
        let again = compile(folder.path(), "again.plan", sizes, &["--gpu-mem", &budget]);
        assert_eq!(std::fs::read(&plan).unwrap(), std::fs::read(again).unwrap());

        let file = PlanFile::open(&plan).unwrap();
        let plans: Vec<_> = file.plan().with_buckets().collect();
        assert_eq!(plans.len(), 4);
        let masks: Vec<_> = plans
            .iter()
            .map(|plan| {
                let mask = plan.states.iter().find(|s| !s.is_variable() && s.name == "causal");
                mask.unwrap().resident
            })
            .collect();
        assert!(masks.iter().all(|slice| slice.space == memc_plan::Space::Host), "{masks:?}");
        let apart = |a: &memc_plan::Slice, b: &memc_plan::Slice| {
            a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset
        };
        assert!((1..4).all(|i| (0..i).all(|j| apart(&masks[i], &masks[j]))), "{masks:?}");
        let alone = compile(folder.path(), "alone.plan", "seq=64", &["--gpu-mem", &budget]);
        let alone = PlanFile::open(&alone).unwrap();
        assert!(file.plan().meta.dev_bytes <= alone.plan().meta.budget_bytes);

        let ran = run(&plan, folder.path(), fed(&inputs, lengths.len(), percent));
        assert!(ran.losses.iter().all(|loss| loss.is_finite()));
        seen.push(ran);
    }
    same(&seen[0], &seen[1], "60 %");
    same(&seen[0], &seen[2], "30 %");
}

/// Updates on the host, accumulation and saves in between work in buckets, too; a run that goes on reads on.
#[test]
fn buckets_go_with_other_options() {
    let folder = tempfile::tempdir().unwrap();
    let lengths = [8, 16, 5, 11, 16, 16, 2, 9];
    let inputs = batches(folder.path(), &lengths);
    let more = ["--device", "h100", "--gpu-mem", "2G", "--host", "*wte*", "--accumulate", "2"];
    let plan = compile(folder.path(), "model.plan", "seq=8,16", &more);
    let whole = run(&plan, folder.path(), fed(&inputs, 4, 1));
    let saved = folder.path().join("half.safetensors");
    let mut half = fed(&inputs, 2, 2);
    (half.save, half.save_every) = (Some(saved.clone()), Some(1));
    let file = PlanFile::open(&plan).unwrap();
    run_plan(&file, &half, &mut Losses::default()).unwrap();
    let rest = RunOptions { resume: Some(saved), ..fed(&inputs, 2, 3) };
    let rest = run(&plan, folder.path(), rest);
    assert!(whole.states == rest.states);
    assert_eq!(whole.losses[2..], rest.losses);
    // Without data every bucket takes its turn.
    let made_up = run(&plan, folder.path(), verified(4, 4));
    assert!(made_up.losses.iter().all(|loss| loss.is_finite()));
}

/// Commands that show a plan say which bucket they show, and show the one that is asked for.
#[test]
fn commands_show_the_bucket_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let quick = ["--effort", "0"];
    let path = compile(folder.path(), "model.plan", "seq=8,16", &quick);
    let plan = path.to_str().unwrap();
    let origin = |args: &[&str]| {
        let trace = json(&memc_ok(&[&["trace", plan][..], args].concat()));
        trace["otherData"]["origin"].as_str().unwrap().to_owned()
    };
    assert!(origin(&[]).ends_with(", bucket seq=16"), "{}", origin(&[]));
    assert!(origin(&["--bucket", "seq=8"]).ends_with(", bucket seq=8"));
    let fails = |args: &[&str], says: &str| {
        let text = memc_fails(2, args);
        assert!(text.contains(says), "{text}");
    };
    fails(&["trace", plan, "--bucket", "seq=9"], "no bucket `seq=9`; it has seq=16, seq=8");

    let text = memc_ok(&["dump", plan]);
    let first = text.lines().next().unwrap();
    assert!(first.ends_with(" ; seq=16") && text.contains("\nbucket ; seq=8\n"), "{first}");
    assert_eq!(&memc_plan::text::parse(&text).unwrap(), PlanFile::open(&path).unwrap().plan());
    let shown = json(&memc_ok(&["dump", "--json", plan]));
    assert_eq!((&shown["bucket"], &shown["buckets"][0]["bucket"]), (&"seq=16".into(), &"seq=8".into()));

    let other = compile(folder.path(), "other.plan", "seq=12,16", &quick).display().to_string();
    let alone = compile(folder.path(), "alone.plan", "seq=8", &quick).display().to_string();
    assert!(memc_ok(&["diff", plan, plan]).contains("equal"));
    let differences = |args: &[&str]| {
        let out = memc(&[&["diff"][..], args].concat());
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8(out.stdout).unwrap()
    };
    let all = differences(&[plan, &other]);
    assert!(all.contains("- bucket seq=8") && all.contains("+ bucket seq=12"), "{all}");
    assert!(all.contains("seq=16: ~ host arena"), "the mask of another bucket takes more: {all}");
    let one = differences(&[plan, &alone]);
    assert!(one.contains("~ buckets seq=16 seq=8 (here seq=16) -> one size"), "{one}");
    let own = differences(&[plan, &alone, "--bucket", "seq=8"]);
    assert!(!own.contains("~ buckets") && !own.contains("~ source text"), "{own}");
    fails(&["diff", &alone, &alone, "--bucket", "seq=8"], "neither plan has buckets");
}

/// Notes the means of evaluations.
#[derive(Default)]
struct Means(Vec<f32>);

impl Watch for Means {
    fn step(&mut self, _step: &Step) {}
    fn evaluated(&mut self, _step: u64, means: &[(String, f32)]) {
        self.0.extend(means.iter().map(|(_, mean)| *mean));
    }
    fn note(&mut self, _text: &str) {}
    fn should_stop(&self) -> bool {
        false
    }
}

/// An evaluation between the steps has buckets, too. It changes no bit of the training, and its means are
/// those of a run by itself on the saved states. Its data and that of the training need not be as long.
#[test]
fn evaluations_have_buckets() {
    let folder = tempfile::tempdir().unwrap();
    let lengths = [16, 5, 8, 11];
    let inputs = batches(folder.path(), &lengths);
    let plan = compile(folder.path(), "train.plan", "seq=8,16", &["--gpu-mem", "peak*60%"]);
    let budget = format!("{}B", PlanFile::open(&plan).unwrap().plan().meta.budget_bytes);
    let held_out = tempfile::tempdir().unwrap();
    let held = batches(held_out.path(), &[24, 3, 9]);
    let more = ["--evaluation", "--gpu-mem", &budget];
    let eval = compile(folder.path(), "eval.plan", "seq=4,12,24", &more);
    let evaluation = EvaluationOptions { plan: eval.clone(), inputs: held.clone(), every: Some(2) };
    let saved = folder.path().join("with.st");
    let plain = run(&plan, folder.path(), fed(&inputs, lengths.len(), 1));
    let with = RunOptions {
        evaluation: Some(evaluation),
        save: Some(saved.clone()),
        ..fed(&inputs, lengths.len(), 2)
    };
    let mut means = Means::default();
    run_plan(&PlanFile::open(&plan).unwrap(), &with, &mut means).unwrap();
    assert!(plain.states == states_in(&saved), "the training is another");
    let alone = RunOptions { init: Some(saved), steps: None, ..fed(&held, 3, 3) };
    let file = PlanFile::open(&eval).unwrap();
    let report = run_plan(&file, &alone, &mut Losses::default()).unwrap();
    assert_eq!((report.steps, means.0.len()), (3, 2));
    assert_eq!(report.means[0].1, means.0[1]);
}

/// A dimension in front of others, such as the batch, may have buckets as well; a product of two has all
/// pairs.
#[test]
fn batches_have_buckets() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("model.plan");
    let text = memc_ok(
        &[
            &["compile", TEXT, "-o", plan.to_str().unwrap(), "--json", "--effort", "0"][..],
            &[
                "--dim",
                "seq=8,16",
                "--dim",
                "batch=1,2",
                "--loss",
                "cross-entropy:axis=-1",
                "--gpu-mem",
                "4M",
            ],
        ]
        .concat(),
    );
    let made = json(&text);
    let names: Vec<&str> =
        made["buckets"].as_array().unwrap().iter().map(|b| b["name"].as_str().unwrap()).collect();
    assert_eq!(names[0], "seq=16,batch=2", "the largest comes first");
    assert_eq!(names.len(), 4);
    run(&plan, folder.path(), verified(5, 1));
}

/// A limit of host memory holds for all buckets. Where there is no plan the error names the bucket.
#[test]
fn buckets_keep_to_the_host_memory() {
    let folder = tempfile::tempdir().unwrap();
    let budget = budget("seq=64", 30);
    let plan = folder.path().join("model.plan");
    let limited = |limit: u64| -> Vec<String> {
        let host = format!("{limit}B");
        let fixed = ["compile", TEXT, "-o", plan.to_str().unwrap(), "--json", "--effort", "0", "--dim"];
        let more = ["seq=16,64", "--gpu-mem", &budget, "--host-mem", &host];
        [&fixed[..], &more, &STEP].concat().iter().map(ToString::to_string).collect()
    };
    let made = |limit| {
        let args = limited(limit);
        json(&memc_ok(&args.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    let swapped = |of: &serde_json::Value| number(&of["buckets"][0], "swap_out_bytes");
    let free = made(1 << 30);
    let took = number(&free, "host_bytes");
    let less = made(took * 4 / 5);
    assert!(number(&less, "host_bytes") <= took * 4 / 5, "{less} {free}");
    assert!(0 < swapped(&less) && swapped(&less) < swapped(&free), "{less} {free}");
    memc_ok(&["check", plan.to_str().unwrap(), "--source", TEXT]);
    let inputs = batches(folder.path(), &[64, 10, 16, 33]);
    run(&plan, folder.path(), fed(&inputs, 4, 5));
    let args = limited(4096);
    let text = memc_fails(4, &args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(text.contains("seq=64: the plan takes ") && text.contains("--host-mem 4.00 KiB"), "{text}");
    let hint = text.split_once("pass --host-mem ").unwrap().1.split_once("B or more").unwrap().0;
    assert_eq!(made(hint.parse().unwrap()), free);
}

/// Wrong sizes and data are refused, with the way out.
#[test]
fn wrong_buckets_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = compile(folder.path(), "model.plan", "seq=8,16", &["--effort", "0"]);
    let fails = |code, args: &[&str], says: &str| {
        let text = memc_fails(code, args);
        assert!(text.contains(says), "{text}");
    };
    let compile = |more: &[&'static str]| {
        [&["compile", TEXT, "-o", "/dev/null/x", "--gpu-mem", "1M"][..], &STEP, more].concat()
    };
    fails(2, &compile(&["--dim", "seq=8,8"]), "the size 8 is given twice");
    fails(2, &compile(&["--dim", "seq=8,x"]), "`x` is not a non-negative integer");
    let out = folder.path().join("out.plan");
    let estimate = [&["estimate", TEXT, "--dim", "seq=8,16"][..], &STEP].concat();
    fails(2, &estimate, "several sizes are for `memc compile`");
    let small = [&["compile", TEXT, "-o", out.to_str().unwrap(), "--gpu-mem", "10K"][..], &STEP].concat();
    fails(4, &[&small[..], &["--dim", "seq=8,16"]].concat(), "seq=16");
    assert!(!out.exists());

    let file = PlanFile::open(&plan).unwrap();
    let failing = |options: RunOptions| {
        run_plan(&file, &options, &mut Losses::default()).expect_err("it is refused").to_string()
    };
    let inputs = batches(folder.path(), &[8, 11]);
    let text = failing(RunOptions { pads: Vec::new(), ..fed(&inputs, 2, 1) });
    assert!(text.contains("--pad input_ids=VALUE") && text.contains("[3, 11]"), "{text}");
    let mut pads = fed(&inputs, 2, 1).pads;
    pads.push(pads[0].clone());
    let text = failing(RunOptions { pads, ..fed(&inputs, 2, 1) });
    assert!(text.contains("--pad input_ids is given twice"), "{text}");
    let text = failing(RunOptions { pads: vec![("x".into(), Pad::Int(0))], ..fed(&inputs, 2, 1) });
    assert!(text.contains("--pad"), "{text}");
    let pads = vec![("input_ids".into(), Pad::Int(99)), ("labels".into(), Pad::Int(-100))];
    let text = failing(RunOptions { pads, ..fed(&inputs, 2, 1) });
    assert!(text.contains("--pad input_ids: the model does not take it: 99"), "{text}");
    let odd = tempfile::tempdir().unwrap();
    let inputs = batches(odd.path(), &[8, 11]);
    put(&odd.path().join("labels"), "001.npy", &array([3, 9], |_| 1));
    let text = failing(fed(&inputs, 2, 1));
    assert!(text.contains("001.npy has 11 where") && text.contains("one dimension"), "{text}");
    let long = tempfile::tempdir().unwrap();
    let text = failing(fed(&batches(long.path(), &[8, 17]), 2, 1));
    assert!(text.contains("no bucket has room") && text.contains("001.npy"), "{text}");
    let logits = [("logits".to_owned(), folder.path().join("y.npy"))];
    if file.plan().outputs.iter().any(|output| output.name == "logits") {
        let text = failing(RunOptions { collect: logits.to_vec(), ..verified(2, 1) });
        assert!(text.contains("another in some bucket"), "{text}");
    }
    let text = Program::new(file.plan()).expect_err("only a run takes it").to_string();
    assert!(text.contains("buckets for several sizes"), "{text}");
}
