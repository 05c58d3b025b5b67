//! End to end: the `memc` command compiles committed models at several budgets, the runtime runs the plans,
//! and the numbers are held against those of ONNX Runtime and PyTorch.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a slow test says which model it is at when it fails")]

mod accumulate;
mod alloc;
mod annotate;
#[path = "../../runtime/tests/run/arena.rs"]
mod arena;
mod buckets;
mod cli;
#[path = "../../runtime/tests/serve/client.rs"]
mod client;
mod copies;
mod damage;
mod devices;
mod dynamic;
mod evaluation;
mod gpu;
mod handling;
mod hold;
mod host;
mod inference;
mod jobs;
#[path = "../../runtime/tests/run/mock.rs"]
mod mock;
mod models;
mod opt;
mod page;
#[path = "../../runtime/tests/run/plain.rs"]
mod plain;
mod planning;
mod problems;
mod recipes;
mod serve;
mod serving;
#[path = "../../runtime/tests/run/signal.rs"]
mod signal;
mod snapshot;
mod support;
mod told;
mod tools;
mod trace;
