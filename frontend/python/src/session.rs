//! A plan that runs, as Python sees it.
//!
//! Contract: one call at a time reaches the plan, from whichever thread it comes. A view of a state shows its
//! content between two steps, in ordinary memory or in that of a GPU, and a change there counts. Where a
//! state has copies, a change of the view does not reach them; `write` does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use memc_ir::{DType, TensorType};
use memc_plan::{Feed, PlanFile};
use memc_runtime::{Embedded, Error, StatePlace};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::error;
use crate::memory::Region;
use crate::plan::check;
use crate::worker::Worker;

/// A plan that runs, one step after another.
#[pyclass(frozen, module = "memc")]
pub(crate) struct Session {
    /// `None` once it is closed.
    worker: Mutex<Option<Arc<Worker>>>,
    file: Arc<PlanFile>,
    /// Indices of the inputs that the caller supplies, of the outputs and of the states, by name.
    inputs: BTreeMap<String, usize>,
    outputs: BTreeMap<String, usize>,
    states: BTreeMap<String, usize>,
}

impl Session {
    pub(crate) fn new(worker: Worker, file: Arc<PlanFile>) -> Session {
        let plan = file.plan();
        let is_given = |feed: &Feed| !matches!(feed, Feed::Step { .. });
        let inputs = plan.inputs.iter().enumerate().filter(|(_, input)| is_given(&input.feed));
        let states = plan.states.iter().enumerate().filter(|(_, state)| state.is_variable());
        Session {
            worker: Mutex::new(Some(Arc::new(worker))),
            inputs: inputs.map(|(at, input)| (input.name.clone(), at)).collect(),
            outputs: plan.outputs.iter().enumerate().map(|(at, o)| (o.name.clone(), at)).collect(),
            states: states.map(|(at, state)| (state.name.clone(), at)).collect(),
            file,
        }
    }

    fn worker(&self, py: Python<'_>) -> PyResult<Arc<Worker>> {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        worker.ok_or_else(|| error::usage(py, "the session is closed".to_owned()))
    }

    /// Has something done with the plan, with Python's lock released.
    fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        request: impl FnOnce(&mut Embedded) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let worker = self.worker(py)?;
        let result = py.detach(move || worker.run(request));
        result.map_err(|e| error::of_runtime(py, &e))
    }

    /// Index and type of a state.
    fn state(&self, py: Python<'_>, name: &str) -> PyResult<(usize, &TensorType)> {
        let of = |&at: &usize| Some((at, &self.file.plan().states.get(at)?.ty));
        let missing = || error::data(py, format!("the plan has no state `{name}`"));
        self.states.get(name).and_then(of).ok_or_else(missing)
    }

    /// Index and type of an output.
    fn output_named(&self, py: Python<'_>, name: &str) -> PyResult<(usize, &TensorType)> {
        let of = |&at: &usize| Some((at, &self.file.plan().outputs.get(at)?.ty));
        let known = || self.outputs.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let missing = || error::data(py, format!("the plan has no output `{name}`; it has {}", known()));
        self.outputs.get(name).and_then(of).ok_or_else(missing)
    }

    /// The memory of a step's inputs, by index.
    fn regions(
        &self,
        py: Python<'_>,
        inputs: &BTreeMap<String, (usize, usize)>,
    ) -> PyResult<Vec<Option<Region>>> {
        let mut regions = vec![None; self.file.plan().inputs.len()];
        for (name, memory) in inputs {
            let region = Region::new(py, name, *memory)?;
            match self.inputs.get(name).and_then(|&at| regions.get_mut(at)) {
                Some(place) => *place = Some(region),
                None => return Err(error::data(py, format!("the step takes no input `{name}`"))),
            }
        }
        Ok(regions)
    }
}

/// Error of an output that the program lost.
fn no_output() -> Error {
    Error::Internal("an output is missing".to_owned())
}

#[pymethods]
impl Session {
    /// Run one step.
    ///
    /// `inputs` has (address, nbytes) of contiguous memory for each input by name, learning rates included;
    /// numbers of steps are filled in. All of it is read before the call returns. The addresses are trusted.
    ///
    /// Raises DataError, after which everything is as before, or another Error, after which the session is of
    /// no use.
    fn step(&self, py: Python<'_>, inputs: BTreeMap<String, (usize, usize)>) -> PyResult<()> {
        let regions = self.regions(py, &inputs)?;
        self.run(py, move |plan| {
            let data: Vec<Option<&[u8]>> = regions.iter().map(|r| r.map(Region::bytes)).collect();
            plan.step(&data)
        })
    }

