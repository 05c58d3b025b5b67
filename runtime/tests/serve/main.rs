//! Tests of the server, over real sockets, on plans written by hand.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "tests measure how long requests wait")]

mod client;
mod command;
mod refused;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use memc_plan::{NoData, PlanFile};
use memc_runtime::serve::{ServeOptions, ServedPlan, Server};
use memc_runtime::{RunOptions, Silent};
use serde_json::{Value, json};

use client::{Client, Reply, get, post};

/// `y = x w + b` for four samples of three numbers.
const LINEAR: &str = include_str!("linear.plan");
/// Rows of a table, by three indices.
const TABLE: &str = include_str!("table.plan");
/// Two jobs: `a` negates once in a round, `b` twice.
const JOBS: &str = include_str!("jobs.plan");

/// Model, batch and rows of [`LINEAR`].
const ROWS: usize = 4;
const WIDE: usize = 3;
const NARROW: usize = 2;

/// A folder with plans, removed at the end.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(plans: &[(&str, &str)]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in plans {
            let mut plan = memc_plan::text::parse(text).unwrap();
            plan.meta.set_source(plan.meta.source.clone());
            memc_plan::write(folder.path().join(name), &plan, &mut NoData, &|| false).unwrap();
        }
        Folder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn options(&self, names: &[&str]) -> ServeOptions {
        let plan = |name: &&str| ServedPlan { name: None, path: self.path(name), init: None };
        ServeOptions {
            plans: names.iter().map(plan).collect(),
            http: Some("127.0.0.1:0".parse().unwrap()),
            cpu: memc_runtime::cpu::Options { threads: 2, check_memory: true, delay_seed: None, slow: None },
            ..ServeOptions::default()
        }
    }
}

fn linear() -> Folder {
    Folder::new(&[("linear.plan", LINEAR)])
}

fn start(options: &ServeOptions) -> (Server, String) {
    let server = Server::start(options).unwrap_or_else(|e| panic!("{e}"));
    let address = server.address().unwrap().to_string();
    (server, address)
}

/// Different numbers in every row.
fn rows(from: usize, count: usize) -> Vec<f32> {
    (from * WIDE..(from + count) * WIDE).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn body(x: &[f32]) -> Value {
    let shape = [x.len() / WIDE, WIDE];
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": x}]})
}

/// The numbers of a response's only output.
fn numbers(reply: &Reply) -> Vec<f32> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let data = reply.json()["outputs"][0]["data"].as_array().unwrap().clone();
    data.iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// The outputs that `memrun` computes for whole batches.
fn expected(folder: &Folder, x: &[f32]) -> Vec<f32> {
    let (from, to) = (folder.path("x.npy"), folder.path("y.npy"));
    npy(&from, &[x.len() / WIDE, WIDE], x);
    let options = RunOptions {
        inputs: vec![("x".into(), from.into())],
        collect: vec![("y".into(), to.clone())],
        ..RunOptions::default()
    };
    let file = PlanFile::open(folder.path("linear.plan")).unwrap();
    memc_runtime::run(&file, &options, &mut Silent).unwrap_or_else(|e| panic!("{e}"));
    let bytes = std::fs::read(to).unwrap();
    let numbers = x.len() / WIDE * NARROW;
    floats(&bytes[bytes.len() - numbers * 4..])
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Writes an `.npy` file of f32.
fn npy(path: &Path, shape: &[usize], data: &[f32]) {
    let extents: String = shape.iter().map(|d| format!("{d}, ")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({extents}), }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(data.iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(path, bytes).unwrap();
}

/// The value of a line of the metrics.
fn figure(address: &str, line: &str) -> f64 {
    let text = get(address, "/metrics").text();
    let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
    found.map_or(0.0, |value| value.parse().unwrap())
}

/// A request has the bits that memrun computes: a whole batch, single rows, JSON and binary.
#[test]
fn answers_are_those_of_memrun() {
    let folder = linear();
    let x = rows(0, ROWS);
    let want = expected(&folder, &x);
    let (server, address) = start(&folder.options(&["linear.plan"]));
    let path = "/v2/models/linear/infer";
    let mut request = body(&x);
    request["id"] = json!("a \"name\"");
    let reply = post(&address, path, &request.to_string());
    assert_eq!(numbers(&reply), want);
    let object = reply.json();
    assert_eq!((&object["id"], &object["model_name"]), (&json!("a \"name\""), &json!("linear")));
    assert_eq!(object["outputs"][0]["shape"], json!([ROWS, NARROW]));
    assert_eq!(object["outputs"][0]["datatype"], "FP32");
    for row in 0..ROWS {
        let one = post(&address, path, &body(&rows(row, 1)).to_string());
        assert_eq!(numbers(&one), want[row * NARROW..][..NARROW], "row {row}");
    }
    let nested = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [[1, 2.5, 3]]}],
        "outputs": [{"name": "y"}]});
    assert_eq!(numbers(&post(&address, "/v2/models/linear/versions/1/infer", &nested.to_string())).len(), 2);
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let input = json!({"name": "x", "datatype": "FP32", "shape": [ROWS, WIDE],
        "parameters": {"binary_data_size": bytes.len()}});
    let head = json!({"inputs": [input], "parameters": {"binary_data_output": true}}).to_string();
    let reply = Client::new(&address).binary(path, &head, &bytes);
    let length: usize = reply.header("Inference-Header-Content-Length").unwrap().parse().unwrap();
    let (text, binary) = reply.body.split_at(length);
    let object: Value = serde_json::from_slice(text).unwrap();
    assert_eq!(object["outputs"][0]["parameters"]["binary_data_size"], ROWS * NARROW * 4);
    assert_eq!(floats(binary), want);
    server.end();
}

