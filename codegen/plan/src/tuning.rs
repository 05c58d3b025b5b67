//! The tuning section of a plan: algorithms of a device's libraries for kernels of the plan, as measured
//! there.
//!
//! It says nothing about the schedule, and a runtime may ignore it. An algorithm is good only where
//! everything that it depends on is as it was; what the names of devices, libraries and options mean is up to
//! the runtime that measured.

use crate::{Action, Plan, PlanError};

/// Bytes of an opaque algorithm of a matrix product.
pub const PRODUCT_BYTES: usize = 64;

/// The algorithms that were measured, and what they depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Name of the device.
    pub device: String,
    /// Its architecture, such as `sm_90`.
    pub arch: String,
    /// Name and version of each library whose algorithms are listed.
    pub libraries: Vec<(String, String)>,
    /// Rounding that libraries were allowed, such as `exact`.
    pub rounding: String,
    /// Whether algorithms were allowed that may give other bits in every run.
    pub allow_nondeterminism: bool,
    /// The kernels, by rising index.
    pub kernels: Vec<TunedKernel>,
}

/// A kernel and its algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunedKernel {
    /// Index into [`Plan::kernels`].
    pub kernel: u32,
    /// The algorithm.
    pub algorithm: TunedAlgorithm,
    /// Bytes of workspace that it takes; no launch of the kernel has less.
    pub workspace_bytes: u64,
    /// Time of a launch in ns.
    pub ns: u64,
    /// Time in ns of what the library takes by itself.
    pub default_ns: u64,
    /// Whether it is of another call than the op's own: of a part of it, which a kernel of the runtime
    /// completes, or of a convolution as a product. The time is that of the call and of what completes it.
    pub is_apart: bool,
}

/// An algorithm to compute a kernel, in its library's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunedAlgorithm {
    /// A matrix product's algorithm, which its library alone can read.
    Product(Box<[u8; PRODUCT_BYTES]>),
    /// A convolution's, or that of a gradient of one.
    Convolution {
        /// Number of the algorithm.
        algorithm: u32,
        /// Number of the kind of arithmetic.
        math: u32,
    },
}

impl Plan {
    /// Checks the rules of the tuning section: texts without control characters; kernels in range, launched,
    /// in order and none twice; at least one kernel; and workspaces no larger than those of the kernel's
    /// launches.
    pub(crate) fn check_tuning(&self) -> Result<(), PlanError> {
        let fail = |what: String| PlanError::invalid("tuning", what);
        let Some(tuning) = &self.tuning else { return Ok(()) };
        if tuning.kernels.is_empty() {
            return Err(fail("it lists no kernel".to_owned()));
        }
        let libraries = tuning.libraries.iter().flat_map(|(name, version)| [name, version]);
        let mut texts = [&tuning.device, &tuning.arch, &tuning.rounding].into_iter().chain(libraries);
        if let Some(text) = texts.find(|text| text.chars().any(char::is_control)) {
            return Err(fail(format!("{text:?} is no text without control characters")));
        }
        let least = self.least_workspaces();
        let mut next = 0;
        for entry in &tuning.kernels {
            let (kernel, needs) = (entry.kernel, entry.workspace_bytes);
            let least = usize::try_from(kernel).ok().and_then(|index| least.get(index));
            let least = *least
                .ok_or_else(|| fail(format!("no kernel {kernel}; the plan has {}", self.kernels.len())))?;
            if kernel < next {
                return Err(fail(format!("kernel {kernel} is out of order or listed twice")));
            }
            let least = least.ok_or_else(|| fail(format!("kernel {kernel} is never launched")))?;
            if needs > least {
                return Err(fail(format!(
                    "kernel {kernel} takes {needs} bytes of workspace where a launch has {least}"
                )));
            }
            next = kernel.saturating_add(1);
        }
        Ok(())
    }

    /// For each kernel, the least bytes of workspace of its launches; `None` where it is never launched.
    fn least_workspaces(&self) -> Vec<Option<u64>> {
        let mut least: Vec<Option<u64>> = vec![None; self.kernels.len()];
        for (_, _, command) in self.commands() {
            let Action::Launch { kernel, workspace, .. } = &command.action else { continue };
            let supplied = workspace.map_or(0, |slice| slice.bytes);
            if let Some(entry) = usize::try_from(*kernel).ok().and_then(|index| least.get_mut(index)) {
                *entry = Some(entry.map_or(supplied, |least| supplied.min(least)));
            }
        }
        least
    }
}
