//! Figures of the server in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Upper ends of the classes of a request's time, in ms.
const MS: [u64; 13] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
/// Upper ends of the classes of a batch's rows.
const ROWS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Counts by class; the last is of what exceeds all ends.
#[derive(Debug, Clone, Default)]
struct Histogram {
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn add(&mut self, ends: &[u64], value: f64) {
        self.counts.resize(ends.len() + 1, 0);
        let class = ends.iter().position(|&end| value <= end as f64).unwrap_or(ends.len());
        self.counts.iter_mut().skip(class).take(1).for_each(|count| *count += 1);
        self.sum += value;
    }

    /// Appends the lines of a histogram, in units of which `per` are one of the ends.
    fn print(&self, out: &mut String, name: &str, model: &str, ends: &[u64], per: f64) {
        let mut below = 0;
        for (i, count) in self.counts.iter().enumerate() {
            below += count;
            let end = ends.get(i).map_or("+Inf".to_owned(), |&end| (end as f64 / per).to_string());
            line(out, &format!("{name}_bucket"), &format!("model=\"{model}\",le=\"{end}\""), below as f64);
        }
        line(out, &format!("{name}_sum"), &format!("model=\"{model}\""), self.sum / per);
        line(out, &format!("{name}_count"), &format!("model=\"{model}\""), below as f64);
    }
}

/// Appends a line; writing to a string does not fail.
fn line(out: &mut String, name: &str, labels: &str, value: f64) {
    let _ = writeln!(out, "{name}{{{labels}}} {value}");
}

#[derive(Debug, Default)]
struct Counts {
    /// By model, empty for none that is served, and status.
    requests: BTreeMap<(String, u16), u64>,
    ms: BTreeMap<String, Histogram>,
    rows: BTreeMap<String, Histogram>,
}

/// Counters since the server started.
#[derive(Debug, Default)]
pub(super) struct Metrics(Mutex<Counts>);

impl Metrics {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Counts are right whatever became of who held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an answer to a request for outputs of a model, after some ns.
    pub(super) fn answered(&self, model: &str, status: u16, ns: u64) {
        let mut counts = self.lock();
        *counts.requests.entry((model.to_owned(), status)).or_default() += 1;
        if status == 200 {
            counts.ms.entry(model.to_owned()).or_default().add(&MS, ns as f64 / 1e6);
        }
    }

    /// Counts a batch.
    pub(super) fn ran(&self, model: &str, rows: u64) {
        self.lock().rows.entry(model.to_owned()).or_default().add(&ROWS, rows as f64);
    }

    /// All figures, with the present lengths of queues by model.
    pub(super) fn print(&self, queues: &[(&str, usize)]) -> String {
        let counts = self.lock();
        let mut out = String::new();
        head(&mut out, "memrun_requests_total", "counter", "requests for outputs by status");
        for ((model, status), count) in &counts.requests {
            let labels = format!("model=\"{model}\",status=\"{status}\"");
            line(&mut out, "memrun_requests_total", &labels, *count as f64);
        }
        head(&mut out, "memrun_queue_length", "gauge", "requests that wait for a batch");
        for (model, length) in queues {
            line(&mut out, "memrun_queue_length", &format!("model=\"{model}\""), *length as f64);
        }
        head(&mut out, "memrun_batch_rows", "histogram", "rows of a batch without its padding");
        for (model, rows) in &counts.rows {
            rows.print(&mut out, "memrun_batch_rows", model, &ROWS, 1.0);
        }
        let name = "memrun_request_seconds";
        head(&mut out, name, "histogram", "time from a request's last byte to its answer");
        for (model, ms) in &counts.ms {
            ms.print(&mut out, name, model, &MS, 1000.0);
        }
        out
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