/// Requests that come together share a batch; one that comes alone waits for the delay only.
#[test]
fn requests_share_batches() {
    let folder = linear();
    let delay = Duration::from_secs(20);
    let options = ServeOptions { max_delay: delay, ..folder.options(&["linear.plan"]) };
    let want = expected(&folder, &rows(0, ROWS));
    let (server, address) = start(&options);
    let begun = Instant::now();
    thread::scope(|scope| {
        for row in 0..ROWS {
            let (address, want) = (&address, &want);
            scope.spawn(move || {
                let reply = post(address, "/v2/models/linear/infer", &body(&rows(row, 1)).to_string());
                assert_eq!(numbers(&reply), want[row * NARROW..][..NARROW]);
            });
        }
    });
    assert!(begun.elapsed() < delay, "a full batch does not wait");
    assert_eq!(figure(&address, "memrun_batch_rows_count{model=\"linear\"}"), 1.0);
    assert_eq!(figure(&address, "memrun_batch_rows_sum{model=\"linear\"}"), 4.0);
    assert_eq!(figure(&address, "memrun_batch_rows_bucket{model=\"linear\",le=\"2\"}"), 0.0);
    server.end();
}

/// Many clients at once each get their own rows.
#[test]
fn clients_do_not_see_each_other() {
    let folder = linear();
    let want = expected(&folder, &rows(0, 64));
    let (server, address) = start(&folder.options(&["linear.plan"]));
    thread::scope(|scope| {
        for client in 0..16 {
            let (address, want) = (&address, &want);
            scope.spawn(move || {
                let mut connection = Client::new(address);
                for i in 0..40 {
                    let count = 1 + (client + i) % ROWS;
                    let from = (client * 7 + i * 3) % (64 - ROWS);
                    let text = body(&rows(from, count)).to_string();
                    let reply = connection.post("/v2/models/linear/infer", &text);
                    assert_eq!(numbers(&reply), want[from * NARROW..][..count * NARROW]);
                }
            });
        }
    });
    assert_eq!(figure(&address, "memrun_requests_total{model=\"linear\",status=\"200\"}"), 640.0);
    assert_eq!(figure(&address, "memrun_request_seconds_count{model=\"linear\"}"), 640.0);
    assert_eq!(figure(&address, "memrun_queue_length{model=\"linear\"}"), 0.0);
    server.end();
}

