//! Who checks the checker: wrong plans that it must not accept, judged by a simulator.
//!
//! From plans that the checker accepts, thousands of mutants are derived, each with one thing changed. The
//! simulator runs each in random orders that the events allow. A mutant that the checker accepts and the
//! simulator shows wrong is a hole in the checker, and fails the test. How many mutants of each kind meet
//! which fate is a golden file.

mod graph;
mod lower;
mod mutate;
mod random;
mod sim;
mod sync;

use std::collections::BTreeMap;
use std::fmt::Write;

use memc_check::{BucketErrors, CheckError, CheckErrors, check_buckets};
use memc_ir::Module;
use memc_plan::{Action, Plan, Queue};

use mutate::{Edit, KINDS, Kind};
use random::{Random, digest, mix};
use sim::Oracle;

/// Random steps that are lowered and mutated.
const SUBJECTS: u64 = 10;
/// Models that are compiled and mutated, with budgets and devices that make the planner swap, and once
/// recompute, and once with updates on the host.
const COMPILED: [(&str, &str, &str, &[&str]); 7] = [
    ("models/mlp_s/training_model.onnx", "10000B", "cpu", &[]),
    ("models/mlp_s_sgd/training_model.onnx", "5K", "cpu", &[]),
    ("models/cnn_bn_step/adamw.onnx", "435840B", "toy", &[]),
    ("models/cnn_bn/training_model.onnx", "400K", "cpu", &[]),
    ("models/cnn_bn/training_model.onnx", "250K", "cpu", &[]),
    ("models/bert_tiny_nodrop_sgd/training_model.onnx", "150K", "cpu", &[]),
    ("models/mlp_s_adamw_wd/training_model.onnx", "1G", "rtx4090", &["--host", "*weight*"]),
];
/// Most mutants of one kind from one plan.
const PER_KIND: usize = 12;
/// Most runs of a plan that the checker rejects.
const RUNS_REJECTED: usize = 24;
/// Most runs of a plan that the checker accepts.
const RUNS_ACCEPTED: usize = 120;
/// Commands of a body that get the most runs; longer ones get fewer.
const FULL_LENGTH: usize = 200;

/// Models that are compiled for several sizes and mutated, with options that fix the step and the budget.
const BUCKETS: [(&str, &str); 2] = [
    (
        "models/gen/cnn_bn.dynamic.onnx",
        "--loss cross-entropy --optimizer momentum:lr=0.1 --dim batch=2,4 --gpu-mem peak*45% --device cpu",
    ),
    (
        "models/gen/gpt_text.dynamic.onnx",
        "--loss cross-entropy:axis=-1 --optimizer sgd:lr=0.1 --dim batch=1 --dim seq=4,8 --gpu-mem peak*60% \
         --device cpu",
    ),
];

/// A plan with its sources, those of its buckets behind its own.
struct Subject {
    name: String,
    sources: Vec<Module>,
    plan: Plan,
}

/// A plan to mutate.
fn subjects() -> Vec<Subject> {
    let random_subject = |seed| {
        let mut random = Random::new(seed);
        let source = graph::random_step(&mut random);
        let plan = lower::lower(&source, &mut random);
        Subject { name: format!("random {seed}"), sources: vec![source], plan }
    };
    let compiled = COMPILED.iter().map(|&(model, budget, device, more)| {
        let options = [&["--gpu-mem", budget, "--device", device], more].concat();
        let mut subject = compiled_subject(model, &options);
        subject.name = format!("{model} at {budget}");
        subject
    });
    let all: Vec<Subject> = (0..SUBJECTS).map(random_subject).chain(compiled).collect();
    let host_shadows = |plan: &Plan| plan.prologue.iter().any(|c| matches!(c.action, Action::Copy { .. }));
    assert!(all.iter().any(|x| host_shadows(&x.plan)), "in no plan a state begins a step on both sides");
    let on_host = |plan: &Plan| plan.body.iter().any(|c| c.queue == Queue::CPU);
    assert!(all.iter().any(|x| on_host(&x.plan)), "in no plan an op runs on the host");
    all
}

