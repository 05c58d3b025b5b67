//! Paths of the server, and their answers.

use std::sync::mpsc::channel;
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};

use serde_json::json;

use super::http::{Request, Response};
use super::metrics::Metrics;
use super::model::Model;
use super::protocol;
use super::queue::{Queues, Refusal, Ticket};
use crate::clock::{elapsed_ns, now};

/// Models and figures, shared by all connections.
#[derive(Debug)]
pub(super) struct App {
    /// The models of each plan, and their queues.
    pub(super) plans: Vec<(Arc<Vec<Model>>, Arc<Queues>)>,
    pub(super) metrics: Arc<Metrics>,
    /// Whether the server ends.
    pub(super) is_ending: AtomicBool,
}

/// A model, its place among those of its plan, and its queues.
type Found<'a> = (&'a Model, usize, &'a Queues);

impl App {
    /// All models.
    pub(super) fn models(&self) -> impl Iterator<Item = Found<'_>> {
        self.plans
            .iter()
            .flat_map(|(models, queues)| models.iter().enumerate().map(|(at, model)| (model, at, &**queues)))
    }

    fn is_ready(&self) -> bool {
        !self.is_ending.load(Ordering::Relaxed) && self.plans.iter().all(|(_, queues)| queues.is_open())
    }

    /// The answer to a request.
    pub(super) fn answer(&self, request: &Request) -> Response {
        let path: Vec<&str> = request.path.split('/').skip(1).collect();
        let is_get = request.method == "GET";
        let (allowed, response): (bool, Box<dyn FnOnce() -> Response + '_>) = match path[..] {
            ["v2" | ""] => (is_get, Box::new(about)),
            ["v2", "health", "live"] => (is_get, Box::new(|| Response::json(200, state("live", true)))),
            ["v2", "health", "ready"] => (is_get, Box::new(|| ready(self.is_ready()))),
            ["metrics"] => (is_get, Box::new(|| self.figures())),
            ["v2", "models", name, ref rest @ ..] => {
                let rest = if let ["versions", "1", rest @ ..] = rest { rest } else { rest };
                let Some(found) = self.models().find(|(model, ..)| model.name == name) else {
                    return self.unknown(name, rest);
                };
                let (model, _, queues) = found;
                match rest {
                    [] => (is_get, Box::new(|| Response::json(200, protocol::metadata(model)))),
                    ["ready"] => (is_get, Box::new(|| ready(queues.is_open()))),
                    ["infer"] => (request.method == "POST", Box::new(move || self.infer(found, request))),
                    _ => return Response::error(404, "a model has no such path: see /v2/models/NAME/infer"),
                }
            }
            _ => return Response::error(404, "there is no such path: see /v2/models/NAME/infer"),
        };
        if allowed {
            return response();
        }
        let method: String = request.method.chars().take(16).collect();
        Response::error(405, &format!("this path does not take {method}"))
    }

    fn unknown(&self, name: &str, rest: &[&str]) -> Response {
        if rest == ["infer"] {
            self.metrics.answered("", 404, 0);
        }
        let name: String = name.chars().take(64).collect();
        let names: Vec<&str> = self.models().map(|(model, ..)| model.name.as_str()).collect();
        Response::error(404, &format!("there is no model `{name}`; there are {}", crate::state::list(&names)))
    }

    fn figures(&self) -> Response {
        let queues: Vec<(&str, usize)> =
            self.models().map(|(model, at, queues)| (model.name.as_str(), queues.len(at))).collect();
        let body = self.metrics.print(&queues).into_bytes();
        Response { status: 200, kind: "text/plain; version=0.0.4", json_length: None, body }
    }

    /// Outputs of a model.
    fn infer(&self, (model, at, queues): Found<'_>, request: &Request) -> Response {
        let begun = now();
        let response = outputs(model, at, queues, request)
            .unwrap_or_else(|(status, sentence)| Response::error(status, &sentence));
        self.metrics.answered(&model.name, response.status, elapsed_ns(begun));
        response
    }
}

/// The response of a model, or status and sentence of a failure.
fn outputs(model: &Model, at: usize, queues: &Queues, request: &Request) -> Result<Response, (u16, String)> {
    let mut wanted = protocol::read(model, request).map_err(|sentence| (400, sentence))?;
    let (reply, answer) = channel();
    let inputs = std::mem::take(&mut wanted.inputs);
    let ticket = Ticket { rows: wanted.rows, inputs, since: now(), reply };
    queues.push(at, ticket).map_err(|refusal| match refusal {
        Refusal::Full => (429, "as many requests wait as this server lets; try again later".to_owned()),
        Refusal::Closed => (503, "this model takes no more requests".to_owned()),
    })?;
    // Without an answer the plan's thread has ended.
    let gone = |_| (500, "the plan has failed".to_owned());
    let outputs = answer.recv().map_err(gone)??;
    Ok(protocol::write(model, &wanted, &outputs))
}

fn about() -> Response {
    let object = json!({
        "name": "memrun",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": ["binary_tensor_data"],
    });
    Response::json(200, format!("{object}\n"))
}

fn state(what: &str, is: bool) -> String {
    format!("{}\n", json!({ what: is }))
}

fn ready(is_ready: bool) -> Response {
    Response::json(if is_ready { 200 } else { 503 }, state("ready", is_ready))
}