/// Answers to all that a client can ask beside outputs.
#[test]
fn models_describe_themselves() {
    let folder = Folder::new(&[("linear.plan", LINEAR), ("table.plan", TABLE)]);
    let (server, address) = start(&folder.options(&["linear.plan", "table.plan"]));
    assert_eq!(get(&address, "/v2").json()["extensions"], json!(["binary_tensor_data"]));
    assert_eq!(get(&address, "/v2/health/live").json()["live"], true);
    assert_eq!(get(&address, "/v2/health/ready").json()["ready"], true);
    assert_eq!(get(&address, "/v2/models/table/ready?x=1").json()["ready"], true);
    let about = get(&address, "/v2/models/linear").json();
    assert_eq!(about["inputs"], json!([{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]));
    assert_eq!(about["outputs"], json!([{"name": "y", "datatype": "FP32", "shape": [-1, 2]}]));
    assert_eq!(about["parameters"]["max_batch_size"], 4);
    server.end();
}

/// Each job of a plan is a model, and takes as many batches in a round as it has steps.
#[test]
fn jobs_are_models() {
    let folder = Folder::new(&[("jobs.plan", JOBS)]);
    let options = ServeOptions { max_delay: Duration::from_millis(300), ..folder.options(&["jobs.plan"]) };
    let (server, address) = start(&options);
    let ask = |model: &str, x: f32| {
        let request =
            json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [x, x + 1.0]}]});
        numbers(&post(&address, &format!("/v2/models/{model}/infer"), &request.to_string()))
    };
    thread::scope(|scope| {
        let asked: Vec<_> = [("a", 1.0), ("b", 2.0), ("b", 3.0)]
            .map(|(model, x)| scope.spawn(move || (x, ask(model, x))))
            .into_iter()
            .collect();
        for thread in asked {
            let (x, y) = thread.join().unwrap();
            assert_eq!(y, [-x, -x - 1.0]);
        }
    });
    assert_eq!(get(&address, "/v2/models/b").json()["outputs"][0]["name"], "y");
    server.end();
}

/// A server that ends answers what it has taken, at once, and then is gone.
#[test]
fn requests_in_flight_are_answered() {
    let folder = linear();
    let options = ServeOptions {
        max_delay: Duration::from_secs(60),
        socket: Some(folder.path("socket")),
        ..folder.options(&["linear.plan"])
    };
    let (server, address) = start(&options);
    let text = body(&rows(0, 1)).to_string();
    let begun = Instant::now();
    thread::scope(|scope| {
        let asked = scope.spawn(|| post(&address, "/v2/models/linear/infer", &text));
        while figure(&address, "memrun_queue_length{model=\"linear\"}") < 1.0 {
            thread::sleep(Duration::from_millis(5));
        }
        server.end();
        assert_eq!(numbers(&asked.join().unwrap()).len(), NARROW);
    });
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(std::net::TcpStream::connect(&address).is_err());
    assert!(!options.socket.unwrap().exists());
}

/// A Unix socket takes the same requests.
#[test]
fn sockets_are_served() {
    let folder = linear();
    let path = folder.path("socket");
    let options = ServeOptions { http: None, socket: Some(path.clone()), ..folder.options(&["linear.plan"]) };
    let server = Server::start(&options).unwrap();
    let reply = Client::unix(&path).post("/v2/models/linear/infer", &body(&rows(0, 2)).to_string());
    assert_eq!(numbers(&reply).len(), 2 * NARROW);
    let again = Server::start(&options).unwrap_err();
    assert!(again.exit_code() == 2 && again.to_string().contains("there is a file already"), "{again}");
    std::fs::remove_file(&path).unwrap();
    server.end();
    let server = Server::start(&options).unwrap();
    server.end();
    assert!(!path.exists());
}

/// Without batching a request has the plan's shapes.
#[test]
fn batches_can_be_left_out() {
    let folder = linear();
    let (server, address) = start(&ServeOptions { batches: false, ..folder.options(&["linear.plan"]) });
    let path = "/v2/models/linear/infer";
    assert_eq!(numbers(&post(&address, path, &body(&rows(0, ROWS)).to_string())).len(), ROWS * NARROW);
    let reply = post(&address, path, &body(&rows(0, 1)).to_string());
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"], "input `x`: its shape is [4, 3], not [1, 3]");
    assert_eq!(get(&address, "/v2/models/linear").json()["inputs"][0]["shape"], json!([4, 3]));
    server.end();
}
