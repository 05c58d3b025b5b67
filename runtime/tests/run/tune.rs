//! Tuning a plan's library calls, and running what was tuned: through the command line on the fake libraries,
//! whose algorithms take times of their own, and on the mock.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{Arc, Mutex};

use memc_plan::{NoData, PlanFile, TunedAlgorithm, Tuning};
use memc_runtime::gpu::Gpu;
use memc_runtime::{RunOptions, Stages, TuneOptions, run_on, tune_gpu};
use serde_json::Value;

use crate::fake::Fake;
use crate::libraries::{Results, few, plan};
use crate::mock::{Behaviour, Mock, has_compiler};
use crate::{CLASSIFIER, Folder, Log, host_waits, libraries, steps};

const TUNE: &str = "tune model.plan --device cuda";
/// Said of every kernel whose algorithm is refused.
const REFUSED: &str = "do not take the tuned algorithm; `memrun tune` measures again";

/// A plan of a few library calls, each with room for every algorithm.
fn roomy() -> Option<Fake> {
    let cases = few();
    Fake::new(&plan(cases.iter().map(|case| (case, memc_cuda::allowance(&case.0, &case.1)))))
}

/// Results, what was called, each once, and what was said.
fn run(fake: &Fake, options: &str, failure: &str) -> (Results, Vec<String>, String) {
    libraries::run(fake, &format!("--no-graph {options}"), failure)
}

/// The tuning section of `model.plan`, and the plan written again with what is made of it.
fn retune(fake: &Fake, change: impl FnOnce(&mut Tuning)) {
    let path = fake.folder.path("model.plan");
    let mut plan = PlanFile::open(&path).unwrap().plan().clone();
    change(plan.tuning.as_mut().unwrap());
    memc_plan::write(&path, &plan, &mut NoData, &|| false).unwrap();
}

/// Calls of a function, without its name.
fn of<'a>(calls: &'a [String], name: &str) -> Vec<&'a str> {
    calls.iter().filter_map(|call| call.strip_prefix(name)).map(str::trim).collect()
}

/// The fastest algorithm is kept where it is worth it, in place of the plan or beside it, and is the one that
/// runs.
#[test]
fn the_fastest_ways_are_kept_and_run() {
    let Some(fake) = roomy() else { return };
    let (before, chosen, _) = run(&fake, "", "");
    assert!(of(&chosen, "cublasLtMatmul").iter().all(|call| call.starts_with("scheme=2 ")), "{chosen:#?}");
    let untuned = std::fs::read(fake.folder.path("model.plan")).unwrap();
    let printed = fake.succeeds(&format!("{TUNE} -o tuned.plan --json"), "");
    assert_eq!(std::fs::read(fake.folder.path("model.plan")).unwrap(), untuned);
    let object: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&object["device"], &object["arch"]), (&Value::from("Fake GPU"), &Value::from("sm_90")));
    assert_eq!(object["libraries"], serde_json::json!({"cuBLASLt": "13.1.0", "cuDNN": "9.19.0"}));
    assert_eq!((&object["rounding"], &object["allow_nondeterminism"]), (&"exact".into(), &false.into()));
    assert!(object["step_ns"].as_u64() < object["default_step_ns"].as_u64());
    let kernels = object["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), chosen.len());
    for kernel in kernels {
        let (op, algorithm) = (kernel["op"].as_str().unwrap(), kernel["algorithm"].as_str().unwrap());
        let is_product = kernel["library"] == "cuBLASLt";
        let is_other = kernel["is_other"] == true;
        assert_eq!(is_other, kernel["ns"].as_u64() < kernel["default_ns"].as_u64(), "{kernel}");
        assert_eq!(kernel["launches"], 1);
        let (algorithms, expected) = match (is_product, op.contains(" conv_grad_")) {
            // Of the one that a library may compute as a whole or in part, those of both forms.
            (true, _) if op.contains("matmul_bias_grad(f32[7,5], f32[7,6])") => {
                (6, is_other && kernel["is_apart"] == false)
            }
            (true, _) => (3, is_other && kernel["workspace_bytes"] == 0),
            (_, true) => (2, is_other && algorithm == "convolution 1 math 3"),
            // One per cent is not worth it.
            _ => (
                kernel["algorithms"].as_u64().unwrap(),
                !is_other && !algorithm.starts_with("convolution 1 "),
            ),
        };
        assert!(kernel["algorithms"] == algorithms && algorithms > 1 && expected, "{kernel}");
    }
    // In place, and as a table.
    let printed = fake.succeeds(TUNE, "");
    assert!(printed.lines().count() == kernels.len() + 2 && printed.contains("ratio  kernel"), "{printed}");
    assert!(printed.contains("on Fake GPU; ") && printed.contains("model.plan: "), "{printed}");
    let info = fake.succeeds("model.plan --plan-info", "");
    assert!(info.contains(&format!("{} kernels for Fake GPU, sm_90", kernels.len())), "{info}");
    let (got, calls, said) = run(&fake, "", "");
    assert_eq!(said, "");
    assert_eq!(calls.len(), chosen.len());
    let products = of(&calls, "cublasLtMatmul");
    assert!(
        products.iter().all(|call| call.starts_with("scheme=0 compute=68 workspace=0 tile=1 ")),
        "{calls:#?}"
    );
    assert!(of(&calls, "cudnnConvolutionForward")[0].starts_with("algorithm=7 "), "{calls:#?}");
    let gradients = of(&calls, "cudnnConvolutionBackward");
    assert!(gradients.iter().all(|call| call.contains(" algorithm=1 math=3 ")), "{calls:#?}");
    // Algorithms differ in the order of sums.
    assert!(got != before);
    let (again, _, said) = libraries::run(&fake, "--check-memory --steps 3", "");
    assert_eq!((said.as_str(), got), ("", again));
}

