//! Ways of the libraries on a GPU.

use memc_cuda::LibraryCall;

use super::Cuda;
use crate::library::require;
use crate::tuning::{LibraryWay, Offer, Setting, Ways};
use crate::{Component, GpuError, Libraries, LibraryOp, Stream};

impl Ways for Cuda {
    fn ways(&mut self, call: &LibraryCall, workspace: usize) -> Result<Vec<Offer>, GpuError> {
        self.calls.ways(call, workspace, self.stream(Stream::Compute).cast())
    }

    fn plan_way(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        way: &LibraryWay,
    ) -> Result<Option<LibraryOp>, GpuError> {
        self.calls.plan(call, workspace, Some(way), self.stream(Stream::Compute).cast())
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