/// A committed model as the command compiles it: real schedules, with swaps, recomputation and host resident
/// slots.
fn compiled_subject(model: &str, options: &[&str]) -> Subject {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("model.plan");
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_memc"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["compile", model, "-o"])
        .arg(&file)
        .args(options)
        .output()
        .expect("memc runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let plan = memc_plan::PlanFile::open(&file).expect("a plan").plan().clone();
    let source = |plan: &Plan| memc_ir::parse(&plan.meta.source).expect("the plan's source parses");
    Subject { name: model.to_owned(), sources: plan.with_buckets().map(source).collect(), plan }
}

/// Runs for a plan, so that long plans do not take the whole test's time.
fn runs(most: usize, plan: &Plan) -> usize {
    (most * FULL_LENGTH / plan.body.len().max(1)).clamp(4, most)
}

/// The checker's verdict on the schedule: claims of the header are made true first, so that no mutant is
/// rejected only because its bytes are miscounted.
fn verdict(sources: &[Module], plan: &mut Plan) -> Result<(), CheckErrors> {
    loop {
        let BucketErrors { bucket, errors } = match check_buckets(sources, plan) {
            Ok(_) => return Ok(()),
            Err(errors) => errors,
        };
        let mut corrections = Vec::new();
        for error in &errors.0 {
            let CheckError::HeaderMismatch { what, actual, .. } = error else { return Err(errors) };
            match (what.strip_prefix("claim "), actual.parse::<u64>()) {
                (Some(name), Ok(actual)) => corrections.push((name.to_owned(), actual)),
                _ => return Err(errors),
            }
        }
        for (name, actual) in corrections {
            let meta = &mut mutate::bucket_mut(plan, bucket).meta;
            *meta.claims.field_mut(&name).expect("a claim of the plan") = actual;
        }
    }
}

/// Fates of the mutants of one kind.
#[derive(Default)]
struct Fates {
    accepted: usize,
    witnessed: usize,
    unwitnessed: usize,
    codes: BTreeMap<&'static str, usize>,
}

#[test]
fn random_plans_are_accepted_and_right() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let source = graph::random_step(&mut random);
        memc_ir::verify(&source).expect("a valid step");
        let mut plan = lower::lower(&source, &mut random);
        plan.validate().expect("a valid plan");
        let sources = [source];
        if let Err(errors) = verdict(&sources, &mut plan) {
            panic!("seed {seed}: {errors}\n{}", memc_plan::text::print(&plan));
        }
        if let Some(failure) = Oracle::new(&sources).find_failure(&plan, 40, seed) {
            panic!("seed {seed}: {failure}\n{}", memc_plan::text::print(&plan));
        }
    }
}

#[test]
fn no_wrong_mutant_is_accepted() {
    let kinds = KINDS.iter().map(|&(name, edits)| -> BoxedKind { (name, Box::new(edits)) });
    let (table, total) = fates(subjects(), &kinds.collect::<Vec<_>>());
    assert!(total >= 2000 && table.len() >= 12, "{total} mutants of {} kinds", table.len());
    compare("mutation.txt", &render(&table));
}

/// Mutants of the plan itself or of one of its buckets, in runs that go from bucket to bucket.
#[test]
fn no_wrong_mutant_of_buckets_is_accepted() {
    let subjects = BUCKETS.iter().map(|(model, options)| {
        let options: Vec<&str> = options.split_whitespace().collect();
        compiled_subject(model, &options)
    });
    let in_buckets = |&(name, edits): &Kind| -> BoxedKind {
        (name, Box::new(move |plan| mutate::in_buckets(plan, edits)))
    };
    let own: BoxedKind = ("move a constant", Box::new(mutate::move_constants));
    let kinds: Vec<_> = KINDS.iter().map(in_buckets).chain([own]).collect();
    let (table, total) = fates(subjects.collect(), &kinds);
    assert!(total >= 500 && table.len() >= 12, "{total} mutants of {} kinds", table.len());
    compare("buckets.txt", &render(&table));
}

