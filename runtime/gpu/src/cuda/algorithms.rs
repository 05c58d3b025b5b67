//! Algorithms of the libraries on a GPU.

use memc_cuda::LibraryCall;

use super::Cuda;
use crate::library::require;
use crate::tuning::{Candidate, LibraryAlgorithm, LibraryAlgorithms, Setting};
use crate::{Component, GpuError, Libraries, LibraryOp, Stream};

impl LibraryAlgorithms for Cuda {
    fn algorithms(&mut self, call: &LibraryCall, workspace: usize) -> Result<Vec<Candidate>, GpuError> {
        self.calls.algorithms(call, workspace, self.stream(Stream::Compute).cast())
    }

    fn plan_tuned(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        algorithm: &LibraryAlgorithm,
    ) -> Result<Option<LibraryOp>, GpuError> {
        self.calls.plan(call, workspace, Some(algorithm), self.stream(Stream::Compute).cast())
    }

    fn setting(&self) -> Setting {
        let version = |component| {
            require(component, &[]).ok()?;
            Some((component, Libraries::get().require(component).ok()?.version.clone()?))
        };
        Setting {
            device: self.info.name.clone(),
            arch: self.info.arch,
            libraries: [Component::CublasLt, Component::Cudnn].into_iter().filter_map(version).collect(),
            options: self.calls.options,
        }
    }
}
