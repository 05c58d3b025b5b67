//! Several jobs in one plan: each computes the bits that it computes alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memc_plan::PlanFile;
use memc_runtime::{Rate, RunOptions, Step, Watch};

use crate::support::{adversarial, json, memc_fails, memc_ok, npz, number, put, root, saved};

/// A job: name, model with its options, steps in a round.
type Job<'a> = (&'a str, &'a [&'a str], u64);

const CNN: &[&str] = &["models/cnn_bn/training_model.onnx"];
const CLIP: &[&str] = &["models/mlp_clip/training_model.onnx"];
const BERT: &[&str] = &["models/bert_tiny_dropout/training_model.onnx"];
const LSTM: &[&str] = &["models/lstm_step/adamw.onnx"];
const FORWARD: &[&str] =
    &["models/gen/mlp_dropout.forward.onnx", "--loss", "cross-entropy", "--optimizer", "momentum:lr=0.05"];

#[derive(Default)]
struct Told(Vec<Step>);

impl Watch for Told {
    fn step(&mut self, step: &Step) {
        self.0.push(step.clone());
    }
    fn note(&mut self, _text: &str) {}
    fn should_stop(&self) -> bool {
        false
    }
}

fn run(plan: &Path, options: &RunOptions) -> Vec<Step> {
    let mut told = Told::default();
    memc_runtime::run(&PlanFile::open(plan).unwrap(), options, &mut told).unwrap_or_else(|e| panic!("{e}"));
    told.0
}

fn synthetic(rounds: u64, save: PathBuf) -> RunOptions {
    let (steps, save) = (Some(rounds), Some(save));
    RunOptions { steps, save, synthetic: true, cpu: adversarial(rounds), ..RunOptions::default() }
}

/// States and losses of a job that runs alone, unplanned.
fn alone(folder: &Path, (name, model, _): Job<'_>, steps: u64) -> (BTreeMap<String, Vec<u8>>, Vec<f32>) {
    let plan = folder.join("alone.plan");
    memc_ok(&[&["compile", "-o", plan.to_str().unwrap()], model].concat());
    let save = folder.join(format!("alone-{name}"));
    let told = run(&plan, &synthetic(steps, save.clone()));
    (saved(&save), told.iter().map(|step| step.loss().unwrap()).collect())
}

/// The options of `memc` for jobs.
fn flags(jobs: &[Job<'_>]) -> Vec<String> {
    let flag = |(name, model, steps): &Job<'_>| {
        let mut own: Vec<String> = model.iter().map(ToString::to_string).collect();
        own[0] = format!("{name}={}:{steps}", own[0]);
        own.insert(0, "--job".into());
        own
    };
    jobs.iter().flat_map(flag).collect()
}

