//! Serving: a server that answers requests for the outputs of inference plans.
//!
//! The protocol is the Open Inference Protocol (KServe v2) over HTTP. Each plan has a thread with its arenas
//! on the device, bounded queues, and batches that are formed of waiting requests.
//!
//! Contract: a request gets the bits that `memrun` computes for the same rows of a batch. No request, however
//! wrong, ends the server or changes another's answer. Only loopback is listened on, unless the caller says
//! otherwise.

mod engine;
mod http;
mod listen;
mod metrics;
mod model;
mod protocol;
mod queue;
mod room;
mod routes;
mod tensor;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memc_gpu::LibraryOptions;
use memc_ir::Bytes;
use memc_plan::PlanFile;

use self::engine::{Engine, Where};
use self::listen::{Clients, Listener};
use self::metrics::Metrics;
use self::model::Model;
use self::queue::Queues;
use self::routes::App;
use crate::DeviceName;
use crate::run::require_gpu;
use crate::{Error, Program, StateFile, cpu, memory};

/// A plan to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedPlan {
    /// Name of its model; of a plan of several jobs, a prefix of theirs.
    pub name: Option<String>,
    /// The plan.
    pub path: PathBuf,
    /// File with its weights; without one they are the plan's.
    pub init: Option<PathBuf>,
}

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Plans, each with arenas of its own.
    pub plans: Vec<ServedPlan>,
    /// Address of the HTTP listener.
    pub http: Option<SocketAddr>,
    /// Whether the address may be other than loopback.
    pub allow_remote: bool,
    /// Path of a listener on a Unix socket.
    pub socket: Option<PathBuf>,
    /// Time that a request waits for others to fill its batch.
    pub max_delay: Duration,
    /// Requests of a model that may wait.
    pub queue: usize,
    /// Most bytes of a request's body.
    pub max_body: usize,
    /// Whether requests share batches.
    pub batches: bool,
    /// Device memory that all plans may take together.
    pub gpu_mem: Option<u64>,
    /// Host memory that the host arenas of all plans may take together.
    pub host_mem: Option<u64>,
    /// Device of all plans.
    pub device: DeviceName,
    /// Options of the CPU device.
    pub cpu: cpu::Options,
    /// Permissions of a GPU's libraries.
    pub libraries: LibraryOptions,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            plans: Vec::new(),
            http: None,
            allow_remote: false,
            socket: None,
            max_delay: Duration::from_millis(2),
            queue: 256,
            max_body: 32 << 20,
            batches: true,
            gpu_mem: None,
            host_mem: None,
            device: DeviceName::Cpu,
            cpu: cpu::Options::default(),
            libraries: LibraryOptions::default(),
        }
    }
}

/// A server that runs until it is ended.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    listeners: Vec<Arc<Listener>>,
    clients: Arc<Clients>,
    /// Threads of plans.
    threads: Vec<JoinHandle<()>>,
    /// Threads of listeners, in their order.
    accepting: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.address())
    }
}

impl Server {
    /// Opens all plans and listens.
    ///
    /// # Errors
    /// Those of the plans and of the device, [`Error::Usage`] for names that are there twice and addresses
    /// that are not allowed, [`Error::Memory`] where the plans take more than they may.
    pub fn start(options: &ServeOptions) -> Result<Server, Error> {
        require_gpu(options.device, options.libraries, false)?;
        if options.http.is_none() && options.socket.is_none() {
            return Err(Error::Usage("give --http 127.0.0.1:PORT or --socket PATH".to_owned()));
        }
        let metrics = Arc::new(Metrics::default());
        let engines: Result<Vec<Engine>, Error> =
            options.plans.iter().map(|plan| open(plan, options, &metrics)).collect();
        let engines = engines?;
        check_names(engines.iter().flat_map(|engine| engine.models.iter()))?;
        check_memory(&engines, options)?;
        // An address that cannot be had is better known before the plans are loaded.
        let mut listeners = Vec::new();
        if let Some(address) = options.http {
            listeners.push(Arc::new(Listener::tcp(address, options.allow_remote)?));
        }
        if let Some(path) = &options.socket {
            listeners.push(Arc::new(Listener::unix(path)?));
        }
        let plans = engines.iter().map(|engine| (engine.models.clone(), engine.queues.clone())).collect();
        let app = Arc::new(App { plans, metrics, is_ending: AtomicBool::new(false) });
        let (threads, accepting) = Default::default();
        let mut server = Server { app, listeners, clients: Arc::default(), threads, accepting };
        for (engine, plan) in engines.into_iter().zip(&options.plans) {
            server.load(engine, plan, options)?;
        }
        let limits = listen::Limits::new(options.max_body);
        for listener in server.listeners.clone() {
            let (app, clients, limits) = (server.app.clone(), server.clients.clone(), limits.clone());
            let accept = move || listen::accept(&listener, &app, &clients, &limits);
            server.accepting.push(spawn("listener", accept)?);
        }
        Ok(server)
    }

