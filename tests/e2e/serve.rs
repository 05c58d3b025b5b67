//! Jobs that come and go: plans that follow each other, and the controller.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use memc_plan::PlanFile;
use memc_runtime::{Carried, RunOptions, Silent, run_carrying};
use serde_json::Value;

use crate::support::{adversarial, json, memc_command, memc_fails, memc_ok, number, put, saved};

const CNN: &str = "models/cnn_bn/training_model.onnx";
const CLIP: &str = "models/mlp_clip/training_model.onnx";
const LARGE: &str = "models/resnet_tiny/training_model.onnx";
const SGD: &str = "models/cnn_bn_sgd/training_model.onnx";

/// States of a model that runs alone, unplanned, for some steps on synthetic data.
fn alone(folder: &Path, model: &str, steps: u64) -> BTreeMap<String, Vec<u8>> {
    let (plan, save) = (folder.join("alone.plan"), folder.join("alone.st"));
    memc_ok(&["compile", model, "-o", plan.to_str().unwrap()]);
    let options =
        RunOptions { steps: Some(steps), save: Some(save.clone()), synthetic: true, ..RunOptions::default() };
    memc_runtime::run(&PlanFile::open(&plan).unwrap(), &options, &mut Silent)
        .unwrap_or_else(|e| panic!("{e}"));
    saved(&save)
}

/// 200 switches at random between plans of one to four jobs within several budgets: each job ends with the
/// bits of a run of its own.
#[test]
fn switches_change_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = [("a", CNN), ("b", CLIP), ("c", SGD), ("d", CLIP)];
    let mut plans = Vec::new();
    for (at, set) in [1, 2, 3, 5, 6, 7, 8, 11, 15, 15, 15].into_iter().enumerate() {
        let of_set = jobs.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, job)| job);
        let flags: Vec<String> =
            of_set.flat_map(|(name, model)| ["--job".into(), format!("{name}={model}")]).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let need = json(&memc_ok(&[&["estimate", "--json"], &flags[..]].concat()));
        let (peak, least) = (number(&need, "peak_bytes"), number(&need, "smallest_feasible_bytes"));
        let budget = format!("{}B", least + (peak - least) * (at as u64 % 4) / 4);
        let plan = folder.path().join(format!("{at}.plan"));
        let more = ["--gpu-mem", &budget, "--effort", "0", "-o", plan.to_str().unwrap()];
        memc_ok(&[&["compile"], &flags[..], &more].concat());
        plans.push((set, PlanFile::open(&plan).unwrap()));
    }
    let mut carried = Carried::default();
    let mut expected = [0u64; 4];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for leg in 0..200 {
        let (set, file) = &plans[next(plans.len() as u64) as usize];
        let rounds = 1 + next(3);
        let options = RunOptions {
            steps: Some(rounds),
            synthetic: true,
            cpu: adversarial(leg),
            save: (leg == 199).then(|| folder.path().join("last-{job}.st")),
            ..RunOptions::default()
        };
        run_carrying(file, &options, &mut carried, &mut Silent).unwrap_or_else(|e| panic!("leg {leg}: {e}"));
        (0..4).filter(|i| set >> i & 1 == 1).for_each(|i| expected[i] += rounds);
    }
    // All four jobs, so that all states are saved.
    let (_, all) = plans.iter().find(|(set, _)| *set == 15).unwrap();
    let save = Some(folder.path().join("{job}.st"));
    let options = RunOptions { steps: Some(1), synthetic: true, save, ..RunOptions::default() };
    run_carrying(all, &options, &mut carried, &mut Silent).unwrap_or_else(|e| panic!("{e}"));
    for ((name, model), steps) in jobs.iter().zip(expected) {
        assert_eq!(carried.steps(name), steps + 1);
        let have = saved(&folder.path().join(format!("{name}.st")));
        assert!(have == alone(folder.path(), model, steps + 1), "job {name} after {steps} steps and one");
    }
}

/// A controller of its own for a test.
struct Server {
    folder: tempfile::TempDir,
    process: Child,
    budget: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start(budget: u64) -> Server {
        Server::with(budget, &["--device", "cpu"])
    }

