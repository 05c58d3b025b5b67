//! Requests and options that the server refuses.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use memc_runtime::serve::{ServeOptions, Server};
use serde_json::json;

use crate::client::{Client, get, post};
use crate::{Folder, LINEAR, TABLE, body, figure, linear, numbers, rows, start};

const PATH: &str = "/v2/models/linear/infer";

/// Malformed requests get 400 and one sentence, and change nothing for the next.
#[test]
fn malformed_requests_get_a_sentence() {
    let folder = linear();
    let (server, address) = start(&folder.options(&["linear.plan"]));
    let entry = |more: &str| format!("{{\"inputs\": [{{\"name\": \"x\", {more}}}]}}");
    let cases = [
        ("{", "the request is no JSON"),
        ("[1]", "the request is no JSON object"),
        ("{\"id\": 1, \"inputs\": []}", "`id` is no string"),
        ("{}", "the request has no list `inputs`"),
        ("{\"inputs\": []}", "there is no input `x`"),
        ("{\"inputs\": [{\"name\": \"z\"}]}", "the model has no input `z`; it has `x`"),
        (&entry("\"shape\": [1, 3], \"data\": [1, 2, 3]"), "input `x`: it has no `datatype`"),
        (&entry("\"datatype\": \"INT64\", \"shape\": [1, 3]"), "input `x`: it is FP32, not INT64"),
        (&entry("\"datatype\": \"FP32\", \"data\": []"), "input `x`: it has no list `shape`"),
        (&entry("\"datatype\": \"FP32\", \"shape\": [-1, 3], \"data\": []"), "has what is no extent"),
        (&entry("\"datatype\": \"FP32\", \"shape\": [0, 3], \"data\": []"), "it has no rows"),
        (&entry("\"datatype\": \"FP32\", \"shape\": [5, 3], \"data\": []"), "a batch has at most 4"),
        (&entry("\"datatype\": \"FP32\", \"shape\": [1, 4], \"data\": []"), "its shape is [1 to 4, 3]"),
        (&entry("\"datatype\": \"FP32\", \"shape\": [1, 3]"), "it has no `data`"),
        (&entry("\"datatype\": \"FP32\", \"shape\": [1, 3], \"data\": 1"), "its `data` is no list"),
        (&entry("\"datatype\": \"FP32\", \"shape\": [1, 3], \"data\": [1, 2]"), "3 elements, and its data 2"),
        (&entry("\"datatype\": \"FP32\", \"shape\": [1, 3], \"data\": [1, 2, \"3\"]"), "\"3\" is no FP32"),
        (
            &entry("\"datatype\": \"FP32\", \"shape\": [1, 3], \"parameters\": {\"binary_data_size\": 12}"),
            "its `binary_data_size` is more than there is",
        ),
    ];
    for (text, sentence) in cases {
        let reply = post(&address, PATH, text);
        assert_eq!(reply.status, 400, "{text}");
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(sentence), "{text}: {error}");
    }
    let mut named = body(&rows(0, 1));
    named["outputs"] = json!([{"name": "no"}]);
    assert!(post(&address, PATH, &named.to_string()).text().contains("no output `no`; it has `y`"));
    let twice = json!({"inputs": [body(&rows(0, 1))["inputs"][0], body(&rows(0, 1))["inputs"][0]]});
    assert!(post(&address, PATH, &twice.to_string()).text().contains("input `x` is given twice"));
    let deep = format!("{{\"inputs\": {}", "[".repeat(100_000));
    assert_eq!(post(&address, PATH, &deep).status, 400);
    let more = Client::new(&address).binary(PATH, &body(&rows(0, 1)).to_string(), &[1, 2]);
    assert!(more.status == 400 && more.text().contains("2 bytes behind the JSON belong to no input"));
    assert_eq!(numbers(&post(&address, PATH, &body(&rows(0, 1)).to_string())).len(), 2);
    assert_eq!(figure(&address, "memrun_requests_total{model=\"linear\",status=\"400\"}"), 22.0);
    server.end();
}