    /// Bytes of an output of the last step; zeros before the first.
    fn output<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        let (at, _) = self.output_named(py, name)?;
        let bytes = self.run(py, move |plan| plan.output(at).map(<[u8]>::to_vec).ok_or_else(no_output))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Copy an output of the last step to memory of its size. The address is trusted.
    fn output_into(&self, py: Python<'_>, name: &str, address: usize, nbytes: usize) -> PyResult<()> {
        let (at, ty) = self.output_named(py, name)?;
        let region = Region::new(py, name, (address, nbytes))?;
        check(py, "the place of output", name, ty, nbytes)?;
        self.run(py, move |plan| {
            region.bytes_mut().copy_from_slice(plan.output(at).ok_or_else(no_output)?);
            Ok(())
        })
    }

    /// Copy a state to memory of its size, once the last step is done. The address is trusted.
    fn read(&self, py: Python<'_>, state: &str, address: usize, nbytes: usize) -> PyResult<()> {
        let (at, ty) = self.state(py, state)?;
        let region = Region::new(py, state, (address, nbytes))?;
        check(py, "the place of state", state, ty, nbytes)?;
        self.run(py, move |plan| plan.read_state(at, region.bytes_mut()))
    }

    /// Give a state another content, once the last step is done, in every place that holds it. The address is
    /// trusted.
    fn write(&self, py: Python<'_>, state: &str, address: usize, nbytes: usize) -> PyResult<()> {
        let (at, ty) = self.state(py, state)?;
        let region = Region::new(py, state, (address, nbytes))?;
        check(py, "state", state, ty, nbytes)?;
        self.run(py, move |plan| plan.write_state(at, region.bytes()))
    }

    /// The memory of a state between two steps.
    ///
    /// It holds the state's content until the next step, which takes what is then there. If the state has
    /// copies, the step may take those instead: use `write` to change it. The memory lives as long as the
    /// view, also when the session is closed.
    fn view(&self, py: Python<'_>, state: &str) -> PyResult<View> {
        let (at, ty) = self.state(py, state)?;
        let worker = self.worker(py)?;
        let owner = worker.clone();
        let place = py.detach(move || worker.run(move |plan| plan.state_place(at)));
        let place = place.map_err(|e| error::of_runtime(py, &e))?;
        Ok(View { place, ty: ty.clone(), _owner: owner })
    }

    /// Wait until the last step is done.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, Embedded::synchronize)
    }

    /// Steps done.
    #[getter]
    fn steps_done(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |plan| Ok(plan.steps_done()))
    }

    /// Set the number of steps done: the next step has the number `n + 1`.
    fn set_steps(&self, py: Python<'_>, n: u64) -> PyResult<()> {
        self.run(py, move |plan| {
            plan.set_steps(n);
            Ok(())
        })
    }

    /// Notes on how the plan runs on the device.
    #[getter]
    fn notes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.run(py, |plan| Ok(plan.notes().to_vec()))
    }

    /// Free the memory, once no view needs it. A closed session may be closed again.
    fn close(&self, py: Python<'_>) {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(worker));
    }

    /// Whether the session is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }
}

/// Memory of a state, for numpy and torch. bf16 has the type "<i2".
#[pyclass(frozen, module = "memc")]
pub(crate) struct View {
    place: StatePlace,
    ty: TensorType,
    /// Keeps the memory alive.
    _owner: Arc<Worker>,
}

impl View {
    /// The array interface, where the memory is of the kind that is asked for.
    fn interface<'py>(&self, py: Python<'py>, is_on_gpu: bool) -> PyResult<Bound<'py, PyDict>> {
        if self.place.is_on_gpu != is_on_gpu {
            let place = if is_on_gpu { "ordinary memory" } else { "the memory of a GPU" };
            return Err(PyAttributeError::new_err(format!("the state lies in {place}")));
        }
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, &self.ty.shape)?)?;
        interface.set_item("typestr", type_code(self.ty.dtype))?;
        interface.set_item("data", (self.place.address, false))?;
        interface.set_item("strides", py.None())?;
        Ok(interface)
    }
}

#[pymethods]
impl View {
    /// Address of the memory.
    #[getter]
    fn address(&self) -> usize {
        self.place.address
    }

    /// Whether it is memory of a GPU.
    #[getter]
    fn is_on_gpu(&self) -> bool {
        self.place.is_on_gpu
    }

    /// Whether a step takes the state from copies too, which a change of this memory does not reach.
    #[getter]
    fn has_copies(&self) -> bool {
        self.place.has_copies
    }

    /// See numpy's array interface. Only for ordinary memory.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.interface(py, false)
    }

    /// See Numba's CUDA array interface. Only for memory of a GPU.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.interface(py, true)
    }
}

/// Element type in numpy's spelling. It has none for bf16, whose bits are those of an integer.
fn type_code(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::BF16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::I8 => "|i1",
        DType::U8 => "|u1",
        DType::Bool => "|b1",
    }
}
