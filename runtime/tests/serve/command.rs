//! The command `memrun serve`, and what memrun says of inference plans.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use crate::client::{get, post};
use crate::{Folder, body, linear, numbers, rows};

fn memrun(folder: &Folder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memrun"));
    command.current_dir(folder.path(""));
    command
}

/// The command tells where it listens, and a signal ends it cleanly.
#[test]
fn a_signal_ends_the_server() {
    let folder = linear();
    let mut child = memrun(&folder)
        .args(["serve", "a=linear.plan", "--http", "127.0.0.1:0", "--threads", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("listening on http://") {
        assert!(lines.read_line(&mut text).unwrap() > 0, "{text}");
    }
    assert!(text.starts_with("a: x f32[4,3] -> y f32[4,2], batches of up to 4\n"), "{text}");
    let address = text.trim().rsplit_once("http://").unwrap().1.to_owned();
    assert_eq!(get(&address, "/v2/health/ready").status, 200);
    assert_eq!(numbers(&post(&address, "/v2/models/a/infer", &body(&rows(0, 1)).to_string())).len(), 2);
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    lines.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("memrun: ENDED\n"), "{text}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn options_that_are_missing_are_usage() {
    let folder = linear();
    for line in ["serve linear.plan", "serve --http 127.0.0.1:0", "serve linear.plan --http nowhere"] {
        let out = memrun(&folder).args(line.split(' ')).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{line}");
    }
}

/// A plan for inference has neither losses nor words of training.
#[test]
fn inference_has_no_losses() {
    let folder = linear();
    for line in
        ["linear.plan --synthetic --steps 12 --verify", "linear.plan", "linear.plan --synthetic --json"]
    {
        let out = memrun(&folder).args(line.split(' ')).output().unwrap();
        let text = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
        assert!(!text.contains("loss") && !text.contains("train"), "{line}: {text}");
        let is_fed = line.contains("--synthetic");
        assert_eq!(out.status.code(), Some(if is_fed { 0 } else { 2 }), "{text}");
    }
}