    fn with(budget: u64, flags: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let budget = format!("{budget}B");
        let process = Server::spawn(folder.path(), &budget, flags);
        let server = Server { folder, process, budget };
        server.wait_for(|_| true);
        server
    }

    fn spawn(folder: &Path, budget: &str, flags: &[&str]) -> Child {
        let mut command = memc_command();
        command.arg("serve").args(flags).args(["--effort", "0"]);
        command.args(["--save-every", "5", "--gpu-mem", budget]);
        command.arg("--socket").arg(folder.join("s")).arg("--folder").arg(folder.join("jobs"));
        command.stderr(Stdio::null()).spawn().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ask(&self, words: &[&str]) -> String {
        let socket = self.path("s");
        memc_ok(&[&["job"], words, &["--socket", socket.to_str().unwrap(), "--json"]].concat())
    }

    fn refused(&self, words: &[&str]) -> String {
        let socket = self.path("s");
        memc_fails(2, &[&["job"], words, &["--socket", socket.to_str().unwrap()]].concat())
    }

    fn submit(&self, name: &str, model: &str, steps: u64) {
        let (job, save) = (format!("{name}={model}"), self.path(&format!("{name}.st")));
        let steps = steps.to_string();
        self.ask(&[
            "submit",
            "--job",
            &job,
            "--synthetic",
            "--steps",
            &steps,
            "--save",
            save.to_str().unwrap(),
        ]);
    }

    /// Waits until the controller's state is as wanted.
    fn wait_for(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let socket = self.path("s");
        // Five minutes at least.
        for _ in 0..6000 {
            let words = ["job", "status", "--json", "--socket", socket.to_str().unwrap()];
            let out = memc_command().args(words).output().unwrap();
            if out.status.success() {
                let state = json(&String::from_utf8(out.stdout).unwrap());
                if wanted(&state) {
                    return state;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the controller does not come to the state");
    }
}

/// A job of a controller's state.
fn job<'v>(state: &'v Value, name: &str) -> &'v Value {
    state["jobs"].as_array().unwrap().iter().find(|job| job["job"] == name).unwrap_or(&Value::Null)
}

fn need(model: &str, field: &str) -> u64 {
    number(&json(&memc_ok(&["estimate", model, "--json"])), field)
}

/// Jobs come, pause, go on, move to another budget and end; the controller is killed and started again. Each
/// ends with the bits of a run of its own.
#[test]
fn a_controller_runs_jobs_that_come_and_go() {
    let all = need(CNN, "peak_bytes") + need(CLIP, "peak_bytes") + need(SGD, "peak_bytes");
    let mut server = Server::start(all);
    server.submit("a", CNN, 4000);
    server.wait_for(|state| number(job(state, "a"), "step") > 20);
    server.submit("b", CLIP, 3000);
    let text = server.refused(&["submit", "--job", &format!("b={CLIP}"), "--synthetic", "--steps", "1"]);
    assert!(text.contains("a job b already"), "{text}");
    server.wait_for(|state| number(job(state, "b"), "step") > 20);
    // The jobs take turns: they need hardly more than the larger of them.
    let jobs = [&format!("a={CNN}"), &format!("b={CLIP}")];
    let both = json(&memc_ok(&["estimate", "--json", "--job", jobs[0], "--job", jobs[1]]));
    let least = number(&both, "smallest_feasible_bytes");
    assert!(least < need(LARGE, "smallest_feasible_bytes"));
    server.ask(&["set-budget", &format!("{least}B")]);
    let text = server.refused(&["submit", "--job", &format!("c={LARGE}"), "--synthetic", "--steps", "9"]);
    assert!(text.contains("smallest"), "{text}");
    let text = server.refused(&["set-budget", "1K"]);
    assert!(!text.is_empty());
    server.ask(&["pause", "a"]);
    let paused = number(job(&server.wait_for(|state| job(state, "a")["status"] == "paused"), "a"), "step");
    let state = json(&server.ask(&["status"]));
    assert!(number(job(&state, "a"), "step") <= paused + 2, "a paused job does not train");
    // Killed at any point, it goes on from the checkpoints.
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    server.process = Server::spawn(server.folder.path(), &server.budget, &["--device", "cpu"]);
    server.wait_for(|_| true);
    server.ask(&["resume", "a"]);
    // With the budget that it was set to.
    server.wait_for(|state| number(state, "gpu_mem_bytes") == least);
    let done = |state: &Value| ["a", "b"].iter().all(|name| job(state, name)["status"] == "done");
    server.wait_for(done);
    for (name, model, steps) in [("a", CNN, 4000), ("b", CLIP, 3000)] {
        let have = saved(&server.path(&format!("{name}.st")));
        assert!(have == alone(server.folder.path(), model, steps), "job {name}");
    }
    // A job that is stopped leaves its states.
    server.submit("d", SGD, 1_000_000);
    server.wait_for(|state| number(job(state, "d"), "step") > 3);
    server.ask(&["stop", "d"]);
    let state = server.wait_for(|state| job(state, "d")["status"] == "done");
    assert!(
        saved(&server.path("d.st")) == alone(server.folder.path(), SGD, number(job(&state, "d"), "step"))
    );
}

/// Requests that are wrong are refused and change nothing.
#[test]
fn wrong_requests_are_refused() {
    let server = Server::start(1 << 20);
    let text = server.refused(&["stop", "nobody"]);
    assert!(text.contains("no job nobody"), "{text}");
    let odd = format!("a={CNN}:2");
    let text = server.refused(&["submit", "--job", &odd, "--synthetic", "--steps", "3"]);
    assert!(text.contains("whole number of rounds"), "{text}");
    let none = server.refused(&["submit", "--job", &odd, "--synthetic", "--steps", "0"]);
    assert!(none.contains("--steps"), "{none}");
    let fed = format!("a={CNN}");
    let text = server.refused(&["submit", "--job", &fed, "--steps", "3"]);
    assert!(text.contains("there is no data for"), "{text}");
    let text = server.refused(&["submit", "--job", "a=no.onnx", "--synthetic", "--steps", "3"]);
    assert!(text.contains("no.onnx"), "{text}");
    let socket = server.path("s");
    let mut raw = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    std::io::Write::write_all(&mut raw, b"nonsense\n").unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(raw), &mut line).unwrap();
    assert!(line.contains("not a request"), "{line}");
    assert_eq!(json(&server.ask(&["status"]))["jobs"].as_array().unwrap().len(), 0);
    let folder = server.path("other");
    let words = ["serve", "--device", "cpu", "--gpu-mem", "1M", "--socket", socket.to_str().unwrap()];
    let text = memc_fails(2, &[&words[..], &["--folder", folder.to_str().unwrap()]].concat());
    assert!(text.contains("another controller answers"), "{text}");
}

/// A job whose data is not there is refused; one that ends for its own reason fails by itself, and the others
/// go on.
#[test]
fn a_job_without_its_data_fails_alone() {
    let server = Server::start(need(CNN, "peak_bytes") + need(CLIP, "peak_bytes"));
    server.submit("a", CNN, 2000);
    server.wait_for(|state| number(job(state, "a"), "step") > 5);
    let model = format!("b={CLIP}");
    let missing = format!("input=@{}", server.path("missing.npy").display());
    let submit = ["submit", "--job", &model, "--synthetic", "--steps", "10"];
    let text = server.refused(&[&submit[..], &["--input", &missing]].concat());
    assert!(text.contains("missing.npy"), "{text}");
    // Three rates do not last for ten steps.
    let mut header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }".to_owned();
    header.push_str(&" ".repeat(128 - 10 - 1 - header.len()));
    header.push('\n');
    let rates = [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &[0; 12]].concat();
    let rates = put(server.folder.path(), "rates.npy", &rates);
    server.ask(&[&submit[..], &["--lr", &format!("@{}", rates.display())]].concat());
    let state = server.wait_for(|state| job(state, "b")["status"] == "failed");
    assert!(job(&state, "b")["why"].as_str().unwrap().contains("3 rates"), "{state}");
    server.wait_for(|state| job(state, "a")["status"] == "done");
    assert!(saved(&server.path("a.st")) == alone(server.folder.path(), CNN, 2000));
}