/// Of a product with the sum of an operand both forms are measured, one call for both or a call and a kernel,
/// and the faster one is kept and run.
#[test]
fn the_faster_form_of_a_product_with_a_sum_is_kept() {
    let case = libraries::bias_grad_case();
    let room = memc_cuda::allowance(&case.0, &case.1);
    let Some(fake) = Fake::new(&plan([(&case, room)])) else { return };
    let sums = |calls: &[String]| calls.iter().filter(|call| call.contains("epilogue=512")).count();
    for (failure, count) in [("", 1), ("slow sums", 0)] {
        let object: Value = serde_json::from_str(&fake.succeeds(&format!("{TUNE} --json"), failure)).unwrap();
        assert_eq!(object["kernels"][0]["is_apart"], count == 0, "{object}");
        let (_, calls, said) = run(&fake, "", failure);
        assert_eq!((calls.len(), sums(&calls), said.as_str()), (1, count, ""), "{calls:#?}");
        assert!(calls[0].contains("scheme=0 compute=68 workspace=0 tile=1 "), "{calls:#?}");
        let (again, _, _) = libraries::run(&fake, "--check-memory --steps 3", failure);
        assert_eq!(run(&fake, "", failure).0, again);
    }
}

/// Of a convolution by one element both forms are measured, cuBLASLt's products and cuDNN's call, and the
/// faster one is kept and run.
#[test]
fn the_faster_form_of_a_convolution_is_kept() {
    for case in libraries::pointwise_cases() {
        let room = memc_cuda::allowance(&case.0, &case.1);
        let Some(fake) = Fake::new(&plan([(&case, room)])) else { return };
        let want = libraries::results(&fake.folder.run_and_save(&steps(1)).1);
        for (failure, is_product) in [("slow convolutions", true), ("slow products", false)] {
            let printed = fake.succeeds(&format!("{TUNE} --json"), failure);
            let object: Value = serde_json::from_str(&printed).unwrap();
            let kernel = &object["kernels"][0];
            assert_eq!(kernel["is_apart"], is_product, "{failure}: {object}");
            assert!(kernel["algorithms"].as_u64() > Some(3), "of both forms: {object}");
            let (got, calls, said) = run(&fake, "", failure);
            assert_eq!((calls.len(), said.as_str()), (1, ""), "{calls:#?}");
            assert_eq!(calls[0].starts_with("cublasLtMatmul"), is_product, "{calls:#?}");
            libraries::assert_close(std::slice::from_ref(&case), &got, &want);
            let (again, _, _) = libraries::run(&fake, "--check-memory --steps 3", failure);
            assert_eq!(got, again);
        }
    }
}

