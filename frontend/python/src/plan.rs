//! Plans: figures, tables, files, pages, and the start of a session.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use memc::device::DeviceProfile;
use memc_ir::{Bytes, TensorType, counted};
use memc_plan::{Feed, PlanFile, StateRole};
use memc_runtime::{DeviceName, Embedded, EmbeddedOptions, TuneOptions, cpu};
use pyo3::prelude::*;

use crate::error;
use crate::memory::Region;
use crate::session::Session;
use crate::worker::Worker;

/// A tensor of a plan: name, element type, shape, and its role or the source of its content.
type Row = (String, &'static str, Vec<u64>, String);

/// A proved plan of one training step.
///
/// All sizes are bytes, all times nanoseconds of the cost model.
#[pyclass(frozen, module = "memc")]
pub(crate) struct Plan {
    file: Arc<PlanFile>,
    /// The device that it was compiled for, where that is known.
    profile: Option<DeviceProfile>,
}

impl Plan {
    pub(crate) fn new(file: PlanFile, profile: Option<DeviceProfile>) -> Plan {
        Plan { file: Arc::new(file), profile }
    }

    fn meta(&self) -> &memc_plan::Meta {
        &self.file.plan().meta
    }

    /// The device's profile.
    fn profile(&self) -> Result<DeviceProfile, memc::Error> {
        match &self.profile {
            Some(profile) => Ok(profile.clone()),
            None => memc::device::of_plan(None, &self.meta().profile).map(|profile| profile.into_owned()),
        }
    }

    /// The initial contents that a caller gives, by the index of the state.
    fn contents(
        &self,
        py: Python<'_>,
        states: BTreeMap<String, (usize, usize)>,
    ) -> PyResult<BTreeMap<usize, Region>> {
        let plan = self.file.plan();
        let mut contents = BTreeMap::new();
        for (name, memory) in states {
            let Some(at) = plan.states.iter().position(|s| s.is_variable() && s.name == name) else {
                return Err(error::data(py, format!("the step has no state `{name}`")));
            };
            let region = Region::new(py, &name, memory)?;
            check(py, "state", &name, &plan.states[at].ty, region.len())?;
            contents.insert(at, region);
        }
        Ok(contents)
    }
}

/// Refuses data of another length than its type's.
pub(crate) fn check(py: Python<'_>, what: &str, name: &str, ty: &TensorType, bytes: usize) -> PyResult<()> {
    if ty.bytes() == bytes as u64 {
        return Ok(());
    }
    Err(error::data(py, format!("{what} `{name}` has {bytes} bytes; {ty} has {}", ty.bytes())))
}

fn row(name: &str, ty: &TensorType, role: &str) -> Row {
    (name.to_owned(), ty.dtype.name(), ty.shape.to_vec(), role.to_owned())
}

/// The device that a plan is started on: the given one, or the kind that it was compiled for.
fn device(py: Python<'_>, given: Option<&str>, profile: &str) -> PyResult<DeviceName> {
    match given {
        Some(text) => text.parse().map_err(|e| error::usage(py, format!("device `{text}`: {e}"))),
        None if memc_support::is_gpu_profile(profile) => Ok(DeviceName::Cuda(0)),
        None => Ok(DeviceName::Cpu),
    }
}

#[pymethods]
impl Plan {
    /// Most bytes of the device in use at once, the driver's reserve included.
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.meta().claims.peak_bytes.saturating_add(self.meta().reserve_bytes)
    }

    /// Bytes that the step takes of the device without a plan, the driver's reserve included.
    #[getter]
    fn unplanned_peak_bytes(&self) -> u64 {
        self.meta().claims.unplanned_peak_bytes.saturating_add(self.meta().reserve_bytes)
    }

    /// Time of the step.
    #[getter]
    fn step_ns(&self) -> u64 {
        self.meta().claims.step_ns
    }

    /// Time of the step when nothing waits and nothing is recomputed.
    #[getter]
    fn ideal_ns(&self) -> u64 {
        self.meta().claims.ideal_ns
    }

    /// Device memory that the step may take.
    #[getter]
    fn budget_bytes(&self) -> u64 {
        self.meta().budget_bytes
    }

    /// Part of the budget that is set aside for the driver, libraries and code.
    #[getter]
    fn reserve_bytes(&self) -> u64 {
        self.meta().reserve_bytes
    }

    /// Size of the device arena.
    #[getter]
    fn dev_bytes(&self) -> u64 {
        self.meta().dev_bytes
    }

    /// Size of the host arena.
    #[getter]
    fn host_bytes(&self) -> u64 {
        self.meta().host_bytes
    }

    /// Name of the profile that it was compiled for.
    #[getter]
    fn device(&self) -> &str {
        &self.meta().profile
    }

    /// Name of the model.
    #[getter]
    fn name(&self) -> &str {
        &self.meta().model
    }

    /// Planner that made it.
    #[getter]
    fn planner(&self) -> &str {
        &self.meta().planner
    }

    /// Bytes that a step copies to the host and back beside inputs and outputs.
    #[getter]
    fn swapped_bytes(&self) -> u64 {
        let claims = &self.meta().claims;
        claims.swap_out_bytes.saturating_add(claims.swap_in_bytes)
    }

    /// Time of the ops that run again.
    #[getter]
    fn recompute_ns(&self) -> u64 {
        self.meta().claims.recompute_ns
    }

    /// Number of the ops that run again.
    #[getter]
    fn recompute_ops(&self) -> u64 {
        self.meta().claims.recompute_ops
    }

    /// Number of kernels that a step launches.
    #[getter]
    fn ops(&self) -> u64 {
        self.meta().claims.ops
    }

    /// IR text of the graph that the plan is proved against.
    #[getter]
    fn source(&self) -> &str {
        &self.meta().source
    }

    /// Hash that identifies plan and initial contents, in hexadecimal digits.
    #[getter]
    fn hash(&self) -> String {
        self.file.content_hash().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Inputs as (name, dtype, shape, feed): feed is "data", "learning_rate" or "step".
    #[getter]
    fn inputs(&self) -> Vec<Row> {
        let feed = |feed: &Feed| match feed {
            Feed::Data { .. } => "data",
            Feed::LearningRate { .. } => "learning_rate",
            Feed::Step { .. } => "step",
        };
        self.file.plan().inputs.iter().map(|i| row(&i.name, &i.ty, feed(&i.feed))).collect()
    }

    /// Outputs as (name, dtype, shape, role).
    #[getter]
    fn outputs(&self) -> Vec<Row> {
        self.file.plan().outputs.iter().map(|o| row(&o.name, &o.ty, o.role.name())).collect()
    }

    /// States as (name, dtype, shape, role). Constants are not among them.
    #[getter]
    fn states(&self) -> Vec<Row> {
        let states = self.file.plan().states.iter().filter(|s| s.role != StateRole::Const);
        states.map(|s| row(&s.name, &s.ty, s.role.name())).collect()
    }

    /// Write the plan file, as a whole or not at all.
    fn write(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let write = || {
            // The data is that of the open file, which only a copy hands out.
            let mut data = Data(&self.file);
            memc_plan::write(&path, self.file.plan(), &mut data, &|| false).map_err(memc::Error::from)
        };
        py.detach(write).map(drop).map_err(|e| error::of_compiler(py, &e))
    }

    /// A page about the plan: one HTML file that needs no network.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        let page = || memc::page(self.file.plan(), None, &self.profile()?, None);
        py.detach(page).map_err(|e| error::of_compiler(py, &e))
    }

    /// The plan in a few lines.
    fn summary(&self) -> String {
        let (meta, claims) = (self.meta(), &self.meta().claims);
        let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
        let short = |bytes: u64| Bytes(bytes).short();
        let recomputed = (counted(claims.recompute_ops, "op"), ms(claims.recompute_ns));
        let lines = [
            format!("{}: {} on {}", meta.model, counted(claims.ops, "op"), meta.profile),
            format!("peak: {} of {} unplanned", short(self.peak_bytes()), short(self.unplanned_peak_bytes())),
            format!("budget: {}, {} of it reserve", short(meta.budget_bytes), short(meta.reserve_bytes)),
            format!("arenas: {} device, {} host", short(meta.dev_bytes), short(meta.host_bytes)),
            format!("step (modelled): {}, ideal {}", ms(claims.step_ns), ms(claims.ideal_ns)),
            format!("swapped: {} out, {} in", short(claims.swap_out_bytes), short(claims.swap_in_bytes)),
            format!("recomputed: {}, {}", recomputed.0, recomputed.1),
            format!("by {}; proved by the checker", meta.planner),
        ];
        lines.join("\n")
    }

    /// Reserve the plan's memory and bring the states to it.
    ///
    /// `states` has (address, nbytes) of contiguous memory by the name of the state; it is copied. States
    /// that are not there begin as the IR text says. `threads` is for kernels on the CPU; 0 takes as many as
    /// the machine has. `device` is "cpu", "cuda" or "cuda:N"; without one it is of the kind that the plan
    /// was compiled for.
    ///
    /// The addresses are trusted. Raises DataError, DeviceError, Error.
    #[pyo3(signature = (states = BTreeMap::new(), *, threads = 0, device = None))]
    fn start(
        &self,
        py: Python<'_>,
        states: BTreeMap<String, (usize, usize)>,
        threads: usize,
        device: Option<&str>,
    ) -> PyResult<Session> {
        let contents = self.contents(py, states)?;
        let device = self::device(py, device, &self.meta().profile)?;
        let cpu = cpu::Options { threads, ..cpu::Options::default() };
        let options = EmbeddedOptions { device, cpu, ..EmbeddedOptions::default() };
        let file = self.file.clone();
        let open = move || {
            Embedded::start(file, options, &mut |state, bytes| {
                let Some(content) = contents.get(&state) else { return Ok(false) };
                bytes.copy_from_slice(content.bytes());
                Ok(true)
            })
        };
        let worker = py.detach(|| Worker::start(open)).map_err(|e| error::of_runtime(py, &e))?;
        Ok(Session::new(worker, self.file.clone()))
    }

    /// The same plan with the fastest algorithms of a GPU's libraries, as measured in some seconds.
    ///
    /// `device` is as for `start`. Only algorithms that keep an order are taken. Raises DeviceError, and
    /// Error for a plan of the CPU.
    #[pyo3(signature = (*, device = None))]
    fn tune(&self, py: Python<'_>, device: Option<&str>) -> PyResult<Plan> {
        let options =
            TuneOptions { device: self::device(py, device, &self.meta().profile)?, ..TuneOptions::default() };
        let tuned = py.detach(|| memc_runtime::tune(&self.file, &options));
        let mut plan = self.file.plan().clone();
        plan.tuning = tuned.map_err(|e| error::of_runtime(py, &e))?.tuning;
        let file = py.detach(|| PlanFile::in_memory(&plan, &mut Data(&self.file)));
        let file = file.map_err(|e| error::of_compiler(py, &memc::Error::from(e)))?;
        Ok(Plan::new(file, self.profile.clone()))
    }

    fn __repr__(&self) -> String {
        let meta = self.meta();
        let (peak, budget) = (Bytes(self.peak_bytes()).short(), Bytes(meta.budget_bytes).short());
        format!("<memc.Plan {:?}: {peak} of {budget} on {}>", meta.model, meta.profile)
    }
}

/// The initial contents of an open plan.
struct Data<'a>(&'a PlanFile);

impl memc_plan::InitialData for Data<'_> {
    fn bytes(&mut self, bucket: usize, state: usize) -> std::io::Result<std::borrow::Cow<'_, [u8]>> {
        Ok(std::borrow::Cow::Borrowed(self.0.data(bucket, state)))
    }
}

/// Read a plan file that `Plan.write` or the command line wrote.
///
/// Raises InvalidModel for a file that is no plan, and Error where it cannot be read.
#[pyfunction]
pub(crate) fn load(py: Python<'_>, path: PathBuf) -> PyResult<Plan> {
    let file = py.detach(|| memc::open(&path)).map_err(|e| error::of_compiler(py, &e))?;
    Ok(Plan::new(file, None))
}
