//! From IR text to a plan, while Python's signals and callbacks are heard.
//!
//! The work runs on a thread of its own. The calling thread passes its news to the callback and asks Python
//! for signals; an exception of either ends the search, and leaves the function once the work has ended.

use std::any::Any;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use memc::device::DeviceProfile;
use memc::{CONV_WORKSPACE, Event, HostOps, Imported, Model, Options, Rewrites, Search, Size, Watch};
use memc_ir::{Bytes, print_diags, verify};
use memc_plan::PlanFile;
use memc_runtime::DeviceName;
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;

use crate::error;
use crate::plan::Plan;

/// Time between two looks at Python's signals.
const SIGNALS: Duration = Duration::from_millis(50);
/// Stack of the thread that compiles, in bytes: that of a main thread.
const STACK: usize = 8 << 20;

/// News of the work.
enum News {
    /// A stage or a fact.
    Note(String),
    /// A doubt.
    Warning(String),
    /// The end.
    Done(Box<Result<Made, memc::Error>>),
}

/// A plan, and what else is known of it.
struct Made {
    file: PlanFile,
    profile: DeviceProfile,
}

/// Passes news on, and says when to stop.
struct Reporter {
    news: Sender<News>,
    stop: Arc<AtomicBool>,
}

impl Watch for Reporter {
    fn event(&self, event: Event<'_>) {
        let news = match event {
            Event::Stage(text) | Event::Note(text) => News::Note(text.to_owned()),
            Event::Warning(text) => News::Warning(text.to_owned()),
            Event::Subject(_) | Event::Found(_) | Event::Generation(_) | Event::Kept => return,
        };
        // Nobody listens any more once the caller has failed.
        let _ = self.news.send(news);
    }

    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A request, with its values read.
struct Order {
    ir: String,
    name: Option<String>,
    device: String,
    rewrite: bool,
    budget: Option<Size>,
    host_memory: Option<u64>,
    conv_workspace: u64,
    search: Search,
}

/// Compile a training step into a plan that fits a budget.
///
/// `ir` is a module of the graph phase in the IR's text form. `budget` is device memory as on the command
/// line, such as "16G", "60%" of the device, or "peak*60%" of what the step takes unplanned; without one
/// everything stays on the device. `device` is a profile: "cpu", "h100", a file, or "cuda" for this machine's
/// GPU. `copies` allows states that begin a step both on the device and in host memory. `conv_workspace` is
/// what a convolution on a GPU may take, from "32M" to "512M". `effort` is from 0 to 5. `progress` is called
/// with a line of text now and then, and may raise.
///
/// Raises InvalidModel, InfeasibleBudget, Error for wrong arguments, KeyboardInterrupt.
#[pyfunction]
#[pyo3(signature = (
    ir, *, budget = None, device = "cpu", host_memory = None, conv_workspace = "512M", effort = None,
    seed = None, swap = true, recompute = true, copies = true, rewrite = true, host_ops = true, name = None,
    progress = None
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub(crate) fn compile(
    py: Python<'_>,
    ir: String,
    budget: Option<&str>,
    device: &str,
    host_memory: Option<&str>,
    conv_workspace: &str,
    effort: Option<u32>,
    seed: Option<u64>,
    swap: bool,
    recompute: bool,
    copies: bool,
    rewrite: bool,
    host_ops: bool,
    name: Option<String>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<Plan> {
    check_process(py)?;
    let wrong = |what: &str, e: memc_ir::ParseError| error::usage(py, format!("{what}: {e}"));
    let budget = budget.map(str::parse).transpose().map_err(|e| wrong("budget", e))?;
    let host_memory = host_memory.map(|text| Bytes::parse(text, "write a size such as 64G")).transpose();
    let host_memory = host_memory.map_err(|e| wrong("host_memory", e))?.map(|bytes| bytes.0);
    let workspace = Bytes::parse(conv_workspace, "").ok().filter(|size| CONV_WORKSPACE.contains(&size.0));
    let Some(Bytes(conv_workspace)) = workspace else {
        return Err(error::usage(
            py,
            format!("conv_workspace: `{conv_workspace}` is no size from 32M to 512M"),
        ));
    };
    let default = Search::default();
    let effort = effort.unwrap_or(default.effort);
    if effort > MOST_EFFORT {
        return Err(error::usage(py, format!("effort: {effort} is not from 0 to {MOST_EFFORT}")));
    }
    let mut allow = default.allow;
    (allow.swap, allow.recompute, allow.copies) = (swap, recompute, copies);
    let host = if host_ops { HostOps::Best } else { HostOps::None };
    let search = Search { allow, host, effort, seed: seed.unwrap_or(default.seed), ..default };
    let device = device.to_owned();
    let order = Order { ir, name, device, rewrite, budget, host_memory, conv_workspace, search };
    let made = attend(py, order, progress.as_ref())?;
    Ok(Plan::new(made.file, Some(made.profile)))
}

/// Refuses to compile in a fork of a process that has compiled: the threads of searches are not there.
fn check_process(py: Python<'_>) -> PyResult<()> {
    static FIRST: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    match FIRST.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != process => {
            let text = "this process is a fork of one that has compiled, whose threads it lacks; compile \
                        before the fork, or spawn processes instead";
            Err(error::usage(py, text.to_owned()))
        }
        _ => Ok(()),
    }
}

/// Largest effort of a search.
const MOST_EFFORT: u32 = 5;

/// Has the work done on another thread, and attends to Python meanwhile.
fn attend(py: Python<'_>, order: Order, progress: Option<&Bound<'_, PyAny>>) -> PyResult<Made> {
    let (news, inbox) = channel();
    // Released with Python's lock, a receiver has to be one for any thread.
    let inbox = Mutex::new(inbox);
    let stop = Arc::new(AtomicBool::new(false));
    let reporter = Reporter { news: news.clone(), stop: stop.clone() };
    let work = move || {
        let made = make(order, &reporter);
        // Nobody listens any more once the caller has failed.
        let _ = news.send(News::Done(Box::new(made)));
    };
    let thread = thread::Builder::new().name("memc-compile".to_owned()).stack_size(STACK).spawn(work);
    let thread = thread.map_err(|e| error::usage(py, format!("cannot start a thread: {e}")))?;
    let mut heard = Heard { warnings: Vec::new(), failed: None };
    let made = heard.listen(py, &inbox, &stop, progress);
    let joined = py.detach(|| thread.join());
    if let Some(failed) = heard.failed {
        return Err(failed);
    }
    for text in heard.warnings {
        let text = std::ffi::CString::new(text).unwrap_or_default();
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 1)?;
    }
    match (made, joined) {
        (Some(made), Ok(())) => made.map_err(|e| error::of_compiler(py, &e)),
        (_, joined) => {
            let panic = joined.err().unwrap_or_else(|| Box::new("the compiler ended early"));
            Err(error::of_panic(py, &*panic as &(dyn Any + Send)))
        }
    }
}