/// Where sums may have any order, algorithms without one are measured too, and with other rounding those of
/// that.
#[test]
fn options_widen_what_is_measured() {
    let Some(fake) = roomy() else { return };
    fake.succeeds(&format!("{TUNE} --allow-nondeterminism --tf32"), "");
    let (_, calls, said) = run(&fake, "--allow-nondeterminism --tf32", "");
    assert_eq!(said, "");
    assert!(
        of(&calls, "cublasLtMatmul").iter().all(|call| call.starts_with("scheme=4 compute=77 ")),
        "{calls:#?}"
    );
    let gradients = of(&calls, "cudnnConvolutionBackward");
    assert!(gradients.iter().all(|call| call.contains(" algorithm=0 ")), "{calls:#?}");
}

/// On another GPU, with another version or other options the libraries choose as for a plan that was never
/// tuned, and one note says so. Without libraries, or on the CPU, there is nothing to say.
#[test]
fn a_tuning_of_something_else_is_left_with_a_note() {
    let Some(fake) = roomy() else { return };
    let run_both = |options: &str, failure: &str| {
        let (want, chosen, _) = run(&fake, options, failure);
        fake.succeeds(TUNE, "");
        let (got, calls, said) = run(&fake, options, failure);
        retune(&fake, |_| ());
        assert_eq!((calls, got), (chosen, want), "{options} {failure}");
        said
    };
    let all = |said: &str| {
        assert!(said.contains("is not used for "), "{said}");
        let (left, rest) = said.split_once("is not used for ").unwrap().1.split_once(" of ").unwrap();
        assert_eq!((said.lines().count(), rest.split(' ').next()), (1, Some(left)), "{said}");
    };
    let untuned = std::fs::read(fake.folder.path("model.plan")).unwrap();
    let reset = || std::fs::write(fake.folder.path("model.plan"), &untuned).unwrap();
    for (options, failure, parts) in [
        ("", "other GPU", ["it was measured on Fake GPU, sm_90, and this is Other GPU, sm_90", ""]),
        (
            "",
            "other version",
            ["with cuBLASLt 13.1.0, and here is 13.1.1", "with cuDNN 9.19.0, and here is 9.20.0"],
        ),
        ("--tf32", "", ["with rounding exact, sums in one order, and this run has rounding tf32", ""]),
        ("--allow-nondeterminism", "", ["has rounding exact, sums in any order", "`memrun tune`"]),
    ] {
        reset();
        let said = run_both(options, failure);
        all(&said);
        assert!(parts.iter().all(|part| said.contains(part)), "{said} lacks {parts:?}");
    }
    let measured = fake.memrun("profile model.plan --device cuda --steps 1 -o gpu.json", "other GPU");
    all(&String::from_utf8(measured.stderr).unwrap());
    reset();
    assert_eq!(run_both("--no-libraries", ""), "");
    reset();
    // Without a library there is one note, about the library alone.
    let said = run_both("", "old library");
    assert!(said.lines().count() == 2 && !said.contains("tuning"), "{said}");
    let output = fake.memrun("model.plan --steps 2", "");
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
}

/// A change of an algorithm.
type Forge = dyn Fn(&mut TunedAlgorithm);

