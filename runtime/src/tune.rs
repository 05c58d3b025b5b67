//! Measuring how the libraries of a GPU best compute a plan's kernels, for the plan's tuning section.

use std::sync::Arc;

use memc_gpu::{Clock, Cuda, GpuError, Graphs, LibraryAlgorithms, LibraryOptions};
use memc_plan::{PlanFile, Tuning};

pub use crate::gpu::tune::TunedCall;
use crate::gpu::tune::{Tuner, faster, has_choice};
use crate::{DeviceName, Error, FeedOptions, Feeder, Initial, InputSource, Program, Session, Stages, memory};

/// Options of tuning.
#[derive(Clone, Debug, Default)]
pub struct TuneOptions {
    /// Device to measure on: a GPU.
    pub device: DeviceName,
    /// Permissions of the libraries.
    pub libraries: LibraryOptions,
    /// Most bytes of the plan's host arena; `None` for what the system has available.
    pub host_mem: Option<u64>,
    /// Files by the name under which the model takes the data; other inputs are synthetic.
    pub inputs: Vec<(String, InputSource)>,
    /// Receiver of the stages.
    pub stages: Stages,
}

/// Results of tuning.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The section for the plan; none where no library computes a kernel of it.
    pub tuning: Option<Tuning>,
    /// Every call of a library, by a kernel that is launched.
    pub calls: Vec<TunedCall>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Runs a step of a plan and measures the algorithms of its library calls.
///
/// # Errors
/// Those of a run; [`Error::Usage`] for a device or options without libraries, and [`Error::Device`] where a
/// library that kernels of the plan call cannot be used.
pub fn tune(file: &PlanFile, options: &TuneOptions) -> Result<Tuned, Error> {
    let DeviceName::Cuda(ordinal) = options.device else {
        return Err(Error::Usage(
            "tuning measures the libraries of a GPU, which the CPU device does not use; add --device cuda"
                .to_owned(),
        ));
    };
    if options.libraries.is_off {
        return Err(Error::Usage("--no-libraries leaves nothing to tune; leave it out".to_owned()));
    }
    tune_gpu(&|| Cuda::open(ordinal, options.libraries), file, options)
}

/// [`tune`] on a device whose drivers `open` makes; the device and the libraries that the options name are
/// ignored.
///
/// # Errors
/// Those of a run, and [`Error::Device`] where a library that kernels of the plan call cannot be used.
pub fn tune_gpu<D: Graphs + Clock + LibraryAlgorithms + 'static, F: Fn() -> Result<D, GpuError>>(
    open: &F,
    file: &PlanFile,
    options: &TuneOptions,
) -> Result<Tuned, Error> {
    // Times are to be compared with what libraries choose, whatever was measured before.
    let mut plan = file.plan().clone();
    plan.tuning = None;
    let program = Arc::new(Program::new(&plan)?);
    let initial = Initial::new(file, Vec::new(), Vec::new())?;
    memory::limit(program.host_bytes, options.host_mem)?;
    let mut notes = Vec::new();
    let mut measure = |is_other| {
        let feed = FeedOptions {
            inputs: options.inputs.clone(),
            synthetic: true,
            steps: 1,
            ..FeedOptions::default()
        };
        let mut feeder = Feeder::new(&plan, std::slice::from_ref(&program), &feed)?;
        let device = Tuner::new(open, options.host_mem, is_other, &options.stages);
        options.stages.enter("reserving memory, preparing kernels");
        let mut session = Session::start(&device, &plan, program.clone(), &initial, &mut feeder)?;
        options.stages.enter("a step that warms up");
        session.step()?;
        if !is_other {
            notes = session.notes().to_vec();
        }
        Ok::<_, Error>(device.take())
    };
    let mut measured = measure(false)?;
    if has_choice(&program) {
        measured = faster(measured, measure(true)?);
    }
    Ok(Tuned { tuning: measured.tuning, calls: measured.calls, notes })
}