/// News that the calling thread keeps.
struct Heard {
    warnings: Vec<String>,
    /// Exception of the callback or of a signal's handler.
    failed: Option<PyErr>,
}

impl Heard {
    /// Listens until the work is done; `None` where it ended without a result.
    fn listen(
        &mut self,
        py: Python<'_>,
        inbox: &Mutex<Receiver<News>>,
        stop: &AtomicBool,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> Option<Result<Made, memc::Error>> {
        loop {
            let next = py.detach(|| match inbox.lock() {
                Ok(inbox) => inbox.recv_timeout(SIGNALS),
                Err(_) => Err(RecvTimeoutError::Disconnected),
            });
            let answered = match next {
                Ok(News::Done(made)) => return Some(*made),
                Ok(News::Warning(text)) => {
                    self.warnings.push(text);
                    Ok(())
                }
                Ok(News::Note(text)) => {
                    let call = |progress: &Bound<'_, PyAny>| progress.call1((text,)).map(drop);
                    progress.filter(|_| self.failed.is_none()).map_or(Ok(()), call)
                }
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => return None,
            };
            if let Err(error) = answered.and_then(|()| py.check_signals()) {
                stop.store(true, Ordering::Relaxed);
                self.failed.get_or_insert(error);
            }
        }
    }
}

/// The profile that a device's name stands for.
fn profile(device: &str, watch: &dyn Watch) -> Result<Cow<'static, DeviceProfile>, memc::Error> {
    if device != "cpu" && device.parse::<DeviceName>().is_ok() {
        let (name, line) = memc::device::automatic();
        if name == "cpu" {
            return Err(memc::Error::Usage(format!("{line}\nhint: name a profile, such as device=\"h100\"")));
        }
        watch.event(Event::Note(&line));
        return memc::device::find(&name);
    }
    memc::device::find(device)
}

/// Parses, plans, lowers and proves.
fn make(order: Order, watch: &Reporter) -> Result<Made, memc::Error> {
    let Order { ir, name, device, rewrite, budget, host_memory, conv_workspace, search } = order;
    let profile = profile(&device, watch)?;
    watch.event(Event::Stage("reading the step"));
    let mut module = memc_ir::parse(&ir).map_err(|d| memc::Error::Model(d.to_string()))?;
    drop(ir);
    verify(&module).map_err(|d| {
        memc::Error::Model(format!("invalid module\n{}", print_diags(&module, &d).trim_end()))
    })?;
    if let Some(name) = name {
        module.name = name;
    }
    let (notes, warnings, options, fired) = Default::default();
    let imported = Imported { module, notes, warnings, options, fired };
    let rewrites = Rewrites { memory: rewrite, ..Rewrites::default() };
    let model = Model::of(imported, profile, rewrites)?;
    let options = Options { budget, host_memory, conv_workspace, search, watch, ..Options::default() };
    let compiled = memc::compile(&model, &options)?;
    Ok(Made { file: compiled.in_memory()?, profile: model.profile.into_owned() })
}