/// Unknown paths and methods, bodies of unknown and of too large a size, and what is no HTTP.
#[test]
fn other_requests_are_refused() {
    let folder = linear();
    let options = ServeOptions { max_body: 1000, ..folder.options(&["linear.plan"]) };
    let (server, address) = start(&options);
    let status = |text: &str| {
        let mut client = Client::new(&address);
        client.send(text.as_bytes());
        client.reply()
    };
    let unknown = post(&address, "/v2/models/no/infer", "{}");
    assert_eq!((unknown.status, unknown.text().contains("no model `no`; there are `linear`")), (404, true));
    assert_eq!(get(&address, "/").status, 200);
    assert_eq!(get(&address, "/v3").status, 404);
    assert_eq!(get(&address, "/v2/models/linear/x").status, 404);
    assert_eq!(get(&address, PATH).status, 405);
    assert_eq!(post(&address, "/metrics", "").status, 405);
    let large = status(&format!("POST {PATH} HTTP/1.1\r\nContent-Length: 1001\r\n\r\n"));
    assert_eq!((large.status, large.header("Connection")), (413, Some("close")));
    assert_eq!(
        status(&format!("POST {PATH} HTTP/1.1\r\nContent-Length: {}\r\n\r\n", "9".repeat(40))).status,
        413
    );
    assert_eq!(status(&format!("POST {PATH} HTTP/1.1\r\nContent-Length: -1\r\n\r\n")).status, 400);
    assert_eq!(status(&format!("POST {PATH} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")).status, 411);
    assert_eq!(status("hello\r\n\r\n").status, 400);
    assert_eq!(status(&format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(1 << 15))).status, 400);
    let mut waiting = Client::new(&address);
    let text = body(&rows(0, 1)).to_string();
    let head =
        format!("POST {PATH} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n", text.len());
    waiting.send(head.as_bytes());
    assert_eq!(waiting.reply().status, 100);
    waiting.send(text.as_bytes());
    assert_eq!(numbers(&waiting.reply()).len(), 2);
    // Clients that vanish within a request leave nothing behind.
    for _ in 0..20 {
        Client::new(&address)
            .send(format!("POST {PATH} HTTP/1.1\r\nContent-Length: 900\r\n\r\n{{").as_bytes());
        Client::new(&address)
            .send(format!("POST {PATH} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{text}", text.len()).as_bytes());
    }
    assert_eq!(numbers(&post(&address, PATH, &text)).len(), 2);
    server.end();
}

/// Bytes at random, alone and within a request, end no server and no other client.
#[test]
fn noise_is_survived() {
    let folder = linear();
    let (server, address) = start(&folder.options(&["linear.plan"]));
    let good = body(&rows(0, 1)).to_string();
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for round in 0..300 {
        let mut bytes = good.clone().into_bytes();
        for _ in 0..1 + next() % 4 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        let mut client = Client::new(&address);
        if round % 3 == 0 {
            client.send(&bytes);
            client.send(b"\r\n\r\n");
        } else {
            let head = format!("POST {PATH} HTTP/1.1\r\nContent-Length: {}\r\n\r\n", bytes.len());
            client.send(&[head.as_bytes(), &bytes].concat());
        }
        assert!([200, 400].contains(&client.reply().status));
    }
    assert_eq!(numbers(&post(&address, PATH, &good)).len(), 2);
    server.end();
}

/// Bodies of 16 times the largest size have room; more get 503, and room again once one has left.
#[test]
fn bodies_are_bounded_together() {
    let folder = linear();
    let options = ServeOptions { max_body: 1000, ..folder.options(&["linear.plan"]) };
    let (server, address) = start(&options);
    let head = format!("POST {PATH} HTTP/1.1\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n");
    // A body has room once the server asks for it.
    let begin = || {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8(status.to_vec()).unwrap())
    };
    let mut waiting: Vec<TcpStream> = Vec::new();
    for _ in 0..16 {
        let (stream, status) = begin();
        assert_eq!(status, "HTTP/1.1 100");
        waiting.push(stream);
    }
    let (mut refused, status) = begin();
    let mut text = String::new();
    refused.read_to_string(&mut text).unwrap();
    assert!(status == "HTTP/1.1 503" && text.contains("room for bodies"), "{status}{text}");
    waiting.pop();
    while begin().1 != "HTTP/1.1 100" {
        thread::sleep(Duration::from_millis(10));
    }
    drop(waiting);
    server.end();
}

/// The answer to HEAD has the length of a body, and no body.
#[test]
fn heads_have_no_body() {
    let folder = linear();
    let (server, address) = start(&folder.options(&["linear.plan"]));
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"HEAD /v3 HTTP/1.1\r\n\r\nGET /v3 HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let parts: Vec<&str> = text.split("\r\n\r\n").collect();
    assert!(
        parts.len() == 3 && parts[0].contains("Content-Length: ") && parts[1].starts_with("HTTP/1.1 404"),
        "{text}"
    );
    server.end();
}