/// A kind of change: its name, and all changes of that kind for a plan with its buckets.
type BoxedKind = (&'static str, Box<dyn Fn(&Plan) -> Vec<Edit>>);

/// Fates of mutants by kind, and their number. Fails where the checker accepts one that the simulator shows
/// wrong.
fn fates(subjects: Vec<Subject>, kinds: &[BoxedKind]) -> (BTreeMap<&'static str, Fates>, usize) {
    let mut table: BTreeMap<&str, Fates> = BTreeMap::new();
    let mut holes = Vec::new();
    let mut total = 0;
    for mut subject in subjects {
        verdict(&subject.sources, &mut subject.plan).expect("an accepted plan");
        let oracle = Oracle::new(&subject.sources);
        let failure = oracle.find_failure(&subject.plan, RUNS_REJECTED, 0);
        assert!(failure.is_none(), "{}: {failure:?}", subject.name);
        for (kind, edits) in kinds {
            let mut random = Random::new(mix(digest(subject.name.as_bytes()), digest(kind.as_bytes())));
            let mut edits = edits(&subject.plan);
            for n in 0..PER_KIND {
                if edits.is_empty() {
                    break;
                }
                let edit = edits.swap_remove(random.below(edits.len()));
                let mut plan = subject.plan.clone();
                edit(&mut plan);
                if plan == subject.plan {
                    continue;
                }
                total += 1;
                let fates = table.entry(kind).or_default();
                let seed = random.next();
                if let Some(failure) = fates.add(&subject, &mut plan, &oracle, seed) {
                    let text = memc_plan::text::print(&plan);
                    holes.push(format!("{}, {kind}, {n}: {failure}\n{text}", subject.name));
                }
            }
        }
    }
    assert!(holes.is_empty(), "{} accepted plans are wrong; the first:\n{}", holes.len(), holes[0]);
    (table, total)
}

impl Fates {
    /// Counts the fate of a mutant; says what is wrong with one that the checker accepts.
    fn add(&mut self, of: &Subject, plan: &mut Plan, oracle: &Oracle<'_>, seed: u64) -> Option<String> {
        let Err(errors) = verdict(&of.sources, plan) else {
            self.accepted += 1;
            return oracle.find_failure(plan, runs(RUNS_ACCEPTED, plan), seed);
        };
        match oracle.find_failure(plan, runs(RUNS_REJECTED, plan), seed) {
            Some(_) => self.witnessed += 1,
            None => self.unwitnessed += 1,
        }
        if let Some(error) = errors.0.first() {
            *self.codes.entry(error.code()).or_default() += 1;
        }
        None
    }
}

fn render(table: &BTreeMap<&str, Fates>) -> String {
    let mut text = String::from(
        "mutants by kind: accepted and harmless as far as the simulator sees; rejected and shown wrong;\n\
         rejected without a witness; and the first error's code for those rejected\n\n",
    );
    let mut sum = Fates::default();
    let mut row = |kind: &str, fates: &Fates| {
        let codes: Vec<String> = fates.codes.iter().map(|(code, n)| format!("{code} {n}")).collect();
        let (a, w, u) = (fates.accepted, fates.witnessed, fates.unwitnessed);
        let row = format!("{kind:27} {a:5} {w:5} {u:5}   {}", codes.join(", "));
        let _ = writeln!(text, "{}", row.trim_end());
    };
    for (kind, fates) in table {
        row(kind, fates);
        sum.accepted += fates.accepted;
        sum.witnessed += fates.witnessed;
        sum.unwitnessed += fates.unwitnessed;
        for (code, n) in &fates.codes {
            *sum.codes.entry(code).or_default() += n;
        }
    }
    row("all", &sum);
    text
}

fn compare(name: &str, actual: &str) {
    let path = format!("{}/tests/golden/checker/{name}", env!("CARGO_MANIFEST_DIR"));
    #[allow(clippy::disallowed_methods, reason = "the one switch of the test runner")]
    let bless = std::env::var_os("MEMC_BLESS").is_some();
    if bless {
        std::fs::write(&path, actual).expect("the golden file can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{path} differs; MEMC_BLESS=1 rewrites it:\n{actual}");
}