fn joint(command: &[&str], jobs: &[Job<'_>], more: &[&str]) -> String {
    let flags = flags(jobs);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    memc_ok(&[command, &flags, more].concat())
}

/// Three pairs and a triple, at three budgets each: unplanned, 60 % of the peak, the smallest.
#[test]
fn jobs_compute_what_they_compute_alone() {
    let sets: [&[Job<'_>]; 4] = [
        &[("a", CNN, 1), ("b", CLIP, 2)],
        &[("cnn", CNN, 1), ("bert", BERT, 1)],
        &[("lstm", LSTM, 1), ("mlp", FORWARD, 3)],
        &[("x", CNN, 2), ("y", CNN, 1), ("z", LSTM, 1)],
    ];
    let rounds = 3;
    for jobs in sets {
        let folder = tempfile::tempdir().unwrap();
        let expected = jobs.iter().map(|job| alone(folder.path(), *job, rounds * job.2));
        let expected: Vec<_> = expected.collect();
        let need = json(&joint(&["estimate", "--json"], jobs, &[]));
        let (peak, least) = (number(&need, "peak_bytes"), number(&need, "smallest_feasible_bytes"));
        for budget in [peak, (peak * 6 / 10).max(least), least] {
            let plan = folder.path().join("joint.plan");
            let budget = format!("{budget}B");
            joint(&["compile"], jobs, &["--gpu-mem", &budget, "--effort", "0", "-o", plan.to_str().unwrap()]);
            let save = folder.path().join("{job}.st");
            let options = RunOptions { verify: true, ..synthetic(rounds, save) };
            let told = run(&plan, &options);
            for (at, ((name, _, steps), (states, losses))) in jobs.iter().zip(&expected).enumerate() {
                let have = saved(&folder.path().join(format!("{name}.st")));
                assert!(have == *states, "states of {name} within {budget}");
                for (round, told) in told.iter().enumerate() {
                    let own = &losses[round * *steps as usize..][..*steps as usize];
                    let mean = own.iter().map(|x| f64::from(*x)).sum::<f64>() / own.len() as f64;
                    assert_eq!((told.jobs[at].name.as_str(), told.jobs[at].loss), (*name, Some(mean as f32)));
                    assert_eq!(told.jobs[at].step, (round as u64 + 1) * steps);
                }
            }
        }
    }
}

/// Data, rates and step numbers of a job go on from a run of its own, and its states go back to one.
#[test]
fn jobs_go_on_from_runs_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let arrays = npz(&root().join("models/recipes/dropout.npz"));
    let x = put(folder.path(), "x.npy", &arrays["x"]);
    let y = put(folder.path(), "y.npy", &arrays["y"]);
    let inputs = |job: &str| {
        [("input", &x), ("labels", &y)]
            .map(|(name, file)| (format!("{job}{name}"), file.clone().into()))
            .to_vec()
    };
    let lr: Rate = "warmup=3,cosine=9".parse().unwrap();
    let alone = path("alone.plan");
    memc_ok(&[&["compile", "-o", alone.to_str().unwrap()], FORWARD].concat());
    let solo = |steps, save: &str| {
        let (steps, save) = (Some(steps), Some(path(save)));
        run(&alone, &RunOptions { steps, save, inputs: inputs(""), lr: lr.clone(), ..RunOptions::default() })
    };
    solo(1, "a.st");
    solo(1, "b.st");
    let jobs: [Job<'_>; 2] = [("a", FORWARD, 1), ("b", FORWARD, 2)];
    let plan = path("joint.plan");
    joint(&["compile"], &jobs, &["--gpu-mem", "peak*80%", "-o", plan.to_str().unwrap()]);
    let both = |rounds, save: &str, resume: &str| {
        let inputs = [inputs("a/"), inputs("b/")].concat();
        let (steps, save, resume) = (Some(rounds), Some(path(save)), Some(path(resume)));
        let job_lr = vec![("a".into(), lr.clone()), ("b".into(), lr.clone())];
        let options =
            RunOptions { steps, save, resume, inputs, job_lr, verify: true, ..RunOptions::default() };
        run(&plan, &options)
    };
    // One round from files of the jobs into a file of all, one from that into files of the jobs.
    let first = both(1, "all.st", "{job}.st");
    let second = both(1, "{job}.st", "all.st");
    let steps = |told: &[Step]| told[0].jobs.iter().map(|job| job.step).collect::<Vec<_>>();
    assert_eq!((first[0].number, steps(&first)), (1, vec![2, 3]));
    assert_eq!((second[0].number, steps(&second)), (2, vec![3, 5]));
    for (job, steps) in [("a", 3), ("b", 5)] {
        let told = solo(steps, "alone.st");
        let at = usize::from(job == "b");
        assert_eq!(second[0].jobs[at].rate, told.last().and_then(|step| step.jobs[0].rate));
        assert!(saved(&path(&format!("{job}.st"))) == saved(&path("alone.st")), "job {job}");
    }
}

/// Rounds and saves go on from files of single jobs with the number of the round that they are of.
#[test]
fn saves_of_jobs_go_on_with_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let jobs: [Job<'_>; 2] = [("a", FORWARD, 1), ("b", FORWARD, 2)];
    let plan = path("joint.plan");
    joint(&["compile"], &jobs, &["--effort", "0", "-o", plan.to_str().unwrap()]);
    let saving = |rounds, save: &str, resume: Option<&str>| RunOptions {
        save_every: Some(2),
        keep: Some(9),
        resume: resume.map(path),
        ..synthetic(rounds, path(save))
    };
    run(&plan, &saving(6, "whole-{job}.st", None));
    run(&plan, &saving(4, "s-{job}.st", None));
    let rest = run(&plan, &saving(2, "s-{job}.st", Some("s-{job}.st")));
    assert_eq!(rest.iter().map(|step| step.number).collect::<Vec<_>>(), [5, 6]);
    let steps = |step: &Step| step.jobs.iter().map(|job| job.step).collect::<Vec<_>>();
    assert_eq!(steps(&rest[1]), [6, 12]);
    for job in ["a", "b"] {
        assert!(saved(&path(&format!("s-{job}.st"))) == saved(&path(&format!("whole-{job}.st"))));
        let kept = |name: &str| path(&format!("s-{job}-{name}.st")).exists();
        assert!(kept("00000002") && !kept("00000006"), "the last round is saved in the file itself");
    }
    run(&plan, &saving(3, "s-{job}.st", Some("s-{job}-00000002.st")));
    assert!(path("s-a-00000004.st").exists() && path("s-b-00000004.st").exists());
}

/// Options behind a job are its own, those before the first are for all; the checker reads the models again.
#[test]
fn options_of_jobs_are_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("two.plan");
    let (plan, model) = (plan.to_str().unwrap(), "models/gen/mlp_dropout.forward.onnx");
    let (a, b) = (format!("a={model}"), format!("b={model}:2"));
    let common = ["--loss", "cross-entropy", "--optimizer", "sgd:lr=0.5"];
    let own = ["--job", &a, "--job", &b, "--optimizer", "adamw", "--seed", "3"];
    memc_ok(&[&["compile", "-o", plan][..], &common, &own].concat());
    let shown = json(&memc_ok(&["dump", "--json", plan]));
    let inputs: Vec<&str> =
        shown["inputs"].as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap()).collect();
    let count = |text: &str| inputs.iter().filter(|name| name.starts_with(text)).count();
    assert_eq!((count("a/learning_rate"), count("b/learning_rate")), (1, 2));
    let states: Vec<&str> =
        shown["states"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    let moments =
        |job: &str| states.iter().filter(|name| name.starts_with(job) && name.contains("momentum")).count();
    assert!(moments("a/") == 0 && moments("b/") > 0, "{states:?}");
    let (of_a, of_b) = (format!("a={model}"), format!("b={model}"));
    memc_ok(&["check", plan, "--source", &of_a, "--source", &of_b]);
    let text = memc_fails(2, &["check", plan, "--source", &of_a]);
    assert!(text.contains("job b needs one model"), "{text}");
    let text = memc_fails(2, &["check", plan, "--source", model]);
    assert!(text.contains("of the jobs a, b"), "{text}");
}

/// Jobs that cannot be told apart, a job without steps, a job beside a model.
#[test]
fn wrong_jobs_are_refused() {
    let model = "models/cnn_bn/training_model.onnx";
    let text = memc_fails(2, &["plan", "--job", model, "--job", model, "--gpu-mem", "1G"]);
    assert!(text.contains("two jobs are called `cnn_bn`"), "{text}");
    let none = format!("{model}:0");
    let text = memc_fails(2, &["plan", "--job", &none, "--gpu-mem", "1G"]);
    assert!(text.contains("1 to 1024 steps"), "{text}");
    memc_fails(2, &["plan", model, "--job", model, "--gpu-mem", "1G"]);
    let text = memc_fails(74, &["plan", "--job", "no.onnx", "--gpu-mem", "1G"]);
    assert!(text.contains("no.onnx"), "{text}");
}

/// Parts of a budget are those of the shortest round, and add up to it at most.
#[test]
fn a_budget_is_split_for_the_shortest_round() {
    let jobs: [Job<'_>; 2] = [("a", CNN, 1), ("b", CLIP, 2)];
    let need = |model: &[&str]| {
        number(&json(&memc_ok(&[&["estimate", "--json"], model].concat())), "smallest_feasible_bytes")
    };
    let least = need(CNN) + need(CLIP);
    let budget = format!("{}B", least + least / 2);
    let found = json(&joint(&["split", "--json"], &jobs, &["--gpu-mem", &budget, "--effort", "0"]));
    let parts = found["parts"].as_array().unwrap();
    let sum = |field: &str| parts.iter().map(|part| number(part, field)).sum::<u64>();
    assert!(sum("gpu_mem_bytes") <= least + least / 2, "{found}");
    assert_eq!(number(&found, "round_ns"), number(&parts[0], "step_ns") + 2 * number(&parts[1], "step_ns"));
    // No other parts of the same curves make a shorter round.
    let curve = |at: usize| -> Vec<(u64, u64)> {
        let points = parts[at]["curve"].as_array().unwrap();
        points.iter().map(|point| (point[0].as_u64().unwrap(), point[1].as_u64().unwrap())).collect()
    };
    let fits = |a: u64, b: u64| a + b <= least + least / 2;
    let (a, b) = (curve(0), curve(1));
    let rounds = a.iter().flat_map(|x| b.iter().filter(|y| fits(x.0, y.0)).map(|y| x.1 + 2 * y.1));
    assert_eq!(rounds.min(), Some(number(&found, "round_ns")));
    let flags = flags(&jobs);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let text = memc_fails(4, &[&["split", "--gpu-mem", &format!("{}B", least - 64)][..], &flags].concat());
    assert!(text.contains(&format!("--gpu-mem {least}B")), "{text}");
}

/// A job swaps no more of its tensors than its limit lets it, and the plan is right.
#[test]
fn a_job_swaps_no_more_than_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("limited.plan");
    let options = ["--gpu-mem", "peak*60%", "--effort", "0", "--no-recompute"];
    let swapped = |limit: &str| -> (u64, u64) {
        let (a, b) = (format!("a={}", CNN[0]), format!("b={}{limit}", CNN[0]));
        let jobs = ["--job", &a, "--job", &b];
        memc_ok(&[&["compile", "-o", plan.to_str().unwrap()], &jobs[..], &options].concat());
        run(&plan, &RunOptions { verify: true, ..synthetic(2, folder.path().join("s.st")) });
        let told = json(&memc_ok(&[&["explain", "--json"], &jobs[..], &options].concat()));
        let own = told["tensors"].as_array().unwrap().iter().filter(|t| {
            t["kind"] != "input" && t["kind"] != "output" && t["name"].as_str().unwrap().starts_with("b/")
        });
        own.fold((0, 0), |(swapped, all), t| {
            let bytes = number(t, "bytes");
            (swapped + if t["does"] == "swap" { bytes } else { 0 }, all + bytes)
        })
    };
    let (free, all) = swapped("");
    assert!(free > all / 20, "{free} of {all}");
    assert!(swapped(",swap=5%").0 <= all / 20);
    assert_eq!(swapped(",swap=0").0, 0);
}
