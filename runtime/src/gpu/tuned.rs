//! Algorithms that a plan's tuning section has for its kernels, as far as what was measured is what is here
//! now.

use std::collections::BTreeMap;

use memc_gpu::{LibraryAlgorithm, LibraryOptions, Rounding, Setting};
use memc_plan::{TunedAlgorithm, TunedKernel, Tuning};

use crate::Program;

/// Said of an algorithm that is not among those that a library offers, or that the rules allow.
const REFUSED: &str = "the library, or the rules for what it may do, do not take the tuned algorithm";

/// A plan's tuning on a device.
pub(super) struct Tuned<'a> {
    tuning: Option<&'a Tuning>,
    /// By kernel.
    kernels: BTreeMap<usize, &'a TunedKernel>,
    setting: Setting,
    /// Calls that have an algorithm there.
    all: usize,
    /// Reasons why tuned algorithms are not used, each with the number of calls that it concerns.
    left: BTreeMap<String, usize>,
}

impl<'a> Tuned<'a> {
    pub(super) fn new(program: &'a Program, setting: Setting) -> Tuned<'a> {
        let tuning = program.tuning.as_ref().filter(|_| !setting.options.is_off);
        let kernels = tuning.iter().flat_map(|tuning| &tuning.kernels);
        let kernels = kernels.map(|entry| (usize::try_from(entry.kernel).unwrap_or(usize::MAX), entry));
        Tuned { tuning, kernels: kernels.collect(), setting, all: 0, left: BTreeMap::new() }
    }

    /// The tuned algorithm for the call that these kernels are, where it was measured under the conditions of
    /// this run, and whether it is of another form than their own call.
    pub(super) fn algorithm(&mut self, kernels: &[usize]) -> Option<(LibraryAlgorithm, bool)> {
        let tuning = self.tuning?;
        let entry = kernels.iter().find_map(|kernel| self.kernels.get(kernel))?;
        let algorithm = to_library(&entry.algorithm);
        let name = algorithm.component().name();
        let here = self.setting.libraries.iter().find(|(component, _)| *component == algorithm.component());
        // Without the library a note about the library itself suffices.
        let (_, here) = here?;
        self.all += 1;
        let there = tuning.libraries.iter().find(|(library, _)| library == name).map(|(_, version)| version);
        let (device, arch) = (&self.setting.device, self.setting.arch.to_string());
        let options = self.setting.options;
        let why = if (&tuning.device, &tuning.arch) != (device, &arch) {
            format!("it was measured on {}, {}, and this is {device}, {arch}", tuning.device, tuning.arch)
        } else if (tuning.rounding.as_str(), tuning.allow_nondeterminism) != named(options) {
            let with = |(rounding, any): (&str, bool)| {
                format!(
                    "rounding {rounding}, {}",
                    if any { "sums in any order" } else { "sums in one order" }
                )
            };
            let there = with((&tuning.rounding, tuning.allow_nondeterminism));
            format!("it was measured with {there}, and this run has {}", with(named(options)))
        } else if there != Some(here) {
            let there = there.map_or("unknown", String::as_str);
            format!("it was measured with {name} {there}, and here is {here}")
        } else {
            return Some((algorithm, entry.is_apart));
        };
        *self.left.entry(why).or_default() += 1;
        None
    }

    /// The last algorithm was not taken.
    pub(super) fn refused(&mut self) {
        *self.left.entry(REFUSED.to_owned()).or_default() += 1;
    }

    /// Note for the user: the number of kernels that are not computed as they were tuned, and the reasons.
    pub(super) fn note(&self) -> Option<String> {
        let left: usize = self.left.values().sum();
        let why: Vec<&str> = self.left.keys().map(String::as_str).collect();
        let text = || {
            format!(
                "the plan's tuning is not used for {left} of {} tuned kernels, whose algorithms the \
                 libraries choose: {}; `memrun tune` measures again",
                self.all,
                why.join(", and ")
            )
        };
        (left > 0).then(text)
    }
}

/// Names of options in a tuning section.
pub(super) fn named(options: LibraryOptions) -> (&'static str, bool) {
    let rounding = match options.rounding {
        Rounding::Exact => "exact",
        Rounding::Tf32 => "tf32",
        Rounding::Bf16 => "bf16",
    };
    (rounding, options.allow_nondeterminism)
}

fn to_library(algorithm: &TunedAlgorithm) -> LibraryAlgorithm {
    match algorithm {
        TunedAlgorithm::Product(bytes) => LibraryAlgorithm::Product(bytes.clone()),
        TunedAlgorithm::Convolution { algorithm, math } => {
            LibraryAlgorithm::Convolution { algorithm: *algorithm, math: *math }
        }
    }
}

/// A library's algorithm as plans have it.
pub(super) fn to_plan(algorithm: LibraryAlgorithm) -> TunedAlgorithm {
    match algorithm {
        LibraryAlgorithm::Product(bytes) => TunedAlgorithm::Product(bytes),
        LibraryAlgorithm::Convolution { algorithm, math } => TunedAlgorithm::Convolution { algorithm, math },
    }
}