/// More requests than may wait get 429; those that wait are answered.
#[test]
fn queues_are_bounded() {
    let folder = linear();
    let options =
        ServeOptions { queue: 1, max_delay: Duration::from_millis(1500), ..folder.options(&["linear.plan"]) };
    let (server, address) = start(&options);
    let text = body(&rows(0, 1)).to_string();
    thread::scope(|scope| {
        let first = scope.spawn(|| post(&address, PATH, &text));
        while figure(&address, "memrun_queue_length{model=\"linear\"}") < 1.0 {
            thread::sleep(Duration::from_millis(5));
        }
        let second = post(&address, PATH, &text);
        assert_eq!((second.status, second.header("Retry-After")), (429, Some("1")));
        assert_eq!(first.join().unwrap().status, 200);
    });
    assert_eq!(figure(&address, "memrun_requests_total{model=\"linear\",status=\"429\"}"), 1.0);
    server.end();
}

/// An index that no kernel would accept is refused before the batch, with the place where it stands.
#[test]
fn indices_out_of_range_are_refused() {
    let folder = Folder::new(&[("table.plan", TABLE)]);
    let (server, address) = start(&folder.options(&["table.plan"]));
    let ask = |index: i64| {
        let request =
            json!({"inputs": [{"name": "at", "datatype": "INT64", "shape": [2], "data": [0, index]}]});
        post(&address, "/v2/models/table/infer", &request.to_string())
    };
    let refused = ask(5);
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"], "input `at`: 5 at [1] of i64[2] is not within -5 to 4");
    assert_eq!(numbers(&ask(4)).len(), 4);
    server.end();
}

/// An index that is computed is refused by its kernel in the middle of a step: the plan is loaded again, and
/// the next request is answered, as is another one of the same batch.
#[test]
fn plans_are_loaded_again() {
    let computed = TABLE
        .replace("state s0", "kernel k1 = neg(i64[2]) -> (i64[2])\nstate s0")
        .replace(
            "  compute launch k0",
            "  compute launch k1 r dev+128:16 w dev+64:16 ; %back\n  compute launch k0",
        )
        .replace("r dev+0:40 r dev+128:16", "r dev+0:40 r dev+64:16");
    let folder = Folder::new(&[("table.plan", &computed)]);
    let options = ServeOptions { max_delay: Duration::from_millis(500), ..folder.options(&["table.plan"]) };
    let (server, address) = start(&options);
    let ask = |index: i64| {
        let request = json!({"inputs": [{"name": "at", "datatype": "INT64", "shape": [1], "data": [index]}]});
        post(&address, "/v2/models/table/infer", &request.to_string())
    };
    let before = numbers(&ask(3));
    for _ in 0..3 {
        thread::scope(|scope| {
            let other = scope.spawn(|| ask(3));
            let refused = ask(9);
            assert!(refused.status == 400 && refused.text().contains("-9"), "{}", refused.text());
            assert_eq!(numbers(&other.join().unwrap()), before);
        });
    }
    assert_eq!(get(&address, "/v2/models/table/ready").status, 200);
    server.end();
}

/// Options that cannot be served, each with its exit code.
#[test]
fn options_are_checked() {
    let trains = LINEAR.replace("option inference true\n", "");
    let folder = Folder::new(&[("linear.plan", LINEAR), ("trains.plan", &trains)]);
    let fails = |options: &ServeOptions, code: u8, says: &str| {
        let why = Server::start(options).unwrap_err();
        assert!(why.exit_code() == code && why.to_string().contains(says), "{why}");
    };
    let plain = folder.options(&["linear.plan"]);
    fails(&ServeOptions { http: None, ..plain.clone() }, 2, "give --http");
    let remote = ServeOptions { http: Some("0.0.0.0:0".parse().unwrap()), ..plain.clone() };
    fails(&remote, 2, "--allow-remote");
    Server::start(&ServeOptions { allow_remote: true, ..remote }).unwrap().end();
    fails(&folder.options(&["linear.plan", "linear.plan"]), 2, "two models are called `linear`");
    fails(
        &folder.options(&["trains.plan"]),
        7,
        "not for inference; compile one with `memc compile --inference`",
    );
    fails(&folder.options(&["no.plan"]), 74, "no.plan");
    fails(&ServeOptions { gpu_mem: Some(100), ..plain.clone() }, 5, "more than --gpu-mem 100 B");
    fails(&ServeOptions { host_mem: Some(10), ..plain.clone() }, 5, "--host-mem");
    let mut named = plain;
    named.plans[0].name = Some("a/b".into());
    fails(&named, 2, "letters, digits");
}