    /// Starts the thread of a plan, and waits until the plan is loaded.
    fn load(&mut self, engine: Engine, plan: &ServedPlan, options: &ServeOptions) -> Result<(), Error> {
        let init = plan.init.as_deref().map(StateFile::open).transpose()?;
        let at = Where {
            device: options.device,
            cpu: options.cpu,
            libraries: options.libraries,
            host_is_granted: options.host_mem.is_some(),
        };
        let (sender, loaded) = channel();
        let run = move || {
            engine.run(at, init, |result| {
                // The other end waits.
                let _ = sender.send(result);
            });
        };
        self.threads.push(spawn("plan", run)?);
        let dead = |_| Error::Internal("the thread of a plan has ended".to_owned());
        loaded.recv().map_err(dead)?
    }

    /// The address of the HTTP listener.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listeners.iter().find_map(|listener| listener.address())
    }

    /// A line about each model.
    pub fn models(&self) -> Vec<String> {
        let ports = |ports: &[model::Port]| {
            let shown: Vec<String> = ports.iter().map(|port| format!("{} {}", port.name, port.ty)).collect();
            shown.join(", ")
        };
        let line = |model: &Model| {
            let batch = model.batch.map_or_else(
                || "one request at a time".to_owned(),
                |batch| format!("batches of up to {batch}"),
            );
            format!("{}: {} -> {}, {batch}", model.name, ports(&model.inputs), ports(&model.outputs))
        };
        self.app.models().map(|(model, ..)| line(model)).collect()
    }

    /// Answers the requests in flight, and ends.
    pub fn end(mut self) {
        self.close();
    }

    fn close(&mut self) {
        self.app.is_ending.store(true, Ordering::SeqCst);
        for (listener, thread) in self.listeners.iter().zip(self.accepting.drain(..)) {
            // A thread that cannot be woken is left to itself: it takes no client any more.
            if listener.wake() {
                drop(thread.join());
            }
        }
        self.app.plans.iter().for_each(|(_, queues)| queues.hurry());
        self.clients.wait();
        self.app.plans.iter().for_each(|(_, queues)| queues.close());
        // A thread that has panicked has nothing left to do either.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let made = thread::Builder::new().name(name.to_owned()).spawn(run);
    made.map_err(|error| Error::Memory(format!("no thread can be had: {error}")))
}

/// Reads a plan and finds its models.
fn open(plan: &ServedPlan, options: &ServeOptions, metrics: &Arc<Metrics>) -> Result<Engine, Error> {
    let path = &plan.path;
    let file = PlanFile::open(path).map_err(|error| Error::opening(path, error))?;
    let program = Arc::new(Program::new(file.plan())?);
    let at = |error| match error {
        Error::Plan(text) => Error::Plan(format!("{}: {text}", path.display())),
        other => other,
    };
    let default = default_name(plan, &file.plan().meta.model);
    let made = model::models(file.plan(), &program, plan.name.as_deref(), &default, options.batches);
    let (models, counters) = made.map_err(at)?;
    let queues = Arc::new(Queues::new(models.len(), options.queue, options.max_delay));
    Ok(Engine { file, program, models: Arc::new(models), counters, queues, metrics: metrics.clone() })
}

/// Name of a model that was given none: the plan's, or the file's where that says nothing.
fn default_name(plan: &ServedPlan, model: &str) -> String {
    // Exporters call every graph so.
    if is_name(model) && !["main_graph", "main", "torch_jit"].contains(&model) {
        return model.to_owned();
    }
    let stem = plan.path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    stem.replace(|c: char| !is_name(&c.to_string()), "_")
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn check_names<'m>(models: impl Iterator<Item = &'m Model>) -> Result<(), Error> {
    let mut names: Vec<&str> = models.map(|model| model.name.as_str()).collect();
    if let Some(name) = names.iter().find(|name| !is_name(name)) {
        let text = "a model's name has letters, digits, -, _ and . only; give one, as NAME=PLAN";
        return Err(Error::Usage(format!("model `{name}`: {text}")));
    }
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair.first() == pair.last());
    let twice = twice.and_then(|pair| pair.first());
    twice.map_or(Ok(()), |name| {
        Err(Error::Usage(format!("two models are called `{name}`: give them names, as NAME=PLAN")))
    })
}

/// Refuses plans that together take more than they may.
fn check_memory(engines: &[Engine], options: &ServeOptions) -> Result<(), Error> {
    let arenas = engines.iter().fold(0u64, |sum, e| sum.saturating_add(e.program.dev_bytes as u64));
    // The driver's part is there once, however many plans there are.
    let reserve = engines.iter().map(|engine| engine.program.reserve_bytes).max().unwrap_or(0);
    let takes = arenas.saturating_add(reserve);
    if let Some(limit) = options.gpu_mem.filter(|&limit| takes > limit) {
        return Err(Error::Memory(format!(
            "the plans take {} of device memory together, more than --gpu-mem {}; compile them with less",
            Bytes(takes),
            Bytes(limit),
        )));
    }
    let host = engines.iter().fold(0usize, |sum, e| sum.saturating_add(e.program.host_bytes));
    memory::limit(host, options.host_mem)
}