/// A device on which kernels take no time, so that plans for it compute again what others would copy.
const FREE: &str = r#"{"format": "memc-profile/1", "name": "free", "kernels": "plain", "processors": 2,
    "f32_flops_per_s": 1e15, "memory_bytes_per_s": 1e15, "d2h_bytes_per_s": 1e9, "h2d_bytes_per_s": 1e9,
    "duplex_total_bytes_per_s": 1e9, "kernel_latency_ns": 1, "copy_latency_ns": 1000, "reserve_bytes": 0}"#;

/// Kernels are slower than planned, and become slower still: the jobs are planned again with the measured
/// times, another plan takes over, and they end with the bits of runs of their own.
#[test]
fn plans_follow_measured_times() {
    let (least, peak) = (need(CNN, "smallest_feasible_bytes"), need(CNN, "peak_bytes"));
    let folder = tempfile::tempdir().unwrap();
    let free = put(folder.path(), "free.json", FREE.as_bytes());
    let flags =
        ["--device", free.to_str().unwrap(), "--adapt", "--measure-every", "4", "--slow", "conv=40@4000"];
    // So little memory that the first plan computes many ops again.
    let server = Server::with(least + (peak - least) / 8, &flags);
    server.submit("a", CNN, 1 << 20);
    let has_slow = |profile: &Value| {
        let ops = profile["ops"].as_array().cloned().unwrap_or_default();
        let ns = |op: &str| ops.iter().filter(|row| row["op"] == op).map(|row| number(row, "time_ns")).max();
        ns("conv").is_some_and(|conv| conv > 8 * ns("conv_grad_weight").unwrap_or(0))
    };
    let profile =
        || std::fs::read_to_string(server.path("jobs/measured.json")).map_or(Value::Null, |t| json(&t));
    let state = server.wait_for(|state| number(job(state, "a"), "step") > 4000 && has_slow(&profile()));
    assert!(number(&state["measured"], "plans") > 0, "{state}");
    server.wait_for(|state| number(state, "legs") > 1);
    let state = json(&server.ask(&["stop", "a"]));
    let have = saved(&server.path("a.st"));
    assert!(have == alone(server.folder.path(), CNN, number(job(&state, "a"), "step")));
}

