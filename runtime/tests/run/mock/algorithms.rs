//! Algorithms of the mock's libraries: three for every call, which compute the same.

use memc_gpu::{
    Answer, Arch, Candidate, Component, Driver, GpuError, LibraryAlgorithm, LibraryAlgorithms, LibraryCall,
    LibraryOp, LibraryOptions, Setting,
};

use super::Mock;

const ALGORITHMS: u8 = 3;

fn algorithm(call: &LibraryCall, number: u8) -> LibraryAlgorithm {
    match call {
        LibraryCall::Product(_) => LibraryAlgorithm::Product(Box::new([number; 64])),
        LibraryCall::Convolution(_) => LibraryAlgorithm::Convolution { algorithm: number.into(), math: 3 },
    }
}

impl LibraryAlgorithms for Mock {
    fn algorithms(&mut self, call: &LibraryCall, workspace: usize) -> Result<Vec<Candidate>, GpuError> {
        let count = if self.behaviour.has_libraries { ALGORITHMS } else { 0 };
        let candidate = |number| Candidate { algorithm: algorithm(call, number), workspace: workspace / 2 };
        Ok((0..count).map(candidate).collect())
    }

    fn plan_tuned(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        kept: &LibraryAlgorithm,
    ) -> Result<Option<LibraryOp>, GpuError> {
        if !(0..ALGORITHMS).any(|number| algorithm(call, number) == *kept) {
            return Ok(None);
        }
        match self.plan_library(call, workspace)? {
            Answer::Taken(op) => Ok(Some(op)),
            _ => Ok(None),
        }
    }

    fn setting(&self) -> Setting {
        let version = if self.behaviour.has_newer { "2.0.0" } else { "1.0.0" };
        let count = if self.behaviour.has_libraries { 2 } else { 0 };
        let libraries = [Component::CublasLt, Component::Cudnn].into_iter().take(count);
        Setting {
            device: "Mock GPU".to_owned(),
            arch: Arch { major: 9, minor: 0 },
            libraries: libraries.map(|component| (component, version.to_owned())).collect(),
            options: LibraryOptions::default(),
        }
    }
}