/// A product's algorithm on the fakes, with one of its words changed.
fn changed(algorithm: &mut TunedAlgorithm, word: usize, value: u64) {
    let TunedAlgorithm::Product(bytes) = algorithm else { return };
    bytes[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
}

/// A product's algorithm as the fakes offer it where parts may be added up in place.
fn in_place(algorithm: &mut TunedAlgorithm) {
    changed(algorithm, 1, 1);
    changed(algorithm, 2, 1024);
    changed(algorithm, 5, 0);
}

/// Algorithms without order, algorithms that need more than there is, and what is no algorithm at all are not
/// offered, and so not taken, whatever a plan says; where sums may have any order, the same algorithms are.
#[test]
fn ways_that_break_the_rules_are_not_taken() {
    let Some(fake) = roomy() else { return };
    let (want, chosen, _) = run(&fake, "", "");
    let forge = |change: &Forge, options: &str| {
        fake.succeeds(TUNE, "");
        retune(&fake, |tuning| {
            tuning.kernels.iter_mut().for_each(|entry| change(&mut entry.algorithm));
            tuning.allow_nondeterminism = !options.is_empty();
        });
        run(&fake, options, "")
    };
    let products = of(&chosen, "cublasLtMatmul").len();
    // In place, which the library would do if it were asked; parts in the result's type; other words;
    // algorithms of other calls.
    let cases: [(&Forge, usize); 6] = [
        (&in_place, products),
        (&|algorithm| changed(algorithm, 0, 7), products),
        (&|algorithm| changed(algorithm, 4, 7), products),
        (&|algorithm| changed(algorithm, 5, 9), products),
        (&|algorithm| *algorithm = TunedAlgorithm::Product(Box::new([0xff; 64])), chosen.len()),
        (&|algorithm| *algorithm = TunedAlgorithm::Convolution { algorithm: 90, math: 7 }, chosen.len()),
    ];
    for (index, (change, left)) in cases.into_iter().enumerate() {
        let (got, calls, said) = forge(change, "");
        let expected = format!("is not used for {left} of {} tuned kernels", chosen.len());
        assert!(
            said.lines().count() == 1 && said.contains(REFUSED) && said.contains(&expected),
            "{index}: {said}"
        );
        let of_products = |calls: &[String]| of(calls, "cublasLtMatmul").join("\n");
        assert_eq!(of_products(&calls), of_products(&chosen), "{index}");
        assert!(left < chosen.len() || got == want, "{index}");
    }
    let any_order = |algorithm: &mut TunedAlgorithm| match algorithm {
        TunedAlgorithm::Product(_) => in_place(algorithm),
        TunedAlgorithm::Convolution { algorithm, .. } => *algorithm = 0,
    };
    let gradients = of(&chosen, "cudnnConvolutionBackward").len();
    let (_, calls, said) = forge(&any_order, "");
    assert!(said.contains(&format!("is not used for {} of", products + gradients)), "{said}");
    assert!(of(&calls, "cublasLtMatmul").iter().all(|call| call.starts_with("scheme=2 ")), "{calls:#?}");
    assert!(
        of(&calls, "cudnnConvolutionBackward").iter().all(|call| !call.contains(" algorithm=0 ")),
        "{calls:#?}"
    );
    let (_, calls, said) = forge(&any_order, "--allow-nondeterminism");
    // All products but the first have less room than this algorithm takes.
    let expected = format!("is not used for {} of {} ", products - 1, chosen.len());
    assert!(said.contains(&expected) && said.contains(REFUSED), "{said}");
    assert!(of(&calls, "cublasLtMatmul")[0].starts_with("scheme=1 "), "{calls:#?}");
    assert!(
        of(&calls, "cudnnConvolutionBackward").iter().all(|call| call.contains(" algorithm=0 ")),
        "{calls:#?}"
    );
}

/// The workspace of an algorithm is the library's word, not the plan's; a plan whose own word is more
/// than its launches have is damaged.
#[test]
fn workspaces_are_those_of_the_launches() {
    let Some(fake) = roomy() else { return };
    fake.succeeds(TUNE, "");
    let roomy = PlanFile::open(fake.folder.path("model.plan")).unwrap().plan().tuning.clone().unwrap();
    let cases = few();
    let fake = Fake::new(&plan(cases.iter().map(|case| (case, 192)))).unwrap();
    let (_, chosen, _) = run(&fake, "", "");
    let path = fake.folder.path("model.plan");
    let mut narrow = PlanFile::open(&path).unwrap().plan().clone();
    narrow.tuning = Some(roomy);
    // The algorithm that the library itself would choose, if there were room for it.
    let mut products = [3 * 5 * 6, 5 * 6, 5 * 8, 5 * 6, 5 * 11].into_iter();
    let count = products.len();
    for entry in &mut narrow.tuning.as_mut().unwrap().kernels {
        entry.workspace_bytes = 0;
        let TunedAlgorithm::Product(bytes) = &entry.algorithm else { continue };
        // The workspace that it would take, by the fake's own word.
        let elements = products.next().unwrap();
        assert_eq!((&bytes[8..24], bytes[40]), (&[0; 16][..], 1));
        changed(&mut entry.algorithm, 1, 2);
        changed(&mut entry.algorithm, 2, 8 * elements);
        changed(&mut entry.algorithm, 5, 0);
    }
    memc_plan::write(&path, &narrow, &mut NoData, &|| false).unwrap();
    let (_, calls, said) = run(&fake, "", "");
    let expected = format!("is not used for {count} of {} ", cases.len());
    assert!(said.contains(REFUSED) && said.contains(&expected), "{said}");
    assert_eq!(of(&calls, "cublasLtMatmul"), of(&chosen, "cublasLtMatmul"));
    // The same with its own word.
    narrow.tuning.as_mut().unwrap().kernels[0].workspace_bytes = 1 << 20;
    let written = memc_plan::write(&path, &narrow, &mut NoData, &|| false);
    assert!(written.unwrap_err().to_string().contains("bytes of workspace where a launch has"));
}

/// A planned run with tuned calls equals the unplanned one, which takes the same algorithms; a tuned plan is
/// tuned again from what the libraries choose.
#[test]
fn planned_and_unplanned_runs_take_the_tuned_ways() {
    let Some(fake) = Fake::new(&host_waits()) else { return };
    let tuned = |text: String| -> Vec<Value> {
        let object: Value = serde_json::from_str(&text).unwrap();
        let algorithm =
            |kernel: &Value| serde_json::json!([kernel["kernel"], kernel["algorithm"], kernel["is_other"]]);
        object["kernels"].as_array().unwrap().iter().map(algorithm).collect()
    };
    let first = tuned(fake.succeeds(&format!("{TUNE} --json"), ""));
    assert!(first.iter().any(|kernel| kernel[2] == true), "{first:?}");
    for options in ["", "--no-graph", "--check-memory"] {
        let printed = fake.succeeds(&format!("model.plan --device cuda --steps 3 --verify {options}"), "");
        assert!(printed.contains("verified=bit-identical"), "{printed}");
    }
    assert_eq!(tuned(fake.succeeds(&format!("{TUNE} --json"), "")), first);
    fake.succeeds("profile model.plan --device cuda --steps 1 -o gpu.json", "");
}

/// Nothing is written where the device is none, fails, or has no libraries to measure, or not all of them:
/// what was measured before stays.
#[test]
fn what_cannot_be_tuned_is_told() {
    let Some(fake) = roomy() else { return };
    fake.succeeds(TUNE, "");
    let path = fake.folder.path("model.plan");
    assert!(PlanFile::open(&path).unwrap().plan().tuning.is_some());
    let tuned = std::fs::read(&path).unwrap();
    fake.fails("tune model.plan", "", 2, &["--device cuda"]);
    fake.fails("tune model.plan --device cuda --no-libraries", "", 2, &["--no-libraries"]);
    fake.fails("tune model.plan --device cuda -o model.plan", "", 2, &["would be overwritten"]);
    fake.fails("tune model.plan --device cuda -o none/x.plan", "", 74, &["none"]);
    fake.fails(TUNE, "no device", 8, &["no GPU"]);
    fake.fails(TUNE, "cublasLtMatmul", 8, &["cublasLtMatmul failed"]);
    fake.fails(TUNE, "cudnnConvolutionForward", 8, &["cudnnConvolutionForward failed"]);
    let json = fake.memrun(&format!("{TUNE} --json"), "no device");
    let object: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(object["error"].as_str().unwrap().contains("no GPU"), "{object}");
    assert_eq!(object, serde_json::json!({"device": null, "error": object["error"], "exit_code": 8}));
    let (blas, dnn) = ("libcublasLt.so is of version 11.11.3", "libcudnn.so is of version 8.9.7");
    fake.fails(TUNE, "old library", 8, &["all libraries that its kernels call", blas, dnn]);
    let nothing = "no kernel is a library's; there is nothing to tune, and nothing is written";
    for output in ["", "-o same.plan"] {
        let printed = fake.succeeds(&format!("{TUNE} {output}"), "unsupported");
        assert_eq!(printed, format!("model.plan: {nothing}\n"));
        let object: Value =
            serde_json::from_str(&fake.succeeds(&format!("{TUNE} {output} --json"), "unsupported")).unwrap();
        assert!(object["plan"].is_null() && object["kernels"].as_array().unwrap().is_empty(), "{object}");
    }
    // One of the two, then both.
    for names in
        [&["libcudnn.so", "libcudnn.so.9"][..], &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"]]
    {
        names.iter().for_each(|name| std::fs::write(fake.folder.path(name), "not a library").unwrap());
        let what = format!("{} was not found", names[0]);
        fake.fails(&format!("{TUNE} -o same.plan"), "", 8, &["all libraries that its kernels call", &what]);
        fake.fails(TUNE, "", 8, &[&what, "libcudnn.so was not found"]);
    }
    assert!(std::fs::read(&path).unwrap() == tuned && !fake.folder.path("same.plan").exists());
}

/// On the mock, whose algorithms compute the same, a tuned plan gives the bits of the untuned one, planned
/// and unplanned, at any timing, and is left with a note where the libraries are newer.
#[test]
fn a_tuned_plan_gives_the_bits_of_the_untuned_one() {
    if !has_compiler() {
        return;
    }
    let folder = Folder::of(CLASSIFIER);
    let behaviour = Behaviour { has_libraries: true, ..Behaviour::default() };
    let on_mock = |file: &PlanFile, behaviour: Behaviour| {
        let device = Gpu::new("mock", move || Ok(Mock::new(behaviour)), true);
        let path = folder.path("mock.safetensors");
        let options = RunOptions {
            steps: Some(4),
            synthetic: true,
            verify: true,
            save: Some(path.clone()),
            ..RunOptions::default()
        };
        let mut log = Log::default();
        run_on(&device, file, &options, &mut log).unwrap();
        let notes: Vec<String> = log.notes.into_iter().filter(|note| note.contains("tuning")).collect();
        ((log.losses, std::fs::read(path).unwrap()), notes)
    };
    let file = folder.plan();
    let (untuned, _) = on_mock(&file, behaviour);
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = told.clone();
    let stages = Stages::new(move |what| to.lock().unwrap().push(what.to_owned()));
    let options = TuneOptions { stages, ..TuneOptions::default() };
    let tuned = tune_gpu(&|| Ok(Mock::new(behaviour)), &file, &options).unwrap();
    assert!(
        !tuned.calls.is_empty() && tuned.calls.iter().all(|call| call.algorithms == 3),
        "{:?}",
        tuned.calls
    );
    let (told, calls) = (told.lock().unwrap(), tuned.calls.len());
    assert_eq!(told.last(), Some(&format!("measuring algorithms: call {calls} of {calls}")), "{told:?}");
    let mut plan = file.plan().clone();
    plan.tuning = tuned.tuning;
    // The last of the mock's algorithms, whichever was the fastest.
    for entry in &mut plan.tuning.as_mut().unwrap().kernels {
        match &mut entry.algorithm {
            TunedAlgorithm::Product(bytes) => bytes.fill(2),
            TunedAlgorithm::Convolution { algorithm, .. } => *algorithm = 2,
        }
    }
    let path = folder.path("tuned.plan");
    memc_plan::write(&path, &plan, &mut NoData, &|| false).unwrap();
    let file = PlanFile::open(&path).unwrap();
    for seed in [None, Some(1), Some(2)] {
        assert_eq!(on_mock(&file, Behaviour { seed, ..behaviour }), (untuned.clone(), Vec::new()));
    }
    let (got, notes) = on_mock(&file, Behaviour { has_newer: true, ..behaviour });
    assert!(got == untuned && notes.len() == 1 && notes[0].contains("1.0.0, and here is 2.0.0"), "{notes:?}");
}