/// The plan in the folder is that of the jobs and the budget, whatever came in between; and a job is planned
/// anew where another had its name.
#[test]
fn a_leg_has_the_plan_of_its_jobs_and_budget() {
    let (least, peak) = (need(CNN, "smallest_feasible_bytes"), need(CNN, "peak_bytes"));
    let server = Server::start(peak);
    server.submit("a", CNN, 1 << 20);
    server.wait_for(|state| number(job(state, "a"), "step") > 5);
    for _ in 0..4 {
        std::thread::scope(|scope| {
            for bytes in [least, peak] {
                let server = &server;
                scope.spawn(move || server.ask(&["set-budget", &format!("{bytes}B")]));
            }
        });
        server.ask(&["pause", "a"]);
        let state = json(&server.ask(&["resume", "a"]));
        let plan = PlanFile::open(server.path("jobs/jobs.plan")).unwrap();
        assert_eq!(plan.plan().meta.budget_bytes, number(&state, "gpu_mem_bytes"));
    }
    server.ask(&["stop", "a"]);
    server.submit("a", CLIP, 300);
    server.wait_for(|state| job(state, "a")["status"] == "done");
    assert!(saved(&server.path("a.st")) == alone(server.folder.path(), CLIP, 300));
    let flags = ["serve", "--adapt", "--device", "h100", "--gpu-mem", "8G"];
    let text = memc_fails(
        2,
        &[&flags[..], &["--socket", "x.sock", "--folder", server.path("g").to_str().unwrap()]].concat(),
    );
    assert!(text.contains("memrun profile"), "{text}");
}
